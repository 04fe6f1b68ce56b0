"""Columns of a topic as Arrow arrays: types, blocks of a batch, rows.

Imports pyarrow, so it is imported on first use only.
"""

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, time, timedelta
from functools import lru_cache
from operator import index
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.wire.crc import ReadableBuffer
from headrace.wire.errors import CorruptBatchError, InvalidConfigError, InvalidRequestError
from headrace.wire.typed.blocks import BlockArray, day_in, read_block, width_of
from headrace.wire.typed.column_types import INTEGERS, ColumnType
from headrace.wire.typed.topic_columns import TopicColumn, TopicColumns

_SIMPLE = {
    "bool": pa.bool_(),
    **{name: getattr(pa, name)() for name in INTEGERS},
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
}
_NAMES = {arrow: name for name, arrow in _SIMPLE.items()}
_MICROSECONDS = {"s": 1_000_000, "ms": 1_000, "us": 1}
"""By unit; Python has no objects finer than microseconds, and pandas none finer than nanoseconds."""
_TIMES = {"s": pa.time32, "ms": pa.time32, "us": pa.time64, "ns": pa.time64}


@lru_cache(1024)
def arrow_type(column_type: ColumnType) -> Any:
    """Return the Arrow type of a column's type."""
    name, children = column_type.name, [arrow_type(child) for _, child in column_type.children]
    match name:
        case "binary" if column_type.numbers:
            return pa.binary(column_type.numbers[0])
        case "decimal":
            precision, scale = column_type.numbers
            return (pa.decimal128 if precision <= 38 else pa.decimal256)(precision, scale)
        case "time":
            return _TIMES[column_type.unit](column_type.unit)
        case "duration":
            return pa.duration(column_type.unit)
        case "timestamp":
            return pa.timestamp(column_type.unit, column_type.zone or None)
        case "list":
            return pa.list_(children[0])
        case "map":
            return pa.map_(*children)
        case "struct":
            names = [field for field, _ in column_type.children]
            return pa.struct(list(zip(names, children, strict=True)))
        case _:
            return _SIMPLE[name]


def column_type(arrow: Any) -> ColumnType:
    """Return a column's type for an Arrow type; variants of one kind of value have one type.

    Raises:
        InvalidConfigError: If no column can have it.
    """
    types = pa.types
    if types.is_dictionary(arrow):
        return column_type(arrow.value_type)
    if types.is_large_string(arrow) or types.is_string_view(arrow):
        return ColumnType("string")
    if types.is_large_binary(arrow) or types.is_binary_view(arrow):
        return ColumnType("binary")
    if types.is_fixed_size_binary(arrow):
        return ColumnType("binary", (arrow.byte_width,))
    if types.is_date64(arrow):
        return ColumnType("date")
    if types.is_decimal(arrow) and arrow.scale >= 0:
        return ColumnType("decimal", (arrow.precision, arrow.scale))
    if types.is_time(arrow):
        return ColumnType("time", unit=arrow.unit)
    if types.is_duration(arrow):
        return ColumnType("duration", unit=arrow.unit)
    if types.is_timestamp(arrow):
        return ColumnType("timestamp", unit=arrow.unit, zone=arrow.tz or "")
    if types.is_map(arrow):
        return ColumnType("map", children=(("", column_type(arrow.key_type)), ("", column_type(arrow.item_type))))
    if types.is_list(arrow) or types.is_large_list(arrow) or types.is_fixed_size_list(arrow):
        return ColumnType("list", children=(("", column_type(arrow.value_type)),))
    if types.is_struct(arrow) and arrow.num_fields:
        fields = [arrow.field(place) for place in range(arrow.num_fields)]
        return ColumnType("struct", children=tuple((field.name, column_type(field.type)) for field in fields))
    if arrow in _NAMES:
        return ColumnType(_NAMES[arrow])
    raise InvalidConfigError(
        f"columns: {arrow} is no type of a column",
        action="Cast it to one of the types in the reference of the batch format.",
    )


def columns_of(schema: Any) -> TopicColumns:
    """Return columns without ids for an Arrow schema; a field that is not nullable is required."""
    return TopicColumns(
        tuple(TopicColumn(0, field.name, column_type(field.type), is_required=not field.nullable) for field in schema)
    )


def arrow_schema(columns: Iterable[TopicColumn]) -> Any:
    """Return the Arrow schema of columns."""
    return pa.schema([pa.field(each.name, arrow_type(each.type), not each.is_required) for each in columns])


# --- blocks ---


