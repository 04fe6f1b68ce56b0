"""Writes of single partitions for administrators, by compare-and-swap, by any coordinator.

The controller and the leader write the same keys. A write that loses against one of them is computed again from the
current value. Belongs to the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headrace.wire.errors import UnknownPartitionError
from headrace_server.key_table import PartitionKey
from headrace_server.metadata_view import ClusterView
from headrace_server.metastore.api import Compare, CreateRevisionIs, ModRevisionIs, Put
from headrace_server.partition_state import PartitionState, decode, encode
from headrace_server.rpc import let_others_run

from headrace_coordinator.core.control import new_sessions
from headrace_coordinator.core.election import RegisteredBroker
from headrace_coordinator.core.topic_writes import Write
from headrace_coordinator.runtime.ambiguous_writes import AmbiguousWriteResolver, WriteTracker
from headrace_coordinator.runtime.partition_reconciler import registered_sessions


@dataclass(frozen=True, slots=True)
class StoredPartition:
    """Partition in etcd, with the version for a compare-and-swap."""

    state: PartitionState
    mod_revision: int


@dataclass(frozen=True, slots=True)
class ChangedPartition:
    """Result of a change."""

    before: PartitionState
    after: PartitionState
    revision: int
    """Revision of the write; `0` means that no change was needed."""
    unchanged: bool
    """No change was needed, and no earlier attempt of this call had changed it."""


Decide = Callable[[PartitionState, Mapping[int, RegisteredBroker]], PartitionState | None]
"""Returns the new state, or `None` for no change, or raises the administrator's error."""
Guard = Callable[[PartitionState, PartitionState, Mapping[int, RegisteredBroker]], tuple[Compare, ...]]
"""Returns further compares that a decision (before, after, live) depends on."""


class PartitionStore:
    """Reads and writes partitions, each call within its deadline (loop time, seconds)."""

    def __init__(self, writes: AmbiguousWriteResolver, view: ClusterView) -> None:
        self._writes = writes
        self._view = view
        self._keyspace = view.keyspace

    async def read_topic(self, topic_id: bytes, deadline: float) -> dict[int, StoredPartition]:
        """Read all partitions of a topic by number.

        Raises:
            MetastoreUnavailableError: If etcd does not respond; nothing was written.
        """
        found = await self._writes.read_prefix(self._keyspace.partition_prefix(topic_id), deadline)
        partitions: dict[int, StoredPartition] = {}
        for index, key_value in enumerate(found.key_values):
            await let_others_run(index)
            key = self._keyspace.parse(key_value.key)
            if isinstance(key, PartitionKey):
                partitions[key.partition] = StoredPartition(decode(key_value.value), key_value.mod_revision)
        return partitions

    async def change(
        self,
        topic_id: bytes,
        partition: int,
        found: StoredPartition,
        decide: Decide,
        deadline: float,
        *,
        guard: Guard | None = None,
    ) -> ChangedPartition:
        """Write the result of `decide` for a partition read as `found`; call `decide` again after a failed compare.

        Raises:
            UnknownPartitionError: If the partition was deleted meanwhile with its topic.
            HeadraceError: As `decide`.
            MetastoreUnavailableError, TimedOutError: If etcd does not respond in time; has the outcome.
        """
        key = self._keyspace.partition(topic_id, partition)
        current = found
        tried: dict[PartitionState, PartitionState] = {}

        async def attempt(tracker: WriteTracker) -> ChangedPartition | None:
            nonlocal current
            if tried:
                current = await self._read(key, deadline)
            if current.state in tried:  # An earlier write was applied; only its response was lost.
                return ChangedPartition(tried[current.state], current.state, current.mod_revision, False)
            live = registered_sessions(self._view)
            after = decide(current.state, live)
            if after is None:
                return ChangedPartition(current.state, current.state, 0, tracker.unanswered is None)
            tried[after] = current.state
            compares: list[Compare] = [
                ModRevisionIs(key, current.mod_revision),
                *(
                    CreateRevisionIs(self._keyspace.broker(entry.broker_id), entry.broker_epoch)
                    for entry in new_sessions(current.state, after)
                ),
                *(guard(current.state, after, live) if guard is not None else ()),
            ]
            result = await self._writes.send(tracker, Write(tuple(dict.fromkeys(compares)), (Put(key, encode(after)),)))
            if not result.succeeded:
                return None
            return ChangedPartition(current.state, after, result.revision, False)

        return await self._writes.resolve(attempt, deadline, f"changing partition {partition}")

    async def _read(self, key: str, deadline: float) -> StoredPartition:
        found = await self._writes.read(key, deadline)
        if found is None:
            raise UnknownPartitionError("the partition was deleted meanwhile")
        return StoredPartition(decode(found.value), found.mod_revision)
