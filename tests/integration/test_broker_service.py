"""A broker process over a real etcd, spoken to by plain stubs: each call in each form, and bad input."""

from __future__ import annotations

import asyncio
import struct
import time
import uuid
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from headrace.v1 import broker_pb2 as pb
from headrace.v1 import cluster_pb2, errors_pb2, topics_pb2
from headrace.wire.batch import iter_batches
from headrace.wire.columns import decode_batch
from headrace.wire.crc import crc32c
from headrace.wire.encoding import encode_batch
from headrace.wire.errors import ErrorCode, HeadraceError, Outcome, from_rpc_error


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def batch(*values: bytes, **fields: Any) -> bytes:
    return encode_batch(list(values), base_timestamp_ms=fields.pop("base_timestamp_ms", now_ms()), **fields)


def create(broker: Any, **configs: object) -> topics_pb2.TopicRef:
    """Make a topic of two partitions that the broker leads, and wait until it does."""
    partitions = int(configs.pop("partitions", 2))
    topic_id = asyncio.run(broker.create_topic(f"t-{uuid.uuid4().hex}", partitions, **configs))
    reference = topics_pb2.TopicRef(topic_id=topic_id)
    wait_leading(broker, reference, partitions)
    return reference


def wait_leading(broker: Any, reference: topics_pb2.TopicRef, partitions: int = 1) -> None:
    deadline = time.monotonic() + 20
    while True:
        asked = [pb.PartitionListOffsets(partition=n, spec=pb.OFFSET_SPEC_LATEST) for n in range(partitions)]
        topics = [pb.TopicListOffsets(topic=reference, partitions=asked)]
        answer = broker.stub.ListOffsets(pb.ListOffsetsRequest(topics=topics), timeout=5).topics[0].partitions
        if not any(part.HasField("error") for part in answer):
            return
        assert time.monotonic() < deadline, answer


def produce(
    broker: Any,
    reference: topics_pb2.TopicRef,
    *batches: bytes,
    partition: int = 0,
    acks: int = pb.ACKS_ALL,
    **fields: Any,
) -> pb.PartitionProduceResult:
    part = pb.PartitionProduce(partition=partition, batches=batches, **fields)
    topics = [pb.TopicProduce(topic=reference, partitions=[part])]
    answer = broker.stub.Produce(pb.ProduceRequest(acks=acks, timeout_ms=10_000, topics=topics), timeout=20)
    return answer.topics[0].partitions[0]


def fetch(
    broker: Any, reference: topics_pb2.TopicRef, offset: int, *, partition: int = 0, **fields: Any
) -> pb.PartitionFetchResult:
    part = {name: fields.pop(name) for name in ("leader_epoch",) if name in fields}
    wanted = [pb.PartitionFetch(partition=partition, offset=offset, **part)]
    topics = [pb.TopicFetch(topic=reference, partitions=wanted)]
    answer = broker.stub.Fetch(pb.FetchRequest(topics=topics, **fields), timeout=20)
    return answer.topics[0].partitions[0]


def values_of(result: pb.PartitionFetchResult) -> list[bytes | None]:
    found: list[bytes | None] = []
    for _, view in iter_batches(result.batches):
        found += decode_batch(view, max_payload_bytes=1 << 24).values()
    return found


def failure(call: Any) -> HeadraceError:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return from_rpc_error(caught.value)


@pytest.mark.parametrize("acks", [pb.ACKS_LEADER, pb.ACKS_ALL, pb.ACKS_UNSPECIFIED])
@pytest.mark.parametrize("durability", ["fsync", "async"])
def test_what_is_produced_is_fetched(broker: Any, acks: int, durability: str) -> None:
    """Several batches of a request lie in order, and a fetch returns them whole, from the one that holds the offset."""
    topic = create(broker, durability=durability)
    result = produce(broker, topic, batch(b"a", b"b"), batch(b"c"), acks=acks)
    assert not result.HasField("error"), result.error
    assert list(result.base_offsets) == [0, 2]
    assert abs(result.append_timestamp_ms - now_ms()) < 60_000
    found = fetch(broker, topic, 1, max_wait_ms=10_000, min_bytes=200)
    assert values_of(found) == [b"a", b"b", b"c"]
    assert (found.high_watermark, found.log_start_offset, found.leader_epoch) == (3, 0, 0)


