"""The paper's sentences about producing and consuming: sections 3, 3.1, 3.2, 3.3 and 5, on a real cluster by the SDK.

Kreps, Narkhede, Rao: Kafka: a Distributed Messaging System for Log Processing, NetDB 2011. What section 3.2 says about
consumer groups comes with the group protocol.
"""

import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import headrace
import pytest
from headrace import TopicPartition
from headrace.partition.topic_configs import TopicConfig
from headrace.v1 import broker_pb2, broker_pb2_grpc, errors_pb2
from headrace.wire.batch import check_batch, iter_batches
from headrace.wire.columns import decode_batch, encode_batch
from headrace_devcluster.cluster import LocalCluster

LIMITS = {"max_batch_bytes": 1 << 21, "max_records": 1 << 20, "max_payload_bytes": 1 << 26}
SECONDS = 20.0


@pytest.fixture
def servers(headrace_cluster: LocalCluster) -> str:
    """Where the shared cluster is."""
    return headrace_cluster.bootstrap_servers


@pytest.fixture
def make_topic(servers: str, topic_name: str) -> Iterator[Callable[..., str]]:
    """Makes this test's topic: `make_topic(partitions=2, durability="async")`; deleted afterwards."""
    with headrace.Admin(bootstrap_servers=servers) as admin:

        def make(partitions: int = 1, **config: object) -> str:
            admin.create_topic(topic_name, partitions=partitions, config=config)
            wait_until(lambda: is_led(admin, topic_name))
            return topic_name

        yield make
        admin.delete_topic(topic_name)


class Leader:
    """The leader of partition 0 by plain gRPC, without the SDK."""

    def __init__(self, servers: str, topic: str) -> None:
        with headrace.Admin(bootstrap_servers=servers) as admin:
            description = admin.describe_topic(topic)
            brokers = {broker.broker_id: broker.address for broker in admin.describe_cluster().brokers}
        self._channel = grpc.insecure_channel(brokers[description.partitions[0].leader_id])
        self.stub = broker_pb2_grpc.BrokerServiceStub(self._channel)
        self.topic = {"topic_id": description.topic_id}

    def __enter__(self) -> "Leader":
        return self

    def __exit__(self, *exc: object) -> None:
        self._channel.close()

    def produce(self, *batches: bytes) -> broker_pb2.PartitionProduceResult:
        """One Produce call, acknowledged by the leader's append."""
        part = broker_pb2.PartitionProduce(partition=0, batches=batches)
        request = broker_pb2.ProduceRequest(acks=broker_pb2.ACKS_LEADER, timeout_ms=10_000)
        request.topics.add(topic=self.topic, partitions=[part])
        return self.stub.Produce(request, timeout=SECONDS).topics[0].partitions[0]

    def fetch(self, offset: int, max_bytes: int) -> broker_pb2.PartitionFetchResult:
        """One Fetch call that does not wait."""
        part = broker_pb2.PartitionFetch(partition=0, offset=offset, max_bytes=max_bytes)
        request = broker_pb2.FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=max_bytes)
        request.topics.add(topic=self.topic, partitions=[part])
        return self.stub.Fetch(request, timeout=SECONDS).topics[0].partitions[0]


def values_of(servers: str, topic: str) -> dict[int, list[bytes]]:
    """All values that are visible now, by partition, in order."""
    found: dict[int, list[bytes]] = {}
    with headrace.Reader(topic, bootstrap_servers=servers) as reader:
        for record in reader:
            found.setdefault(record.partition, []).append(record.value)
    return found


def latest(servers: str, topic: str) -> int:
    """Where partition 0 ends for consumers."""
    with headrace.Admin(bootstrap_servers=servers) as admin:
        return admin.list_offsets(topic)[TopicPartition(topic, 0)].offset


def is_led(admin: headrace.Admin, topic: str) -> bool:
    """Whether every partition's leader serves; a new topic's takes a moment."""
    try:
        admin.list_offsets(topic)
    except headrace.HeadraceError as error:
        if not error.retriable:
            raise
        return False
    return True


def wait_until(condition: Callable[[], bool]) -> None:
    """Look until `condition` holds; fails after SECONDS."""
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline


def test_section_3_the_user_chooses_the_serialisation(servers: str, make_topic: Callable[..., str]) -> None:
    """Section 3: the user can choose the method to encode a message."""
    topic = make_topic()
    with headrace.Producer(bootstrap_servers=servers, value_serializer="json", key_serializer=str.encode) as producer:
        producer.send(topic, {"page": "/news", "ms": 12}, key="user-1")
    with headrace.Reader(
        topic, bootstrap_servers=servers, value_deserializer="json", key_deserializer=bytes.decode
    ) as reader:
        assert [(record.key, record.value) for record in reader] == [("user-1", {"page": "/news", "ms": 12})]


