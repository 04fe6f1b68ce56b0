"""Interface to etcd: typed reads, compare-and-swap transactions, leases and watches.

Used by brokers and coordinators; implemented by `etcd.EtcdMetastore` and, for a cluster in one process and for tests,
`local.LocalMetastore`. All pass the same contract tests (tests/contract). Guarantees (PROTOCOL C1-C4, H78-H82):

- A write has two results: "succeeded" and "compare failed". Everything else (a deadline, UNAVAILABLE, a change of
  etcd's leader, NOSPACE, a cancelled call) raises `MetastoreUnknownOutcomeError`: the write may have been applied, or
  may be applied later. This layer never sends a write twice.
- Every read is linearizable. Every call has a deadline.
- A request beyond etcd's limits is rejected before it is sent.

Keys are `str` (UTF-8 in etcd, so that their order is that of the bytes), values `bytes`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from headrace.wire.errors import InvalidRequestError, MetastoreUnavailableError, Outcome

MAX_TXN_OPERATIONS = 128
"""Maximum operations in either branch of a transaction, and maximum compares (etcd's `--max-txn-ops`)."""
MAX_REQUEST_BYTES = 1_572_864
"""Maximum bytes of keys and values in one request (etcd's `--max-request-bytes`, 1.5 MiB)."""


@dataclass(frozen=True, slots=True)
class KeyValue:
    """Key and value at some revision."""

    key: str
    value: bytes
    create_revision: int
    """Revision of the write that created the key; the epoch of a registration."""
    mod_revision: int
    """Revision of the last write."""
    version: int
    """Number of writes since its creation, from 1."""
    lease_id: int
    """Lease whose end deletes the key; `0` means none."""


@dataclass(frozen=True, slots=True)
class ModRevisionIs:
    """Condition that the key's last write was at `revision`; `0` means that the key is absent."""

    key: str
    revision: int


@dataclass(frozen=True, slots=True)
class CreateRevisionIs:
    """Condition that the key was created at `revision`; `0` means that the key is absent."""

    key: str
    revision: int


@dataclass(frozen=True, slots=True)
class VersionIs:
    """Condition that the key was written `version` times since its creation; `0` means that the key is absent."""

    key: str
    version: int


@dataclass(frozen=True, slots=True)
class Exists:
    """Condition that the key exists, in any version."""

    key: str


Compare = ModRevisionIs | CreateRevisionIs | VersionIs | Exists


@dataclass(frozen=True, slots=True)
class Put:
    """Write of a key."""

    key: str
    value: bytes
    lease_id: int = 0
    """Lease whose end deletes the key; `0` means none."""


@dataclass(frozen=True, slots=True)
class Delete:
    """Deletion of a key, if it exists."""

    key: str


@dataclass(frozen=True, slots=True)
class DeletePrefix:
    """Deletion of every key that starts with `prefix`, which is not empty."""

    prefix: str


@dataclass(frozen=True, slots=True)
class Get:
    """Read of a key in a transaction."""

    key: str


Operation = Put | Delete | DeletePrefix | Get


@dataclass(frozen=True, slots=True)
class TxnResult:
    """Result of a transaction."""

    succeeded: bool
    """True if every compare held and `success` was executed, False if `failure` was executed."""
    revision: int
    """etcd's revision after the transaction; that of the write if the executed branch wrote anything."""
    responses: tuple[tuple[KeyValue, ...], ...]
    """One per executed operation: the key if it exists (Get), deleted keys (Delete, DeletePrefix), or () (Put)."""
    cluster_id: int


@dataclass(frozen=True, slots=True)
class GetResult:
    """One key, or its absence, at a revision."""

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
    """Granted time to live, which may be more than requested."""


@dataclass(frozen=True, slots=True)
class PutEvent:
    """A key was written."""

    key_value: KeyValue


@dataclass(frozen=True, slots=True)
class DeleteEvent:
    """A key was deleted, perhaps by the end of its lease."""

    key: str
    mod_revision: int


WatchEvent = PutEvent | DeleteEvent


@dataclass(frozen=True, slots=True)
class WatchEvents:
    """All changes of one revision under the prefix; without events, a progress notification."""

    revision: int
    """Revision of the events; without events etcd's revision, which does not mean that all events up to it have arrived
    (etcd before 3.5.8 answers progress requests out of order, etcd-io/etcd #15220)."""
    events: tuple[WatchEvent, ...]
    cluster_id: int


@dataclass(frozen=True, slots=True)
class MetastoreStatus:
    """Status of the etcd member that responded."""

    version: str
    revision: int
    cluster_id: int
    database_bytes: int


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """Status of one endpoint, for metrics and `headrace doctor` only."""

    endpoint: str
    error: str = ""
    """Why there was no response; the other fields are then meaningless."""
    version: str = ""
    answered_seconds: float = 0.0
    database_bytes: int = 0
    used_bytes: int = 0
    """Part of the database that is in use; `0` before etcd 3.4."""
    quota_bytes: int = 0
    """Quota; `0` means unknown, because etcd reports it only since 3.6."""
    has_leader: bool = False
    is_learner: bool = False
    alarms: tuple[str, ...] = ()


class MetastoreUnknownOutcomeError(MetastoreUnavailableError):
    """A write was sent and got no response, so that it may or may not be applied. Send it again with the same compares
    until one attempt succeeds, or until the key is past the compared revision (PROTOCOL C3)."""

    def __init__(self, message: str = "", **fields: Any) -> None:
        super().__init__(message, **({"outcome": Outcome.UNKNOWN} | fields))


class CompactedError(MetastoreUnavailableError):
    """The requested revision was compacted. Read the whole prefix again and continue from its revision."""

    def __init__(self, message: str, *, compact_revision: int) -> None:
        super().__init__(message, outcome=Outcome.NOT_APPLIED, action="Read everything again and watch from there.")
        self.compact_revision = compact_revision


class MetastoreRolledBackError(MetastoreUnavailableError):
    """etcd's revision went back or another etcd cluster responded, after a restore from a backup or because of a wrong
    endpoint. The process must stop, and an operator must act (PROTOCOL H81)."""

    def __init__(self, message: str, **fields: Any) -> None:
        defaults: dict[str, Any] = {
            "retriable": False,
            "fatal": True,
            "outcome": Outcome.UNKNOWN,
            "action": "Check etcd_endpoints; after a restore stop all, run `headrace-coordinator recover-metadata`.",
        }
        super().__init__(message, **(defaults | fields))


class LeaseNotFoundError(InvalidRequestError):
    """The lease has ended or never existed; the write was not applied. Get a new lease and register again."""


def check_txn(compares: Sequence[Compare], success: Sequence[Operation], failure: Sequence[Operation]) -> None:
    """Check a transaction against etcd's limits before it is sent.

    Raises:
        InvalidRequestError: As `Metastore.txn`.
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


class LeaseRenewer(Protocol):
    """Blocking renewal of a lease: `etcd_lease.EtcdLeaseRenewer` or `local.LocalLeaseRenewer`."""

    def renew(self, lease_id: int, timeout_s: float) -> int:
        """Renew once; return the TTL in ms, `0` if it ended. Raises MetastoreUnavailableError without a response."""

    def close(self) -> None:
        """Close the connection."""


class Metastore(Protocol):
    """etcd, or a store in this process. Belongs to one event loop, whose tasks may call its methods concurrently.

    Every method raises `MetastoreUnavailableError` (reads) or `MetastoreUnknownOutcomeError` (writes) if etcd does not
    respond within the deadline, and `MetastoreRolledBackError` if another cluster responds.
    """

    async def get(self, key: str) -> GetResult:
        """Return one key."""

    async def range(self, prefix: str) -> RangeResult:
        """Return all keys that start with `prefix` (not empty), at one revision, without a limit of their number.

        Raises:
            CompactedError: If a compaction overtook a read of several pages; read again.
        """

    async def txn(
        self, compares: Sequence[Compare], success: Sequence[Operation], failure: Sequence[Operation] = ()
    ) -> TxnResult:
        """Execute `success` if every compare holds, else `failure`, atomically.

        Raises:
            InvalidRequestError: If there are more than 128 compares or operations, more than 1.5 MiB, a key put twice,
                or an empty key; nothing was sent.
            LeaseNotFoundError: If a Put names a lease that has ended; nothing was applied.
            MetastoreUnknownOutcomeError: If there is no response.
        """

    async def grant_lease(self, ttl_ms: int) -> LeaseGrant:
        """Create a lease of at least `ttl_ms` (1000 or more; etcd counts whole seconds).

        If the outcome is unknown the lease may exist; it expires.
        """

    async def revoke_lease(self, lease_id: int) -> bool:
        """Revoke a lease and delete its keys; return False if it had already ended."""

    async def renew_lease(self, lease_id: int) -> int:
        """Renew a lease once; return its time to live in ms, or `0` if it has ended. See also `lease.LeaseKeeper`."""

    def watch(
        self, prefix: str, start_revision: int, *, progress_interval_s: float = 5.0
    ) -> AsyncIterator[WatchEvents]:
        """Yield the changes under `prefix` from `start_revision` (> 0) on, one item per revision, in order.

        An item without events arrives at least every `progress_interval_s` while etcd responds. The iterator does not
        end; close it (`aclose`) or cancel the task that reads it.

        Raises:
            CompactedError: If `start_revision` was compacted.
            MetastoreUnavailableError: If the stream broke; watch again from the last revision seen + 1.
        """

    async def compact(self, revision: int) -> None:
        """Discard the history before `revision`. For administrators and tests; etcd also compacts automatically."""

    async def status(self) -> MetastoreStatus:
        """Return the status of the etcd cluster."""

    async def describe_members(self) -> list[MemberStatus]:
        """Return the status of each endpoint, in the order of the settings; an unreachable one has an `error`."""

    @property
    def has_user(self) -> bool:
        """Whether etcd knows this process as a user: by a login that it requires, or perhaps by its certificate."""

    def make_renewer(self) -> LeaseRenewer:
        """Return a new renewer for the thread of a `lease.LeaseKeeper`."""

    async def close(self) -> None:
        """Close all connections; calls and watches in progress fail."""
