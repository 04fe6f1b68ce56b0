"""The blocking producer on a fake cluster behind real gRPC: delivery, order, faults, bounds, ends."""

import os
import re
import signal
import socket
import sys
import threading
import zlib
from contextlib import suppress
from datetime import datetime

import headrace
import pytest
from headrace.client.base.operations import execute
from headrace.client.producer import producer_core
from headrace.client.producer.accumulator import ClosedBatch
from headrace.client.producer.futures import PendingBatch
from headrace.client.producer.partition_queue import Finished, PartitionQueue, SealedBatch
from headrace.client.producer.sender import KEPT_FAILURES
from headrace.wire.columns import decode_batch
from headrace.wire.errors import (
    BatchTooLargeError,
    CorruptBatchError,
    InternalError,
    Outcome,
    StorageFullError,
    ThrottledError,
    TimedOutError,
    TransportError,
    UnknownPartitionError,
    UnknownProducerError,
    UnknownTopicError,
    UnknownTopicIdError,
)
from headrace.wire.typed.topic_columns import parse_columns

from tests.fakes.cluster import FakePartition

FAST = {"retry_backoff_ms": 1, "retry_backoff_max_ms": 5}
WAIT = 20


def producer_for(fake, **settings):
    return headrace.Producer(bootstrap_servers=fake.address, **{**FAST, **settings})


def test_a_future_says_where_the_record_went(fake_cluster, topic):
    with producer_for(fake_cluster) as producer:
        futures = [producer.send("t", b"%d" % number, timestamp_ms=1000 + number) for number in range(10)]
        found = [future.result(WAIT) for future in futures]
    assert [where.offset for where in found] == list(range(10))
    assert [where.timestamp_ms for where in found] == list(range(1000, 1010))
    assert {where[:2] for where in found} == {("t", 0)}
    assert all(future.done() for future in futures)


def test_a_key_decides_the_partition_and_keeps_its_order(fake_cluster):
    """CRC-32 of the key modulo partitions; records of one key stay in order (PAPER row 27)."""
    topic = fake_cluster.create_topic("t", 5)
    keys = [b"k%d" % (number % 17) for number in range(2000)]
    with producer_for(fake_cluster, batch_bytes=4096) as producer:
        for number, key in enumerate(keys):
            producer.send("t", b"%d" % number, key=key)
    for number, partition in enumerate(topic.partitions):
        expected = [b"%d" % index for index, key in enumerate(keys) if zlib.crc32(key) % 5 == number]
        assert partition.values() == expected
        assert partition.keys() == [keys[int(value)] for value in expected]


def test_keys_select_from_all_partitions_once_a_topic_has_more(fake_cluster):
    """The fast path has an appender for each of the new partitions, too."""
    topic = fake_cluster.create_topic("t", 2)
    keys = [b"k%d" % number for number in range(50)]
    with producer_for(fake_cluster) as producer:
        for partitions in (2, 5):
            topic.partitions.extend(FakePartition() for _ in range(partitions - len(topic.partitions)))
            execute(producer._core.refresh(), producer._io.run_step)
            for key in keys * 3:
                producer.send("t", key, key=key)
            found = [producer.send("t", key, key=key).result(WAIT) for key in keys]
            assert [where.partition for where in found] == [zlib.crc32(key) % partitions for key in keys]


def test_send_takes_its_arguments_by_position(fake_cluster):
    topic = fake_cluster.create_topic("t", 3)
    with producer_for(fake_cluster) as producer:
        where = producer.send("t", b"value", b"key", [("h", b"1")], 2, 1234).result(WAIT)
    assert (where.partition, where.timestamp_ms) == (2, 1234)
    assert (topic.partitions[2].keys(), topic.partitions[2].values()) == ([b"key"], [b"value"])


def test_keys_headers_and_nulls_mix_in_one_batch(fake_cluster, topic):
    with producer_for(fake_cluster, linger_ms=1000) as producer:
        producer.send("t", b"plain", partition=0)
        producer.send("t", None, key=b"k")
        producer.send("t", b"h", headers=[("a", b"1")])
        producer.send("t", b"last")
    assert topic.partitions[0].values() == [b"plain", None, b"h", b"last"]
    assert topic.partitions[0].keys() == [None, b"k", None, None]
    assert len(topic.partitions[0].batches) == 1


