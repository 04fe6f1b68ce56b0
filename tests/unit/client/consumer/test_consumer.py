"""The blocking Consumer against the cluster over lists."""

import copy
import pickle
import threading
from contextlib import suppress
from itertools import islice

import headrace
import pytest
from headrace import TopicPartition
from headrace.wire.columns import encode_batch
from headrace.wire.errors import (
    CorruptBatchError,
    InternalError,
    OffsetOutOfRangeError,
    UnknownPartitionError,
    UnknownTopicError,
)

P0, P1 = TopicPartition("clicks", 0), TopicPartition("clicks", 1)


def batch(*values, time_ms=1_000, **more):
    return encode_batch([value.encode() for value in values], base_timestamp_ms=time_ms, **more)


def fill(fake, count, partition=0, size=10, start=0):
    for base in range(start, start + count, size):
        fake.append("clicks", batch(*(f"{n}" for n in range(base, min(base + size, start + count)))), partition)


@pytest.fixture
def consume(clicks):
    made = []

    def make(*topics, **settings):
        settings = {"auto_offset_reset": "earliest", "fetch_max_wait_ms": 50, **settings}
        consumer = headrace.Consumer(*topics, bootstrap_servers=clicks.address, **settings)
        made.append(consumer)
        return consumer

    yield make
    for consumer in made:
        consumer.close()


def take(consumer, count):
    return list(islice(iter(consumer), count))


def test_it_gives_every_record_of_every_partition_in_order(clicks, consume):
    """Each partition's records come once, in offset order, with all their fields (paper 3.3)."""
    fill(clicks, 95)
    fill(clicks, 43, partition=1)
    records = take(consume("clicks"), 138)
    for where, count in ((P0, 95), (P1, 43)):
        mine = [record for record in records if (record.topic, record.partition) == where]
        assert [record.offset for record in mine] == list(range(count))
        assert [record.value for record in mine] == [str(n).encode() for n in range(count)]
    assert records[0].timestamp_ms == 1_000
    assert records[0].key is None
    assert records[0].headers == ()


def test_the_iterator_blocks_and_continues(clicks, consume):
    """An iterator that found nothing waits, and gives what comes later (paper 3: it never ends)."""
    records = iter(consume("clicks"))
    later = threading.Timer(0.05, lambda: clicks.append("clicks", batch("late")))
    later.start()
    assert next(records).value == b"late"
    later.join()


@pytest.mark.parametrize("by_poll", [True, False])
def test_an_error_in_the_middle_of_a_batch_repeats_nothing(clicks, consume, by_poll):
    """The engine meets an error while a batch is open: each record is received once, before the error or behind it."""
    fill(clicks, 20)
    consumer = consume()
    consumer.assign({P0: 0})
    seen = [record.offset for record in (consumer.poll(5, max_records=3) if by_poll else take(consumer, 3))]
    with consumer._core.fetcher.changing() as positions:
        positions.fail(P0, InternalError("odd"), 0)
    fill(clicks, 5, start=20)
    while len(seen) < 25:
        with suppress(InternalError):
            seen += [record.offset for record in (consumer.poll(5, max_records=4) if by_poll else take(consumer, 1))]
    assert seen == list(range(25))


def test_an_open_batch_of_a_deleted_topic_is_dropped_where_the_engine_continues_in_the_next(clicks, consume):
    """Records of the old topic are not delivered as if they stood in the new one."""
    fill(clicks, 20)
    consumer = consume()
    consumer.assign({P0: 0})
    assert len(consumer.poll(5, max_records=3)) == 3
    with consumer._core.fetcher.changing() as positions:
        positions.seek(P0, 15)
    assert [record.offset for record in consumer.poll(5, max_records=2)] == [15, 16]


def test_the_position_is_exact_in_the_middle_of_a_batch(clicks, consume):
    """After each record the position is the next one's offset, though records are made a batch at a time."""
    fill(clicks, 30)
    consumer = consume()
    consumer.assign([P0])
    assert next(iter(consumer)).offset == 0
    for expected, record in enumerate(consumer, 1):
        assert record.offset == expected
        assert consumer.position(P0) == expected + 1
        if expected == 17:
            break
    assert [record.offset for record in consumer.poll(5, max_records=3)] == [18, 19, 20]
    assert consumer.position(P0) == 21
    assert next(iter(consumer)).offset == 21


