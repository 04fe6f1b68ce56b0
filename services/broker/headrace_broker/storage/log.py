"""The log of one partition: segments in a directory, appended at the end, read by offset.

Called by the broker's runtime. One thread at a time may call a log's methods, except `flush`, `checkpoint`, `read`,
`read_nowait` and what a `Slice` offers: those may run beside an append in any thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from typing import NamedTuple

from headrace.wire.batch import BatchHeader
from headrace.wire.ids import LeaderEpoch, Offset

from headrace_broker.storage.settings import LogSettings
from headrace_broker.storage.slices import Slice


class TimestampKind(Enum):
    """Which timestamp a look-up goes by."""

    APPEND = "append"  # the leader's clock when the batch was appended
    RECORD = "record"  # the producer's timestamp of the record


class TimestampedOffset(NamedTuple):
    """The answer of a look-up by timestamp."""

    offset: Offset
    timestamp_ms: int


class RetentionResult(NamedTuple):
    """What one round of retention did."""

    deleted_segments: int
    deleted_bytes: int
    clock_jumped: bool  # the round was skipped (H43): alarm


class RecoveryReport(NamedTuple):
    """What opening the log found."""

    scanned_bytes: int  # log bytes read past the recovery point; 0 after a clean stop
    cut_bytes: int  # of a torn tail, beyond the fsynced mark
    cut_reason: str  # why the tail was bad; "" when nothing was cut
    checkpoint_rebuilt: bool  # no valid recovery point was found: the whole log was scanned


class PartitionLog:
    """One partition's log. Opened by `DataDirectory.open_log`."""

    topic_id: bytes
    partition: int
    directory: str
    recovery: RecoveryReport
    settings: LogSettings

    @property
    def log_start_offset(self) -> Offset:
        """The first offset that may be read; persisted, never falls (I18)."""
        raise NotImplementedError

    @property
    def log_end_offset(self) -> Offset:
        """The offset that the next record will get."""
        raise NotImplementedError

    @property
    def flushed_offset(self) -> Offset:
        """All records below are fsynced; falls only by `truncate_to` and `reset_to`. After open: the log end, since recovery fsyncs."""
        raise NotImplementedError

    @property
    def checkpointed_high_watermark(self) -> Offset:
        """The high watermark last given to `checkpoint`, as found at open, within log start .. log end."""
        raise NotImplementedError

    @property
    def last_crc(self) -> int:
        """The `crc` of the last batch (the chain), 0 when the log never had one."""
        raise NotImplementedError

    @property
    def last_epoch(self) -> LeaderEpoch:
        """The largest leader epoch known: of the last batch or of `start_epoch`; -1 for none."""
        raise NotImplementedError

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments."""
        raise NotImplementedError

    @property
    def segment_count(self) -> int:
        """Number of segments, the active one included; at least 1."""
        raise NotImplementedError

    @property
    def offline(self) -> bool:
        """An I/O error was met (H34): every further call raises StorageOfflineError."""
        raise NotImplementedError

    def append(self, batch: bytes, header: BatchHeader, *, leader_epoch: int, append_timestamp_ms: int) -> Offset:
        """Stamp one checked batch, write it with one `pwritev`, and return its base offset.

        Raises StorageFullError (nothing is appended, retriable), StorageOfflineError (resign).
        """
        raise NotImplementedError

    def append_all(
        self, batches: Sequence[tuple[bytes, BatchHeader]], *, leader_epoch: int, append_timestamp_ms: int
    ) -> Offset:
        """Append several checked batches with one `pwritev`, all or none; the base offset of the first.

        The others follow by their record counts.
        """
        raise NotImplementedError

    def append_replicated(self, batches: bytes) -> Offset:
        """Append whole batches as the leader stamped them (followers); the new log end.

        Checks both CRCs, the chain, contiguous offsets and epochs of all before the first byte is written: raises
        CorruptBatchError and appends nothing. An empty `batches` appends nothing.
        """
        raise NotImplementedError

    def start_epoch(self, leader_epoch: int) -> Offset:
        """Persist (fsync) that `leader_epoch` starts at the log end; the log end. Does nothing for the same epoch again.

        The broker calls it when it starts to lead, before the first append (PROTOCOL "Leading").
        """
        raise NotImplementedError

    def epoch_end(self, leader_epoch: int) -> tuple[LeaderEpoch, Offset]:
        """Return the largest known epoch <= `leader_epoch` and the offset after its last record; (-1, log start) if none."""
        raise NotImplementedError

    def epochs(self) -> tuple[tuple[LeaderEpoch, Offset], ...]:
        """All known epochs with their start offsets, both strictly increasing (I6)."""
        raise NotImplementedError

    def read(self, offset: int, max_bytes: int, end_offset: int) -> Slice:
        """Whole batches starting with the one that holds `offset`, at least one, none past `end_offset`.

        At most `max_bytes` except for the first batch, all of one segment. Empty where `offset` is at or after
        `end_offset` but not after the log end. May block on the disk. Close the slice.
        Raises OffsetOutOfRangeError outside log start .. log end, LogDamagedError, StorageOfflineError.
        """
        raise NotImplementedError

    def read_nowait(self, offset: int, max_bytes: int, end_offset: int) -> Slice | None:
        """As `read`, but None where finding the batches would block on the disk: then `read` in a thread (H46)."""
        raise NotImplementedError

    def flush(self) -> Offset:
        """Fsync what was appended before the call and return the new `flushed_offset`. Any thread; blocks.

        Rounds are serialised; a caller whose data a round of another has covered returns without an fsync.
        Raises StorageOfflineError, after which nothing may be retried.
        """
        raise NotImplementedError

    def checkpoint(self, at_ms: int, high_watermark: int, *, force: bool = False) -> bool:
        """Write recovery point, log start, high watermark and new index entries if due; whether it wrote.

        Due when something changed and `checkpoint_interval_ms` has passed, or segments were rolled, or `force`. Any
        thread; fsyncs one small file. The broker calls it about every second for each log.
        """
        raise NotImplementedError

    def roll_if_due(self, at_ms: int) -> bool:
        """Close the active segment if its first batch is `segment_ms` old at `at_ms`, so that retention may take it."""
        raise NotImplementedError

    def apply_retention(self, now_ms: int, high_watermark: int) -> RetentionResult:
        """Remove closed segments wholly below `high_watermark` that are too old or too many, oldest first."""
        raise NotImplementedError

    def delete_records(self, before: int, high_watermark: int) -> Offset:
        """Raise the log start to `before` (persisted first), remove segments wholly below it; the log start.

        Raises OffsetOutOfRangeError if `before` is above `high_watermark`; a `before` below log start does nothing.
        """
        raise NotImplementedError

    def remove_deleted_files(self, now_ms: int) -> int:
        """Unlink files whose `file_delete_delay_ms` is over and that no slice pins; how many are left."""
        raise NotImplementedError

    def offset_for_timestamp(self, timestamp_ms: int, kind: TimestampKind) -> TimestampedOffset | None:
        """The first record whose timestamp is `timestamp_ms` or later, None if there is none. May block.

        By APPEND: the base offset of the first batch appended then or later. By RECORD: the first record of the first
        batch whose largest record timestamp reaches it. Inside that batch the record is found where the batch carries
        per-record timestamps uncompressed; of a compressed batch the broker inflates nothing, so the answer is its
        base offset and its base timestamp, at or before the record sought.
        """
        raise NotImplementedError

    def headers(self, offset: int) -> Iterator[BatchHeader]:
        """Headers of the batches from the one that holds `offset` to the log end at the time of the call.

        For rebuilding producer state (H48). Raises as `read`.
        """
        raise NotImplementedError

    def batch_before(self, offset: int) -> BatchHeader | None:
        """The header of the batch that ends at `offset`; None at log start, or where no batch ends there."""
        raise NotImplementedError

    def store_producer_snapshot(self, offset: int, snapshot: bytes) -> None:
        """Keep `snapshot` (the broker's encoding) as the producer state at `offset`: atomic, fsynced, CRC'd."""
        raise NotImplementedError

    def load_producer_snapshot(self) -> tuple[Offset, bytes] | None:
        """The newest valid snapshot at an offset within the log; rebuild from there with `headers`."""
        raise NotImplementedError

    def truncate_to(self, offset: int) -> Offset:
        """Cut the log so that it ends at `offset`, or at the batch before where it lies inside one; the new log end.

        Lowers the durable mark first, cuts, fsyncs; the epochs and producer snapshots are cut too (H32). An `offset` below
        the log start resets the log to start there.
        """
        raise NotImplementedError

    def reset_to(self, offset: int) -> None:
        """Throw everything away and start empty at `offset`: log start, log end and flushed offset in one step (H8)."""
        raise NotImplementedError

    def verify(self, offset: int | None = None) -> Offset:
        """Check every CRC, chain, offset and epoch from the batch that holds `offset` (default: log start); the end checked.

        The scrubber's and the operator's check; reads all. Raises LogDamagedError.
        """
        raise NotImplementedError

    def update_settings(self, settings: LogSettings) -> None:
        """Replace the settings; they count from the next append or round on."""
        raise NotImplementedError

    def close(self, *, high_watermark: int | None = None) -> None:
        """Flush, write the checkpoint and the indexes, close the files. An offline log only closes its files."""
        raise NotImplementedError