def array_of_block(block: bytes | memoryview, kind: ColumnType, count: int) -> Any:
    """Return the array of a block: a view of the same memory, with every offset and all text checked.

    A time that is not within a day is null: an Arrow array has none, and programs that compute with one fail. Keys of
    maps are never null in Arrow: the entries of such keys are left out.

    Raises:
        CorruptBatchError: If the buffers are not those of the type, or lie about their lengths.
    """
    array = _arrow_array(read_block(block, kind, count))
    try:
        array.validate(full=True)
    except pa.ArrowException as error:
        raise CorruptBatchError(f"the buffers are not those of {kind}: {error}") from error
    return array


def _arrow_array(array: BlockArray) -> Any:
    kind = arrow_type(array.kind)
    known = _within_day(array) if array.kind.name == "time" else array.validity
    validity = None if known is None else pa.py_buffer(known)
    children = [_arrow_array(child) for child in array.children]
    if array.kind.name == "map":
        if children[0].null_count:  # With which Arrow ends the process.
            return _map_without_null_keys(array, children)
        entries = pa.struct([kind.key_field, kind.item_field])
        children = [pa.StructArray.from_buffers(entries, len(children[0]), [None], children=children)]
    return pa.Array.from_buffers(kind, array.count, [validity, *map(pa.py_buffer, array.buffers)], children=children)


def _map_without_null_keys(array: BlockArray, children: Sequence[Any]) -> Any:
    """Return a map of keys and items without the entries whose key is null."""
    known = children[0].is_valid()
    places = np.zeros(len(known) + 1, np.int32)
    np.cumsum(known.to_numpy(zero_copy_only=False), out=places[1:])
    offsets = places[np.frombuffer(array.buffers[0], "<i4")]
    keys, items = (child.filter(known) for child in children)
    validity = None if array.validity is None else pa.py_buffer(array.validity)
    kind = arrow_type(array.kind)
    entries = pa.StructArray.from_arrays([keys, items], fields=[kind.key_field, kind.item_field])
    return pa.Array.from_buffers(kind, array.count, [validity, pa.py_buffer(offsets)], children=[entries])


def _within_day(array: BlockArray) -> ReadableBuffer | None:
    """Return the validity of times without those that are not within a day."""
    stored = np.frombuffer(array.buffers[0], f"<u{width_of(array.kind)}")  # A negative number is a great one.
    within = stored < day_in(array.kind.unit)
    if within.all():
        return array.validity
    if array.validity is not None:
        within &= np.unpackbits(np.frombuffer(array.validity, np.uint8), count=array.count, bitorder="little") > 0
    return np.packbits(within, bitorder="little").data


# --- tables and rows ---


def arrays_of_table(table: Any, columns: TopicColumns) -> list[Any]:
    """Return an array for each current column of a table or a record batch, cast without a loss.

    Columns that the table lacks have their default or null.

    Raises:
        InvalidRequestError: For a column that the topic does not have, lacks, or whose values do not fit.
    """
    names = table.schema.names
    known = {column.name for column in columns.current}
    unknown = [name for name in names if name not in known]
    if unknown or len(set(names)) != len(names):
        raise InvalidRequestError(
            f"the topic has no column {unknown[0]!r}" if unknown else "two columns have the same name",
            action=f"Its columns are {', '.join(sorted(known))}. Drop the column, or add it to the topic.",
        )
    return [_of_table(table, column) for column in columns.current]


def _of_table(table: Any, column: TopicColumn) -> Any:
    arrow = arrow_type(column.type)
    if column.name not in table.schema.names:
        if not column.can_be_absent:
            raise InvalidRequestError(f"the required column {column.name} is missing", action="Give it values.")
        return filled(column, table.num_rows)
    array = table.column(column.name)
    if isinstance(array, pa.ChunkedArray) and array.num_chunks == 1:
        array = array.chunk(0)  # Which combine_chunks would copy.
    elif isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
        if isinstance(array, pa.ChunkedArray):
            array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.nulls(0, array.type)
    if pa.types.is_dictionary(array.type):
        array = array.dictionary.take(array.indices)  # A cast takes no dictionary of lists, maps and structs.
    try:
        found = _fitted(array, column.type)
    except pa.ArrowException as error:
        raise InvalidRequestError(
            f"column {column.name}: {array.type} does not fit {column.type}{_misfit(array, column.type)}",
            action="Give it values of this type." if array.type == arrow else "Cast it first.",
        ) from error
    check_required(found, column)
    return found


def _fitted(array: Any, kind: ColumnType) -> Any:
    """Return an array with a column's type; raise ArrowException if a value does not fit."""
    arrow = arrow_type(kind)
    found = array if array.type == arrow else cast_exactly(array, arrow)
    _check_stored(found, kind)
    return found