def test_poll_gives_at_most_what_was_asked_for(clicks, consume):
    """poll(max_records) cuts batches and loses nothing; the pieces make a whole."""
    fill(clicks, 100, size=33)
    consumer = consume()
    consumer.assign([P0])
    seen = []
    while len(seen) < 100:
        records = consumer.poll(5, max_records=7)
        assert 0 < len(records) <= 7
        seen += [record.value for record in records]
    assert seen == [str(n).encode() for n in range(100)]
    assert len(consumer.poll(0)) == 0


def test_poll_inside_an_iteration_continues_at_its_position(clicks, consume):
    """Iterating and polling share one position: nothing comes twice, nothing is left out."""
    fill(clicks, 30)
    consumer = consume()
    consumer.assign([P0])
    seen = []
    for record in consumer:
        seen.append(record.offset)
        if record.offset == 4:
            seen += [more.offset for more in consumer.poll(5, max_records=2)]
        if record.offset >= 20:
            break
    assert seen == list(range(21))


def test_seek_inside_an_iteration_takes_effect_at_the_next_record(clicks, consume):
    """A seek in the loop's body is where the next record comes from, forwards and backwards (paper 3.1: rewind)."""
    fill(clicks, 30)
    consumer = consume()
    consumer.assign([P0])
    records = iter(consumer)
    assert [next(records).offset for _ in range(3)] == [0, 1, 2]
    consumer.seek(P0, 25)
    assert next(records).offset == 25
    consumer.seek(P0, 1)
    assert [next(records).offset for _ in range(3)] == [1, 2, 3]


def test_a_paused_partition_stays_where_it_is(clicks, consume):
    """A paused partition delivers nothing, not even fetched records; after resume it continues without a gap."""
    fill(clicks, 20)
    fill(clicks, 20, partition=1)
    consumer = consume("clicks")
    first = consumer.poll(5, max_records=3)
    where = TopicPartition(first[0].topic, first[0].partition)
    other = P1 if where == P0 else P0
    consumer.pause(where)
    assert consumer.paused() == [where]
    assert {record.partition for record in take(consumer, 20)} == {other.partition}
    consumer.resume(where)
    assert [record.offset for record in take(consumer, 17)] == list(range(3, 20))


def test_latest_starts_behind_what_is_there(clicks, consume):
    """With auto_offset_reset latest, records from before the consumer was made do not come; those after do."""
    fill(clicks, 20)
    consumer = consume("clicks", auto_offset_reset="latest")
    fill(clicks, 5, start=20)
    assert [record.offset for record in take(consumer, 5)] == list(range(20, 25))


def test_seek_to_time_and_edges(clicks, consume):
    """Positions can be found by time, and at both ends."""
    for number in range(10):
        clicks.append("clicks", batch(str(number), time_ms=1000 * number))
    consumer = consume()
    consumer.assign([P0])
    consumer.seek_to_timestamp(4500)
    assert consumer.position(P0) == 5
    consumer.seek_to_end()
    assert consumer.position(P0) == 10
    consumer.seek_to_beginning(P0)
    assert next(iter(consumer)).offset == 0


@pytest.mark.parametrize(("reset", "offset"), [("earliest", 10), ("latest", 30)])
def test_a_position_that_retention_took_is_reset_as_set(clicks, consume, reset, offset):
    """Below the log start the consumer continues at the offset that auto_offset_reset selects."""
    fill(clicks, 30)
    clicks.topics["clicks"].partitions[0].start = 10
    consumer = consume(auto_offset_reset=reset)
    consumer.assign({P0: 3})
    while consumer.position(P0) == 3:
        assert len(consumer.poll(0.02)) == 0 or reset == "earliest"
    if reset == "latest":
        fill(clicks, 10, start=30)
        assert next(iter(consumer)).offset == offset
    else:
        consumer.seek(P0, 3)
        assert next(iter(consumer)).offset == offset


