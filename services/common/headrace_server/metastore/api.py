"""What headrace asks of etcd: typed reads, compare-and-swap transactions, leases and watches.

Called by brokers and coordinators; implemented by `etcd.EtcdMetastore` and `memory.MemoryMetastore`, which pass the
same contract tests (tests/contract). The rules kept here (PROTOCOL C1-C4, H78-H82):

- A write has two answers only: "succeeded" and "compare failed". Whatever else happens (a deadline, UNAVAILABLE, a
  change of etcd's leader, NOSPACE, a cancelled call) raises `MetastoreUnknownOutcomeError`: it may have happened, or
  may yet. No write is sent twice by this layer.
- Every read is linearizable. Every call has a deadline.
- A request beyond etcd's limits is refused before it is sent.

Keys are `str` (UTF-8 in etcd, so that their order is that of the bytes), values `bytes`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from headrace.wire.errors import InvalidRequestError, MetastoreUnavailableError, Outcome

MAX_TXN_OPERATIONS = 128
"""Most operations in either branch of a transaction, and most compares (etcd's `--max-txn-ops`)."""
MAX_REQUEST_BYTES = 1_572_864
"""Most bytes of keys and values in one request (etcd's `--max-request-bytes`, 1.5 MiB)."""


@dataclass(frozen=True, slots=True)
class KeyValue:
    """One key as it stood at some revision."""

    key: str
    value: bytes
    create_revision: int
    """The revision of the write that made the key: the epoch of a registration."""
    mod_revision: int
    """The revision of the last write."""
    version: int
    """How many writes since it was made, from 1."""
    lease_id: int
    """The lease it dies with, or 0."""


@dataclass(frozen=True, slots=True)
class ModRevisionIs:
    """True where the key's last write was at `revision`; 0: the key is absent."""

    key: str
    revision: int


@dataclass(frozen=True, slots=True)
class CreateRevisionIs:
    """True where the key was made at `revision`; 0: the key is absent."""

    key: str
    revision: int


@dataclass(frozen=True, slots=True)
class VersionIs:
    """True where the key has been written `version` times since it was made; 0: the key is absent."""

    key: str
    version: int


@dataclass(frozen=True, slots=True)
class Exists:
    """True where the key is there, whatever its version."""

    key: str


Compare = ModRevisionIs | CreateRevisionIs | VersionIs | Exists


@dataclass(frozen=True, slots=True)
class Put:
    """Write a key."""

    key: str
    value: bytes
    lease_id: int = 0
    """The lease it dies with; 0: it stays."""


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a key, where it is there."""

    key: str


@dataclass(frozen=True, slots=True)
class DeletePrefix:
    """Delete every key that starts with `prefix`, which is not empty."""

    prefix: str


@dataclass(frozen=True, slots=True)
class Get:
    """Read a key inside the transaction."""

    key: str


Operation = Put | Delete | DeletePrefix | Get


@dataclass(frozen=True, slots=True)
class TxnResult:
    """How a transaction ended."""

    succeeded: bool
    """True: every compare held and `success` was done. False: one did not and `failure` was done."""
    revision: int
    """etcd's revision after the transaction; of the write itself where the branch done wrote anything."""
    responses: tuple[tuple[KeyValue, ...], ...]
    """One a operation of the branch done: Get, the key if there; Delete and DeletePrefix, what was deleted; Put, ()."""
    cluster_id: int


@dataclass(frozen=True, slots=True)
class GetResult:
    """One key, or that it is not there, at a revision."""

    key_value: KeyValue | None
    revision: int
    cluster_id: int


@dataclass(frozen=True, slots=True)
class RangeResult:
    """All keys of a prefix at one revision, ascending by key."""

    key_values: tuple[KeyValue, ...]
    revision: int
    cluster_id: int


@dataclass(frozen=True, slots=True)
class LeaseGrant:
    """A new lease."""

    lease_id: int
    ttl_ms: int
    """What etcd granted, which may be more than was asked for."""


@dataclass(frozen=True, slots=True)
class PutEvent:
    """A key was written."""

    key_value: KeyValue


@dataclass(frozen=True, slots=True)
class DeleteEvent:
    """A key was deleted, or its lease ended."""

    key: str
    mod_revision: int


WatchEvent = PutEvent | DeleteEvent


@dataclass(frozen=True, slots=True)
class WatchEvents:
    """All changes of one revision under the prefix, never a part of them; or, without events, a progress
    notification.
    """

    revision: int
    """With events: their revision. Without: etcd's revision, which does not say that all events up to it have come
    (etcd before 3.5.8 answers progress requests out of order, etcd-io/etcd #15220)."""
    events: tuple[WatchEvent, ...]
    cluster_id: int


@dataclass(frozen=True, slots=True)
class MetastoreStatus:
    """The etcd member that answered."""

    version: str
    revision: int
    cluster_id: int
    database_bytes: int


class MetastoreUnknownOutcomeError(MetastoreUnavailableError):
    """A write that was sent and not answered: it is neither done nor failed. Send it again on the same compares until
    one attempt wins, or until the key is seen past the compared revision (PROTOCOL C3)."""

    def __init__(self, message: str = "", **fields: Any) -> None:
        super().__init__(message, **({"outcome": Outcome.UNKNOWN} | fields))


class CompactedError(MetastoreUnavailableError):
    """The revision asked for has been compacted away: read the whole prefix again and continue from there."""

    def __init__(self, message: str, *, compact_revision: int) -> None:
        super().__init__(message, outcome=Outcome.NOT_APPLIED, action="Read everything again and watch from there.")
        self.compact_revision = compact_revision


class MetastoreRolledBackError(MetastoreUnavailableError):
    """etcd's revision went back, or another cluster answers: restored from a backup, or a wrong endpoint. Nothing may
    continue from here: stop, and let an operator look (PROTOCOL H81)."""

    def __init__(self, message: str, **fields: Any) -> None:
        defaults: dict[str, Any] = {
            "retriable": False,
            "fatal": True,
            "outcome": Outcome.UNKNOWN,
            "action": "Check etcd_endpoints; after a restore stop all, run `headrace-coordinator recover-metadata`.",
        }
        super().__init__(message, **(defaults | fields))


class LeaseNotFoundError(InvalidRequestError):
    """The lease has ended or never was: get a new one and register anew. The write was not done."""


def check_txn(compares: Sequence[Compare], success: Sequence[Operation], failure: Sequence[Operation]) -> None:
    """Refuse a transaction that etcd would refuse, before it is sent.

    Raises:
        InvalidRequestError: as `Metastore.txn` says.
    """
    size = sum(len(compare.key) for compare in compares)
    if len(compares) > MAX_TXN_OPERATIONS:
        raise _bad_txn(f"{len(compares)} compares", f"at most {MAX_TXN_OPERATIONS}")
    if not all(compare.key for compare in compares):
        raise _bad_txn("a compare with an empty key", "a key in each")
    for branch in (success, failure):
        if len(branch) > MAX_TXN_OPERATIONS:
            raise _bad_txn(f"{len(branch)} operations", f"at most {MAX_TXN_OPERATIONS}")
        written: set[str] = set()
        for operation in branch:
            key = operation.prefix if isinstance(operation, DeletePrefix) else operation.key
            if not key:
                raise _bad_txn("an operation with an empty key", "a key in each")
            size += len(key.encode()) + 16
            if isinstance(operation, Put):
                size += len(operation.value)
                if key in written:
                    raise _bad_txn(f"two writes of {key}", "one write a key")
                written.add(key)
        for operation in branch:
            if isinstance(operation, Delete) and operation.key in written:
                raise _bad_txn(f"two writes of {operation.key}", "one write a key")
            if isinstance(operation, DeletePrefix) and any(key.startswith(operation.prefix) for key in written):
                raise _bad_txn(f"a write below the deleted prefix {operation.prefix}", "one write a key")
    if size > MAX_REQUEST_BYTES:
        raise _bad_txn(f"{size} bytes", f"at most {MAX_REQUEST_BYTES}")


def _bad_txn(found: str, wanted: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"a transaction with {found}; etcd takes {wanted}", action="Split it into smaller transactions."
    )


class Metastore(Protocol):
    """etcd, or the fake. One event loop owns it; its methods may be called concurrently from tasks of that loop.

    Every method raises `MetastoreUnavailableError` (reads) or `MetastoreUnknownOutcomeError` (writes) where etcd gave
    no answer within the deadline, and `MetastoreRolledBackError` where another cluster answered.
    """

    async def get(self, key: str) -> GetResult:
        """Read one key."""

    async def range(self, prefix: str) -> RangeResult:
        """Read all keys that start with `prefix` (not empty), at one revision, however many they are.

        Raises:
            CompactedError: a compaction overtook a read of many pages; read again.
        """

    async def txn(
        self, compares: Sequence[Compare], success: Sequence[Operation], failure: Sequence[Operation] = ()
    ) -> TxnResult:
        """Do `success` if every compare holds, else `failure`, atomically.

        Raises:
            InvalidRequestError: more than 128 compares or operations, more than 1.5 MiB, a key put twice, or an empty
                key; nothing was sent.
            LeaseNotFoundError: a Put names a lease that has ended; nothing was done.
            MetastoreUnknownOutcomeError: see there.
        """

    async def grant_lease(self, ttl_ms: int) -> LeaseGrant:
        """Make a lease of at least `ttl_ms` (1000 or more; etcd counts whole seconds).

        Where the outcome is unknown the lease may exist; it ends by itself.
        """

    async def revoke_lease(self, lease_id: int) -> bool:
        """End a lease and delete its keys. False: it had ended before."""

    async def renew_lease(self, lease_id: int) -> int:
        """Renew a lease once; the new time to live in ms, or 0 where it has ended. See also `lease.LeaseKeeper`."""

    def watch(
        self, prefix: str, start_revision: int, *, progress_interval_s: float = 5.0
    ) -> AsyncIterator[WatchEvents]:
        """Follow the changes under `prefix` from `start_revision` (> 0) on, one item a revision, in order.

        An item without events comes at least every `progress_interval_s` while etcd answers. The iterator never ends
        by itself; close it (`aclose`) or cancel the task that reads it.

        Raises:
            CompactedError: `start_revision` is no longer there.
            MetastoreUnavailableError: the stream broke; watch again from the last revision seen + 1.
        """

    async def compact(self, revision: int) -> None:
        """Forget the history before `revision`. For administrators and tests: etcd compacts by itself."""

    async def status(self) -> MetastoreStatus:
        """Return the status of the etcd cluster."""

    async def close(self) -> None:
        """Close all connections; calls and watches in progress fail."""
