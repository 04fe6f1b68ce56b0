"""Recovery of a log on open: find its end and check that its content is exactly what was written.

Called when a `PartitionLog` is created, before the log is shared. Batches past the recovery point are checked one by
one. A torn tail beyond it is truncated; anything else is corruption and changes nothing (I6, I17, H31, H33). After a
clean stop the recovery point is the end of the last file, so nothing is read.
"""

from __future__ import annotations

from typing import NamedTuple

from headrace.log.checkpoint import Checkpoint, CheckpointFile, Mark, read_sealed
from headrace.log.epochs import EPOCHS_FILE, EpochHistory, decode_epochs
from headrace.log.errors import CorruptLogError
from headrace.log.scan import BadBatch, ChainPoint, check_batches, find_valid_batch
from headrace.log.segment import (
    DELETED_SUFFIX,
    LOG_SUFFIX,
    Segment,
    SegmentName,
    replaced_segments,
    segment_names,
)
from headrace.log.segments import SegmentList
from headrace.log.settings import LogSettings
from headrace.wire.batch import HEADER_BYTES, BatchHeader, peek_header


class RecoveryReport(NamedTuple):
    """Result of the recovery on open."""

    scanned_bytes: int  # log bytes read past the recovery point; 0 after a clean stop
    cut_bytes: int  # of a torn tail, beyond the fsynced mark
    cut_reason: str  # why the tail was bad; "" when nothing was cut
    checkpoint_rebuilt: bool  # no valid recovery point was found: the whole log was scanned


class Recovered(NamedTuple):
    """The recovered state of the log; the segment list is filled and its files are truncated."""

    log_start_offset: int
    high_watermark: int
    end: Mark
    epochs: EpochHistory
    epochs_changed: bool
    report: RecoveryReport
    scanned_from: int  # base offset of the first segment that was scanned
    stored: Checkpoint | None  # content of the checkpoint file


def recover(
    segments: SegmentList,
    checkpoint_file: CheckpointFile,
    settings: LogSettings,
    *,
    truncate_at_corruption: bool,
    same_boot: bool,
) -> Recovered:
    """Load the segments, scan past the recovery point, truncate a torn tail; raises CorruptLogError, OSError.

    `same_boot` means that the kernel has kept all writes, so only the last write can be torn.
    """
    filesystem, directory = segments.filesystem, segments.directory
    names = filesystem.list_directory(directory)
    for name in names:
        if name.endswith((DELETED_SUFFIX, ".tmp")):
            filesystem.unlink(f"{directory}/{name}")
    present = segment_names(names)
    replaced = replaced_segments(present)
    _remove_replaced(segments, replaced)
    for segment_name in present:
        if segment_name not in replaced:
            _load_segment(segments, segment_name)
    checkpoint = checkpoint_file.read()
    if checkpoint is None:
        mark = _first_mark(segments)
        start, high_watermark = mark.offset, 0
    else:
        mark, start, high_watermark = checkpoint.mark, checkpoint.log_start_offset, checkpoint.high_watermark
        _drop_below_start(segments, start)
        mark = _move_to_next_segment(segments, mark)
        if not truncate_at_corruption:
            _check_mark(segments, mark)
        elif segments.items:
            mark = _first_mark(segments)  # the operator accepts every valid record, so all bytes are scanned
    proven = checkpoint is not None and not truncate_at_corruption
    scan = _Scan(
        segments, settings, mark, proven=proven, truncate_at_corruption=truncate_at_corruption, same_boot=same_boot
    )
    end = scan.run()
    _cut(segments, scan)
    epochs, changed = _epochs(segments, settings, mark, scan.epochs, end.offset)
    changed = epochs.cut_start(start) or changed
    report = RecoveryReport(scan.scanned_bytes, scan.cut_bytes, scan.reason, checkpoint is None)
    high_watermark = min(max(high_watermark, start), end.offset)
    return Recovered(min(start, end.offset), high_watermark, end, epochs, changed, report, mark.segment, checkpoint)


def _remove_replaced(segments: SegmentList, replaced: list[SegmentName]) -> None:
    """Finish a compaction that a crash interrupted: what replaces these segments was durable before their removal."""
    for name in replaced:
        stem = f"{segments.directory}/{name.stem}"
        segments.drop_index_files(stem)
        segments.filesystem.unlink(stem + LOG_SUFFIX)


def _load_segment(segments: SegmentList, name: SegmentName) -> None:
    file = segments.files.pin(f"{segments.directory}/{name.stem}{LOG_SUFFIX}")
    try:
        segments.add(name, segments.filesystem.size(file.descriptor))
    finally:
        segments.files.unpin(file)


