"""Compaction: of each key the newest record stays, deletions are real, a crash at any point is harmless."""

from __future__ import annotations

import errno
import random
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from headrace.log import LogSettings, PartitionLog, log_compaction, record_selection
from headrace.log.compacted_writer import BATCH_BYTES, Mask
from headrace.log.errors import StorageBusyError
from headrace.log.log_compaction import DELETIONS_EVERY_MS, CompactionReport
from headrace.log.newer_keys import NewerKeys
from headrace.log.record_selection import NOTHING_KEPT, Kept, SelectedSegment
from headrace.log.segment import Segment, SegmentName, replaced_segments, segment_names
from headrace.log.segment_replacement import groups_worth_replacing
from headrace.log.timestamps import TimestampKind
from headrace.wire.batch import NONE_REMOVED, iter_batches, read_header
from headrace.wire.columns import check_columns, decode_batch, encode_batch
from headrace.wire.compression import Codec
from headrace.wire.decoded import BinaryColumn, Columns
from headrace.wire.errors import StorageFullError
from headrace.wire.table_keys import expiry_headers, table_key

from tests.fakes.memory_filesystem import Loss, MemoryFileSystem, PowerLost
from tests.unit.log.conftest import Bench
from tests.unit.log.test_log_look_ups import InterruptedDisk

DAY_MS = 24 * 3_600_000
Entry = tuple[int, bytes | None, bytes | None, int, tuple[tuple[str, bytes], ...]]
"""Offset, key, value, timestamp and headers of a record."""


class Table:
    """A log that is compacted, and what was ever appended to it."""

    def __init__(self, bench: Bench, **settings: int) -> None:
        self.bench = bench
        bench.settings = LogSettings(segment_bytes=settings.pop("segment_bytes", 2_000), compacts=True, **settings)
        self.log = bench.open()
        self.appended: dict[int, Entry] = {}

    def put(
        self, pairs: Sequence[tuple[bytes | None, bytes | None]], *, epoch: int = 0, codec: Codec = Codec.NONE,
        headers: bool = False, own_times: bool = False, expires_ms: int = 0,
    ) -> None:  # fmt: skip
        """Append a batch; `expires_ms` is when its records expire."""
        self.bench.now_ms += 1
        keys, values = [key for key, _ in pairs], [value for _, value in pairs]
        names = [(("n", b"%d" % row),) if row % 2 else () for row in range(len(pairs))] if headers else None
        if expires_ms:
            names = [expiry_headers(expires_ms)] * len(pairs)
        times = [self.bench.now_ms - row for row in range(len(pairs))] if own_times else None
        batch = encode_batch(
            values, keys, base_timestamp_ms=self.bench.now_ms, codec=codec, headers=names, timestamps_ms=times
        )
        offset = self.log.append(
            [(batch, read_header(batch))], leader_epoch=epoch, append_timestamp_ms=self.bench.now_ms
        )
        for row, (key, value) in enumerate(pairs):
            time = times[row] if times else self.bench.now_ms
            self.appended[offset + row] = offset + row, key, value, time, names[row] if names else ()

    def compact(self, *, force: bool = True, kept: Kept = NOTHING_KEPT) -> CompactionReport | None:
        """Compact everything but the active segment; without `force` if that is due."""
        compaction, now_ms, end_offset = self.log.compaction, self.bench.now_ms, self.log.log_end_offset
        return compaction.compact(now_ms, end_offset, kept) if force or compaction.is_due(now_ms, end_offset) else None

    def roll(self) -> None:
        """Close the active segment, if it has records."""
        if self.log._segments.active.size_bytes:
            self.log._writer.roll()

    def entries(self) -> list[Entry]:
        """Read the log as a consumer does."""
        found: list[Entry] = []
        position = self.log.log_start_offset
        for _, batch in iter_batches(self.bench.content()):
            columns = decode_batch(batch, max_payload_bytes=1 << 20)
            assert columns.header.base_offset == position, "offsets are covered without a gap"
            assert columns.header.leader_epoch == self.log.epoch_at(position), "a batch has the epoch of its records"
            position = columns.header.end_offset
            found += zip(
                columns.offsets(), columns.keys(), columns.values(), columns.timestamps(), columns.headers(),
                strict=True,
            )  # fmt: skip
        assert position == self.log.log_end_offset
        return found

    def check(self, *, deleted_before: int = 0) -> None:
        """Each record is one that was appended, unchanged; the newest of each key is there, unless it is a deletion
        with an offset below `deleted_before`.
        """
        found = self.entries()
        assert all(self.appended[entry[0]] == entry for entry in found)
        newest = {entry[1]: entry for entry in self.appended.values() if entry[1] is not None}
        there = {entry[0] for entry in found}
        for offset, key, value, *_ in newest.values():
            assert offset in there or (value is None and offset < deleted_before), (offset, key)
        deleted = {key for offset, key, *_ in newest.values() if offset not in there}
        assert not deleted & {entry[1] for entry in found}, "a deletion goes with all that it deletes"
        assert all(offset in there for offset, key, *_ in self.appended.values() if key is None)
        self.check_moments(found)
        assert self.log.reader.verify() == self.log.log_end_offset

    def check_moments(self, found: Sequence[Entry]) -> None:
        """The state before an offset is complete wherever the batches below it say so: `Columns.removed`."""
        newer_end = 0
        read: tuple[dict[bytes, bytes], deque[Entry]] = ({}, deque(found))
        appended: tuple[dict[bytes, bytes], deque[Entry]] = ({}, deque(self.appended.values()))
        for columns in self.batches():
            end_offset, newer_end = columns.header.end_offset, max(newer_end, columns.removed.newer_end)
            states = [_advance(*each, end_offset) for each in (read, appended)]
            if newer_end <= end_offset:
                assert states[0] == states[1], end_offset

    def batches(self) -> list[Columns]:
        """Return the batches of the log."""
        return [decode_batch(batch, max_payload_bytes=1 << 20) for _, batch in iter_batches(self.bench.content())]

    def keys(self) -> list[bytes | None]:
        """Return the key of each record."""
        return [entry[1] for entry in self.entries()]

    def reopen(self) -> None:
        """Stop cleanly and start again."""
        self.bench.directory.close(clean=True, broker_epoch=1)
        self.log = self.bench.open()


