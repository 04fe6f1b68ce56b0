"""What the replication tests share: a replicated cluster with short times, looks at every replica, a writer whose
futures are kept, a follower that says on the wire what it is told to.

Every wait here looks again until a deadline; nothing is slept through.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import grpc
import headrace
from headrace.client.admin.replication import LogInfo
from headrace.client.admin.rpc import PartitionDescription
from headrace.v1 import broker_pb2 as pb
from headrace.v1 import broker_pb2_grpc, cluster_pb2, topics_pb2
from headrace.wire.batch import iter_batches
from headrace.wire.columns import decode_batch
from headrace.wire.encoding import encode_batch
from headrace.wire.errors import HeadraceError, Outcome
from headrace_devcluster.cluster import LocalCluster
from headrace_devcluster.service import LocalService
from headrace_server.cluster_identity import ClusterIdentity, read_or_create
from headrace_server.cluster_secret import prove
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.internal_v1 import replication_pb2 as internal
from headrace_server.metastore.api import Delete, Put
from headrace_server.metastore.etcd import EtcdMetastore
from headrace_server.partition_state import PartitionState, Replica, decode

from tests.integration.hand_streams import HandResult, HandStream
from tests.integration.metastore import connected

Answer = TypeVar("Answer")

SECONDS = 40.0
LEASE_TTL_MS = 2_000
BROKER_SETTINGS: dict[str, object] = {
    "lease_ttl_ms": LEASE_TTL_MS,
    "replica_lag_max_ms": 1_500,
    "maintenance_interval_ms": 50,
    "retention_interval_ms": 100,
    "metrics_listen": "127.0.0.1:0",
}
PACE = 60
"""Records that a writer sends in 30 ms at most: the machine has more to do, and small requests cost most."""


def until(condition: Callable[[], Answer], what: str, seconds: float = SECONDS) -> Answer:
    """Look again until `condition()` is true, and give it; an error of the cluster means: not yet."""
    deadline = time.monotonic() + seconds
    last: object = None
    while True:
        try:
            if found := condition():
                return found
        except headrace.HeadraceError as error:
            last = error
        assert time.monotonic() < deadline, f"{what}: not within {seconds:g} s; {last}"
        time.sleep(0.02)


class Replicated:
    """A cluster and what a test asks of it. Not for several threads."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.servers = cluster.bootstrap_servers
        self.admin = headrace.Admin(bootstrap_servers=self.servers, request_timeout_ms=20_000)

    def close(self) -> None:
        self.admin.close()

    def restore(self) -> None:
        """Resume paused processes and start stopped ones."""
        for member in self.cluster.etcd_members:
            member.resume()
        for part in self.cluster.parts:
            part.resume()
            if part.pid is None:
                self.cluster.restart(part)
        self.cluster.wait_until_healthy()

    def reconfigure(self, broker_id: int, **settings: object) -> None:
        """Stop a broker and start it on its port with other settings."""
        before = self.broker(broker_id)
        before.stop()
        port = int(before.address.rpartition(":")[2])
        spec = dataclasses.replace(before.spec, port=port, settings={**before.spec.settings, **settings})
        self.cluster.brokers[broker_id - 1] = LocalService(spec)
        self.cluster.restart(self.broker(broker_id))

    def lose_power(self, broker_ids: Sequence[int]) -> None:
        """Kill brokers at once and leave their disks as a crash of the machine does: another boot, torn tails."""
        for broker_id in broker_ids:
            self.broker(broker_id).kill()
        for broker_id in broker_ids:
            directory = self.cluster.directory / f"broker-{broker_id}"
            (directory / "boot").unlink()
            for path in directory.glob("*/*.log"):
                if path == max(path.parent.glob("*.log")):
                    with path.open("ab") as file:
                        file.write(bytes(300))

    # --- topics ---

    def create_soon(self, name: str, assignments: Sequence[Sequence[int]], **config: object) -> bytes:
        """As `create`, after a restart of etcd, which a coordinator may not reach yet."""
        until(lambda: self._create(name, assignments, config), f"{name} is created")
        return self.create(name, assignments, **config)

    def _create(self, name: str, assignments: Sequence[Sequence[int]], config: Mapping[str, object]) -> bytes:
        made = self.admin.create_topic(name, assignments=assignments, config=config, exist_ok=True)
        return made.topic_id

    def create(self, name: str, assignments: Sequence[Sequence[int]], **config: object) -> bytes:
        """A topic with these replicas, and wait until each partition leads and all its followers have fetched."""
        topic_id = self._create(name, assignments, config)
        self.wait_in_sync(name)
        until(lambda: self._all_follow(name), f"the replicas of {name} at work")
        return topic_id

    def _all_follow(self, topic: str) -> bool:
        leaders = [log for log in self.admin.describe_logs(topic) if log.is_leader]
        partitions = self.admin.describe_topic(topic).partitions
        return len(leaders) == len(partitions) and all(
            follower.durable_offset >= 0 for log in leaders for follower in log.followers
        )

    def partition(self, topic: str, number: int = 0) -> PartitionDescription:
        return self.admin.describe_topic(topic).partitions[number]

    def leader(self, topic: str, number: int = 0) -> int:
        """The broker that leads; waits for one."""
        return until(lambda: max(self.partition(topic, number).leader_id, 0), f"a leader of {topic}-{number}")

    def leader_address(self, topic: str) -> str:
        """Where the leader of partition 0 is now; after a stop that may be another one a moment later."""
        return self.broker(self.leader(topic)).address

    def wait_for(
        self, topic: str, condition: Callable[[PartitionDescription], object], what: str, number: int = 0
    ) -> PartitionDescription:
        """Wait until a partition is as wanted, and give it."""
        last: list[PartitionDescription] = []

        def look() -> PartitionDescription | None:
            last[:] = [self.partition(topic, number)]
            return last[0] if condition(last[0]) else None

        try:
            return until(look, what)  # type: ignore[return-value]
        except AssertionError as error:
            raise AssertionError(f"{error}; {last}") from None

    def wait_in_sync(self, topic: str, members: Collection[int] | None = None) -> None:
        """Wait until all partitions have a leader and these members (all replicas) in sync, and all logs are equal."""

        def look() -> bool:
            return all(
                part.leader_id >= 0 and set(part.in_sync_replicas) == set(part.replicas if members is None else members)
                for part in self.admin.describe_topic(topic).partitions
            )

        until(look, f"{topic} with {members or 'all replicas'} in sync")

    # --- replicas ---

    def broker(self, broker_id: int) -> LocalService:
        return self.cluster.broker(broker_id)

    def logs(self, topic: str, number: int = 0) -> dict[int, LogInfo]:
        """What each broker says of its replica, by broker id."""
        return {
            log.broker_id: log
            for log in self.admin.describe_logs(topic)
            if (log.topic, log.partition) == (topic, number)
        }

    def log_directory(self, broker_id: int, topic: str, number: int = 0) -> Path:
        """Where a replica lies on the disk."""
        topic_id = self.admin.describe_topic(topic).topic_id
        return self.cluster.directory / f"broker-{broker_id}" / f"{topic_id.hex()}-{number}"

    def values(self, broker_id: int, topic: str, number: int = 0) -> list[bytes | None]:
        """Every visible record of one replica, leader or not, in order."""
        with grpc.insecure_channel(self.broker(broker_id).address, options=LOCAL_CHANNEL) as channel:
            stub = broker_pb2_grpc.BrokerServiceStub(channel)
            found: list[bytes | None] = []
            offset = self.logs(topic, number)[broker_id].log_start_offset
            while True:
                wanted = [pb.PartitionFetch(partition=number, offset=offset)]
                topics = [pb.TopicFetch(topic=topics_pb2.TopicRef(name=topic), partitions=wanted)]
                answer = stub.Fetch(pb.FetchRequest(topics=topics, rack="any"), timeout=10).topics[0].partitions[0]
                assert not answer.HasField("error"), answer.error
                if not answer.batches:
                    return found
                for header, view in iter_batches(answer.batches):
                    found += decode_batch(view, max_payload_bytes=1 << 26).values()[
                        max(offset - header.base_offset, 0) :
                    ]
                    offset = header.end_offset

    def check_replicas_equal(self, topic: str, partitions: int = 1) -> None:
        """Wait until all replicas of each partition are in sync, then compare them record by record (I7)."""
        self.wait_in_sync(topic)
        for number in range(partitions):
            replicas = self.partition(topic, number).replicas
            leader = self.leader(topic, number)
            end = self.logs(topic, number)[leader].high_watermark
            until(
                lambda: {log.high_watermark for log in self.logs(topic, number).values()} == {end},  # noqa: B023
                f"one high watermark at all replicas of {topic}-{number}",
            )
            contents = {broker_id: self.values(broker_id, topic, number) for broker_id in replicas}
            assert all(content == contents[leader] for content in contents.values()), f"{topic}-{number} differs"

    def metric(self, broker_id: int, name: str) -> float:
        """One of a broker's counters or gauges."""
        return self.broker(broker_id).metrics()[f"headrace_broker_{name}"]

    # --- etcd ---

    def in_etcd(self, work: Callable[[EtcdMetastore, ClusterIdentity], Awaitable[Answer]]) -> Answer:
        """Run `work(metastore, identity)` on the cluster's etcd."""

        async def run() -> Answer:
            async with connected(self.cluster.etcd.endpoint) as metastore:
                return await work(metastore, await read_or_create(metastore, "headrace", "unused"))

        return asyncio.run(run())

    def identity(self) -> ClusterIdentity:
        async def read(_: EtcdMetastore, identity: ClusterIdentity) -> ClusterIdentity:
            return identity

        return self.in_etcd(read)

    def state(self, topic_id: bytes, number: int = 0) -> PartitionState:
        """The partition's key."""

        async def read(metastore: EtcdMetastore, identity: ClusterIdentity) -> PartitionState:
            found = (await metastore.get(identity.keyspace.partition(topic_id, number))).key_value
            assert found is not None
            return decode(found.value)

        return self.in_etcd(read)

    def broker_epoch(self, broker_id: int) -> int:
        """The broker's session."""
        return next(b.broker_epoch for b in self.admin.describe_cluster().brokers if b.broker_id == broker_id)

    def directory_version(self, broker_id: int) -> int:
        """How new etcd says that the broker's data directory is."""

        async def read(metastore: EtcdMetastore, identity: ClusterIdentity) -> int:
            found = (await metastore.get(identity.keyspace.directory(broker_id))).key_value
            assert found is not None
            return metadata_pb2.DirectoryVersion.FromString(found.value).version

        return self.in_etcd(read)

    def register_hand(self, broker_id: int) -> int:
        """Register a broker that a test plays, as one that stops and so joins nothing, and return its session.

        Clients are told broker 1's address, so that administrators who ask every broker get an answer.
        """

        async def write(metastore: EtcdMetastore, identity: ClusterIdentity) -> int:
            key = identity.keyspace.broker(broker_id)
            live = metadata_pb2.BrokerLive(
                broker_id=broker_id, address=self.broker(1).address, internal_address="127.0.0.1:1", draining=True
            )
            await metastore.txn([], [Delete(key)])
            return (await metastore.txn([], [Put(key, live.SerializeToString())])).revision

        session = self.in_etcd(write)
        until(lambda: broker_id in self.sessions().values() and self.broker_epoch(broker_id) == session, "registered")
        until(
            lambda: all(self.revision(part) >= session for part in self.cluster.brokers if part.pid), "brokers know it"
        )
        return session

    def revision(self, broker: LocalService) -> int:
        """How far a broker has read etcd."""
        with grpc.insecure_channel(broker.address, options=LOCAL_CHANNEL) as channel:
            stub = broker_pb2_grpc.BrokerServiceStub(channel)
            return stub.GetMetadata(cluster_pb2.GetMetadataRequest(), timeout=SECONDS).revision

    def unregister_hand(self, broker_id: int) -> None:
        """End what `register_hand` began."""

        async def write(metastore: EtcdMetastore, identity: ClusterIdentity) -> None:
            await metastore.txn([], [Delete(identity.keyspace.broker(broker_id))])

        self.in_etcd(write)
        until(lambda: broker_id not in self.sessions().values(), "unregistered")

    def sessions(self) -> dict[int, int]:
        """Broker epochs of the registered brokers, by id."""
        return {broker.broker_epoch: broker.broker_id for broker in self.admin.describe_cluster().brokers}