def test_a_lost_position_is_an_error_where_asked(clicks, consume):
    """With auto_offset_reset error, a gap says how many records are gone and from where on there are some."""
    fill(clicks, 30)
    consumer = consume(auto_offset_reset="error")
    consumer.assign({P0: 0})
    clicks.topics["clicks"].partitions[0].start = 10
    consumer.seek(P0, 3)
    with pytest.raises(OffsetOutOfRangeError, match="7 records from 3 on are gone"):
        take(consumer, 1)
    consumer.seek(P0, 10)
    assert next(iter(consumer)).offset == 10


def test_a_truncated_log_is_an_error_where_asked(clicks, consume):
    """A position past the log's end says that the log was truncated (KIP-320)."""
    fill(clicks, 10)
    consumer = consume(auto_offset_reset="error")
    consumer.assign({P0: 17})
    with pytest.raises(headrace.LogTruncationError) as caught:
        take(consumer, 1)
    assert (caught.value.position, caught.value.diverging_offset) == (17, 10)


def test_replaced_records_raise_an_error_with_the_offset_to_continue_from(clicks, consume):
    """Delivered records that the log has replaced raise an error with the offset to continue from; after the seek the
    consumer reads the whole log, once and in order (KIP-320).
    """
    fill(clicks, 30)
    consumer = consume(auto_offset_reset="latest")
    consumer.assign({P0: 0})
    assert len(take(consumer, 30)) == 30
    clicks.topics["clicks"].partitions[0].truncate(20)
    fill(clicks, 20, start=100)
    with pytest.raises(headrace.LogTruncationError) as caught:
        take(consumer, 1)
    error = caught.value
    assert (error.partition, error.position, error.leader_epoch) == (P0, 30, 0)
    assert error.diverging_offset == 20
    consumer.seek(P0, error.diverging_offset)
    assert [(record.offset, record.value) for record in take(consumer, 20)] == [
        (20 + n, b"%d" % (100 + n)) for n in range(20)
    ]


def test_what_was_not_received_may_be_replaced(clicks, consume):
    """A truncation of records that were not delivered raises no error."""
    fill(clicks, 30)
    consumer = consume()
    consumer.assign({P0: 0})
    assert len(consumer.poll(5, max_records=5)) == 5
    consumer.pause(P0)
    clicks.topics["clicks"].partitions[0].truncate(20)
    fill(clicks, 10, start=100)
    consumer.resume(P0)
    assert [record.value for record in take(consumer, 25)] == [
        *(b"%d" % n for n in range(5, 20)),
        *(b"%d" % n for n in range(100, 110)),
    ]


def test_a_batch_that_was_corrupt_on_its_way_is_fetched_again(clicks, consume):
    """The broker is told that it is corrupt; the application sees every record once and no error (I17)."""
    fill(clicks, 30)
    log = clicks.topics["clicks"].partitions[0]
    log.spoiled = 2
    consumer = consume()
    consumer.assign([P0])
    assert [record.offset for record in take(consumer, 30)] == list(range(30))
    assert log.corruption_reported == 2


@pytest.mark.parametrize("broken", ["give_up_overdue", "take_answer"])
def test_a_bug_in_a_background_thread_reaches_the_application(clicks, consume, monkeypatch, broken):
    """An unexpected error ends the consumer with that error, not an endless wait, and health reports it."""
    consumer = consume("clicks")

    def bug(*args):
        raise RuntimeError("a bug")

    monkeypatch.setattr(consumer._core.fetcher.engine.fetches, broken, bug)
    with pytest.raises(InternalError, match="a bug") as caught:
        consumer.poll(30)
    assert caught.value.fatal
    assert isinstance(caught.value.__cause__, RuntimeError)
    with pytest.raises(InternalError):
        consumer.poll(0)
    assert "a bug" in consumer.health().problem
    consumer.close()


