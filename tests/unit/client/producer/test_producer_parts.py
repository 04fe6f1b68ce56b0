"""The parts without I/O: settings, serializers, partitioners, back-off, metadata, sequences, buffers, requests."""

import contextlib
import itertools
import math
import random
import threading
import zlib

import pandas as pd
import pyarrow as pa
import pytest
from headrace.client.base import config as settings
from headrace.client.base.errors import ConfigError, NoBrokersAvailableError, SerializationError
from headrace.client.base.interrupts import DeferredKeyboardInterrupt
from headrace.client.base.operations import execute
from headrace.client.base.partitioner import check_partition, next_sticky
from headrace.client.base.retry import Backoff
from headrace.client.base.serializers import deserialize, resolve_serializer, serialize
from headrace.client.net.cluster_metadata import ClusterMetadata
from headrace.client.producer.accumulator import BATCH_OVERHEAD, PIECE_BYTES, BufferPool, PartitionBuffer, record_cost
from headrace.client.producer.bulk import bulk_of
from headrace.client.producer.futures import PendingBatch, RecordFuture
from headrace.client.producer.partition_queue import PartitionQueue, Request, RequestPart, SealedBatch
from headrace.client.producer.produce_rpc import grpc_produce_request
from headrace.client.producer.sequences import MAX_EPOCH, SEQUENCES, ProducerStamp, SequenceState, restamp
from headrace.v1 import broker_pb2, cluster_pb2
from headrace.wire.batch import check_batch, read_header
from headrace.wire.columns import decode_batch, encode_batch
from headrace.wire.compression import Codec
from headrace.wire.encoding import batch_parts
from headrace.wire.errors import InternalError, LeaderHint, UnknownTopicError, to_detail
from headrace.wire.ids import TopicPartition
from headrace.wire.partitioning import partition_for_key
from headrace.wire.zero_copy import BufferVector

WHERE = TopicPartition("t", 0)
LIMITS = {"max_batch_bytes": 1 << 24, "max_records": 10**6, "max_payload_bytes": 1 << 24}


@pytest.mark.parametrize(
    ("cls", "given", "said"),
    [
        (settings.ProducerConfig, {"linger": 5}, "did you mean 'linger_ms'"),
        (settings.ProducerConfig, {"linger_ms": -1}, "linger_ms=-1 is not within 0 to 60000"),
        (settings.ProducerConfig, {"linger_ms": "5"}, "linger_ms='5' is not int"),
        (settings.ProducerConfig, {"linger_ms": True}, "is not int"),
        (settings.ProducerConfig, {"acks": 2}, "acks=2 is not one of 'all', 0, 1"),
        (settings.ProducerConfig, {"acks": 0, "enable_idempotence": True}, "needs acks 1 or all"),
        (settings.ProducerConfig, {"compression_type": "snappy"}, "'none', 'gzip', 'lz4', 'zstd'"),
        (settings.ProducerConfig, {"batch_bytes": 1 << 30}, "more than buffer_memory"),
        (settings.ProducerConfig, {"value_serializer": "jsn"}, "did you mean 'json'"),
        (settings.ProducerConfig, {"bootstrap_servers": "localhost"}, "'localhost' is not host:port"),
        (settings.ProducerConfig, {"bootstrap_servers": " , "}, "names no address"),
        (settings.ConsumerConfig, {"group": "g"}, "did you mean 'group_id'"),
        (settings.ConsumerConfig, {"group_id": "a b"}, "characters a-z A-Z 0-9"),
        (settings.ConsumerConfig, {"group_id": "a" * 10_000}, "is not 1 to 249 of the characters"),
        (settings.ConsumerConfig, {"topic_pattern": "clicks-*"}, "Set group_id"),
        (settings.ConsumerConfig, {"auto_offset_reset": "smallest"}, "'earliest', 'latest', 'error'"),
        (settings.ClientConfig, {"retry_backoff_ms": 10, "retry_backoff_max_ms": 1}, "less than retry_backoff_ms"),
    ],
)
def test_a_wrong_setting_is_refused_and_the_message_helps(cls, given, said):
    with pytest.raises(ConfigError) as caught:
        settings.build(cls, given)
    assert said in str(caught.value)


