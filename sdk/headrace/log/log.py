"""The log of one partition: segments in a directory, appended at the end, read by offset (paper section 3.1).

Called by the broker's runtime. One thread at a time may call a log's methods, except `flush`, `checkpoint`, the reading
methods and those of a `Slice`: these may run in any thread, concurrently with an append. Two locks: the segment list's
guards the bounds and is held for moments; `LogDurability.round_lock` serialises flush, checkpoint and what shortens the
log, is held over fsyncs and taken first.

Appending is here. The rest lies in parts of its own: `log_reader`, `durability`, `log_retention` (retention),
`log_truncation` (truncation), `producer_snapshots`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NoReturn

from headrace.log.checkpoint import CheckpointFile, Mark
from headrace.log.durability import LogDurability
from headrace.log.environment import LogEnvironment
from headrace.log.errors import CorruptLogError, is_no_room, is_refused, storage_error, storage_full
from headrace.log.log_reader import LogReader
from headrace.log.log_retention import LogRetention
from headrace.log.log_state import LogState
from headrace.log.log_truncation import LogTruncation
from headrace.log.open_files import OpenFile, pin_empty
from headrace.log.producer_snapshots import ProducerSnapshots
from headrace.log.recovery import Recovered, RecoveryReport, recover
from headrace.log.scan import ChainPoint, check_next
from headrace.log.segment import LOG_SUFFIX, Segment
from headrace.log.segments import SegmentList, WouldBlockError
from headrace.log.settings import LogSettings
from headrace.log.slices import Slice
from headrace.log.timestamps import TimestampedOffset, TimestampKind
from headrace.wire.batch import HEADER_BYTES, STAMP_BYTES, BatchHeader, iter_batches, stamp
from headrace.wire.crc import ReadableBuffer
from headrace.wire.errors import CorruptBatchError, HeadraceError
from headrace.wire.ids import LeaderEpoch, Offset

__all__ = ["PartitionLog", "RecoveryReport", "TimestampKind", "TimestampedOffset"]

_MAX_BUFFERS = 1024  # IOV_MAX of Linux
_MAX_RELATIVE_OFFSET = 0xFFFF_FFFF


class PartitionLog:
    """One partition's log. Opened by `DataDirectory.open_log`, which owns it until `close`."""

    def __init__(
        self,
        environment: LogEnvironment,
        directory: str,
        settings: LogSettings,
        *,
        topic_id: bytes,
        partition: int,
        truncate_at_corruption: bool,
    ) -> None:
        """Used by `open` only."""
        self.topic_id = topic_id
        self.partition = partition
        self.directory = directory
        self._filesystem = environment.filesystem
        self._files = environment.files
        self._space = environment.space
        self._segments = SegmentList(environment.files, environment.index_cache, directory, self)
        self._lock = self._segments.lock
        # Held while something is appended: `close` waits for it and `release_file` gives up, as the descriptor may get
        # another file's number.
        self._turn = threading.Lock()
        checkpoint_file = CheckpointFile(self._filesystem, directory)
        recovered = recover(
            self._segments,
            checkpoint_file,
            settings,
            truncate_at_corruption=truncate_at_corruption,
            same_boot=environment.same_boot,
        )
        # What opening found; see RecoveryReport.
        self.recovery: RecoveryReport = recovered.report
        self._state = LogState(directory, settings, recovered.end, environment.on_io_error)
        self._state.log_start_offset = recovered.log_start_offset
        self._state.high_watermark = recovered.high_watermark
        self._reader = LogReader(self._state, self._segments)
        self._epochs = recovered.epochs
        state, segments, epochs = self._state, self._segments, self._epochs
        self._durability = durability = LogDurability(environment, state, segments, epochs, checkpoint_file)
        self._snapshots = ProducerSnapshots(environment, state)
        self._retention = LogRetention(environment, state, segments, epochs, durability)
        self._truncation = LogTruncation(
            environment, state, segments, epochs, durability, self._reader, self._snapshots
        )
        self._segments.hold_active(self._open_active(recovered))

    @classmethod
    def open(
        cls,
        environment: LogEnvironment,
        directory: str,
        topic_id: bytes,
        partition: int,
        settings: LogSettings,
        *,
        truncate_at_corruption: bool = False,
    ) -> PartitionLog:
        """Recover the log in `directory`, which exists and is synced into its parent.

        Raises CorruptLogError (nothing was changed; see `DataDirectory.open_log`), StorageFullError, StorageBusyError
        (try again), StorageOfflineError.
        """
        environment.files.make_room()
        try:
            return cls(
                environment,
                directory,
                settings,
                topic_id=topic_id,
                partition=partition,
                truncate_at_corruption=truncate_at_corruption,
            )
        except (OSError, CorruptLogError) as error:
            environment.files.drop_all(directory)
            if isinstance(error, OSError):
                raise storage_error(directory, error) from error
            raise

    def _open_active(self, recovered: Recovered) -> OpenFile:
        """Make the active segment ready for appends, and the recovered state durable."""
        end = self._state.end
        if not self._segments.items or self._segments.active.base_offset != end.segment:
            file = self._create_segment(end.offset)
        else:
            file = self._files.pin(self._segments.active.path)
            active, interval = self._segments.active, self._state.settings.index_interval_bytes
            read_at = self._segments.reader(file)
            self._segments.ready_index(active, read_at, interval)
            if active.size_bytes:
                first = read_at(HEADER_BYTES, 0)
                active.first_append_ms = int.from_bytes(first[8:16], "little", signed=True)
        if self.recovery.scanned_bytes or self.recovery.cut_bytes or self.recovery.checkpoint_rebuilt:
            # The bytes that survived the process may be in the page cache only.
            self._durability.directory_dirty = True
            for segment in self._segments.items:
                segment.dirty = segment.base_offset >= recovered.scanned_from
        self._durability.epochs_due = recovered.epochs_changed
        self._durability.write_epochs()
        self._snapshots.drop_above(end.offset)
        self._durability.settle_opened(recovered.stored)
        return file

    # -- state -----------------------------------------------------------------------------------------------------

    @property
    def settings(self) -> LogSettings:
        """The settings in force."""
        return self._state.settings

    @property
    def log_start_offset(self) -> Offset:
        """The first offset that may be read; persisted, never falls (I18)."""
        return Offset(self._state.log_start_offset)

    @property
    def log_end_offset(self) -> Offset:
        """The offset that the next record will get."""
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
        """The `crc` of the last batch (the chain), 0 when the log never had one."""
        return self._state.end.crc

    @property
    def last_epoch(self) -> LeaderEpoch:
        """The largest leader epoch known: of the last batch or of `start_epoch`; -1 for none."""
        return LeaderEpoch(self._epochs.last_epoch)

    @property
    def last_batch_epoch(self) -> LeaderEpoch:
        """The leader epoch of the last batch; -1 when the log has none."""
        return LeaderEpoch(self._state.end.epoch)

    @property
    def end(self) -> ChainPoint:
        """Log end, `last_crc` and `last_batch_epoch` of one moment, for readers concurrent with an append."""
        end = self._state.end
        return ChainPoint(end.offset, end.crc, end.epoch)

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

    def newest_append_ms(self) -> int:
        """When the last batch was appended, by the clock of its leader; -1 for an empty log. May block."""
        active = self._segments.active
        if active.size_bytes:
            return active.index.max_append_ms
        header = self._reader.batch_before(self.log_end_offset)
        return -1 if header is None else header.append_timestamp_ms

    # -- append ----------------------------------------------------------------------------------------------------

    @property
    def is_closed_while_idle(self) -> bool:
        """Whether the next append opens the active segment's file, which may fsync that of another log first."""
        return self._segments.active_file is None

    def append(self, batch: bytes, header: BatchHeader, *, leader_epoch: int, append_timestamp_ms: int) -> Offset:
        """Stamp one checked batch, write it with one `pwritev`, and return its base offset.

        Raises StorageFullError (nothing is appended, retriable), StorageOfflineError (resign).
        """
        return self.append_all(((batch, header),), leader_epoch=leader_epoch, append_timestamp_ms=append_timestamp_ms)

    def append_all(
        self, batches: Sequence[tuple[bytes, BatchHeader]], *, leader_epoch: int, append_timestamp_ms: int
    ) -> Offset:
        """Append several checked batches with one `pwritev`, all or none; return the base offset of the first.

        The others follow by their record counts. Raises as `append`.
        """
        with self._turn:
            return self._append_all(batches, leader_epoch, append_timestamp_ms)

    def _append_all(
        self, batches: Sequence[tuple[bytes, BatchHeader]], leader_epoch: int, append_timestamp_ms: int
    ) -> Offset:
        state = self._state
        self._check_writable()
        assert leader_epoch >= self._epochs.last_epoch, f"epoch {leader_epoch} after {self._epochs.last_epoch}"
        if leader_epoch > self._epochs.last_epoch or self._durability.epochs_due:
            self._start_epoch(leader_epoch)
        size_bytes = records = 0
        for _, header in batches:
            size_bytes += header.batch_bytes
            records += header.record_count
        segment = self._segment_for(size_bytes, records, append_timestamp_ms)
        first_offset, crc = state.end.offset, state.end.crc
        offset = first_offset
        buffers: list[bytes | memoryview] = []
        for batch, header in batches:
            buffers.append(
                stamp(
                    header, base_offset=offset, append_timestamp_ms=append_timestamp_ms,
                    leader_epoch=leader_epoch, previous_crc=crc,
                )
            )  # fmt: skip
            buffers.append(memoryview(batch)[STAMP_BYTES:])
            offset += header.record_count
            crc = header.crc
        self._write(segment, buffers, size_bytes)
        noted = []
        offset = first_offset
        for _, header in batches:
            end_offset = offset + header.record_count
            noted.append((offset, end_offset, header.batch_bytes, append_timestamp_ms, header.max_timestamp_ms))
            offset = end_offset
        self._appended(segment, noted, size_bytes, crc, leader_epoch)
        return Offset(first_offset)

    def append_replicated(self, batches: ReadableBuffer) -> list[BatchHeader]:
        """Append whole batches as the leader stamped them (followers); return their headers.

        Checks both CRCs, the chain, contiguous offsets and epochs of all before the first byte is written: raises
        CorruptBatchError and appends nothing. An empty `batches` appends nothing. Raises as `append`.
        """
        with self._turn:
            return self._append_replicated(batches)

    def _append_replicated(self, batches: ReadableBuffer) -> list[BatchHeader]:
        self._check_writable()
        state = self._state
        before = ChainPoint(state.end.offset, state.end.crc, state.end.epoch)
        headers: list[BatchHeader] = []
        for header, view in iter_batches(batches):
            wrong = check_next(view, header, before)
            if wrong:
                raise CorruptBatchError(f"a replicated batch does not fit at offset {before.offset}: {wrong}")
            before = ChainPoint(header.end_offset, header.crc, header.leader_epoch)
            headers.append(header)
        if not headers:
            return headers
        segment = self._segment_for(len(batches), before.offset - state.end.offset, headers[0].append_timestamp_ms)
        with self._lock:
            # Epochs in which this replica led and appended nothing are replaced by the leader's epochs here.
            changed = self._epochs.last_epoch > headers[0].leader_epoch and self._epochs.cut_end(state.end.offset)
            for header in headers:
                changed |= self._epochs.assign(header.leader_epoch, header.base_offset)
            self._durability.epochs_due |= changed
        if self._durability.epochs_due:
            with state.disk():
                self._durability.write_epochs()
        self._write(segment, [memoryview(batches)], len(batches))
        noted = [
            (h.base_offset, h.end_offset, h.batch_bytes, h.append_timestamp_ms, h.max_timestamp_ms) for h in headers
        ]
        self._appended(segment, noted, len(batches), before.crc, before.epoch)
        return headers

    def _check_writable(self) -> None:
        state = self._state
        if state.closed or state.offline_error is not None:
            state.check_online()
        if self._space.refusing:
            raise storage_full(self.directory)
        if state.uncut:
            with state.disk():
                self._truncation.remove_rest()

    def _segment_for(self, size_bytes: int, records: int, at_ms: int) -> Segment:
        """Return the segment for the next append: the active one, or a new one if that is full or old."""
        segment, settings = self._segments.active, self._state.settings
        if segment.size_bytes and (
            segment.size_bytes + size_bytes > settings.segment_bytes
            or at_ms - segment.first_append_ms >= settings.segment_ms
            or self._state.end.offset + records - segment.base_offset > _MAX_RELATIVE_OFFSET
        ):
            self._roll()
            return self._segments.active
        return segment

    def _write(self, segment: Segment, buffers: list[bytes | memoryview], size_bytes: int) -> None:
        """Write at the log end; roll back a short write (H35)."""
        if len(buffers) > _MAX_BUFFERS:
            buffers = [b"".join(buffers)]
        refusal: OSError | None = None
        file = self._segments.active_file or self._open_again()
        try:
            written = self._filesystem.pwritev(file.descriptor, buffers, segment.size_bytes)
        except OSError as error:
            if not is_refused(error):
                raise self._state.go_offline(error) from error
            refusal, written = error, -1
        if written != size_bytes:
            self._refuse(refusal)
        self._space.note_appended(size_bytes)

    def _open_again(self) -> OpenFile:
        """Open the active segment's file, which was closed while the log was idle."""
        self._files.make_room()
        with self._state.disk():
            return self._segments.open_active()

    def _refuse(self, refusal: OSError | None) -> NoReturn:
        """Roll back a failed append; None: it was written in part."""
        state = self._state
        state.uncut = True
        if refusal is None or is_no_room(refusal):
            self._space.note_full()
        with state.disk():
            self._truncation.remove_rest()
        raise storage_full(self.directory) if refusal is None else state.failed(refusal)

    def _appended(
        self, segment: Segment, noted: list[tuple[int, int, int, int, int]], size_bytes: int, crc: int, epoch: int
    ) -> None:
        interval = self._state.settings.index_interval_bytes
        with self._lock:
            for base_offset, end_offset, batch_bytes, append_ms, record_ms in noted:
                segment.index.note(
                    base_offset,
                    end_offset,
                    batch_bytes,
                    append_ms=append_ms,
                    record_ms=record_ms,
                    interval_bytes=interval,
                )
            if segment.size_bytes == 0:
                segment.first_append_ms = noted[0][3]
            segment.size_bytes += size_bytes
            segment.dirty = True
            self._state.end = Mark(noted[-1][1], segment.base_offset, segment.size_bytes, crc, epoch)

    def _roll(self) -> None:
        """Close the active segment and start the next at the log end; `flush` fsyncs the closed one later."""
        old = self._segments.active
        self._files.make_room()
        try:
            file = self._create_segment(self._state.end.offset)
        except OSError as error:
            if is_no_room(error):
                self._space.note_full()
            raise self._state.failed(error) from error
        with self._lock:
            old_file = self._segments.take_active_file()
            self._segments.hold_active(file)
            self._durability.note_rolled(old, old_file)

    def _create_segment(self, base_offset: int) -> OpenFile:
        """Create the file of an empty segment and add it to the list. Raises OSError."""
        stem = f"{self.directory}/{base_offset:020d}"
        file = pin_empty(self._files, stem + LOG_SUFFIX)
        try:
            self._segments.drop_index_files(stem)
        except OSError:
            self._files.unpin(file)
            raise
        with self._lock:
            self._segments.add(base_offset, 0)
            self._durability.directory_dirty = True
        return file

    # -- epochs ----------------------------------------------------------------------------------------------------

    def start_epoch(self, leader_epoch: int) -> Offset:
        """Persist (fsync) that `leader_epoch` starts at the log end; return the log end. A known epoch changes nothing.

        The broker calls it when it starts to lead, before the first append (PROTOCOL "Leading").
        """
        with self._turn:
            self._state.check_online()
            self._start_epoch(leader_epoch)
            return self.log_end_offset

    def _start_epoch(self, leader_epoch: int) -> None:
        with self._lock:
            self._durability.epochs_due |= self._epochs.assign(leader_epoch, self._state.end.offset)
        with self._state.disk():
            self._durability.write_epochs()

    def epoch_end(self, leader_epoch: int) -> tuple[LeaderEpoch, Offset]:
        """The largest known epoch <= `leader_epoch` and the offset after its last record; (-1, log start) if none."""
        with self._lock:
            found = self._epochs.end_of(leader_epoch, self._state.end.offset)
        if found is None:
            return LeaderEpoch(-1), self.log_start_offset
        return LeaderEpoch(found[0]), Offset(found[1])

    def epochs(self) -> tuple[tuple[LeaderEpoch, Offset], ...]:
        """All known epochs with their start offsets, both strictly increasing (I6)."""
        with self._lock:
            return self._epochs.entries()

    # -- read ------------------------------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, end_offset: int) -> Slice:
        """Whole batches starting with the one that holds `offset`, at least one, none past `end_offset`.

        At most `max_bytes` except for the first batch, all of one segment. Empty where `offset` is at or after
        `end_offset` but not after the log end, or where its batch goes past `end_offset`. May block on the disk. Close
        the slice. Raises OffsetOutOfRangeError outside log start .. log end, CorruptLogError, StorageOfflineError.
        """
        return self._reader.read(offset, max_bytes, end_offset, nowait=False)

    def read_nowait(self, offset: int, max_bytes: int, end_offset: int) -> Slice | None:
        """As `read`, but None where finding the batches would block on the disk: then `read` in a thread (H46)."""
        try:
            return self._reader.read(offset, max_bytes, end_offset, nowait=True)
        except WouldBlockError:
            return None

    def headers(self, offset: int) -> Iterator[BatchHeader]:
        """Headers of the batches from the one that holds `offset` to the log end at the time of the first step.

        The headers are not checked. Raises as `read`.
        """
        return self._reader.headers(offset)

    def checked_headers(self, offset: int) -> Iterator[BatchHeader]:
        """As `headers`, of batches that are read whole and checked, for rebuilding producer state (H48, H33).

        Only the batch's checksum covers the producer's fields of a header. Raises as `verify`.
        """
        return self._reader.checked_headers(offset)

    def batch_before(self, offset: int) -> BatchHeader | None:
        """The header of the batch that ends at `offset`; None at log start, or where no batch ends there."""
        return self._reader.batch_before(offset)

    def batch_with(self, offset: int) -> BatchHeader:
        """The header of the batch that holds `offset`. May block; raises as `read`."""
        return self._reader.batch_with(offset)

    def first_batch(self) -> tuple[Offset, int]:
        """Return where a copy of this log begins: base offset and `previous_crc` of the batch that holds the log start.

        The log end and `last_crc` if the log is empty. May block; raises as `read`.
        """
        end = self._state.end  # read once: another thread may append a batch
        if self.log_start_offset >= end.offset:
            return Offset(end.offset), end.crc
        header = self._reader.batch_with(self.log_start_offset)
        return Offset(header.base_offset), header.previous_crc

    def offset_for_timestamp(self, timestamp_ms: int, kind: TimestampKind) -> TimestampedOffset | None:
        """The first record whose timestamp is `timestamp_ms` or later, None if there is none. May block.

        By APPEND: the base offset of the first batch appended then or later. By RECORD: the first record of the first
        batch whose largest record timestamp reaches it. Inside that batch the record is found where the batch carries
        per-record timestamps uncompressed; of a compressed batch the broker inflates nothing, so the answer is its
        base offset and its base timestamp, at or before the record sought.
        """
        return self._reader.offset_for_timestamp(timestamp_ms, kind)

    def verify(self, offset: int | None = None) -> Offset:
        """Check every CRC, chain, offset and epoch from the batch that holds `offset` (default: log start); the end.

        The scrubber's and the operator's check; reads all. Raises CorruptLogError.
        """
        return self._reader.verify(self._state.log_start_offset if offset is None else offset)

    def verify_from(self, offset: int, max_bytes: int) -> tuple[Offset, int]:
        """As `verify`, of about `max_bytes` of the segment from the batch that holds `offset` on; where, how many."""
        return self._reader.verify_from(offset, max_bytes)

    # -- durability ------------------------------------------------------------------------------------------------

    def flush(self) -> Offset:
        """Fsync what was appended before the call and return the new `flushed_offset`. Any thread; blocks.

        Rounds are serialised; a caller whose data a round of another has covered returns without an fsync.
        Raises StorageOfflineError, after which nothing may be retried.
        """
        return self._durability.flush()

    def note_high_watermark(self, high_watermark: int) -> None:
        """Note the high watermark for the next process, in case this one is killed before the next checkpoint.

        One small write without an fsync; any thread. Raises as `flush`.
        """
        self._durability.note_high_watermark(high_watermark)

    def checkpoint(self, at_ms: int, high_watermark: int, *, force: bool = False) -> bool:
        """Write recovery point, log start, high watermark and new index entries if due at `at_ms` (monotonic).

        Returns whether it wrote.

        Due when something changed and `checkpoint_interval_ms` has passed, or a segment was rolled, or `force`. Any
        thread; fsyncs one small file. The broker calls it about every second for each log.
        """
        return self._durability.checkpoint(at_ms, high_watermark, force=force)

    @property
    def holds_files(self) -> bool:
        """Whether rolled segments wait for their fsync, each with an open descriptor: call `flush` soon."""
        return self._durability.holds_files

    def checkpoint_is_stale(self, high_watermark: int) -> bool:
        """Whether `checkpoint` has anything to write; a hint that takes no lock and never blocks."""
        return self._durability.is_stale(high_watermark)

    # -- the log's start -------------------------------------------------------------------------------------------

    def roll_if_due(self, at_ms: int) -> bool:
        """Close the active segment if its first batch is `segment_ms` old at `at_ms`, for retention to remove it."""
        with self._turn:
            self._state.check_online()
            active = self._segments.active
            if not active.size_bytes or at_ms - active.first_append_ms < self._state.settings.segment_ms:
                return False
            self._roll()
            return True

    def plan_retention(self, now_ms: int | None, high_watermark: int) -> Offset:
        """Return the log start after retention removes closed segments below `high_watermark` that are past a limit.

        `now_ms` is None while the clock is in doubt: then no segment is too old (H43).
        """
        return self._retention.plan_retention(now_ms, high_watermark)

    def delete_records(self, before: int, high_watermark: int) -> Offset:
        """Raise the log start to `before` (persisted first), remove segments wholly below it; return the log start.

        Raises OffsetOutOfRangeError if `before` is above `high_watermark`; a `before` below log start does nothing.
        """
        return self._retention.delete_records(before, high_watermark)

    def remove_deleted_files(self, now_ms: int) -> int:
        """Unlink files whose `file_delete_delay_ms` is over and that no slice pins; return how many segments are left.

        `now_ms` is of a monotonic clock.

        The delay counts from the first call after the removal.
        """
        return self._retention.remove_deleted_files(now_ms)

    # -- the log's end ---------------------------------------------------------------------------------------------

    def truncate_to(self, offset: int) -> Offset:
        """Truncate the log to `offset`, or to the start of the batch that contains it; return the new log end.

        Lowers the durable mark, truncates, fsyncs; epochs and producer snapshots are truncated too (H32). An `offset`
        below the log start resets the log to start there.
        """
        return self._truncation.truncate_to(offset)

    def reset_to(self, offset: int, previous_crc: int = 0) -> None:
        """Discard everything and start empty at `offset`: log start, log end and flushed offset in one step (H8).

        `previous_crc`: the chain that the first batch continues.
        """
        self._truncation.reset_to(offset, previous_crc)

    # -- producer snapshots ----------------------------------------------------------------------------------------

    def store_producer_snapshot(self, offset: int, snapshot: bytes) -> None:
        """Keep `snapshot` (the broker's encoding) as the producer state at `offset`: atomic, fsynced, CRC'd.

        Two are kept. After a crash that lost those records, opening the log removes a snapshot beyond `flushed_offset`.
        """
        with self._durability.round_lock:
            self._snapshots.store(offset, snapshot)

    def load_producer_snapshot(self) -> tuple[Offset, bytes] | None:
        """The newest valid snapshot at an offset within the log; rebuild from there with `checked_headers`."""
        return self._snapshots.load()

    # -- open files ------------------------------------------------------------------------------------------------

    def release_file(self, file: OpenFile, *, sync: bool) -> bool:
        """See `Holder`: any thread. A failed fsync takes the log offline, and a later call reports it."""
        durability = self._durability
        if self._turn.locked() or not durability.round_lock.acquire(blocking=False):
            return False
        try:
            if sync:
                with suppress(HeadraceError):  # The state shows what came of it.
                    durability.flush()
            if not self._turn.acquire(blocking=False):
                return False
            try:
                return self._release_if_synced(file)
            finally:
                self._turn.release()
        finally:
            durability.round_lock.release()

    def _release_if_synced(self, file: OpenFile) -> bool:
        state, segments = self._state, self._segments
        is_unsynced = state.uncut or segments.active.dirty
        if segments.active_file is not file or (is_unsynced and not self.offline):
            return False
        segments.release_active()
        return True

    # -- end -------------------------------------------------------------------------------------------------------

    def close(self, *, high_watermark: int | None = None) -> None:
        """Flush, write the checkpoint and the indexes, close the files. An offline log only closes its files.

        Waits for an append in progress; afterwards every call raises LogClosedError. Raises StorageFullError,
        StorageBusyError, StorageOfflineError: the files are closed, and the next opening recovers the rest.
        """
        state = self._state
        with self._turn, self._durability.round_lock:
            if state.closed:
                return
            try:
                if not self.offline:
                    with state.disk():
                        self._truncation.remove_rest()
                        self._durability.write_all(high_watermark)
            finally:
                with self._lock:
                    state.closed = True
                    self._segments.release_active()
                    for segment in self._segments.items:
                        self._durability.release(segment)
                        self._files.forget(segment.path)
                        segment.index.drop()
