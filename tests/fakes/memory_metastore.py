"""An in-memory metastore with etcd's semantics: revisions, versions, leases, compaction, watches.

For tests and simulations; it passes the contract tests that etcd passes (tests/contract). Everything happens on one
event loop, at the moment of the call: nothing is random and no real time passes. Leases follow the injected clock and
end when `expire_leases` is called or the next call comes. Faults are injected from outside, by wrapping.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

from headrace.wire.errors import InvalidRequestError, MetastoreUnavailableError, Outcome
from headrace_server.clock import Clock, SystemClock
from headrace_server.metastore.api import (
    CompactedError,
    Compare,
    CreateRevisionIs,
    Delete,
    DeleteEvent,
    DeletePrefix,
    Exists,
    Get,
    GetResult,
    KeyValue,
    LeaseGrant,
    LeaseNotFoundError,
    MetastoreStatus,
    MetastoreUnknownOutcomeError,
    ModRevisionIs,
    Operation,
    Put,
    PutEvent,
    RangeResult,
    TxnResult,
    VersionIs,
    WatchEvent,
    WatchEvents,
    check_txn,
)


@dataclass(slots=True)
class _Lease:
    ttl_ms: int
    expires_ms: int
    keys: dict[str, None] = field(default_factory=dict)
    """Ordered, so that an expiry deletes in the same order each time."""


class MemoryMetastore:
    """The fake. Several services may share one instance, as several clients share one etcd."""

    def __init__(self, *, clock: Clock | None = None, cluster_id: int = 0xFA4E) -> None:
        self._clock: Clock = clock or SystemClock()
        self._cluster_id = cluster_id
        self._revision = 1
        self._compact_revision = 0
        self._keys: dict[str, KeyValue] = {}
        self._history: list[tuple[int, tuple[WatchEvent, ...]]] = []
        self._leases: dict[int, _Lease] = {}
        self._next_lease_id = 1
        self._changed = asyncio.Event()
        self._closed = False

    async def get(self, key: str) -> GetResult:
        """See `Metastore.get`."""
        if not key:
            raise InvalidRequestError("a read of an empty key", action="Name a key.")
        self._enter_read()
        return GetResult(self._keys.get(key), self._revision, self._cluster_id)

    async def range(self, prefix: str) -> RangeResult:
        """See `Metastore.range`."""
        if not prefix:
            raise InvalidRequestError("a read of an empty prefix", action="Name a prefix.")
        self._enter_read()
        found = tuple(self._keys[key] for key in self._under(prefix))
        return RangeResult(found, self._revision, self._cluster_id)

    async def txn(
        self, compares: Sequence[Compare], success: Sequence[Operation], failure: Sequence[Operation] = ()
    ) -> TxnResult:
        """See `Metastore.txn`."""
        check_txn(compares, success, failure)
        self._enter_write()
        succeeded = all(self._holds(compare) for compare in compares)
        branch = success if succeeded else failure
        for operation in branch:
            if isinstance(operation, Put) and operation.lease_id and operation.lease_id not in self._leases:
                raise LeaseNotFoundError("txn: the lease has ended", action="Get a new lease and register anew.")
        # etcd counts one revision for a transaction that writes, however many keys it writes.
        revision = self._revision + 1
        events: list[WatchEvent] = []
        responses = tuple(self._apply(operation, revision, events) for operation in branch)
        # A Put counts as a write always, a deletion only where it deleted something.
        if events:
            self._commit(revision, events)
        return TxnResult(succeeded, self._revision, responses, self._cluster_id)

    async def grant_lease(self, ttl_ms: int) -> LeaseGrant:
        """See `Metastore.grant_lease`."""
        if ttl_ms < 1_000:
            raise InvalidRequestError(
                f"lease TTL {ttl_ms} ms is below the minimum of 1000 ms", action="Ask for 1000 ms or more."
            )
        self._enter_write()
        granted_ms = -(-ttl_ms // 1_000) * 1_000
        lease_id, self._next_lease_id = self._next_lease_id, self._next_lease_id + 1
        self._leases[lease_id] = _Lease(granted_ms, self._clock.boottime_ms() + granted_ms)
        return LeaseGrant(lease_id, granted_ms)

    async def revoke_lease(self, lease_id: int) -> bool:
        """See `Metastore.revoke_lease`."""
        self._enter_write()
        return self._end_lease(lease_id)

    async def renew_lease(self, lease_id: int) -> int:
        """See `Metastore.renew_lease`."""
        self._enter_read()
        return self.renew_lease_now(lease_id)

    def renew_lease_now(self, lease_id: int) -> int:
        """Renew a lease without waiting; the new time to live in ms, 0: ended."""
        lease = self._leases.get(lease_id)
        now_ms = self._clock.boottime_ms()
        if lease is None:
            return 0
        if lease.expires_ms <= now_ms:
            self._end_lease(lease_id)  # As etcd, which says so only when the keys on it are gone.
            return 0
        lease.expires_ms = now_ms + lease.ttl_ms
        return lease.ttl_ms

    def expire_leases(self) -> int:
        """End every lease whose time has come by the clock; how many."""
        now_ms = self._clock.boottime_ms()
        over = [lease_id for lease_id, lease in self._leases.items() if lease.expires_ms <= now_ms]
        for lease_id in over:
            self._end_lease(lease_id)
        return len(over)

    async def watch(
        self, prefix: str, start_revision: int, *, progress_interval_s: float = 5.0
    ) -> AsyncIterator[WatchEvents]:
        """See `Metastore.watch`."""
        assert prefix, "an empty prefix"
        assert start_revision > 0, start_revision
        self._enter_read()
        if start_revision <= self._compact_revision:
            raise self._compacted(f"the watch of {prefix} from revision {start_revision} came too late")
        yield WatchEvents(self._revision, (), self._cluster_id)
        next_revision = start_revision
        while True:
            # Taken before the history is read: what is written while this waits at a `yield` sets it.
            changed = self._changed
            for revision, events in self._history_from(next_revision):
                matching = tuple(event for event in events if _event_key(event).startswith(prefix))
                next_revision = revision + 1
                if matching:
                    yield WatchEvents(revision, matching, self._cluster_id)
            try:
                async with asyncio.timeout(progress_interval_s):
                    await changed.wait()
            except TimeoutError:
                yield WatchEvents(self._revision, (), self._cluster_id)
            self._enter_read()
            if next_revision <= self._compact_revision:
                raise self._compacted(f"the watch of {prefix} fell behind a compaction")

    async def compact(self, revision: int) -> None:
        """See `Metastore.compact`."""
        self._enter_write()
        if not self._compact_revision < revision <= self._revision:
            raise InvalidRequestError(
                f"cannot compact at {revision}: between {self._compact_revision} and {self._revision}",
                action="Name a revision in that range.",
            )
        self._compact_revision = revision
        # Events of the compacted revision itself are gone too, as in etcd: a watch starts behind it.
        self._history = [(at, events) for at, events in self._history if at > revision]

    async def status(self) -> MetastoreStatus:
        """See `Metastore.status`."""
        self._enter_read()
        size = sum(len(kv.key) + len(kv.value) for kv in self._keys.values())
        return MetastoreStatus("memory", self._revision, self._cluster_id, size)

    async def close(self) -> None:
        """See `Metastore.close`."""
        self._closed = True
        self._changed.set()

    def _enter_read(self) -> None:
        if self._closed:
            raise MetastoreUnavailableError("the metastore is closed", outcome=Outcome.NOT_APPLIED)
        self.expire_leases()

    def _enter_write(self) -> None:
        if self._closed:
            raise MetastoreUnknownOutcomeError("the metastore is closed")
        self.expire_leases()

    def _under(self, prefix: str) -> Iterator[str]:
        return iter(sorted(key for key in self._keys if key.startswith(prefix)))

    def _holds(self, compare: Compare) -> bool:
        found = self._keys.get(compare.key)
        match compare:
            case ModRevisionIs(revision=revision):
                return (found.mod_revision if found else 0) == revision
            case CreateRevisionIs(revision=revision):
                return (found.create_revision if found else 0) == revision
            case VersionIs(version=version):
                return (found.version if found else 0) == version
            case Exists():
                return found is not None

    def _apply(self, operation: Operation, revision: int, events: list[WatchEvent]) -> tuple[KeyValue, ...]:
        match operation:
            case Put(key, value, lease_id):
                before = self._keys.get(key)
                if before is not None and before.lease_id:
                    self._leases[before.lease_id].keys.pop(key, None)
                after = KeyValue(
                    key,
                    bytes(value),
                    before.create_revision if before else revision,
                    revision,
                    before.version + 1 if before else 1,
                    lease_id,
                )
                if lease_id:
                    self._leases[lease_id].keys[key] = None
                self._keys[key] = after
                events.append(PutEvent(after))
                return ()
            case Delete(key):
                return tuple(self._remove([key] if key in self._keys else [], revision, events))
            case DeletePrefix(prefix):
                return tuple(self._remove(list(self._under(prefix)), revision, events))
            case Get(key):
                found = self._keys.get(key)
                return (found,) if found else ()

    def _remove(self, keys: list[str], revision: int, events: list[WatchEvent]) -> list[KeyValue]:
        removed = [self._keys.pop(key) for key in keys]
        for kv in removed:
            if kv.lease_id:
                self._leases[kv.lease_id].keys.pop(kv.key, None)
            events.append(DeleteEvent(kv.key, revision))
        return removed

    def _end_lease(self, lease_id: int) -> bool:
        lease = self._leases.get(lease_id)
        if lease is None:
            return False
        events: list[WatchEvent] = []
        self._remove(list(lease.keys), self._revision + 1, events)
        del self._leases[lease_id]
        if events:
            self._commit(self._revision + 1, events)
        return True

    def _commit(self, revision: int, events: list[WatchEvent]) -> None:
        self._revision = revision
        self._history.append((revision, tuple(events)))
        self._changed.set()
        self._changed = asyncio.Event()

    def _history_from(self, revision: int) -> list[tuple[int, tuple[WatchEvent, ...]]]:
        return self._history[bisect_left(self._history, revision, key=itemgetter(0)) :]

    def _compacted(self, message: str) -> CompactedError:
        return CompactedError(message, compact_revision=self._compact_revision)


class MemoryLeaseRenewer:
    """`lease.LeaseRenewer` on the fake: the keeper's thread asks the loop that owns the fake."""

    def __init__(self, metastore: MemoryMetastore, loop: asyncio.AbstractEventLoop) -> None:
        self._metastore = metastore
        self._loop = loop

    def renew(self, lease_id: int, timeout_s: float) -> int:
        """See `lease.LeaseRenewer.renew`."""
        try:
            future = asyncio.run_coroutine_threadsafe(self._metastore.renew_lease(lease_id), self._loop)
            return future.result(timeout_s)
        except (TimeoutError, RuntimeError) as error:
            raise MetastoreUnavailableError("the fake did not answer in time", outcome=Outcome.UNKNOWN) from error

    def close(self) -> None:
        """Nothing is held."""


def _event_key(event: WatchEvent) -> str:
    return event.key_value.key if isinstance(event, PutEvent) else event.key
