"""Clients: idempotent producers that retry, consumers of leaders and of followers. What they saw is their history.

A batch keeps its sequence until its outcome is certain (H51); an error counts as definite only where no attempt was
left without an answer (H52, I22). Producers of some seeds give up at a definite error: what they report as failed must
not stand in any log. Records are named `producer.epoch.sequence`, which stands in every batch's header.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.v1 import broker_pb2, topics_pb2
from headrace.wire.batch import check_batch, iter_batches
from headrace.wire.columns import encode_batch
from headrace.wire.crc import ReadableBuffer
from headrace.wire.envelopes import parse_fetch_response, produce_request_bytes
from headrace.wire.errors import CorruptBatchError, ErrorCode, HeadraceError, Outcome, from_detail
from headrace_broker.storage.directory import LogId

from tests.simulation.exercise import CHECKED
from tests.simulation.history import FAIL, OK, UNKNOWN, Poll, Send
from tests.simulation.world import SimulationError

if TYPE_CHECKING:
    from tests.simulation.broker import Broker
    from tests.simulation.cluster import Cluster

ANSWER_MS = 700
"""A client waits so long for an answer."""
MAX_IN_FLIGHT = 3
READ_BYTES = 900
PRODUCE = "/headrace.v1.BrokerService/Produce"
FETCH = "/headrace.v1.BrokerService/Fetch"
ACKS = {-1: broker_pb2.ACKS_ALL, 0: broker_pb2.ACKS_NONE, 1: broker_pb2.ACKS_LEADER}
VALUES = (b"0123456789abcdef", b"0123456789abcdef" * 3, b"01234567")


def produce_request(key: LogId, batch: bytes, known_epoch: int, acks: int) -> bytes:
    """One batch for one partition."""
    request = broker_pb2.ProduceRequest(acks=ACKS[acks], timeout_ms=30_000)
    part = request.topics.add(topic=topics_pb2.TopicRef(topic_id=key.topic_id)).partitions.add(partition=key.partition)
    if known_epoch >= 0:
        part.leader_epoch = known_epoch
    return produce_request_bytes(request, [[batch]])


def read_produce(answer: bytes | HeadraceError) -> int | HeadraceError:
    """The base offset of the one batch, or the error."""
    if isinstance(answer, HeadraceError):
        return answer
    topics = broker_pb2.ProduceResponse.FromString(answer).topics
    if not topics:
        return -1  # Nobody asked to be told.
    result = topics[0].partitions[0]
    return from_detail(result.error) if result.HasField("error") else result.base_offsets[0]


@dataclass(slots=True)
class _Batch:
    """One batch until its outcome is certain."""

    key: LogId
    sequence: int
    count: int
    data: bytes
    epoch: int
    sent_at: int
    attempts: int = 0
    uncertain: bool = False
    """An attempt went without an answer."""
    done: bool = False
    refusals: int = 0


@dataclass(slots=True)
class _Target:
    """One partition, as a producer writes to it."""

    next_sequence: int = 0
    epoch: int = 0
    in_flight: list[_Batch] = field(default_factory=list)


class Producer:
    """One producer; `acks` as in the protocol: 0, 1, or -1 for all."""

    def __init__(self, cluster: Cluster, number: int, acks: int, period_ms: int) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.name = f"w{number}"
        self.process = cluster.world.start_process(self.name)
        self.producer_id = 1_000 + number
        self.acks = acks
        self.period_ms = period_ms
        self.sending = True
        self.acknowledged = 0
        self._chance = cluster.world.chance(f"producer/{number}")
        self._targets: dict[LogId, _Target] = {}

    def start(self) -> None:
        """Begin to send."""
        self.world.after(1 + self._chance.randrange(self.period_ms), self.process, "", self._next)

    @property
    def waits(self) -> bool:
        """Whether any batch's outcome is open."""
        return any(target.in_flight for target in self._targets.values())

    def _next(self) -> None:
        if self.sending:
            self.world.after(1 + self._chance.randrange(2 * self.period_ms), self.process, "", self._next)
            partitions = self.cluster.partitions
            if partitions:
                key = partitions[self._chance.randrange(len(partitions))]
                if len(self._target(key).in_flight) < MAX_IN_FLIGHT:
                    self.send(key)

    def _target(self, key: LogId) -> _Target:
        return self._targets.setdefault(key, _Target())

    def send(self, key: LogId) -> None:
        """Send a batch of a few records."""
        target = self._target(key)
        count = 1 + self._chance.randrange(3)
        value = VALUES[self._chance.randrange(len(VALUES))]
        data = encode_batch(
            [value] * count,
            base_timestamp_ms=1_700_000_000_000,
            producer_id=self.producer_id,
            producer_epoch=target.epoch,
            base_sequence=target.next_sequence,
        )
        batch = _Batch(key, target.next_sequence, count, data, target.epoch, self.cluster.next_order())
        target.next_sequence += count
        target.in_flight.append(batch)
        self.world.count("batches sent")
        self._attempt(batch)

    def _attempt(self, batch: _Batch) -> None:
        if batch.done:
            return
        batch.attempts += 1
        attempt = batch.attempts
        leader = self.cluster.leader_for(self._chance, batch.key)
        if leader is None:
            self._retry(batch)
            return
        broker, epoch = leader
        timeout = self.world.after(ANSWER_MS, self.process, "", lambda: self._take(batch, attempt, None))

        name = self.cluster.name_of(batch.key)

        def given(answer: bytes | HeadraceError) -> str:
            result = read_produce(answer)
            if isinstance(result, HeadraceError):
                return f"{name} answer to sequence {batch.sequence}: {type(result).__name__}"
            if self.acks == -1:
                self.cluster.answered(broker, batch.key, result, batch.count)
            return f"{name} answer to sequence {batch.sequence}: offset {result}"

        def take(answer: bytes | HeadraceError) -> None:
            timeout.cancel()
            self._take(batch, attempt, read_produce(answer))

        self.cluster.transport.call(
            self.process,
            broker.address,
            PRODUCE,
            produce_request(batch.key, batch.data, epoch, self.acks),
            30_000,
            take,
            what=f"{name} produce of {self.name} sequence {batch.sequence}+{batch.count}",
            at_server=given,
        )
        if self.acks == 0:
            timeout.cancel()
            self._end(batch, UNKNOWN, -1)

    def _take(self, batch: _Batch, attempt: int, result: int | HeadraceError | None) -> None:
        """Take the answer of an attempt; None: there was none in time."""
        if batch.done:
            return
        if isinstance(result, int):
            self.acknowledged += 1
            self.world.count("acknowledged")
            self._end(batch, OK, result)
            return
        if attempt != batch.attempts:
            if result is None or result.outcome is not Outcome.NOT_APPLIED:
                batch.uncertain = True
            return
        if result is None or result.outcome is not Outcome.NOT_APPLIED:
            batch.uncertain = True
        elif result.code in (ErrorCode.OUT_OF_ORDER_SEQUENCE, ErrorCode.UNKNOWN_PRODUCER):
            batch.refusals += 1
            if batch.refusals > 3 and self._may_begin_epoch(batch, result.code):
                self._begin_epoch(batch)
                return
        elif self.cluster.plan.gives_up and not batch.uncertain:
            self._give_up_at(batch, result.code)
            return
        self._retry(batch)

    def _give_up_at(self, batch: _Batch, code: ErrorCode) -> None:
        """Report a batch as failed: no attempt was written. Its sequence stays missing, so a new epoch begins."""
        self.world.count("batches failed for certain")
        self.world.count(f"batches failed for certain: {code.name}")
        self._end(batch, FAIL, -1)
        self._begin_epoch(batch)

    def _retry(self, batch: _Batch) -> None:
        self.world.after(40 + self._chance.randrange(120), self.process, "", lambda: self._attempt(batch))

    def _may_begin_epoch(self, batch: _Batch, code: ErrorCode) -> bool:
        """Whether records before the oldest batch may be gone: acks=1 allows it, and retention (H49)."""
        if self._targets[batch.key].in_flight[0] is not batch:
            return False
        if self.cluster.checks.partitions[batch.key].unclean:
            return True
        return self.acks != -1 or (code is ErrorCode.UNKNOWN_PRODUCER and self.cluster.log_start(batch.key) > 0)

    def _begin_epoch(self, batch: _Batch) -> None:
        """Give up what is in flight and begin a new epoch."""
        target = self._targets[batch.key]
        for each in list(target.in_flight):
            self._end(each, UNKNOWN, -1)
        target.epoch += 1
        target.next_sequence = 0
        self.world.count("producer epochs begun")

    def _end(self, batch: _Batch, outcome: str, offset: int) -> None:
        batch.done = True
        self._targets[batch.key].in_flight.remove(batch)
        values = tuple(f"{self.producer_id}.{batch.epoch}.{batch.sequence + index}" for index in range(batch.count))
        number, promised = self.cluster.number_of(batch.key), self._is_promised and outcome == OK
        self.cluster.sends.append(
            Send(self.name, number, values, outcome, offset, promised, batch.sent_at, self.world.now_ms)
        )

    @property
    def _is_promised(self) -> bool:
        """Whether what is acknowledged stays: with acks=1 while leaderships move in order only (H24)."""
        return self.acks == -1 or (self.acks == 1 and self.cluster.plan.is_orderly)

    def give_up(self) -> None:
        """End what is still open: its topic is gone."""
        for target in self._targets.values():
            for batch in list(target.in_flight):
                self._end(batch, UNKNOWN if batch.uncertain or batch.attempts else FAIL, -1)


