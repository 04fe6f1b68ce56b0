"""Group transactions: all pending heartbeats and departures become one transition and one transaction (H60, H68).

This coordinator runs one transaction per group at a time; the compare on the state's key detects those of other
coordinators. After a failed compare or a lost response the transition is computed again from the current state, in
which an applied join is a member and an applied departure is gone. Heartbeats whose caller has gone are dropped.
Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import structlog
from headrace.groups.assignors import AssignableTopic
from headrace.groups.heartbeats import MemberDeparture, MemberHeartbeat, may_enlarge, no_member
from headrace.groups.state import Group, Member
from headrace.groups.transition import Transition, transition
from headrace.wire.errors import (
    GroupTooLargeError,
    HeadraceError,
    MetastoreUnavailableError,
    Outcome,
    TimedOutError,
    UnknownMemberError,
)
from headrace_server.clock import Clock
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.metastore.api import (
    Compare,
    Delete,
    LeaseNotFoundError,
    Metastore,
    MetastoreRolledBackError,
    MetastoreUnknownOutcomeError,
    ModRevisionIs,
    Operation,
    Put,
    VersionIs,
)
from headrace_server.metastore.view import PrefixView

from headrace_coordinator.core.group_encoding import check_size, encode_assignments, encode_group
from headrace_coordinator.metrics import CoordinatorMetrics
from headrace_coordinator.runtime.group_times import GroupTimes
from headrace_coordinator.runtime.group_view import GroupEntry, GroupView

log = structlog.get_logger(__name__)

RETRY_SECONDS = (0.05, 1.0)
"""First and maximum back-off before a transaction is retried."""
TRANSACTION_SECONDS = 0.1
"""Minimum interval between transactions that change a group; requests in between share the next one (H68)."""
VIEW_SECONDS = 2.0
"""Maximum wait for the view to show a transaction's write, or the write that it lost against."""


@dataclass(slots=True)
class _Waiting:
    """Pending requests of one group."""

    heartbeats: dict[bytes, tuple[MemberHeartbeat, asyncio.Future[None]]] = field(default_factory=dict)
    leaving: dict[MemberDeparture, asyncio.Future[None]] = field(default_factory=dict)
    look: bool = False
    task: asyncio.Task[None] | None = None


class Topics(Protocol):
    """Topics of the cluster, as input of transitions."""

    @property
    def deleted(self) -> Collection[bytes]:
        """Ids of deleted topics."""

    def get(self) -> Mapping[str, AssignableTopic]:
        """Return all topics by name."""


