"""State of a table against a dict, for any history of its columns."""

import random

import pytest
from headrace.partition import ordered_keys, table_state
from headrace.partition.column_expiries import EXPIRY_BYTES
from headrace.partition.table_rows import look_up, wanted_columns
from headrace.partition.table_state import ColumnChange, ColumnSlice, RowOffsets, UncommittedRows, changes_of
from headrace.v1 import tables_pb2
from headrace.wire.batch import read_header, stamp
from headrace.wire.columns import decode_batch
from headrace.wire.encoding import encode_batch
from headrace.wire.table_keys import ABSENT, expiry_headers, row_start, table_key

ROWS = [b"a", b"ab", b"a\x00", b"b", b"\xff"]
COLUMNS = [b"", b"x", b"y", b"\x00z"]


def history(seed, size):
    """Changes of few columns, some of which expire at the time of a later offset."""
    draw = random.Random(seed)
    for offset in range(size):
        key = table_key(draw.choice(ROWS), draw.choice(COLUMNS))
        yield ColumnChange(
            key, offset, draw.random() < 0.3, offset + draw.randrange(1, 60) if draw.random() < 0.2 else 0
        )


def batch_of(changes):
    """Return changes, which follow each other, as a batch."""
    values = [None if each.is_deletion else b"" for each in changes]
    headers = [expiry_headers(each.expires_ms) for each in changes]
    batch = encode_batch(
        values, [each.key for each in changes], base_timestamp_ms=1, headers=headers if any(headers) else None
    )
    at = {"base_offset": changes[0].offset, "append_timestamp_ms": 1, "leader_epoch": 0, "previous_crc": 0}
    head = stamp(read_header(batch), **at)
    return decode_batch(head + batch[len(head) :], max_payload_bytes=1 << 20)


def batches_of(changes, seed=0):
    """Return changes as batches of several sizes."""
    draw, start = random.Random(seed), 0
    while start < len(changes):
        end = start + draw.choice((1, 1, 2, 9))
        yield batch_of(changes[start:end])
        start = end


class Model:
    """What a table has after some changes: {(row, column): (offset, expires_ms)}."""

    def __init__(self):
        self.columns = {}
        self.versions = {}
        """Offset of the last record of each row that exists, if none expires."""

    def apply(self, change):
        if change.is_deletion:
            self.columns.pop(change.key, None)
        else:
            self.columns[change.key] = (change.offset, change.expires_ms)
        if any(key.startswith(change.row) for key in self.columns):
            self.versions[change.row] = change.offset
        else:
            self.versions.pop(change.row, None)

    def at(self, now_ms):
        return {key: offset for key, (offset, expires) in self.columns.items() if not expires or expires > now_ms}


def content(state):
    return {
        table_key(row, name): offset
        for row in state.rows_from(b"", None, b"")
        for name, offset in state.columns_of(row)
    }


@pytest.mark.parametrize("seed", range(8))
def test_any_history_is_that_of_a_dict(seed, monkeypatch):
    """Made at once from a part of it, then continued; columns expire when their time has come, and not before."""
    monkeypatch.setattr(ordered_keys, "_MOST", 4)
    monkeypatch.setattr(ordered_keys, "_FILLED", 3)
    changes, model = list(history(seed, 400)), Model()
    begun = random.Random(seed).randrange(200)
    for change in changes[:begun]:
        model.apply(change)
    state = RowOffsets(batches_of(changes[:begun], seed))
    for change in changes[begun:]:
        state.apply(change)
        model.apply(change)
        state.expire(change.offset)
        expected = model.at(change.offset)
        assert content(state) == expected
        assert state.columns == len(expected)
        assert state.rows == len(
            {row_start(row) for row in ROWS for column in COLUMNS if table_key(row, column) in expected}
        )


def test_a_column_that_was_put_again_does_not_expire_with_the_first():
    state = RowOffsets()
    for offset, expires_ms in enumerate((10, 30, 0)):
        state.apply(ColumnChange(table_key(b"r", b"c"), offset, False, expires_ms))
        state.expire(20)
    assert dict(state.columns_of(b"r")) == {b"c": 2}
    state.expire(1_000)
    assert dict(state.columns_of(b"r")) == {b"c": 2}


def test_columns_below_the_log_start_go():
    state = RowOffsets(batches_of(list(history(1, 300))))
    kept = {key: offset for key, offset in content(state).items() if offset >= 290}
    place = b""
    while place is not None:
        place = state.forget_below(290, place, 3)
    assert content(state) == kept
    assert state.rows == len(list(state.rows_from(b"", None, b"")))


