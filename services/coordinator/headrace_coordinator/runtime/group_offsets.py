"""Committed offsets in etcd, fenced by who owns the partition (KIP-1251; I26, I27, H62 to H65).

A commit of a member is one transaction for up to `MAX_OFFSETS` partitions. It compares the version of the member's
assignment, so that nothing of a former owner succeeds, and of each offset, so that a delayed commit of the same member
does not take it back. What lost its compare is checked again, not refused (H63); what was not answered is sent again
until it is (C3). Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import structlog
from headrace.wire.errors import (
    FencedMemberEpochError,
    GroupNotEmptyError,
    HeadraceError,
    MetastoreUnavailableError,
    NotOwnerError,
    Outcome,
    TimedOutError,
    UnknownMemberError,
)
from headrace_server.clock import Clock
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.metastore.api import (
    Compare,
    Delete,
    Metastore,
    MetastoreRolledBackError,
    MetastoreUnknownOutcomeError,
    ModRevisionIs,
    Operation,
    Put,
)
from headrace_server.metastore.view import PrefixView

from headrace_coordinator.core.assignors import TopicPartition
from headrace_coordinator.metrics import CoordinatorMetrics
from headrace_coordinator.runtime.group_view import GroupEntry, GroupView

log = structlog.get_logger(__name__)

MAX_OFFSETS = 60
RETRY_SECONDS = 0.05
VIEW_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Commit:
    """One partition's offset to be stored; `offset` -1 removes it (administrators)."""

    partition: TopicPartition
    offset: int
    leader_epoch: int = -1
    metadata: str = ""


class GroupOffsets:
    """See the module."""

    def __init__(
        self,
        metastore: Metastore,
        source: PrefixView,
        view: GroupView,
        metrics: CoordinatorMetrics,
        clock: Clock,
    ) -> None:
        self._metastore = metastore
        self._source = source
        self._view = view
        self._metrics = metrics
        self._clock = clock
        self._locks: dict[tuple[str, bytes], asyncio.Lock] = {}

    async def commit(
        self, group_id: str, member_id: bytes, member_epoch: int, commits: Sequence[Commit], deadline: float
    ) -> dict[TopicPartition, HeadraceError]:
        """Store offsets; the partitions that were refused, with the reason. Empty `member_id`: an administrator.

        Raises:
            UnknownMemberError, FencedMemberEpochError, GroupNotEmptyError: nothing was stored.
            MetastoreUnavailableError, TimedOutError: with the outcome.
        """
        lock = self._locks.setdefault((group_id, member_id), asyncio.Lock())
        refused: dict[TopicPartition, HeadraceError] = {}
        try:
            async with asyncio.timeout_at(deadline), lock:
                for first in range(0, len(commits), MAX_OFFSETS):
                    some = {commit.partition: commit for commit in commits[first : first + MAX_OFFSETS]}
                    refused.update(await self._commit(group_id, member_id, member_epoch, some))
        except TimeoutError:
            raise TimedOutError("the offsets were not stored in time", outcome=Outcome.UNKNOWN) from None
        finally:
            if not lock.locked():
                self._locks.pop((group_id, member_id), None)
        return refused

    async def _commit(
        self, group_id: str, member_id: bytes, member_epoch: int, commits: Mapping[TopicPartition, Commit]
    ) -> dict[TopicPartition, HeadraceError]:
        """Store the offsets of one transaction, however often it takes."""
        unanswered = False
        while True:
            entry = self._view.entry(group_id)
            try:
                if member_id:
                    fence, refused = _check_owner(self._view, group_id, entry, member_id, member_epoch, commits)
                else:
                    fence, refused = _check_empty(self._view, group_id, entry), {}
            except HeadraceError as error:
                if unanswered:
                    error.outcome = Outcome.UNKNOWN
                raise
            allowed = [commit for partition, commit in commits.items() if partition not in refused]
            if not allowed:
                return refused
            compares: list[Compare] = [fence]
            operations: list[Operation] = []
            now_ms = self._clock.now_ms()
            for commit in allowed:
                key = self._view.keyspace.group_offset(group_id, *commit.partition)
                stored = entry.offsets.get(commit.partition)
                compares.append(ModRevisionIs(key, 0 if stored is None else stored.mod_revision))
                operations.append(_write(key, commit, member_id, member_epoch, now_ms))
            try:
                result = await self._metastore.txn(compares, operations)
            except MetastoreRolledBackError:
                raise
            except MetastoreUnavailableError as error:
                unanswered |= isinstance(error, MetastoreUnknownOutcomeError)
                self._metrics.unknown_writes.inc()
                await asyncio.sleep(RETRY_SECONDS)
                continue
            if result.succeeded:
                self._metrics.group_commits.inc()
                await self._source.wait_for(result.revision, VIEW_SECONDS)
                return refused
            self._metrics.group_conflicts.inc()
            await asyncio.sleep(RETRY_SECONDS)

    async def wait_for(self, revision: int, deadline: float) -> None:
        """Return once the view is at least as new as `revision`, which an assignment was written at (I27)."""
        left = deadline - asyncio.get_running_loop().time()
        await self._source.wait_for(revision, max(0.0, left))

    async def delete_group(self, group_id: str, deadline: float) -> None:
        """Delete a group without members, with its offsets.

        Raises:
            GroupNotEmptyError: it has members.
        """
        try:
            async with asyncio.timeout_at(deadline):
                while True:
                    entry = self._view.entry(group_id)
                    fence = _check_empty(self._view, group_id, entry)
                    if entry.is_gone:
                        return
                    offsets = sorted(entry.offsets)[:MAX_OFFSETS]
                    operations: list[Operation] = [
                        Delete(self._view.keyspace.group_offset(group_id, *partition)) for partition in offsets
                    ]
                    if len(entry.offsets) <= MAX_OFFSETS:
                        operations.append(Delete(self._view.keyspace.group(group_id)))
                    try:
                        result = await self._metastore.txn([fence], operations)
                    except MetastoreRolledBackError:
                        raise
                    except MetastoreUnavailableError:
                        await asyncio.sleep(RETRY_SECONDS)
                        continue
                    if result.succeeded:
                        await self._source.wait_for(result.revision, VIEW_SECONDS)
                    else:
                        await asyncio.sleep(RETRY_SECONDS)
        except TimeoutError:
            raise TimedOutError("the group was not deleted in time", outcome=Outcome.UNKNOWN) from None