LOCAL_CHANNEL = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", 64 << 20)]


# --- producing ---


class Writer:
    """An idempotent producer in a thread, numbers from 0 on over all partitions; every future is kept.

    `window`: how many may be unacknowledged. Stops by itself at the first record that failed for good.
    """

    def __init__(self, servers: str, topic: str, partitions: int, *, window: int = 120, **settings: Any) -> None:
        self.topic, self.partitions = topic, partitions
        self.servers = servers
        self.futures: list[headrace.RecordFuture] = []
        self.acknowledged_at: list[float] = []
        self._stop = threading.Event()
        self._window = window
        self._settings = {"acks": "all", "batch_bytes": 2_000, "linger_ms": 1, **settings}
        self._patience = max(SECONDS, self._settings.get("delivery_timeout_ms", 0) / 1_000)
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self.failure: BaseException | None = None

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(2 * SECONDS)
        assert not self._thread.is_alive(), "the writer does not end"

    def _run(self) -> None:
        try:
            with headrace.Producer(bootstrap_servers=self.servers, **self._settings) as producer:
                number = 0
                while not self._stop.is_set():
                    if number >= self._window:
                        self.futures[number - self._window].result(self._patience)
                    future = producer.send(self.topic, b"%d" % number, partition=number % self.partitions)
                    future.add_done_callback(self._note)
                    self.futures.append(future)
                    number += 1
                    if number % PACE == 0:
                        self._stop.wait(0.03)
                producer.flush(self._patience)
        except BaseException as error:
            self.failure = error

    def _note(self, future: headrace.RecordFuture) -> None:
        if future.exception(0) is None:
            self.acknowledged_at.append(time.monotonic())

    def wait_for(self, acknowledged: int) -> None:
        """Wait until this many more are acknowledged."""
        wanted = len(self.acknowledged_at) + acknowledged
        until(
            lambda: self.failure is not None or len(self.acknowledged_at) >= wanted,
            f"{acknowledged} acknowledged",
            self._patience,
        )
        assert self.failure is None, self.failure

    def longest_gap(self, since: float = 0.0) -> float:
        """The longest time without an acknowledgement, in seconds."""
        times = [at for at in self.acknowledged_at if at >= since]
        return max((after - before for before, after in itertools.pairwise(times)), default=0.0)

    def check(self, replicated: Replicated, starts: Mapping[int, int] | None = None) -> None:
        """I15, I20, I21: everything sent was acknowledged at its offset, in order, and is stored once.

        `starts`: where the partitions begin, whose records below were deleted; nothing of them has come back.
        """
        assert self.failure is None, self.failure
        offsets = [future.result(SECONDS).offset for future in self.futures]
        for partition in range(self.partitions):
            sent = [b"%d" % number for number in range(partition, len(self.futures), self.partitions)]
            start = (starts or {}).get(partition, 0)
            deadline = time.monotonic() + SECONDS
            found = self._read(partition)
            while len(found) < len(sent) - start and time.monotonic() < deadline:
                found = self._read(partition)  # What one replica acknowledged is committed a moment later.
            assert found == [*enumerate(sent)][start:], (
                f"partition {partition}: {len(found)} of {len(sent)} less {start}"
            )
            assert offsets[partition :: self.partitions] == [*range(len(sent))]
        replicated.check_replicas_equal(self.topic, self.partitions)

    def _read(self, partition: int) -> list[tuple[int, bytes]]:
        with headrace.Reader(self.topic, partitions=[partition], bootstrap_servers=self.servers) as reader:
            return [(record.offset, record.value) for record in reader]


