"""`Metastore` over a state in this process: with a journal the metastore of a cluster in one process, without one the
fake of tests and simulations.

With a journal a call is answered, and a watch told, only of what the journal has stored durably. Calls that come while
it stores are decided at once, on the state that they will find, and stored together by its next commit. If a commit
fails, the state returns to what the journal has, and every call that had not been answered by then gets an unknown
outcome.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from headrace.wire.errors import HeadraceError, InvalidRequestError, MetastoreUnavailableError, Outcome

from headrace_server.metastore.api import (
    CompactedError,
    Compare,
    GetResult,
    LeaseGrant,
    MemberStatus,
    MetastoreStatus,
    MetastoreUnknownOutcomeError,
    Operation,
    PutEvent,
    RangeResult,
    TxnResult,
    WatchEvent,
    WatchEvents,
    check_txn,
)
from headrace_server.metastore.state import Change, Committed, MetastoreState, Snapshot


class JournalFullError(MetastoreUnavailableError):
    """There is no room for a commit, which was not stored. Later commits may succeed."""


class JournalFailedError(MetastoreUnavailableError):
    """What the disk holds is not known after a failed write. The process must end; its next start reads what is
    there."""


class Journal(Protocol):
    """Durable copy of a state. `load` and `commit` are called in a thread, one at a time."""

    version: str
    """Name and release of the store."""
    path: str
    quota_bytes: int

    def load(self) -> Snapshot:
        """Return what is stored. Raises JournalFailedError."""

    def commit(self, revision: int, next_lease_id: int, changes: Sequence[Change]) -> None:
        """Store changes durably, all or none. Raises JournalFullError, JournalFailedError."""

    def sizes(self) -> tuple[int, int]:
        """Return the size of the store and the part of it in use, in bytes, after the last commit."""

    def close(self) -> None:
        """Release the store."""


@dataclass(slots=True, eq=False)
class _Batch:
    """Changes that one commit stores."""

    changes: list[Change]
    stored: asyncio.Future[None]
    revision: int = 0
    next_lease_id: int = 0


class LocalMetastore:
    """See the module. Belongs to the running event loop; several services may share it, as several clients share etcd.

    Args:
        now_ms: clock of the leases, in milliseconds.
        journal: ownership is transferred; `close` closes it.
    """

    def __init__(
        self,
        state: MetastoreState,
        *,
        now_ms: Callable[[], int],
        cluster_id: int,
        journal: Journal | None = None,
    ) -> None:
        self.state = state
        self._now_ms = now_ms
        self._cluster_id = cluster_id
        self._journal = journal
        self._executor = None if journal is None else ThreadPoolExecutor(1, thread_name_prefix="metastore")
        self._collecting: _Batch | None = None
        self._storing: _Batch | None = None
        self._writer: asyncio.Task[None] | None = None
        self._visible = state.revision
        self._changed = asyncio.Event()
        self._closed = False
        self._failure: JournalFailedError | None = None
        self._failed = asyncio.Event()
        self._full = False

    async def get(self, key: str) -> GetResult:
        """See `Metastore.get`."""
        if not key:
            raise InvalidRequestError("a read of an empty key", action="Name a key.")
        self._enter_read()
        result = GetResult(self.state.get(key), self.state.revision, self._cluster_id)
        await self._stored_for_read()
        return result

    async def range(self, prefix: str) -> RangeResult:
        """See `Metastore.range`."""
        if not prefix:
            raise InvalidRequestError("a read of an empty prefix", action="Name a prefix.")
        self._enter_read()
        result = RangeResult(self.state.range(prefix), self.state.revision, self._cluster_id)
        await self._stored_for_read()
        return result

    async def txn(
        self, compares: Sequence[Compare], success: Sequence[Operation], failure: Sequence[Operation] = ()
    ) -> TxnResult:
        """See `Metastore.txn`."""
        check_txn(compares, success, failure)
        self._enter_write()
        succeeded, responses = self.state.txn(compares, success, failure)
        self._note_changes()
        result = TxnResult(succeeded, self.state.revision, responses, self._cluster_id)
        await self._stored()
        return result

    async def grant_lease(self, ttl_ms: int) -> LeaseGrant:
        """See `Metastore.grant_lease`."""
        if ttl_ms < 1_000:
            raise InvalidRequestError(
                f"lease TTL {ttl_ms} ms is below the minimum of 1000 ms", action="Ask for 1000 ms or more."
            )
        self._enter_write()
        granted_ms = -(-ttl_ms // 1_000) * 1_000
        lease_id = self.state.grant(granted_ms, self._now_ms())
        self._note_changes()
        await self._stored()
        return LeaseGrant(lease_id, granted_ms)

    async def revoke_lease(self, lease_id: int) -> bool:
        """See `Metastore.revoke_lease`."""
        self._enter_write()
        was_there = self.state.end_lease(lease_id)
        self._note_changes()
        await self._stored()
        return was_there

    async def renew_lease(self, lease_id: int) -> int:
        """See `Metastore.renew_lease`."""
        self._enter_read()
        left_ms = self.renew_lease_now(lease_id)
        if left_ms == 0:
            await self._stored_for_read()
        return left_ms

    def renew_lease_now(self, lease_id: int) -> int:
        """Renew a lease without waiting; return its time to live in ms, or `0` if it has ended."""
        left_ms = self.state.renew(lease_id, self._now_ms())
        self._note_changes()
        return left_ms

    def expire_leases(self) -> int:
        """End every lease whose time is over by the clock; return their number."""
        ended = self.state.expire(self._now_ms())
        self._note_changes()
        return ended

    async def watch(
        self, prefix: str, start_revision: int, *, progress_interval_s: float = 5.0
    ) -> AsyncIterator[WatchEvents]:
        """See `Metastore.watch`."""
        assert prefix, "an empty prefix"
        assert start_revision > 0, start_revision
        self._enter_read()
        if start_revision <= self.state.compact_revision:
            raise self._compacted(f"the watch of {prefix} from revision {start_revision} came too late")
        yield WatchEvents(self._visible, (), self._cluster_id)
        next_revision = start_revision
        while True:
            if next_revision <= self.state.compact_revision:
                raise self._compacted(f"the watch of {prefix} fell behind a compaction")
            # Taken before the history is read: what is written while this waits at a `yield` sets it.
            changed = self._changed
            for committed in self.state.history_from(next_revision):
                if committed.revision > self._visible:
                    break
                matching = tuple(event for event in committed.events if _event_key(event).startswith(prefix))
                next_revision = committed.revision + 1
                if matching:
                    yield WatchEvents(committed.revision, matching, self._cluster_id)
            try:
                async with asyncio.timeout(progress_interval_s):
                    await changed.wait()
            except TimeoutError:
                yield WatchEvents(self._visible, (), self._cluster_id)
            self._enter_read()

    async def compact(self, revision: int) -> None:
        """See `Metastore.compact`."""
        self._enter_write()
        await self._stored()
        if not self.state.compact_revision < revision <= self._visible:
            raise InvalidRequestError(
                f"cannot compact at {revision}: between {self.state.compact_revision} and {self._visible}",
                action="Name a revision in that range.",
            )
        self.state.compact(revision)

    async def status(self) -> MetastoreStatus:
        """See `Metastore.status`."""
        self._enter_read()
        await self._stored_for_read()
        if self._journal is None:
            return MetastoreStatus("memory", self.state.revision, self._cluster_id, 0)
        return MetastoreStatus(self._journal.version, self.state.revision, self._cluster_id, self._journal.sizes()[0])

    @property
    def has_user(self) -> bool:
        """See `Metastore.has_user`: only this process can reach it."""
        return True

    async def describe_members(self) -> list[MemberStatus]:
        """See `Metastore.describe_members`."""
        journal = self._journal
        if journal is None:
            return [MemberStatus("memory", version="memory", has_leader=True)]
        stored, used = journal.sizes()
        return [
            MemberStatus(
                journal.path,
                "" if self._failure is None else self._failure.message,
                version=journal.version,
                database_bytes=stored,
                used_bytes=used,
                quota_bytes=journal.quota_bytes,
                has_leader=True,
                alarms=("NOSPACE",) if self._full else (),
            )
        ]

    def make_renewer(self) -> LocalLeaseRenewer:
        """See `Metastore.make_renewer`. Call it on the event loop."""
        return LocalLeaseRenewer(self, asyncio.get_running_loop())

    async def run(self, tick_s: float) -> None:
        """End leases at their time, until cancelled.

        Raises:
            JournalFailedError: If a write of the journal failed; the process must end.
        """
        while self._failure is None:
            self.expire_leases()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(tick_s):
                    await self._failed.wait()
        raise self._failure

    async def close(self) -> None:
        """See `Metastore.close`. What was decided before is stored first."""
        if self._closed:
            return
        self._closed = True
        if self._writer is not None:
            await asyncio.wait([self._writer])
        self._changed.set()
        if self._executor is not None:
            assert self._journal is not None
            await asyncio.get_running_loop().run_in_executor(self._executor, self._journal.close)
            self._executor.shutdown()

    def _enter_read(self) -> None:
        if self._closed:
            raise MetastoreUnavailableError("the metastore is closed", outcome=Outcome.NOT_APPLIED)
        if self._failure is not None:
            raise MetastoreUnavailableError(self._failure.message, outcome=Outcome.NOT_APPLIED)
        self.expire_leases()

    def _enter_write(self) -> None:
        if self._closed:
            raise MetastoreUnknownOutcomeError("the metastore is closed")
        if self._failure is not None:
            raise MetastoreUnknownOutcomeError(self._failure.message)
        self.expire_leases()

    def _note_changes(self) -> None:
        """Publish what an operation has changed, or pass it to the journal first."""
        changes = self.state.take_changes()
        if not changes:
            return
        if self._journal is None:
            self._publish(changes)
            return
        if self._collecting is None:
            self._collecting = _Batch([], asyncio.get_running_loop().create_future())
        batch = self._collecting
        batch.changes.extend(changes)
        batch.revision, batch.next_lease_id = self.state.revision, self.state.next_lease_id
        if self._writer is None:
            self._writer = asyncio.create_task(self._write(self._journal), name="metastore journal")

    def _publish(self, changes: Sequence[Change]) -> None:
        """Let watches see stored changes."""
        for change in changes:
            if isinstance(change, Committed):
                self._visible = change.revision
                self._on_commit(change)
        self._changed.set()
        self._changed = asyncio.Event()

    def _on_commit(self, committed: Committed) -> None:
        """Called for each revision once it is visible; for simulations, which check every one."""

    async def _write(self, journal: Journal) -> None:
        """Store batches until there is none; return to what is stored if there is no room for one."""
        call = partial(asyncio.get_running_loop().run_in_executor, self._executor)
        try:
            while (batch := self._collecting) is not None:
                self._collecting, self._storing = None, batch
                try:
                    await call(journal.commit, batch.revision, batch.next_lease_id, batch.changes)
                except JournalFullError as error:
                    self._full = True
                    stored = await call(journal.load)
                    self._fail_waiting(error)
                    self.state.restore(stored, self._now_ms())
                else:
                    self._full = False
                    self._storing = None
                    self._publish(batch.changes)
                    batch.stored.set_result(None)
        except Exception as error:
            self._failure = error if isinstance(error, JournalFailedError) else _failed(journal, error)
            self._fail_waiting(self._failure)
            self._failed.set()
        self._writer = None

    def _fail_waiting(self, error: MetastoreUnavailableError) -> None:
        """Fail the calls that wait for a commit."""
        for batch in (self._storing, self._collecting):
            if batch is not None:
                batch.stored.set_exception(error)
                batch.stored.exception()  # Perhaps no call waits: a lease has ended by itself.
        self._storing = self._collecting = None

    async def _stored(self) -> None:
        """Wait until everything decided up to now is stored.

        Raises:
            MetastoreUnknownOutcomeError: If it is not.
        """
        batch = self._collecting or self._storing
        if batch is None:
            return
        try:
            await asyncio.shield(batch.stored)
        except MetastoreUnavailableError as error:
            raise MetastoreUnknownOutcomeError(error.message) from error

    async def _stored_for_read(self) -> None:
        """As `_stored`; a read that cannot be answered has changed nothing."""
        try:
            await self._stored()
        except MetastoreUnknownOutcomeError as error:
            raise MetastoreUnavailableError(error.message, outcome=Outcome.NOT_APPLIED) from error

    def _compacted(self, message: str) -> CompactedError:
        return CompactedError(message, compact_revision=self.state.compact_revision)


class LocalLeaseRenewer:
    """`api.LeaseRenewer` of a `LocalMetastore`: the keeper's thread asks the loop that owns it."""

    def __init__(self, metastore: LocalMetastore, loop: asyncio.AbstractEventLoop) -> None:
        self._metastore = metastore
        self._loop = loop

    def renew(self, lease_id: int, timeout_s: float) -> int:
        """See `LeaseRenewer.renew`."""
        renewal = self._metastore.renew_lease(lease_id)
        try:
            future = asyncio.run_coroutine_threadsafe(renewal, self._loop)
        except RuntimeError as error:
            renewal.close()
            raise MetastoreUnavailableError("the event loop has ended", outcome=Outcome.UNKNOWN) from error
        try:
            return future.result(timeout_s)
        except TimeoutError as error:
            raise MetastoreUnavailableError("the metastore did not answer in time", outcome=Outcome.UNKNOWN) from error

    def close(self) -> None:
        """Nothing is held."""


def _failed(journal: Journal, error: Exception) -> JournalFailedError:
    message = error.message if isinstance(error, HeadraceError) else f"{journal.path} failed: {error!r}"
    return JournalFailedError(
        message,
        outcome=Outcome.UNKNOWN,
        retriable=False,
        fatal=True,
        action="Start the process again: it reads what is stored, or reports what is wrong with it.",
    )


def _event_key(event: WatchEvent) -> str:
    return event.key_value.key if isinstance(event, PutEvent) else event.key
