"""Reads of a partition by consumers and followers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headrace.log.errors import WouldBlockError
from headrace.log.log import TimestampedOffset, TimestampKind
from headrace.log.log_reader import LogReader
from headrace.log.slices import Slice
from headrace.partition.selections import read_selected
from headrace.wire.batch import BatchHeader
from headrace.wire.errors import HeadraceError
from headrace.wire.ids import Offset
from headrace.wire.typed.selection import ColumnSelection

from headrace_broker.core.replica_fetch import (
    Diverged,
    FetchDecision,
    FetchRequest,
    check_fetch,
    check_reader,
    compare_logs,
)
from headrace_broker.runtime.uninterrupted import uninterrupted

if TYPE_CHECKING:
    from headrace_broker.runtime.partition import Partition


class _NowaitReader:
    """Implements `core.replica_fetch.ReplicaReader`; raises WouldBlockError rather than wait for the disk."""

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader

    def batch_with(self, offset: int) -> BatchHeader:
        """See `ReplicaReader`."""
        return self._reader.batch_with_nowait(offset)

    def first_batch(self) -> tuple[Offset, int]:
        """See `ReplicaReader`."""
        return self._reader.first_batch(nowait=True)

    def verify_from(self, offset: int, max_bytes: int) -> tuple[Offset, int]:
        """See `ReplicaReader`; reads a whole batch, which is left to a thread."""
        raise WouldBlockError


class PartitionReads:
    """Reads of one partition. Belongs to the event loop."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._replica, self._context = partition.replica, partition.context

    def locate_now(
        self, offset: int, max_bytes: int, known_epoch: int, *, from_follower: bool = False
    ) -> tuple[Slice | None, bool]:
        """Find the visible batches from `offset` on without blocking; return (slice or `None`, whether it would block).

        `from_follower` allows a read from a follower. The caller closes the slice. Raises as
        `PartitionReplica.check_leading` and `check_read`, and StorageOfflineError.
        """
        replica = self._replica
        self.check_reader(known_epoch, from_follower=from_follower)
        replica.check_read(offset)
        if offset >= replica.high_watermark:
            return None, False
        found = self._partition.open_log.reader.read_nowait(offset, max_bytes, replica.high_watermark)
        return found, found is None

    def check_reader(self, known_epoch: int, *, from_follower: bool) -> None:
        """Raise as `PartitionReplica.check_leading`, or as `check_serving` if `from_follower`."""
        if from_follower:
            self._replica.check_serving(known_epoch)
        else:
            self._replica.check_leading(known_epoch)

    def find_divergence(self, offset: int, last_epoch: int) -> Diverged | None:
        """Return the result of `replica_fetch.check_reader`."""
        return check_reader(self._replica, self._partition.open_log, offset, last_epoch)

    async def locate(self, offset: int, max_bytes: int) -> Slice:
        """Find batches as `locate_now`, in a thread."""
        self._context.metrics.blocking_reads.inc()
        return await self.locate_below(offset, max_bytes, self._replica.high_watermark)

    async def locate_below(self, offset: int, max_bytes: int, end_offset: int) -> Slice:
        """Find whole batches from `offset` on, below `end_offset`, in a thread.

        The caller closes the slice; it is closed if the caller is cancelled. Raises as `LogReader.read`.
        """
        reader, located = self._partition.open_log.reader, list[Slice]()
        try:
            await uninterrupted(
                self._partition.in_thread(lambda: located.append(reader.read(offset, max_bytes, end_offset)))
            )
        except asyncio.CancelledError:
            for found in located:
                found.close()
            raise
        return located[0]

    async def read(self, found: Slice) -> bytes:
        """Return the bytes of a slice, in a thread unless they are in the page cache, and close it.

        If the caller is cancelled, the thread ends first: it would read from a closed file, or from another one.
        """
        with found:
            data = found.try_read_nowait()
            if data is None:
                self._context.metrics.blocking_reads.inc()
                data = await uninterrupted(self._partition.in_thread(found.read))
            return data

    async def read_selected(
        self, found: Slice, selection: ColumnSelection, max_bytes: int
    ) -> tuple[list[bytes], int, int]:
        """Return the result of `selections.read_selected` in a thread, which closes the slice."""
        return await uninterrupted(self._partition.in_thread(lambda: read_selected(found, selection, max_bytes)))

    async def offset_for_timestamp(self, timestamp_ms: int, kind: TimestampKind) -> TimestampedOffset | None:
        """Return the first visible record at or after `timestamp_ms`, or `None`."""
        found = await self._partition.in_thread(
            lambda: self._partition.open_log.reader.offset_for_timestamp(timestamp_ms, kind)
        )
        return None if found is None or found.offset >= self._replica.high_watermark else found

    async def append_time(self, offset: int) -> TimestampedOffset | None:
        """Return the first visible record from `offset` on with the append time of its batch, or `None`."""
        wanted = max(offset, self._replica.log_start_offset)
        if wanted >= self._replica.high_watermark:
            return None
        header = await self._partition.in_thread(lambda: self._partition.open_log.reader.batch_with(wanted))
        return TimestampedOffset(Offset(wanted), header.append_timestamp_ms)

    async def locate_for_replica(self, offset: int, max_bytes: int) -> tuple[Slice | None, Offset | None]:
        """Return the range of whole batches from `offset` to the log end, fsynced or not, and where more follow.

        Each is `None` if there is nothing. The log end is the core's, which an append in a thread moves when it is
        over; the followers wake then. Close the slice. Raises SliceCutError, StorageOfflineError.
        """
        partition_log = self._partition.open_log
        end_offset = self._replica.log_end_offset
        start = max(offset, partition_log.log_start_offset)
        if start >= end_offset:
            return None, None
        try:
            found = partition_log.reader.read_nowait(start, max_bytes, end_offset)
            if found is None:
                found = await self.locate_below(start, max_bytes, end_offset)
            return found, Offset(found.end_offset) if found.end_offset < self._replica.log_end_offset else None
        except HeadraceError as error:
            self._partition.corruption.note_read_error(error)
            raise

    def compare_now(self, request: FetchRequest) -> tuple[FetchDecision | None, bool]:
        """Run `replica_fetch.compare_logs` without blocking; return (decision, whether it would block).

        Takes the replica offline if its log is corrupt. Raises as `replica_fetch.check_fetch` and `LogReader.read`.
        """
        check_fetch(self._replica, request)
        partition_log = self._partition.open_log
        try:
            return compare_logs(partition_log, request, _NowaitReader(partition_log.reader)), False
        except WouldBlockError:
            return None, True
        except HeadraceError as error:
            self._partition.corruption.note_read_error(error)
            raise

    async def compare(self, request: FetchRequest) -> FetchDecision | None:
        """Return the decision of `compare_now`, made in a thread (H46). Raises as `compare_now`."""
        self._context.metrics.blocking_reads.inc()
        partition_log = self._partition.open_log
        try:
            decision = await self._partition.in_thread(lambda: compare_logs(partition_log, request))
        except HeadraceError as error:
            self._partition.corruption.note_read_error(error)
            raise
        check_fetch(self._replica, request)  # Leadership may have ended, and the log may have been truncated.
        return decision