class Follower:
    """A consumer in a thread that reads a topic from the start; `values` by partition, in the order they came."""

    def __init__(self, servers: str, topic: str, partitions: int) -> None:
        self.values: dict[int, list[bytes | None]] = {number: [] for number in range(partitions)}
        self.failure: BaseException | None = None
        self._servers, self._topic = servers, topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="follower", daemon=True)

    def __enter__(self) -> Follower:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(SECONDS)
        assert not self._thread.is_alive(), "the consumer does not end"

    def _run(self) -> None:
        try:
            with headrace.Consumer(
                self._topic, bootstrap_servers=self._servers, auto_offset_reset="earliest"
            ) as consumer:
                while not self._stop.is_set():
                    for record in consumer.poll(0.2):
                        self.values[record.partition].append(record.value)
        except BaseException as error:
            self.failure = error

    def wait_for(self, records: int) -> None:
        """Wait until this many have come."""
        until(
            lambda: self.failure is not None or sum(map(len, self.values.values())) >= records,
            f"{records} records consumed",
        )
        assert self.failure is None, self.failure

    def check(self, writer: Writer) -> None:
        """I21: every record that was sent came once, in the order of its partition."""
        assert self.failure is None, self.failure
        for number, values in self.values.items():
            assert values == [b"%d" % n for n in range(number, len(writer.futures), len(self.values))]