def check_required(array: Any, column: TopicColumn) -> None:
    """Raise InvalidRequestError for null in a required column."""
    if column.is_required and array.null_count:
        row = pc.index(array.is_null(), True).as_py()
        raise InvalidRequestError(f"column {column.name} is required, and null in row {row}", action="Give it a value.")


def _misfit(array: Any, kind: ColumnType) -> str:
    """Return the first row that cannot be cast, and why; Arrow itself names any such value, and no row."""
    row = first_misfit(array, lambda part: _fitted(part, kind))
    error = _error_of(lambda part: _fitted(part, kind), array.slice(row, 1))
    return f": {error}" if isinstance(error, pa.ArrowNotImplementedError) else f" in row {row}: {error}"


def first_misfit(array: Any, convert: Callable[[Any], Any]) -> int:
    """Return the first row of an array of which `convert` raises ArrowException; it does so of the whole array."""
    fits, ends = 0, len(array)  # The rows before `fits` can be converted; those before `ends` cannot.
    while ends - fits > 1:
        middle = (fits + ends) // 2
        if _error_of(convert, array.slice(fits, middle - fits)) is None:
            fits = middle
        else:
            ends = middle
    return fits


def _error_of(convert: Callable[[Any], Any], array: Any) -> Exception | None:
    try:
        convert(array)
    except pa.ArrowException as error:
        return error  # type: ignore[no-any-return]
    return None


def cast_exactly(array: Any, arrow: Any) -> Any:
    """Return an array with another type.

    Raises:
        ArrowException: If a value does not fit. Arrow itself drops digits of floats and decimals, at any depth.
    """
    found = array.cast(arrow)
    _check_numbers(array, found)
    return found


def _check_numbers(before: Any, after: Any) -> None:
    """Compare numbers with what is left of them; NaN and infinities have no digits to lose."""
    if pa.types.is_nested(before.type):
        for part_before, part_after in zip(_parts(before), _parts(after), strict=True):
            _check_numbers(part_before, part_after)
    elif _has_digits(before.type) and _has_digits(after.type) and before.type != after.type:
        changes = pc.not_equal(after.cast(before.type, safe=False), before)
        if pa.types.is_floating(before.type):
            changes = pc.and_(changes, pc.invert(pc.is_nan(before)))
        row = pc.index(changes, True).as_py()
        if row >= 0:
            raise pa.ArrowInvalid(f"{before[row]} would become {after[row]}")


def _parts(array: Any) -> list[Any]:
    """Return the arrays of which a nested one is made."""
    if pa.types.is_struct(array.type):
        return array.flatten()  # type: ignore[no-any-return]
    if pa.types.is_map(array.type):
        first, end = array.offsets[0].as_py(), array.offsets[-1].as_py()
        return [part.slice(first, end - first) for part in (array.keys, array.items)]
    return [array.flatten()]


def _check_stored(array: Any, kind: ColumnType) -> None:
    """Raise ArrowInvalid for a value that readers refuse, at any depth; Arrow itself takes any number and any bytes."""
    if kind.name in {"time", "decimal"} or (kind.name == "string" and not _is_ascii(array)):
        array.validate(full=True)
    elif kind.name == "struct":
        for place, (_, child) in enumerate(kind.children):
            _check_stored(array.field(place), child)
    elif kind.children and len(array):
        first, end = array.offsets[0].as_py(), array.offsets[-1].as_py()
        parts = (array.keys, array.items) if kind.name == "map" else (array.values,)
        for part, (_, child) in zip(parts, kind.children, strict=True):
            _check_stored(part.slice(first, end - first), child)


def _is_ascii(texts: Any) -> bool:
    """Return whether an array of strings has ASCII alone: Arrow takes ten times as long to find that it is UTF-8."""
    _, offsets, data = texts.buffers()
    if not len(texts) or data is None:
        return True
    first, end = np.frombuffer(offsets, np.int32, len(texts) + 1, 4 * texts.offset)[[0, -1]].tolist()
    return bool(end == first or np.frombuffer(data, np.uint8, end - first, first).max() < 128)


def _has_digits(arrow: Any) -> bool:
    return bool(pa.types.is_floating(arrow) or pa.types.is_decimal(arrow))


def filled(column: TopicColumn, count: int) -> Any:
    """Return an array for rows that lack the column: its default, or null."""
    arrow = arrow_type(column.type)
    if not column.default:
        return pa.nulls(count, arrow)
    return pa.repeat(pa.scalar(column.default_value, arrow), count)