def test_records_without_a_key_stick_to_a_partition_until_its_batch_is_sealed(fake_cluster):
    topic = fake_cluster.create_topic("t", 4)
    with producer_for(fake_cluster, linger_ms=60_000, batch_records=100) as producer:
        for number in range(100):
            producer.send("t", b"%d" % number)
        for number in range(100):
            producer.send("t", b"%d" % number)
    assert sorted(partition.end for partition in topic.partitions) == [0, 0, 100, 100]


@pytest.mark.parametrize("acks", ["all", 0])
@pytest.mark.parametrize("bulk", [True, False])
def test_small_batches_share_a_request(fake_cluster, acks, bulk, topic):
    """Each batch has its records and its sequence, each future its offset, and hundreds of batches take few calls."""
    values = [b"%d" % number for number in range(500)]
    with producer_for(fake_cluster, acks=acks, batch_records=3) as producer:
        if bulk:
            parts = producer.send_many("t", values).parts
            assert [records for _, records in parts] == [3] * 166 + [2]
            futures = [future for future, _ in parts]
        else:
            futures = [producer.send("t", value) for value in values][::3]
        offsets = [future.result(WAIT).offset for future in futures]
        assert producer.stats().sent_batches == sum(len(each.batches) for each in topic.partitions)
    assert offsets == (list(range(0, 500, 3)) if acks else [-1] * 167)
    headers = [header for header, _ in topic.partitions[0].batches]
    assert topic.partitions[0].values() == values
    assert max(header.record_count for header in headers) == 3
    assert len(headers) >= 167
    if acks:
        assert [header.base_sequence for header in headers] == [header.base_offset for header in headers]
    assert len(fake_cluster.requests) < 60


@pytest.mark.parametrize("codec", ["none", "gzip", "lz4", "zstd"])
def test_every_codec_arrives(fake_cluster, codec, topic):
    with producer_for(fake_cluster, compression_type=codec) as producer:
        producer.send_many("t", [b"abc" * 50] * 500)
    assert topic.partitions[0].values() == [b"abc" * 50] * 500


@pytest.mark.parametrize("acks", ["all", 1, 0])
def test_every_level_of_acks_delivers_in_order(fake_cluster, acks, topic):
    with producer_for(fake_cluster, acks=acks, batch_records=10) as producer:
        for number in range(500):
            producer.send("t", b"%d" % number)
    assert topic.partitions[0].values() == [b"%d" % number for number in range(500)]
    assert (topic.partitions[0].batches[0][0].producer_id >= 0) == (acks != 0)


def test_a_lost_answer_neither_loses_nor_doubles(fake_cluster, faults, topic):
    """The retry sends the exact bytes, and its future has the first append's offset (PROTOCOL H48, I20)."""
    with producer_for(fake_cluster) as producer:
        producer.send("t", b"first").result(WAIT)
        fake_cluster.faults.append(faults.lost_answer)
        assert producer.send("t", b"second").result(WAIT).offset == 1
    assert topic.partitions[0].values() == [b"first", b"second"]
    sent = [bytes(request.topics[0].partitions[0].batches[0]) for request in fake_cluster.requests]
    assert sent[1] == sent[2]


@pytest.mark.parametrize("seed", range(6))
def test_whatever_is_lost_order_holds_and_nothing_is_duplicated(fake_cluster, faults, seed):
    """Order and exactly once under lost answers and requests, refusals and hints, many in flight (I20, I21)."""
    topic = fake_cluster.create_topic("t", 2)
    fake_cluster.faults.extend(faults.drawn(seed))
    with producer_for(fake_cluster, batch_records=7, linger_ms=0) as producer:
        for number in range(1500):
            producer.send("t", b"%d" % number, partition=number % 2)
    for number, partition in enumerate(topic.partitions):
        assert partition.values() == [b"%d" % value for value in range(number, 1500, 2)]


def test_a_producer_that_the_broker_forgot_starts_a_new_epoch(fake_cluster, topic):
    """UNKNOWN_PRODUCER is definite: the same records go again under the next epoch from sequence 0 (H49)."""
    with producer_for(fake_cluster) as producer:
        producer.send("t", b"a").result(WAIT)
        topic.partitions[0].sequences.clear()
        assert producer.send("t", b"b").result(WAIT).offset == 1
        producer.send("t", b"c").result(WAIT)
    headers = [header for header, _ in topic.partitions[0].batches]
    assert [(header.producer_epoch, header.base_sequence) for header in headers] == [(0, 0), (1, 0), (1, 1)]
    assert topic.partitions[0].values() == [b"a", b"b", b"c"]