def test_acks_none_is_answered_before_the_append(broker: Any) -> None:
    """The answer promises nothing and names no offset; the records come all the same."""
    topic = create(broker)
    part = pb.PartitionProduce(partition=0, batches=[batch(b"x")])
    request = pb.ProduceRequest(
        acks=pb.ACKS_NONE, timeout_ms=1000, topics=[pb.TopicProduce(topic=topic, partitions=[part])]
    )
    assert not broker.stub.Produce(request, timeout=10).topics
    assert values_of(fetch(broker, topic, 0, max_wait_ms=10_000, min_bytes=1)) == [b"x"]


def test_the_simple_form(broker: Any) -> None:
    """Section 5: records in, one batch; records out from the offset asked for, with keys, headers and times."""
    topic = create(broker)
    records = [
        topics_pb2.Record(key=b"k", value=b"v0", headers=[topics_pb2.RecordHeader(key="h", value=b"w")]),
        topics_pb2.Record(timestamp_ms=now_ms() - 5),
        topics_pb2.Record(value=b""),
    ]
    result = produce(broker, topic, records=records)
    assert list(result.base_offsets) == [0], result
    found = fetch(broker, topic, 1, as_records=True)
    assert [record.offset for record in found.records] == [1, 2]
    assert not found.records[0].HasField("value")
    assert found.records[0].timestamp_ms == records[1].timestamp_ms
    assert found.records[1].value == b""
    assert found.next_offset == 3
    first = fetch(broker, topic, 0, as_records=True).records[0]
    assert (first.key, first.value, first.headers[0].key, first.headers[0].value) == (b"k", b"v0", "h", b"w")


def test_the_simple_form_answers_under_grpcs_default_limit(broker: Any) -> None:
    """Section 5: at most 3 MiB of records an answer, also where a compressed batch inflates to more."""
    from headrace.wire.batch import Codec

    topic = create(broker)
    values = [b"%d" % number + bytes(990) for number in range(8000)]
    assert list(produce(broker, topic, batch(*values, codec=Codec.GZIP)).base_offsets) == [0]
    with grpc.insecure_channel(broker.address) as channel:
        from headrace.v1 import broker_pb2_grpc

        stub = broker_pb2_grpc.BrokerServiceStub(channel)
        offset = 0
        while offset < 8000:
            part = pb.PartitionFetch(partition=0, offset=offset)
            request = pb.FetchRequest(topics=[pb.TopicFetch(topic=topic, partitions=[part])], as_records=True)
            found = stub.Fetch(request, timeout=10).topics[0].partitions[0]
            assert found.records[0].offset == offset
            assert len(found.records) > 1000
            offset = found.next_offset


def test_a_long_poll_does_not_wait_for_bytes_that_have_no_room(broker: Any) -> None:
    """The second batch does not fit after the first one, so no append can bring the answer to min_bytes."""
    topic = create(broker)
    for number in (0, 1):
        produce(broker, topic, batch(b"x" * 600_000), partition=number)
    wanted = [pb.PartitionFetch(partition=number) for number in (0, 1)]
    request = pb.FetchRequest(
        topics=[pb.TopicFetch(topic=topic, partitions=wanted)], max_wait_ms=50_000, min_bytes=1 << 20, max_bytes=1 << 20
    )
    parts = broker.stub.Fetch(request, timeout=40).topics[0].partitions
    assert sorted(len(values_of(part)) for part in parts) == [0, 1]


def test_a_long_poll_wakes_when_records_become_visible(broker: Any) -> None:
    """A fetch at the end waits, over several partitions, and is answered by the append in one of them."""
    topic = create(broker)
    wanted = [pb.PartitionFetch(partition=number) for number in (0, 1)]
    request = pb.FetchRequest(topics=[pb.TopicFetch(topic=topic, partitions=wanted)], max_wait_ms=50_000, min_bytes=1)
    waiting = broker.stub.Fetch.future(request, timeout=40)
    produce(broker, topic, batch(b"late"), partition=1)
    parts = waiting.result().topics[0].partitions
    assert [values_of(part) for part in parts] == [[], [b"late"]]


def test_a_long_poll_ends_empty_when_its_time_is_over(broker: Any) -> None:
    """max_wait_ms bounds the wait; the answer still carries the high watermark."""
    topic = create(broker)
    found = fetch(broker, topic, 0, max_wait_ms=50, min_bytes=1)
    assert (found.batches, found.high_watermark) == (b"", 0)
    assert not found.HasField("error")