def _advance(state: dict[bytes, bytes], entries: deque[Entry], end_offset: int) -> dict[bytes, bytes]:
    """Apply the entries below an offset; return the state."""
    while entries and entries[0][0] < end_offset:
        _, key, value, *_ = entries.popleft()
        if key is not None and value is not None:
            state[key] = value
        elif key is not None:
            state.pop(key, None)
    return state


def filled(bench: Bench, **settings: int) -> Table:
    """Return a table with several values of ten keys in several segments."""
    table = Table(bench, **settings)
    for turn in range(30):
        table.put([(b"k%d" % (row % 10), b"v%d-%d" % (turn, row)) for row in range(turn, turn + 5)])
    table.roll()
    return table


def test_newest_record_of_each_key_stays(bench: Bench) -> None:
    """Ten keys leave ten records, at their own offsets, and the log grows on behind them."""
    table = filled(bench)
    size_bytes = table.log.size_bytes
    report = table.compact()
    assert report is not None
    assert (report.records, report.removed_records) == (150, 140)
    assert report.size_bytes == size_bytes
    assert report.written_bytes == table.log.size_bytes < size_bytes / 4
    assert sorted(table.keys()) == [b"k%d" % number for number in range(10)]
    assert table.log.log_start_offset == 0
    table.check()
    table.put([(b"k3", b"new")])
    table.reopen()
    table.check()
    table.put([(b"k4", b"new")])
    table.roll()
    assert table.compact() is not None
    assert len(table.keys()) == 10
    table.check()


def test_a_state_before_a_compaction_is_known_to_lack_records(bench: Bench) -> None:
    """Batches that lost a record name the end of what was compacted together with them; others name none."""
    table = Table(bench, segment_bytes=100_000)
    for key in (b"a", b"b", b"a", b"c"):
        table.put([(key, b"v" * 200_000)])
    table.roll()
    assert {columns.removed for columns in table.batches()} == {NONE_REMOVED}
    table.compact()
    assert [columns.removed.newer_end for columns in table.batches()] == [4, 0, 0, 0]
    table.put([(b"b", b"x")])
    table.roll()
    table.compact()
    assert [columns.removed.newer_end for columns in table.batches()] == [5, 0, 0, 0]
    table.check()


