"""Arrow tables over the columns of record batches. Imports pyarrow, so it is imported on first use only."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.client.base.records import METADATA_COLUMNS, DecodedBatch
from headrace.wire.arrow_constants import HEADERS, TIMESTAMP, zeros
from headrace.wire.typed.arrow_columns import arrow_type
from headrace.wire.typed.topic_columns import TopicColumn, TopicColumns

SCHEMA = pa.schema(
    [
        pa.field("topic", pa.dictionary(pa.int32(), pa.string())),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", TIMESTAMP),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS),
    ]
)
"""Columns of `RecordBatch.to_arrow` and `Reader.to_arrow`."""


def table_of(decoded_batches: Sequence[DecodedBatch], columns: Sequence[str] | None = None) -> Any:
    """Return a table with one Arrow chunk per decoded batch; values, keys and headers are not copied.

    Args:
        decoded_batches: in the order of the rows.
        columns: names of the columns of a typed topic, or of `METADATA_COLUMNS`; `None` for all of its own.

    Raises:
        InvalidConfigError: If there is no such column.
    """
    if any(each.columns.typed is not None for each in decoded_batches):
        return _typed_table_of(decoded_batches, columns)
    if columns is not None:
        return pa.Table.from_batches([batch_of(decoded) for decoded in decoded_batches], SCHEMA).select(list(columns))
    return pa.Table.from_batches([batch_of(decoded) for decoded in decoded_batches], SCHEMA)


def typed_columns_of(topic_columns: Sequence[TopicColumn], names: Sequence[str] | None) -> list[TopicColumn | str]:
    """Return the columns of a typed table, those of `METADATA_COLUMNS` by name.

    Raises:
        InvalidConfigError: If there is no such column.
    """
    if names is None:
        return list(topic_columns)
    own = TopicColumns(tuple(topic_columns))
    return [name if name in METADATA_COLUMNS else own.by_name(name) for name in names]


def typed_schema(columns: Sequence[TopicColumn | str]) -> Any:
    """Return the schema of a typed table."""
    fields = []
    for column in columns:
        if isinstance(column, str):
            fields.append(SCHEMA.field(column.removeprefix("_")).with_name(column))
        else:
            fields.append(pa.field(column.name, arrow_type(column.type), not column.is_required))
    return pa.schema(fields)


def typed_batch_of(decoded: DecodedBatch, columns: Sequence[TopicColumn | str], schema: Any) -> Any:
    """Return one `pyarrow.RecordBatch` of rows."""
    typed = decoded.columns.typed
    assert typed is not None, "the batch is typed"
    count = decoded.end - decoded.start
    metadata = batch_of(decoded, values=False) if any(isinstance(column, str) for column in columns) else None
    arrays = []
    for column in columns:
        if isinstance(column, str):
            arrays.append(metadata.column(column.removeprefix("_")))  # type: ignore[union-attr]
        else:
            array = typed.array(column)
            arrays.append(array if count == len(array) else array.slice(decoded.start, count))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _typed_table_of(decoded_batches: Sequence[DecodedBatch], names: Sequence[str] | None) -> Any:
    newest = max(decoded_batches, key=lambda decoded: max(column.id for column in decoded.current_columns))
    columns = typed_columns_of(newest.current_columns, names)
    schema = typed_schema(columns)
    return pa.Table.from_batches([typed_batch_of(decoded, columns, schema) for decoded in decoded_batches], schema)


def batch_of(decoded: DecodedBatch, *, values: bool = True) -> Any:
    """Return one `pyarrow.RecordBatch`; without `values` they are null."""
    columns, start, count = decoded.columns, decoded.start, decoded.end - decoded.start
    first_name = pa.Array.from_buffers(pa.int32(), count, [None, zeros(4 * count)])
    topic = pa.DictionaryArray.from_arrays(first_name, _names(decoded.source.topic), safe=False)
    whole = count == columns.record_count
    arrays = [
        columns.to_arrow_timestamps(),
        columns.to_arrow_keys(),
        columns.to_arrow_values() if values else pa.nulls(columns.record_count, pa.binary()),
        columns.to_arrow_headers(),
    ]
    times, keys, payloads, headers = arrays if whole else [array.slice(start, count) for array in arrays]
    partition = _numbers(np.full(count, decoded.source.partition, np.int32), pa.int32())
    offsets = _numbers(columns.offset_array(start, decoded.end), pa.int64())
    return pa.RecordBatch.from_arrays([topic, partition, offsets, times, keys, payloads, headers], schema=SCHEMA)


def _numbers(numbers: npt.NDArray[Any], arrow_type: Any) -> Any:
    """Return an array over the same memory. `pa.array` would import pandas if installed, which takes over a second."""
    return pa.Array.from_buffers(arrow_type, len(numbers), [None, pa.py_buffer(numbers)])


@lru_cache(16)
def _names(name: str) -> Any:
    """Return a string array with one entry."""
    data = name.encode()
    offsets = np.array([0, len(data)], np.int32)
    return pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
