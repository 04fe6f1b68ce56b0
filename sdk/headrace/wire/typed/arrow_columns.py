"""Columns of a topic as Arrow arrays: types, blocks of a batch, rows.

Imports pyarrow, so it is imported on first use only.
"""

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from math import isnan
from operator import index
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.wire.crc import ReadableBuffer
from headrace.wire.errors import CorruptBatchError, InvalidConfigError, InvalidRequestError
from headrace.wire.typed.blocks import NUMBERS, BlockArray, read_block, width_of
from headrace.wire.typed.column_types import INTEGERS, ColumnType
from headrace.wire.typed.payload import DOUBLE, INT64, NO_BOUNDS, TEXT, UINT64, ColumnBlock
from headrace.wire.typed.topic_columns import TopicColumn, TopicColumns

_ZEROS = bytes(8)
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
_TIMES = {"s": pa.time32, "ms": pa.time32, "us": pa.time64, "ns": pa.time64}
_INT64_BOUNDS = {*INTEGERS, "bool", "date", "time", "duration", "timestamp"} - {"uint64"}


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


def block_of_array(array: Any, kind: ColumnType) -> ColumnBlock:
    """Return the block of an array: views of its buffers, which must not change while the block is in use."""
    buffers: list[ReadableBuffer] = []
    _collect(array, buffers)
    counts = [buffer.nbytes if isinstance(buffer, memoryview) else len(buffer) for buffer in buffers]
    sizes = struct.pack(f"<{len(counts)}I", *counts)
    parts: list[ReadableBuffer] = [sizes + _ZEROS[: -len(sizes) % 8]]
    size = len(parts[0])
    for buffer, count in zip(buffers, counts, strict=True):
        if count:
            parts.append(buffer)
            size += count
        if gap := -count % 8:
            parts.append(_ZEROS[:gap])
            size += gap
    return ColumnBlock(parts, size, array.null_count, *bounds_of(array, kind))


def _collect(array: Any, buffers: list[ReadableBuffer]) -> None:
    """Append the buffers of an array, cut to its part of them."""
    kind, start, count = array.type, array.offset, len(array)
    found = array.buffers()
    buffers.append(_bits(found[0], start, count) if array.null_count else b"")
    if pa.types.is_struct(kind):
        for place in range(kind.num_fields):
            _collect(array.field(place), buffers)
    elif pa.types.is_boolean(kind):
        buffers.append(_bits(found[1], start, count))
    elif kind.num_fields or pa.types.is_string(kind) or pa.types.is_binary(kind):
        offsets = np.frombuffer(found[1], np.int32, count + 1, 4 * start) if found[1] else np.zeros(count + 1, np.int32)
        first, last = int(offsets[0]), int(offsets[-1])
        buffers.append(np.ascontiguousarray(offsets - first if first else offsets, "<i4").data.cast("B"))
        if not kind.num_fields:
            buffers.append(memoryview(found[2])[first:last] if last > first else b"")
        elif pa.types.is_map(kind):
            buffers.append(b"")
            for child in (array.keys, array.items):
                _collect(child.slice(first, last - first), buffers)
        else:
            _collect(array.values.slice(first, last - first), buffers)
    else:
        width = kind.bit_width // 8
        buffers.append(memoryview(found[1])[start * width : (start + count) * width] if count else b"")


