"""A cluster over lists, behind real gRPC: a broker and a coordinator on one port, with faults on order; more may join.

It keeps the contract of the real broker (tests/contract/test_broker_contract.py).

All brokers of a cluster share its logs, as if replication took no time; only a partition's leader serves it. The
broker checks batches as the real one does, keeps sequences by its own, simpler rule (every batch ever appended by
producer, epoch and partition), and appends under one lock. Faults are taken from a queue, one a Produce call.
"""

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager

import grpc
import numpy as np
from headrace.v1 import broker_pb2, broker_pb2_grpc, cluster_pb2, cluster_pb2_grpc
from headrace.wire.batch import STAMP_BYTES, BatchHeader, check_batch, iter_batches, stamp
from headrace.wire.columns import decode_batch
from headrace.wire.errors import (
    STATUS_DETAILS_KEY,
    HeadraceError,
    LeaderHint,
    NotLeaderError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceError,
    UnknownProducerError,
    UnknownTopicError,
    UnknownTopicIdError,
    to_detail,
    to_status_bytes,
)
from headrace.wire.ids import PRODUCER_FAMILY_BITS

from tests.fakes.identity import FakeIdentity

CREATED_MS = 1_700_000_000_000


class FakePartition:
    """One log: whole batches, and what producers have appended."""

    def __init__(self) -> None:
        self.batches: list[tuple[BatchHeader, bytes]] = []
        self.start = 0
        self.end = 0
        self.epoch = 0
        self.sequences: dict[int, tuple[int, int]] = {}
        self.appended: dict[tuple[int, int, int], int] = {}
        self.repeats = 0
        """Batches that came again."""
        self.spoiled = 0
        """The number of answers to send with a bit flipped in their last batch."""
        self.corruption_reported = 0
        """Fetches that said so."""

    def truncate(self, offset: int) -> None:
        """Elect a replica that lacks what is from `offset` on, a batch's base."""
        self.batches = [(header, batch) for header, batch in self.batches if header.end_offset <= offset]
        self.end = offset
        self.epoch += 1

    def diverged(self, offset: int, last_epoch: int) -> tuple[int, int] | None:
        """Largest epoch that is not above `last_epoch`, and its end, where that is not a prefix of this log."""
        ends = [(header.leader_epoch, header.end_offset) for header, _ in self.batches]
        epoch, end = max((entry for entry in ends if entry[0] <= last_epoch), default=(-1, 0))
        return None if epoch < 0 or (epoch == last_epoch and end >= offset) else (epoch, end)

    def append(self, batch: bytes) -> int:
        """Append a batch as a leader does and return its base offset."""
        header = check_batch(batch, max_batch_bytes=2**26, max_records=10**6, max_payload_bytes=2**27)
        if header.producer_id >= 0:
            key = (header.producer_id, header.producer_epoch, header.base_sequence)
            if key in self.appended:
                self.repeats += 1
                return self.appended[key]
            epoch, expected = self.sequences.get(header.producer_id, (-1, 0))
            if header.producer_epoch > epoch:
                expected = 0
            if header.producer_id not in self.sequences and header.base_sequence > 0:
                raise UnknownProducerError("no sequence of this producer is known")
            if header.producer_epoch < epoch or header.base_sequence != expected:
                raise OutOfOrderSequenceError(f"expected {expected}, got {header.base_sequence}")
            self.sequences[header.producer_id] = (header.producer_epoch, expected + header.record_count)
            self.appended[key] = self.end
        head = stamp(
            header, base_offset=self.end, append_timestamp_ms=CREATED_MS, leader_epoch=self.epoch, previous_crc=0
        )
        stored = head + batch[STAMP_BYTES:]
        self.batches.append((next(iter(iter_batches(stored)))[0], stored))
        base, self.end = self.end, self.end + header.record_count
        return base

    def appended_by(self, producer: broker_pb2.ProducerIdentity, family: bool) -> tuple[int, int]:
        """Between which offsets a producer, or its family, has appended in its epoch."""
        shift = PRODUCER_FAMILY_BITS if family else 0
        found = [
            header
            for header, _ in self.batches
            if header.producer_id >> shift == producer.producer_id >> shift
            and header.producer_epoch == producer.producer_epoch
        ]
        return (found[0].base_offset, found[-1].end_offset) if found else (-1, 0)

    def values(self) -> list[bytes | None]:
        """The values of all records, in order."""
        return [value for _, batch in self.batches for value in decode_batch(batch, max_payload_bytes=2**27).values()]

    def keys(self) -> list[bytes | None]:
        """The keys of all records, in order."""
        return [key for _, batch in self.batches for key in decode_batch(batch, max_payload_bytes=2**27).keys()]


