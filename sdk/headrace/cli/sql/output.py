"""Output of `headrace sql`: tables for people, JSON lines, CSV, an Arrow stream, Parquet."""

import csv
import enum
import io
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import IO, Any, assert_never

from headrace.cli.common.rendering import json_document, table_line
from headrace.cli.common.value_text import are_numbers, cell_text, value_text, widths_of
from headrace.display.visible_text import visible
from headrace.wire.typed.json_values import json_value

TABLE_ROWS = 1_000
"""Rows whose widths decide those of a table's columns; more rows are printed as they come."""


class SqlOutput(enum.StrEnum):
    """Output format of a query's result."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    ARROW = "arrow"
    PARQUET = "parquet"


def write_result(batches: Any, output: SqlOutput, stream: IO[bytes]) -> int:
    """Write a result; return the number of rows.

    Args:
        batches: a `pyarrow.RecordBatchReader`.
        output: the format.
        stream: where to, opened for bytes.
    """
    match output:
        case SqlOutput.ARROW:
            import pyarrow as pa

            with pa.ipc.new_stream(stream, batches.schema) as writer:
                return _each(batches, writer.write_batch)
        case SqlOutput.PARQUET:
            import pyarrow.parquet as pq

            with pq.ParquetWriter(stream, batches.schema) as writer:
                return _each(batches, writer.write_batch)
        case SqlOutput.TABLE | SqlOutput.JSON | SqlOutput.CSV:
            names, count = batches.schema.names, 0
            for text in _texts(names, _rows(batches), output, is_terminal=stream.isatty()):
                stream.write(text.encode(errors="backslashreplace"))
                count += 1
            stream.flush()
            return count - (output is not SqlOutput.JSON)
        case _:
            assert_never(output)


def _each(batches: Any, write: Any) -> int:
    count = 0
    for batch in batches:
        write(batch)
        count += batch.num_rows
    return count


def _rows(batches: Any) -> Iterator[tuple[Any, ...]]:
    from headrace.client.base.arrow_objects import rows_of

    return chain.from_iterable(map(rows_of, batches))


def _texts(names: list[str], rows: Iterable[tuple[Any, ...]], output: SqlOutput, *, is_terminal: bool) -> Iterator[str]:
    """Yield the lines: one for each row, after one for the names unless it is JSON."""
    if output is SqlOutput.JSON:
        for row in rows:
            yield json_document(dict(zip(names, map(json_value, row), strict=True)), default=str) + "\n"
        return
    if output is SqlOutput.CSV:
        buffer = io.StringIO()
        writer = csv.writer(buffer)  # It quotes the characters of its line end, CR and LF; a line ends with LF alone.
        lines: Iterator[Iterable[Any]] = chain([names], rows)
        for fields in lines:
            writer.writerow(["" if value is None else value_text(value) for value in fields])
            line = buffer.getvalue().removesuffix("\r\n") + "\n"
            yield visible(line, keep="\n\t") if is_terminal else line
            buffer.seek(0)
            buffer.truncate()
        return
    yield from _table(names, iter(rows))


def _table(names: list[str], rows: Iterator[tuple[Any, ...]]) -> Iterator[str]:
    first = list(islice(rows, TABLE_ROWS))
    lines = [list(map(cell_text, cells)) for cells in (names, *first)]
    widths = widths_of(lines)
    are_right = [are_numbers(row[place] for row in first) for place in range(len(names))]
    for cells in chain(lines, (map(cell_text, row) for row in rows)):
        yield table_line(cells, widths, are_right)