def _first_mark(segments: SegmentList) -> Mark:
    """Return the mark of a full scan; chain and epoch are taken from the first batch there."""
    base_offset = segments.items[0].base_offset if segments.items else 0
    return Mark(base_offset, base_offset, 0, 0, -1)


def _drop_below_start(segments: SegmentList, log_start_offset: int) -> None:
    """Finish a removal that a crash interrupted: the log start is persisted before files are removed."""
    while len(segments.items) > 1 and segments.items[1].base_offset <= log_start_offset:
        segment = segments.items[0]
        segments.remove(segment)
        segments.files.forget(segment.path)
        segments.drop_index_files(segment.stem)
        segments.filesystem.unlink(segment.path)


def _move_to_next_segment(segments: SegmentList, mark: Mark) -> Mark:
    """Return a mark at the end of a removed segment as the start of the next one."""
    if segments.items and mark.segment < mark.offset == segments.items[0].base_offset:
        return mark._replace(segment=mark.offset, position=0)
    return mark


def _check_mark(segments: SegmentList, mark: Mark) -> None:
    """Raise CorruptLogError if the log does not reach its fsynced mark."""
    segment = next((segment for segment in segments.items if segment.base_offset == mark.segment), None)
    path = f"{segments.directory}/{mark.segment:020d}{LOG_SUFFIX}"
    if segment is None:
        if mark.position == 0 and not any(item.base_offset >= mark.segment for item in segments.items):
            return  # a segment created for the next append, whose name was lost before it had content
        raise CorruptLogError(
            "the segment that holds the fsynced mark is gone", file=path, offset=mark.offset, position=0
        )
    if segment.size_bytes < mark.position:
        raise CorruptLogError(
            f"the file ends there, but everything up to byte {mark.position} was fsynced",
            file=path, offset=segment.base_offset, position=segment.size_bytes,
        )  # fmt: skip


class _Scan:
    """Scan past the recovery point: finds the end, the epochs on the way, and the bytes to truncate."""

    def __init__(
        self,
        segments: SegmentList,
        settings: LogSettings,
        mark: Mark,
        *,
        proven: bool,
        truncate_at_corruption: bool,
        same_boot: bool,
    ) -> None:
        self._segments = segments
        self._max_batch_bytes = settings.max_batch_bytes
        self._mark = mark
        self._proven = proven
        self._truncate_at_corruption = truncate_at_corruption
        self._same_boot = same_boot
        self.end = mark
        self.epochs: list[tuple[int, int]] = []
        self.scanned_bytes = 0
        self.cut_bytes = 0
        self.reason = ""
        self.bad_segment: Segment | None = None
        self._chain_known = proven

    def run(self) -> Mark:
        """Scan to the end or to the first bad batch, and classify that."""
        rest = [segment for segment in self._segments.items if segment.base_offset >= self._mark.segment]
        for segment in rest:
            position = self._mark.position if segment.base_offset == self._mark.segment else 0
            if segment.base_offset not in (self._mark.segment, self.end.offset):
                reason = f"the segment starts at offset {segment.base_offset}, the one before ends at {self.end.offset}"
                bad: BadBatch | None = BadBatch(0, self.end.offset, reason, 0)
            else:
                bad = self._scan_segment(segment, position)
            if bad is not None:
                self._judge(segment, bad)
                break
        return self.end

    def _scan_segment(self, segment: Segment, position: int) -> BadBatch | None:
        file = self._segments.files.pin(segment.path)
        try:
            read_at = self._segments.reader(file)
            if not self._chain_known:
                # Without a checkpoint, the first batch of the log defines the chain value before it.
                self._chain_known = True
                self.end = self.end._replace(crc=peek_header(read_at(HEADER_BYTES, position)).previous_crc)
            before = ChainPoint(self.end.offset, self.end.crc, self.end.epoch)
            if self.end.segment != segment.base_offset:
                self.end = Mark(self.end.offset, segment.base_offset, 0, self.end.crc, self.end.epoch)
            start = self.end
            for item in check_batches(read_at, position, segment.size_bytes, before, self._max_batch_bytes):
                if isinstance(item, BadBatch):
                    if segment.is_compacted:
                        self._go_back(start)
                    return item
                self._take(segment, item[0], item[1])
            if segment.is_compacted:  # Appends never continue it.
                self.end = self.end._replace(segment=self.end.offset, position=0)
            return None
        finally:
            self._segments.files.unpin(file)

    def _go_back(self, start: Mark) -> None:
        """Let the log end at the start of a compacted segment, which goes as a whole: its name has its offsets."""
        self.end = start
        self.epochs = [entry for entry in self.epochs if entry[1] < start.offset]

    def _take(self, segment: Segment, position: int, header: BatchHeader) -> None:
        if header.leader_epoch > self.end.epoch:
            self.epochs.append((header.leader_epoch, header.base_offset))
        end_position = position + header.batch_bytes
        self.scanned_bytes += header.batch_bytes
        self.end = Mark(header.end_offset, segment.base_offset, end_position, header.chain_crc, header.leader_epoch)

    def _judge(self, segment: Segment, bad: BadBatch) -> None:
        """Classify the bad batch as a torn tail, or raise an error for corruption.

        After a power loss, blocks beyond the mark may have reached the disk in any order, so valid batches may follow a
        bad one. If only the process died, the kernel has all writes, and only the last one can be torn. Bit rot beyond
        a mark that is one second old cannot be distinguished from a torn write (H31).
        """
        later = [item for item in self._segments.items if item.base_offset > segment.base_offset]
        self.bad_segment = segment
        self.reason = bad.reason
        kept_bytes = 0 if segment.is_compacted else bad.position
        self.cut_bytes = segment.size_bytes - kept_bytes + sum(item.size_bytes for item in later)
        if self._truncate_at_corruption or (self._proven and not self._same_boot):
            return
        found = self._valid_after(segment, bad, later)
        reason = f"{bad.reason}; a valid batch follows in {found}" if found else bad.reason
        if not found and not self._proven:
            reason = f"{bad.reason}; both checkpoint slots are lost, so that it may have been fsynced"
        if found or not self._proven:
            raise CorruptLogError(reason, file=segment.path, offset=bad.offset, position=bad.position)

    def _valid_after(self, segment: Segment, bad: BadBatch, later: list[Segment]) -> str:
        for item, position in [(segment, bad.next_position), *((item, 0) for item in later)]:
            file = self._segments.files.pin(item.path)
            try:
                read_at = self._segments.reader(file)
                found = find_valid_batch(read_at, position, item.size_bytes, bad.offset, self._max_batch_bytes)
            finally:
                self._segments.files.unpin(file)
            if found is not None:
                return f"{item.path} at byte {found}"
        return ""