def test_a_doubtful_batch_that_the_broker_forgot_is_not_sent_anew(fake_cluster, faults, topic):
    """After a lost answer, UNKNOWN_PRODUCER does not say that nothing was appended: the outcome is UNKNOWN (H51)."""
    with producer_for(fake_cluster) as producer:
        fake_cluster.faults.extend([faults.lost_answer, faults.refused_with(UnknownProducerError("forgotten"))])
        error = producer.send("t", b"a").exception(WAIT)
        assert isinstance(error, UnknownProducerError)
        assert error.outcome == Outcome.UNKNOWN
        producer.send("t", b"b").result(WAIT)
        with pytest.raises(headrace.DeliveryError):
            producer.flush(WAIT)
    assert topic.partitions[0].values() == [b"a", b"b"]


def test_a_refused_batch_fails_alone_and_what_follows_arrives(fake_cluster, faults, topic):
    producer = producer_for(fake_cluster)
    producer.send("t", b"a").result(WAIT)
    fake_cluster.faults.append(faults.refused_with(CorruptBatchError("bad")))
    failed = producer.send("t", b"b")
    assert isinstance(failed.exception(WAIT), CorruptBatchError)
    producer.send("t", b"c").result(WAIT)
    with pytest.raises(headrace.DeliveryError) as caught:
        producer.close(WAIT)
    assert caught.value.failed_records == 1
    assert caught.value.outcome == Outcome.NOT_APPLIED
    assert caught.value.failures[0][0] == headrace.TopicPartition("t", 0)
    assert topic.partitions[0].values() == [b"a", b"c"]


def test_an_outcome_in_doubt_is_told_although_its_failure_is_not_kept(fake_cluster, topic):
    """An application sends records again that are certainly not stored."""
    with producer_for(fake_cluster) as producer:
        where = headrace.TopicPartition("t", 0)
        queue = PartitionQueue(where, topic.topic_id)

        def fail(records, outcome):
            batches = [SealedBatch(queue, PendingBatch(where, 0, lambda _: None), 1, 0, 0) for _ in range(records)]
            error = TimedOutError("late", outcome=outcome)
            producer._core.sender._finish([Finished(batch, (), error) for batch in batches])

        fail(KEPT_FAILURES, Outcome.NOT_APPLIED)
        fail(1, Outcome.UNKNOWN)
        with pytest.raises(headrace.DeliveryError) as caught:
            producer.flush(WAIT)
        assert (len(caught.value.failures), caught.value.failed_records) == (KEPT_FAILURES, KEPT_FAILURES + 1)
        assert caught.value.outcome == Outcome.UNKNOWN
        fail(1, Outcome.NOT_APPLIED)
        with pytest.raises(headrace.DeliveryError) as caught:
            producer.flush(WAIT)
        assert caught.value.outcome == Outcome.NOT_APPLIED


def test_out_of_time_is_unknown_only_where_a_try_may_have_been_applied(fake_cluster, faults, topic):
    with producer_for(fake_cluster, delivery_timeout_ms=150, linger_ms=0) as producer:
        fake_cluster.faults.extend([faults.refused_with(StorageFullError("full"))] * 1000)
        refused = producer.send("t", b"a").exception(WAIT)
        assert refused.outcome == Outcome.NOT_APPLIED
        fake_cluster.faults.clear()
        fake_cluster.faults.extend([faults.lost_request] * 1000)
        lost = producer.send("t", b"b").exception(WAIT)
        assert lost.outcome == Outcome.UNKNOWN
        fake_cluster.faults.clear()
        producer.send("t", b"c").result(WAIT)
        with pytest.raises(headrace.DeliveryError):
            producer.flush(WAIT)


def test_a_batch_that_is_queued_during_a_back_off_is_sent_after_it(fake_cluster, faults, topic):
    """The earlier batch has expired, so that no other event than the end of the back-off leads to the next call."""
    fake_cluster.faults.append(faults.refused_with(ThrottledError("wait", retry_after_ms=1_000)))
    with producer_for(fake_cluster, delivery_timeout_ms=300) as producer:
        while topic.partitions[0].end == 0:
            with suppress(TimedOutError):
                producer.send_many("t", [b"a"]).result(WAIT)
        with pytest.raises(headrace.DeliveryError):
            producer.flush(WAIT)
    assert topic.partitions[0].values() == [b"a"]


