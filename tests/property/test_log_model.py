"""The log against a list: whatever is done to it, in whatever order, and wherever the power fails."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from headrace.log import CorruptLogError, DataDirectory, DiskLimits, LogSettings, PartitionLog
from headrace.wire.batch import iter_batches, read_header
from headrace.wire.columns import encode_batch
from headrace.wire.errors import OffsetOutOfRangeError
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.fakes.memory_filesystem import Loss, MemoryFileSystem

pytestmark = pytest.mark.no_cover

TOPIC = bytes(range(16))
LIMITS = DiskLimits(reserve_bytes=4096, refuse_below_bytes=0, resume_above_bytes=0)


class LogModel(RuleBasedStateMachine):
    """`batches` is what the log must hold: (base offset, end offset, bytes behind the stamp), ascending."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = MemoryFileSystem()
        self.batches: list[tuple[int, int, bytes]] = []
        self.start = 0
        self.end = 0
        self.epoch = 0
        self.now_ms = 1_000_000
        self.count = 0

    @initialize(segment_bytes=st.sampled_from([700, 6_000, 40_000]), interval=st.sampled_from([1, 300, 4096]))
    def begin(self, segment_bytes: int, interval: int) -> None:
        self.settings = LogSettings(segment_bytes=segment_bytes, index_interval_bytes=interval, retention_bytes=20_000)
        self.open()

    def open(self, *, truncate_at_corruption: bool = False) -> None:
        self.directory = DataDirectory.open(
            "/data",
            cluster_id="c",
            generation=1,
            broker_id=1,
            new_storage_id=TOPIC,
            limits=LIMITS,
            filesystem=self.disk,
        )
        self.log: PartitionLog = self.directory.open_log(
            TOPIC, 3, self.settings, truncate_at_corruption=truncate_at_corruption
        )

    @rule(sizes=st.lists(st.tuples(st.integers(1, 4), st.sampled_from([3, 90, 900, 9_000])), min_size=1, max_size=4))
    def append(self, sizes: list[tuple[int, int]]) -> None:
        made = []
        for records, size in sizes:
            self.count += 1
            values = [f"{self.count}-{record}-".encode() * (size // 8 + 1) for record in range(records)]
            made.append(encode_batch(values, base_timestamp_ms=self.now_ms))
        self.now_ms += 10
        base = self.log.append(
            [(batch, read_header(batch)) for batch in made], leader_epoch=self.epoch, append_timestamp_ms=self.now_ms
        )
        assert base == self.end
        for (records, _), batch in zip(sizes, made, strict=True):
            self.batches.append((self.end, self.end + records, batch[32:]))
            self.end += records

    @rule()
    def new_epoch(self) -> None:
        self.epoch += 1
        assert self.log.start_epoch(self.epoch) == self.end

    @rule()
    def flush(self) -> None:
        assert self.log.flush() == self.end

    @rule()
    def checkpoint(self) -> None:
        self.now_ms += 2_000
        self.log.durability.checkpoint(self.now_ms, self.end)

    @rule(where=st.floats(0, 1), max_bytes=st.integers(1, 30_000), until=st.floats(0, 1), nowait=st.booleans())
    def read(self, where: float, max_bytes: int, until: float, nowait: bool) -> None:
        offset = self.start + int(where * (self.end - self.start))
        end_offset = offset + int(until * (self.end - offset) + 0.5)
        found = (
            self.log.reader.read_nowait(offset, max_bytes, end_offset)
            if nowait
            else self.log.reader.read(offset, max_bytes, end_offset)
        )
        if found is None:
            return
        with found:
            data = found.read()
            assert len(data) == found.size_bytes
            self.check(data, found.base_offset, found.end_offset)
            holder = next((b for b in self.batches if b[0] <= offset < b[1]), None)
            if holder is not None and holder[1] <= end_offset:
                assert found.base_offset == holder[0]
                assert holder[1] <= found.end_offset <= end_offset
                assert found.size_bytes <= max(max_bytes, len(holder[2]) + 32)
            else:
                assert found.size_bytes == 0

    def check(self, data: bytes, base_offset: int, end_offset: int) -> None:
        expected = [batch for batch in self.batches if base_offset <= batch[0] < end_offset]
        got = [(header.base_offset, header.end_offset, bytes(view[32:])) for header, view in iter_batches(data)]
        assert got == expected

    @rule(where=st.floats(0, 1))
    def truncate(self, where: float) -> None:
        offset = self.start + int(where * (self.end - self.start))
        cuts = offset < self.end
        while self.batches and self.batches[-1][1] > offset:
            self.end = self.batches.pop()[0]
        assert self.log.truncate_to(offset) == self.end
        self.start = min(self.start, self.end)  # a log start inside the batch that went goes with it
        if cuts:
            assert self.log.flushed_offset == self.end

    @rule(where=st.floats(0, 1))
    def delete_records(self, where: float) -> None:
        self.start += int(where * (self.end - self.start))
        assert self.log.retention.delete_records(self.start, self.end) == self.start

    @rule(delay=st.sampled_from([0, 120_000]))
    def retention(self, delay: int) -> None:
        self.log.retention.delete_records(self.log.retention.plan(self.now_ms, self.end), self.end)
        assert self.log.log_start_offset >= self.start
        self.start = self.log.log_start_offset
        self.log.retention.remove_deleted_files(self.now_ms)
        self.log.retention.remove_deleted_files(self.now_ms + delay)

    @rule(offset=st.integers(0, 1000))
    def reset(self, offset: int) -> None:
        self.log.reset_to(offset)
        self.batches, self.start, self.end = [], offset, offset

    @rule(where=st.floats(0, 1))
    def headers(self, where: float) -> None:
        offset = self.start + int(where * (self.end - self.start))
        expected = [batch[:2] for batch in self.batches if batch[1] > offset]
        assert [(header.base_offset, header.end_offset) for header in self.log.reader.headers(offset)] == expected

    @rule()
    def restart_clean(self) -> None:
        self.directory.close(clean=True, broker_epoch=self.now_ms)
        before = self.disk.read_bytes.get(".log", 0)
        self.open()
        assert self.directory.clean_broker_epoch == self.now_ms
        assert self.log.recovery.scanned_bytes == 0
        assert self.disk.read_bytes.get(".log", 0) - before <= 80, "a clean start reads one header"
        assert self.log.log_end_offset == self.log.flushed_offset == self.end

    @rule(loss=st.sampled_from(list(Loss)), seed=st.integers(0, 2**32))
    def crash(self, loss: Loss, seed: int) -> None:
        """Nothing fsynced is lost, what is left is a prefix, and corruption is told only beyond the mark."""
        flushed = self.log.flushed_offset
        self.disk.crash(loss, random.Random(seed))
        try:
            self.open()
        except CorruptLogError as corruption:
            if loss not in (Loss.BLOCKS, Loss.PREFIX) or corruption.offset < flushed:
                raise
            self.disk.crash(Loss.NOTHING, random.Random(0))
            self.open(truncate_at_corruption=True)
        end = self.log.log_end_offset
        assert end >= flushed
        assert end == self.end or loss is not Loss.NOTHING
        while self.batches and self.batches[-1][1] > end:
            self.batches.pop()
        assert not self.batches or self.batches[-1][1] == end
        assert end == self.end or self.batches or end == flushed
        self.end = end
        assert self.log.flushed_offset == end

    @invariant()
    def holds_what_it_should(self) -> None:
        if not hasattr(self, "log"):
            return
        self.batches = [batch for batch in self.batches if batch[1] > self.start]
        log = self.log
        assert (log.log_start_offset, log.log_end_offset) == (self.start, self.end)
        assert log.flushed_offset <= self.end
        if self.batches:
            assert log.reader.verify() == self.end
        for outside in (self.start - 1, self.end + 1):
            with pytest.raises(OffsetOutOfRangeError):
                log.reader.read(outside, 100, self.end)
        entries = log.epochs()
        assert all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(entries)), entries
        found = []
        for header in log.reader.headers(self.start):
            if not found or header.leader_epoch > found[-1]:
                found.append(header.leader_epoch)
        assert set(found) <= {epoch for epoch, _ in entries}, "every epoch in the log is known"


TestLogModel = LogModel.TestCase
TestLogModel.settings = settings(
    max_examples=120, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