def _bits(buffer: Any, start: int, count: int) -> ReadableBuffer:
    if start % 8 == 0 and count % 8 == 0:
        return memoryview(buffer)[start // 8 : (start + count) // 8]
    bits = np.unpackbits(np.frombuffer(buffer, np.uint8), bitorder="little")[start : start + count]
    return np.packbits(bits, bitorder="little").data


def bounds_of(array: Any, kind: ColumnType) -> tuple[int, bytes, bytes]:
    """Return the kind of bounds of an array, its minimum and its maximum."""
    if array.null_count == len(array) or (kind.name not in _INT64_BOUNDS and kind.name not in _PACKED):
        return NO_BOUNDS, _ZEROS, _ZEROS
    if array.null_count == 0 and kind.name in _TEXTS and not kind.numbers:
        return TEXT, *_text_bounds(array)
    width = width_of(kind)
    if array.null_count == 0 and width and kind.name not in _TEXTS:
        dtype = NUMBERS.get(kind.name) or np.dtype(f"<i{width}")
        values = np.frombuffer(array.buffers()[1], dtype, len(array), array.offset * width)
        # Four times as fast as Arrow's; methods of the array would be a call more each.
        lowest, highest = np.minimum.reduce(values).item(), np.maximum.reduce(values).item()
    if array.null_count or not width or kind.name in _TEXTS or isnan(lowest) or isnan(highest):
        found = pc.min_max(_as_int64(array) if kind.name in _INT64_BOUNDS else array)
        lowest, highest = found["min"].as_py(), found["max"].as_py()
    if lowest is None or (isinstance(lowest, float) and (isnan(lowest) or isnan(highest))):
        return NO_BOUNDS, _ZEROS, _ZEROS
    bounds, pack = _PACKED.get(kind.name, (INT64, struct.Struct("<q").pack))
    return bounds, pack(lowest), pack(highest)


def _text_bounds(array: Any) -> tuple[bytes, bytes]:
    """Return the bounds of texts without null: the first 8 bytes of each as one number, an eighth of Arrow's time.

    The least of the first bytes are the first bytes of the least text.
    """
    _, ends, buffer = array.buffers()
    offsets = np.frombuffer(ends, np.int32, len(array) + 1, 4 * array.offset)
    starts, data = offsets[:-1].astype(np.intp), np.frombuffer(buffer or b"", np.uint8)
    if starts[-1] + 8 > len(data):  # The last ones have fewer than 8 bytes to the end of the data.
        data, starts = np.concatenate((data[starts[0] : offsets[-1]], np.zeros(8, np.uint8))), starts - starts[0]
    # Of untyped bytes, because numpy checks the alignment of each number.
    heads = np.ndarray(len(data) - 7, "V8", data, strides=(1,))[starts].view("<u8")
    lengths = offsets[1:] - offsets[:-1]
    if np.minimum.reduce(lengths) < 8:
        heads &= _FIRST_BYTES.take(lengths, mode="clip")
    heads = heads.byteswap(inplace=True)
    lowest, highest = int(np.minimum.reduce(heads)), int(np.maximum.reduce(heads))
    return lowest.to_bytes(8, "big"), highest.to_bytes(8, "big")


_TEXTS = frozenset({"string", "binary"})
_FIRST_BYTES = np.array([2 ** (8 * count) - 1 for count in range(9)], np.uint64)
"""By the number of bytes of a text: what is kept of 8."""


def _as_int64(array: Any) -> Any:
    """Return times as the numbers that Arrow stores."""
    kind = array.type
    if pa.types.is_date32(kind) or pa.types.is_time32(kind):
        array = array.view(pa.int32())
    elif pa.types.is_temporal(kind):
        array = array.view(pa.int64())
    return array.cast(pa.int64())


def text_bound(value: str | bytes) -> bytes:
    """Return the bound of kind TEXT of a string or bytes."""
    encoded = value.encode() if isinstance(value, str) else value
    return encoded[:8].ljust(8, b"\0")


def double_bound(value: float) -> bytes:
    """Return the bound of kind DOUBLE; zero has one sign."""
    return struct.pack("<d", value + 0.0)


_PACKED: dict[str, tuple[int, Callable[[Any], bytes]]] = {
    "uint64": (UINT64, struct.Struct("<Q").pack),
    "float": (DOUBLE, double_bound),
    "double": (DOUBLE, double_bound),
    "string": (TEXT, text_bound),
    "binary": (TEXT, text_bound),
}


def array_of_block(block: bytes | memoryview, kind: ColumnType, count: int) -> Any:
    """Return the array of a block: a view of the same memory, with every offset and all text checked.

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
    validity = None if array.validity is None else pa.py_buffer(array.validity)
    children = [_arrow_array(child) for child in array.children]
    if array.kind.name == "map":
        entries = pa.struct([kind.key_field, kind.item_field])
        children = [pa.StructArray.from_buffers(entries, len(children[0]), [None], children=children)]
    return pa.Array.from_buffers(kind, array.count, [validity, *map(pa.py_buffer, array.buffers)], children=children)


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
    if array.type != arrow:
        try:
            array = array.cast(arrow)
        except pa.ArrowException as error:
            raise InvalidRequestError(
                f"column {column.name}: {array.type} does not fit {column.type}: {error}", action="Cast it first."
            ) from error
    if column.is_required and array.null_count:
        row = pc.index(array.is_null(), True).as_py()
        raise InvalidRequestError(f"column {column.name} is required, and null in row {row}", action="Give it a value.")
    return array


def filled(column: TopicColumn, count: int) -> Any:
    """Return an array for rows that lack the column: its default, or null."""
    arrow = arrow_type(column.type)
    if not column.default:
        return pa.nulls(count, arrow)
    return pa.repeat(pa.scalar(column.default_value, arrow), count)


def arrays_of_rows(rows: Sequence[Mapping[str, Any]], columns: TopicColumns) -> list[Any]:
    """Return an array for each current column of rows; a value that a row lacks is its default, or null.

    Raises:
        InvalidRequestError: For a value that does not fit; the message has the row, the column and the value.
    """
    return [_of_rows(rows, column) for column in columns.current]


def _of_rows(rows: Sequence[Mapping[str, Any]], column: TopicColumn) -> Any:
    default = column.default_value
    values = [row.get(column.name, default) for row in rows]
    arrow = arrow_type(column.type)
    try:
        return pa.array(values, arrow, from_pandas=False)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        for place, value in enumerate(values):
            check_value(column, value, f"row {place}: ")
        raise


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
            raise InvalidRequestError(f"column {column.name} is required, and null", action="Give it a value.")
        check_value(column, value, "")


def array_of_value(value: Any, kind: ColumnType) -> Any:
    """Return an array of one value.

    Raises:
        ArrowException, TypeError, ValueError, OverflowError: If it is none of the type. pyarrow alone cuts fractions.
    """
    _check_whole(value, kind)
    return pa.array([value], arrow_type(kind))


def _check_whole(value: Any, kind: ColumnType) -> None:
    """Raise TypeError for a number with a fraction where a whole one is expected, at any depth."""
    if value is None:
        return
    if kind.name in INTEGERS:
        index(value)
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
        array_of_value(value, column.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InvalidRequestError(
            f"{where}column {column.name}: {value!r:.80} is no {column.type}: {error}",
            action="Give it a value of this type.",
        ) from error


_EXACT: dict[str, type] = {"string": str, "double": float, "bool": bool}
_RANGES = {
    name: range(2**bits) if name.startswith("u") else range(-(2 ** (bits - 1)), 2 ** (bits - 1))
    for name, bits in ((name, int(name.lstrip("uint"))) for name in INTEGERS)
}