def test_a_corrupt_batch_names_itself_and_the_next_good_offset(clicks, consume):
    """Bytes that fail their checksum are never delivered; the error has the offset to continue from (I17)."""
    fill(clicks, 30)
    log = clicks.topics["clicks"].partitions[0]
    header, stored = log.batches[1]
    log.batches[1] = (header, stored[:-1] + bytes([stored[-1] ^ 1]))
    consumer = consume()
    consumer.assign([P0])
    assert len(take(consumer, 10)) == 10
    with pytest.raises(CorruptBatchError) as caught:
        take(consumer, 1)
    assert caught.value.next_offset == 20
    assert "clicks" in str(caught.value)
    consumer.seek(P0, caught.value.next_offset)
    assert [record.offset for record in take(consumer, 10)] == list(range(20, 30))


def test_wakeup_ends_a_wait_once(clicks, consume):
    """wakeup raises in the waiting thread; the consumer continues afterwards."""
    consumer = consume("clicks")
    waker = threading.Timer(0.05, consumer.wakeup)
    waker.start()
    with pytest.raises(headrace.WakeupError):
        consumer.poll(30)
    waker.join()
    clicks.append("clicks", batch("x"))
    assert consumer.poll(10)[0].value == b"x"


def test_close_ends_a_wait_and_everything_after(clicks, consume):
    """A closed consumer raises ClosedError, also in a thread that waits; closing again does nothing."""
    consumer = consume("clicks")
    closer = threading.Timer(0.05, consumer.close)
    closer.start()
    with pytest.raises(headrace.ClosedError):
        consumer.poll(30)
    closer.join()
    consumer.close()
    with pytest.raises(headrace.ClosedError):
        consumer.poll(0)
    assert not consumer.health().healthy


def test_new_partitions_are_read_from_their_beginning(clicks, consume):
    """A partition added to the topic is found by the metadata's refresh, and nothing in it is skipped."""
    consumer = consume("clicks", auto_offset_reset="latest", metadata_max_age_ms=100)
    topic = clicks.topics["clicks"]
    topic.partitions.append(type(topic.partitions[0])())
    clicks.append("clicks", batch("new"), partition=2)
    record = next(iter(consumer))
    assert (record.partition, record.offset, record.value) == (2, 0, b"new")


def test_lag_and_health(clicks, consume):
    """Lag counts what is ahead of the application's position; a working consumer is healthy."""
    fill(clicks, 30)
    consumer = consume()
    consumer.assign([P0])
    consumer.poll(5, max_records=12)
    assert consumer.lag() == {P0: 18}
    health = consumer.health()
    assert health.healthy
    assert health.assigned == 1


def test_tables_and_parts_of_a_poll(clicks, consume):
    """A poll's records become an Arrow table, also where poll cut them, and come apart by partition."""
    fill(clicks, 10)
    consumer = consume()
    consumer.assign([P0])
    consumer.poll(5, max_records=4)
    records = consumer.poll(5)
    table = records.to_arrow()
    assert table.column("offset").to_pylist() == list(range(4, 10))
    assert table.column("value").to_pylist() == [record.value for record in records]
    assert list(records.by_partition()) == [P0]


def test_deserializers_and_their_errors_name_the_record(clicks, consume):
    """The error names the record that cannot be deserialized; the next call continues after that record."""
    clicks.append("clicks", batch("[1]", "nonsense", "[3]"))
    consumer = consume(value_deserializer="json")
    consumer.assign([P0])
    records = iter(consumer)
    assert next(records).value == [1]
    with pytest.raises(headrace.SerializationError, match="clicks-0 at offset 1 ") as caught:
        next(records)
    assert (caught.value.partition, caught.value.offset) == (P0, 1)
    assert next(iter(consumer)).value == [3]


def test_bad_calls_are_refused(clicks, consume):
    """Unknown topics, partitions and settings, and a consumer that reads nothing, are typed errors at once."""
    with pytest.raises(UnknownTopicError):
        consume("nothing")
    with pytest.raises(headrace.ConfigError, match="auto_offset_reset"):
        consume("clicks", auto_ofset_reset="earliest")
    consumer = consume()
    with pytest.raises(UnknownPartitionError):
        consumer.assign([TopicPartition("clicks", 7)])
    with pytest.raises(headrace.ConfigError, match="nothing"):
        consumer.poll(0)
    with pytest.raises(UnknownPartitionError):
        consumer.seek(P0, 3)
    with pytest.raises(headrace.ConfigError):
        consume("clicks").assign([P0])


