"""What a broker answers over gRPC, in the real broker and in the fake that the client's tests have."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import headrace
import pytest
from headrace.v1 import broker_pb2 as pb
from headrace.v1 import broker_pb2_grpc, cluster_pb2, cluster_pb2_grpc, errors_pb2, topics_pb2
from headrace.wire.batch import iter_batches
from headrace.wire.columns import decode_batch
from headrace.wire.encoding import encode_batch
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec

from tests.fakes.cluster import FakeCluster, running_fake

NAMES = (f"contract-{number}" for number in itertools.count())
TIMEOUT = 30
NO_TOPIC = topics_pb2.TopicRef(topic_id=b"0123456789abcdef")


@dataclass
class Broker:
    """One broker under test, and how to make a topic of two partitions there."""

    stub: broker_pb2_grpc.BrokerServiceStub
    cluster: cluster_pb2_grpc.ClusterServiceStub
    make_topic: Any
    topic: topics_pb2.TopicRef

    def produce(self, *batches: bytes, partition: int = 0, topic: Any = None, **fields: Any) -> Any:
        part = pb.PartitionProduce(partition=partition, batches=batches, **{"leader_epoch": -1} | fields)
        request = pb.ProduceRequest(
            topics=[pb.TopicProduce(topic=topic or self.topic, partitions=[part])], acks=pb.ACKS_ALL, timeout_ms=10_000
        )
        return self.stub.Produce(request, timeout=TIMEOUT).topics[0].partitions[0]

    def fetch(self, offset: int, *, max_bytes: int = 1 << 20, topic: Any = None, wait_ms: int = 0) -> Any:
        return self.start_fetch(offset, max_bytes=max_bytes, topic=topic, wait_ms=wait_ms)()

    def start_fetch(self, offset: int, *, max_bytes: int = 1 << 20, topic: Any = None, wait_ms: int = 0) -> Any:
        part = pb.PartitionFetch(partition=0, offset=offset, max_bytes=max_bytes)
        request = pb.FetchRequest(
            topics=[pb.TopicFetch(topic=topic or self.topic, partitions=[part])],
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=8 << 20,
        )
        call = self.stub.Fetch.future(request, timeout=TIMEOUT)
        return lambda: call.result().topics[0].partitions[0]

    def list_offset(self, spec: Any, **fields: Any) -> Any:
        part = pb.PartitionListOffsets(partition=0, spec=spec, **fields)
        request = pb.ListOffsetsRequest(topics=[pb.TopicListOffsets(topic=self.topic, partitions=[part])])
        return self.stub.ListOffsets(request, timeout=TIMEOUT).topics[0].partitions[0]


@pytest.fixture(scope="module")
def real() -> Iterator[tuple[str, Any]]:
    with (
        LocalCluster(LocalClusterSpec(brokers=1, coordinators=1)) as cluster,
        headrace.Admin(bootstrap_servers=cluster.bootstrap_servers) as admin,
    ):
        yield cluster.bootstrap_servers, lambda: admin.create_topic(next(NAMES), 2, replication_factor=1).topic_id


@pytest.fixture(scope="module")
def fake() -> Iterator[tuple[str, Any]]:
    with running_fake() as cluster:
        yield cluster.address, lambda: FakeCluster.create_topic(cluster, next(NAMES), 2).topic_id


@pytest.fixture(params=["real", "fake"])
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    servers, make_topic = request.getfixturevalue(request.param)
    with grpc.insecure_channel(servers) as channel:
        cluster = cluster_pb2_grpc.ClusterServiceStub(channel)
        topic = topics_pb2.TopicRef(topic_id=make_topic())
        found = cluster.GetMetadata(cluster_pb2.GetMetadataRequest(topics=[topic]), timeout=TIMEOUT)
        with grpc.insecure_channel(found.brokers[0].address) as to_broker:
            one = Broker(broker_pb2_grpc.BrokerServiceStub(to_broker), cluster, make_topic, topic)
            while one.list_offset(pb.OFFSET_SPEC_LATEST).HasField("error"):  # The broker has not heard of it yet.
                pass
            yield one


def batch(*values: bytes, at_ms: int = 1_000, **fields: int) -> bytes:
    return encode_batch(list(values), base_timestamp_ms=at_ms, **fields)


def values_of(part: Any) -> list[bytes | None]:
    return [
        value
        for _, found in iter_batches(part.batches)
        for value in decode_batch(found, max_payload_bytes=1 << 20).values()
    ]


def code(part: Any) -> int:
    return int(part.error.code)


def test_batches_have_the_offsets_in_order_and_are_read_whole(broker: Broker) -> None:
    assert list(broker.produce(batch(b"a", b"b"), batch(b"c")).base_offsets) == [0, 2]
    assert list(broker.produce(batch(b"d")).base_offsets) == [3]
    found = broker.fetch(1)
    assert values_of(found) == [b"a", b"b", b"c", b"d"]  # The first batch holds the offset and starts before it.
    assert (found.high_watermark, found.log_start_offset, found.preferred_replica) == (4, 0, -1)
    assert [header.base_offset for header, _ in iter_batches(found.batches)] == [0, 2, 3]
    assert {header.leader_epoch for header, _ in iter_batches(found.batches)} == {found.leader_epoch}


def test_at_least_one_batch_is_answered_whatever_its_size(broker: Broker) -> None:
    broker.produce(batch(b"x" * 5_000), batch(b"y" * 5_000))
    assert [len(value or b"") for value in values_of(broker.fetch(0, max_bytes=100))] == [5_000]
    assert len(values_of(broker.fetch(0))) == 2


def test_the_end_has_nothing_and_what_is_beyond_it_is_out_of_range(broker: Broker) -> None:
    broker.produce(batch(b"a"))
    assert (values_of(broker.fetch(1)), code(broker.fetch(1))) == ([], 0)
    assert code(broker.fetch(2)) == errors_pb2.ERROR_CODE_OFFSET_OUT_OF_RANGE


def test_a_fetch_at_the_end_waits_for_the_next_batch(broker: Broker) -> None:
    answer = broker.start_fetch(0, wait_ms=20_000)
    broker.produce(batch(b"late"))
    assert values_of(answer()) == [b"late"]


def test_a_batch_that_comes_again_is_not_appended_again(broker: Broker) -> None:
    first, second = (batch(b"a", producer_id=7, producer_epoch=0, base_sequence=number) for number in (0, 1))
    assert not broker.produce(first).repeated_batches
    broker.produce(second)
    again = broker.produce(first)
    assert (list(again.base_offsets), again.repeated_batches, code(again)) == ([0], True, 0)
    assert broker.fetch(0).high_watermark == 2


def test_a_gap_in_a_producers_sequence_is_refused(broker: Broker) -> None:
    broker.produce(batch(b"a", producer_id=7, producer_epoch=0, base_sequence=0))
    gap = broker.produce(batch(b"c", producer_id=7, producer_epoch=0, base_sequence=2))
    assert code(gap) == errors_pb2.ERROR_CODE_OUT_OF_ORDER_SEQUENCE
    unknown = broker.produce(batch(b"c", producer_id=8, producer_epoch=0, base_sequence=2))
    assert code(unknown) == errors_pb2.ERROR_CODE_UNKNOWN_PRODUCER
    assert broker.fetch(0).high_watermark == 1


def test_a_new_epoch_of_a_producer_begins_anew_and_ends_the_old_one(broker: Broker) -> None:
    broker.produce(batch(b"a", producer_id=7, producer_epoch=0, base_sequence=0))
    assert list(broker.produce(batch(b"b", producer_id=7, producer_epoch=1, base_sequence=0)).base_offsets) == [1]
    assert broker.produce(batch(b"c", producer_id=7, producer_epoch=0, base_sequence=1)).HasField("error")


def test_a_batch_that_is_corrupt_is_refused(broker: Broker) -> None:
    good = batch(b"abcdef")
    refused = broker.produce(good[:-1] + bytes([good[-1] ^ 1]))
    assert code(refused) == errors_pb2.ERROR_CODE_CORRUPT_BATCH
    assert broker.fetch(0).high_watermark == 0


def test_a_topic_that_does_not_exist(broker: Broker) -> None:
    assert code(broker.produce(batch(b"a"), topic=NO_TOPIC)) == errors_pb2.ERROR_CODE_UNKNOWN_TOPIC_ID
    assert code(broker.fetch(0, topic=NO_TOPIC)) == errors_pb2.ERROR_CODE_UNKNOWN_TOPIC_ID
    request = cluster_pb2.GetMetadataRequest(topics=[topics_pb2.TopicRef(name="no-such-topic")])
    (topic,) = broker.cluster.GetMetadata(request, timeout=TIMEOUT).topics
    assert code(topic) == errors_pb2.ERROR_CODE_UNKNOWN_TOPIC


def test_another_leader_epoch_is_refused_with_the_leader(broker: Broker) -> None:
    epoch = broker.produce(batch(b"a")).leader_epoch
    assert list(broker.produce(batch(b"b"), leader_epoch=epoch).base_offsets) == [1]
    refused = broker.produce(batch(b"c"), leader_epoch=epoch + 1)
    assert refused.HasField("error")
    assert refused.error.retriable
    assert broker.fetch(0).high_watermark == 2


def test_offsets_by_place_and_by_time(broker: Broker) -> None:
    broker.produce(batch(b"a", b"b", at_ms=1_000), batch(b"c", at_ms=2_000))
    assert broker.list_offset(pb.OFFSET_SPEC_EARLIEST).offset == 0
    assert broker.list_offset(pb.OFFSET_SPEC_LATEST).offset == 3
    assert broker.list_offset(pb.OFFSET_SPEC_TIMESTAMP, timestamp_ms=500).offset == 0
    assert broker.list_offset(pb.OFFSET_SPEC_TIMESTAMP, timestamp_ms=1_500).offset == 2
    assert broker.list_offset(pb.OFFSET_SPEC_TIMESTAMP, timestamp_ms=9_000).offset == 3


def test_where_a_producer_has_appended(broker: Broker) -> None:
    broker.produce(batch(b"x"))
    producer = pb.ProducerIdentity(producer_id=7, producer_epoch=0)
    found = broker.list_offset(pb.OFFSET_SPEC_PRODUCER, producer=producer)
    assert (found.offset, found.end_offset) == (-1, 0)
    broker.produce(batch(b"a", b"b", producer_id=7, producer_epoch=0, base_sequence=0))
    found = broker.list_offset(pb.OFFSET_SPEC_PRODUCER, producer=producer)
    assert (found.offset, found.end_offset) == (1, 3)


def test_metadata_names_leaders_and_producers_have_ids_of_their_own(broker: Broker) -> None:
    request = cluster_pb2.GetMetadataRequest(topics=[broker.topic])
    answer = broker.cluster.GetMetadata(request, timeout=TIMEOUT)
    (topic,) = answer.topics
    assert topic.topic_id == broker.topic.topic_id
    assert [part.partition for part in topic.partitions] == [0, 1]
    assert {part.leader_id for part in topic.partitions} == {each.broker_id for each in answer.brokers}
    init = cluster_pb2.InitProducerIdRequest()
    ids = {broker.cluster.InitProducerId(init, timeout=TIMEOUT).producer_id for _ in range(3)}
    assert len(ids) == 3
