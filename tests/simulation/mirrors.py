"""A topic that is a mirror: the log that is copied, who copies it, and what its replicas may hold (I33).

The copied log is fixed. Two copiers append its batches by the shipped `PartitionCalls`, mostly where the mirror's log
ends, and at times somewhere else. An administrator promotes the mirror in the middle of a run: producers, who are
refused until then, write to it, and the copiers, who do not know, continue to try.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.client.admin.partition_calls import PartitionCalls
from headrace.client.base.config import AdminConfig, build
from headrace.client.base.operations import aexecute
from headrace.client.net.cluster_metadata import ClusterMetadata
from headrace.client.net.transport import open_connections_async
from headrace.log import PartitionLog
from headrace.v1 import broker_pb2
from headrace.wire.batch import STAMP_BYTES, BatchHeader, iter_batches, read_header, stamp
from headrace.wire.columns import encode_batch
from headrace.wire.compression import Codec
from headrace.wire.errors import HeadraceError

from tests.simulation.clients import CALLING, SIZES, TOPIC, Client
from tests.simulation.exercise import CHECKED
from tests.simulation.history import OK, UNKNOWN, Send
from tests.simulation.host import Host
from tests.simulation.world import EPOCH_MS, SimulationError

if TYPE_CHECKING:
    from headrace.client.base.operations import Operation

    from tests.simulation.cluster import Cluster

BATCHES = 200
FIRST_PRODUCER = 1 << 40
"""Producers of the copied log have ids that are not drawn in the cluster."""
SOURCE_EPOCHS = (3, 900)
"""Leader epochs of the copied log: lower and higher ones than those of the mirror."""
STRAY_RATE = 0.15
"""So often a copier sends something else than what follows the mirror's log end."""
MOST_BATCHES = 4
PROMOTED_MS = (200, 6_000)
"""The mirror is promoted in this time, or when everything is healed."""


class CopiedBatch(NamedTuple):
    """One batch of the copied log."""

    data: bytes
    header: BatchHeader
    names: tuple[str, ...]


