"""Arrow tables over the columns of record batches. Imports pyarrow, so it is imported on first use only."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.client.base.records import METADATA_COLUMNS, DecodedBatch
from headrace.client.base.serializers import (
    ArrayReader,
    Deserializer,
    RowReader,
    TableCodec,
    deserialize,
    table_codec,
)
from headrace.wire.arrow_constants import HEADERS, TIMESTAMP, zeros
from headrace.wire.decoded import BinaryColumn
from headrace.wire.errors import HeadraceError, InvalidRequestError
from headrace.wire.typed.arrow_columns import arrays_of_rows, arrow_type, first_misfit
from headrace.wire.typed.column_types import widens
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
    codec = table_codec(decoded_batches[0].deserializers.value) if decoded_batches else None
    if codec is not None:
        found = _decoded_table_of(decoded_batches, columns, codec)
        if found is not None:
            return found
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


def cast_batch(
    decoded: DecodedBatch,
    batch: Any,
    schema: Any,
    cast: Callable[[Any, Any], Any],
    error_of: Callable[[Any, Any, str, Exception], HeadraceError],
) -> Any:
    """Return the rows of a decoded batch with the types of a schema, by `cast(array, type)`.

    Raises:
        HeadraceError: `error_of(array, field, place, error)`, for a value of which the cast raises ArrowException; the
            place is its partition and offset.
    """
    arrays = []
    for array, field in zip(batch.columns, schema, strict=True):
        try:
            arrays.append(array if array.type == field.type else cast(array, field.type))
        except pa.ArrowException as error:
            row = first_misfit(array, lambda part, kind=field.type: cast(part, kind))  # type: ignore[misc]
            offset = decoded.columns.offset_array(decoded.start, decoded.end)[row]
            raise error_of(array, field, f"{decoded.source} at offset {offset}", error) from None
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _typed_table_of(decoded_batches: Sequence[DecodedBatch], names: Sequence[str] | None) -> Any:
    """Return a table with the newest columns that the reader knows, of types that all values fit.

    Later batches may be returned with newer metadata than earlier ones, and all metadata may be older than a batch.
    """
    newest = max(reversed(decoded_batches), key=lambda decoded: max(column.id for column in decoded.current_columns))
    columns = typed_columns_of(newest.current_columns, names)
    known = {id(each.topic_columns): each.current_columns for each in decoded_batches}
    for current in known.values():
        columns = [each if isinstance(each, str) else _widened(each, current) for each in columns]
    try:
        return _table_with(decoded_batches, columns)
    except InvalidRequestError:  # A value is of a wider type than the metadata have.
        for decoded in decoded_batches:
            typed = decoded.columns.typed
            assert typed is not None, "the batch is typed"
            columns = [each if isinstance(each, str) else typed.widest(each) for each in columns]
        return _table_with(decoded_batches, columns)


def _widened(column: TopicColumn, current: Sequence[TopicColumn]) -> TopicColumn:
    """Return a column with its type among some columns, if that is wider."""
    found = next((each.type for each in current if each.id == column.id), column.type)
    return replace(column, type=found) if found != column.type and widens(column.type, found) else column


def _table_with(decoded_batches: Sequence[DecodedBatch], columns: Sequence[TopicColumn | str]) -> Any:
    schema = typed_schema(columns)
    return pa.Table.from_batches([typed_batch_of(decoded, columns, schema) for decoded in decoded_batches], schema)


def _decoded_table_of(decoded_batches: Sequence[DecodedBatch], names: Sequence[str] | None, codec: TableCodec) -> Any:
    """Return a table with the columns of the values' schema; `None` if they are no rows.

    Raises:
        SerializationError: If a value does not fit; the error has the `partition` and the `offset`.
    """
    values = [_values_of(decoded) for decoded in decoded_batches]
    reader = codec.reader(chain.from_iterable(map(BinaryColumn.to_list, values)))
    if reader is None:
        return None
    own = _decoded_columns(reader)
    columns = typed_columns_of(own.current, names)
    schema = typed_schema(columns)
    wanted = TopicColumns(tuple(column for column in columns if not isinstance(column, str)))
    batches = []
    for decoded, column in zip(decoded_batches, values, strict=True):
        arrays = iter(_decoded_arrays(decoded, column, reader, wanted))
        metadata = batch_of(decoded, values=False) if len(wanted.columns) < len(columns) else None
        batches.append(
            pa.RecordBatch.from_arrays(
                [metadata.column(each[1:]) if isinstance(each, str) else next(arrays) for each in columns],  # type: ignore[union-attr]
                schema=schema,
            )
        )
    return pa.Table.from_batches(batches, schema)


def _decoded_arrays(
    decoded: DecodedBatch, values: BinaryColumn, reader: RowReader, columns: TopicColumns
) -> Sequence[Any]:
    """Return an array for each of some columns of values; raise as `_decoded_table_of`."""
    arrays = reader.arrays(values, columns) if isinstance(reader, ArrayReader) else None
    if arrays is not None:
        return arrays
    places = zip(values.to_list(), decoded.offsets(), strict=True)
    rows = [deserialize(reader.row, entry, "value", decoded.source, at) or {} for entry, at in places]
    try:
        return arrays_of_rows(rows, columns)
    except InvalidRequestError:
        for row, at in zip(rows, decoded.offsets(), strict=True):
            deserialize(partial(_check_row, row, columns), b"", "value", decoded.source, at)
        raise


def _check_row(row: dict[str, Any], columns: TopicColumns, _data: bytes) -> None:
    arrays_of_rows([row], columns)


def empty_table(deserializer: Deserializer | None) -> Any:
    """Return the table of no records of a topic of bytes: with the columns of the deserializer's schema, if known."""
    codec = table_codec(deserializer)
    reader = None if codec is None else codec.reader(())
    return (SCHEMA if reader is None else typed_schema(_decoded_columns(reader).current)).empty_table()


def _decoded_columns(reader: RowReader) -> TopicColumns:
    """Return the columns of a table of decoded values: all may be null, as a record's value may be."""
    return TopicColumns(tuple(replace(column, is_required=False, default="") for column in reader.columns.current))


def _values_of(decoded: DecodedBatch) -> BinaryColumn:
    column = decoded.columns.value_column
    whole = decoded.end - decoded.start == decoded.columns.record_count
    return column if whole else column.part(decoded.start, decoded.end)


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