class Consumer:
    """Reads one partition from its beginning, from the leader or from any replica."""

    def __init__(self, cluster: Cluster, number: int, partition: int, *, follower: bool, period_ms: int) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.name = f"r{number}"
        self.process = cluster.world.start_process(self.name)
        self.partition = partition
        self.follower = follower
        self.period_ms = period_ms
        self.key: LogId | None = None
        self.position = 0
        self.last_epoch = -1
        self.truncated = 0
        self._chance = cluster.world.chance(f"consumer/{number}")
        self._fetch = 0
        self._moved = False
        self._found_damage = False

    def start(self) -> None:
        """Begin to read."""
        self.world.after(1 + self._chance.randrange(self.period_ms), self.process, "", self._next)

    def _next(self) -> None:
        self._fetch += 1
        number = self._fetch
        self.world.after(ANSWER_MS if number % 8 == 0 else self.period_ms, self.process, "", self._next)
        if not self.cluster.partitions:
            return
        key = self.cluster.partitions[self.partition]
        if key != self.key:  # The topic was made anew.
            self.key = key
            self._move(0)
        broker = self._choose(key)
        if broker is None:
            return
        offset = self.position
        request = broker_pb2.FetchRequest(max_bytes=READ_BYTES, rack="elsewhere" if self.follower else "")
        part = request.topics.add(topic=topics_pb2.TopicRef(topic_id=key.topic_id)).partitions.add(
            partition=key.partition, offset=offset, found_damage=self._found_damage
        )
        self._found_damage = False
        if self.last_epoch >= 0:
            part.last_epoch = self.last_epoch
        self.cluster.transport.call(
            self.process,
            broker.address,
            FETCH,
            request.SerializeToString(),
            ANSWER_MS,
            lambda answer: self._take(broker.node.name, number, key, offset, answer),
        )

    def _choose(self, key: LogId) -> Broker | None:
        if not self.follower:
            leader = self.cluster.leader_for(self._chance, key)
            return None if leader is None else leader[0]
        nodes = list(self.cluster.brokers.values())
        return nodes[self._chance.randrange(len(nodes))].broker

    def _take(self, broker: str, number: int, key: LogId, offset: int, answer: bytes | HeadraceError) -> None:
        if number != self._fetch or offset != self.position or key != self.key or isinstance(answer, HeadraceError):
            return  # It fetched again meanwhile, or is to fetch elsewhere.
        envelope = parse_fetch_response(answer)
        result = envelope.message.topics[0].partitions[0]
        if result.HasField("error"):
            gone = from_detail(result.error).code is ErrorCode.OFFSET_OUT_OF_RANGE
            if gone and result.log_start_offset > self.position:
                self._move(result.log_start_offset)  # Removed by retention.
        elif result.HasField("diverged"):
            self.truncated += 1
            self.world.count("truncations that readers learnt of")
            if not self.cluster.checks.partitions[key].unclean:
                raise SimulationError(
                    "I1", f"{self.name} read {self.cluster.name_of(key)} up to {offset} of epoch {self.last_epoch}; "
                    f"{broker} parts from that: {result.diverged}",
                )  # fmt: skip
            self._move(result.diverged.end_offset)
        else:
            self._read(broker, key, offset, result.high_watermark, envelope.batches[0][0])

    def _read(self, broker: str, key: LogId, offset: int, high_watermark: int, batches: ReadableBuffer) -> None:
        records: list[tuple[int, str]] = []
        try:
            for header, view in iter_batches(batches):
                check_batch(view, max_batch_bytes=1 << 20, max_records=100, max_payload_bytes=1 << 20)
                first = max(0, offset - header.base_offset)
                producer = f"{header.producer_id}.{header.producer_epoch}"
                records += [
                    (header.base_offset + index, f"{producer}.{header.base_sequence + index}")
                    for index in range(first, header.record_count)
                ]
                self.position, self.last_epoch = header.end_offset, header.leader_epoch
        except CorruptBatchError:
            self.world.count("damage that readers met")
            self._found_damage = True
        self.world.count(CHECKED + "I10", self.position > offset)
        if self.position > max(offset, high_watermark):
            raise SimulationError("I10", f"{broker} {self.cluster.name_of(key)} serves beyond its watermark")
        if records:
            self.world.count("records read", len(records))
            number = self.cluster.number_of(key)
            self.cluster.polls.append(Poll(self.name, number, offset, tuple(records), self._moved))
            self._moved = False

    def _move(self, offset: int) -> None:
        self.position, self.last_epoch, self._moved = offset, -1, True
