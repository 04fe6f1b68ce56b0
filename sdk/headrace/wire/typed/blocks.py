"""Buffers of a block, and their values as Python objects; `headrace.wire.typed.payload` has the layout."""

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal
from itertools import compress, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.wire.errors import CorruptBatchError
from headrace.wire.typed.column_types import INTEGERS, ColumnType, zone_of
from headrace.wire.typed.payload import DOUBLE, INT64, TEXT, UINT64

NUMBERS: dict[str, np.dtype[Any]] = {
    **{name: np.dtype(name).newbyteorder("<") for name in INTEGERS},
    "float": np.dtype("<f4"),
    "double": np.dtype("<f8"),
}
"""Types of numbers, as numpy has them."""
INT64_BOUNDS = frozenset({*INTEGERS, "bool", "date", "time", "duration", "timestamp"} - {"uint64"})
"""Types whose bounds are of kind INT64."""
VALUE_BYTES, NESTED_BYTES = 64, 256
"""Memory of a value with its place in a list, and of a dict or a list."""
JSON_FACTOR = 8
"""Bytes of JSON and of the object for each byte of text."""
PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_EPOCH = datetime(1970, 1, 1)
_DIGITS = Context(prec=80)
"""More than the digits of any decimal: Python's default of 28 rounds."""


@dataclass(frozen=True, slots=True)
class BlockArray:
    """Array of a block or of a part of one: views of its buffers."""

    kind: ColumnType
    count: int
    validity: memoryview | None
    buffers: list[memoryview] = field(default_factory=list)
    """Offsets, then data; only data of a type of one width; nothing of a struct."""
    children: "list[BlockArray]" = field(default_factory=list)
    """Of a map: its keys and its items."""


def read_block(block: bytes | memoryview, kind: ColumnType, count: int) -> BlockArray:
    """Read the buffers of a block of `count` entries; the sizes and the ends of offsets are checked.

    Raises:
        CorruptBatchError: If the buffers are not those of the type, or lie about their lengths.
    """
    reader = _BlockReader(memoryview(block).cast("B"), _buffer_count(kind))
    found = reader.array(kind, count)
    reader.finish()
    return found


def width_of(kind: ColumnType) -> int:
    """Return the bytes of a value of a type of one width; 0 for others, and for bool."""
    match kind.name:
        case "date":
            return 4
        case "time":
            return 4 if kind.unit in {"s", "ms"} else 8
        case "duration" | "timestamp":
            return 8
        case "decimal":
            return 16 if kind.numbers[0] <= 38 else 32
        case "binary":
            return kind.numbers[0] if kind.numbers else 0
        case _:
            return NUMBERS[kind.name].itemsize if kind.name in NUMBERS else 0


def day_in(unit: str) -> int:
    """Return the length of a day in a unit of times."""
    return 86_400 * PER_SECOND[unit]


def has_bounds(kind: ColumnType) -> bool:
    """Return whether blocks of a type have bounds."""
    return kind.name in INT64_BOUNDS or kind.name in _BOUNDS


def pack_bounds(kind: ColumnType, lowest: Any, highest: Any) -> tuple[int, bytes, bytes]:
    """Return the kind of bounds of a type that has some, and both bounds; those of times as they are stored."""
    bounds, pack = _BOUNDS.get(kind.name, _INT64)
    return bounds, pack(lowest), pack(highest)


def _pack_text(value: str | bytes) -> bytes:
    return (value.encode() if isinstance(value, str) else value)[:8].ljust(8, b"\0")


def _pack_double(value: float) -> bytes:
    return struct.pack("<d", value + 0.0)  # Zero has one sign.


_INT64: tuple[int, Callable[[Any], bytes]] = (INT64, struct.Struct("<q").pack)
_BOUNDS: dict[str, tuple[int, Callable[[Any], bytes]]] = {
    "uint64": (UINT64, struct.Struct("<Q").pack),
    "float": (DOUBLE, _pack_double),
    "double": (DOUBLE, _pack_double),
    "string": (TEXT, _pack_text),
    "binary": (TEXT, _pack_text),
}