@pytest.mark.parametrize("seed", range(4))
def test_a_version_is_the_offset_of_a_row_s_last_record(seed, monkeypatch):
    """Also if that deletes a column, and whichever columns are read; keys of a row may be in several lists."""
    monkeypatch.setattr(ordered_keys, "_MOST", 4)
    monkeypatch.setattr(ordered_keys, "_FILLED", 3)
    changes, model = [change._replace(expires_ms=0) for change in history(seed, 300)], Model()
    begun = random.Random(seed).randrange(200)
    for change in changes[:begun]:
        model.apply(change)
    state = RowOffsets(batches_of(changes[:begun], seed))
    for change in changes[begun:]:
        state.apply(change)
        model.apply(change)
        for row in ROWS:
            expected = model.versions.get(row_start(row), ABSENT)
            assert look_up(state, row, wanted_columns(tables_pb2.ColumnSlice(names=[b"x"]))).version == expected
            whole = look_up(state, row, wanted_columns(tables_pb2.ColumnSlice()))
            assert (whole.version, whole.columns, whole.next_column) == (expected, state.columns_of(row), None)


@pytest.mark.parametrize("start_offset", [0, 1, 150, 299, 300])
def test_what_is_below_the_log_start_is_not_taken(start_offset):
    """The first batch may begin before it."""
    changes, model = list(history(2, 300)), Model()
    for change in changes[start_offset:]:
        model.apply(change)
    assert content(RowOffsets(batches_of(changes), start_offset)) == model.at(0)


def test_slices_and_ranges():
    changes = [ColumnChange(table_key(row, name), at, False, 0) for at, (row, name) in enumerate(
        (row, name) for row in ROWS for name in COLUMNS
    )]  # fmt: skip
    state = RowOffsets(batches_of(changes))
    names = [name for name, _ in state.columns_of(b"a", ColumnSlice(names=(b"y", b"none", b"x", b"y")))]
    assert names == [b"x", b"y"]
    assert [name for name, _ in state.columns_of(b"a", ColumnSlice(start=b"\x00", end=b"y"))] == [b"\x00z", b"x"]
    assert [name for name, _ in state.columns_of(b"a", ColumnSlice(start=b"x"))] == [b"x", b"y"]
    assert list(state.columns_of(b"c")) == []
    assert list(state.rows_from(b"", None, b"a")) == [b"a", b"a\x00", b"ab"]
    assert list(state.rows_from(b"ab", b"\xff", b"")) == [b"ab", b"b"]
    assert list(state.rows_from(b"a\x00", None, b"a")) == [b"a\x00", b"ab"]
    assert list(state.rows_from(b"", b"", b"")) == []
    assert list(state.columns_of(b"a", ColumnSlice(end=b""))) == []


def test_a_few_columns_of_a_wide_row_are_read_without_the_others(monkeypatch):
    """Its version, too, which is that of any column; a condition on it needs no more."""
    keys = [table_key(b"wide", b"%06d" % number) for number in range(50_000)]
    state, last = RowOffsets(), table_key(b"wide", b"031000")
    state._keys = ordered_keys.OrderedKeys(keys, range(50_000))
    state.apply(ColumnChange(last, 60_000, False, 0))
    looked = []
    for name in ("items", "first"):
        method = getattr(ordered_keys.OrderedKeys, name)
        monkeypatch.setattr(
            ordered_keys.OrderedKeys, name, lambda *given, method=method: looked.extend(f := list(method(*given))) or f
        )
    wanted = [
        tables_pb2.ColumnSlice(names=[b"000007"]),
        tables_pb2.ColumnSlice(start=b"02", limit=20),
        tables_pb2.ColumnSlice(start=b"02", end=b"020003"),
    ]
    found = [look_up(state, b"wide", wanted_columns(each)) for each in wanted]
    assert [(row.version, len(row.columns)) for row in found] == [(60_000, 1), (60_000, 20), (60_000, 3)]
    assert state.current_version(b"wide", {last: ColumnChange(last, 70_000, False, 0)}) == 70_000
    assert len(looked) < 100
    assert state.current_version(b"wide", {key: ColumnChange(key, 70_000, True, 0) for key in keys}) == ABSENT
    assert state.current_version(b"wide", {key: ColumnChange(key, 70_000, True, 0) for key in keys[1:]}) == 70_000


def test_uncommitted_changes_are_seen_by_conditions(monkeypatch):
    """Those that the state has by now do not bring back what it has dropped."""
    monkeypatch.setattr(table_state, "MANY_CHANGES", 50)
    changes = list(history(3, 600))
    state, uncommitted, model = RowOffsets(), UncommittedRows(), Model()
    committed = 0
    for change in changes:
        model.apply(change._replace(expires_ms=0))
        uncommitted.apply(change, committed)
        if change.offset % 7 == 0:
            while committed <= change.offset - 3:
                state.apply(changes[committed]._replace(expires_ms=0))
                committed += 1
            state.end_offset = committed
        for row in ROWS:
            prefix = row_start(row)
            expected = {key[len(prefix) :]: at for key, (at, _) in model.columns.items() if key.startswith(prefix)}
            assert state.current(row, uncommitted.of(row)) == (expected, model.versions.get(prefix, ABSENT))
    assert uncommitted._count <= 50


def test_many_uncommitted_changes_are_not_searched_for_each_one(monkeypatch):
    """None of them is committed, so that a search drops none."""
    monkeypatch.setattr(table_state, "MANY_CHANGES", 50)
    uncommitted, searches = UncommittedRows(), []
    drop = uncommitted._drop_committed
    monkeypatch.setattr(uncommitted, "_drop_committed", lambda committed: (searches.append(1), drop(committed)))
    for number in range(5_000):
        uncommitted.apply(ColumnChange(table_key(b"%d" % number, b"c"), number, False, 0), 0)
    assert 1 <= len(searches) <= 10