class FakeTopic:
    """A topic and the logs of its partitions."""

    def __init__(self, name: str, topic_id: bytes, partitions: int, max_batch_bytes: int) -> None:
        self.name, self.topic_id, self.max_batch_bytes = name, topic_id, max_batch_bytes
        self.columns = ""
        """Those of a typed topic."""
        self.partitions = [FakePartition() for _ in range(partitions)]


Fault = Callable[["FakeCluster", broker_pb2.ProduceRequest, grpc.ServicerContext], broker_pb2.ProduceResponse | None]
"""Returns the answer in place of the broker's own; `None` means the usual answer."""


def lost_answer(cluster: "FakeCluster", request: broker_pb2.ProduceRequest, context: grpc.ServicerContext) -> None:
    """The batches are appended, the answer never comes."""
    cluster.produce(request)
    context.abort(grpc.StatusCode.UNAVAILABLE, "connection reset")


def lost_request(cluster: "FakeCluster", request: broker_pb2.ProduceRequest, context: grpc.ServicerContext) -> None:
    """The connection breaks before anything is appended."""
    context.abort(grpc.StatusCode.UNAVAILABLE, "connection reset")


def refused_with(error: HeadraceError) -> Fault:
    """Every partition of the request is refused with `error`; nothing is appended."""

    def fault(
        cluster: "FakeCluster", request: broker_pb2.ProduceRequest, context: grpc.ServicerContext
    ) -> broker_pb2.ProduceResponse:
        response = broker_pb2.ProduceResponse()
        for topic in request.topics:
            entry = response.topics.add(topic_id=topic.topic.topic_id)
            for part in topic.partitions:
                entry.partitions.add(partition=part.partition, error=to_detail(error))
        return response

    return fault


def call_fails_with(error: HeadraceError, status: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE) -> Fault:
    """The whole call fails with a typed error; nothing is appended."""

    def fault(cluster: "FakeCluster", request: broker_pb2.ProduceRequest, context: grpc.ServicerContext) -> None:
        context.set_trailing_metadata(((STATUS_DETAILS_KEY, to_status_bytes(error)),))
        context.abort(status, error.message)

    return fault


