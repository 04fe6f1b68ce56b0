"""A purge: records of deleted rows go at once, from every file; others stay as long as without it."""

from __future__ import annotations

import pytest
from headrace.log.log_compaction import CompactionReport
from headrace.log.purged_records import PurgedRecords
from headrace.log.record_selection import NOTHING_KEPT, Kept
from headrace.wire.table_keys import row_start, rows_start, table_key

from tests.unit.log.conftest import Bench
from tests.unit.log.test_log_compaction import DAY_MS, Table

ADA, BOB, BEN = (table_key(row, b"name") for row in (b"ada", b"bob", b"ben"))
ALL = ("ada", "bob", "ben", "keep")


def filled(bench: Bench, **settings: int) -> Table:
    """Return a log in which two rows are deleted and one is not, in several segments."""
    table = Table(bench, delete_retention_ms=DAY_MS, expires_records=True, file_delete_delay_ms=DAY_MS, **settings)
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


def test_young_segments_and_batches_of_retries_are_no_reason(bench: Bench) -> None:
    """A batch with a purged record is written anew though its producer may send it again; others stay."""
    table = filled(bench, min_compaction_lag_ms=DAY_MS, max_compaction_lag_ms=2 * DAY_MS)
    for _ in range(2):
        table.put([(BEN, b"ben")])
    kept = Kept(frozenset(header.base_offset for header in table.log.reader.headers(0)), DAY_MS)
    purge(table, kept=kept, row_starts=frozenset([row_start(b"ada")]))
    assert stored(bench) == {"bob", "ben", "keep"}
    assert table.keys().count(BEN) == 2, "what is kept is not compacted"


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
