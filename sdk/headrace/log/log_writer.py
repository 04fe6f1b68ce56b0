"""Write path of one log: the active segment, appends at the end, the roll to the next segment.

Belongs to a `PartitionLog`, which assigns offsets or checks the leader's, and calls it while it holds its turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, NoReturn

from headrace.log.checkpoint import Mark
from headrace.log.durability import LogDurability
from headrace.log.errors import is_no_room, is_refused, storage_full
from headrace.log.log_state import LogState
from headrace.log.log_truncation import LogTruncation
from headrace.log.open_files import OpenFile, pin_empty
from headrace.log.segment import LOG_SUFFIX, Segment, SegmentName, first_append_ms
from headrace.wire.batch import STAMP_BYTES, BatchHeader, stamp
from headrace.wire.batch_runs import BatchRun

_MAX_BUFFERS = 1024  # IOV_MAX of Linux
_MAX_RELATIVE_OFFSET = 0xFFFF_FFFF


class Stamped(NamedTuple):
    """Batches with the leader's fields, to be written at the log end."""

    buffers: list[bytes | memoryview]
    headers: list[BatchHeader] | BatchRun
    """Headers before the stamp."""
    size_bytes: int
    records: int


class LogWriter:
    """Writes whole batches at the log end; a failed append leaves none of its bytes."""

    def __init__(self, state: LogState, durability: LogDurability, truncation: LogTruncation) -> None:
        self._space = state.environment.space
        self._state = state
        self._segments = state.segments
        self._durability = durability
        self._truncation = truncation

    def open_active(self) -> OpenFile:
        """Pin the last segment's file of the recovered log; create a segment if there is none. Raises OSError."""
        segments, end = self._segments, self._state.end
        if not segments.items or segments.active.base_offset != end.segment:
            return self._create_segment(end.offset)
        active = segments.active
        assert not active.is_compacted, "recovery ends a log behind its compacted segments"
        file = self._segments.files.pin(active.path)
        read_at = segments.reader(file)
        segments.ready_index(active, read_at, self._state.settings.index_interval_bytes)
        active.first_append_ms = first_append_ms(read_at, active.size_bytes)
        return file

    def check_writable(self) -> None:
        """Raise as `PartitionLog.append`; first remove bytes that an earlier call left beyond the log end."""
        state = self._state
        if state.closed or state.offline_error is not None:
            state.check_online()
        if self._space.refusing:
            raise storage_full(state.directory)
        if state.uncut:
            self._remove_rest()

    def stamp(self, batches: Sequence[tuple[bytes, BatchHeader]] | BatchRun, leader_epoch: int, at_ms: int) -> Stamped:
        """Assign checked batches the offsets from the log end, and the leader's other fields; write nothing."""
        offset, crc = self._state.end.offset, self._state.end.crc
        if isinstance(batches, BatchRun):
            batches.stamp(base_offset=offset, append_timestamp_ms=at_ms, leader_epoch=leader_epoch, previous_crc=crc)
            return Stamped([batches.data], batches, len(batches.data), len(batches) * batches.record_count)
        buffers: list[bytes | memoryview] = []
        headers: list[BatchHeader] = []
        records = size_bytes = 0
        for batch, header in batches:
            buffers.append(
                stamp(
                    header, base_offset=offset + records, append_timestamp_ms=at_ms, leader_epoch=leader_epoch,
                    previous_crc=crc,
                )
            )  # fmt: skip
            buffers.append(memoryview(batch)[STAMP_BYTES:])
            headers.append(header)
            records += header.record_count
            size_bytes += header.batch_bytes
            crc = header.crc
        return Stamped(buffers, headers, size_bytes, records)

    def segment_for(self, size_bytes: int, records: int, at_ms: int) -> Segment:
        """Return the segment for the next append: the active one, or a new one if that is full or old."""
        if self.must_roll(size_bytes, records, at_ms):
            self.roll()
        return self._segments.active

    def must_roll(self, size_bytes: int, records: int, at_ms: int) -> bool:
        """Return whether the active segment is full or old for an append."""
        segment, settings = self._segments.active, self._state.settings
        return segment.size_bytes > 0 and (
            segment.size_bytes + size_bytes > settings.segment_bytes
            or at_ms - segment.first_append_ms >= settings.roll_ms
            or self._state.end.offset + records - segment.base_offset > _MAX_RELATIVE_OFFSET
        )

    def write(
        self,
        segment: Segment,
        buffers: list[bytes | memoryview],
        headers: Sequence[BatchHeader] | BatchRun,
        *,
        size_bytes: int,
        leader_epoch: int,
        at_ms: int | None = None,
    ) -> None:
        """Write batches at the log end, undo a short write (H35), then move the log end and the index.

        `headers` are the headers before the write, or the run that is written. `leader_epoch` is that of the last batch
        as it is written. `at_ms` is the time of the new leader headers, `None` if the batches keep theirs.
        """
        if len(buffers) > _MAX_BUFFERS:
            buffers = [b"".join(buffers)]
        state, refusal = self._state, None
        file = self._segments.active_file or self._open_again()
        try:
            written = self._segments.filesystem.pwritev(file.descriptor, buffers, segment.size_bytes)
        except OSError as error:
            if not is_refused(error):
                raise state.go_offline(error) from error
            refusal, written = error, -1
        if written != size_bytes:
            self._refuse(refusal)
        self._space.note_appended(size_bytes)
        offset, interval = state.end.offset, state.settings.index_interval_bytes
        with self._segments.lock:
            if isinstance(headers, BatchRun):
                assert at_ms is not None, "a leader stamps a run"
                offset = segment.index.note_run(offset, headers, append_ms=at_ms, interval_bytes=interval)
                first_ms, crc = at_ms, int(headers.headers["crc"][-1])
            else:
                first_ms, crc = headers[0].append_timestamp_ms if at_ms is None else at_ms, headers[-1].chain_crc
                for header in headers:
                    end_offset = offset + header.end_offset - header.base_offset
                    segment.index.note(
                        offset,
                        end_offset,
                        header.batch_bytes,
                        append_ms=header.append_timestamp_ms if at_ms is None else at_ms,
                        record_ms=header.max_timestamp_ms,
                        interval_bytes=interval,
                    )
                    offset = end_offset
            if segment.size_bytes == 0:
                segment.first_append_ms = first_ms
            segment.size_bytes += size_bytes
            segment.dirty = True
            state.end = Mark(offset, segment.base_offset, segment.size_bytes, crc, leader_epoch)

    def _open_again(self) -> OpenFile:
        """Reopen the active segment's file, which was closed while the log was idle."""
        self._segments.files.make_room()
        with self._state.disk():
            return self._segments.open_active()

    def _refuse(self, refusal: OSError | None) -> NoReturn:
        """Roll back a failed append and raise its error; `None` means that it was written in part."""
        state = self._state
        state.uncut = True
        if refusal is None or is_no_room(refusal):
            self._space.note_full()
        self._remove_rest()
        raise storage_full(state.directory) if refusal is None else state.failed(refusal)

    def _remove_rest(self) -> None:
        """Remove what is beyond the log end, under the round lock: a flush must see each fsync that fails (H34)."""
        with self._durability.round_lock, self._state.disk():
            self._truncation.remove_rest()

    def roll(self) -> None:
        """Close the active segment and start the next one at the log end; `flush` fsyncs the closed one later."""
        old = self._segments.active
        self._segments.files.make_room()
        try:
            file = self._create_segment(self._state.end.offset)
        except OSError as error:
            if is_no_room(error):
                self._space.note_full()
            raise self._state.failed(error) from error
        with self._segments.lock:
            old_file = self._segments.take_active_file()
            self._segments.hold_active(file)
            self._durability.note_rolled(old, old_file)

    def _create_segment(self, base_offset: int) -> OpenFile:
        """Create the file of an empty segment and add it to the list. Raises OSError."""
        stem = f"{self._state.directory}/{base_offset:020d}"
        file = pin_empty(self._segments.files, stem + LOG_SUFFIX)
        try:
            self._segments.drop_index_files(stem)
        except OSError:
            self._segments.files.unpin(file)
            raise
        with self._segments.lock:
            self._segments.add(SegmentName(base_offset), 0)
            self._durability.directory_dirty = True
        return file