def test_a_fetch_is_bounded_in_all_and_answers_one_batch_at_least(broker: Any) -> None:
    """max_bytes is of the whole answer; a first batch larger than it is answered, and every partition gets its turn."""
    topic = create(broker)
    for number in (0, 1):
        produce(broker, topic, batch(bytes(5000)), batch(bytes(5000)), partition=number)
    seen = set()
    for _ in range(2):
        wanted = [pb.PartitionFetch(partition=number) for number in (0, 1)]
        request = pb.FetchRequest(topics=[pb.TopicFetch(topic=topic, partitions=wanted)], max_bytes=100)
        parts = broker.stub.Fetch(request, timeout=10).topics[0].partitions
        full = [part.partition for part in parts if part.batches]
        assert len(full) == 1
        assert len(values_of(parts[full[0]])) == 1
        seen.add(full[0])
    assert seen == {0, 1}


def test_retries_are_answered_with_the_first_offset(broker: Any) -> None:
    """H48: a duplicate is not appended again; gaps, unknown producers and old epochs are refused, definitely."""
    topic = create(broker)
    identity = {"producer_id": 7, "producer_epoch": 1}
    first = batch(b"a", b"b", base_sequence=0, **identity)
    second = batch(b"c", base_sequence=2, **identity)
    assert list(produce(broker, topic, first, second).base_offsets) == [0, 2]
    assert list(produce(broker, topic, first, second).base_offsets) == [0, 2]
    for bad, code in (
        (batch(b"x", base_sequence=9, **identity), ErrorCode.OUT_OF_ORDER_SEQUENCE),
        (batch(b"x", base_sequence=1, producer_id=8, producer_epoch=0), ErrorCode.UNKNOWN_PRODUCER),
        (batch(b"x", base_sequence=3, producer_id=7, producer_epoch=0), ErrorCode.FENCED_PRODUCER),
    ):
        error = produce(broker, topic, bad).error
        assert (error.code, error.outcome) == (code, Outcome.NOT_APPLIED), error
    assert len(values_of(fetch(broker, topic, 0))) == 3


def test_a_bad_batch_stops_its_partition_behind_the_good_ones(broker: Any) -> None:
    """Offsets are answered for what was appended; the error concerns the rest; other partitions are not touched."""
    topic = create(broker)
    spoilt = bytearray(batch(b"bad"))
    spoilt[-1] ^= 1
    parts = [
        pb.PartitionProduce(partition=0, batches=[batch(b"good"), bytes(spoilt), batch(b"never")]),
        pb.PartitionProduce(partition=1, batches=[batch(b"other")]),
        pb.PartitionProduce(partition=2, batches=[batch(b"nowhere")]),
    ]
    request = pb.ProduceRequest(timeout_ms=5000, topics=[pb.TopicProduce(topic=topic, partitions=parts)])
    results = broker.stub.Produce(request, timeout=10).topics[0].partitions
    assert [list(result.base_offsets) for result in results] == [[0], [0], []]
    assert [result.error.code for result in results] == [ErrorCode.CORRUPT_BATCH, 0, ErrorCode.UNKNOWN_PARTITION]
    assert results[0].error.outcome == errors_pb2.OUTCOME_NOT_APPLIED
    assert values_of(fetch(broker, topic, 0)) == [b"good"]


def reseal(data: bytearray) -> bytes:
    """Make both checksums right again after a change."""
    data[32:36] = struct.pack("<I", crc32c(bytes(data[36:])))
    data[28:32] = struct.pack("<I", crc32c(bytes(data[:28])))
    return bytes(data)


def changed(position: int, layout: str, value: int) -> bytes:
    data = bytearray(batch(b"abc", b"def"))
    struct.pack_into(layout, data, position, value)
    return reseal(data)


BAD_BATCHES = {
    "wrong crc": (lambda: batch(b"abc")[:-1] + b"\xff", ErrorCode.CORRUPT_BATCH),
    "wrong stamp": (lambda: b"\x01" + batch(b"abc")[1:], ErrorCode.CORRUPT_BATCH),
    "too short": (lambda: batch(b"abc")[:40], ErrorCode.CORRUPT_BATCH),
    "cut": (lambda: batch(b"abc")[:-8], ErrorCode.CORRUPT_BATCH),
    "two in one": (lambda: batch(b"abc") * 2, ErrorCode.CORRUPT_BATCH),
    "empty": (lambda: b"", ErrorCode.CORRUPT_BATCH),
    "unknown magic": (lambda: changed(36, "<B", 9), ErrorCode.CORRUPT_BATCH),
    "unknown codec": (lambda: changed(37, "<B", 9), ErrorCode.UNSUPPORTED_CODEC),
    "no records": (lambda: changed(40, "<I", 0), ErrorCode.CORRUPT_BATCH),
    "impossible count": (lambda: changed(40, "<I", 900_000), ErrorCode.CORRUPT_BATCH),
    "too many records": (lambda: changed(40, "<I", 2_000_000_000), ErrorCode.BATCH_TOO_LARGE),
    "huge payload": (lambda: changed(44, "<I", 2**32 - 1), ErrorCode.BATCH_TOO_LARGE),
    "too large": (lambda: batch(bytes(2 << 20)), ErrorCode.BATCH_TOO_LARGE),
    "from the future": (lambda: batch(b"a", base_timestamp_ms=now_ms() + 7_200_000), ErrorCode.INVALID_TIMESTAMP),
}


