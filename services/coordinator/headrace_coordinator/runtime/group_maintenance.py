"""Periodic maintenance of groups: removal of dead members and expired groups, topic changes, timeouts.

Every coordinator may do it, because each write compares its inputs. To avoid conflicts one coordinator, chosen by
rendezvous hashing of the group id, acts at once and the others after a delay (H60, H70, H72). Belongs to the event
loop; `run` is a task of the app.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence

import structlog
from headrace.groups.assignors import AssignableTopic
from headrace.groups.state import Group
from headrace.groups.transition import transition
from headrace.wire.errors import HeadraceError
from headrace_server.clock import Clock
from headrace_server.key_table import BrokerKey, DeletedTopicKey, PartitionKey, TopicKey
from headrace_server.metadata_view import ClusterView
from headrace_server.metastore.api import MetastoreRolledBackError
from headrace_server.rpc import let_others_run

from headrace_coordinator.core.group_encoding import encode_assignments
from headrace_coordinator.metrics import CoordinatorMetrics
from headrace_coordinator.runtime.group_offsets import GroupOffsets
from headrace_coordinator.runtime.group_transactions import GroupTransactions
from headrace_coordinator.runtime.group_view import GroupEntry, GroupView

log = structlog.get_logger(__name__)

ROUND_SECONDS = 1.0
OTHERS_WAIT_SECONDS = 1.0
EXPIRY_ROUND_SECONDS = 60.0
SEEN_EMPTY_MS = 3_600_000
"""Minimum time, or the retention if that is shorter, for which the coordinator that removes a group has itself seen it
without members: a wall clock that is wrong for less time than that removes nothing."""
DELETE_SECONDS = 30.0


class AssignableTopics:
    """All topics as input of assignors, rebuilt after topics, replicas or brokers have changed."""

    def __init__(self, view: ClusterView) -> None:
        self._view = view
        self._topics: dict[str, AssignableTopic] = {}
        self._is_current = False
        self._version = 0
        view.subscribe(self._on_change)

    def _on_change(self, revision: int, keys: Sequence[str]) -> None:
        if self._view.keyspace.has_any(keys, TopicKey, PartitionKey, BrokerKey):
            self._is_current = False
        if self._view.keyspace.has_any(keys, DeletedTopicKey):
            self._version += 1

    @property
    def version(self) -> int:
        """Number of changes so far; a change of an in-sync set is none."""
        self._update()
        return self._version

    @property
    def deleted(self) -> Collection[bytes]:
        """Ids of deleted topics."""
        return self._view.deleted.keys()

    def get(self) -> Mapping[str, AssignableTopic]:
        """Return all topics by name."""
        self._update()
        return self._topics

    def _update(self) -> None:
        if self._is_current:
            return
        self._is_current = True
        racks = {int(broker_id): broker.live.rack for broker_id, broker in self._view.brokers.items()}
        topics = {name: self._describe(name, racks) for name in self._view.topics}
        if topics != self._topics:
            self._topics = topics
            self._version += 1

    def _describe(self, name: str, racks: Mapping[int, str]) -> AssignableTopic:
        topic = self._view.topics[name]
        partitions = self._view.partitions(topic.topic_id) if any(racks.values()) else ()
        by_partition = tuple(
            frozenset(rack for broker_id in partition.state.replicas if (rack := racks.get(broker_id)))
            for partition in partitions
        )
        return AssignableTopic(bytes(topic.topic_id), name, topic.partitions, by_partition if any(by_partition) else ())


class GroupMaintenance:
    """Maintenance of all groups by one coordinator."""

    def __init__(
        self,
        view: ClusterView,
        groups: GroupView,
        transactions: GroupTransactions,
        offsets: GroupOffsets,
        topics: AssignableTopics,
        metrics: CoordinatorMetrics,
        clock: Clock,
        *,
        coordinator_id: str,
        offsets_retention_ms: int,
        clock_doubt: Callable[[], str] = lambda: "",
    ) -> None:
        """`clock_doubt` returns why the wall clock cannot be trusted now, or an empty string if it can."""
        self._view = view
        self._groups = groups
        self._transactions = transactions
        self._offsets = offsets
        self._topics = topics
        self._metrics = metrics
        self._clock = clock
        self._coordinator_id = coordinator_id
        self._offsets_retention_ms = offsets_retention_ms
        self._clock_doubt = clock_doubt
        self._noticed: dict[str, None] = {}
        self._settled: dict[str, tuple[int, int]] = {}
        """Versions of the group's state and of the topics at which a group needed nothing, by group id."""
        self._wake = asyncio.Event()
        groups.on_members(self._on_members)
        view.subscribe(self._on_change)

    def _on_members(self, group_id: str) -> None:
        if self._is_pressing(group_id, self._groups.entry(group_id)):
            self._noticed[group_id] = None
            self._wake.set()

    def _on_change(self, revision: int, keys: Sequence[str]) -> None:
        """Examine the groups whose home this is after topics were created, deleted or grown; `_look_at_all` follows."""
        if self._view.keyspace.has_any(keys, TopicKey):
            for group_id, entry in self._groups.groups.items():
                if entry.group.members and self._is_home(group_id):
                    self._noticed[group_id] = None
            self._wake.set()

    async def run(self) -> None:
        """Maintain the groups until cancelled."""
        loop = asyncio.get_running_loop()
        next_round, next_expiry = loop.time() + ROUND_SECONDS, loop.time() + EXPIRY_ROUND_SECONDS
        try:
            while True:
                try:
                    async with asyncio.timeout_at(next_round):
                        await self._wake.wait()
                    is_due = loop.time() >= next_round
                except TimeoutError:
                    is_due = True  # A timer may fire before the time that the clock shows.
                if is_due:
                    await self._look_at_all()
                    next_round = loop.time() + ROUND_SECONDS
                self._wake.clear()
                noticed, self._noticed = self._noticed, {}
                for index, group_id in enumerate(noticed):
                    await let_others_run(index)
                    if self._is_home(group_id):
                        self._transactions.look(group_id)
                    else:
                        loop.call_later(OTHERS_WAIT_SECONDS, self._look_late, group_id)
                if loop.time() >= next_expiry:
                    next_expiry = loop.time() + EXPIRY_ROUND_SECONDS
                    await self.expire()
        finally:
            self._groups.end_on_members(self._on_members)
            await self._transactions.stop()

    async def _look_at_all(self) -> None:
        members = 0
        for index, group_id in enumerate(list(self._groups.groups)):
            await let_others_run(index)
            entry = self._groups.entry(group_id)
            members += len(entry.group.members)
            self._transactions.times.empty_ms(group_id, entry.group)
            if self._needs_a_transaction(group_id):
                self._noticed[group_id] = None
        self._transactions.times.forget(self._groups.groups)
        for group_id in [group_id for group_id in self._settled if group_id not in self._groups.groups]:
            del self._settled[group_id]
        self._metrics.groups.set(len(self._groups.groups))
        self._metrics.group_members.set(members)

    def _look_late(self, group_id: str) -> None:
        if self._needs_a_transaction(group_id):
            self._transactions.look(group_id)

    def _needs_a_transaction(self, group_id: str) -> bool:
        """Return whether a transaction would change the group, also to complete the work of a dead coordinator."""
        entry = self._groups.entry(group_id)
        if self._is_pressing(group_id, entry):
            return True
        version = entry.mod_revision, self._topics.version
        if not entry.group.members or self._settled.get(group_id) == version:
            return False
        result = transition(
            entry.group,
            heartbeats=(),
            leaving=(),
            live=entry.live,
            topics=self._topics.get(),
            deleted=self._topics.deleted,
            stored={member_id: key_value.value for member_id, key_value in entry.assignments.items()},
            encode_assignments=encode_assignments,
            begun=entry.begun,
            overdue=(),
            now_ms=self._clock.now_ms(),
        )
        if result.changes(entry.group):
            return True
        self._settled[group_id] = version
        return False

    def _is_pressing(self, group_id: str, entry: GroupEntry) -> bool:
        """Return whether a member is overdue or dead. Cheap; called at every change, so that timers start at once."""
        overdue = self._transactions.times.overdue(group_id, entry.group)
        return bool(overdue) or any(member_id not in entry.live for member_id in entry.group.members)

    def _is_home(self, group_id: str) -> bool:
        ids = [*self._view.coordinators] or [self._coordinator_id]
        return max(ids, key=lambda name: (zlib.crc32(f"{name}/{group_id}".encode()), name)) == self._coordinator_id

    async def expire(self) -> None:
        """Remove groups that have had no members for the retention time (H70), and offsets of deleted topics."""
        for group_id, entry in list(self._groups.groups.items()):
            if not self._is_home(group_id):
                continue
            since_ms = entry.group.empty_since_ms
            try:
                if self._is_expired(group_id, entry.group):
                    deadline = asyncio.get_running_loop().time() + DELETE_SECONDS
                    await self._offsets.delete_group(group_id, deadline, empty_since_ms=since_ms)
                    log.info("group_removed", group=group_id, empty_since_ms=since_ms)
                else:
                    await self._offsets.forget_topics(group_id, self._gone(entry))
            except MetastoreRolledBackError:
                raise
            except HeadraceError as error:
                log.info("group_not_expired", group=group_id, cause=str(error))

    def _is_expired(self, group_id: str, group: Group) -> bool:
        """Return whether a group has had no members for the retention time, by the wall clocks of writer and reader.

        Because these may differ, this coordinator must also have seen the group empty for `SEEN_EMPTY_MS`. While its
        own clock is in doubt no group expires (H43).
        """
        if not group.empty_since_ms or group.members:
            return False
        seen_ms = self._transactions.times.empty_ms(group_id, group)
        lasted_ms = self._clock.now_ms() - group.empty_since_ms
        if lasted_ms < self._offsets_retention_ms or seen_ms < min(self._offsets_retention_ms, SEEN_EMPTY_MS):
            return False
        return not self._clock_doubt()

    def _gone(self, entry: GroupEntry) -> set[bytes]:
        """Return topics with offsets in the group that are known to be deleted, not those that are only absent."""
        return {topic_id for topic_id, _ in entry.offsets if topic_id in self._view.deleted}
