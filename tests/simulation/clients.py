"""Clients: idempotent producers that retry, consumers of leaders and of followers. What they saw is their history.

A batch keeps its sequence until its outcome is certain (H51); an error counts as definite only where no attempt was
left without an answer (H52, I22). Records are named `producer.epoch.sequence`, which stands in every batch's header.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.wire.batch import check_batch, iter_batches
from headrace.wire.columns import encode_batch
from headrace.wire.errors import CorruptBatchError, ErrorCode, HeadraceError, Outcome

from tests.simulation.history import FAIL, OK, UNKNOWN, Poll, Send
from tests.simulation.host import ReadAnswer
from tests.simulation.world import SimulationError

if TYPE_CHECKING:
    from tests.simulation.broker import Broker
    from tests.simulation.cluster import Cluster

ANSWER_MS = 700
"""A client waits so long for an answer."""
MAX_IN_FLIGHT = 3
VALUES = (b"0123456789abcdef", b"0123456789abcdef" * 3, b"01234567")


@dataclass(slots=True)
class _Batch:
    """One batch until its outcome is certain."""

    partition: int
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
        self._targets = {partition: _Target() for partition in cluster.partitions}

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
            partition = self._chance.randrange(len(self._targets))
            if len(self._targets[partition].in_flight) < MAX_IN_FLIGHT:
                self.send(partition)

    def send(self, partition: int, count: int = 0) -> None:
        """Send a batch of `count` records (0: by chance)."""
        target = self._targets[partition]
        count = count or 1 + self._chance.randrange(3)
        value = VALUES[self._chance.randrange(len(VALUES))]
        data = encode_batch(
            [value] * count,
            base_timestamp_ms=1_700_000_000_000,
            producer_id=self.producer_id,
            producer_epoch=target.epoch,
            base_sequence=target.next_sequence,
        )
        batch = _Batch(partition, target.next_sequence, count, data, target.epoch, self.cluster.next_order())
        target.next_sequence += count
        target.in_flight.append(batch)
        self.world.count("batches sent")
        self._attempt(batch)

    def _attempt(self, batch: _Batch) -> None:
        if batch.done:
            return
        batch.attempts += 1
        attempt = batch.attempts
        leader = self.cluster.leader_for(self._chance, batch.partition)
        if leader is None:
            self._retry(batch)
            return
        broker, epoch = leader
        timeout = self.world.after(ANSWER_MS, self.process, "", lambda: self._take(batch, attempt, None))

        def reply(result: int | HeadraceError) -> None:
            said = type(result).__name__ if isinstance(result, HeadraceError) else f"offset {result}"
            self.cluster.network.send(
                broker.process.name,
                self.process,
                f"p{batch.partition} answer to sequence {batch.sequence}: {said}",
                lambda: self._arrived(batch, attempt, result, timeout.cancel),
                once=True,
            )

        self.cluster.network.send(
            self.name,
            broker.process,
            f"p{batch.partition} produce of {self.name} sequence {batch.sequence}+{batch.count}",
            lambda: self._deliver(broker, batch, epoch, reply),
            once=True,
        )
        if self.acks == 0:
            timeout.cancel()
            self._end(batch, UNKNOWN, -1)

    def _deliver(self, broker: Broker, batch: _Batch, epoch: int, reply: Callable[[int | HeadraceError], None]) -> None:
        host = broker.hosts.get(batch.partition)
        if host is not None and broker.registered:
            host.produce(batch.data, epoch, self.acks, reply)

    def _arrived(self, batch: _Batch, attempt: int, result: int | HeadraceError, cancel: Callable[[], None]) -> None:
        cancel()
        self._take(batch, attempt, result)

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
        self._retry(batch)

    def _retry(self, batch: _Batch) -> None:
        self.world.after(40 + self._chance.randrange(120), self.process, "", lambda: self._attempt(batch))

    def _may_begin_epoch(self, batch: _Batch, code: ErrorCode) -> bool:
        """Whether records before the oldest batch may be gone: acks=1 allows it, and retention (H49)."""
        if self._targets[batch.partition].in_flight[0] is not batch:
            return False
        if self.cluster.checks.partitions[batch.partition].unclean:
            return True
        return self.acks != -1 or (code is ErrorCode.UNKNOWN_PRODUCER and self.cluster.log_start(batch.partition) > 0)

    def _begin_epoch(self, batch: _Batch) -> None:
        """Give up what is in flight and begin a new epoch."""
        target = self._targets[batch.partition]
        for each in list(target.in_flight):
            self._end(each, UNKNOWN, -1)
        target.epoch += 1
        target.next_sequence = 0
        self.world.count("producer epochs begun")

    def _end(self, batch: _Batch, outcome: str, offset: int) -> None:
        batch.done = True
        self._targets[batch.partition].in_flight.remove(batch)
        values = tuple(f"{self.producer_id}.{batch.epoch}.{batch.sequence + index}" for index in range(batch.count))
        self.cluster.sends.append(
            Send(
                self.name, batch.partition, values, outcome, offset, self.acks == -1 and outcome == OK,
                batch.sent_at, self.world.now_ms,
            )
        )  # fmt: skip

    def give_up(self) -> None:
        """End what is still open, at the end of a run that asks for no liveness."""
        for target in self._targets.values():
            for batch in list(target.in_flight):
                self._end(batch, FAIL if not batch.uncertain and not batch.attempts else UNKNOWN, -1)


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
        self.position = 0
        self.last_epoch = -1
        self.truncated = 0
        self._chance = cluster.world.chance(f"consumer/{number}")
        self._fetch = 0
        self._moved = False

    def start(self) -> None:
        """Begin to read."""
        self.world.after(1 + self._chance.randrange(self.period_ms), self.process, "", self._next)

    def _next(self) -> None:
        self._fetch += 1
        number = self._fetch
        self.world.after(ANSWER_MS if number % 8 == 0 else self.period_ms, self.process, "", self._next)
        broker = self._choose()
        if broker is not None:
            self.cluster.network.send(self.name, broker.process, "", lambda: self._deliver(broker, number))

    def _choose(self) -> Broker | None:
        if not self.follower:
            leader = self.cluster.leader_for(self._chance, self.partition)
            return None if leader is None else leader[0]
        nodes = list(self.cluster.brokers.values())
        return nodes[self._chance.randrange(len(nodes))].broker

    def _deliver(self, broker: Broker, number: int) -> None:
        host = broker.hosts.get(self.partition)
        if host is None or not broker.registered:
            return
        offset = self.position
        try:
            answer: ReadAnswer | HeadraceError = host.read(offset, self.last_epoch, -1, follower=self.follower)
        except HeadraceError as error:
            answer = error
        self.cluster.network.send(
            broker.process.name, self.process, "", lambda: self._take(broker, number, offset, answer)
        )

    def _take(self, broker: Broker, number: int, offset: int, answer: ReadAnswer | HeadraceError) -> None:
        if number != self._fetch or offset != self.position:
            return  # It fetched again meanwhile.
        if isinstance(answer, HeadraceError):
            if answer.code is ErrorCode.OFFSET_OUT_OF_RANGE:
                self._reset(broker)
            return
        if answer.diverged is not None:
            self.truncated += 1
            self.world.count("truncations that readers learnt of")
            if not self.cluster.checks.partitions[self.partition].unclean:
                raise SimulationError(
                    "I1", f"{self.name} read p{self.partition} up to {offset} of epoch {self.last_epoch}; "
                    f"b{broker.broker_id} parts from that: {answer.diverged}",
                )  # fmt: skip
            self._move(answer.diverged.end_offset)
            return
        self._read(broker, offset, answer)

    def _read(self, broker: Broker, offset: int, answer: ReadAnswer) -> None:
        records: list[tuple[int, str]] = []
        try:
            for header, view in iter_batches(answer.batches):
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
            host = broker.hosts.get(self.partition)
            if host is not None and broker.process.alive:
                host.verify(self.position)
        if records:
            self.world.count("records read", len(records))
            self.cluster.polls.append(Poll(self.name, self.partition, offset, tuple(records), self._moved))
            self._moved = False

    def _reset(self, broker: Broker) -> None:
        """The position was removed by retention: go on at the log start."""
        host = broker.hosts.get(self.partition)
        if host is not None and host.replica.log_start_offset > self.position:
            self._move(int(host.replica.log_start_offset))

    def _move(self, offset: int) -> None:
        self.position, self.last_epoch, self._moved = offset, -1, True