def test_settings_take_lists_and_describe_themselves():
    built = settings.build(settings.ProducerConfig, {"bootstrap_servers": ["a:1", "b:2", "a:1"], "acks": "0"})
    assert built.addresses == ("a:1", "b:2")
    assert not built.idempotent
    rows = {row.name: row for row in settings.describe(settings.ProducerConfig)}
    assert rows["acks"].range == "all, 0, 1"
    assert rows["linger_ms"][1:3] == ("5", "0 to 60000")
    assert all(row.text.endswith((".", "`.")) for row in rows.values())


def test_serializers_turn_objects_into_bytes_and_back_or_say_why_not():
    assert serialize(resolve_serializer("json", "x"), {"a": "é"}, "value") == '{"a":"é"}'.encode()
    assert serialize(None, bytearray(b"x"), "value") == b"x"
    assert serialize(str.encode, None, "value") is None
    with pytest.raises(SerializationError, match="is int, not bytes"):
        serialize(None, 5, "key")
    with pytest.raises(SerializationError, match=r"of t-0 at offset 5 .*Seek the consumer to 5 .*to 6") as caught:
        deserialize(bytes.decode, b"\xff", "value", TopicPartition("t", 0), 5)
    assert (caught.value.partition, caught.value.offset) == (TopicPartition("t", 0), 5)


@pytest.mark.parametrize(
    ("value", "place"),
    [
        (math.nan, "$ is nan"),
        ({"a": 1.5, "b": {"c": [0, (1, -math.inf)]}}, "$.b.c[1][1] is -inf"),
        ({"a": {math.inf: 1}}, "a key of $.a is inf"),
    ],
)
def test_a_number_that_json_lacks_is_refused_with_its_place(value, place):
    """`NaN` is no JSON (RFC 8259): readers in other languages fail on it."""
    with pytest.raises(SerializationError) as caught:
        serialize(resolve_serializer("json", "x"), value, "key")
    assert f"the key could not be serialized: ValueError('{place}, which JSON does not have" in str(caught.value)


def test_a_value_that_contains_itself_is_no_json():
    """The search for numbers without JSON ends."""
    value = {"a": 1}
    value["b"] = [value, value]
    with pytest.raises(SerializationError, match="Circular reference"):
        serialize(resolve_serializer("json", "x"), value, "value")


def test_an_error_of_a_serializer_keeps_its_next_step():
    """Those of a schema registry have one; another exception is named by its type."""

    def fail(value):
        raise value

    absent = NoBrokersAvailableError({"b:1": "refused"})
    for error, said in ((absent, absent.text), (KeyError("x"), "KeyError('x')")):
        with pytest.raises(SerializationError) as caught:
            serialize(fail, error, "value")
        assert caught.value.text == f"the value could not be serialized: {said}"
        with pytest.raises(SerializationError) as caught:
            deserialize(fail, error, "value", TopicPartition("t", 0), 5)
        assert caught.value.text.startswith(f"the value of t-0 at offset 5 could not be deserialized: {said}")


def test_partitioners_agree_with_crc32_and_stay_in_range():
    assert partition_for_key(b"user-1", 7) == zlib.crc32(b"user-1") % 7
    rng = random.Random(1)
    assert {next_sticky(1, [0, 1, 3], 4, rng) for _ in range(50)} == {0, 3}
    assert next_sticky(0, [0], 1, rng) == 0
    assert {next_sticky(-1, [], 2, rng) for _ in range(50)} == {0, 1}
    for wrong in (3, -1, "0", None):
        with pytest.raises(ConfigError, match="partitions 0 to 2"):
            check_partition(wrong, 3, "t")


def test_back_off_grows_to_its_maximum_with_jitter_and_obeys_the_server():
    backoff = Backoff(100, 1000, random.Random(7))
    for attempt, step in ((1, 100), (2, 200), (3, 400), (5, 1000), (60, 1000)):
        delays = {backoff.delay_ms(attempt) for _ in range(200)}
        assert 1 <= min(delays) < step / 10
        assert step * 0.9 < max(delays) <= step
    assert backoff.delay_ms(1, at_least_ms=5000) == 5000


