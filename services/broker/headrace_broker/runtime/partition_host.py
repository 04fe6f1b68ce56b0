"""What a partition has done by others, and who waits at it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from headrace.wire.ids import Offset
from headrace_server.partition_state import Replica

from headrace_broker.core.messages import Propose

if TYPE_CHECKING:
    from headrace_broker.runtime.partition import Partition


class PartitionHost(Protocol):
    """What a partition has done by others: `replication.Replication`. All return at once."""

    def start_epoch(self, partition: Partition, leader_epoch: int) -> None:
        """Run `persist_epoch`."""

    def raise_log_start(self, partition: Partition, offset: Offset) -> None:
        """Run `LogStart.raise_to`."""

    def follow(self, partition: Partition, leader: Replica) -> None:
        """Fetch from `leader` from now on."""

    def unfollow(self, partition: Partition) -> None:
        """Fetch no more."""

    def fetch(self, partition: Partition) -> None:
        """It is to fetch (again): a flush has ended."""

    def propose(self, partition: Partition, proposal: Propose) -> None:
        """Write the partition's key and report how that ended."""

    def leave_in_sync(self, partition: Partition, *, corrupt: bool) -> None:
        """Take this broker out of the partition's key, as `leave_failed` says."""


class DelayedFetch(Protocol):
    """A follower's fetch of a partition that waits until there is something to answer."""

    def wake(self, partition: Partition) -> None:
        """There are new records, or a new log start, or leadership has ended."""

    def note_high_watermark(self, partition: Partition) -> None:
        """The high watermark has moved."""
