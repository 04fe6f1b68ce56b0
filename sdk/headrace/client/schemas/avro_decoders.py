"""Decoders of the fields of Avro values, by schema: each reads a field of all values, and returns its Arrow array.

Imports pyarrow, so it is imported on first use only.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.client.schemas.avro_columns import column_type_of
from headrace.client.schemas.avro_cursor import Int64s, NotDecodedError, ValueCursor
from headrace.wire.errors import InvalidConfigError
from headrace.wire.typed.arrow_columns import arrow_type

MAX_ITEMS = 256
"""Items of an array or a map in one value, each of which is a step."""
_DAY = {"ms": 86_400_000, "us": 86_400_000_000}
Decoder = Callable[[ValueCursor, bool], Any]
"""Reads a field of all values; returns its array, or `None` if it is not wanted."""


def decoder_of(schema: Any, named: Mapping[str, Any], inside: tuple[str, ...]) -> Decoder:
    """Return the decoder of a field.

    Args:
        schema: of the writer, parsed by fastavro.
        named: schemas of named types, by full name.
        inside: full names of the records that the field is in.

    Raises:
        NotDecodedError: If values of this schema are decoded one by one.
    """
    if isinstance(schema, list):
        return _union(schema, named, inside)
    if isinstance(schema, str) and schema in named:
        if schema in inside:
            raise NotDecodedError
        schema = named[schema]
    parts: Mapping[str, Any] = {"type": schema} if isinstance(schema, str) else schema
    kind = parts["type"]
    if isinstance(kind, dict | list):
        return decoder_of(kind, named, inside)
    if kind == "null":
        return lambda cursor, _wanted: pa.nulls(len(cursor))
    if kind in {"array", "map", "record", "error"}:
        return _NESTED[kind](parts, named, inside)
    try:
        arrow = arrow_type(column_type_of("", schema, named))
    except InvalidConfigError as error:
        raise NotDecodedError from error
    if pa.types.is_decimal(arrow):
        return _decimal(arrow, int(parts["size"]) if kind == "fixed" else 0)
    match kind:
        case "boolean":
            return lambda cursor, _wanted: _bools(cursor)
        case "int" | "long":
            return lambda cursor, _wanted: _integers(cursor, arrow)
        case "float" | "double":
            dtype = "<f4" if kind == "float" else "<f8"
            return lambda cursor, _wanted: _array(arrow, len(cursor), cursor.numbers(dtype))
        case "string" | "bytes":
            return lambda cursor, wanted: _texts(cursor, arrow, cursor.longs(), wanted)
        case "fixed":
            return lambda cursor, wanted: _fixed(cursor, arrow, wanted)
        case "enum":
            symbols = pa.array(parts["symbols"], pa.string())
            return lambda cursor, _wanted: _symbols(cursor, symbols)
    raise NotDecodedError


def _array(arrow: Any, count: int, *buffers: npt.NDArray[Any]) -> Any:
    return pa.Array.from_buffers(arrow, count, [None, *map(pa.py_buffer, buffers)])


def _bools(cursor: ValueCursor) -> Any:
    found = cursor.bytes()
    if (found > 1).any():
        raise NotDecodedError
    return _array(pa.bool_(), len(cursor), np.packbits(found.astype(np.bool_), bitorder="little"))


def _integers(cursor: ValueCursor, arrow: Any) -> Any:
    found = cursor.longs()
    if pa.types.is_time(arrow) and len(found) and (found.min() < 0 or found.max() >= _DAY[arrow.unit]):
        raise NotDecodedError
    if arrow.bit_width == 64:
        return _array(arrow, len(found), found)
    narrow = found.astype(np.int32)
    if (narrow != found).any():
        raise NotDecodedError
    return _array(arrow, len(found), narrow)


def _texts(cursor: ValueCursor, arrow: Any, sizes: Int64s, wanted: bool) -> Any:
    offsets, data = cursor.texts(sizes, wanted=wanted)
    return _array(arrow, len(cursor), offsets, data) if wanted else None


def _fixed(cursor: ValueCursor, arrow: Any, wanted: bool) -> Any:
    _, data = cursor.texts(np.full(len(cursor), arrow.byte_width, np.int64), wanted=wanted)
    return _array(arrow, len(cursor), data) if wanted else None


def _symbols(cursor: ValueCursor, symbols: Any) -> Any:
    found = cursor.longs()
    if ((found < 0) | (found >= len(symbols))).any():
        raise NotDecodedError
    return symbols.take(_array(pa.int64(), len(found), found))


def _decimal(arrow: Any, size: int) -> Decoder:
    """Decode decimals of `size` bytes each, or of stated sizes if it is 0."""

    def decode(cursor: ValueCursor, _wanted: bool) -> Any:
        sizes = np.full(len(cursor), size, np.int64) if size else cursor.longs()
        return _array(arrow, len(cursor), cursor.whole_numbers(sizes, arrow.bit_width // 8))

    return decode


def _union(branches: Sequence[Any], named: Mapping[str, Any], inside: tuple[str, ...]) -> Decoder:
    """Decode a union of null and one type."""
    if len(branches) != 2 or "null" not in branches or branches[0] == branches[1]:
        raise NotDecodedError
    null = branches.index("null")
    inner = decoder_of(branches[1 - null], named, inside)

    def decode(cursor: ValueCursor, wanted: bool) -> Any:
        branch = cursor.longs()
        if ((branch < 0) | (branch > 1)).any():
            raise NotDecodedError
        valid = branch != null
        if valid.all():
            return inner(cursor, wanted)
        chosen = np.flatnonzero(valid)
        part = cursor.part(chosen)
        found = inner(part, wanted)
        cursor.put(chosen, part)
        return take(found, np.maximum(np.cumsum(valid) - 1, 0), valid) if wanted else None

    return decode


def _record(parts: Mapping[str, Any], named: Mapping[str, Any], inside: tuple[str, ...]) -> Decoder:
    within = (*inside, parts["name"])
    decoders = {each["name"]: decoder_of(each["type"], named, within) for each in parts["fields"]}

    def decode(cursor: ValueCursor, wanted: bool) -> Any:
        found = [each(cursor, wanted) for each in decoders.values()]
        return pa.StructArray.from_arrays(found, list(decoders)) if wanted and found else None

    return decode


def _list(parts: Mapping[str, Any], named: Mapping[str, Any], inside: tuple[str, ...]) -> Decoder:
    inner = decoder_of(parts["items"], named, inside)

    def decode(cursor: ValueCursor, wanted: bool) -> Any:
        offsets, items = _items(cursor, inner, wanted)
        return pa.ListArray.from_arrays(offsets, items) if wanted else None

    return decode


def _map(parts: Mapping[str, Any], named: Mapping[str, Any], inside: tuple[str, ...]) -> Decoder:
    value = decoder_of(parts["values"], named, inside)

    def entry(cursor: ValueCursor, wanted: bool) -> Any:
        key, found = _texts(cursor, pa.string(), cursor.longs(), wanted), value(cursor, wanted)
        return pa.StructArray.from_arrays([key, found], ["key", "value"]) if wanted else None

    def decode(cursor: ValueCursor, wanted: bool) -> Any:
        offsets, entries = _items(cursor, entry, wanted)
        return pa.MapArray.from_arrays(offsets, entries.field(0), entries.field(1)) if wanted else None

    return decode


def _items(cursor: ValueCursor, inner: Decoder, wanted: bool) -> tuple[Any, Any]:
    """Read the items of each: the first of all, the second of all, and so on; return their offsets and the items.

    Items are in blocks: a count, then as many items, until a count of 0. With a negative count there is a size, too.
    """
    counts = np.zeros(len(cursor), np.int64)
    rows, pieces = [np.zeros(0, np.int64)], [inner(cursor.part(counts[:0]), wanted)]
    unread = np.arange(len(cursor))
    while len(unread):
        part = cursor.part(unread)
        block = part.longs()
        sized = np.flatnonzero(block < 0)
        if len(sized):
            with_size = part.part(sized)
            with_size.longs()
            part.put(sized, with_size)
            block[sized] = -block[sized]
        cursor.put(unread, part)
        unread, block = unread[block != 0], block[block != 0]
        if len(unread) and (block.max() > MAX_ITEMS or block.min() < 0):
            raise NotDecodedError
        for step in range(int(block.max()) if len(block) else 0):
            here = unread[block > step]
            part = cursor.part(here)
            pieces.append(inner(part, wanted))
            cursor.put(here, part)
            rows.append(here)
        counts[unread] += block
    offsets = np.zeros(len(cursor) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    if not wanted:
        return None, None
    order = np.argsort(np.concatenate(rows), kind="stable")
    return _array(pa.int32(), len(offsets), offsets), pa.concat_arrays(pieces).take(
        _array(pa.int64(), len(order), order)
    )


_NESTED: dict[str, Callable[[Mapping[str, Any], Mapping[str, Any], tuple[str, ...]], Decoder]] = {
    "array": _list,
    "map": _map,
    "record": _record,
    "error": _record,
}


def take(array: Any, places: Int64s, valid: npt.NDArray[np.bool_]) -> Any:
    """Return the entries at some places, null where `valid` is not set."""
    buffers = [pa.py_buffer(np.packbits(valid, bitorder="little")), pa.py_buffer(places)]
    return array.take(pa.Array.from_buffers(pa.int64(), len(places), buffers))