@pytest.mark.parametrize("name", BAD_BATCHES)
def test_bad_batches_are_refused_by_type(broker: Any, name: str) -> None:
    """Issue 2, "Bad input": a typed error that is definite, and the broker keeps serving."""
    topic = create(broker, partitions=1)
    make, code = BAD_BATCHES[name]
    error = produce(broker, topic, make()).error
    assert (ErrorCode(error.code), error.outcome) == (code, Outcome.NOT_APPLIED), error
    assert error.message
    assert list(produce(broker, topic, batch(b"fine")).base_offsets) == [0]


def test_wrong_names_and_offsets(broker: Any) -> None:
    """Issue 2, "Bad input": unknown topic, id and partition, offset out of range, wrong epochs."""
    topic = create(broker, partitions=1)
    unknown = topics_pb2.TopicRef(name="unknown")
    assert produce(broker, unknown, batch(b"x")).error.code == ErrorCode.UNKNOWN_TOPIC
    assert fetch(broker, topics_pb2.TopicRef(topic_id=bytes(16)), 0).error.code == ErrorCode.UNKNOWN_TOPIC_ID
    assert fetch(broker, topics_pb2.TopicRef(topic_id=b"short"), 0).error.code == ErrorCode.INVALID_REQUEST
    assert fetch(broker, topics_pb2.TopicRef(), 0).error.code == ErrorCode.INVALID_REQUEST
    assert fetch(broker, topic, 0, partition=-1).error.code == ErrorCode.UNKNOWN_PARTITION
    for offset in (1, -1, 2**62):
        error = fetch(broker, topic, offset, max_wait_ms=10_000, min_bytes=1).error
        assert error.code == ErrorCode.OFFSET_OUT_OF_RANGE, offset
    assert fetch(broker, topic, 0, leader_epoch=4).error.code == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert produce(broker, topic, batch(b"x"), leader_epoch=4).error.code == ErrorCode.UNKNOWN_LEADER_EPOCH


def test_requests_that_cannot_be(broker: Any) -> None:
    """Issue 2, "Bad input": missing and huge fields are refused as a whole, with the typed detail in the trailer."""
    topic = create(broker, partitions=1)
    part = pb.PartitionProduce(partition=0, batches=[batch(b"x")])
    topics = [pb.TopicProduce(topic=topic, partitions=[part])]
    no_timeout = failure(lambda: broker.stub.Produce(pb.ProduceRequest(topics=topics), timeout=5))
    assert no_timeout.code is ErrorCode.INVALID_REQUEST
    assert no_timeout.outcome is Outcome.NOT_APPLIED
    strange = pb.ProduceRequest(topics=topics, timeout_ms=1, acks=9)
    assert failure(lambda: broker.stub.Produce(strange, timeout=5)).code is ErrorCode.INVALID_REQUEST
    nothing = pb.ProduceRequest(timeout_ms=1)
    assert failure(lambda: broker.stub.Produce(nothing, timeout=5)).code is ErrorCode.INVALID_REQUEST
    negative = pb.FetchRequest(topics=[pb.TopicFetch(topic=topic)], max_bytes=-1)
    assert failure(lambda: broker.stub.Fetch(negative, timeout=5)).code is ErrorCode.INVALID_REQUEST
    crowd = [pb.PartitionFetch(partition=0)] * 10_001
    many = pb.FetchRequest(topics=[pb.TopicFetch(topic=topic, partitions=crowd)])
    assert failure(lambda: broker.stub.Fetch(many, timeout=5)).code is ErrorCode.INVALID_REQUEST
    assert produce(broker, topic).error.code == ErrorCode.INVALID_REQUEST
    both = produce(broker, topic, batch(b"x"), records=[topics_pb2.Record(value=b"x")])
    assert both.error.code == ErrorCode.INVALID_REQUEST
    large = produce(broker, topic, records=[topics_pb2.Record(value=bytes(1 << 20) + b"1")])
    assert large.error.code == ErrorCode.BATCH_TOO_LARGE
    flood = [topics_pb2.Record(value=b"")] * 10_001
    assert failure(lambda: produce(broker, topic, records=flood)).code is ErrorCode.BATCH_TOO_LARGE
    oversized = pb.ProduceRequest(client_id="x" * (33 << 20), timeout_ms=1)
    with pytest.raises(grpc.RpcError) as caught:
        broker.stub.Produce(oversized, timeout=10)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("method", ["Produce", "Fetch", "ListOffsets", "DeleteRecords", "DescribeLogs", "GetMetadata"])