def test_changes_of_a_batch_are_its_keys_of_rows():
    keys = [table_key(b"r", b"a"), b"plain", table_key(b"r", b"b"), table_key(b"s", b"")]
    batch = encode_batch([b"1", b"2", None, b""], keys, base_timestamp_ms=1, headers=[expiry_headers(9), (), (), ()])
    head = stamp(read_header(batch), base_offset=40, append_timestamp_ms=1, leader_epoch=0, previous_crc=0)
    columns = decode_batch(head + batch[len(head) :], max_payload_bytes=10_000)
    assert changes_of(columns) == [
        ColumnChange(keys[0], 40, False, 9), ColumnChange(keys[2], 42, True, 0), ColumnChange(keys[3], 43, False, 0),
    ]  # fmt: skip
    assert changes_of(columns)[1].row == row_start(b"r")


@pytest.mark.parametrize("key", [b"\x00\x00\x00\x01", b"a\x00\x02\x00\x01x", b"\x00\x01x"])
@pytest.mark.parametrize("at_once", [False, True])
def test_keys_from_before_the_topic_was_a_table_hide_no_rows(key, at_once):
    """They are no rows themselves, although they have the bytes between a row and its column."""
    rows = [b"\x00", b"\x00\x01", b"a", b"a\x00", b"a\x00\x01", b"b"]
    keys = [key, *(table_key(row, b"x") for row in rows)]
    batches = list(batches_of([ColumnChange(each, at, False, 0) for at, each in enumerate(keys)]))
    state = RowOffsets(batches if at_once else ())
    for batch in () if at_once else batches:
        for change in changes_of(batch):
            state.apply(change)
    assert list(state.rows_from(b"", None, b"")) == rows
    assert (state.rows, state.columns) == (len(rows), len(rows))


def test_a_column_that_is_written_again_leaves_nothing_of_its_former_expiries():
    """Whether the times grow or shrink, and whether it is deleted in between."""
    state, key = RowOffsets(), table_key(b"r", b"c")
    for offset in range(3_000):
        times = (1_000 + offset, 10_000 + offset, 1_000 + offset)
        state.apply(ColumnChange(key, offset, offset % 7 == 6, 0 if offset % 7 == 6 else times[offset % 3]))
    assert EXPIRY_BYTES < state.key_bytes < 10 * EXPIRY_BYTES
    state.apply(ColumnChange(key, 3_000, False, 20_000))
    assert not state.expire(19_999)
    assert dict(state.columns_of(b"r")) == {b"c": 3_000}
    state.expire(20_000)
    assert (state.rows, state.key_bytes) == (0, 0)


def test_columns_expire_in_steps_and_those_of_one_write_together():
    """A step ends between rows; entries that were written again count, too."""
    state = RowOffsets()
    for offset in range(40):
        state.apply(ColumnChange(table_key(b"s%d" % offset, b"c"), offset, False, 10))
        state.apply(ColumnChange(table_key(b"s%d" % offset, b"c"), offset, False, 2_000))
    for offset in range(99, 129):
        state.apply(ColumnChange(table_key(b"r%d" % (offset // 3), b"%d" % offset), offset, False, 1_000))
    steps, left = 1, []
    while state.expire(1_000, 4):
        steps += 1
        left.append([len(state.columns_of(b"r%d" % row)) for row in range(33, 43)])
    assert all(size in (0, 3) for sizes in left for size in sizes)
    assert (steps, state.rows) == (10 + 5, 40)


@pytest.mark.parametrize("seed", range(8))
def test_the_end_of_a_column_leaves_the_version_as_it_is(seed):
    """Of a state that lived and of one that is made from the log: a condition on an older version stays false."""
    changes, last = list(history(seed, 300)), {}
    state = RowOffsets()
    for change in changes:
        state.apply(change)
        last[change.row] = change.offset
        state.expire(change.offset)
        if change.offset % 20:
            continue
        made = RowOffsets(batches_of(changes[: change.offset + 1], seed))
        made.expire(change.offset)
        without = RowOffsets(batches_of(changes[: change.offset + 1], seed), 0, change.offset)
        assert without.lacks_columns(-1_000) == made.lacks_columns(-1_000)
        for each in (state, made, without):
            found = {row: each.current(row, {}).version for row in ROWS}
            assert found == {row: last[row_start(row)] if each.columns_of(row) else ABSENT for row in ROWS}


def test_a_deletion_is_not_forgotten_for_a_column_that_ends_later():
    """A row is read at version 1; then one of its columns is deleted, and another one written that ends."""
    state = RowOffsets()
    written = [(b"b", 0, False, 0), (b"a", 1, False, 0), (b"b", 2, True, 0), (b"c", 3, False, 300)]
    for name, *change in written:
        state.apply(ColumnChange(table_key(b"r", name), *change))
    state.expire(400)
    assert state.current(b"r", {}) == ({b"a": 1}, 3)
