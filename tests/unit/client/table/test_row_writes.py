"""Rows of a `put_many` as records, and what is told of them."""

import random
from datetime import timedelta

import numpy as np
import pytest
from headrace.client.base.config import TableConfig, build
from headrace.client.base.errors import ConfigError, SerializationError
from headrace.client.table import row_writes
from headrace.client.table.row_writes import PutManyError, RowWrites, checked_ttl_ms, given_rows, parts_of
from headrace.wire.errors import BatchTooLargeError, Outcome, TimedOutError
from headrace.wire.partitioning import partition_for_key
from headrace.wire.table_keys import split_key

pa = pytest.importorskip("pyarrow")
duckdb = pytest.importorskip("duckdb")

UNKNOWN = TimedOutError("no answer", outcome=Outcome.UNKNOWN)


def config(**settings):
    return build(TableConfig, {"bootstrap_servers": "b:1", **settings})


def given(rows, *, key_column="key", delete_nulls=False, **settings):
    return given_rows(rows, config(**settings), key_column, delete_nulls)


def writes_of(rows, partitions=1, **options):
    found = given(rows, **options)
    writes = RowWrites(partitions, found.serializer)
    return writes, list(writes.chunks(found.rows))


def records(chunk):
    return [(*split_key(key), value) for key, value in zip(chunk.keys, chunk.values, strict=True)]


def test_columns_of_a_row_follow_each_other():
    """In the order of the rows of each partition, with the ends of the rows; `None` deletes."""
    _, [chunk] = writes_of([("a", {"x": "1", "y": None}), (b"b", {}), ("c", {"x": "2"})])
    assert records(chunk) == [(b"a", b"x", b"1"), (b"a", b"y", None), (b"c", b"x", b"2")]
    assert (chunk.ends, chunk.rows) == ([2, 3], [0, 2])


def test_a_row_decides_the_partition():
    keys = [f"k{number}" for number in range(50)]
    _, chunks = writes_of([(key, {"x": key, "y": key}) for key in keys], partitions=3)
    assert sorted(chunk.partition for chunk in chunks) == [0, 1, 2]
    for chunk in chunks:
        assert {partition_for_key(row, 3) for row, _, _ in records(chunk)} == {chunk.partition}
    assert sorted(row for chunk in chunks for row in chunk.rows) == list(range(50))


def test_what_is_collected_is_bounded(monkeypatch):
    """Chunks come before all rows were read; a large row is a chunk of its own, in its place."""
    monkeypatch.setattr(row_writes, "COLLECTED_BYTES", 1_000)
    monkeypatch.setattr(row_writes, "LARGE_ROW_BYTES", 400)
    monkeypatch.setattr(row_writes, "RUN_ROWS", 4)
    read = 0

    def rows():
        nonlocal read
        for read in range(100):
            yield "k", {"x": "v" * (500 if read == 50 else 60)}

    writes = RowWrites(1, str.encode)
    ends, seen = [], []
    for chunk in writes.chunks(rows()):
        seen.append(read)
        ends.append(chunk.rows)
    assert seen[0] < 15
    assert [50] in ends
    assert [row for rows in ends for row in rows] == list(range(100))


@pytest.mark.parametrize("partitions", [1, 3])
def test_rows_are_converted_together_as_one_by_one(monkeypatch, partitions):
    """Rows with the same columns or others, deletions, and none."""
    draw, rows = random.Random(1), []
    for number in range(300):
        names = draw.choice((["a"], ["a", "b"], ["b", "a"], [], ["a", "b", "c"])) if draw.random() < 0.1 else ["a", "b"]
        rows.append((f"k{number}", {name: None if draw.random() < 0.02 else f"{number}" for name in names}))
    found = []
    for together in (1, 7, 256):
        monkeypatch.setattr(row_writes, "RUN_ROWS", together)
        _, chunks = writes_of(rows, partitions)
        found.append({each.partition: (records(each), each.ends, each.rows) for each in chunks})
    assert found[0] == found[1] == found[2]
    assert sum(len(ends) for _, ends, _ in found[0].values()) == sum(bool(columns) for _, columns in rows)


def test_versions_are_offsets_of_the_last_column():
    """Of batches that are answered one by one; a row without columns has none."""
    writes, [chunk] = writes_of([("a", {"x": "1", "y": "1"}), ("b", {}), ("c", {"x": "1"}), ("d", {"x": "1"})])
    [first, second] = list(parts_of(chunk, [("first", 3), ("second", 1)]))
    assert first[1:] == (0, 3, "first")
    assert second[1:] == (3, 1, "second")
    writes.note_written(chunk, 3, 1, 40)
    writes.note_written(chunk, 0, 3, 100)
    assert writes.versions().tolist() == [101, -1, 102, 40]
    assert writes.versions().dtype == np.int64


def test_more_rows_than_at_first():
    writes, chunks = writes_of([("k", {"x": "1"})] * 5_000)
    for number, chunk in enumerate(chunks):
        writes.note_written(chunk, 0, len(chunk.keys), number * 10_000)
    assert writes.versions().tolist() == list(range(5_000))