def test_section_3_a_set_of_messages_in_a_single_request(servers: str, make_topic: Callable[..., str]) -> None:
    """Section 3: the producer can send a set of messages in a single publish request."""
    topic = make_topic()
    with Leader(servers, topic) as leader:
        result = leader.produce(
            *(encode_batch([b"%d" % n] * 10, base_timestamp_ms=1, timestamps_ms=None) for n in range(3))
        )
        assert list(result.base_offsets) == [0, 10, 20]
    wait_until(lambda: latest(servers, topic) == 30)


def test_section_3_the_iterator_never_terminates_and_blocks(servers: str, make_topic: Callable[..., str]) -> None:
    """Section 3: the iterator never terminates; with no more messages it blocks until new ones are published."""
    topic = make_topic()
    with (
        headrace.Producer(bootstrap_servers=servers, linger_ms=0) as producer,
        headrace.Consumer(topic, bootstrap_servers=servers, auto_offset_reset="earliest") as consumer,
        ThreadPoolExecutor(1) as thread,
    ):
        stream = iter(consumer)
        for value in (b"first", b"second", b"third"):
            coming = thread.submit(next, stream)
            assert not coming.done(), "nothing was published yet"
            producer.send(topic, value).result(SECONDS)
            assert coming.result(SECONDS).value == value
        coming = thread.submit(next, stream)
        consumer.wakeup()
        with pytest.raises(headrace.WakeupError):
            coming.result(SECONDS)


