"""What a log and a data directory are told: sizes, times and limits.

Made by the broker from a topic's configuration and its own settings; held by
`PartitionLog` and `DataDirectory`, which never read configuration themselves.
"""

from __future__ import annotations

from dataclasses import dataclass

UNLIMITED = -1

# A position inside a segment is a uint32 in the indexes, so a segment ends below 4 GiB whatever is asked for.
MAX_SEGMENT_BYTES = 0xFFFF_FFFF - 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class LogSettings:
    """The settings of one partition's log; may be replaced while the log is open (`PartitionLog.update_settings`)."""

    # A segment is rolled before the append that would make it larger, in bytes; 1 .. MAX_SEGMENT_BYTES.
    segment_bytes: int = 1 << 30
    # A segment is rolled once its first batch is this old, judged by append timestamps, in milliseconds.
    segment_ms: int = 7 * 24 * 3_600_000
    # Log bytes between two entries of the sparse index.
    index_interval_bytes: int = 4096
    # A closed segment goes when its last batch was appended this long ago, in milliseconds; -1 keeps for ever.
    retention_ms: int = 7 * 24 * 3_600_000
    # Oldest segments go while the others hold at least this many bytes; -1 is no limit.
    retention_bytes: int = UNLIMITED
    # A removed segment's files stay this long under their `.deleted` name, in milliseconds.
    file_delete_delay_ms: int = 60_000
    # The recovery point is written at most this often, in milliseconds.
    checkpoint_interval_ms: int = 1_000
    # A batch on disk longer than this is corruption, in bytes (header included): bounds what recovery reads at once.
    max_batch_bytes: int = 64 * 1024 * 1024

    def __post_init__(self) -> None:
        """Refuse values that no log can work with."""
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
    """When a data directory refuses appends, and what it keeps back for its own checkpoints (H35)."""

    # Size of the `reserve` file, given up when a checkpoint finds no room, in bytes; 0 makes none.
    reserve_bytes: int = 16 * 1024 * 1024
    # Appends are refused once less than this is free, in bytes.
    refuse_below_bytes: int = 128 * 1024 * 1024
    # Refused appends are taken again once this much is free, in bytes; at least `refuse_below_bytes`.
    resume_above_bytes: int = 256 * 1024 * 1024
    # The free space is checked again after this many bytes of appends, and on each call of `check_space`.
    check_every_bytes: int = 32 * 1024 * 1024
    # Segment files open at most, over all logs of the directory; more only while calls use all of them.
    max_open_files: int = 256
    # Bytes of index files kept in memory at most, over all logs of the directory.
    max_index_bytes: int = 16 * 1024 * 1024

    def __post_init__(self) -> None:
        """Refuse limits that contradict each other."""
        if self.resume_above_bytes < self.refuse_below_bytes:
            raise ValueError("resume_above_bytes must be at least refuse_below_bytes")
        if (
            min(self.reserve_bytes, self.refuse_below_bytes) < 0
            or self.max_open_files < 1
            or self.check_every_bytes < 1
        ):
            raise ValueError("disk limits must not be negative, max_open_files and check_every_bytes at least 1")
