"""Settings of a log and of a data directory: sizes, times and limits.

Made by the broker from a topic's configuration and its own settings; held by `PartitionLog` and `DataDirectory`, which
never read configuration themselves.
"""

from __future__ import annotations

from dataclasses import dataclass

UNLIMITED = -1
ROLL_MS = 600_000
"""A compacted log's segments need not be rolled sooner, however soon deletions are removed."""

# A position inside a segment is a uint32 in the indexes, so a segment ends below 4 GiB for any setting.
MAX_SEGMENT_BYTES = 0xFFFF_FFFF - 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class LogSettings:
    """The settings of one partition's log; may be replaced while the log is open (`PartitionLog.update_settings`)."""

    # Maximum bytes of a segment: it is rolled before an append that would exceed this; 1 .. MAX_SEGMENT_BYTES.
    segment_bytes: int = 1 << 30
    # Age of a segment's first batch, by append timestamp, at which the segment is rolled, in milliseconds.
    segment_ms: int = 7 * 24 * 3_600_000
    # Log bytes between two entries of the sparse index.
    index_interval_bytes: int = 4096
    # Time since the last append after which a closed segment is removed, in milliseconds; -1 disables the limit.
    retention_ms: int = 7 * 24 * 3_600_000
    # The oldest segments are removed while the others have at least this many bytes; -1 disables the limit.
    retention_bytes: int = UNLIMITED
    # Whether only the newest record of each key is kept.
    compacts: bool = False
    # Time for which a null value, which deletes its key, stays, and an expired record, in milliseconds.
    delete_retention_ms: int = 24 * 3_600_000
    # Whether compaction removes records that have expired: those of a table.
    expires_records: bool = False
    # Time after its last append during which a segment is not compacted, in milliseconds.
    min_compaction_lag_ms: int = 0
    # Time after its last append after which a closed segment is compacted, in milliseconds.
    max_compaction_lag_ms: int = 24 * 3_600_000
    # Share of the closed segments' bytes that must not be compacted yet for a compaction, 0 to 1.
    min_dirty_ratio: float = 0.5
    # Time for which a removed segment's files stay under their `.deleted` name, in milliseconds.
    file_delete_delay_ms: int = 60_000
    # Minimum interval between writes of the recovery point, in milliseconds.
    checkpoint_interval_ms: int = 1_000
    # Maximum bytes of a batch on disk (header included); a longer one is corrupt. Bounds each read of the recovery.
    max_batch_bytes: int = 64 * 1024 * 1024

    @property
    def roll_ms(self) -> int:
        """Age of a segment's first batch at which it is rolled: only closed segments are compacted."""
        return min(self.segment_ms, max(self.delete_retention_ms, ROLL_MS)) if self.compacts else self.segment_ms

    def __post_init__(self) -> None:
        """Raise ValueError for values that no log supports."""
        if not 0 < self.segment_bytes <= MAX_SEGMENT_BYTES:
            raise ValueError(f"segment_bytes is {self.segment_bytes}; it must be 1 to {MAX_SEGMENT_BYTES}")
        for name in (
            "segment_ms",
            "index_interval_bytes",
            "checkpoint_interval_ms",
            "max_batch_bytes",
        ):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be positive")
        for name in ("retention_ms", "retention_bytes"):
            if getattr(self, name) < UNLIMITED:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be -1 (no limit) or more")
        if self.file_delete_delay_ms < 0:
            raise ValueError(f"file_delete_delay_ms is {self.file_delete_delay_ms}; it must be 0 or more")


@dataclass(frozen=True, slots=True)
class DiskLimits:
    """Free-space limits for appends, and the reserve for checkpoints (H35)."""

    # Bytes of the `reserve` file, released when a checkpoint finds no space; 0 disables it.
    reserve_bytes: int = 16 * 1024 * 1024
    # Appends are refused while fewer bytes than this are free.
    refuse_below_bytes: int = 128 * 1024 * 1024
    # Appends are accepted again once this many bytes are free; at least `refuse_below_bytes`.
    resume_above_bytes: int = 256 * 1024 * 1024
    # Appended bytes after which the free space is checked again; `check_space` also checks it.
    check_every_bytes: int = 32 * 1024 * 1024
    # Maximum number of open segment files over all logs of the directory; exceeded only while calls use all of them.
    max_open_files: int = 256
    # Maximum bytes of index files in memory, over all logs of the directory.
    max_index_bytes: int = 16 * 1024 * 1024

    def __post_init__(self) -> None:
        """Raise ValueError for limits that contradict each other."""
        if self.resume_above_bytes < self.refuse_below_bytes:
            raise ValueError("resume_above_bytes must be at least refuse_below_bytes")
        if (
            min(self.reserve_bytes, self.refuse_below_bytes) < 0
            or self.max_open_files < 1
            or self.check_every_bytes < 1
        ):
            raise ValueError("disk limits must not be negative, max_open_files and check_every_bytes at least 1")
