"""One partition of a directory that this process writes to. Thread-safe.

A record is visible and acknowledged under the topic's `durability`, as at a broker whose only replica leads.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.embedded.catalogue import DirectoryTopic
from headrace.log.checkpoint import Mark
from headrace.log.log import PartitionLog
from headrace.log.log_compaction import CompactionReport
from headrace.log.log_reader import LogReader
from headrace.log.record_selection import Kept
from headrace.partition.batch_checks import AppendResult, Run, check_produced, find_compressed, inflatable, parts_of
from headrace.partition.fitting import LogPoint, fitting
from headrace.partition.log_settings import log_settings
from headrace.partition.producer_recovery import SnapshotClock, rebuild_producers
from headrace.partition.producers import ProducerWindows
from headrace.partition.purged_rows import PurgedRows
from headrace.wire.batch import read_header
from headrace.wire.columns import check_columns
from headrace.wire.crc import ReadableBuffer
from headrace.wire.errors import HeadraceError, Outcome, TimedOutError
from headrace.wire.ids import Offset

LOOK_SECONDS = 0.1
"""Interval in which a purge looks whether a file is still read."""
PURGE_TRIES = 20


@dataclass(frozen=True, slots=True)
class DirectoryLimits:
    """Limits of an open directory, whatever its topics: those of a broker."""

    max_batch_records: int = 1_000_000
    max_payload_bytes: int = 64 << 20
    max_fetch_bytes: int = 16 << 20
    max_fetch_wait_ms: int = 60_000
    max_producers: int = 10_000
    producer_expiry_ms: int = 7 * 86_400_000
    producer_retry_window_ms: int = 900_000


LIMITS = DirectoryLimits()


class DirectoryPartition:
    """One partition and its log."""

    def __init__(self, topic: DirectoryTopic, number: int, log: PartitionLog, leader_epoch: int) -> None:
        """Restore the producers from the log, which must be of this topic. Raises as `rebuild_producers`."""
        self.topic = topic
        self.number = number
        self.log = log
        self.leader_epoch = leader_epoch
        self.lock = threading.RLock()
        """Held during appends, and by what excludes them."""
        self.producers = ProducerWindows(
            max_producers=LIMITS.max_producers,
            expiry_ms=LIMITS.producer_expiry_ms,
            retry_window_ms=LIMITS.producer_retry_window_ms,
        )
        self.deletions_end = log.deletions_end
        """Of the log, raised only when a compaction has ended: who reads meanwhile sees it change afterwards."""
        self._shown: tuple[int, ...] = ()
        self._snapshot = SnapshotClock(
            rebuild_producers(self.producers, log), log.size_bytes, time.monotonic_ns() // 1_000_000
        )

    @property
    def reader(self) -> LogReader:
        """Reader of the log."""
        return self.log.reader

    snapshot_reader = reader

    def list_files(self) -> bool:
        """See `ReadablePartition`."""
        return False

    @property
    def visible_end(self) -> int:
        """End of the records that are acknowledged and visible: the high watermark of clients."""
        return int(self.log.flushed_offset if self.topic.config.counts_flushed else self.log.log_end_offset)

    missed_deletions_end = 0
    """As of `FollowedPartition`. The log is compacted only below what the state of its table, if any, has read."""

    @property
    def removed_deletions_end(self) -> int:
        """See `ReadablePartition`."""
        return self.log.deletions_end

    @property
    def visible_mark(self) -> Mark:
        """Place of `visible_end` in the files."""
        return self.log.flushed_mark if self.topic.config.counts_flushed else self.log.end_mark

    @property
    def chain_crc(self) -> int:
        """See `ReadablePartition`."""
        return self.visible_mark.crc

    def is_changed(self) -> bool:
        """Return whether the bounds have changed since the last call."""
        mark = self.visible_mark
        bounds = mark.offset, mark.segment, mark.position, self.log_start_offset, self.deletions_end
        shown, self._shown = self._shown, bounds
        return shown != self._shown

    @property
    def log_start_offset(self) -> int:
        """First offset that can be read."""
        return int(self.log.log_start_offset)

    @property
    def log_end_offset(self) -> int:
        """Offset of the next record."""
        return int(self.log.log_end_offset)

    def configure(self, topic: DirectoryTopic) -> None:
        """Apply changed settings."""
        with self.lock:
            self.topic = topic
            self.log.update_settings(log_settings(topic.config))

    # --- appends ---

    def append(self, batches: Sequence[bytes]) -> AppendResult:
        """Append batches in order; the result has the error that stopped it, if any. Nothing is flushed."""
        with self.lock:
            result, config = AppendResult(leader_epoch=self.leader_epoch), self.topic.config
            result.log_start_offset = self.log_start_offset
            try:
                compressed = self._check_compressed(batches)
                while len(result.base_offsets) < len(batches):
                    now_ms = time.time_ns() // 1_000_000
                    run = check_produced(
                        batches, result, producers=self.producers, config=config, limits=LIMITS, now_ms=now_ms,
                        compressed=compressed,
                    )  # fmt: skip
                    if run:
                        self._write(run, now_ms, result)
            except HeadraceError as error:
                result.error = error
            return result

    def copy(self, batches: ReadableBuffer, until: int) -> int:
        """Append whole batches of a cluster, which has them from the log end on; return the bytes that were appended.

        Batches that begin at or after `until` are left out. The cluster may have removed some since, or merged them by
        compaction: see `fitting`. An empty log begins where the batches do.

        Raises:
            CorruptBatchError, DivergedLogError: If they do not continue the log.
            StorageFullError, StorageOfflineError: As an append.
        """
        with self.lock:
            first = read_header(batches) if batches else None
            if first is None or first.base_offset >= until:
                return 0
            if first.base_offset and not self.log_end_offset and not self.log.size_bytes:
                self.log.reset_to(first.base_offset, first.previous_crc)
            end = self.log.end
            data = b"".join(fitting(batches, LogPoint(end.offset, end.crc), until))
            for header in self.log.append_replicated(data):
                self.producers.record_batch(header)
            self.leader_epoch = max(self.leader_epoch, int(self.log.last_epoch))
            return len(data)

    def _check_compressed(self, batches: Sequence[bytes]) -> dict[int, HeadraceError | None] | None:
        config = self.topic.config
        found: dict[int, HeadraceError | None] = {}
        for index in find_compressed(batches, config):
            found[index] = None
            header = inflatable(batches, index, config, LIMITS)
            if header is not None:
                try:
                    check_columns(batches[index], header, max_payload_bytes=LIMITS.max_payload_bytes)
                except HeadraceError as error:
                    found[index] = error
        return found or None

    def _write(self, run: Run, now_ms: int, result: AppendResult) -> None:
        end = int(self.log.append(run, leader_epoch=self.leader_epoch, append_timestamp_ms=now_ms))
        for batches, records, _, producer in parts_of(run):
            if producer[0] >= 0:
                self.producers.record(*producer, records, base_offset=end, at_ms=now_ms, batches=batches)
            first, end = end, end + batches * records
            result.base_offsets += range(first, end, records)
        result.end_offset = max(result.end_offset, end)
        result.append_timestamp_ms = now_ms

    def flush(self) -> None:
        """Make what was appended durable. Raises StorageOfflineError."""
        if self.log.flushed_offset < self.log.log_end_offset:
            self.log.flush()

    def flush_appended(self) -> None:
        """As `flush`, for those whose records are in the log already: the outcome of its errors is UNKNOWN."""
        try:
            self.flush()
        except HeadraceError as error:
            error.outcome = Outcome.UNKNOWN
            raise

    # --- what is removed ---

    def delete_records(self, before_offset: int) -> Offset:
        """Delete the records below an offset, -1 for all that are visible; return the log start. Raises as the log."""
        with self.lock:
            self.flush()
            before = self.visible_end if before_offset == -1 else before_offset
            return self.log.retention.delete_records(before, self.visible_end)

    def retain(self, now_ms: int | None) -> None:
        """Remove what exceeds the topic's retention at a time of the wall clock; `None`: what exceeds its size."""
        with self.lock:
            if now_ms is not None:
                self.log.roll_if_due(now_ms)
            self.log.retention.remove_deleted_files(time.monotonic_ns() // 1_000_000)
            start = self.log.retention.plan(now_ms, self.visible_end)
            if start > self.log_start_offset:
                self.log.retention.delete_records(start, self.visible_end)

    def compact(self, now_ms: int, end_offset: int) -> None:
        """Compact the log below `end_offset` if that is due; appends continue meanwhile."""
        compaction = self.log.compaction
        if compaction.is_due(now_ms, end_offset):
            with self.lock:
                kept = Kept(self.producers.retried_batches(now_ms), self.producers.retry_window_ms)
            try:
                compaction.compact(now_ms, end_offset, kept)
            finally:
                self.deletions_end = self.log.deletions_end

    def await_compaction(self) -> None:
        """See `ReadablePartition`."""
        self.log.compaction.wait()

    def purge(self, wanted: PurgedRows, end_of_state: Callable[[], int]) -> CompactionReport:
        """Compact the log without some rows; appends continue meanwhile. `unlink_purged` removes the old files.

        Args:
            wanted: rows of a table.
            end_of_state: checks that they are deleted, and returns up to where the table's state has read the log.

        Raises:
            TimedOutError: If the log's start was raised or it was closed again and again.
            HeadraceError: As `end_of_state`, or if the log cannot be read or written.
        """
        with self.lock:
            closed_end = self.log.close_below(Offset(wanted.before_offset))
            self.snapshot()  # Batches that may be sent again are written anew, too.
        for _ in range(PURGE_TRIES):
            visible_end = end_of_state()
            now_ms = time.time_ns() // 1_000_000
            with self.lock:
                kept = wanted.kept(self.producers, now_ms)
            try:
                report = self.log.compaction.purge(now_ms, visible_end, kept, wanted.records, closed_end)
            finally:
                self.deletions_end = self.log.deletions_end
            if report is not None:
                return report
        raise TimedOutError("the log was cut off again and again", outcome=Outcome.UNKNOWN, retriable=True)

    def unlink_purged(self, deadline: float) -> bool:
        """Unlink the files that were replaced; return `False` if one is being read until a monotonic time."""
        while True:
            with self.lock:
                if not self.log.retention.purge_deleted_files():
                    return True
            if time.monotonic() + LOOK_SECONDS > deadline:
                return False
            time.sleep(LOOK_SECONDS)

    # --- what a start reads ---

    def checkpoint(self, now_ms: int | None) -> None:
        """Write how far the log is durable, if that is due, and the producers without those that have expired.

        `now_ms` is of the wall clock; `None` means that none has expired.
        """
        if now_ms is not None:
            with self.lock:
                self.producers.expire(now_ms)
        monotonic_ms = time.monotonic_ns() // 1_000_000
        self.log.durability.checkpoint(monotonic_ms, self.visible_end)
        if self._snapshot.is_due(self.log, monotonic_ms):
            self.snapshot()

    def snapshot(self) -> None:
        """Write the producers."""
        with self.lock:
            end_offset = self.log.log_end_offset
            self.log.snapshots.store(int(end_offset), self.producers.snapshot())
            self._snapshot = SnapshotClock(int(end_offset), self.log.size_bytes, time.monotonic_ns() // 1_000_000)