def arrays_of_rows(rows: Sequence[Mapping[str, Any]], columns: TopicColumns) -> list[Any]:
    """Return an array for each current column of rows; a value that a row lacks is its default, or null.

    Null is not refused in a required column: a record without a value is a row without any.

    Raises:
        InvalidRequestError: For a value that does not fit; the message has the row, the column and the value.
    """
    return [_of_rows(rows, column) for column in columns.current]


def _of_rows(rows: Sequence[Mapping[str, Any]], column: TopicColumn) -> Any:
    default = column.default_value
    values = [row.get(column.name, default) for row in rows]
    arrow = arrow_type(column.type)
    try:
        array = pa.array(values, arrow, from_pandas=False)
        _check_stored(array, column.type)
        return array
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        for place, value in enumerate(values):
            check_value(column, value, f"row {place}: ")
        raise


def _is_null(column: TopicColumn, where: str) -> InvalidRequestError:
    return InvalidRequestError(f"{where}column {column.name} is required, and null", action="Give it a value.")


def check_row(row: Mapping[str, Any], columns: TopicColumns) -> None:
    """Check that a row fits the columns.

    Raises:
        InvalidRequestError: If not; the message has the column and the value.
    """
    names = {column.name for column in columns.current}
    for name in row:
        if name not in names:
            raise InvalidRequestError(
                f"the topic has no column {name!r}", action=f"Its columns are {', '.join(sorted(names))}."
            )
    for column in columns.current:
        value = row.get(column.name, column.default_value)
        if value is None and column.is_required:
            raise _is_null(column, "")
        check_value(column, value, "")


def array_of_value(value: Any, kind: ColumnType) -> Any:
    """Return an array of one value.

    Raises:
        ArrowException, TypeError, ValueError, OverflowError: If it is none of the type. pyarrow alone cuts fractions of
            numbers, and times that are finer than the type.
    """
    _check_whole(value, kind)
    return pa.array([value], arrow_type(kind))


def is_finer(value: Any, kind: ColumnType) -> bool:
    """Return whether a value is a time that is finer than a type of dates, times, durations or timestamps."""
    if kind.name == "date":
        return isinstance(value, datetime) and value.time() != time.min
    if kind.unit not in _MICROSECONDS:
        return False
    plural = "s" if isinstance(value, timedelta) else ""
    micros = getattr(value, f"microsecond{plural}", 0)
    nanos = getattr(value, f"nanosecond{plural}", 0)  # As pandas has them.
    return bool(nanos or micros % _MICROSECONDS[kind.unit])


def _check_whole(value: Any, kind: ColumnType) -> None:
    """Raise TypeError or ValueError for a value of which the type has only a part, at any depth."""
    if value is None:
        return
    if kind.name in INTEGERS:
        index(value)
    elif kind.name == "float":
        if isinstance(value, float):
            struct.pack("<f", value)  # OverflowError: Arrow makes it infinite.
    elif kind.name == "date" or kind.unit:
        if is_finer(value, kind):
            raise ValueError("it has a time" if kind.name == "date" else f"it is finer than {kind.unit}")
    elif kind.name == "list":
        for each in value:
            _check_whole(each, kind.children[0][1])
    elif kind.name == "map":
        for pair in value.items() if isinstance(value, Mapping) else value:
            for each, (_, child) in zip(pair, kind.children, strict=True):
                _check_whole(each, child)
    elif kind.name == "struct" and isinstance(value, Mapping):
        for name, child in kind.children:
            _check_whole(value.get(name), child)


def check_value(column: TopicColumn, value: Any, where: str) -> None:
    """Raise `InvalidRequestError` if a value does not fit its column."""
    kind = type(value)
    if value is None or kind is _EXACT.get(column.type.name):
        return
    if kind is int and column.type.name in _RANGES and value in _RANGES[column.type.name]:
        return
    try:
        array = array_of_value(value, column.type)
        _check_stored(array, column.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InvalidRequestError(
            f"{where}column {column.name}: {value!r:.80} is no {column.type}: {error}",
            action="Give it a value of this type.",
        ) from error
    if column.is_required and array.null_count:  # As of a NaT, which is not `None`.
        raise _is_null(column, where)


_EXACT: dict[str, type] = {"string": str, "double": float, "bool": bool}
_RANGES = {
    name: range(2**bits) if name.startswith("u") else range(-(2 ** (bits - 1)), 2 ** (bits - 1))
    for name, bits in ((name, int(name.lstrip("uint"))) for name in INTEGERS)
}
