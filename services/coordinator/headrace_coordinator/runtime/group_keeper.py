"""What groups need without anybody asking: dead members put out, topics followed, times kept, old groups removed.

Every coordinator may do it, since each write compares what it rests on. To save conflicts one of them, by the
rendezvous hash of the group's id, acts at once and the others after a moment (H60, H70, H72). Belongs to the event
loop; `run` is a task of the app.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Mapping, Sequence

import structlog
from headrace.wire.errors import HeadraceError
from headrace_server.clock import Clock
from headrace_server.metadata_view import ClusterView

from headrace_coordinator.core.assignors import AssignableTopic
from headrace_coordinator.metrics import CoordinatorMetrics
from headrace_coordinator.runtime.group_offsets import GroupOffsets
from headrace_coordinator.runtime.group_rounds import GroupRounds
from headrace_coordinator.runtime.group_view import GroupEntry, GroupView

log = structlog.get_logger(__name__)

ROUND_SECONDS = 1.0
OTHERS_WAIT_SECONDS = 1.0
EXPIRY_ROUND_SECONDS = 60.0
DELETE_SECONDS = 30.0


class AssignableTopics:
    """All topics as assignors see them, made anew when topics, replicas or brokers have changed."""

    def __init__(self, view: ClusterView) -> None:
        self._view = view
        self._topics: dict[str, AssignableTopic] | None = None
        view.subscribe(self._on_change)

    def _on_change(self, revision: int, keys: Sequence[str]) -> None:
        start = len(self._view.keyspace.prefix)
        if any(key.startswith(("topic/", "part/", "live/"), start) for key in keys):
            self._topics = None

    def get(self) -> Mapping[str, AssignableTopic]:
        """By name."""
        if self._topics is None:
            self._topics = {name: self._describe(name) for name in self._view.topics}
        return self._topics

    def _describe(self, name: str) -> AssignableTopic:
        topic = self._view.topics[name]
        racks: list[frozenset[str]] = []
        for partition in self._view.partitions(topic.topic_id):
            brokers = (self._view.brokers.get(broker_id) for broker_id in partition.state.replicas)  # type: ignore[call-overload]
            racks.append(frozenset(broker.live.rack for broker in brokers if broker is not None and broker.live.rack))
        return AssignableTopic(bytes(topic.topic_id), name, topic.partitions, tuple(racks) if any(racks) else ())


class GroupKeeper:
    """See the module."""

    def __init__(
        self,
        view: ClusterView,
        groups: GroupView,
        rounds: GroupRounds,
        offsets: GroupOffsets,
        metrics: CoordinatorMetrics,
        clock: Clock,
        *,
        coordinator_id: str,
        offsets_retention_ms: int,
    ) -> None:
        self._view = view
        self._groups = groups
        self._rounds = rounds
        self._offsets = offsets
        self._metrics = metrics
        self._clock = clock
        self._coordinator_id = coordinator_id
        self._offsets_retention_ms = offsets_retention_ms
        self._noticed: dict[str, None] = {}
        self._wake = asyncio.Event()
        groups.on_members(self._on_members)
        view.subscribe(self._on_change)

    def _on_members(self, group_id: str) -> None:
        if _needs_a_round(self._groups.entry(group_id), self._clock.now_ms()):
            self._noticed[group_id] = None
            self._wake.set()

    def _on_change(self, revision: int, keys: Sequence[str]) -> None:
        """Topics came, went or grew: every group may have to follow."""
        start = len(self._view.keyspace.prefix)
        if any(key.startswith("topic/", start) for key in keys):
            for group_id, entry in self._groups.groups.items():
                if entry.group.members:
                    self._noticed[group_id] = None
            self._wake.set()

    async def run(self) -> None:
        """Look after the groups until cancelled."""
        loop = asyncio.get_running_loop()
        next_expiry = loop.time() + EXPIRY_ROUND_SECONDS
        while True:
            try:
                async with asyncio.timeout(ROUND_SECONDS):
                    await self._wake.wait()
            except TimeoutError:
                self._look_at_all()
            self._wake.clear()
            noticed, self._noticed = self._noticed, {}
            for group_id in noticed:
                if self._is_home(group_id):
                    self._rounds.look(group_id)
                else:
                    loop.call_later(OTHERS_WAIT_SECONDS, self._look_late, group_id)
            if loop.time() >= next_expiry:
                next_expiry = loop.time() + EXPIRY_ROUND_SECONDS
                await self._expire()

    def _look_at_all(self) -> None:
        now_ms = self._clock.now_ms()
        members = 0
        for group_id, entry in self._groups.groups.items():
            members += len(entry.group.members)
            if _needs_a_round(entry, now_ms):
                self._noticed[group_id] = None
        self._metrics.groups.set(len(self._groups.groups))
        self._metrics.group_members.set(members)

    def _look_late(self, group_id: str) -> None:
        if _needs_a_round(self._groups.entry(group_id), self._clock.now_ms()):
            self._rounds.look(group_id)

    def _is_home(self, group_id: str) -> bool:
        ids = [*self._view.coordinators] or [self._coordinator_id]
        return max(ids, key=lambda name: (zlib.crc32(f"{name}/{group_id}".encode()), name)) == self._coordinator_id

    async def _expire(self) -> None:
        """Remove groups that have had no members for the retention time (H70)."""
        now_ms = self._clock.now_ms()
        for group_id, entry in list(self._groups.groups.items()):
            since_ms = entry.group.empty_since_ms
            is_old = since_ms and now_ms - since_ms >= self._offsets_retention_ms
            if not entry.group.members and is_old and self._is_home(group_id):
                try:
                    await self._offsets.delete_group(group_id, asyncio.get_running_loop().time() + DELETE_SECONDS)
                except HeadraceError as error:
                    log.info("group_not_removed", group=group_id, cause=str(error))
                else:
                    log.info("group_removed", group=group_id, empty_since_ms=since_ms)


def _needs_a_round(entry: GroupEntry, now_ms: int) -> bool:
    """Whether a member is dead, out of time, or was not told yet; cheap, and asked often."""
    group = entry.group
    if len(entry.assignments) != len(group.members):
        return True
    for member_id, member in group.members.items():
        if member_id not in entry.live:
            return True
        if member.revoking_since_ms and now_ms - member.revoking_since_ms >= member.rebalance_timeout_ms > 0:
            return True
    return False