def test_section_3_one_stream_a_consumer(servers: str, make_topic: Callable[..., str]) -> None:
    """Section 3, a departure: the paper's consumer creates several streams of a topic, which share its messages.

    A consumer here is one stream, however often it is iterated; more streams are more consumers of a group.
    """
    topic = make_topic()
    with headrace.Producer(bootstrap_servers=servers) as producer:
        producer.send_many(topic, [b"%d" % number for number in range(4)])
    with headrace.Consumer(topic, bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        first, second = iter(consumer), iter(consumer)
        assert [next(stream).value for stream in (first, second, first, second)] == [b"0", b"1", b"2", b"3"]


def test_section_3_1_consecutive_offsets(servers: str, make_topic: Callable[..., str]) -> None:
    """Section 3.1, a departure: a message is addressed by its logical offset; ours are consecutive, not by length."""
    topic = make_topic()
    with headrace.Producer(bootstrap_servers=servers, linger_ms=0) as producer:
        for size in (1, 1_000, 10, 100_000, 0):
            producer.send(topic, b"x" * size).result(SECONDS)
    with headrace.Reader(topic, bootstrap_servers=servers) as reader:
        assert [(record.offset, len(record.value)) for record in reader] == [
            (0, 1), (1, 1_000), (2, 10), (3, 100_000), (4, 0),
        ]  # fmt: skip


def test_section_3_1_flushed_before_visible(servers: str, make_topic: Callable[..., str]) -> None:
    """Section 3.1: a segment is flushed after a number of messages or a time; only flushed messages are exposed."""
    topic = make_topic(durability="async", flush_messages=10, flush_ms=600_000)
    with headrace.Producer(bootstrap_servers=servers, acks=1, linger_ms=0) as producer:
        for number in range(9):
            producer.send(topic, b"%d" % number).result(SECONDS)
        assert latest(servers, topic) == 0
        with Leader(servers, topic) as leader:
            assert leader.fetch(0, 1 << 20).batches == b""
        producer.send(topic, b"9").result(SECONDS)
        wait_until(lambda: latest(servers, topic) == 10)
    assert values_of(servers, topic) == {0: [b"%d" % number for number in range(10)]}


def test_section_3_1_visible_when_replicated(servers: str, make_topic: Callable[..., str]) -> None:
    """Section 3.1, a departure: by default a message is flushed and replicated before it is visible.

    With `durability=async` and no `flush_messages` or `flush_ms` it is visible once the in-sync replicas have it, and
    not flushed.
    """
    topic = make_topic(durability="async")
    settings = {"bootstrap_servers": servers}
    with headrace.Producer(**settings) as producer, headrace.Admin(**settings) as admin:
        producer.send(topic, b"not flushed").result(SECONDS)
        wait_until(lambda: latest(servers, topic) == 1)
        replicas = admin.describe_logs(topic)
        assert {(each.log_end_offset, each.flushed_offset) for each in replicas} == {(1, 0)}
        admin.alter_config(topic, {"durability": "fsync"})
        producer.send(topic, b"flushed").result(SECONDS)
        wait_until(lambda: latest(servers, topic) == 2)
        in_sync = admin.describe_topic(topic).partitions[0].in_sync_replicas
        flushed = {each.broker_id: each.flushed_offset for each in admin.describe_logs(topic)}
        assert all(flushed[broker] == 2 for broker in in_sync)


def test_section_3_1_pull_from_an_offset_up_to_a_size(servers: str, make_topic: Callable[..., str]) -> None:
    """Section 3.1, a departure: a pull request holds the offset to begin with and a maximum of bytes.

    The answer has whole batches: the first one may begin before that offset, and is there however large it is.
    """
    topic = make_topic()
    batches = [encode_batch([b"%04d" % number * 50] * 100, base_timestamp_ms=1) for number in range(10)]
    with Leader(servers, topic) as leader:
        assert not leader.produce(*batches).HasField("error")
        wait_until(lambda: latest(servers, topic) == 1_000)
        offset, pulls = 250, []
        while offset < 1_000:
            answer = leader.fetch(offset, max_bytes=3 * len(batches[0]))
            assert len(answer.batches) <= 3 * len(batches[0])
            headers = [header for header, _ in iter_batches(answer.batches)]
            assert headers[0].base_offset <= offset < headers[0].end_offset
            pulls.append([header.base_offset for header in headers])
            offset = headers[-1].end_offset
        assert pulls == [[200, 300, 400], [500, 600, 700], [800, 900]]
        assert leader.fetch(0, max_bytes=1).batches, "at least one batch, however small the size asked for"


def test_section_3_1_the_broker_keeps_no_position(servers: str, make_topic: Callable[..., str]) -> None:
    """Section 3.1: how much a consumer has consumed is kept by the consumer; reading takes nothing from anybody."""
    topic = make_topic(partitions=2)
    sent = [b"%d" % number for number in range(100)]
    with headrace.Producer(bootstrap_servers=servers) as producer:
        producer.send_many(topic, sent, partition=1)
    for _ in range(2):
        with headrace.Consumer(topic, bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
            received = []
            while len(received) < 100:
                received += [record.value for record in consumer.poll(timeout=SECONDS)]
            assert received == sent


def test_section_3_1_retention_is_seven_days_by_time() -> None:
    """Section 3.1: a message is deleted after a retention time, typically 7 days, consumed or not."""
    assert TopicConfig().retention_ms == 7 * 24 * 3_600_000


def test_section_3_1_retention_deletes_old_messages(own_cluster: Callable[..., LocalCluster]) -> None:
    """Section 3.1: a message is deleted automatically once it was kept longer than the retention time."""
    cluster = own_cluster(brokers=1, coordinators=1, broker_settings={"retention_interval_ms": 100})
    servers = cluster.bootstrap_servers
    with headrace.Admin(bootstrap_servers=servers) as admin, headrace.Producer(bootstrap_servers=servers) as producer:
        admin.create_topic("old", partitions=1, config={"retention_ms": 1, "segment_ms": 1_000})
        wait_until(lambda: is_led(admin, "old"))
        producer.send_many("old", [b"old"] * 10).result(SECONDS)
        where = TopicPartition("old", 0)
        wait_until(lambda: admin.list_offsets("old", "earliest")[where].offset == 10)
        assert admin.list_offsets("old")[where].offset == 10, "offsets are not given out again"


def test_section_3_1_rewind(servers: str, make_topic: Callable[..., str]) -> None:
    """Section 3.1: a consumer can deliberately rewind to an old offset and consume again."""
    topic = make_topic()
    with headrace.Producer(bootstrap_servers=servers) as producer:
        producer.send_many(topic, [b"%d" % number for number in range(50)])
    with headrace.Consumer(topic, bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        assert [next(iter(consumer)).value] == [b"0"]
        while consumer.position(TopicPartition(topic, 0)) < 50:
            consumer.poll(timeout=SECONDS)
        consumer.seek(TopicPartition(topic, 0), 7)
        again = []
        while len(again) < 43:
            again += [(record.offset, record.value) for record in consumer.poll(timeout=SECONDS)]
        assert again == [(number, b"%d" % number) for number in range(7, 50)]


@pytest.mark.native
def test_section_3_1_segments_go_to_consumers_by_sendfile(own_cluster: Callable[..., LocalCluster]) -> None:
    """Section 3.1: bytes go from the segment file to the consumer's socket by sendfile, and not through the broker.

    A consumer uses the native protocol by itself: all that it received went by it.
    """
    cluster = own_cluster(brokers=1, coordinators=1, broker_settings={"metrics_listen": "127.0.0.1:0"})
    servers = cluster.bootstrap_servers
    sent = [b"%04d" % number * 50 for number in range(2_000)]
    with headrace.Admin(bootstrap_servers=servers) as admin, headrace.Producer(bootstrap_servers=servers) as producer:
        admin.create_topic("sent", partitions=1)
        producer.send_many("sent", sent, partition=0).result(SECONDS)
    sent_bytes = "headrace_broker_native_sent_bytes_total"
    assert cluster.broker(1).metrics()[sent_bytes] == 0
    assert values_of(servers, "sent") == {0: sent}
    assert cluster.broker(1).metrics()[sent_bytes] > sum(map(len, sent))


def test_section_3_2_partitions_random_or_by_key(servers: str, make_topic: Callable[..., str]) -> None:
    """Section 3.2: a producer publishes to a random partition, or to one by a key and a partitioning function."""
    topic = make_topic(partitions=3)
    keys = [b"user-%d" % number for number in range(30)]
    with headrace.Producer(bootstrap_servers=servers, linger_ms=0) as producer:
        keyed = [(key, producer.send(topic, key, key=key)) for key in keys]
        assert all(future.result(SECONDS).partition == zlib.crc32(key) % 3 for key, future in keyed)
        keyless = {producer.send(topic, b"keyless").result(SECONDS).partition for _ in range(60)}
        assert keyless == {0, 1, 2}
    with headrace.Producer(bootstrap_servers=servers, partitioner=lambda topic, key, partitions: len(key) % 3) as own:
        assert own.send(topic, b"x", key=b"four").result(SECONDS).partition == 1


def test_section_3_3_order_within_a_partition(servers: str, make_topic: Callable[..., str]) -> None:
    """Section 3.3: messages from a single partition are delivered to a consumer in order."""
    topic = make_topic(partitions=3)
    with headrace.Producer(bootstrap_servers=servers, batch_records=50, linger_ms=0) as producer:

        def send_all(user: int) -> None:
            for number in range(1_000):
                producer.send(topic, b"%d" % number, key=b"user-%d" % user)

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(send_all, range(4)))
    seen: dict[bytes, list[int]] = {}
    last: dict[int, int] = {}
    with headrace.Consumer(topic, bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        for count, record in enumerate(consumer, start=1):
            assert record.offset == last.get(record.partition, -1) + 1
            last[record.partition] = record.offset
            seen.setdefault(record.key, []).append(int(record.value))
            if count == 4_000:
                break
    assert seen == {b"user-%d" % user: list(range(1_000)) for user in range(4)}


def test_section_3_3_a_broken_message_is_not_stored(servers: str, make_topic: Callable[..., str]) -> None:
    """Section 3.3: a CRC for each message: one that was corrupt on its way is refused, and nothing of it is stored."""
    topic = make_topic()
    good = encode_batch([b"click"] * 10, base_timestamp_ms=1)
    corrupt = bytearray(good)
    corrupt[-1 - good[39] // 32] ^= 1
    with Leader(servers, topic) as leader:
        error = leader.produce(bytes(corrupt)).error
        assert error.code == errors_pb2.ERROR_CODE_CORRUPT_BATCH
        assert error.outcome == errors_pb2.OUTCOME_NOT_APPLIED
        assert list(leader.produce(good).base_offsets) == [0]
        wait_until(lambda: latest(servers, topic) == 10)
        ((_, stored),) = iter_batches(leader.fetch(0, 1 << 20).batches)
        check_batch(stored, **LIMITS)
        assert decode_batch(stored, max_payload_bytes=1 << 20).values() == [b"click"] * 10


def test_section_5_producers_need_not_wait(servers: str, make_topic: Callable[..., str]) -> None:
    """Section 5: the producer does not wait for acknowledgements from the broker: acks=0."""
    topic = make_topic()
    with headrace.Producer(bootstrap_servers=servers, acks=0) as producer:
        future = producer.send(topic, b"unasked")
        producer.flush(SECONDS)
        assert future.result(SECONDS).offset == -1
    wait_until(lambda: latest(servers, topic) == 1)
    assert values_of(servers, topic) == {0: [b"unasked"]}
