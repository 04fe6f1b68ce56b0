"""A data directory on a disk in memory, and batches to put there."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from headrace.log import DataDirectory, DiskLimits, LogSettings, PartitionLog
from headrace.wire.batch import BatchHeader, read_header
from headrace.wire.columns import encode_batch

from tests.fakes.memory_filesystem import MemoryFileSystem

TOPIC_ID = bytes(range(16))


@dataclass
class Bench:
    """One partition on a disk in memory; `now_ms` is the clock."""

    disk: MemoryFileSystem = field(default_factory=MemoryFileSystem)
    settings: LogSettings = field(default_factory=LogSettings)
    limits: DiskLimits = field(
        default_factory=lambda: DiskLimits(reserve_bytes=4096, refuse_below_bytes=0, resume_above_bytes=0)
    )
    boot_id: str = "one"
    now_ms: int = 1_000_000
    made: int = 0

    def open_directory(self, path: str = "/data") -> DataDirectory:
        self.directory = DataDirectory.open(
            path,
            cluster_id="c",
            generation=1,
            broker_id=1,
            new_storage_id=TOPIC_ID,
            boot_id=self.boot_id,
            limits=self.limits,
            filesystem=self.disk,
        )
        return self.directory

    def open(self, *, truncate_at_corruption: bool = False) -> PartitionLog:
        self.log = self.open_directory().open_log(
            TOPIC_ID, 0, self.settings, truncate_at_corruption=truncate_at_corruption
        )
        self.directory.note_boot()
        return self.log

    def batch(self, records: int = 1, size_bytes: int = 100) -> tuple[bytes, BatchHeader]:
        self.made += 1
        batch = encode_batch(
            [(b"%d-%d " % (self.made, record)).ljust(size_bytes, b".") for record in range(records)],
            base_timestamp_ms=self.now_ms,
        )
        return batch, read_header(batch)

    def append(self, count: int = 1, records: int = 1, size_bytes: int = 100, epoch: int = 0) -> int:
        offset = self.log.log_end_offset
        for _ in range(count):
            batch, header = self.batch(records, size_bytes)
            self.now_ms += 1
            offset = self.log.append([(batch, header)], leader_epoch=epoch, append_timestamp_ms=self.now_ms)
        return offset

    def path(self, base_offset: int, suffix: str = ".log") -> str:
        return f"{self.log.directory}/{base_offset:020d}{suffix}"

    def content(self) -> bytes:
        """All batches from log start to log end, read as a consumer does."""
        offset, parts = self.log.log_start_offset, []
        while offset < self.log.log_end_offset:
            with self.log.reader.read(offset, 4096, self.log.log_end_offset) as found:
                parts.append(found.read())
                offset = found.end_offset
        return b"".join(parts)


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def log(bench: Bench) -> PartitionLog:
    """The log of the bench, opened."""
    return bench.open()