def _buffer_count(kind: ColumnType) -> int:
    children = sum(_buffer_count(child) for _, child in kind.children)
    own = {"struct": 1, "map": 3, "string": 3, "binary": 2 if kind.numbers else 3}
    return own.get(kind.name, 2) + children


class _BlockReader:
    """Takes the buffers off a block in order."""

    def __init__(self, block: memoryview, buffers: int) -> None:
        if len(block) < 4 * buffers:
            raise CorruptBatchError("the block is cut off")
        self._block = block
        self._sizes: Iterator[int] = iter(struct.unpack_from(f"<{buffers}I", block))
        self._position = -(-4 * buffers // 8) * 8

    def _take(self, expected: int | None = None) -> memoryview:
        size = next(self._sizes)
        start, end = self._position, self._position + size
        if end > len(self._block):
            raise CorruptBatchError(f"a buffer of {size} bytes at {start} is past the block's {len(self._block)}")
        if expected is not None and size != expected:
            raise CorruptBatchError(f"a buffer has {size} bytes, not {expected}")
        self._position = end + -end % 8
        return self._block[start:end]

    def array(self, kind: ColumnType, count: int) -> BlockArray:
        """Return the next array of `count` entries."""
        validity = self._take()
        if len(validity) not in {0, (count + 7) // 8}:
            raise CorruptBatchError(f"a validity has {len(validity)} bytes for {count} entries")
        found = BlockArray(kind, count, validity if len(validity) else None)
        if kind.name == "bool":
            found.buffers.append(self._take((count + 7) // 8))
        elif width := width_of(kind):
            found.buffers.append(self._take(count * width))
        elif kind.name == "struct":
            found.children.extend(self.array(child, count) for _, child in kind.children)
        else:
            offsets, last = self._offsets(count)
            found.buffers.append(offsets)
            if not kind.children:
                found.buffers.append(self._take(last))
            elif kind.name == "map" and len(self._take()):
                raise CorruptBatchError("the entries of a map have a validity")
            found.children.extend(self.array(child, last) for _, child in kind.children)
        return found

    def _offsets(self, count: int) -> tuple[memoryview, int]:
        """Take the offsets of `count` entries; return them and the last one. They ascend from 0."""
        taken = self._take(4 * (count + 1))
        offsets = np.frombuffer(taken, "<i4")
        if offsets[0] != 0 or (offsets[1:] < offsets[:-1]).any():
            raise CorruptBatchError("offsets do not ascend from 0")
        return taken, int(offsets[-1])

    def finish(self) -> None:
        """Check that nothing is left."""
        if self._position != len(self._block) + -len(self._block) % 8:
            raise CorruptBatchError(f"the block has {len(self._block) - self._position} bytes more than its buffers")


def values_of(array: BlockArray) -> list[Any]:
    """Return the values as Python objects, `None` for null.

    Numbers, str, bytes, Decimal, date, time, timedelta and datetime (aware if the type has a zone). For times in ns
    Python has no type, and none for dates and times outside the years 1 to 9999, times that are not within a day and
    longer durations: these are the stored whole numbers, in the unit of the type, of dates in days since 1970. Lists
    are lists, structs and maps dicts; of keys that a map repeats, a dict has the last. A map with nested keys, as old
    topics may have, is a list of pairs.

    Raises:
        CorruptBatchError: If text is not UTF-8, or a decimal has more digits than its type.
        InvalidConfigError: If this machine does not have the time zone.
    """
    try:
        values = _values(array)
    except (UnicodeDecodeError, OverflowError, ValueError) as error:
        raise CorruptBatchError(f"a value is no {array.kind}: {error}") from error
    if array.validity is None:
        return values
    return [value if is_valid else None for value, is_valid in zip(values, _valid(array), strict=True)]


def object_bytes(array: BlockArray) -> int:
    """Return about the most memory of the values as Python objects and as JSON together; nothing is created."""
    each = NESTED_BYTES if array.kind.children else VALUE_BYTES
    names = sum(len(name) for name, _ in array.kind.children)
    own = array.count * (each + names) + JSON_FACTOR * sum(map(len, array.buffers))
    return own + sum(map(object_bytes, array.children))


def _valid(array: BlockArray) -> list[bool]:
    assert array.validity is not None
    bits = np.frombuffer(array.validity, np.uint8)
    found: list[bool] = np.unpackbits(bits, count=array.count, bitorder="little").astype(np.bool_).tolist()
    return found


def _values(array: BlockArray) -> list[Any]:
    kind, name = array.kind, array.kind.name
    if name == "struct":
        names = [field_name for field_name, _ in kind.children]
        rows = zip(*map(values_of, array.children), strict=True)
        return [dict(zip(names, row, strict=True)) for row in rows]
    if name == "bool":
        bits = np.frombuffer(array.buffers[0], np.uint8)
        found: list[Any] = np.unpackbits(bits, count=array.count, bitorder="little").astype(np.bool_).tolist()
        return found
    if name in NUMBERS:
        numbers: list[Any] = np.frombuffer(array.buffers[0], NUMBERS[name]).tolist()
        return numbers
    if width_of(kind):
        return _of_one_width(array)
    spans = list(pairwise(np.frombuffer(array.buffers[0], "<i4").tolist()))
    if name == "list":
        inner = values_of(array.children[0])
        return [inner[start:end] for start, end in spans]
    if name == "map":
        keys, items = map(values_of, array.children)
        collect = list if kind.children[0][1].children else dict
        return [collect(zip(keys[start:end], items[start:end], strict=True)) for start, end in spans]
    data = bytes(array.buffers[1])
    if name == "binary":
        return [data[start:end] for start, end in spans]
    return [data[start:end].decode() for start, end in spans]


def _of_one_width(array: BlockArray) -> list[Any]:
    kind, width, data = array.kind, width_of(array.kind), array.buffers[0]
    valid = [True] * array.count if array.validity is None else _valid(array)
    if kind.name in {"binary", "decimal"}:
        pieces = (bytes(data[start : start + width]) for start in range(0, array.count * width, width))
        if kind.name == "binary":
            return list(pieces)
        return _decimals([int.from_bytes(piece, "little", signed=True) for piece in pieces], valid, *kind.numbers)
    stored: npt.NDArray[Any] = np.frombuffer(data, f"<i{width}")
    convert = _converter(kind)
    found: list[Any] = [None] * array.count
    for place, number in compress(enumerate(stored.tolist()), valid):
        try:
            found[place] = convert(number)
        except (OverflowError, ValueError):  # Python has none.
            found[place] = number
    return found


def _decimals(numbers: list[int], valid: list[bool], precision: int, scale: int) -> list[Decimal]:
    limit = 10**precision
    if not all(-limit < number < limit for number in compress(numbers, valid)):
        raise ValueError(f"it has more than {precision} digits")
    return [Decimal(number).scaleb(-scale, _DIGITS) for number in numbers]


def _converter(kind: ColumnType) -> Callable[[int], Any]:
    """Return what makes a Python object of a stored number of a date, a time, a duration or a timestamp."""
    if kind.name == "date":
        return lambda days: date.fromordinal(_EPOCH_DAY + days)
    if kind.unit == "ns":
        return int
    scale = 1_000_000 // PER_SECOND[kind.unit]
    if kind.name == "duration":
        return lambda number: timedelta(microseconds=number * scale)
    if kind.name == "time":
        return lambda number: _time_of_day(number * scale)
    if not kind.zone:
        return lambda number: _EPOCH + timedelta(microseconds=number * scale)
    zone = zone_of(kind.zone)
    aware = _EPOCH.replace(tzinfo=UTC)
    if zone is UTC:
        return lambda number: aware + timedelta(microseconds=number * scale)
    return lambda number: (aware + timedelta(microseconds=number * scale)).astimezone(zone)


def _time_of_day(microseconds: int) -> time:
    if not 0 <= microseconds < day_in("us"):
        raise ValueError(f"{microseconds} microseconds are no time of day")
    return (_EPOCH + timedelta(microseconds=microseconds)).time()
