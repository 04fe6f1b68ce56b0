"""Columns of files, and directories of rows."""

import gc
from datetime import UTC, date, datetime

import pyarrow as pa
import pytest
from headrace.client.loading.columns import Directories, conformed, file_columns, file_type, untyped_columns
from headrace.client.loading.formats import LoadFormat, open_table
from headrace.client.loading.row_writer import OPEN_FILES, PART_BYTES, RowWriter
from headrace.client.loading.tables.attempts import begin
from headrace.client.loading.tables.errors import LoadError
from pyarrow import parquet

PARQUET, DELTA, ICEBERG = LoadFormat


@pytest.mark.parametrize(
    ("kind", "plain", "delta", "iceberg"),
    [
        (pa.timestamp("ms", "UTC"), pa.timestamp("us", "UTC"), pa.timestamp("us", "UTC"), pa.timestamp("us", "UTC")),
        (pa.timestamp("ns"), pa.timestamp("ns"), pa.timestamp("us"), pa.timestamp("us")),
        (pa.uint32(), pa.uint32(), pa.int64(), pa.int64()),
        (pa.uint64(), pa.uint64(), pa.decimal128(20, 0), pa.decimal128(20, 0)),
        (pa.int8(), pa.int8(), pa.int8(), pa.int32()),
        (pa.time32("ms"), pa.time64("us"), None, pa.time64("us")),
        (pa.duration("s"), None, None, None),
        (pa.decimal256(60, 2), pa.decimal256(60, 2), None, None),
        (pa.dictionary(pa.int32(), pa.string()), pa.string(), pa.string(), pa.string()),
        (pa.binary(4), pa.binary(4), pa.binary(), pa.binary(4)),
        (pa.list_(pa.uint8()), pa.list_(pa.uint8()), pa.list_(pa.int32()), pa.list_(pa.int32())),
    ],
)
def test_types_are_those_that_a_format_has(kind, plain, delta, iceberg):
    """The nearest type that has every value; where there is none, an error."""
    for table_format, wanted in ((PARQUET, plain), (DELTA, delta), (ICEBERG, iceberg)):
        if wanted is None:
            with pytest.raises(LoadError, match=f"{table_format.value} has no type for"):
                file_type(kind, table_format)
        else:
            assert file_type(kind, table_format) == wanted


def test_an_error_names_the_column():
    """Both where the type is none of the format, and where a value does not fit."""
    with pytest.raises(LoadError, match="column took: delta has no type for duration"):
        file_columns(pa.schema([("took", pa.duration("ms"))]), DELTA)
    rows = pa.record_batch({"at": pa.array([1], pa.timestamp("ns"))})
    with pytest.raises(LoadError, match=r"column at: .*another format"):
        conformed(rows, pa.schema([("at", pa.timestamp("us"))]))
    with pytest.raises(LoadError, match=r"column x: 0\.1 would become .*another format"):
        conformed(pa.record_batch({"x": pa.array([0.5, 0.1])}), pa.schema([("x", pa.float32())]))


@pytest.mark.parametrize("misfits", [[0], [6], [3, 5], [4]])
def test_the_first_value_that_does_not_fit_is_named(misfits):
    """By partition and offset, for the user to look at it."""
    values = [1 << 60 if row in misfits else row for row in range(7)]
    columns = {"at": pa.array(values, pa.timestamp("s")), "_partition": [3] * 7, "_offset": list(range(40, 47))}
    with pytest.raises(LoadError, match=f"column at, partition 3, offset {40 + misfits[0]}: .*no table has"):
        conformed(pa.record_batch(columns), pa.schema([("at", pa.timestamp("us"))]))


def rows_of(**columns):
    return pa.record_batch(columns)


def test_rows_are_in_the_directory_of_their_values():
    """Names are Spark's: some characters are escaped, null and the empty text have a name of their own."""
    rows = rows_of(
        page=["/a b", None, "", "/a b"], day=[date(2026, 1, 2)] * 4, ok=[True, True, False, True], n=[1, 2, 3, 4]
    )
    found = {name: part["n"].to_pylist() for name, part in Directories(["page", "day", "ok"], rows.schema).split(rows)}
    none = "page=__HIVE_DEFAULT_PARTITION__/day=2026-01-02"
    assert found == {
        "page=%2Fa b/day=2026-01-02/ok=true": [1, 4],
        f"{none}/ok=true": [2],
        f"{none}/ok=false": [3],
    }


def test_days_that_python_lacks_are_directories():
    """Of one row among others, by which the table would not be loaded any further."""
    rows = rows_of(day=pa.array([0, 3_000_000, None], pa.int32()).view(pa.date32()))
    found = [name for name, _ in Directories(["day"], rows.schema).split(rows)]
    assert found == ["day=1970-01-01", "day=10183-09-21", "day=__HIVE_DEFAULT_PARTITION__"]