@pytest.mark.parametrize("bulk", [True, False])
def test_a_batch_that_is_open_when_the_one_before_expires_ends_too(fake_cluster, topic, bulk):
    """Nothing else leads to its sealing: the partition was busy when it was opened, so that it has no timer."""
    fake_cluster.leaderless.add(("t", 0))
    with producer_for(fake_cluster, delivery_timeout_ms=300) as producer:
        first = producer.send_many("t", [b"a"]).parts[0][0] if bulk else producer.send("t", b"a")
        while not producer._core.sender.unresolved():
            threading.Event().wait(0.001)
        done = threading.Event()
        producer.send("t", b"b").add_done_callback(lambda _: done.set())  # Unlike `result`, this does not seal it.
        assert isinstance(first.exception(WAIT), TimedOutError)
        assert done.wait(WAIT)
        with pytest.raises(headrace.DeliveryError):
            producer.flush(WAIT)


def test_batches_grow_and_share_a_request_while_one_is_in_flight(fake_cluster):
    """What is sent while a request flies waits for it, and leaves in one request for all partitions."""
    fake_cluster.create_topic("t", 3)
    with producer_for(fake_cluster, linger_ms=0) as producer:
        for partition in range(3):
            producer.send("t", b"warm", partition=partition).result(WAIT)
        fake_cluster.hold.clear()
        before = len(fake_cluster.requests)
        held = [producer.send("t", b"held", partition=0)]
        while fake_cluster.arrived.acquire(timeout=WAIT) and fake_cluster.calls["Produce"] < before:
            pass
        held += [producer.send("t", b"%d" % number, partition=0) for number in range(500)]
        fake_cluster.hold.set()
        assert [future.result(WAIT).offset for future in held] == list(range(1, 502))
    assert len(fake_cluster.requests) - before <= 4


def test_the_buffer_is_bounded_and_says_so(fake_cluster, topic):
    with producer_for(fake_cluster, buffer_memory=128 * 1024, batch_bytes=32 * 1024, max_block_ms=200) as producer:
        producer.send("t", b"warm").result(WAIT)
        fake_cluster.hold.clear()
        with pytest.raises(headrace.BufferFullError) as caught:
            for _ in range(1000):
                producer.send("t", b"x" * 1000)
        assert producer._core.buffer_pool.used <= 128 * 1024
        assert caught.value.retriable
        assert caught.value.outcome == Outcome.NOT_APPLIED
        fake_cluster.hold.set()
        producer.flush(WAIT)
        assert producer._core.buffer_pool.used == 0


def test_a_row_that_waits_for_room_is_appended_once_there_is_room(fake_cluster, topic):
    """Each try checks the row again and appends a copy of its record, whose place in the wait is the same."""
    topic.columns = "name string"
    rows = 200
    with producer_for(fake_cluster, buffer_memory=128 * 1024, batch_bytes=32 * 1024, max_block_ms=5_000) as producer:
        producer.send("t", {"name": "warm"}).result(WAIT)
        fake_cluster.hold.clear()
        sending = threading.Thread(
            target=lambda: [producer.send("t", {"name": "x" * 1000}) for _ in range(rows)], daemon=True
        )
        sending.start()
        while not producer._core.buffer_pool.waiters:
            sending.join(0.001)
        fake_cluster.hold.set()
        sending.join(WAIT)
        assert not sending.is_alive()
        producer.flush(WAIT)
    assert topic.partitions[0].end == 1 + rows


def typed_batches(topic):
    """Each batch of the first partition: the text of its columns, and its rows."""
    columns = [decode_batch(batch, max_payload_bytes=2**20) for _, batch in topic.partitions[0].batches]
    return [(each.typed.directory.text, each.typed.rows(0, len(each.offsets()))) for each in columns]


@pytest.mark.parametrize(
    "renamed", ["1 title string", "1 title string required", "2 name string, 1 name string dropped"]
)
def test_rows_of_an_open_batch_keep_their_columns_when_the_topic_has_others(fake_cluster, topic, renamed):
    """The leader finds them by id. The buffer's limit is that of the columns."""
    topic.columns = "1 name string"
    (name,) = (column.name for column in parse_columns(renamed).current)
    with producer_for(fake_cluster, linger_ms=60_000) as producer:
        futures = [producer.send("t", {"name": "Ada"})]
        topic.columns = renamed
        execute(producer._core.refresh(), producer._io.run_step)
        futures.append(producer.send("t", {name: "Bob"}))
        producer.flush(WAIT)
        assert [future.result(WAIT).offset for future in futures] == [0, 1]
        (buffer,) = producer._core.topics.known["t"].buffers
    text = parse_columns(renamed).batch_text
    assert typed_batches(topic) == [("1 name string", [{"name": "Ada"}]), (text, [{name: "Bob"}])]
    with producer_for(fake_cluster) as producer:
        producer.send("t", {name: "Eve"}).result(WAIT)
        assert buffer.largest == producer._core.topics.known["t"].buffers[0].largest