def copied_log(seed: int, number: int) -> list[CopiedBatch]:
    """Return the log that one partition copies."""
    chance = random.Random(f"{seed}/copied/{number}")
    found: list[CopiedBatch] = []
    offset = crc = made = 0
    sequences = [0, 0, 0]
    for index in range(BATCHES):
        count, producer = 1 + chance.randrange(3), chance.choice((-1, 0, 1, 2))
        names = tuple(f"m{number}.{made + each}" for each in range(count))
        made += count
        identity = (-1, -1, -1)
        if producer >= 0:
            identity = FIRST_PRODUCER + 10 * number + producer, 0, sequences[producer]
            sequences[producer] += count
        batch = encode_batch(
            [name.encode().ljust(chance.choice(SIZES)) for name in names],
            base_timestamp_ms=EPOCH_MS + index,
            producer_id=identity[0],
            producer_epoch=identity[1],
            base_sequence=identity[2],
            codec=chance.choice((Codec.NONE, Codec.NONE, Codec.GZIP)),
        )
        head = stamp(
            read_header(batch), base_offset=offset, append_timestamp_ms=EPOCH_MS + index, previous_crc=crc,
            leader_epoch=SOURCE_EPOCHS[index >= BATCHES // 10],
        )  # fmt: skip
        data = head + batch[STAMP_BYTES:]
        header = read_header(data)
        offset, crc = header.end_offset, header.chain_crc
        found.append(CopiedBatch(data, header, names))
    return found


class MirrorChecks:
    """The copied logs, whether the mirror is promoted, and what that allows its replicas to hold."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.logs = [copied_log(cluster.plan.seed, number) for number in range(cluster.plan.partitions)]
        self._by_base = [{batch.header.base_offset: batch for batch in log} for log in self.logs]

    @property
    def is_promoted(self) -> bool:
        """Whether etcd has it as a topic of its own."""
        topic = self._cluster.topic
        return bool(topic.name) and not topic.configs.get("mirror")

    def begin(self) -> None:
        """Note that any of the copied records may come, and let an administrator promote the mirror some time."""
        cluster = self._cluster
        for key, log in zip(cluster.partitions, self.logs, strict=True):
            for batch in log:
                self.note(cluster.number_of(key), batch, UNKNOWN, promised=False)
        chance = random.Random(f"{cluster.plan.seed}/promotion")
        cluster.world.after(chance.randint(*PROMOTED_MS), cluster.operator, "", self.promote)

    def promote(self) -> None:
        """Ask for the end of the setting."""
        if not self.is_promoted:
            self._cluster.world.note("op", "promotes the mirror")
            self._cluster.administration.configure(mirror="")

    def note(self, number: int, batch: CopiedBatch, outcome: str, *, promised: bool) -> None:
        """Write an append into the history: any copier may repeat it."""
        cluster, at_ms = self._cluster, self._cluster.world.now_ms
        offset = batch.header.base_offset if outcome == OK else -1
        order = cluster.next_order()
        cluster.sends.append(
            Send("copiers", number, batch.names, outcome, offset, promised, order, at_ms, numbered=False)
        )

    # --- what replicas hold ---

    def produced(self, host: Host) -> None:
        """A leader has appended a producer's batch."""
        self._checked()
        if not self.is_promoted:
            raise SimulationError("I33", f"{host.name} takes a producer's batch before the mirror is promoted")

    def copied(self, host: Host, header: BatchHeader, before: Any) -> None:
        """A leader has appended a copy behind the batch `before`, an `Entry`; `None`: its log was empty."""
        self._check(host, header)
        ours = self._by_base[host.key.partition]
        if before is not None and (before.base not in ours or ours[before.base].header.crc != before.crc):
            raise SimulationError(
                "I33", f"{host.name} appends a copy at {header.base_offset} behind a producer's batch"
            )

    def replicated(self, host: Host, header: BatchHeader) -> None:
        """A follower has appended a batch."""
        if not self.is_promoted:
            self._check(host, header)

    def _check(self, host: Host, header: BatchHeader) -> None:
        self._checked()
        wanted = self._by_base[host.key.partition].get(header.base_offset)
        if wanted is None or _content(header) != _content(wanted.header):
            raise SimulationError("I33", f"{host.name} has another batch at {header.base_offset} than the copied log")

    def check_disk(self, host: Host, log: PartitionLog) -> int:
        """Compare all bytes of a replica; return the number of its batches that are copies."""
        wanted, copies, produced_at = self._by_base[host.key.partition], 0, -1
        offset = int(log.log_start_offset)
        while offset < log.log_end_offset:
            with log.reader.read(offset, 1 << 20, log.log_end_offset) as found:
                for header, view in iter_batches(found.read()):
                    self._checked()
                    copy = wanted.get(header.base_offset)
                    if copy is None or copy.header.crc != header.crc:
                        produced_at = header.base_offset
                        continue
                    same = _content(copy.header) == _content(header) and copy.data[STAMP_BYTES:] == view[STAMP_BYTES:]
                    if produced_at >= 0 or not same:
                        raise SimulationError("I33", f"{host.name}: the copy at {header.base_offset} has changed")
                    copies += 1
                offset = found.end_offset
        if produced_at >= 0 and not self.is_promoted:
            raise SimulationError("I33", f"{host.name} has a producer's batch at {produced_at}")
        return copies

    def _checked(self) -> None:
        self._cluster.world.count(CHECKED + "I33")


def _content(header: BatchHeader) -> BatchHeader:
    """All of a header but what a mirror's leader replaces."""
    return header._replace(leader_epoch=0, stamp_crc=0)


class _CommittedCalls(PartitionCalls):
    """Appends that are answered once they are committed."""

    def _at_leader(
        self, number: int, method: str, request: Any, part: Any, wait_seconds: float
    ) -> Operation[tuple[Any, Any]]:
        if method == "ProduceZeroCopy":
            request.message.acks = broker_pb2.ACKS_ALL
        return super()._at_leader(number, method, request, part, wait_seconds)


class Copier(Client):
    """Copies all partitions, each a few batches at a time; the position is the end of the mirror's log."""

    def __init__(self, cluster: Cluster, mirror: MirrorChecks, number: int, period_ms: int) -> None:
        super().__init__(cluster, f"m{number}")
        self.period_ms = period_ms
        self.sending = True
        self.waits = False
        """Whether an append is not answered yet."""
        self._mirror = mirror
        self._is_committed = number % 2 == 0
        self._calls: PartitionCalls | None = None
        self._ends: dict[int, int] = {}

    def _cluster_metadata(self) -> ClusterMetadata | None:
        return None if self._calls is None else self._calls._metadata

    async def _live(self) -> None:
        config = build(AdminConfig, {"bootstrap_servers": self._servers, "transport": self._transport, **CALLING})
        connections = open_connections_async("Mirror", config)
        kind = _CommittedCalls if self._is_committed else PartitionCalls
        self._calls = calls = kind(TOPIC, self.cluster.topic.topic_id, config)
        while self.sending:
            await self._rest(self.period_ms)
            number = self._chance.randrange(self.cluster.plan.partitions)
            batches = self._next(number)
            self.waits = True
            try:
                appending = calls.append(number, [batch.data for batch in batches], deletions_end=0)
                appended = await aexecute(appending, connections.run_step)
                self._ends[number] = appended.log_end_offset
                self.world.count("copies refused: elsewhere" if appended.error else "copies acknowledged")
                for batch in batches if appended.error is None else ():
                    key = self.cluster.partitions[number]
                    self._mirror.note(self.cluster.number_of(key), batch, OK, promised=self._is_committed)
            except HeadraceError as error:
                self._failed("copies failed", error)
                if self._chance.random() < 0.5:
                    self._ends.pop(number, None)  # Asks where the log ends.
            self.waits = False

    def _next(self, number: int) -> list[CopiedBatch]:
        """Return what follows the log end, as far as it is known; at times something else."""
        log, count = self._mirror.logs[number], 1 + self._chance.randrange(MOST_BATCHES)
        if self._chance.random() < STRAY_RATE:
            at = self._chance.randrange(len(log))
            return log[at : at + count]
        end = self._ends.get(number)
        if end is None:
            return []
        at = next((at for at, batch in enumerate(log) if batch.header.end_offset > end), len(log))
        return log[at : at + count]