def test_due(bench: Bench) -> None:
    """A log is compacted when half of its closed bytes is new, when a segment waits for long, not before."""
    table = filled(bench, max_compaction_lag_ms=DAY_MS)
    assert table.compact(force=False) is not None
    for turn in range(200):
        table.put([(b"new%d" % turn, b"v" * 20)])
    table.roll()
    assert table.compact(force=False) is not None
    table.put([(b"k3", b"new")])
    table.roll()
    assert table.compact(force=False) is None
    bench.now_ms += DAY_MS
    assert table.compact(force=False) is not None
    assert table.compact(force=False) is None
    table.check()


def test_young_segments_wait(bench: Bench) -> None:
    """With `min_compaction_lag_ms` no record goes before its time."""
    table = filled(bench, min_compaction_lag_ms=1_000)
    assert table.compact() is None
    bench.now_ms += 1_000
    assert table.compact() is not None
    table.check()


def test_deletion_is_real(bench: Bench) -> None:
    """A deletion stays for its time; then no file has the key any more, nor any value of it."""
    table = filled(bench, delete_retention_ms=DAY_MS)
    table.put([(b"k3", None), (b"secret", b"of k9")])
    table.put([(b"secret", None), (b"k1", b"newer")])
    deleted_at = table.log.log_end_offset
    table.roll()
    assert table.compact() is not None
    assert {b"k3", b"secret"} <= set(table.keys()), "readers see the deletions"
    assert table.log.compaction.deletions_end == 0
    table.check()
    bench.now_ms += DAY_MS - 10
    assert table.compact(force=False) is None
    bench.now_ms += 10
    assert table.compact(force=False) is not None
    assert not {b"k3", b"secret"} & set(table.keys())
    table.check(deleted_before=deleted_at)
    table.log.retention.remove_deleted_files(0)
    table.log.retention.remove_deleted_files(DAY_MS)
    names = bench.disk.list_directory(table.log.directory)
    contents = [bench.disk.content(f"{table.log.directory}/{name}") for name in names]
    assert not any(b"secret" in content or b"k3" in content for content in contents)
    assert table.log.compaction.deletions_end == deleted_at
    table.reopen()
    assert table.log.compaction.deletions_end == deleted_at, "a restart keeps the knowledge"
    assert table.compact(force=False) is None


@pytest.mark.parametrize("is_table", [True, False])
def test_expired_records_go_with_what_they_replace(bench: Bench, is_table: bool) -> None:
    """A column that has expired stays as long as a deletion, then no file has it, nor an older value of it."""
    table = filled(bench, delete_retention_ms=DAY_MS, expires_records=is_table)
    ends_ms = bench.now_ms + 5 * DAY_MS
    gone, other = table_key(b"r", b"secret"), table_key(b"r", b"other")
    table.put([(gone, b"hidden for ever")])
    table.roll()
    table.compact()
    table.put([(gone, b"hidden for a while"), (b"plain", b"no column")], expires_ms=ends_ms)
    table.put([(other, b"later")], expires_ms=ends_ms + DAY_MS)
    table.put([(other, b"early")], expires_ms=1)
    table.put([(other, b"stays")])
    deleted_end = table.log.log_end_offset - 3
    table.roll()
    table.compact()
    assert gone in table.keys()
    bench.now_ms = ends_ms + DAY_MS - 1
    assert table.compact(force=False) is None
    assert gone in table.keys()
    table.reopen()
    assert table.compact(force=False) is None
    bench.now_ms += 1
    assert (table.compact(force=False) is not None) == is_table
    assert (gone in table.keys()) != is_table
    assert {b"plain", other} <= set(table.keys())
    assert max(columns.removed.expired_ms for columns in table.batches()) == is_table * ends_ms
    table.log.retention.remove_deleted_files(0)
    table.log.retention.remove_deleted_files(DAY_MS)
    names = bench.disk.list_directory(table.log.directory)
    contents = [bench.disk.content(f"{table.log.directory}/{name}") for name in names]
    assert any(b"hidden" in content for content in contents) != is_table
    assert (table.log.compaction.deletions_end >= deleted_end) == is_table
    assert table.compact(force=False) is None