def test_hours_are_those_of_the_records_in_utc():
    """Also before 1970."""
    times = [
        datetime(2026, 11, 21, 9, 59, 59, tzinfo=UTC),
        datetime(2026, 11, 21, 10, tzinfo=UTC),
        datetime(1969, 12, 31, 23, 1, tzinfo=UTC),
    ]
    rows = rows_of(timestamp=pa.array(times, pa.timestamp("us", "UTC")), n=[1, 2, 3])
    found = {name: part["n"].to_pylist() for name, part in Directories(["event_hour"], rows.schema).split(rows)}
    assert found == {"event_hour=2026-11-21-09": [1], "event_hour=2026-11-21-10": [2], "event_hour=1969-12-31-23": [3]}


@pytest.mark.parametrize(("name", "said"), [("pages", "has the columns page, x"), ("x", "it is double; name a string")])
def test_other_columns_make_no_directories(name, said):
    """The error names those that there are."""
    with pytest.raises(LoadError, match=said):
        Directories([name], pa.schema([("page", pa.string()), ("x", pa.float64())]))


def test_many_directories_need_few_open_files(tmp_path, monkeypatch):
    """A file is closed for the next directory; later rows have another one."""
    most = 0
    closing = RowWriter._close

    def close(writer, directory):
        nonlocal most
        most = max(most, len(writer._files))
        closing(writer, directory)

    monkeypatch.setattr(RowWriter, "_close", close)
    monkeypatch.setattr("headrace.client.loading.row_writer.BUFFER_BYTES", 0)
    columns = pa.schema([("user", pa.int64()), ("n", pa.int64())])
    attempt = begin(tmp_path)
    writer = RowWriter(attempt, columns, Directories(["user"], columns), keeps_columns=False)
    for first in (0, 100):
        writer.write(pa.record_batch({"user": list(range(100)), "n": list(range(first, first + 100))}))
    writer.close()
    assert most == OPEN_FILES
    assert sum(file.rows for file in attempt.files()) == writer.rows == 200
    assert {parquet.read_schema(attempt.data / file.staged).names[0] for file in attempt.files()} == {"n"}


def test_rows_of_many_directories_wait_in_bounded_memory(tmp_path, monkeypatch):
    """A row takes kilobytes there, whatever its own size."""
    monkeypatch.setattr("headrace.client.loading.row_writer.BUFFER_BYTES", 40 * PART_BYTES)
    columns = pa.schema([("user", pa.int64()), ("n", pa.int64())])
    attempt = begin(tmp_path)
    writer = RowWriter(attempt, columns, Directories(["user"], columns), keeps_columns=False)
    writer.write(pa.record_batch({"user": list(range(100)), "n": list(range(100))}))
    assert 0 < len(writer._waiting) <= 40
    writer.close()
    assert sum(file.rows for file in attempt.files()) == 100


def test_an_abandoned_file_is_not_written_to_later(tmp_path, monkeypatch):
    """Its writer is collected as garbage at any time, and an error there is a traceback on the terminal."""
    found = []
    monkeypatch.setattr("sys.unraisablehook", found.append)
    monkeypatch.setattr("headrace.client.loading.row_writer.BUFFER_BYTES", 0)
    columns = pa.schema([("n", pa.int64())])
    writer = RowWriter(begin(tmp_path), columns, Directories([], columns), keeps_columns=False)
    writer.write(pa.record_batch({"n": [1, 2, 3]}))
    writer.abandon()
    del writer
    gc.collect()
    assert not found


def test_untyped_rows_have_the_columns_of_the_spark_job_and_headers():
    """In its types: times in microseconds."""
    found = file_columns(untyped_columns(), PARQUET)
    assert found.names == ["key", "value", "topic", "partition", "offset", "timestamp", "headers"]
    assert found.field("timestamp").type == pa.timestamp("us", "UTC")
    assert found.field("topic").type == pa.string()


@pytest.mark.parametrize(
    ("to", "table_format", "catalog", "said"),
    [
        ("s3://lake/clicks", PARQUET, "", "use --format delta"),
        ("s3://lake/clicks", ICEBERG, "", "needs a catalog"),
        ("s3:/lake/clicks", DELTA, "", "write s3://lake/clicks, or ./s3:/lake/clicks for a directory"),
        ("file://host/data/clicks", DELTA, "", "write file:///data/clicks, or the path /data/clicks"),
        ("clicks", PARQUET, "lake", "a catalog is for Iceberg"),
        ("clicks", ICEBERG, "lake", "namespace.table"),
        ("lake.clicks", ICEBERG, "no-such-catalog", "the catalog no-such-catalog of pyiceberg"),
    ],
)
def test_targets_that_are_not_possible_name_one_that_is(to, table_format, catalog, said):
    """Before anything is read."""
    with pytest.raises(LoadError, match=said):
        open_table(to, table_format, catalog, is_typed=False)