@pytest.mark.parametrize("row", [{"a": "x\ud800"}, {"b": ["\ud800"]}, {"m": {"\ud800": 1}}])
def test_a_row_with_half_of_a_surrogate_pair_is_refused(fake_cluster, topic, row):
    """Which has no form in UTF-8: at once, as any value that does not fit."""
    topic.columns = "1 a string, 2 b list<string>, 3 m map<string, int64>"
    with producer_for(fake_cluster) as producer:
        with pytest.raises(headrace.SerializationError, match="without a form in UTF-8"):
            producer.send("t", row)
        assert producer.send("t", {"a": "x"}).result(WAIT).offset == 0


def test_a_row_is_checked_again_if_the_columns_change_before_it_is_in_a_batch(fake_cluster, topic, monkeypatch):
    """Another thread reads the metadata between the check of a row and its place in the open batch."""
    topic.columns = "1 name string"
    with producer_for(fake_cluster, linger_ms=60_000) as producer:
        producer.send("t", {"name": "Ada"}).result(WAIT)

        def checked_row(*arguments):
            monkeypatch.undo()
            topic.columns = "1 title string"
            execute(producer._core.refresh(), producer._io.run_step)

        monkeypatch.setattr(producer_core, "checked_row", checked_row)
        with pytest.raises(headrace.SerializationError, match="the topic has no column 'name'"):
            producer.send("t", {"name": "Bob"})
        producer.send("t", {"title": "Eve"}).result(WAIT)
    assert typed_batches(topic) == [("1 name string", [{"name": "Ada"}]), ("1 title string", [{"title": "Eve"}])]


def test_a_record_that_no_batch_can_hold_is_refused_at_once(fake_cluster):
    fake_cluster.create_topic("t", max_batch_bytes=10_000)
    with producer_for(fake_cluster) as producer:
        with pytest.raises(BatchTooLargeError, match="10024 bytes"):
            producer.send("t", b"x" * 10_000)
        with pytest.raises(BatchTooLargeError):
            producer.send_many("t", [b"x" * 10_000])
        producer.send("t", b"x" * 9_000).result(WAIT)


def test_the_clock_is_not_woken_for_what_an_answer_looks_after(fake_cluster, monkeypatch, topic):
    """A batch that waits behind one in flight is sealed by the thread that takes the answer in."""
    arrived, go_on = threading.Event(), threading.Event()

    def held(cluster, request, context):
        arrived.set()
        go_on.wait(WAIT)
        return cluster.produce(request)

    with producer_for(fake_cluster, linger_ms=0) as producer:
        producer.send("t", b"first").result(WAIT)
        fake_cluster.faults.append(held)
        producer.send("t", b"second")
        assert arrived.wait(WAIT)
        wakes, due_at = [], producer._core.maintenance.due_at
        monkeypatch.setattr(producer._core.maintenance, "due_at", wakes.append)
        third = producer.send("t", b"third")
        monkeypatch.setattr(producer._core.maintenance, "due_at", due_at)
        assert wakes == []
        go_on.set()
        done = threading.Event()
        third.add_done_callback(lambda _: done.set())  # Unlike `result`, this does not seal the batch.
        assert done.wait(WAIT)


def test_a_call_that_cannot_be_started_is_tried_again(fake_cluster, monkeypatch, caplog, topic):
    """A process may be out of threads for a moment; the records wait, and what comes after them keeps its place."""
    with producer_for(fake_cluster) as producer:
        producer.send("t", b"0").result(WAIT)
        connections, endpoint = producer._io.connections, producer._io.connections.endpoint

        def out_of_threads(address):
            monkeypatch.setattr(connections, "endpoint", endpoint)
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(connections, "endpoint", out_of_threads)
        futures = [producer.send("t", b"%d" % number) for number in (1, 2)]
        assert [future.result(WAIT).offset for future in futures] == [1, 2]
    assert "a call could not be started" in caplog.text