def _check_owner(
    view: GroupView,
    group_id: str,
    entry: GroupEntry,
    member_id: bytes,
    member_epoch: int,
    commits: Mapping[TopicPartition, Commit],
) -> tuple[Compare, dict[TopicPartition, HeadraceError]]:
    """What a member's commit compares, and the partitions that it does not own at that epoch (I26)."""
    stored = entry.assignments.get(member_id)
    if stored is None:
        raise UnknownMemberError(f"the group has no member {member_id.hex()}: its session is over")
    assignment = metadata_pb2.MemberAssignment.FromString(stored.value)
    if member_epoch > assignment.member_epoch:
        raise FencedMemberEpochError(f"the member is at epoch {assignment.member_epoch}, it says {member_epoch}")
    granted = {
        (topic.topic_id, number): epoch
        for topic in assignment.topics
        for number, epoch in zip(topic.partitions, topic.assignment_epochs, strict=True)
    }
    refused: dict[TopicPartition, HeadraceError] = {}
    for partition in commits:
        epoch = granted.get(partition)
        if epoch is None:
            refused[partition] = NotOwnerError(f"the member does not own partition {partition[1]}")
        elif member_epoch < epoch:
            refused[partition] = NotOwnerError(
                f"the member owns partition {partition[1]} since epoch {epoch}, the commit is of epoch {member_epoch}"
            )
    return ModRevisionIs(view.keyspace.group_assignment(group_id, member_id), stored.mod_revision), refused


def _check_empty(view: GroupView, group_id: str, entry: GroupEntry) -> Compare:
    """What a write without a member compares: that the group has none."""
    if entry.group.members:
        raise GroupNotEmptyError(f"group {group_id} has {len(entry.group.members)} members")
    return ModRevisionIs(view.keyspace.group(group_id), entry.mod_revision)


def _write(key: str, commit: Commit, member_id: bytes, member_epoch: int, now_ms: int) -> Operation:
    if commit.offset < 0:
        return Delete(key)
    message = metadata_pb2.CommittedOffset(
        offset=commit.offset,
        leader_epoch=commit.leader_epoch,
        metadata=commit.metadata,
        committed_ms=now_ms,
        member_id=member_id,
        member_epoch=member_epoch,
    )
    return Put(key, message.SerializeToString())
