"""Log of one partition: segments in a directory, appended at the end, read by offset (paper section 3.1).

Called by the broker's runtime. One thread at a time may call a log's methods, except `flush`, those of `reader` and
`durability`, and those of a `Slice`: these may run in any thread, concurrently with an append. There are two locks. The
segment list's lock guards the bounds and is held briefly. `LogDurability.round_lock` serialises flush, checkpoint and
every operation that shortens the log; it is held during fsyncs and must be taken first.

`PartitionLog` has the operations that span several parts: opening, appends, epochs, flush, truncation, closing. Callers
use a part directly for the rest: `reader`, `durability` (checkpoints), `retention` (the log start), `compaction`,
`snapshots`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from headrace.log.checkpoint import CheckpointFile, Mark
from headrace.log.durability import LogDurability
from headrace.log.environment import LogEnvironment
from headrace.log.errors import CorruptLogError, storage_error
from headrace.log.log_compaction import LogCompaction
from headrace.log.log_reader import LogReader
from headrace.log.log_retention import LogRetention
from headrace.log.log_state import LogState
from headrace.log.log_truncation import LogTruncation
from headrace.log.log_writer import LogWriter
from headrace.log.open_files import OpenFile
from headrace.log.producer_snapshots import ProducerSnapshots
from headrace.log.recovery import Recovered, RecoveryReport, recover
from headrace.log.scan import ChainPoint, check_next
from headrace.log.segments import SegmentList
from headrace.log.settings import LogSettings
from headrace.log.timestamps import TimestampedOffset, TimestampKind
from headrace.wire.batch import MAX_COMPACTED_OFFSETS, STAMP_BYTES, BatchHeader, iter_batches, read_header, stamp
from headrace.wire.batch_runs import BatchRun
from headrace.wire.crc import ReadableBuffer
from headrace.wire.errors import CorruptBatchError, DivergedLogError, HeadraceError, OffsetOutOfRangeError, Outcome
from headrace.wire.ids import LeaderEpoch, Offset

__all__ = ["PartitionLog", "RecoveryReport", "TimestampKind", "TimestampedOffset"]


class PartitionLog:
    """One partition's log. Opened by `DataDirectory.open_log`, which owns it until `close` or `discard`."""

    def __init__(
        self,
        environment: LogEnvironment,
        directory: str,
        settings: LogSettings,
        *,
        topic_id: bytes,
        partition: int,
        truncate_at_corruption: bool = False,
    ) -> None:
        """Recover the log in `directory`, which exists and is synced into its parent.

        Raises CorruptLogError (nothing was changed; see `DataDirectory.open_log`), StorageFullError, StorageBusyError
        (try again), StorageOfflineError.
        """
        self.topic_id = topic_id
        self.partition = partition
        self.directory = directory
        self._files = environment.files
        self._segments = SegmentList(environment.files, environment.index_cache, directory, self)
        self._lock = self._segments.lock
        # Held during an append: `close` waits for it and `release_file` returns at once, as the descriptor may be
        # reused for another file.
        self._turn = threading.Lock()
        self._files.make_room()
        try:
            checkpoint_file = CheckpointFile(environment.filesystem, directory)
            recovered = recover(
                self._segments,
                checkpoint_file,
                settings,
                truncate_at_corruption=truncate_at_corruption,
                same_boot=environment.same_boot,
            )
            self._state = state = LogState(environment, self._segments, settings, recovered)
            self._epochs = recovered.epochs
            self.reader = LogReader(state)
            self.durability = LogDurability(state, checkpoint_file)
            self.snapshots = ProducerSnapshots(state, self.durability)
            self.retention = LogRetention(state, self.durability)
            self.compaction = LogCompaction(state, self.durability, self.retention)
            self._truncation = LogTruncation(state, self.durability, self.reader, self.snapshots)
            self._writer = LogWriter(state, self.durability, self._truncation)
            self._start(recovered)
        except (OSError, CorruptLogError) as error:
            self._files.drop_all(directory)
            if isinstance(error, OSError):
                raise storage_error(directory, error) from error
            raise

    def _start(self, recovered: Recovered) -> None:
        """Make the active segment ready for appends, and the recovered state durable."""
        # Result of the recovery; see RecoveryReport.
        self.recovery: RecoveryReport = recovered.report
        file = self._writer.open_active()
        if self.recovery.scanned_bytes or self.recovery.cut_bytes or self.recovery.checkpoint_rebuilt:
            # Bytes that survived the process may be in the page cache only.
            self.durability.directory_dirty = True
            for segment in self._segments.items:
                segment.dirty = segment.base_offset >= recovered.scanned_from
        self.durability.epochs_due = recovered.epochs_changed
        self.durability.write_epochs()
        self.snapshots.drop_above(recovered.end.offset)
        self.durability.settle_opened(recovered.stored)
        self.compaction.settle_opened()
        self._segments.hold_active(file)

    # -- state -----------------------------------------------------------------------------------------------------

    @property
    def log_start_offset(self) -> Offset:
        """First offset that can be read; persisted, never decreases (I18)."""
        return Offset(self._state.log_start_offset)

    @property
    def log_end_offset(self) -> Offset:
        """Offset of the next record."""
        return Offset(self._state.end.offset)

    @property
    def flushed_offset(self) -> Offset:
        """All records below are fsynced; falls only by `truncate_to` and `reset_to`. The log end after opening."""
        return Offset(self._state.flushed.offset)

    @property
    def checkpointed_high_watermark(self) -> Offset:
        """The high watermark last passed to `checkpoint`, as read at open, within log start .. log end."""
        return Offset(self._state.high_watermark)

    @property
    def last_crc(self) -> int:
        """`crc` of the last batch (the chain); 0 if the log never had one."""
        return self._state.end.crc

    @property
    def last_epoch(self) -> LeaderEpoch:
        """Largest known leader epoch, of the last batch or of `start_epoch`; -1 if there is none."""
        return LeaderEpoch(self._epochs.last_epoch)

    @property
    def last_batch_epoch(self) -> LeaderEpoch:
        """Leader epoch of the last batch; -1 if the log has none."""
        return LeaderEpoch(self._state.end.epoch)

    @property
    def end(self) -> ChainPoint:
        """Consistent log end, `last_crc` and `last_batch_epoch`, for readers concurrent with an append."""
        end = self._state.end
        return ChainPoint(end.offset, end.crc, end.epoch)

    @property
    def end_mark(self) -> Mark:
        """Log end, and its place in the files."""
        return self._state.end

    @property
    def flushed_mark(self) -> Mark:
        """`flushed_offset`, and its place in the files."""
        return self._state.flushed

    @property
    def truncations(self) -> int:
        """Number of truncations since it was opened: what was read before one may not be in the log any more."""
        return self._state.truncations

    @property
    def deletions_end(self) -> int:
        """See `LogCompaction.deletions_end`."""
        return self.compaction.deletions_end

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments."""
        return self._segments.size_bytes()

    @property
    def segment_count(self) -> int:
        """Number of segments, the active one included; at least 1."""
        return len(self._segments.items)

    @property
    def offline(self) -> bool:
        """Whether an I/O error occurred (H34): every further call raises StorageOfflineError."""
        return self._state.offline_error is not None

    def update_settings(self, settings: LogSettings) -> None:
        """Replace the settings; they apply from the next append or round."""
        self._state.settings = settings

    # -- append ----------------------------------------------------------------------------------------------------

    def append_may_sync(self, size_bytes: int, at_ms: int) -> bool:
        """Return whether an append may fsync first: the epochs, or another log's file to open the active segment's.

        So may one that begins a segment: an append of `size_bytes` at `at_ms`, by the time of its leader.
        """
        if self._writer.must_roll(size_bytes, 0, at_ms) and not self._files.make_room(nowait=True):
            return True
        return self._segments.active_file is None or self.durability.epochs_due

    def append(
        self, batches: Sequence[tuple[bytes, BatchHeader]] | BatchRun, *, leader_epoch: int, append_timestamp_ms: int
    ) -> Offset:
        """Assign offsets to checked batches and append all or none with one `pwritev`; return the first base offset.

        The others follow from the record counts. A run is stamped in place. Raises StorageFullError (nothing is
        appended, retriable), StorageOfflineError (resign leadership).
        """
        with self._turn:
            writer = self._writer
            writer.check_writable()
            last_epoch, first_offset = self._epochs.last_epoch, self._state.end.offset
            assert leader_epoch >= last_epoch, f"epoch {leader_epoch} after {last_epoch}"
            if leader_epoch > last_epoch or self.durability.epochs_due:
                self._start_epoch(leader_epoch)
            stamped = writer.stamp(batches, leader_epoch, append_timestamp_ms)
            segment = writer.segment_for(stamped.size_bytes, stamped.records, append_timestamp_ms)
            writer.write(
                segment, stamped.buffers, stamped.headers, size_bytes=stamped.size_bytes, leader_epoch=leader_epoch,
                at_ms=append_timestamp_ms,
            )  # fmt: skip
            return Offset(first_offset)

    def append_replicated(self, batches: ReadableBuffer) -> list[BatchHeader]:
        """Append whole batches as the leader sent them (followers); return their headers.

        Checks both CRCs, the chain, contiguous offsets and epochs of all batches before the first byte is written:
        raises CorruptBatchError and appends nothing. An empty `batches` appends nothing. Raises as `append`.
        """
        with self._turn:
            self._writer.check_writable()
            end_offset, before = self._state.end.offset, self.end
            headers: list[BatchHeader] = []
            for header, view in iter_batches(batches):
                wrong = check_next(view, header, before)
                if wrong:
                    raise CorruptBatchError(f"a replicated batch does not fit at offset {before.offset}: {wrong}")
                before = ChainPoint.after(header)
                headers.append(header)
            if not headers:
                return headers
            size_bytes, first = len(batches), headers[0]
            segment = self._writer.segment_for(size_bytes, before.offset - end_offset, first.append_timestamp_ms)
            with self._lock:
                # Epochs that this replica led without an append are replaced by the leader's epochs here.
                changed = self._epochs.last_epoch > first.leader_epoch and self._epochs.cut_end(end_offset)
                for header in headers:
                    changed |= self._epochs.assign(header.leader_epoch, header.base_offset)
                self.durability.epochs_due |= changed
            if self.durability.epochs_due:
                with self._state.disk():
                    self.durability.write_epochs()
            self._writer.write(
                segment, [memoryview(batches)], headers, size_bytes=size_bytes, leader_epoch=before.epoch
            )
            return headers

    def append_copies(self, batches: Sequence[ReadableBuffer], *, leader_epoch: int) -> list[BatchHeader]:
        """Append batches of another log with their offsets, append timestamps and chain; return their headers.

        Only their leader epoch is replaced, by that of this log's leader, because epochs are of one cluster. Nothing is
        appended unless all batches are whole and continue the log. Then all are, or of a gap of more offsets than a
        segment can have the first ones: those whose headers are returned.

        Raises:
            OffsetOutOfRangeError: If they do not begin at the log end.
            DivergedLogError: If their chain does not continue that of the log.
            CorruptBatchError: If a checksum is wrong.
            StorageFullError, StorageOfflineError: As `append`.
        """
        with self._turn:
            self._writer.check_writable()
            last_epoch = self._epochs.last_epoch
            assert leader_epoch >= last_epoch, f"epoch {leader_epoch} after {last_epoch}"
            headers = list(_check_copies(batches, self.end))
            if not headers:
                return headers
            if leader_epoch > last_epoch or self.durability.epochs_due:
                self._start_epoch(leader_epoch)
            headers = _of_one_segment(headers)
            buffers: list[bytes | memoryview] = []
            for header, batch in zip(headers, batches, strict=False):
                buffers.append(
                    stamp(
                        header, base_offset=header.base_offset, append_timestamp_ms=header.append_timestamp_ms,
                        leader_epoch=leader_epoch, previous_crc=header.previous_crc,
                    )
                )  # fmt: skip
                buffers.append(memoryview(batch)[STAMP_BYTES:])
            size_bytes, first = sum(header.batch_bytes for header in headers), headers[0]
            offsets = headers[-1].end_offset - first.base_offset
            segment = self._writer.segment_for(size_bytes, offsets, first.append_timestamp_ms)
            self._writer.write(segment, buffers, headers, size_bytes=size_bytes, leader_epoch=leader_epoch)
            return headers

    def roll_if_due(self, at_ms: int) -> bool:
        """Close the active segment if its first batch is old enough at `at_ms` (`LogSettings.roll_ms`)."""
        with self._turn:
            self._state.check_online()
            active = self._segments.active
            if not active.size_bytes or at_ms - active.first_append_ms < self._state.settings.roll_ms:
                return False
            self._writer.roll()
            return True

    def close_below(self, offset: int) -> Offset:
        """Close the active segment if it has records below `offset`, and fsync it; return the end of closed ones."""
        with self._turn:
            self._state.check_online()
            active = self._segments.active
            if active.size_bytes and active.base_offset < offset:
                self._writer.roll()
            end_offset = self._segments.active.base_offset
        self.flush()
        return Offset(end_offset)

    # -- epochs ----------------------------------------------------------------------------------------------------

    def start_epoch(self, leader_epoch: int) -> Offset:
        """Persist (fsync) that `leader_epoch` starts at the log end; return the log end. A known epoch changes nothing.

        The broker calls it when it becomes leader, before the first append (PROTOCOL "Leading").
        """
        with self._turn:
            self._state.check_online()
            self._start_epoch(leader_epoch)
            return self.log_end_offset

    def _start_epoch(self, leader_epoch: int) -> None:
        with self._lock:
            self.durability.epochs_due |= self._epochs.assign(leader_epoch, self._state.end.offset)
        with self._state.disk():
            self.durability.write_epochs()

    def epoch_end(self, leader_epoch: int) -> tuple[LeaderEpoch, Offset]:
        """Return the largest known epoch <= `leader_epoch` and its end offset; (-1, log start) if there is none."""
        with self._lock:
            found = self._epochs.end_of(leader_epoch, self._state.end.offset)
        if found is None:
            return LeaderEpoch(-1), self.log_start_offset
        return LeaderEpoch(found[0]), Offset(found[1])

    def epoch_at(self, offset: int) -> LeaderEpoch:
        """Return the leader epoch of the record at `offset`; -1 if it is below all known epochs."""
        with self._lock:
            return LeaderEpoch(self._epochs.epoch_at(offset))

    def epochs(self) -> tuple[tuple[LeaderEpoch, Offset], ...]:
        """Return all known epochs with their start offsets, both strictly increasing (I6)."""
        with self._lock:
            return self._epochs.entries()

    # -- durability, log end ---------------------------------------------------------------------------------------

    def flush(self) -> Offset:
        """Fsync the records appended before the call and return the new `flushed_offset`. Any thread; blocks.

        Rounds are serialised; a caller whose records another round has covered returns without an fsync.
        Raises StorageOfflineError; the call must not be retried.
        """
        state = self._state
        wanted = state.end.offset
        with self.durability.round_lock:
            state.check_online()
            if state.flushed.offset < wanted:
                with state.disk():
                    self.durability.flush_dirty()
            return Offset(state.flushed.offset)

    def truncate_to(self, offset: int) -> Offset:
        """Truncate the log to `offset`, or to the start of the batch that contains it; return the new log end.

        Lowers the recovery point, truncates, fsyncs; epochs and producer snapshots are truncated too (H32). An `offset`
        below the log start resets the log to start there.
        """
        state = self._state
        with self._shortening():
            if offset < state.log_start_offset:
                self._truncation.reset_to(offset, 0)
            elif offset < state.end.offset:
                self._truncation.truncate_to(offset)
            self.compaction.note_truncated(state.end.offset)
            return self.log_end_offset

    def reset_to(self, offset: int, previous_crc: int = 0) -> None:
        """Discard all records and start empty at `offset`: one step for log start, log end and flushed offset (H8).

        `previous_crc` is the chain value that the first batch continues.
        """
        with self._shortening():
            self._truncation.reset_to(offset, previous_crc)
            self.compaction.note_truncated(0)

    @contextmanager
    def _shortening(self) -> Iterator[None]:
        """Hold the round lock; first remove bytes that an earlier call left beyond the log end."""
        self._files.make_room()
        with self.durability.round_lock, self._state.disk():
            self._state.check_online()
            self._truncation.remove_rest()
            yield

    # -- open files ------------------------------------------------------------------------------------------------

    def release_file(self, file: OpenFile, *, sync: bool) -> bool:
        """Implement `Holder`; any thread. A failed fsync takes the log offline, and a later call reports it."""
        if self._turn.locked() or not self.durability.round_lock.acquire(blocking=False):
            return False
        try:
            if sync:
                with suppress(HeadraceError):  # The state records the failure.
                    self.flush()
            if not self._turn.acquire(blocking=False):
                return False
            try:
                return self._release_if_synced(file)
            finally:
                self._turn.release()
        finally:
            self.durability.round_lock.release()

    def _release_if_synced(self, file: OpenFile) -> bool:
        state, segments = self._state, self._segments
        is_unsynced = state.uncut or segments.active.dirty
        if segments.active_file is not file or (is_unsynced and not self.offline):
            return False
        segments.release_active()
        return True

    # -- closing ---------------------------------------------------------------------------------------------------

    def close(self, *, high_watermark: int | None = None) -> None:
        """Flush, write the checkpoint and the indexes, close the files. An offline log only closes its files.

        Waits for an append in progress; afterwards every call raises LogClosedError. Raises StorageFullError,
        StorageBusyError, StorageOfflineError: the files are closed, and the next open recovers the unflushed part.
        """
        self._close(lambda: self._write_all(high_watermark))

    def discard(self) -> None:
        """Close the files, and write nothing: the log will be deleted."""
        self._close(lambda: None)

    def _write_all(self, high_watermark: int | None) -> None:
        if not self.offline:
            with self._state.disk():
                self._truncation.remove_rest()
                self.durability.write_all(high_watermark)

    def _close(self, write: Callable[[], None]) -> None:
        self.compaction.stop()
        with self._turn, self.durability.round_lock:
            if self._state.closed:
                return
            try:
                write()
            finally:
                with self._lock:
                    self._state.closed = True
                    self._segments.release_active()
                    for segment in self._segments.items:
                        self.durability.release(segment)
                        self._files.forget(segment.path)
                        segment.index.drop()


def _check_copies(batches: Sequence[ReadableBuffer], before: ChainPoint) -> Iterator[BatchHeader]:
    """Yield the headers of batches that continue a log that ends at `before`."""
    for batch in batches:
        header = read_header(batch)
        if header.base_offset != before.offset:
            raise OffsetOutOfRangeError(
                f"a copied batch begins at offset {header.base_offset}, and the log ends at {before.offset}",
                outcome=Outcome.NOT_APPLIED,
                action="Continue at the end of the log.",
            )
        if header.previous_crc != before.crc:
            raise DivergedLogError(
                f"the copied batch at offset {before.offset} follows another record than the last one of this log",
                outcome=Outcome.NOT_APPLIED,
            )
        if header.batch_bytes != len(batch):
            raise CorruptBatchError(f"batch_bytes is {header.batch_bytes}, but {len(batch)} bytes came")
        wrong = check_next(memoryview(batch), header, before._replace(epoch=LeaderEpoch(-1)))
        if wrong:
            raise CorruptBatchError(f"a copied batch does not fit at offset {before.offset}: {wrong}")
        before = ChainPoint.after(header)
        yield header


def _of_one_segment(headers: list[BatchHeader]) -> list[BatchHeader]:
    """Return the first batches, as many as a segment can have by their offsets."""
    for index, header in enumerate(headers):
        if index and header.end_offset - headers[0].base_offset > MAX_COMPACTED_OFFSETS:
            return headers[:index]
    return headers