class GroupTransactions:
    """Pending requests and running transactions of all groups."""

    def __init__(
        self,
        metastore: Metastore,
        source: PrefixView,
        view: GroupView,
        topics: Topics,
        metrics: CoordinatorMetrics,
        clock: Clock,
        *,
        transaction_seconds: float = TRANSACTION_SECONDS,
    ) -> None:
        self._metastore = metastore
        self._source = source
        self._view = view
        self._topics = topics
        self._metrics = metrics
        self._clock = clock
        self.times = GroupTimes(clock)
        self._transaction_seconds = transaction_seconds
        self._waiting: dict[str, _Waiting] = {}
        self._violation: AssertionError | None = None
        self._violated = asyncio.Event()

    async def run(self) -> None:
        """Raise the first invariant violation of a transaction, which stops the coordinator."""
        await self._violated.wait()
        assert self._violation is not None
        raise self._violation

    async def heartbeat(self, group_id: str, heartbeat: MemberHeartbeat, deadline: float) -> None:
        """Apply a heartbeat; raise the error that rejects it, or TimedOutError (outcome unknown) at `deadline`."""
        waiting = self._enter(group_id)
        before = waiting.heartbeats.get(heartbeat.member.member_id)
        if before is not None and before[0].member.user != heartbeat.member.user:
            raise no_member({}, heartbeat.member.member_id, "")
        future = asyncio.get_running_loop().create_future() if before is None else before[1]
        waiting.heartbeats[heartbeat.member.member_id] = heartbeat, future
        try:
            await self._await(group_id, future, deadline)
        finally:
            if waiting.heartbeats.get(heartbeat.member.member_id, (None,))[0] is heartbeat:
                del waiting.heartbeats[heartbeat.member.member_id]  # Its caller is gone; a join would add a ghost.

    async def leave(self, group_id: str, departure: MemberDeparture, deadline: float) -> None:
        """Remove a member; no error if it is already gone, or another user's."""
        waiting = self._enter(group_id)
        future = waiting.leaving.get(departure) or asyncio.get_running_loop().create_future()
        waiting.leaving[departure] = future
        await self._await(group_id, future, deadline)

    def look(self, group_id: str) -> None:
        """Run a transaction that updates the group to its members' leases and the topics."""
        self._enter(group_id).look = True
        self._start(group_id)

    def _enter(self, group_id: str) -> _Waiting:
        return self._waiting.setdefault(group_id, _Waiting())

    async def _await(self, group_id: str, future: asyncio.Future[None], deadline: float) -> None:
        self._start(group_id)
        try:
            async with asyncio.timeout_at(deadline):
                await asyncio.shield(future)
        except TimeoutError:
            raise TimedOutError("the group did not change in time", outcome=Outcome.UNKNOWN) from None

    async def stop(self) -> None:
        """Cancel running transactions; callers get an error with an unknown outcome."""
        tasks = [waiting.task for waiting in self._waiting.values() if waiting.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self, group_id: str) -> None:
        waiting = self._waiting[group_id]
        if waiting.task is None:
            waiting.task = asyncio.create_task(self._run(group_id, waiting), name=f"group-{group_id}")

    async def _run(self, group_id: str, waiting: _Waiting) -> None:
        """Run transactions while requests are pending."""
        loop = asyncio.get_running_loop()
        first, longest = RETRY_SECONDS
        pause = first
        try:
            while waiting.heartbeats or waiting.leaving or waiting.look:
                waiting.look = False
                began = loop.time()
                try:
                    has_written = await self._run_transaction(group_id, waiting)
                except MetastoreRolledBackError as error:
                    _fail_all(waiting, error)
                    return  # The view fails on it too, and stops the service.
                except LeaseNotFoundError:
                    waiting.look = True
                    await self._refuse_joins_without_lease(group_id, waiting)
                except (MetastoreUnavailableError, TimedOutError) as error:
                    log.info("group_transaction_delayed", group=group_id, cause=str(error))
                    waiting.look = True
                    await asyncio.sleep(pause)
                    pause = min(longest, 2 * pause)
                except AssertionError as error:
                    _fail_all(waiting, error)
                    self._violation = error
                    self._violated.set()
                    return
                except Exception as error:
                    log.exception("group_transaction_failed", group=group_id)
                    _fail_all(waiting, error)
                else:
                    pause = first
                    if has_written:
                        await asyncio.sleep(began + self._transaction_seconds - loop.time())
        finally:
            waiting.task = None
            _fail_all(waiting, TimedOutError("the coordinator stops", outcome=Outcome.UNKNOWN))
            if self._waiting.get(group_id) is waiting:
                del self._waiting[group_id]

    async def _refuse_joins_without_lease(self, group_id: str, waiting: _Waiting) -> None:
        """Reject the joins whose lease expired before the transaction, so that the others can proceed."""
        known = self._view.entry(group_id).group.members
        for member_id, (beat, future) in list(waiting.heartbeats.items()):
            if member_id in known or beat.member_epoch != 0:
                continue
            try:
                is_alive = await self._metastore.renew_lease(beat.member.lease_id) > 0
            except MetastoreRolledBackError:
                raise
            except LeaseNotFoundError:
                is_alive = False
            except MetastoreUnavailableError:
                continue
            if not is_alive and waiting.heartbeats.get(member_id, (None,))[0] is beat:
                del waiting.heartbeats[member_id]
                _settle(future, UnknownMemberError("the session ended before the member had joined"))

    async def _run_transaction(self, group_id: str, waiting: _Waiting) -> bool:
        """Run one transaction; return whether it changed the group."""
        entry = self._view.entry(group_id)
        heartbeats = {member_id: beat for member_id, (beat, _) in waiting.heartbeats.items()}
        leaving = tuple(waiting.leaving)
        before = self._view.with_epochs(entry)
        result = self._compute(entry, before, heartbeats, leaving, self.times.overdue(group_id, entry.group))
        if result.changes(before):
            if not entry.mod_revision:
                await self._create(group_id, next((each.member.user for each in heartbeats.values()), ""))
                waiting.look = True
                return False
            if not await self._write(group_id, entry, result):
                waiting.look = True
                return False
        waiting.look |= result.more
        for member_id, beat in heartbeats.items():
            if member_id in result.deferred or waiting.heartbeats.get(member_id, (None, None))[0] is not beat:
                continue
            _, future = waiting.heartbeats.pop(member_id)
            _settle(future, result.errors.get(member_id))
        for departure in leaving:
            if departure.member_id not in result.deferred and departure in waiting.leaving:
                _settle(waiting.leaving.pop(departure), None)
        return result.changes(before)

    async def _create(self, group_id: str, user: str) -> None:
        """Create the key of a user's new or previously deleted group; its create_revision determines the initial
        epochs.
        """
        key = self._view.keyspace.group(group_id)
        group = Group(empty_since_ms=self._clock.now_ms(), user=user)
        try:
            written = await self._metastore.txn([VersionIs(key, 0)], [Put(key, encode_group(group))])
        except MetastoreUnknownOutcomeError:
            self._metrics.ambiguous_writes.inc()
            raise
        if written.succeeded:
            await self._source.wait_for(written.revision, VIEW_SECONDS)
        else:
            await self._lost_compare(group_id, 0)

    def _compute(
        self,
        entry: GroupEntry,
        before: Group,
        heartbeats: Mapping[bytes, MemberHeartbeat],
        leaving: tuple[MemberDeparture, ...],
        overdue: frozenset[bytes],
    ) -> Transition:
        stored = {member_id: key_value.value for member_id, key_value in entry.assignments.items()}

        def compute(taken: list[MemberHeartbeat]) -> Transition:
            return transition(
                before,
                heartbeats=taken,
                leaving=leaving,
                live=entry.live,
                topics=self._topics.get(),
                deleted=self._topics.deleted,
                stored=stored,
                encode_assignments=encode_assignments,
                begun=entry.begun,
                overdue=overdue,
                now_ms=self._clock.now_ms(),
            )

        result = compute(list(heartbeats.values()))
        try:
            check_size(result.group, result.assignments)
        except GroupTooLargeError as error:
            growing = {m for m, beat in heartbeats.items() if may_enlarge(entry.group, beat)}
            result = compute([beat for m, beat in heartbeats.items() if m not in growing])
            result = replace(result, errors={**result.errors, **dict.fromkeys(growing, error)})
        return result

    async def _write(self, group_id: str, entry: GroupEntry, result: Transition) -> bool:
        """Write one transaction and wait until the view shows it; return False if a compare failed or the outcome is
        unknown."""
        keyspace = self._view.keyspace
        before, revision = entry.group, entry.mod_revision  # The view mutates `entry` when it shows the write.
        compares: list[Compare] = [
            ModRevisionIs(keyspace.group(group_id), entry.mod_revision),
            *(VersionIs(keyspace.group_member(group_id, member_id), 0) for member_id in result.absent),
        ]
        operations: list[Operation] = []
        if result.group != before:  # State and an assignment that is written alone need not fit into one transaction.
            operations.append(Put(keyspace.group(group_id), encode_group(result.group)))
        for member_id in result.gone:
            operations.append(Delete(keyspace.group_assignment(group_id, member_id)))
        operations += [Delete(keyspace.group_member(group_id, member_id)) for member_id in result.ended]
        for member_id, value in result.assignments.items():
            operations.append(Put(keyspace.group_assignment(group_id, member_id), value))
        for member_id, member in result.group.members.items():
            if member_id not in before.members:
                operations.append(_put_liveness(keyspace.group_member(group_id, member_id), member))
        try:
            written = await self._metastore.txn(compares, operations)
        except MetastoreUnknownOutcomeError:
            self._metrics.ambiguous_writes.inc()
            raise
        self._metrics.group_transactions.inc()
        # The revision of a transaction without writes may be above any that the view of this prefix reaches.
        if written.succeeded:
            await self._source.wait_for(written.revision, VIEW_SECONDS)
            self._report(group_id, before, result)
        else:
            await self._lost_compare(group_id, revision)
        return written.succeeded

    async def _lost_compare(self, group_id: str, revision: int) -> None:
        """Wait at most the first back-off for the view to show another state than `revision`, whose compare failed."""
        self._metrics.group_conflicts.inc()
        deadline = asyncio.get_running_loop().time() + RETRY_SECONDS[0]
        await self._view.wait_until(group_id, lambda: self._view.entry(group_id).mod_revision != revision, deadline)

    def _report(self, group_id: str, before: Group, result: Transition) -> None:
        after = result.group
        joined = [m for m in after.members if m not in before.members]
        if not joined and not result.gone and after.assignment_epoch == before.assignment_epoch:
            return
        self._metrics.group_rebalances.inc(after.assignment_epoch != before.assignment_epoch)
        self._metrics.group_evictions.inc(len(result.absent))
        log.info(
            "group_changed",
            group=group_id,
            group_epoch=after.group_epoch,
            members=len(after.members),
            joined=[m.hex() for m in joined],
            left=[m.hex() for m in result.ended],
            evicted=[m.hex() for m in result.absent],
        )


def _put_liveness(key: str, member: Member) -> Put:
    value = metadata_pb2.LiveMember(client_id=member.client_id, host=member.host).SerializeToString()
    return Put(key, value, member.lease_id)


def _settle(future: asyncio.Future[None], error: HeadraceError | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


def _fail_all(waiting: _Waiting, error: Exception) -> None:
    futures = [future for _, future in waiting.heartbeats.values()] + list(waiting.leaving.values())
    waiting.heartbeats.clear()
    waiting.leaving.clear()
    for future in futures:
        if not future.done():
            future.set_exception(error)
