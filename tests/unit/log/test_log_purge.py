"""A purge: records of deleted rows go at once, from every file; others stay as long as without it."""

from __future__ import annotations

import random

import pytest
from headrace.log import record_selection
from headrace.log.log_compaction import CompactionReport
from headrace.log.purged_records import PurgedRecords
from headrace.log.record_selection import NOTHING_KEPT, Kept
from headrace.wire.table_keys import row_start, rows_start, table_key

from tests.unit.log.conftest import Bench
from tests.unit.log.test_log_compaction import DAY_MS, Table

ADA, BOB, BEN = (table_key(row, b"name") for row in (b"ada", b"bob", b"ben"))
ALL = ("ada", "bob", "ben", "keep")
YOUNG = {"min_compaction_lag_ms": DAY_MS, "max_compaction_lag_ms": 2 * DAY_MS}


def filled(bench: Bench, **settings: int) -> Table:
    """Return a log in which two rows are deleted and one is not, in several segments."""
    defaults = {"delete_retention_ms": DAY_MS, "expires_records": True, "file_delete_delay_ms": DAY_MS}
    table = Table(bench, **(defaults | settings))
    for turn in range(3):
        table.put([(ADA, b"ada %d" % turn), (BOB, b"bob %d" % turn), (BEN, b"ben %d" % turn)])
        table.put([(table_key(b"k%d" % turn, b"c"), b"keep %d" % turn)])
        table.roll()
    table.put([(ADA, None), (BOB, None)])
    table.log.flush()
    return table


def purge(table: Table, *, kept: Kept = NOTHING_KEPT, **wanted: object) -> CompactionReport:
    """Purge as a broker does."""
    purged = PurgedRecords(**{"before_offset": table.log.log_end_offset, **wanted})  # type: ignore[arg-type]
    end_offset = table.log.close_below(purged.before_offset)
    report = table.log.compaction.purge(table.bench.now_ms, table.log.log_end_offset, kept, purged, end_offset)
    assert table.log.retention.purge_deleted_files() == 0
    assert report is not None
    return report


def stored(bench: Bench) -> set[str]:
    """Return which of the rows are in any file that is durable."""
    contents = bench.disk.snapshot().values()
    return {name for name in ALL if any(name.encode() in (content or b"") for content in contents)}


@pytest.mark.parametrize(
    ("wanted", "left"),
    [
        ({"row_starts": frozenset([row_start(b"ada")])}, {"bob", "ben", "keep"}),
        ({"prefix": rows_start(b"ad")}, {"bob", "ben", "keep"}),
        ({"deleted": True}, {"ben", "keep"}),
    ],
)
def test_no_file_has_what_was_purged(bench: Bench, wanted: dict[str, object], left: set[str]) -> None:
    """Neither value nor key, without a wait; the deletion of another row stays for its time."""
    table = filled(bench)
    assert stored(bench) == set(ALL)
    purge(table, **wanted)
    assert stored(bench) == left
    assert (BOB in table.keys()) == ("bob" in left)
    assert table.log.compaction.deletions_end == table.log.log_end_offset
    table.reopen()
    assert stored(bench) == left
    assert {BEN, table_key(b"k0", b"c")} <= set(table.keys())
    table.log.reader.verify()


def test_what_was_written_later_stays(bench: Bench) -> None:
    """A row that exists again has other records, from the offset on."""
    table = filled(bench)
    before_offset = table.log.log_end_offset
    table.put([(ADA, b"later")])
    purge(table, before_offset=before_offset, row_starts=frozenset([row_start(b"ada")]))
    assert [entry[:3] for entry in table.entries() if entry[1] == ADA] == [(before_offset, ADA, b"later")]


def test_a_header_of_expiry_is_that_of_rows_only(bench: Bench) -> None:
    """A plain key, from before the topic was a table, does not expire."""
    table = filled(bench)
    table.put([(b"plain", b"value"), (BEN, b"expired")], expires_ms=bench.now_ms - 1)
    purge(table, deleted=True)
    assert [entry[2] for entry in table.entries() if entry[1] == b"plain"] == [b"value"]
    assert b"expired" not in {entry[2] for entry in table.entries()}


def test_batches_of_retries_are_no_reason(bench: Bench) -> None:
    """A batch with a purged record is written anew though its producer may send it again; others stay."""
    table = filled(bench)
    for _ in range(2):
        table.put([(BEN, b"ben")])
    kept = Kept(frozenset(header.base_offset for header in table.log.reader.headers(0)), DAY_MS)
    purge(table, kept=kept, row_starts=frozenset([row_start(b"ada")]))
    assert stored(bench) == {"bob", "ben", "keep"}
    assert table.keys().count(BEN) == 2, "what is kept is not compacted"


def values_of(table: Table, key: bytes) -> list[bytes | None]:
    return [entry[2] for entry in table.entries() if entry[1] == key]