def _cut(segments: SegmentList, scan: _Scan) -> None:
    """Remove the bytes that the scan rejected, last first, and sync before anything is appended (H32)."""
    filesystem, bad = segments.filesystem, scan.bad_segment
    if bad is None:
        return
    for segment in reversed(list(segments.items)):
        if segment.base_offset < bad.base_offset:
            break
        segments.drop_index_files(segment.stem)
        # Segments beyond the new end and compacted ones are removed; the one that holds the end is truncated.
        if segment.is_compacted or segment.base_offset > min(scan.end.offset, scan.end.segment):
            segments.remove(segment)
            segments.files.forget(segment.path)
            filesystem.unlink(segment.path)
            continue
        file = segments.files.pin(segment.path)
        try:
            filesystem.truncate(file.descriptor, scan.end.position)
            filesystem.fsync(file.descriptor)
        finally:
            segments.files.unpin(file)
        segment.size_bytes = scan.end.position
        segment.index_ready = segment.size_bytes == 0
    filesystem.fsync_directory(segments.directory)


def _epochs(
    segments: SegmentList, settings: LogSettings, mark: Mark, scanned: list[tuple[int, int]], end_offset: int
) -> tuple[EpochHistory, bool]:
    """Return the epochs, and whether the file differs: the file's up to the mark, the scan's beyond.

    All are from headers if the file is lost (I6). A new log needs no file.
    """
    path = f"{segments.directory}/{EPOCHS_FILE}"
    content = read_sealed(segments.filesystem, path)
    stored = decode_epochs(content) if content is not None else None
    if stored is None:
        history = _epochs_from_headers(segments, settings)
        return history, bool(history.entries()) or segments.filesystem.exists(path)
    before = stored.entries()
    history = EpochHistory([entry for entry in before if entry[0] <= mark.epoch])
    for epoch, start in scanned:
        history.assign(epoch, start)
    for epoch, start in before:  # an epoch that was started at the end and has no batch yet
        if start == end_offset:
            history.assign(epoch, start)
    return history, history.entries() != before


def _epochs_from_headers(segments: SegmentList, settings: LogSettings) -> EpochHistory:
    history = EpochHistory()
    for segment in segments.items:
        for _, header in segments.walk(segment, segment.base_offset, settings.index_interval_bytes):
            history.assign(header.leader_epoch, header.base_offset)
    return history
