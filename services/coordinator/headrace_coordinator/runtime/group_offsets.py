"""Committed offsets in etcd, fenced by partition ownership (KIP-1251; I26, I27, H62 to H65).

A commit of a member is one transaction for up to `MAX_OFFSETS` partitions. It compares the version of the member's
assignment, so that commits of a former owner fail, and of each offset, so that a delayed commit of the same member does
not overwrite a later one: commits of a member are numbered, and the highest number wins (H64). After a failed compare
the commit is checked again, and no commit is rejected because of a possibly stale view (H63). A commit without a
response is sent again until there is one (C3). Offsets in a group without members keep the group's key, which records
since when it is empty. Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import structlog
from headrace.groups.assignors import TopicPartition
from headrace.groups.messages import check_empty
from headrace.groups.state import with_next_epoch
from headrace.wire.errors import (
    ConflictError,
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
    Exists,
    Metastore,
    MetastoreRolledBackError,
    MetastoreUnknownOutcomeError,
    ModRevisionIs,
    Operation,
    Put,
    VersionIs,
)
from headrace_server.metastore.view import PrefixView

from headrace_coordinator.core.group_encoding import encode_group
from headrace_coordinator.metrics import CoordinatorMetrics
from headrace_coordinator.runtime.group_view import GroupEntry, GroupView

log = structlog.get_logger(__name__)

MAX_OFFSETS = 60
MAX_FORGOTTEN = 40
"""Maximum offsets of deleted topics that one transaction removes: each may need three compares."""
RETRY_SECONDS = 0.05
VIEW_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Commit:
    """Offset to store for one partition; `-1` removes it (administrators only)."""

    partition: TopicPartition
    offset: int
    leader_epoch: int = -1
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class CommitOutcome:
    """Result of a commit."""

    refused: dict[TopicPartition, HeadraceError]
    revision: int
    """A view at this revision shows the stored offsets; `0` means that nothing was stored."""


@dataclass(slots=True)
class _Attempt:
    """Offsets of one transaction that are not stored yet."""

    group_id: str
    member_id: bytes
    user: str
    member_epoch: int
    commit_number: int
    commits: dict[TopicPartition, Commit]
    expected_group_epoch: int | None = None
    reset_number: int = 0
    """See `GroupOffsets.commit`."""
    revision: int = 0
    """Highest revision at which an offset of the attempt was stored."""

    @property
    def begins_epoch(self) -> bool:
        """Whether it raises the group's epoch, so that one that was computed before is refused.

        A reset of several requests raises it once. One without a number, of an older release, does not.
        """
        return not self.member_id and (self.expected_group_epoch is None or self.reset_number != 0)

    def drop_overtaken(self, entry: GroupEntry) -> None:
        """Drop offsets that are stored already or overtaken by a later commit of the same member."""
        for partition in [partition for partition in self.commits if partition in entry.offsets]:
            stored = entry.offsets[partition].message
            if self.member_id and stored.member_id == self.member_id and stored.commit_number >= self.commit_number > 0:
                del self.commits[partition]
                self.revision = max(self.revision, entry.offsets[partition].mod_revision)


class GroupOffsets:
    """Reads and writes of committed offsets."""

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

    async def commit(
        self,
        group_id: str,
        member_id: bytes,
        member_epoch: int,
        commits: Sequence[Commit],
        deadline: float,
        *,
        user: str = "",
        commit_number: int = 0,
        expected_group_epoch: int | None = None,
        reset_number: int = 0,
    ) -> CommitOutcome:
        """Store offsets; single partitions may be rejected. An empty `member_id` means an administrator.

        The commits of a member are its own user's alone. An administrator may pass `expected_group_epoch`, which every
        change of membership since then has raised, and every commit without a member but those with its
        `reset_number`: the first one of them begins an epoch, and the others belong to it. `0` is no such number.

        Raises:
            UnknownMemberError, FencedMemberEpochError, GroupNotEmptyError, ConflictError: If the commit is rejected.
                None of the current `MAX_OFFSETS` partitions is stored, nor of those after them.
            MetastoreUnavailableError, TimedOutError: If etcd does not respond in time; has the outcome.
        """
        refused: dict[TopicPartition, HeadraceError] = {}
        revision = 0
        try:
            async with asyncio.timeout_at(deadline):
                for first in range(0, len(commits), MAX_OFFSETS):
                    some = {commit.partition: commit for commit in commits[first : first + MAX_OFFSETS]}
                    attempt = _Attempt(
                        group_id, member_id, user, member_epoch, commit_number, some, expected_group_epoch, reset_number
                    )
                    refused.update(await self._store(attempt))
                    revision = max(revision, attempt.revision)
        except TimeoutError:
            raise TimedOutError("the offsets were not stored in time", outcome=Outcome.UNKNOWN) from None
        return CommitOutcome(refused, revision)

    async def _store(self, attempt: _Attempt) -> dict[TopicPartition, HeadraceError]:
        """Store the offsets of one transaction, with retries; return the rejected partitions."""
        unanswered = False
        while True:
            entry = self._view.entry(attempt.group_id)
            attempt.drop_overtaken(entry)
            try:
                fence, refused = self._check(attempt, entry)
                is_new = not entry.mod_revision  # The view changes `entry`.
                allowed = [commit for partition, commit in attempt.commits.items() if partition not in refused]
                # Before anything is awaited: the view changes `entry`, and its state is compared as it was checked.
                compares, operations = self._transaction(attempt, entry, allowed)
                if refused and await self._is_behind(attempt):
                    continue
            except (UnknownMemberError, FencedMemberEpochError, GroupNotEmptyError, ConflictError) as error:
                if await self._is_behind(attempt):
                    continue
                if unanswered:
                    error.outcome = Outcome.UNKNOWN
                raise
            if not allowed:
                return refused
            try:
                result = await self._metastore.txn([fence, *compares], operations)
            except MetastoreRolledBackError:
                raise
            except MetastoreUnavailableError as error:
                unanswered |= isinstance(error, MetastoreUnknownOutcomeError)
                self._metrics.ambiguous_writes.inc()
                await asyncio.sleep(RETRY_SECONDS)
                continue
            if result.succeeded:
                self._metrics.group_commits.inc()
                if not operations:
                    return refused  # The offsets to remove, of a group that does not exist, were not stored.
                attempt.revision = result.revision
                with contextlib.suppress(TimedOutError):  # It is stored, even if this view does not show it yet.
                    await self._source.wait_for(result.revision, VIEW_SECONDS)
                if attempt.begins_epoch and is_new:
                    continue
                return refused
            self._metrics.group_conflicts.inc()
            await asyncio.sleep(RETRY_SECONDS)

    def _check(self, attempt: _Attempt, entry: GroupEntry) -> tuple[Compare, dict[TopicPartition, HeadraceError]]:
        """Return the compare that fences the transaction, and the rejected partitions."""
        if attempt.member_id:
            return _check_owner(self._view, attempt, entry)
        expected = attempt.expected_group_epoch
        return _check_empty(self._view, attempt.group_id, entry, expected, attempt.reset_number), {}

    async def _is_behind(self, attempt: _Attempt) -> bool:
        """Wait for a newer view; return whether the rejection may have been caused by a stale one."""
        keyspace = self._view.keyspace
        if attempt.member_id:
            key = keyspace.group_assignment(attempt.group_id, attempt.member_id)
        else:
            key = keyspace.group(attempt.group_id)
        seen = self._source.get(key)
        try:
            stored = (await self._metastore.get(key)).key_value
        except MetastoreRolledBackError:
            raise
        except MetastoreUnavailableError:
            await asyncio.sleep(RETRY_SECONDS)
            return True
        if stored == seen:
            return False
        return await self._view.wait_until(attempt.group_id, lambda: self._source.get(key) != seen, None)

    def _transaction(
        self, attempt: _Attempt, entry: GroupEntry, allowed: Sequence[Commit]
    ) -> tuple[list[Compare], list[Operation]]:
        """Return the compares and writes of a transaction for each offset."""
        keyspace, now_ms = self._view.keyspace, self._clock.now_ms()
        compares: list[Compare] = []
        operations: list[Operation] = []
        for commit in allowed:
            key = keyspace.group_offset(attempt.group_id, *commit.partition)
            stored = entry.offsets.get(commit.partition)
            compares.append(ModRevisionIs(key, 0 if stored is None else stored.mod_revision))
            if commit.offset >= 0 or stored is not None:
                operations.append(_write(key, commit, attempt, now_ms))
        if not attempt.member_id and (entry.mod_revision or any(commit.offset >= 0 for commit in allowed)):
            user = entry.group.user if entry.mod_revision else attempt.user
            group = entry.group
            if attempt.begins_epoch and not entry.mod_revision:
                compares, operations = [], []  # The revision of the new key decides the epochs: the offsets follow.
            elif attempt.begins_epoch and not group.is_reset_by(attempt.reset_number):
                group = with_next_epoch(self._view.with_epochs(entry), attempt.reset_number)
            group = replace(group, empty_since_ms=now_ms, user=user)
            operations.append(Put(keyspace.group(attempt.group_id), encode_group(group)))
        return compares, operations

    async def wait_for(self, revision: int, deadline: float) -> None:
        """Wait until the view has reached `revision`, at which an assignment was written (I27)."""
        left = deadline - asyncio.get_running_loop().time()
        await self._source.wait_for(revision, max(0.0, left))

    async def delete_group(
        self,
        group_id: str,
        deadline: float,
        *,
        empty_since_ms: int | None = None,
        expected_group_epoch: int | None = None,
    ) -> None:
        """Delete a group without members, with its offsets, if the given preconditions still hold.

        Raises:
            GroupNotEmptyError: If it has members, or had some since `empty_since_ms`.
            ConflictError: If its epoch is not `expected_group_epoch`.
        """
        try:
            async with asyncio.timeout_at(deadline):
                while not (entry := self._view.entry(group_id)).is_gone:
                    is_as_it_was = empty_since_ms in (None, entry.group.empty_since_ms) or not entry.mod_revision
                    if not is_as_it_was:
                        raise GroupNotEmptyError(f"group {group_id} is in use again")
                    # Keys without a state remain from an unfinished deletion.
                    expected = expected_group_epoch if entry.mod_revision else None
                    fence = _check_empty(self._view, group_id, entry, expected)
                    await self._delete_once(fence, self._left_of(group_id, entry))
        except TimeoutError:
            raise TimedOutError("the group was not deleted in time", outcome=Outcome.UNKNOWN) from None

    def _left_of(self, group_id: str, entry: GroupEntry) -> list[Operation]:
        """Return the deletions of one transaction for a group without members; the state is deleted last."""
        keyspace = self._view.keyspace
        keys = [keyspace.group_offset(group_id, *partition) for partition in sorted(entry.offsets)]
        keys += [keyspace.group_assignment(group_id, member_id) for member_id in sorted(entry.assignments)]
        keys += [keyspace.group_member(group_id, member_id) for member_id in sorted(entry.live)]
        if entry.mod_revision:
            keys.append(keyspace.group(group_id))
        return [Delete(key) for key in keys[:MAX_OFFSETS]]

    async def forget_topics(self, group_id: str, topic_ids: Collection[bytes]) -> int:
        """Delete at most `MAX_FORGOTTEN` offsets of deleted topics; return the number attempted.

        The transaction compares that the topics are recorded as deleted and do not exist.
        """
        entry, keyspace = self._view.entry(group_id), self._view.keyspace
        partitions = [partition for partition in sorted(entry.offsets) if partition[0] in topic_ids][:MAX_FORGOTTEN]
        if not partitions:
            return 0
        compares: list[Compare] = []
        for topic_id in dict.fromkeys(topic_id for topic_id, _ in partitions):
            compares += [Exists(keyspace.deleted_topic(topic_id)), VersionIs(keyspace.topic_by_id(topic_id), 0)]
        operations: list[Operation] = []
        for partition in partitions:
            key = keyspace.group_offset(group_id, *partition)
            compares.append(ModRevisionIs(key, entry.offsets[partition].mod_revision))
            operations.append(Delete(key))
        await self._metastore.txn(compares, operations)
        return len(partitions)

    async def _delete_once(self, fence: Compare, operations: list[Operation]) -> None:
        try:
            result = await self._metastore.txn([fence], operations)
        except MetastoreRolledBackError:
            raise
        except MetastoreUnavailableError:
            await asyncio.sleep(RETRY_SECONDS)
            return
        if result.succeeded:
            with contextlib.suppress(TimedOutError):
                await self._source.wait_for(result.revision, VIEW_SECONDS)
        else:
            await asyncio.sleep(RETRY_SECONDS)


def _check_owner(
    view: GroupView, attempt: _Attempt, entry: GroupEntry
) -> tuple[Compare, dict[TopicPartition, HeadraceError]]:
    """Return the compare of a member's commit, and the partitions that it does not own at that epoch (I26)."""
    member_id, member_epoch = attempt.member_id, attempt.member_epoch
    stored = entry.assignments.get(member_id)
    known = entry.group.members.get(member_id)
    if stored is None or (known is not None and not known.belongs_to(attempt.user)):
        raise UnknownMemberError(f"the group has no member {member_id.hex()}: its session is over")
    assignment = metadata_pb2.MemberAssignment.FromString(stored.value)
    if member_epoch > assignment.member_epoch:
        raise FencedMemberEpochError(
            f"the member is at epoch {assignment.member_epoch}, the request has epoch {member_epoch}"
        )
    granted = {
        (topic.topic_id, number): epoch
        for topic in assignment.topics
        for number, epoch in zip(topic.partitions, topic.assignment_epochs, strict=True)
    }
    refused: dict[TopicPartition, HeadraceError] = {}
    for partition in attempt.commits:
        epoch = granted.get(partition)
        if epoch is None:
            refused[partition] = NotOwnerError(f"the member does not own partition {partition[1]}")
        elif member_epoch < epoch:
            refused[partition] = NotOwnerError(
                f"the member owns partition {partition[1]} since epoch {epoch}, the commit is of epoch {member_epoch}"
            )
    return ModRevisionIs(view.keyspace.group_assignment(attempt.group_id, member_id), stored.mod_revision), refused


def _check_empty(
    view: GroupView, group_id: str, entry: GroupEntry, expected_group_epoch: int | None = None, reset_number: int = 0
) -> Compare:
    """Return the compare of an administrator's write: the group has no members, and is at that epoch."""
    check_empty(group_id, entry.group, expected_group_epoch, reset_number)
    return ModRevisionIs(view.keyspace.group(group_id), entry.mod_revision)


def _write(key: str, commit: Commit, attempt: _Attempt, now_ms: int) -> Operation:
    if commit.offset < 0:
        return Delete(key)
    message = metadata_pb2.CommittedOffset(
        offset=commit.offset,
        leader_epoch=commit.leader_epoch,
        metadata=commit.metadata,
        committed_ms=now_ms,
        member_id=attempt.member_id,
        member_epoch=attempt.member_epoch,
        commit_number=attempt.commit_number,
    )
    return Put(key, message.SerializeToString())