def test_the_history_of_other_rows_stays(bench: Bench) -> None:
    """Of segments younger than `min_compaction_lag_ms` the rows' records go, and no others, nor old deletions."""
    table = filled(bench, **YOUNG, delete_retention_ms=0)
    purge(table, row_starts=frozenset([row_start(b"ada")]))
    assert stored(bench) == {"bob", "ben", "keep"}
    assert values_of(table, BEN) == [b"ben 0", b"ben 1", b"ben 2"]
    assert values_of(table, BOB) == [b"bob 0", b"bob 1", b"bob 2", None]
    assert table.log.compaction.end_offset == 0
    table.reopen()
    bench.now_ms += 2 * DAY_MS
    table.put([(b"other", b"value")])
    table.roll()
    table.compact()
    assert values_of(table, BEN) == [b"ben 2"]
    assert values_of(table, BOB) == []


def test_old_segments_are_compared_with_each_other_alone(bench: Bench) -> None:
    """A younger record of a key does not replace the one that a look back to their time finds."""
    table = filled(bench, **YOUNG)
    table.roll()
    bench.now_ms += DAY_MS
    old_end = table.log.log_end_offset
    for turn in range(3, 5):
        table.put([(BEN, b"ben %d" % turn)])
        table.roll()
    segments = len(table.log._segments.items)
    purge(table, row_starts=frozenset([row_start(b"ada")]))
    assert values_of(table, BEN) == [b"ben 2", b"ben 3", b"ben 4"]
    assert table.log.compaction.end_offset == old_end
    young = [segment for segment in table.log._segments.items if segment.base_offset >= old_end]
    assert len(young) == 3 < segments, "segments of different age stay apart"


@pytest.mark.parametrize("memory_bytes", [record_selection.KEY_MEMORY_BYTES, 1])
@pytest.mark.parametrize("seed", range(5))
def test_deletions_of_young_segments_go_with_what_they_delete(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, seed: int, memory_bytes: int
) -> None:
    """What was written after a deletion stays, of young segments with its history."""
    monkeypatch.setattr(record_selection, "KEY_MEMORY_BYTES", memory_bytes)
    monkeypatch.setattr(record_selection, "CHUNK_RECORDS", 5)
    chance = random.Random(seed)
    table = Table(bench, delete_retention_ms=2 * DAY_MS, **YOUNG)
    for batch in range(40):
        if batch == 20:
            table.roll()
            bench.now_ms += DAY_MS
        keys = chance.choices([b"a", b"b", b"c", b"d", b"e"], k=3)
        table.put([(key, None if chance.random() < 0.15 else b"value") for key in keys])
        if batch % 7 == 5:
            table.roll()
    purge(table, deleted=True)
    old_end = table.log.compaction.end_offset
    assert old_end == 60
    wanted, later, newer = list[int](), set[bytes | None](), set[bytes | None]()
    for offset, key, value, *_ in reversed(table.appended.values()):
        if value is None:
            later.add(key)
        if key not in later and (offset >= old_end or key not in newer):
            wanted.append(offset)
        if offset < old_end:
            newer.add(key)
    assert [entry[0] for entry in table.entries()] == wanted[::-1]


def test_deletions_take_the_values_before_them_alone(bench: Bench) -> None:
    table = filled(bench, **YOUNG)
    table.put([(BOB, b"new 0"), (BOB, b"new 1"), (BEN, None), (BEN, b"new 0")])
    table.put([(BEN, b"new 1")])
    purge(table, deleted=True)
    assert stored(bench) == {"bob", "ben", "keep"}
    assert values_of(table, BOB) == values_of(table, BEN) == [b"new 0", b"new 1"]


def test_what_is_not_committed_is_not_purged(bench: Bench) -> None:
    """The caller waits and tries again."""
    table = filled(bench)
    end_offset = table.log.close_below(table.log.log_end_offset)
    purged = PurgedRecords(end_offset, deleted=True)
    assert table.log.compaction.purge(bench.now_ms, end_offset - 1, NOTHING_KEPT, purged, end_offset) is None
    assert stored(bench) == set(ALL)


def test_an_empty_log_has_nothing_to_purge(bench: Bench) -> None:
    table = Table(bench)
    assert purge(table, deleted=True) == CompactionReport(0, 0, 0, 0, 0)
    table.put([(ADA, b"ada")])
    assert purge(table, before_offset=0, deleted=True).removed_records == 0
    assert table.keys() == [ADA]


def test_a_file_that_is_read_is_waited_for(bench: Bench) -> None:
    """Its name is gone once the reader has closed it."""
    table = filled(bench)
    purged = PurgedRecords(int(table.log.log_end_offset), deleted=True)
    end_offset = table.log.close_below(purged.before_offset)
    with table.log.reader.read(0, 1 << 20, end_offset):
        table.log.compaction.purge(bench.now_ms, end_offset, NOTHING_KEPT, purged, end_offset)
        assert table.log.retention.purge_deleted_files() == 1
        assert "ada" in stored(bench)
    assert table.log.retention.purge_deleted_files() == 0
    assert stored(bench) == {"ben", "keep"}