def test_what_a_kept_batch_has_does_not_come_back(bench: Bench) -> None:
    """An expired record stays while the older value is in a batch that must stay as it is."""
    table = Table(bench, delete_retention_ms=0, expires_records=True)
    key = table_key(b"r", b"c")
    table.put([(key, b"older")])
    table.put([(key, b"newer")], expires_ms=bench.now_ms)
    table.roll()
    bench.now_ms += 10
    table.compact(kept=Kept(frozenset([0]), 1_000))
    assert table.keys() == [key, key]
    bench.now_ms += 1_000
    table.compact(kept=Kept(frozenset([0]), 1_000))
    assert table.keys() == []


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD, Codec.GZIP])
def test_what_stays_of_a_compressed_batch_stays_compressed(bench: Bench, codec: Codec) -> None:
    """Also without the one record that kept its ratio below that which a leader accepts, and by its codec."""
    table = Table(bench, segment_bytes=1 << 20)
    table.put([*((b"%d" % key, bytes(1 << 17)) for key in range(30)), (b"k", random.randbytes(40_000))], codec=codec)
    ((_, batch),) = iter_batches(bench.content())
    before = read_header(batch)
    table.put([(b"k", b"2")])
    table.roll()
    table.compact()
    ((_, batch),) = [each for each in iter_batches(bench.content()) if each[0].base_offset == 0]
    after = read_header(batch)
    assert (after.record_count, after.codec) == (30, codec)
    assert after.batch_bytes < before.batch_bytes
    check_columns(batch, after, max_payload_bytes=1 << 23)


def test_a_batch_is_written_when_its_records_have_the_bytes(bench: Bench) -> None:
    """Records that stay of a batch may be far larger than the mean of them all, which are many and small."""
    table = Table(bench, segment_bytes=1 << 24)
    for key in range(8):
        table.put([(b"k", None)] * 2_000 + [(b"large %d" % key, random.randbytes(BATCH_BYTES))])
    table.put([(b"k", b"1")])
    table.roll()
    table.compact()
    sizes = [header.batch_bytes for header, _ in iter_batches(bench.content())]
    assert max(sizes) < 2 * BATCH_BYTES
    assert {entry[1] for entry in table.entries()} == {b"k", *(b"large %d" % key for key in range(8))}


def test_few_records_that_stay_may_have_most_of_the_bytes(bench: Bench) -> None:
    """Segments that become one have few enough bytes for one together, though one record in a million stays."""
    segments = bench.open()._segments
    parts = []
    for first in range(5):
        part = SelectedSegment(segments.new_segment(SegmentName(first * 1_000_000), 1 << 30), (first + 1) * 1_000_000)
        part.records, part.removed, part.kept_bytes = 1_000_000, 999_999, 1 << 30
        parts.append(part)
    assert [len(group) for group in groups_worth_replacing(parts, 1 << 30)] == [2, 2, 1]


def test_record_without_key_stays(bench: Bench) -> None:
    """Records that were appended before the topic was compacted may have no key."""
    table = Table(bench)
    table.put([(None, b"a"), (b"", b"b"), (None, b"c"), (b"", b"d")])
    table.put([(None, b"e")] * 3)
    table.put([(b"", b"f")])
    table.roll()
    assert table.compact() is not None
    assert [entry[2] for entry in table.entries()] == [b"a", b"c", b"e", b"e", b"e", b"f"]
    table.check()