def test_a_topic_that_is_deleted_while_it_is_read_is_an_error(clicks, consume):
    """A consumer of a topic that is gone says so, and does not wait for ever."""
    consumer = consume("clicks")
    del clicks.topics["clicks"]
    with pytest.raises(UnknownTopicError):
        consumer.poll(30)


def make_anew(fake, count):
    """Delete the topic and create it again under its name, with other records."""
    old = fake.topics["clicks"].topic_id
    with fake.lock:
        new = fake.create_topic("clicks", 2).topic_id
    fill(fake, count)
    return old, new


def test_a_topic_made_anew_is_read_from_its_beginning(clicks, consume, caplog):
    """Another topic id is a lost position, reset as auto_offset_reset says: no record of the new life is skipped."""
    fill(clicks, 100)
    consumer = consume("clicks")
    assert len(take(consumer, 100)) == 100
    old, new = make_anew(clicks, 150)
    assert [record.offset for record in take(consumer, 150)] == list(range(150))
    (told,) = [message for message in caplog.messages if message.startswith("clicks-0: the topic was deleted")]
    assert old.hex() in told
    assert new.hex() in told


def test_with_latest_a_topic_made_anew_is_read_from_its_end(clicks, consume):
    fill(clicks, 100)
    consumer = consume(auto_offset_reset="latest")
    consumer.assign({P0: 0})
    assert len(take(consumer, 100)) == 100
    make_anew(clicks, 30)
    while consumer.position(P0) == 100:
        assert len(consumer.poll(0.02)) == 0
    assert consumer.position(P0) == 30


def test_a_topic_made_anew_is_an_error_where_asked(clicks, consume):
    """With auto_offset_reset "error" the exception has both ids; a seek continues in the new topic."""
    fill(clicks, 100)
    consumer = consume(auto_offset_reset="error")
    consumer.assign({P0: 0})
    take(consumer, 100)
    old, new = make_anew(clicks, 150)
    for _ in range(2):  # Again and again, until the position is moved.
        with pytest.raises(headrace.TopicRecreatedError) as caught:
            take(consumer, 1)
        assert (caught.value.old_topic_id, caught.value.new_topic_id) == (old, new)
        assert (caught.value.partition, caught.value.position) == (P0, 100)
    consumer.seek(P0, 0)
    assert [record.offset for record in take(consumer, 150)] == list(range(150))


def test_a_seek_by_time_or_edge_is_of_the_life_that_was_looked_at(clicks, consume):
    """The look-up finds the new life before the background does: its offset counts, and is reset no more."""
    fill(clicks, 100)
    consumer = consume("clicks", auto_offset_reset="latest")
    consumer.seek_to_beginning()
    take(consumer, 100)
    make_anew(clicks, 20)
    consumer.seek_to_beginning()
    assert [record.offset for record in take(consumer, 20)] == list(range(20))


def test_an_unreachable_cluster_lists_every_address():
    """The error names each bootstrap address with its own cause."""
    with pytest.raises(headrace.NoBrokersAvailableError) as caught:
        headrace.Consumer("clicks", bootstrap_servers="127.0.0.1:1,127.0.0.1:2", request_timeout_ms=3000)
    assert set(caught.value.causes) == {"127.0.0.1:1", "127.0.0.1:2"}


def test_a_record_is_a_plain_tuple_with_names(clicks, consume):
    """However it was made: it compares, prints, copies, pickles and is replaced as one that an application makes."""
    fill(clicks, 1)
    (found,) = take(consume("clicks"), 1)
    made = headrace.Record(*found)
    assert isinstance(found, headrace.Record)
    assert (found, hash(found), repr(found)) == (made, hash(made), repr(made))
    assert repr(found).startswith("Record(topic='clicks', partition=0, offset=0,")
    assert found._replace(offset=7) == made._replace(offset=7)
    for twin in (copy.copy(found), pickle.loads(pickle.dumps(found))):
        assert (twin, type(twin)) == (found, headrace.Record)