def batch(*values: bytes, **fields: Any) -> bytes:
    """A record batch as a client encodes it."""
    return encode_batch(list(values), base_timestamp_ms=fields.pop("base_timestamp_ms", time.time_ns() // 1_000_000))


def produce(
    address: str, topic_id: bytes, *values: bytes, acks: int = pb.ACKS_ALL, partition: int = 0, timeout_ms: int = 5_000
) -> pb.PartitionProduceResult:
    """One batch to one broker, whatever it answers; acks none is answered by nothing."""
    with grpc.insecure_channel(address, options=LOCAL_CHANNEL) as channel:
        part = pb.PartitionProduce(partition=partition, batches=[batch(*values)])
        topics = [pb.TopicProduce(topic=topics_pb2.TopicRef(topic_id=topic_id), partitions=[part])]
        request = pb.ProduceRequest(acks=acks, timeout_ms=timeout_ms, topics=topics)  # type: ignore[arg-type]
        answer = broker_pb2_grpc.BrokerServiceStub(channel).Produce(request, timeout=SECONDS, wait_for_ready=True)
        if acks == pb.ACKS_NONE:
            return pb.PartitionProduceResult()
        result: pb.PartitionProduceResult = answer.topics[0].partitions[0]
        return result


def append(address: str | Callable[[], str], topic_id: bytes, *values: bytes, **fields: Any) -> int:
    """One batch to a broker that leads or is about to, looked up again at each try; the offset of its first record."""
    answers: list[pb.PartitionProduceResult] = []

    def attempt() -> bool:
        to = address if isinstance(address, str) else address()
        answers[:] = [produce(to, topic_id, *values, **fields)]
        refused = answers[0].HasField("error")
        assert not refused or answers[0].error.outcome == Outcome.NOT_APPLIED, answers[0].error
        return not refused

    until(attempt, "an append")
    return int(answers[0].base_offsets[0])


def fetch(address: str, topic_id: bytes, offset: int, partition: int = 0, **fields: Any) -> pb.PartitionFetchResult:
    """One consumer's fetch at one broker."""
    rack = fields.pop("rack", "")
    with grpc.insecure_channel(address, options=LOCAL_CHANNEL) as channel:
        wanted = [pb.PartitionFetch(partition=partition, offset=offset, **fields)]
        topics = [pb.TopicFetch(topic=topics_pb2.TopicRef(topic_id=topic_id), partitions=wanted)]
        request = pb.FetchRequest(topics=topics, rack=rack)
        answer = broker_pb2_grpc.BrokerServiceStub(channel).Fetch(request, timeout=SECONDS, wait_for_ready=True)
        result: pb.PartitionFetchResult = answer.topics[0].partitions[0]
        return result


# --- a follower by hand ---


class HandFollower(HandStream):
    """A stream to a leader whose messages a test writes; a heartbeat goes out whenever it waits."""

    def challenge(self) -> bytes:
        """Return the leader's challenge, its first message."""
        challenge = self.answers.get(timeout=SECONDS)
        assert isinstance(challenge, bytes), challenge
        return challenge

    def identify(
        self, identity: ClusterIdentity, broker_id: int, broker_epoch: int, leader_id: int = 1, **other: Any
    ) -> None:
        """The first message, to `leader_id`; `proof` in place of the right one."""
        own = Replica(broker_id, broker_epoch)
        follower = internal.FollowerIdentity(
            proof=other.get("proof", prove(identity, own, leader_id, self.challenge())),
            cluster_id=other.get("cluster_id", identity.cluster_id),
            generation=other.get("generation", identity.generation),
            broker_id=broker_id,
            broker_epoch=broker_epoch,
        )
        self.send(internal.ReplicaFetchRequest(follower=follower))

    def fetch(self, topic_id: bytes, partition: int = 0, **fetch_fields: Any) -> None:
        """One fetch, as of the newest key."""
        fields = {"last_epoch": -1, "token": 1, "partition_epoch": 1 << 40, **fetch_fields}
        entry = internal.PartitionReplicaFetch(partition=partition, **fields)
        topic = internal.TopicReplicaFetch(topic_id=topic_id, partitions=[entry])
        self.send(internal.ReplicaFetchRequest(topics=[topic]))

    def answer(self) -> HandResult:
        """The next answer to a fetch; heartbeats are passed over, and one is sent for each."""
        deadline = time.monotonic() + SECONDS
        while True:
            results = self.answers.get(timeout=max(deadline - time.monotonic(), 0.01))
            assert isinstance(results, list), results
            if results:
                (result,) = results
                return result
            self.send(internal.ReplicaFetchRequest())

    def ask(self, topic_id: bytes, partition: int = 0, **fields: Any) -> HandResult:
        """One fetch and its answer."""
        self.fetch(topic_id, partition, **fields)
        return self.answer()

    def end(self, *, alive: bool = False) -> HeadraceError | None:
        """What ended the stream: an error, or `None` for a clean end. `alive`: heartbeats continue."""
        deadline = time.monotonic() + SECONDS
        while True:
            found = self.answers.get(timeout=max(deadline - time.monotonic(), 0.01))
            if found is None or isinstance(found, HeadraceError):
                return found
            if alive:
                self.send(internal.ReplicaFetchRequest())


@contextmanager
def follower_at(address: str) -> Iterator[HandFollower]:
    """A stream to a broker, closed whatever happens."""
    follower = HandFollower(address)
    try:
        yield follower
    finally:
        follower.close()