def test_a_leader_is_looked_for_at_a_steady_pace():
    """However long it takes, so that back-off never adds to the time of an election."""
    backoff = Backoff(100, 1000, random.Random(7))
    assert {backoff.look_delay_ms() // 100 for _ in range(200)} == {1}


TOPIC_ID = b"1" * 16


def metadata(leader=1, epoch=0, topic_id=TOPIC_ID, partitions=2):
    answer = cluster_pb2.GetMetadataResponse(cluster_id="c", max_batch_bytes=99)
    for broker in (1, 2):
        answer.brokers.add(broker_id=broker, address=f"b{broker}:1")
    topic = answer.topics.add(name="t", topic_id=topic_id)
    for number in range(partitions):
        topic.partitions.add(partition=number, leader_id=leader, leader_epoch=epoch)
    return answer


def test_routes_only_move_forward():
    """A leader of a lower epoch never replaces a newer one, from hints or from metadata (PROTOCOL H4)."""
    cluster_metadata = ClusterMetadata()
    cluster_metadata.update(metadata(leader=1, epoch=5))
    assert cluster_metadata.leader(WHERE) == (1, "b1:1", 5)
    assert cluster_metadata.topic("t").max_batch_bytes == 99
    assert not cluster_metadata.learn_leader(WHERE, TOPIC_ID, LeaderHint(2, 4, "old:1"))
    assert not cluster_metadata.learn_leader(WHERE, b"2" * 16, LeaderHint(2, 6, "another topic's:1"))
    assert cluster_metadata.learn_leader(WHERE, TOPIC_ID, LeaderHint(2, 6, "new:1"))
    cluster_metadata.update(metadata(leader=1, epoch=5, partitions=1))
    assert cluster_metadata.leader(WHERE) == (2, "b2:1", 6)
    assert cluster_metadata.topic("t").partitions == 2
    cluster_metadata.forget_leader(WHERE, TOPIC_ID, 5)
    cluster_metadata.forget_leader(WHERE, b"2" * 16, 6)
    assert cluster_metadata.leader(WHERE) is not None
    cluster_metadata.forget_leader(WHERE, TOPIC_ID, 6)
    assert cluster_metadata.leader(WHERE) is None
    assert cluster_metadata.topic("t").led_partitions() == [1]


def test_a_topic_created_again_replaces_the_old_one_whole():
    cluster_metadata = ClusterMetadata()
    cluster_metadata.update(metadata(epoch=9))
    cluster_metadata.update(metadata(epoch=0, topic_id=b"2" * 16, partitions=1))
    assert cluster_metadata.leader(WHERE) == (1, "b1:1", 0)
    assert cluster_metadata.topic("t").partitions == 1
    gone = cluster_pb2.GetMetadataResponse()
    gone.topics.add(name="t", error=to_detail(UnknownTopicError("deleted")))
    cluster_metadata.update(gone)
    with pytest.raises(UnknownTopicError, match="deleted"):
        cluster_metadata.require("t")


def test_sequences_count_records_modulo_two_to_the_31():
    state = SequenceState()
    assert state.sealed(5) == ProducerStamp(-1, -1, -1)
    state.start(7, 0)
    state._next_sealed = state._next_sent = SEQUENCES - 2
    assert state.sealed(5).base_sequence == SEQUENCES - 2
    assert state.sealed(1).base_sequence == 3
    assert state.sent(5).base_sequence == SEQUENCES - 2
    assert state.raise_epoch()
    assert state.sealed(1) == ProducerStamp(7, 1, 0)
    state.epoch = MAX_EPOCH
    assert not state.raise_epoch()


@pytest.mark.parametrize("count", [2, 100])
def test_a_restamped_batch_is_sound_and_only_its_producer_differs(count):
    """Few values are one piece, many several; the payload is never touched."""
    values = [b"%d" % number for number in range(count)]
    batch = BufferVector(batch_parts(values, base_timestamp_ms=5))
    assert (len(batch.parts) > 1) == (count > 2)
    assert bytes(batch) == encode_batch(values, base_timestamp_ms=5)
    changed = restamp(batch, ProducerStamp(9, 1, 77))
    assert changed.parts[1:] == batch.parts[1:]
    header = check_batch(bytes(changed), max_batch_bytes=1 << 20, max_records=1000, max_payload_bytes=1 << 20)
    assert header[-3:] == (9, 1, 77)
    assert bytes(restamp(changed, ProducerStamp(-1, -1, -1))) == bytes(batch)


def wait_on_thread(step):
    with step.changes:
        return step.changes.wait_for(step.condition, step.seconds)


def test_a_buffer_pool_waits_for_room_and_never_grants_more_than_it_has():
    lock = threading.Lock()
    pool = BufferPool(100, lock, threading.Condition(lock))
    first, second = object(), object()
    assert pool.acquire(60, first)
    assert not pool.acquire(50, second)
    assert not execute(pool.wait_for(50, second, 0), wait_on_thread)
    threading.Timer(0.01, pool.release, (60,)).start()
    assert execute(pool.wait_for(50, second, 20), wait_on_thread)
    assert pool.acquire(50, second)
    pool.leave(second)
    assert (pool.used, pool.waiters) == (50, 0)
    pool.release(50)
    assert pool.acquire(1000, first), "a record that is larger than all goes alone"


def test_room_goes_to_the_sender_that_has_waited_longest():
    """A large record would never get its room where small ones took each piece that is released."""
    lock = threading.Lock()
    pool = BufferPool(100, lock, threading.Condition(lock))
    small, large, later = object(), object(), object()
    assert pool.acquire(50, small)
    assert pool.acquire(40, small)
    step = next(pool.wait_for(80, large, 20))
    step_later = next(pool.wait_for(10, later, 20))
    assert not step.condition()
    assert not pool.acquire(10, small)
    assert not step_later.condition()
    pool.release(90)
    assert not pool.acquire(10, small)
    assert step.condition()
    assert pool.acquire(80, large)
    pool.leave(large)
    assert step_later.condition()
    pool.leave(later)
    assert pool.acquire(10, small)


def encode(bulk, start, end, stamp, **how):
    return b"".join(bulk.encode(start, end, stamp, **how))


def make_buffer(batch_bytes=10_000, records=100):
    partition_queue = PartitionQueue(WHERE, b"1" * 16)
    buffer = PartitionBuffer(
        WHERE, partition_queue, threading.Lock(), batch_bytes=batch_bytes, max_batch_bytes=1 << 20,
        batch_records=records, run_batches=64,
    )  # fmt: skip
    buffer.open(PendingBatch(WHERE, 5, lambda pending: None), 0, buffer.piece_for(30))
    return buffer


@pytest.mark.parametrize("futures", [True, False])
def test_an_appender_appends_until_there_is_no_room_and_leaves_a_true_count(futures):
    buffer = make_buffer(batch_bytes=1000)
    assert buffer.reserved_bytes == 1000
    append = buffer.start_appender(RecordFuture if futures else None)
    given = [append(b"x" * 26) for _ in range(20)]
    with pytest.raises(StopIteration):
        append(b"x")
    buffer.stop_appender()
    assert [future.index for future in given] == list(range(20)) if futures else given == [None] * 20
    assert buffer.room == 0
    assert buffer.is_full_for(25)
    closed, unused = buffer.drain()
    assert (len(closed.values), closed.reserved_bytes, unused) == (20, 1000, 0)
    with pytest.raises(StopIteration):
        append(b"x")


@pytest.mark.parametrize("futures", [True, False])
def test_an_appender_of_keyed_records_does_the_same(futures):
    """It continues behind a record without a key, and the columns stay as long as each other."""
    buffer = make_buffer(batch_bytes=1000)
    buffer.append(b"first", None, None, None, 40)
    buffer.append(b"second", b"key", None, None, 60)
    append = buffer.start_keyed_appender(RecordFuture if futures else None)
    given = [append((b"k" * 6, b"x" * 20)) for _ in range(18)]
    with pytest.raises(StopIteration):
        append((b"k", b"x"))
    buffer.stop_appender()
    assert [future.index for future in given] == list(range(2, 20)) if futures else given == [None] * 18
    assert buffer.room == 0
    closed, _ = buffer.drain()
    assert closed.keys == [None, b"key", *[b"k" * 6] * 18]
    assert closed.values == [b"first", b"second", *[b"x" * 20] * 18]
    with pytest.raises(StopIteration):
        append((b"k", b"x"))


def test_an_appender_lets_one_thread_in_at_a_time_and_says_so():
    """The lock-free path depends on this: a running generator raises ValueError to another caller."""
    buffer = make_buffer()

    class Value(bytes):
        def __len__(self):
            with pytest.raises(ValueError, match="already executing"):
                append(b"y")
            return 1

    append = buffer.start_appender(RecordFuture)
    append(Value(b"x"))
    buffer.stop_appender()
    assert buffer.values == [b"x"]


def test_an_appender_that_never_ends_is_an_error_and_not_a_hang(monkeypatch):
    monkeypatch.setattr("headrace.client.producer.accumulator.APPENDER_TIMEOUT_S", 0)
    buffer = make_buffer()

    class Value(bytes):
        def __len__(self):
            with pytest.raises(InternalError, match="signal handler"):
                buffer.stop_appender()
            return 1

    buffer.start_appender(RecordFuture)(Value(b"x"))


def test_a_buffer_takes_memory_in_pieces_within_bytes_and_records():
    buffer = make_buffer(batch_bytes=1 << 20, records=100)
    assert buffer.reserved_bytes == 100 * 30
    for _ in range(100):
        if not buffer.has_room_for(40):
            buffer.extend(buffer.piece_for(40))
        buffer.append(b"0123456789abcdef", None, None, None, 40)
    assert (buffer.room, buffer.reserved_bytes) == (0, 100 * 40)
    assert buffer.is_full_for(24)


def test_a_piece_is_as_large_as_what_the_batch_has():
    """So a large batch takes few, and never has more than twice what it needs, nor more than its limit."""
    buffer = make_buffer(batch_bytes=1 << 20, records=100_000)
    pieces = [buffer.reserved_bytes]
    while not buffer.is_full_for(1024):
        if not buffer.has_room_for(1024):
            pieces.append(buffer.piece_for(1024))
            buffer.extend(pieces[-1])
        buffer.append(bytes(1000), None, None, None, 1024)
    assert pieces == [PIECE_BYTES, PIECE_BYTES, 2 * PIECE_BYTES, 4 * PIECE_BYTES - BATCH_OVERHEAD]
    assert buffer.reserved_bytes == buffer.batch_limit


@pytest.mark.parametrize("futures", [True, False])
def test_a_whole_batch_goes_where_its_partition_is_idle_and_grows_into_a_run_where_it_is_not(futures):
    buffer = make_buffer(batch_bytes=1 << 20, records=3)

    def fill(value):
        buffer.extend(buffer.piece_for(30))
        append = buffer.start_appender(RecordFuture if futures else None)
        taken = 0
        with contextlib.suppress(StopIteration):
            while True:
                append(value)
                taken += 1
        buffer.stop_appender()
        return taken

    assert (fill(b"123456"), buffer.is_overdue) == (3, False)
    assert buffer.is_full_for(30)
    assert buffer.is_overdue, "an answer that comes now sees that it need not linger"
    buffer.partition_queue.flying.append(None)
    assert not buffer.is_full_for(30)
    assert buffer.limit == 3 * 64
    assert fill(b"") == 3 * 64 - 3
    assert buffer.is_full_for(24)
    closed, _ = buffer.drain()
    assert len(closed.values) == 3 * 64
    assert (buffer.limit, buffer.is_overdue) == (3, False)


def test_columns_that_begin_late_are_padded_with_nothing():
    buffer = make_buffer()
    buffer.append(b"a", None, None, None, 24)
    buffer.append(b"b", b"k", (("h", b"v"),), 7, record_cost(b"b", b"k", (("h", b"v"),)))
    buffer.append(b"c", None, None, None, 24)
    closed, _ = buffer.drain()
    assert closed.keys == [None, b"k", None]
    assert closed.headers == [None, (("h", b"v"),), None]
    assert closed.timestamps_ms == [None, 7, None]


def test_bulk_columns_are_cut_within_limits_and_encode_what_they_hold():
    values = [b"x" * (number % 50) for number in range(1000)]
    bulk = bulk_of(values, None, None, None, None, None)
    start, ends = 0, []
    while start < len(bulk):
        end, cost = bulk.cut(start, 2000, 70)
        assert end > start
        assert end - start <= 70
        assert cost == sum(len(value) + 4 for value in values[start:end])
        assert cost <= 2000
        ends.append(
            decode_batch(
                encode(bulk, start, end, ProducerStamp(1, 0, start), base_timestamp_ms=1, codec=Codec.NONE, level=None),
                max_payload_bytes=1 << 20,
            )
        )
        start = end
    assert [value for columns in ends for value in columns.values()] == values


def test_groups_of_bulk_columns_are_cut_as_wholes():
    """Each part ends with a group: within the limits if more than one group fits, else with the first one."""
    sizes = [1, 3, 9, 2, 30, 1, 1, 5]
    group_ends = list(itertools.accumulate(sizes))
    bulk = bulk_of([b"x" * 96] * group_ends[-1], None, None, None, None, None, group_ends)
    start, ends = 0, []
    while start < len(bulk):
        start, _ = bulk.cut(start, 1_000, 8)
        ends.append(start)
    assert ends == [4, 13, 15, 45, 52]
    for wrong in ([1], [3, 2], [0, 4], [4, 4], [2, 5]):
        with pytest.raises(SerializationError, match="group_ends"):
            bulk_of([b"x"] * 4, None, None, None, None, None, wrong)


@pytest.mark.parametrize("count", [1, 7, 1000])
def test_what_bulk_columns_cost_bounds_their_batch_closely(count):
    """A batch of that cost fits its limit, whatever columns it has; plain values leave at most a fiftieth unused."""
    values = [None if number % 7 == 0 else b"x" * 200 for number in range(count)]
    keys = [None if number % 5 == 0 else b"key" for number in range(count)]
    headers = [[("name", b"1")] for _ in range(count)]
    bulk = bulk_of(values, keys, headers, list(range(count)), None, None)
    end, cost = bulk.cut(0, 1 << 20, count)
    encoded = encode(bulk, 0, end, ProducerStamp(1, 0, 0), base_timestamp_ms=1, codec=Codec.NONE, level=None)
    assert len(encoded) <= cost + BATCH_OVERHEAD
    plain = bulk_of(values, None, None, None, None, None)
    _, cost = plain.cut(0, 1 << 20, count)
    encoded = encode(plain, 0, count, ProducerStamp(1, 0, 0), base_timestamp_ms=1, codec=Codec.NONE, level=None)
    assert len(encoded) <= cost + BATCH_OVERHEAD <= len(encoded) * 1.02 + BATCH_OVERHEAD


def test_bulk_records_without_nulls_fill_a_batch_to_its_limit():
    """Their offsets cost 4 bytes each, no bitmap: records that exactly fill a batch leave none for a second one."""
    limit = (1 << 20) - BATCH_OVERHEAD
    count = limit // 204
    bulk = bulk_of([b"x" * 200] * count, None, None, None, None, None)
    end, cost = bulk.cut(0, limit, 100_000)
    assert (end, cost) == (count, 204 * count)
    encoded = encode(bulk, 0, end, ProducerStamp(1, 0, 0), base_timestamp_ms=1, codec=Codec.NONE, level=None)
    assert len(encoded) <= 1 << 20


def test_bulk_splits_by_partition_and_keeps_the_order_of_each():
    values = [b"%d" % number for number in range(100)]
    bulk = bulk_of(values, values, None, list(range(100)), None, None)
    seen = {}
    for partition, share in bulk.by_partition(lambda key: int(key) % 3):
        batch = decode_batch(
            encode(share, 0, len(share), ProducerStamp(-1, -1, -1), base_timestamp_ms=0, codec=Codec.NONE, level=None),
            max_payload_bytes=1 << 20,
        )
        seen[partition] = batch.values()
        assert batch.keys() == batch.values()
        assert batch.timestamps() == [int(value) for value in batch.values()]
    assert seen == {rest: [b"%d" % number for number in range(rest, 100, 3)] for rest in range(3)}


def test_a_hand_written_request_is_what_protobuf_reads():
    """The bytes between which batches are joined are the message of the .proto, whatever the sizes."""
    parts = []
    for topic_id, number, sizes in ((b"1" * 16, 0, [1, 200]), (b"1" * 16, 3, [70_000]), (b"2" * 16, 1, [5, 6, 7])):
        partition_queue = PartitionQueue(TopicPartition("t", number), topic_id)
        batches = []
        for size in sizes:
            batch = SealedBatch(partition_queue, PendingBatch(WHERE, 0, lambda pending: None), 1, 0, 0)
            batch.encoded = [BufferVector([b"x" * size])]
            batches.append(batch)
        if number == 1:  # Together, as a run is encoded.
            batches[1:], batches[0].encoded = [], [BufferVector([b"x" * sum(sizes)], sizes)]
        parts.append(RequestPart(partition_queue, -1 if number else 4, batches))
    config = settings.build(settings.ProducerConfig, {"client_id": "me", "acks": 1})
    read = broker_pb2.ProduceRequest.FromString(grpc_produce_request(Request(1, "a:1", parts, 77), config))
    assert (read.client_id, read.acks, read.timeout_ms) == ("me", broker_pb2.ACKS_LEADER, 77)
    found = [
        (topic.topic.topic_id, part.partition, part.leader_epoch, [len(batch) for batch in part.batches])
        for topic in read.topics
        for part in topic.partitions
    ]
    assert found == [
        (b"1" * 16, 0, 4, [1, 200]),
        (b"1" * 16, 3, -1, [70_000]),
        (b"2" * 16, 1, -1, [5, 6, 7]),
    ]


def test_no_brokers_lists_each_address_and_its_own_cause():
    error = NoBrokersAvailableError({"a:1": "refused", "b:2": "timed out"})
    assert "a:1: refused; b:2: timed out" in str(error)
    assert error.retriable


def test_ctrl_c_waits_for_the_end_of_a_deferring_block():
    import signal

    reached = []
    with pytest.raises(KeyboardInterrupt):
        with DeferredKeyboardInterrupt():
            with DeferredKeyboardInterrupt():
                signal.raise_signal(signal.SIGINT)
                reached.append(1)
            reached.append(2)
    assert reached == [1, 2]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_header_offsets_that_restamping_writes_are_the_formats():
    batch = BufferVector(batch_parts([b"a"], base_timestamp_ms=0, producer_id=1, producer_epoch=2, base_sequence=3))
    assert read_header(bytes(restamp(batch, ProducerStamp(4, 5, 6))))[-3:] == (4, 5, 6)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (pa.table({"value": [b"a"]}), "the values are a Table, not one column"),
        (pa.record_batch({"value": [b"a"]}), "the values are a RecordBatch, not one column"),
        (pd.DataFrame({"value": [b"a"]}), "the values are a DataFrame, not one column"),
        (b"abc", "the values are one bytes"),
        ("abc", "the values are one str"),
    ],
)
def test_send_many_of_a_table_names_the_type(values, says):
    """Each was an error about its parts, such as the names of its columns."""
    with pytest.raises(SerializationError, match=says):
        bulk_of(values, None, None, None, None, None)
    with pytest.raises(SerializationError, match=says.replace("values", "keys")):
        bulk_of([b"a"], values, None, None, None, None)