def test_an_error_names_the_first_row_that_failed():
    """It has the versions of the others, and tells whether a row without one may have been written."""
    writes, [chunk] = writes_of([("a", {"x": "1"}), ("b", {"x": "1"}), ("c", {"x": "1"})])
    writes.note_records_failed(chunk, 2, UNKNOWN)
    writes.note_records_failed(chunk, 1, BatchTooLargeError("large"))
    writes.note_written(chunk, 0, 1, 7)
    with pytest.raises(PutManyError, match=r"row 1 \(b'b'\) was not written: large") as told:
        writes.versions()
    error = told.value
    assert (error.row, error.key, error.versions.tolist()) == (1, b"b", [7, -1, -1])
    assert error.outcome is Outcome.UNKNOWN
    assert isinstance(error.__cause__, BatchTooLargeError)


def test_a_row_that_is_none_ends_the_rows():
    """The rows before it are sent; nothing of it or after it is."""
    for bad, cause in (
        (("b", {"x": 3}), SerializationError),
        (("", {"x": "3"}), Exception),
        ("b", SerializationError),
        (("b\udc80", {"x": "3"}), ConfigError),
        (("b", {"x": "3", "half of a pair \ud83d": "3"}), ConfigError),
    ):
        writes, [chunk] = writes_of([("a", {"x": "1"}), bad, ("c", {"x": "1"})])
        assert chunk.rows == [0]
        writes.note_written(chunk, 0, 1, 7)
        with pytest.raises(PutManyError, match="row 1") as told:
            writes.versions()
        assert isinstance(told.value.__cause__, cause)
        assert told.value.versions.tolist() == [7, -1]
        assert told.value.outcome is Outcome.NOT_APPLIED


def test_a_chunk_that_was_taken_in_part_is_in_doubt():
    for rows, outcome in ((1, Outcome.NOT_APPLIED), (2, Outcome.UNKNOWN)):
        writes, [chunk] = writes_of([("a", {"x": "1"})] * rows)
        writes.note_refused(chunk, BatchTooLargeError("large"))
        with pytest.raises(PutManyError) as told:
            writes.versions()
        assert told.value.outcome is outcome


TABLE = pa.table({"key": ["a", "b", "c"], "x": ["1", None, "3"], "y": [b"\xff", b"2", None]})


def test_rows_of_arrow():
    """A null is left out, or deletes; bytes and text are taken as they are."""
    for rows in (TABLE, TABLE.to_batches()[0], TABLE.to_reader(), TABLE.slice(0, 3)):
        _, [chunk] = writes_of(rows)
        assert records(chunk) == [(b"a", b"x", b"1"), (b"a", b"y", b"\xff"), (b"b", b"y", b"2"), (b"c", b"x", b"3")]
    _, [chunk] = writes_of(TABLE.rename_columns(["id", "x", "y"]), key_column="id", delete_nulls=True)
    assert [value for _, _, value in records(chunk)] == [b"1", b"\xff", None, b"2", b"3", None]


def test_rows_of_pandas():
    pd = pytest.importorskip("pandas")
    _, [chunk] = writes_of(pd.DataFrame({"key": ["a", "b"], "x": ["1", None]}))
    assert records(chunk) == [(b"a", b"x", b"1")]


class PolarsFrame:
    """Data frame that has a schema of its own, and becomes Arrow by `to_arrow`, as one of Polars."""

    schema = (("key", str), ("x", str))
    columns = ("key", "x")

    def to_arrow(self):
        return pa.table({"key": pa.array(["a", "b"], pa.large_string()), "x": ["1", None]})


def test_rows_of_other_frames():
    """Of Polars, and of what gives a stream of Arrow, such as a relation of DuckDB."""
    _, [chunk] = writes_of(PolarsFrame())
    assert records(chunk) == [(b"a", b"x", b"1")]
    with duckdb.connect() as connection:
        _, [chunk] = writes_of(connection.sql("select 'a' as key, '1' as x"))
    assert records(chunk) == [(b"a", b"x", b"1")]


def test_other_types_need_a_serializer():
    numbers = pa.table({"key": ["a", "b"], "n": [1, None]})
    with pytest.raises(ConfigError, match="column n is int64"):
        given(numbers)
    _, [chunk] = writes_of(numbers, value_serializer="json")
    assert records(chunk) == [(b"a", b"n", b"1")]


def test_arrow_without_keys_is_refused():
    with pytest.raises(ConfigError, match="no column 'id'"):
        given(TABLE, key_column="id")
    with pytest.raises(ConfigError, match="same name"):
        given(pa.table([["a"], ["b"], ["c"]], names=["key", "x", "x"]))
    writes, _ = writes_of(pa.table({"key": [None, "b"], "x": ["1", "2"]}))
    with pytest.raises(PutManyError, match="row 0"):
        writes.versions()


def test_a_time_to_live_is_in_the_future():
    assert checked_ttl_ms(None) == 0
    assert checked_ttl_ms(timedelta(seconds=2)) == 2_000
    with pytest.raises(ConfigError):
        checked_ttl_ms(timedelta(0))
