"""Interfaces of a partition to replication and to waiting fetches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from headrace.wire.ids import Offset
from headrace_server.partition_state import Replica

from headrace_broker.core.messages import Propose

if TYPE_CHECKING:
    from headrace_broker.runtime.partition import Partition


class PartitionHost(Protocol):
    """Services for a partition, implemented by `replication.Replication`. All methods return at once."""

    def start_epoch(self, partition: Partition, leader_epoch: int) -> None:
        """Run `Partition.persist_epoch` as a task."""

    def raise_log_start(self, partition: Partition, offset: Offset) -> None:
        """Run `LogStart.raise_to` as a task."""

    def follow(self, partition: Partition, leader: Replica) -> None:
        """Fetch from `leader` from now on."""

    def unfollow(self, partition: Partition) -> None:
        """Stop fetching."""

    def fetch(self, partition: Partition) -> None:
        """Send a fetch, for example after a flush has ended."""

    def propose(self, partition: Partition, proposal: Propose) -> None:
        """Write the partition's key and report the outcome."""

    def leave_in_sync(self, partition: Partition, *, corrupt: bool) -> None:
        """Remove this broker from the partition's key by `leave_failed`."""


class DelayedFetch(Protocol):
    """Waiting fetch of a follower for a partition."""

    def wake(self, partition: Partition) -> None:
        """Handle new records, a new log start, or the end of leadership."""

    def note_high_watermark(self, partition: Partition) -> None:
        """Handle a new high watermark."""

    def note_flushed(self, partition: Partition) -> None:
        """Handle a flush of the leader."""