def test_a_deadline_is_required(broker: Any, method: str) -> None:
    """Issue 2, "Bad input": a call without a deadline is refused."""
    requests: dict[str, Any] = {"GetMetadata": cluster_pb2.GetMetadataRequest()}
    request = requests.get(method) or getattr(pb, f"{method}Request")()
    assert failure(lambda: getattr(broker.stub, method)(request)).code is ErrorCode.DEADLINE_REQUIRED


def test_offsets_are_listed(broker: Any) -> None:
    """Earliest, latest, and by both kinds of time."""
    topic = create(broker, partitions=1)
    base = now_ms() - 100_000
    for index in range(3):
        produce(broker, topic, batch(b"x", base_timestamp_ms=base + index * 1000))

    def listed(spec: int, timestamp_ms: int = 0) -> pb.PartitionListOffsetsResult:
        asked = pb.PartitionListOffsets(partition=0, spec=spec, timestamp_ms=timestamp_ms)
        request = pb.ListOffsetsRequest(topics=[pb.TopicListOffsets(topic=topic, partitions=[asked])])
        return broker.stub.ListOffsets(request, timeout=10).topics[0].partitions[0]

    assert listed(pb.OFFSET_SPEC_EARLIEST).offset == 0
    assert listed(pb.OFFSET_SPEC_LATEST).offset == 3
    found = listed(pb.OFFSET_SPEC_TIMESTAMP, base + 500)
    assert (found.offset, found.timestamp_ms) == (1, base + 1000)
    assert listed(pb.OFFSET_SPEC_TIMESTAMP, base + 5000).offset == 3
    assert listed(pb.OFFSET_SPEC_APPEND_TIMESTAMP, base + 5000).offset == 0
    assert listed(pb.OFFSET_SPEC_UNSPECIFIED).error.code == ErrorCode.INVALID_REQUEST


def test_records_are_deleted(broker: Any) -> None:
    """DeleteRecords raises the log start, never above the high watermark (I18); reads below are out of range."""
    topic = create(broker, partitions=1)
    produce(broker, topic, *[batch(b"x")] * 5)

    def delete(before_offset: int) -> pb.PartitionDeleteRecordsResult:
        asked = pb.PartitionDeleteRecords(partition=0, before_offset=before_offset)
        topics = [pb.TopicDeleteRecords(topic=topic, partitions=[asked])]
        request = pb.DeleteRecordsRequest(topics=topics, timeout_ms=1000)
        return broker.stub.DeleteRecords(request, timeout=10).topics[0].partitions[0]

    assert delete(3).log_start_offset == 3
    assert fetch(broker, topic, 2).error.code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert values_of(fetch(broker, topic, 3)) == [b"x", b"x"]
    assert delete(6).error.code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert delete(-2).error.code == ErrorCode.INVALID_REQUEST
    assert delete(-1).log_start_offset == 5


def test_logs_metadata_health_and_reflection(broker: Any) -> None:
    """The broker describes its logs, answers metadata from its cache with its age, and says that it is well."""
    topic = create(broker, partitions=1)
    produce(broker, topic, batch(b"x", b"y"))
    described = broker.stub.DescribeLogs(pb.DescribeLogsRequest(topics=[topic]), timeout=10)
    (log,) = described.logs
    assert (log.log_end_offset, log.high_watermark, log.flushed_offset, log.is_leader) == (2, 2, 2, True)
    assert described.disk_total_bytes >= described.disk_free_bytes > 0
    metadata = broker.stub.GetMetadata(cluster_pb2.GetMetadataRequest(topics=[topic]), timeout=10)
    assert metadata.revision > 0
    assert metadata.brokers[0].address == broker.address
    assert metadata.topics[0].partitions[0].leader_id == broker.broker_id
    assert metadata.answered_by == "broker-1"
    health = health_pb2_grpc.HealthStub(broker.channel)
    for name in ("startup", "liveness", "readiness", ""):
        answer = health.Check(health_pb2.HealthCheckRequest(service=name), timeout=5)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING, name
