"""Keys, revisions, leases and history of a metastore in one process, with etcd's semantics. Pure: time is an argument.

`local.LocalMetastore` serves it: over a database in the directory of a cluster in one process, and in memory in tests
and simulations. Each operation takes effect at once and completely; `take_changes` returns what it changed, for a
journal. Times are milliseconds of any clock that does not go back.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from headrace_server.metastore.api import (
    Compare,
    CreateRevisionIs,
    Delete,
    DeleteEvent,
    DeletePrefix,
    Exists,
    Get,
    KeyValue,
    LeaseNotFoundError,
    ModRevisionIs,
    Operation,
    Put,
    PutEvent,
    VersionIs,
    WatchEvent,
)

_EVENT_BYTES = 200
"""Memory of an event without its key and value, about."""


@dataclass(slots=True)
class Lease:
    """A lease that has not ended."""

    ttl_ms: int
    expires_ms: int
    keys: dict[str, None] = field(default_factory=dict)
    """Ordered, so that its end deletes them in the same order each time."""


@dataclass(frozen=True, slots=True)
class Committed:
    """All writes of one revision."""

    revision: int
    events: tuple[WatchEvent, ...]

    @property
    def size_bytes(self) -> int:
        """Memory that the history needs for it, about."""
        return sum(
            _EVENT_BYTES + (len(event.key_value.key) + len(event.key_value.value) if isinstance(event, PutEvent) else 0)
            for event in self.events
        )


@dataclass(frozen=True, slots=True)
class LeaseGranted:
    """A new lease."""

    lease_id: int
    ttl_ms: int


@dataclass(frozen=True, slots=True)
class LeaseEnded:
    """The end of a lease, whose keys were deleted by the `Committed` before."""

    lease_id: int


Change = Committed | LeaseGranted | LeaseEnded


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Contents without history."""

    revision: int
    next_lease_id: int
    """Ids are never used again, because a client may still renew a lease that has ended."""
    key_values: tuple[KeyValue, ...]
    """Ascending by key."""
    leases: dict[int, int]
    """Time to live in milliseconds by id."""


EMPTY = Snapshot(1, 1, (), {})