def test_wrong_input_is_refused_at_the_call(fake_cluster, topic):
    with producer_for(fake_cluster, max_block_ms=100) as producer:
        with pytest.raises(headrace.SerializationError, match="value_serializer"):
            producer.send("t", "text")
        with pytest.raises(UnknownPartitionError, match="0 to 0, not 7"):
            producer.send("t", b"x", partition=7)
        with pytest.raises(UnknownTopicError):
            producer.send("nowhere", b"x")
        with pytest.raises(headrace.SerializationError, match="2 keys for 3 values"):
            producer.send_many("t", [b"a", b"b", b"c"], keys=[b"k", b"k"])


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"headers": [("trace", "7f")]}, "not a pair of str and bytes: its value is str"),
        ({"headers": [("trace", None)]}, "its value is NoneType"),
        ({"headers": [(b"trace", b"7f")]}, "not a pair of str and bytes"),
        ({"headers": [("\ud800", b"7f")]}, "surrogates not allowed"),
        ({"headers": {"trace": b"7f"}}, "too many values to unpack"),
        ({"headers": 5}, "not iterable"),
        ({"headers": [("h", b"")] * 1_001}, "1001 headers, above the limit of 1000"),
        ({"timestamp_ms": "2026-01-01"}, "'2026-01-01' is not a number of milliseconds"),
        ({"timestamp_ms": datetime(2026, 1, 1)}, "is not a number of milliseconds"),
        ({"timestamp_ms": float("nan")}, "is not a number of milliseconds"),
        ({"timestamp_ms": 2**63}, "the years 1 to 9999"),
    ],
)
def test_wrong_headers_and_timestamps_are_refused_at_the_call(fake_cluster, topic, wrong, said):
    """Their batch has valid records of other threads; those are stored."""
    many = {{"headers": "headers", "timestamp_ms": "timestamps_ms"}[name]: [value] for name, value in wrong.items()}
    with producer_for(fake_cluster, linger_ms=1_000) as producer:
        future = producer.send("t", b"a", headers=[("h", b"1")], timestamp_ms=1)
        with pytest.raises(headrace.SerializationError, match=re.escape(said)):
            producer.send("t", b"b", **wrong)
        with pytest.raises(headrace.SerializationError, match=re.escape(said)):
            producer.send_many("t", [b"b"], **many)
        assert future.result(WAIT).offset == 0
    assert topic.partitions[0].values() == [b"a"]


def test_headers_are_taken_at_the_call(fake_cluster, topic):
    """A list that its caller fills again, an iterator, and bytes that may change."""
    with producer_for(fake_cluster, linger_ms=1_000) as producer:
        headers, data = [("a", b"1")], bytearray(b"2")
        producer.send("t", b"x", headers=headers)
        headers.append(("b", "no bytes"))
        producer.send("t", b"y", headers=iter([("c", data)]))
        data[:] = b"changed"
    ((_, batch),) = topic.partitions[0].batches
    assert [list(found) for found in decode_batch(batch, max_payload_bytes=1 << 20).headers()] == [
        [("a", b"1")], [("c", b"2")]
    ]  # fmt: skip


def test_a_batch_that_cannot_be_encoded_fails_alone(fake_cluster, topic, monkeypatch, caplog):
    """`close` names its records in its error, and sends those of other topics."""
    other = fake_cluster.create_topic("u")
    encode = ClosedBatch.encode

    def encode_other(batch, *arguments, **options):
        if batch.pending.where.topic == "t":
            raise TypeError("no encoder for it")
        return encode(batch, *arguments, **options)

    monkeypatch.setattr(ClosedBatch, "encode", encode_other)
    producer = producer_for(fake_cluster, linger_ms=60_000)
    failed = producer.send("t", b"a")
    producer.send("u", b"b")
    with pytest.raises(headrace.DeliveryError, match="no encoder for it") as caught:
        producer.close()
    assert caught.value.outcome == Outcome.NOT_APPLIED
    assert isinstance(failed.exception(WAIT), InternalError)
    assert other.partitions[0].values() == [b"b"]
    assert "a batch of t-0 could not be encoded" in caplog.text


def test_a_topic_that_a_server_did_not_know_stays_unknown_when_servers_fall_silent(fake_cluster, monkeypatch):
    """The last try has a moment only, and may run out of it; what was said before is what the caller wants to know."""
    said = [UnknownTopicError("there is no topic 'nowhere'")]

    def read_metadata(names, timeout):
        raise said.pop() if said else headrace.NoBrokersAvailableError({fake_cluster.address: "DEADLINE_EXCEEDED"})
        yield

    with producer_for(fake_cluster, max_block_ms=100) as producer:
        monkeypatch.setattr(producer._core, "_read_metadata", read_metadata)
        with pytest.raises(UnknownTopicError):
            producer.send("nowhere", b"x")


