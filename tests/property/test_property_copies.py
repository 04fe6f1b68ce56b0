"""Copies of a log in pieces of any size, while its source is appended to, compacted and shortened at its start: nothing
current is missed, nothing deleted comes back, and nothing that does not continue the copy is appended.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from headrace.log.record_selection import Kept
from headrace.partition.copies import lacks_deletions
from headrace.partition.fitting import LogPoint, fitting, gap
from headrace.wire.batch import STAMP_BYTES, iter_batches, read_header, stamp
from headrace.wire.columns import decode_batch
from headrace.wire.compression import Codec
from headrace.wire.errors import CorruptBatchError, DivergedLogError, HeadraceError, OffsetOutOfRangeError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.log.conftest import Bench
from tests.unit.log.test_log_compaction import DAY_MS, Entry, Table

KEYS = [*(b"%d" % number for number in range(12)), None]
FIRST_EPOCH = 7
"""Leader epoch of the copy's first leader: the source has others."""


class Source(Table):
    """The log that is copied."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__(Bench(), segment_bytes=1_500, index_interval_bytes=256)
        self.chance = chance
        self.epoch = 0

    def fill(self) -> None:
        """Append a batch of any kind, under this leader epoch or the next."""
        chance = self.chance
        self.epoch += chance.random() < 0.1
        values = [None if chance.random() < 0.25 else bytes([97 + chance.randrange(3)]) * 30 for _ in range(5)]
        pairs = [(chance.choice(KEYS), value) for value in values[: chance.randint(1, 5)]]
        codec = chance.choice([Codec.NONE, Codec.NONE, Codec.GZIP, Codec.ZSTD])
        self.put(pairs, epoch=self.epoch, codec=codec, headers=chance.random() < 0.5, own_times=chance.random() < 0.5)

    def entries(self) -> list[Entry]:
        """Read the log; it may begin within a batch."""
        found: list[Entry] = []
        for _, batch in iter_batches(self.bench.content()):
            columns = decode_batch(batch, max_payload_bytes=1 << 20)
            found += zip(
                columns.offsets(), columns.keys(), columns.values(), columns.timestamps(), columns.headers(),
                strict=True,
            )  # fmt: skip
        return [entry for entry in found if entry[0] >= self.log.log_start_offset]

    def fetch(self, offset: int, max_bytes: int) -> bytes:
        """Return whole batches, as a leader answers a fetch at `offset`, or at the log start if that is later."""
        offset = max(offset, self.log.log_start_offset)
        if offset == self.log.log_end_offset:
            return b""
        with self.log.reader.read(offset, max_bytes, self.log.log_end_offset) as found:
            return bytes(found.read())


class Copy(Table):
    """The log of a mirror."""

    def __init__(self, source: Source) -> None:
        super().__init__(Bench(), segment_bytes=source.chance.choice([700, 4_000]))
        self.source = source
        self.epoch = FIRST_EPOCH
        self.restarts = 0

    @property
    def end(self) -> LogPoint:
        return LogPoint(self.log.end.offset, self.log.end.crc)

    def take(self, max_bytes: int) -> None:
        """Copy one answer of the source; begin again if the source has removed what this copy would have to delete."""
        chance, source = self.source.chance, self.source
        self.epoch += chance.random() < 0.1
        deletions_end = source.log.deletions_end
        batches = [bytes(batch) for batch in fitting(source.fetch(self.end.offset, max_bytes), self.end)]
        try:
            if lacks_deletions(self.log, deletions_end):
                self.log.compaction.raise_deletions_end(deletions_end)
        except DivergedLogError:
            self.log.reset_to(0)
            self.restarts += 1
            return
        if batches:
            if chance.random() < 0.5:
                self.refuse(batches)
            headers = self.log.append_copies(batches, leader_epoch=self.epoch)
            assert [header.base_offset for header in headers] == [read_header(batch).base_offset for batch in batches]
            assert self.log.last_epoch == self.epoch

    def take_all(self) -> None:
        """Copy until the end of the source."""
        while self.log.log_end_offset < self.source.log.log_end_offset:
            before = self.end, self.restarts
            if self.source.log.log_start_offset == self.source.log.log_end_offset:
                self.log.append_copies(list(gap(self.end, self.source_end, 0)), leader_epoch=self.epoch)
            else:
                self.take(4_000)
            assert (self.end, self.restarts) != before, "the copy continues"

    @property
    def source_end(self) -> LogPoint:
        return LogPoint(self.source.log.end.offset, self.source.log.end.crc)

    def refuse(self, batches: list[bytes]) -> None:
        """Nothing that is not the next part of the source is appended, whatever is right about it."""
        chance = self.source.chance
        which, bit = chance.randrange(len(batches)), chance.randrange(1 << 30)
        broken = bytearray(batches[which])
        broken[bit // 8 % len(broken)] ^= 1 << bit % 8
        self.refuse_each(
            (CorruptBatchError, DivergedLogError, OffsetOutOfRangeError),
            [*batches[:which], bytes(broken), *batches[which + 1 :]],
        )
        self.refuse_each(OffsetOutOfRangeError, [*batches, batches[-1]], [batches[0], *batches])
        if len(batches) > 1:
            self.refuse_each(OffsetOutOfRangeError, batches[1:], batches[::-1])
        if len(batches) > 2:
            self.refuse_each(OffsetOutOfRangeError, [batches[0], *batches[2:]], [batches[0], *batches[2:], batches[1]])
        header = read_header(batches[which])
        head = stamp(
            header, base_offset=header.base_offset, append_timestamp_ms=header.append_timestamp_ms,
            leader_epoch=header.leader_epoch, previous_crc=header.previous_crc ^ 1 << bit % 32,
        )  # fmt: skip
        other = head + batches[which][STAMP_BYTES:]
        self.refuse_each(DivergedLogError, [*batches[:which], other, *batches[which + 1 :]])

    def refuse_each(
        self, errors: type[HeadraceError] | tuple[type[HeadraceError], ...], *wrong: Sequence[bytes]
    ) -> None:
        """Try these appends."""
        end, content = self.end, self.bench.content()
        for batches in wrong:
            with pytest.raises(errors):
                self.log.append_copies(batches, leader_epoch=self.epoch)
            assert (self.end, self.bench.content()) == (end, content)


def newest(entries: list[Entry], start: int) -> dict[bytes, Entry]:
    """Return the newest record of each key that is not deleted."""
    found = {entry[1]: entry for entry in entries if entry[1] is not None and entry[0] >= start}
    return {key: entry for key, entry in found.items() if entry[2] is not None}


@given(seed=st.integers(0, 2**32), steps=st.integers(5, 60))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_copy_has_what_its_source_has(seed: int, steps: int) -> None:
    """Offsets, keys, values, timestamps and headers of all current records, the same end and the same chain value."""
    chance = random.Random(seed)
    source = Source(chance)
    copy = Copy(source)
    for _ in range(steps):
        match chance.choices(range(6), (40, 14, 14, 6, 20, 6))[0]:
            case 0:
                source.fill()
            case 1:
                source.roll()
                source.log.flush()
            case 2:
                source.bench.now_ms += chance.choice([0, 0, DAY_MS, 3 * DAY_MS])
                batches = [read_header(batch).base_offset for _, batch in iter_batches(source.bench.content())]
                kept = Kept(frozenset(chance.sample(batches, len(batches) // 4)), chance.choice([0, DAY_MS]))
                source.compact(kept=kept)
            case 3:
                span = source.log.log_end_offset - source.log.log_start_offset
                before = source.log.log_start_offset + chance.randrange(span // 3 + 1)
                source.log.flush()
                source.log.retention.delete_records(before, source.log.log_end_offset)
            case 4:
                copy.take(chance.choice([1, 1, 300, 2_000]))
            case _:
                copy.log.flush()
                copy.roll()
                copy.bench.now_ms = source.bench.now_ms
                copy.compact()
    copy.take_all()
    assert copy.end == copy.source_end
    start = source.log.log_start_offset
    copied, original = copy.entries(), source.entries()
    assert newest(copied, start) == newest(original, start)
    assert [entry for entry in original if entry[1] is None] == [
        entry for entry in copied if entry[1] is None and entry[0] >= start
    ]
    assert all(source.appended[entry[0]] == entry for entry in copied)
    assert min(int(epoch) for epoch, _ in copy.log.epochs() or ((FIRST_EPOCH, 0),)) >= FIRST_EPOCH
    copy.reopen()
    assert copy.end == copy.source_end
