"""Results of `headrace sql` as text: each row once, however many there are."""

from __future__ import annotations

import io

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