def test_an_unreachable_cluster_names_every_address_and_its_cause(caplog):
    """A port without a listener and a name that does not resolve, each with its own cause: in the log at once, since
    `send` tries for a minute by default, and in the error."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        with headrace.Producer(bootstrap_servers=[address, "no-such-host.invalid:1"], max_block_ms=300) as producer:
            with pytest.raises(headrace.NoBrokersAvailableError) as caught:
                producer.send("t", b"x")
    assert set(caught.value.causes) == {address, "no-such-host.invalid:1"}
    assert address in str(caught.value)
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warning.startswith(f"no broker or coordinator answered ({address}: ")
    assert "send to t is tried again for up to 0.3 s" in warning


def test_a_topic_created_again_gets_no_record_of_the_old_one(fake_cluster):
    """UNKNOWN_TOPIC_ID means refresh, never resend by name; what is sent later goes to the new topic."""
    old = fake_cluster.create_topic("t")
    with producer_for(fake_cluster) as producer:
        producer.send("t", b"old").result(WAIT)
        new = fake_cluster.create_topic("t")
        error = producer.send("t", b"lost").exception(WAIT)
        assert isinstance(error, UnknownTopicIdError)
        assert error.outcome == Outcome.NOT_APPLIED
        assert producer.send("t", b"new").result(WAIT).offset == 0
        with pytest.raises(headrace.DeliveryError):
            producer.flush(WAIT)
    assert (old.partitions[0].values(), new.partitions[0].values()) == ([b"old"], [b"new"])


@pytest.mark.parametrize("keys", [None, [b"k%d" % number for number in range(100)]])
def test_the_rest_of_send_many_is_not_for_a_topic_created_again(fake_cluster, monkeypatch, keys):
    """Its partitions are not those for which the records were divided: it may have fewer, and a key goes elsewhere."""
    fake_cluster.create_topic("t", 5)
    with producer_for(fake_cluster, batch_records=10) as producer:
        send_bulk, sent = producer._core.open_batches.send_bulk, []

        def sent_once(*arguments):
            missing = send_bulk(*arguments)
            if not sent:
                sent.append(fake_cluster.create_topic("t", 1))
                execute(producer._core.refresh(), producer._io.run_step)
            return missing

        monkeypatch.setattr(producer._core.open_batches, "send_bulk", sent_once)
        with pytest.raises(UnknownTopicIdError, match="created again") as caught:
            producer.send_many("t", [b"v"] * 1_000, keys=keys and keys * 10)
        assert caught.value.outcome == Outcome.NOT_APPLIED
        assert not sent[0].partitions[0].end
        with suppress(headrace.DeliveryError):
            producer.flush(WAIT)


def test_records_wait_for_a_leader_and_for_a_producer_id(fake_cluster, topic):
    fake_cluster.leaderless.add(("t", 0))
    fake_cluster.coordinator_down = True
    with producer_for(fake_cluster) as producer:
        future = producer.send("t", b"patient")
        with pytest.raises(TimeoutError):
            future.result(0.05)
        fake_cluster.coordinator_down = False
        fake_cluster.leaderless.clear()
        assert future.result(WAIT).offset == 0


def test_many_threads_share_a_producer(fake_cluster):
    topic = fake_cluster.create_topic("t", 3)
    found = {}

    def work(name):
        futures = [producer.send("t", b"%d.%d" % (name, number)) for number in range(2000)]
        found[name] = [future.result(WAIT) for future in futures]

    with producer_for(fake_cluster, batch_records=50) as producer:
        threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
    stored = [partition.values() for partition in topic.partitions]
    assert sum(map(len, stored)) == 8000
    for name, places in found.items():
        for number, place in enumerate(places):
            assert stored[place.partition][place.offset] == b"%d.%d" % (name, number)


def test_send_many_takes_lists_arrow_and_keys(fake_cluster):
    pyarrow = pytest.importorskip("pyarrow")
    topic = fake_cluster.create_topic("t", 3)
    values = [b"%d" % number for number in range(1000)]
    with producer_for(fake_cluster, batch_records=100) as producer:
        many = producer.send_many("t", pyarrow.array(values), partition=1, timestamps_ms=range(1000))
        runs = many.result(WAIT)
        assert [(where.offset, count) for where, count in runs] == [(start, 100) for start in range(0, 1000, 100)]
        assert runs[3][0].timestamp_ms == 300
        assert topic.partitions[1].values() == values
        keyed = producer.send_many("t", values, keys=values)
        assert len(keyed) == 1000
        keyed.result(WAIT)
        producer.send_many("t", pyarrow.chunked_array([["a"], [None, "b"]]), partition=0).result(WAIT)
    assert topic.partitions[0].values()[-3:] == [b"a", None, b"b"]
    for number, partition in enumerate(topic.partitions):
        assert {zlib.crc32(key) % 3 for key in partition.keys() if key is not None} == {number}


def test_serializers_and_a_custom_partitioner(fake_cluster):
    topic = fake_cluster.create_topic("t", 2)
    settings = {"value_serializer": "json", "key_serializer": "str", "partitioner": lambda topic, key, count: count - 1}
    with producer_for(fake_cluster, **settings) as producer:
        producer.send("t", {"a": 1}, key="k").result(WAIT)
        with pytest.raises(headrace.SerializationError, match="could not be serialized"):
            producer.send("t", object())
    assert topic.partitions[1].values() == [b'{"a":1}']
    with producer_for(fake_cluster, partitioner=lambda *args: 9) as producer, pytest.raises(headrace.ConfigError):
        producer.send("t", b"x")


def test_callbacks_run_once_and_one_that_raises_does_not_affect_the_others(fake_cluster, caplog, topic):
    called = []
    seen = threading.Event()
    with producer_for(fake_cluster) as producer:
        future = producer.send("t", b"x")
        future.add_done_callback(lambda done: 1 / 0)
        future.add_done_callback(lambda done: sys.exit(1))
        future.add_done_callback(lambda done: called.append(done.result().offset))
        future.add_done_callback(lambda done: seen.set())
        producer.flush(WAIT)
        assert seen.wait(WAIT)
        future.add_done_callback(lambda done: called.append("late"))
    assert called == [0, "late"]
    assert caplog.text.count("a delivery callback raised") == 2


def test_without_futures_send_gives_none_and_flush_still_tells(fake_cluster, faults, topic):
    producer = producer_for(fake_cluster, return_futures=False)
    assert [producer.send("t", b"x") for _ in range(10)] == [None] * 10
    producer.flush(WAIT)
    fake_cluster.faults.append(faults.refused_with(CorruptBatchError("bad")))
    producer.send("t", b"x")
    with pytest.raises(headrace.DeliveryError, match="1 records were not delivered"):
        producer.flush(WAIT)
    producer.close(WAIT)


def test_close_returns_while_the_broker_hangs_and_resolves_every_future(fake_cluster, topic):
    producer = producer_for(fake_cluster)
    producer.send("t", b"warm").result(WAIT)
    fake_cluster.hold.clear()
    futures = [producer.send("t", b"stuck") for _ in range(10)]
    with pytest.raises(headrace.DeliveryError) as caught:
        producer.close(timeout=0.2)
    assert caught.value.pending_records == 10
    assert all(future.exception(WAIT) is not None for future in futures)
    with pytest.raises(headrace.ClosedError):
        producer.send("t", b"late")
    producer.close()


def test_an_exception_in_the_with_block_is_not_hidden(fake_cluster, topic):
    with pytest.raises(KeyError), producer_for(fake_cluster) as producer:
        producer.send("t", b"x")
        raise KeyError("mine")


def test_ctrl_c_in_a_wait_leaves_a_producer_that_closes(fake_cluster, topic):
    producer = producer_for(fake_cluster)
    producer.send("t", b"warm").result(WAIT)
    fake_cluster.hold.clear()
    future = producer.send("t", b"stuck")
    main = threading.main_thread().ident

    def interrupt():
        fake_cluster.arrived.acquire(timeout=WAIT)
        fake_cluster.arrived.acquire(timeout=WAIT)
        signal.pthread_kill(main, signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        threading.Thread(target=interrupt).start()
        future.result(WAIT)
    fake_cluster.hold.set()
    assert future.result(WAIT).offset == 1
    producer.close(WAIT)


def test_a_forked_child_is_told_to_make_its_own_producer(fake_cluster, topic):
    with producer_for(fake_cluster) as producer:
        producer.send("t", b"x").result(WAIT)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                producer.send("t", b"from the child")
            except headrace.ForkedError as error:
                os.write(writing, str(error).encode())
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        os.close(writing)
        with os.fdopen(reading) as said:
            assert "Create the Producer in the child" in said.read()
        producer.send("t", b"y").result(WAIT)


def test_a_transport_error_is_retriable_and_unknown():
    """The faults above depend on this: the server may have executed a call that broke off."""
    assert TransportError("x", outcome=Outcome.UNKNOWN, retriable=True).outcome == Outcome.UNKNOWN