@pytest.mark.parametrize("memory_bytes", [1, 200, 1_000])
def test_more_keys_than_memory(bench: Bench, monkeypatch: pytest.MonkeyPatch, memory_bytes: int) -> None:
    """Keys that do not fit are compared one part after another, with all records."""
    monkeypatch.setattr(record_selection, "KEY_MEMORY_BYTES", memory_bytes)
    monkeypatch.setattr(record_selection, "CHUNK_KEY_BYTES", memory_bytes // 4)
    table = filled(bench)
    assert table.compact() is not None
    assert len(table.keys()) == 10
    table.check()


@pytest.mark.parametrize("nulls", [False, True])
def test_values_are_not_kept_with_the_keys(bench: Bench, monkeypatch: pytest.MonkeyPatch, nulls: bool) -> None:
    """The keys of many batches are looked up together; their payloads are not in memory together."""
    kept, replaced = list[int](), NewerKeys.replaced

    def measured(newer: NewerKeys, columns: Sequence[BinaryColumn], *, takes: bool) -> Mask:
        kept.append(sum(_memory(each.offsets) + _memory(each.data) + _memory(each.validity) for each in columns))
        return replaced(newer, columns, takes=takes)

    monkeypatch.setattr(NewerKeys, "replaced", measured)
    table = Table(bench, segment_bytes=1 << 20)
    for number in range(50):
        table.put([(b"%d" % number, bytes(2_000)), (None if nulls else b"x", bytes(2_000))])
    table.roll()
    assert table.compact() is not None
    assert kept
    assert max(kept) < 5_000


def _memory(view: object) -> int:
    """Return the bytes that stay in memory because of this."""
    while not isinstance(view, bytes):
        if view is None:
            return 0
        if isinstance(view, np.ndarray) and view.base is None:
            return view.nbytes
        view = view.base if isinstance(view, np.ndarray) else view.obj if isinstance(view, memoryview) else bytes(view)
    return len(view)


def test_range_without_records(bench: Bench) -> None:
    """A segment whose records are all replaced is one empty batch, which keeps its offsets."""
    table = Table(bench, segment_bytes=100)
    table.put([(b"a", b"1"), (b"b", b"1")])
    table.put([(b"a", b"2"), (b"b", b"2")])
    table.roll()
    table.bench.settings = LogSettings(segment_bytes=1, compacts=True)
    table.log.update_settings(table.bench.settings)
    assert table.compact() is not None
    assert [entry[0] for entry in table.entries()] == [2, 3]
    assert table.log.segment_count == 3
    table.check()
    table.reopen()
    table.check()


def test_idle_log_is_compacted(bench: Bench) -> None:
    """The last closed segment is compacted also if nothing was appended behind it."""
    table = filled(bench)
    assert table.log._segments.active.size_bytes == 0
    assert table.compact() is not None
    assert table.log.segment_count == 2


def test_reader_of_a_replaced_segment(bench: Bench) -> None:
    """What was located before a compaction is read as it was."""
    table = filled(bench)
    with table.log.reader.read(0, 10_000, 100) as found:
        before = bytes(found.read())
        assert table.compact() is not None
        table.log.retention.remove_deleted_files(0)
        table.log.retention.remove_deleted_files(DAY_MS)
        assert bytes(found.read()) == before
        assert not found.was_cut
    assert table.log.reader.batch_with(3).is_compacted
    found_at = table.log.reader.offset_for_timestamp(0, TimestampKind.APPEND)
    assert found_at is not None
    assert found_at.offset == 0


@pytest.mark.parametrize("offset", [0, 1, 60, 140])
def test_truncation_of_a_compacted_segment(bench: Bench, offset: int) -> None:
    """A truncation into a compacted segment removes all of it; the log continues at its start, also after a restart."""
    table = filled(bench)
    assert table.compact() is not None
    assert table.log.truncate_to(offset) == 0
    table.appended.clear()
    table.reopen()
    assert table.log.log_end_offset == 0
    table.put([(b"k", b"v")])
    table.roll()
    table.put([(b"l", b"v")])
    table.reopen()
    table.check()


def test_reset_of_a_compacted_log(bench: Bench) -> None:
    """A follower that starts again at 0 or elsewhere has nothing left."""
    for offset in (0, 1_000):
        table = filled(Bench())
        assert table.compact() is not None
        table.log.reset_to(offset, 7)
        assert (table.log.log_start_offset, table.log.log_end_offset, table.log.last_crc) == (offset, offset, 7)
        table.appended.clear()
        table.reopen()
        assert (table.log.log_start_offset, table.log.log_end_offset) == (offset, offset)


def test_follower_copies_a_compacted_log(bench: Bench) -> None:
    """A follower appends compacted batches as they are, and continues behind them with the same chain."""
    table = filled(bench)
    table.put([(b"k1", None)], epoch=3)
    table.roll()
    bench.now_ms += 2 * DAY_MS
    assert table.compact() is not None
    table.put([(b"k2", b"v")], epoch=4)
    follower = Table(Bench())
    for _, batch in iter_batches(bench.content()):
        follower.log.append_replicated(bytes(batch))
    follower.log.compaction.raise_deletions_end(table.log.compaction.deletions_end)
    assert follower.entries() == table.entries()
    assert follower.log.end == table.log.end
    assert follower.log.compaction.deletions_end == table.log.compaction.deletions_end > 0
    follower.reopen()
    assert follower.entries() == table.entries()


def test_batches_that_may_be_sent_again_stay(bench: Bench) -> None:
    """They stay as they are, then go; a deletion behind one stays as long, and the file says so after a restart."""
    table = Table(bench, delete_retention_ms=0)
    table.put([(b"a", b"1"), (b"b", b"1")])
    table.roll()
    table.put([(b"a", b"2"), (b"b", None)])
    table.roll()
    bench.now_ms += 1
    assert table.compact(kept=Kept(frozenset({0}), 1_000)) is not None
    assert [entry[0] for entry in table.entries()] == [0, 1, 2, 3]
    table.reopen()
    bench.now_ms += 1_000
    assert table.compact(kept=Kept(frozenset({0}), 1_000)) is not None
    assert [entry[0] for entry in table.entries()] == [2]


def test_full_disk(bench: Bench) -> None:
    """A compaction that finds no room leaves the log as it was, and appends continue."""
    table = filled(bench)
    before = table.entries()
    bench.disk.fail("pwritev", 28, suffix=".tmp")
    with pytest.raises(StorageFullError):
        table.compact()
    assert table.entries() == before
    table.put([(b"k1", b"still")])
    assert not any(name.endswith(".tmp") for name in bench.disk.list_directory(table.log.directory))
    assert table.compact() is not None
    table.check()


def test_names() -> None:
    """A compacted segment replaces all whose offsets it covers, and an earlier version of itself."""
    names = [
        "00000000000000000000.log", "00000000000000000000-00000000000000000050-0.log",
        "00000000000000000000-00000000000000000100-0.log", "00000000000000000000-00000000000000000100-1.log",
        "00000000000000000050.log", "00000000000000000050-00000000000000000100-3.log",
        "00000000000000000100.log", "00000000000000000150.log", "00000000000000000150.index", "x.log", "1.log",
    ]  # fmt: skip
    found = segment_names(names)
    assert [name.stem + ".log" for name in found] == sorted(
        (name for name in names[:8]), key=lambda name: found[[each.stem + ".log" for each in found].index(name)]
    )
    left = [name for name in found if name not in replaced_segments(found)]
    assert left == [SegmentName(0, 100, 1), SegmentName(100), SegmentName(150)]


def drawn(table: Table, chance: random.Random) -> None:
    """Do one of the things that happen to a log."""
    what = chance.random()
    if what < 0.7:
        keys = chance.randrange(1, 20)
        pairs: list[tuple[bytes | None, bytes | None]] = [
            (
                None if chance.random() < 0.02 else b"key%d" % chance.randrange(keys),
                None if chance.random() < 0.15 else bytes(chance.choices(b"xyz", k=chance.randrange(40))),
            )
            for _ in range(chance.choice((1, 1, 2, 5, 30)))
        ]
        table.put(
            pairs, epoch=table.log.last_epoch + (chance.random() < 0.05), codec=chance.choice((Codec.NONE, Codec.ZSTD)),
            headers=chance.random() < 0.3, own_times=chance.random() < 0.3,
        )  # fmt: skip
    elif what < 0.8:
        table.roll()
        table.bench.now_ms += chance.choice((1, 1_000, DAY_MS))
    elif what < 0.9:
        bases = [header.base_offset for header in table.log.reader.headers(0)] if table.appended else []
        sent_again = frozenset(chance.sample(bases, min(len(bases), chance.choice((0, 0, 1, 5)))))
        kept = Kept(sent_again, chance.choice((1_000, DAY_MS)), chance.choice((1 << 60, table.log.log_end_offset // 2)))
        table.compact(force=chance.random() < 0.5, kept=kept)
    elif what < 0.95:
        table.log.retention.remove_deleted_files(table.bench.now_ms)
    else:
        table.log.durability.checkpoint(table.bench.now_ms, table.log.log_end_offset, force=True)


@pytest.mark.no_cover
@pytest.mark.parametrize("seed", range(30))
def test_any_history(bench: Bench, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Whatever was appended, deleted and compacted, the newest record of each key is read, none is changed."""
    chance = random.Random(seed)
    if seed % 2:
        monkeypatch.setattr(record_selection, "KEY_MEMORY_BYTES", 200)
    if seed % 3:
        monkeypatch.setattr(record_selection, "CHUNK_RECORDS", seed)
    table = Table(bench, segment_bytes=chance.choice((400, 2_000, 20_000)), delete_retention_ms=DAY_MS)
    for _ in range(150):
        drawn(table, chance)
    table.check(deleted_before=table.log.log_end_offset)
    table.reopen()
    table.check(deleted_before=table.log.log_end_offset)


@pytest.mark.no_cover
@pytest.mark.parametrize("seed", range(200))
def test_crash_at_any_point(seed: int) -> None:
    """After a loss of power during a compaction all is there that was fsynced, whatever the disk kept of the rest."""
    crash_and_check(seed)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(200, 10_200, 1_000))
def test_ten_thousand_crash_points(first: int) -> None:
    """The same ten thousand times, each at a point of a history of its own."""
    assert sum(crash_and_check(seed) for seed in range(first, first + 1_000)) > 500


def crash_and_check(seed: int) -> bool:
    """Lose power at a drawn point, start again and check; return whether that was before the compaction's end."""
    chance, lost = random.Random(seed), False
    bench = Bench(disk=MemoryFileSystem(), boot_id=str(seed))
    table = Table(bench, segment_bytes=400, delete_retention_ms=DAY_MS)
    for _ in range(40):
        drawn(table, chance)
    table.roll()
    flushed = table.log.flush()
    table.log.durability.checkpoint(bench.now_ms, flushed, force=True)
    bench.now_ms += chance.choice((0, 2 * DAY_MS))
    bench.disk.lose_power(after=chance.randrange(60))
    try:
        table.compact()
        table.log.retention.remove_deleted_files(0)
        table.log.retention.remove_deleted_files(DAY_MS)
        bench.disk.keep_power()
    except PowerLost:
        lost = True
    bench.disk.crash(chance.choice(list(Loss)), chance)
    bench.boot_id = f"{seed} again"
    table.log = bench.open()
    assert table.log.log_end_offset == flushed
    table.check(deleted_before=flushed)
    table.compact()
    table.check(deleted_before=flushed)
    return lost


def test_truncation_during_a_compaction(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was found of the log before says nothing of what it is now."""
    table = Table(bench, segment_bytes=20_000)
    for number in range(30):
        table.put([(b"k%d" % number, b"v")])
    table.roll()
    select = log_compaction.select_records

    def select_and_cut(*arguments: object) -> None:
        select(*arguments)  # type: ignore[arg-type]
        table.log.truncate_to(20)
        table.appended = {offset: entry for offset, entry in table.appended.items() if offset < 20}

    monkeypatch.setattr(log_compaction, "select_records", select_and_cut)
    assert table.compact() is None
    monkeypatch.undo()
    table.check()
    table.put([(b"k0", b"newest"), (b"k0", b"and newer")])
    table.roll()
    assert table.compact() is not None
    assert table.keys().count(b"k0") == 1
    table.check()


def test_retention_during_a_compaction(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment within its retention stays where older ones are replaced while retention looks at them (I18)."""
    table = Table(bench, retention_ms=DAY_MS)
    for turn in range(4):
        bench.now_ms += DAY_MS * (turn == 2)
        table.put([(b"k", b"v")])
        table.roll()
    retention, seen = table.log.retention, list[Segment]()
    last_append_ms = retention.last_append_ms

    def compact_meanwhile(segment: Segment) -> int:
        seen.append(segment)
        if len(seen) == 1:
            assert table.log.compaction.compact(bench.now_ms, 2) is not None
        return last_append_ms(segment)

    monkeypatch.setattr(retention, "last_append_ms", compact_meanwhile)
    assert retention.plan(bench.now_ms + 10, 4) == 2


def test_deletions_that_never_go(bench: Bench) -> None:
    """Null values without a key stay for ever: they make a log due once in half an hour, not always."""
    table = Table(bench, delete_retention_ms=0)
    table.put([(None, None), (b"a", b"1")])
    table.roll()
    assert table.compact(force=False) is not None
    assert table.compact(force=False) is None
    bench.now_ms += DELETIONS_EVERY_MS
    assert table.compact(force=False) is not None
    assert table.keys() == [None, b"a"]


@pytest.mark.parametrize("offset", [5, 71])
def test_truncation_at_corruption_removes_a_compacted_segment(bench: Bench, offset: int) -> None:
    """Its name has its offsets: what is appended in their place does not count as replaced at the next start."""
    table = Table(bench, segment_bytes=1_000)
    for number in range(60):
        table.put([(b"k%d" % number, b"older"), (b"k%d" % number, b"newer")], epoch=number // 20)
    table.roll()
    assert table.compact() is not None
    corrupt = table.log._segments.find(offset)
    position, _ = next(table.log._segments.walk(corrupt, offset, bench.settings.index_interval_bytes))
    bench.directory.close(clean=True)
    bench.disk.corrupt(corrupt.path, position + 100, 1)
    table.log = bench.open(truncate_at_corruption=True)
    end_offset = table.log.log_end_offset
    assert end_offset == corrupt.base_offset <= offset < corrupt.name.end_offset
    assert all(start <= end_offset for _, start in table.log.epochs())
    table.appended = {each: entry for each, entry in table.appended.items() if each < end_offset}
    table.check()
    for key in (b"x", b"y", b"z"):
        table.put([(key, b"v")], epoch=3)
        table.roll()
    table.reopen()
    assert table.keys()[-3:] == [b"x", b"y", b"z"]
    table.check()


def test_log_that_ends_with_a_compacted_segment_continues_in_another_one(bench: Bench) -> None:
    """A segment that is missing behind it ends the log there; a compacted one is never appended to."""
    table = filled(bench)
    assert table.compact() is not None
    for key in (b"x", b"y"):
        table.put([(key, b"v")])
        table.roll()
    bench.directory.close(clean=True)
    bench.disk.unlink(bench.path(150))
    table.log = bench.open(truncate_at_corruption=True)
    assert table.log.log_end_offset == 150
    table.appended = {each: entry for each, entry in table.appended.items() if each < 150}
    table.put([(b"z", b"v")])
    assert bench.disk.content(bench.path(150))
    table.reopen()
    table.check()


LOOKS: dict[str, Callable[[PartitionLog, int], object]] = {
    "is due": lambda log, now_ms: log.compaction.is_due(now_ms, 100),
    "compact": lambda log, now_ms: log.compaction.compact(now_ms, 100),
    "retention": lambda log, now_ms: log.retention.plan(now_ms, 100),
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_log_whose_segments_are_removed_meanwhile_stays_in_service(look: Callable[[PartitionLog, int], object]) -> None:
    """Segments that are gone when their times are read are looked at another time (H34)."""
    disk = InterruptedDisk()
    bench = Bench(disk=disk)
    table = Table(bench, segment_bytes=2_000, min_compaction_lag_ms=1_000, retention_ms=1_000)
    for _ in range(50):
        table.put([(b"a", b"v" * 100), (b"b", b"v" * 100)])
    table.log.durability.checkpoint(bench.now_ms, 100, force=True)
    bench.directory.close(clean=True)
    for name in bench.disk.list_directory(table.log.directory):
        if name.endswith((".index", ".timeindex")):
            bench.disk.unlink(f"{table.log.directory}/{name}")
    log = bench.open()
    disk.meanwhile = lambda: log.retention.delete_records(90, 100)
    look(log, bench.now_ms + 10_000)
    assert disk.meanwhile is None
    assert not log.offline
    assert log.reader.verify() == log.log_end_offset


def test_a_refused_look_for_deletions_is_repeated(bench: Bench) -> None:
    """A segment whose deletions could not be read does not count as one without any."""
    table = Table(bench, delete_retention_ms=DAY_MS)
    table.put([(b"a", None)])
    table.roll()
    table.compact()
    bench.now_ms += 2 * DAY_MS
    table.reopen()
    bench.disk.fail("pread", errno.ENOMEM, suffix=".log")
    with pytest.raises(StorageBusyError):
        table.compact(force=False)
    assert table.compact(force=False) is not None
    assert table.keys() == []