class MetastoreState:
    """Contents of a metastore. Owned by a `LocalMetastore`."""

    def __init__(self, snapshot: Snapshot = EMPTY, *, now_ms: int = 0, max_history_bytes: int | None = None) -> None:
        """Begin with a snapshot, whose leases have their whole time again, as at a new leader of etcd.

        The history for watches is compacted to about `max_history_bytes`; `None` keeps all since the last `compact`.
        """
        self._max_history_bytes = max_history_bytes
        self._history_bytes = 0
        self._changes: list[Change] = []
        self.revision = 0
        self.compact_revision = 0
        """Revision up to which the history is gone."""
        self.next_lease_id = 0
        self.leases: dict[int, Lease] = {}
        """Leases by id, in the order of their grants."""
        self._keys: dict[str, KeyValue] = {}
        self._order: list[str] = []
        self._history: deque[Committed] = deque()
        self.restore(snapshot, now_ms)
        self.compact_revision = 0 if snapshot is EMPTY else snapshot.revision

    def restore(self, snapshot: Snapshot, now_ms: int) -> None:
        """Return to a snapshot, and forget every later revision. Leases that it shares keep their remaining time."""
        before = self.leases
        self.revision, self.next_lease_id = snapshot.revision, snapshot.next_lease_id
        self._keys = {found.key: found for found in snapshot.key_values}
        self._order = list(self._keys)
        self.leases = {
            lease_id: Lease(ttl_ms, before[lease_id].expires_ms if lease_id in before else now_ms + ttl_ms)
            for lease_id, ttl_ms in snapshot.leases.items()
        }
        for found in snapshot.key_values:
            if found.lease_id:
                self.leases[found.lease_id].keys[found.key] = None
        while self._history and self._history[-1].revision > self.revision:
            self._history_bytes -= self._history.pop().size_bytes
        self._changes.clear()

    def snapshot(self) -> Snapshot:
        """Return the contents."""
        leases = {lease_id: lease.ttl_ms for lease_id, lease in self.leases.items()}
        key_values = tuple(self._keys[key] for key in self._order)
        return Snapshot(self.revision, self.next_lease_id, key_values, leases)

    def take_changes(self) -> list[Change]:
        """Return the changes since the last call, in order."""
        taken, self._changes = self._changes, []
        return taken

    def get(self, key: str) -> KeyValue | None:
        """Return one key."""
        return self._keys.get(key)

    def range(self, prefix: str) -> tuple[KeyValue, ...]:
        """Return all keys that start with `prefix`, ascending."""
        return tuple(self._keys[key] for key in self._under(prefix))

    def txn(
        self, compares: Sequence[Compare], success: Sequence[Operation], failure: Sequence[Operation]
    ) -> tuple[bool, tuple[tuple[KeyValue, ...], ...]]:
        """Execute a transaction that `check_txn` has passed; return whether the compares held, and the responses.

        Raises:
            LeaseNotFoundError: If a Put names a lease that has ended; nothing is changed.
        """
        succeeded = all(self._holds(compare) for compare in compares)
        branch = success if succeeded else failure
        for operation in branch:
            if isinstance(operation, Put) and operation.lease_id and operation.lease_id not in self.leases:
                raise LeaseNotFoundError("txn: the lease has ended", action="Get a new lease and register anew.")
        # etcd counts one revision for a transaction that writes, however many keys it writes.
        revision = self.revision + 1
        events: list[WatchEvent] = []
        responses = tuple(self._apply(operation, revision, events) for operation in branch)
        # A Put counts as a write always, a deletion only where it deleted something.
        if events:
            self._commit(revision, events)
        return succeeded, responses

    def grant(self, ttl_ms: int, now_ms: int) -> int:
        """Grant a lease and return its id."""
        lease_id, self.next_lease_id = self.next_lease_id, self.next_lease_id + 1
        self.leases[lease_id] = Lease(ttl_ms, now_ms + ttl_ms)
        self._changes.append(LeaseGranted(lease_id, ttl_ms))
        return lease_id

    def renew(self, lease_id: int, now_ms: int) -> int:
        """Renew a lease; return its time to live in ms, or `0` if it has ended."""
        lease = self.leases.get(lease_id)
        if lease is None:
            return 0
        if lease.expires_ms <= now_ms:
            self.end_lease(lease_id)  # As etcd, which says so only when the keys on it are gone.
            return 0
        lease.expires_ms = now_ms + lease.ttl_ms
        return lease.ttl_ms

    def end_lease(self, lease_id: int) -> bool:
        """End a lease now and delete its keys; return False if it had already ended."""
        lease = self.leases.get(lease_id)
        if lease is None:
            return False
        events: list[WatchEvent] = []
        self._remove(list(lease.keys), self.revision + 1, events)
        del self.leases[lease_id]
        if events:
            self._commit(self.revision + 1, events)
        self._changes.append(LeaseEnded(lease_id))
        return True

    def expire(self, now_ms: int) -> int:
        """End every lease whose time is over; return their number."""
        over = [lease_id for lease_id, lease in self.leases.items() if lease.expires_ms <= now_ms]
        for lease_id in over:
            self.end_lease(lease_id)
        return len(over)

    def compact(self, revision: int) -> None:
        """Forget the history up to `revision`, its own events too, as etcd does: a watch starts behind it."""
        self.compact_revision = revision
        while self._history and self._history[0].revision <= revision:
            self._history_bytes -= self._history.popleft().size_bytes

    def history_from(self, revision: int) -> Iterator[Committed]:
        """Yield what was committed at `revision` and later; `compact_revision` may not be past it."""
        last = len(self._history)
        while last and self._history[last - 1].revision >= revision:
            last -= 1
        return iter([self._history[index] for index in range(last, len(self._history))])

    def _under(self, prefix: str) -> Iterable[str]:
        start = bisect_left(self._order, prefix)
        found: list[str] = []
        while start < len(self._order) and self._order[start].startswith(prefix):
            found.append(self._order[start])
            start += 1
        return found

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
            case Put():
                self._put(operation, revision, events)
                return ()
            case Delete(key):
                return tuple(self._remove([key] if key in self._keys else [], revision, events))
            case DeletePrefix(prefix):
                return tuple(self._remove(self._under(prefix), revision, events))
            case Get(key):
                found = self._keys.get(key)
                return (found,) if found else ()

    def _put(self, put: Put, revision: int, events: list[WatchEvent]) -> None:
        before = self._keys.get(put.key)
        if before is None:
            insort(self._order, put.key)
        elif before.lease_id:
            self.leases[before.lease_id].keys.pop(put.key, None)
        after = KeyValue(
            put.key,
            bytes(put.value),
            before.create_revision if before else revision,
            revision,
            before.version + 1 if before else 1,
            put.lease_id,
        )
        if put.lease_id:
            self.leases[put.lease_id].keys[put.key] = None
        self._keys[put.key] = after
        events.append(PutEvent(after))

    def _remove(self, keys: Iterable[str], revision: int, events: list[WatchEvent]) -> list[KeyValue]:
        removed = [self._keys.pop(key) for key in keys]
        for found in removed:
            del self._order[bisect_left(self._order, found.key)]
            if found.lease_id:
                self.leases[found.lease_id].keys.pop(found.key, None)
            events.append(DeleteEvent(found.key, revision))
        return removed

    def _commit(self, revision: int, events: list[WatchEvent]) -> None:
        self.revision = revision
        committed = Committed(revision, tuple(events))
        self._history.append(committed)
        self._history_bytes += committed.size_bytes
        self._changes.append(committed)
        if self._max_history_bytes is not None:
            while self._history_bytes > self._max_history_bytes:
                self.compact(self._history[0].revision)
