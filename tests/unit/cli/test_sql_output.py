"""Results of `headrace sql` as text: each row once, however many there are."""

from __future__ import annotations

import csv
import io
import json

import pytest
from headrace.cli.sql import output
from headrace.cli.sql.output import SqlOutput, write_result

pa = pytest.importorskip("pyarrow")


@pytest.mark.parametrize("rows", [0, 1, output.TABLE_ROWS - 1, output.TABLE_ROWS, output.TABLE_ROWS + 3])
@pytest.mark.parametrize("form", [SqlOutput.TABLE, SqlOutput.CSV])
def test_each_row_is_printed_once(rows, form):
    """Also the first one whose width does not count any more for those of a table's columns."""
    found = io.BytesIO()
    batch = pa.record_batch({"n": list(range(rows))}, schema=pa.schema([("n", pa.int64())]))
    assert write_result(pa.RecordBatchReader.from_batches(batch.schema, [batch]), form, found) == rows
    assert [int(line) for line in found.getvalue().split()[1:]] == list(range(rows))


def written(form, values, stream=None):
    """Return the text of a column `s`."""
    stream = stream or io.BytesIO()
    batch = pa.record_batch({"s": values})
    write_result(pa.RecordBatchReader.from_batches(batch.schema, [batch]), form, stream)
    return stream.getvalue().decode()


def test_a_table_has_the_names_of_its_columns():
    """As the query gives them, which may be expressions with texts, and without control characters."""
    found = io.BytesIO()
    batch = pa.record_batch({"json ->> '$.ms'": [1], "stra\u00dfe": ["x"], "\x1b[2J": ["y"]})
    write_result(pa.RecordBatchReader.from_batches(batch.schema, [batch]), SqlOutput.TABLE, found)
    assert found.getvalue().decode().splitlines()[0] == "json ->> '$.ms'  stra\u00dfe  \\x1b[2J"


def test_csv_has_the_values_themselves():
    """A program reads back what the records have; only a terminal gets escapes."""
    values = ["a\nb", "c\rd", "x\ty", "1\u00a0000", "a\\nb", "\x9b", '"']
    text = written(SqlOutput.CSV, values)
    assert [row[0] for row in csv.reader(io.StringIO(text, newline=""))] == ["s", *values]

    class Terminal(io.BytesIO):
        def isatty(self):
            return True

    shown = written(SqlOutput.CSV, ["\x9b2J", "é"], Terminal())
    assert shown == "s\n\\x9b2J\né\n"


@pytest.mark.parametrize("form", [SqlOutput.JSON, SqlOutput.CSV, SqlOutput.TABLE])
def test_a_date_that_python_lacks_is_its_number(form):
    """The other rows are printed, too."""
    days = pa.array([0, 3_000_000], pa.int32()).view(pa.date32())
    lines = written(form, days).splitlines()[-2:]
    assert lines == (['{"s": "1970-01-01"}', '{"s": 3000000}'] if form is SqlOutput.JSON else ["1970-01-01", "3000000"])


def test_json_is_printable():
    """Control and bidirectional characters of records are escapes of JSON, as in all other commands."""
    text = written(SqlOutput.JSON, ["\x9b2J\u202e", "é"])
    assert text.replace("\n", "").isprintable()
    assert [json.loads(line)["s"] for line in text.splitlines()] == ["\x9b2J\u202e", "é"]
    assert "é" in text
