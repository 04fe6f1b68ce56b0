"""Writes of single partitions that an administrator asked for, by compare-and-swap, by any coordinator.

The controller and the leader write the same keys: a write that loses against one of them is decided anew on what the
key says now. Belongs to the event loop.
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
    """A partition as etcd has it, with what a compare-and-swap names."""

    state: PartitionState
    mod_revision: int


@dataclass(frozen=True, slots=True)
class ChangedPartition:
    """What became of a partition."""

    before: PartitionState
    after: PartitionState
    revision: int
    """Of the write; 0: there was nothing to change."""
    unchanged: bool
    """There was nothing to change, and no write of ours had changed it."""


Decide = Callable[[PartitionState, Mapping[int, RegisteredBroker]], PartitionState | None]
"""Returns the new state, or `None` for no change, or raises the administrator's error."""
Guard = Callable[[PartitionState, PartitionState, Mapping[int, RegisteredBroker]], tuple[Compare, ...]]
"""Returns the compares, beyond those of every write, that a decision (before, after, live) depends on."""


class PartitionStore:
    """Reads and writes partitions, each call within the deadline that it is given (event loop time, seconds)."""

    def __init__(self, writes: AmbiguousWriteResolver, view: ClusterView) -> None:
        self._writes = writes
        self._view = view
        self._keyspace = view.keyspace

    async def read_topic(self, topic_id: bytes, deadline: float) -> dict[int, StoredPartition]:
        """Read all partitions of a topic by number.

        Raises:
            MetastoreUnavailableError: no answer; nothing was written.
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
        """Write what `decide` makes of a partition that was read as `found`; decided anew where the write loses.

        Raises:
            UnknownPartitionError: the partition, with its topic, was deleted meanwhile.
            What `decide` raises; MetastoreUnavailableError, TimedOutError with the outcome.
        """
        key = self._keyspace.partition(topic_id, partition)
        current = found
        tried: dict[PartitionState, PartitionState] = {}

        async def attempt(tracker: WriteTracker) -> ChangedPartition | None:
            nonlocal current
            if tried:
                current = await self._read(key, deadline)
            if current.state in tried:  # The answer was lost, the write was not.
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