class FakeCluster(broker_pb2_grpc.BrokerServiceServicer, cluster_pb2_grpc.ClusterServiceServicer):
    """Starts on a port of the kernel's choice."""

    def __init__(self, first: "FakeCluster | None" = None, identity: FakeIdentity | None = None) -> None:
        """`first` is the broker whose cluster this one joins; `identity` refuses calls without a session."""
        self.first = first or self
        self.topics: dict[str, FakeTopic] = first.topics if first else {}
        self.lock: threading.Lock = first.lock if first else threading.Lock()
        self.leaders: dict[tuple[str, int], int] = first.leaders if first else {}
        """Broker id by partition, where it is not 1."""
        self.addresses: dict[int, str] = first.addresses if first else {}
        self.appended: threading.Condition = first.appended if first else threading.Condition()
        self.leaderless: set[tuple[str, int]] = first.leaderless if first else set()
        self.broker_id = len(self.addresses) + 1
        self.racks: dict[str, int] = {}
        """Of the first broker: which one its leaders name to readers of a rack. All serve readers that name one."""
        self.faults: deque[Fault] = deque()
        self.calls: dict[str, int] = defaultdict(int)
        self.requests: list[broker_pb2.ProduceRequest] = []
        self.producer_ids = 0
        self.hold = threading.Event()
        self.hold.set()
        self.arrived = threading.Semaphore(0)
        self.coordinator_down = False
        self.native_addresses: dict[int, str] = {}
        """By broker id; without one a broker serves gRPC alone."""
        self.coordinators: list[str] = []
        """Named by metadata; empty: this one."""
        self._server = grpc.server(
            futures.ThreadPoolExecutor(32),
            interceptors=[] if identity is None else [identity],
            options=(("grpc.max_receive_message_length", 2**25), ("grpc.max_send_message_length", 2**25)),
        )
        if identity is not None:
            identity.serve_at(self._server)
        broker_pb2_grpc.add_BrokerServiceServicer_to_server(self, self._server)
        cluster_pb2_grpc.add_ClusterServiceServicer_to_server(self, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self.addresses[self.broker_id] = self.address
        self._server.start()
        self._created = 0

    def create_topic(self, name: str, partitions: int = 1, max_batch_bytes: int = 1 << 20) -> FakeTopic:
        """Add a topic that every fake of this cluster serves."""
        self._created += 1
        topic = FakeTopic(name, self._created.to_bytes(16, "big"), partitions, max_batch_bytes)
        self.topics[name] = topic
        return topic

    def stop(self) -> None:
        """Break all connections; the port refuses new ones."""
        self.hold.set()
        self._server.stop(0).wait()

    def move_leader(self, topic: str, broker_id: int, partition: int = 0) -> None:
        """Let another broker lead, in a new epoch."""
        with self.lock:
            self.leaders[topic, partition] = broker_id
            self.topics[topic].partitions[partition].epoch += 1
        with self.appended:
            self.appended.notify_all()

    def not_leader(self, topic: str, partition: int) -> NotLeaderError | None:
        """What this broker says of a partition that another one leads."""
        leader = self.leaders.get((topic, partition), 1)
        if leader == self.broker_id:
            return None
        hint = LeaderHint(leader, self.topics[topic].partitions[partition].epoch, self.addresses[leader])
        return NotLeaderError("another broker leads it", leader=hint)

    def append(self, topic: str, batch: bytes, partition: int = 0) -> int:
        """Append behind the clients' backs."""
        with self.lock:
            base = self.topics[topic].partitions[partition].append(batch)
        with self.appended:
            self.appended.notify_all()
        return base

    def GetMetadata(
        self, request: cluster_pb2.GetMetadataRequest, context: grpc.ServicerContext
    ) -> cluster_pb2.GetMetadataResponse:
        """Answer for topics and brokers, or with the next fault."""
        assert self.hold.wait(30)
        self.calls["GetMetadata"] += 1
        response = cluster_pb2.GetMetadataResponse(
            cluster_id="fake", coordinators=self.coordinators or [self.address], answered_by="fake"
        )
        for broker_id, address in self.addresses.items():
            native_address = self.first.native_addresses.get(broker_id, "")
            response.brokers.add(broker_id=broker_id, address=address, native_address=native_address)
        if request.brokers_only:
            return response
        by_id = {topic.topic_id: name for name, topic in self.topics.items()}
        names = [ref.name or by_id.get(ref.topic_id, "") for ref in request.topics] or list(self.topics)
        for name in names:
            topic = self.topics.get(name)
            if topic is None:
                response.topics.add(name=name, error=to_detail(UnknownTopicError(f"no topic {name}")))
                continue
            entry = response.topics.add(
                name=name, topic_id=topic.topic_id, max_batch_bytes=topic.max_batch_bytes, columns=topic.columns
            )
            for number, partition in enumerate(topic.partitions):
                leader = -1 if (name, number) in self.leaderless else self.leaders.get((name, number), 1)
                entry.partitions.add(
                    partition=number, leader_id=leader, leader_epoch=partition.epoch, replicas=[1], in_sync_replicas=[1]
                )
        return response

    def InitProducerId(
        self, request: cluster_pb2.InitProducerIdRequest, context: grpc.ServicerContext
    ) -> cluster_pb2.InitProducerIdResponse:
        """Assign the next producer id."""
        self.calls["InitProducerId"] += 1
        if self.coordinator_down:
            context.abort(grpc.StatusCode.UNAVAILABLE, "the coordinator is away")
        with self.lock:
            self.first.producer_ids += 1
            return cluster_pb2.InitProducerIdResponse(producer_id=self.first.producer_ids, producer_epoch=0)

    def Produce(self, request: broker_pb2.ProduceRequest, context: grpc.ServicerContext) -> broker_pb2.ProduceResponse:
        """Check, deduplicate and append, as a leader does."""
        self.arrived.release()
        assert self.hold.wait(30)
        with self.lock:
            self.calls["Produce"] += 1
            self.requests.append(request)
            fault = self.faults.popleft() if self.faults else None
            answer = fault(self, request, context) if fault is not None else None
            answer = answer or self.produce(request)
            if request.acks == broker_pb2.ACKS_NONE:
                answer = broker_pb2.ProduceResponse()
        with self.appended:
            self.appended.notify_all()
        return answer

    def produce(self, request: broker_pb2.ProduceRequest) -> broker_pb2.ProduceResponse:
        """Append what a request carries; the lock is held."""
        response = broker_pb2.ProduceResponse()
        by_id = {topic.topic_id: topic for topic in self.topics.values()}
        for topic in request.topics:
            entry = response.topics.add(topic_id=topic.topic.topic_id)
            for part in topic.partitions:
                result = entry.partitions.add(partition=part.partition, append_timestamp_ms=CREATED_MS)
                found = by_id.get(topic.topic.topic_id)
                if found is None:
                    result.error.CopyFrom(to_detail(UnknownTopicIdError("no such topic id")))
                    continue
                partition = found.partitions[part.partition]
                result.leader_epoch = partition.epoch
                moved = self.not_leader(found.name, part.partition)
                if moved is not None:
                    result.error.CopyFrom(to_detail(moved))
                    continue
                if part.leader_epoch not in (-1, partition.epoch):
                    hint = LeaderHint(1, partition.epoch, self.address)
                    result.error.CopyFrom(to_detail(NotLeaderError("another epoch", leader=hint)))
                    continue
                repeats = partition.repeats
                try:
                    for batch in part.batches:
                        result.base_offsets.append(partition.append(batch))
                    result.repeated_batches = partition.repeats > repeats
                except HeadraceError as error:
                    result.error.CopyFrom(to_detail(error))
        return response

    def Fetch(self, request: broker_pb2.FetchRequest, context: grpc.ServicerContext) -> broker_pb2.FetchResponse:
        """Return whole batches, waiting for the first one."""
        with self.appended:
            self.calls["Fetch"] += 1
            self.appended.notify_all()
        assert self.hold.wait(30)
        with self.appended:
            self.appended.wait_for(
                lambda: self._fetchable(request) or not context.is_active(), request.max_wait_ms / 1000
            )
        with self.lock:
            return self._fetch(request)

    def wait_for_fetch(self, timeout: float) -> None:
        """Wait until the next fetch is accepted, which does not have its answer then."""
        with self.appended:
            seen = self.calls["Fetch"]
            assert self.appended.wait_for(lambda: self.calls["Fetch"] > seen, timeout)

    def _fetchable(self, request: broker_pb2.FetchRequest) -> bool:
        response = self._fetch(request, only_looks=True)
        return any(
            part.batches or part.HasField("error") or part.HasField("diverged") or part.preferred_replica >= 0
            for topic in response.topics
            for part in topic.partitions
        )

    def _fetch(self, request: broker_pb2.FetchRequest, *, only_looks: bool = False) -> broker_pb2.FetchResponse:
        response = broker_pb2.FetchResponse()
        by_id = {topic.topic_id: topic for topic in self.topics.values()}
        for topic in request.topics:
            found = by_id.get(topic.topic.topic_id)
            entry = response.topics.add(topic_id=topic.topic.topic_id, name=found.name if found else "")
            for part in topic.partitions:
                result = entry.partitions.add(partition=part.partition, preferred_replica=-1)
                if found is None:
                    result.error.CopyFrom(to_detail(UnknownTopicIdError("no such topic id")))
                    continue
                log = found.partitions[part.partition]
                result.high_watermark, result.log_start_offset, result.leader_epoch = log.end, log.start, log.epoch
                moved = self.not_leader(found.name, part.partition)
                if moved is not None and not request.rack:
                    result.error.CopyFrom(to_detail(moved))
                    continue
                near = self.first.racks.get(request.rack, self.broker_id)
                if near != self.broker_id:
                    result.preferred_replica = near
                    continue
                log.corruption_reported += part.corruption_detected and not only_looks
                diverged = log.diverged(part.offset, part.last_epoch) if part.HasField("last_epoch") else None
                if diverged is not None:
                    result.diverged.leader_epoch, result.diverged.end_offset = diverged
                    continue
                if not log.start <= part.offset <= log.end:
                    result.error.CopyFrom(to_detail(OffsetOutOfRangeError(f"{part.offset} of {log.start}..{log.end}")))
                    continue
                size = 0
                chosen: list[bytes] = []
                for header, batch in log.batches:
                    if header.end_offset > part.offset and (not chosen or size + len(batch) <= part.max_bytes):
                        chosen.append(batch)
                        size += len(batch)
                if chosen and log.spoiled and not only_looks:
                    log.spoiled -= 1
                    chosen[-1] = chosen[-1][:-1] + bytes([chosen[-1][-1] ^ 1])
                result.batches = b"".join(chosen)
        return response

    def ListOffsets(
        self, request: broker_pb2.ListOffsetsRequest, context: grpc.ServicerContext
    ) -> broker_pb2.ListOffsetsResponse:
        """Look offsets up by time or at an end."""
        self.calls["ListOffsets"] += 1
        response = broker_pb2.ListOffsetsResponse()
        by_id = {topic.topic_id: topic for topic in self.topics.values()}
        for topic in request.topics:
            found = by_id[topic.topic.topic_id]
            entry = response.topics.add(topic_id=found.topic_id, name=found.name)
            for part in topic.partitions:
                log = found.partitions[part.partition]
                offset = {broker_pb2.OFFSET_SPEC_EARLIEST: log.start, broker_pb2.OFFSET_SPEC_LATEST: log.end}.get(
                    part.spec
                )
                result = entry.partitions.add(partition=part.partition, timestamp_ms=-1, leader_epoch=log.epoch)
                if part.HasField("producer"):
                    family = part.spec == broker_pb2.OFFSET_SPEC_PRODUCER_FAMILY
                    try:
                        result.offset, result.end_offset = log.appended_by(part.producer, family)
                    except HeadraceError as error:
                        result.error.CopyFrom(to_detail(error))
                else:
                    result.offset = _at_time(log, part.timestamp_ms) if offset is None else offset
        return response


def _at_time(log: FakePartition, when_ms: int) -> int:
    for _, batch in log.batches:
        columns = decode_batch(batch, max_payload_bytes=2**27)
        hits = np.flatnonzero(np.array(columns.timestamps()) >= when_ms)
        if len(hits):
            return columns.offsets()[int(hits[0])]
    return log.end


@contextmanager
def running_fake() -> Iterator[FakeCluster]:
    """A fake cluster that stops with the block."""
    fake = FakeCluster()
    try:
        yield fake
    finally:
        fake.stop()
