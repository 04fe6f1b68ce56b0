"""Blocks of rows that are Python objects, without Arrow: for a broker that is sent rows as JSON.

The blocks hold what those hold that `headrace.wire.typed.arrow_columns` makes of the same values, if both take them.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from math import isnan
from typing import Any

import numpy as np

from headrace.wire.crc import ReadableBuffer
from headrace.wire.encoding import RowBlocks
from headrace.wire.errors import BatchTooLargeError, InvalidRequestError
from headrace.wire.typed.blocks import NUMBERS, PER_SECOND, day_in, has_bounds, pack_bounds, width_of
from headrace.wire.typed.column_types import INTEGERS, ColumnType
from headrace.wire.typed.payload import NO_BOUNDS, ColumnBlock
from headrace.wire.typed.topic_columns import TopicColumn, TopicColumns

_ZEROS = bytes(8)
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_FLOAT = struct.Struct("<f")


class _Buffers(list[ReadableBuffer]):
    """Buffers of rows, within limits: a null takes the width of its type, which a few bytes of JSON can repeat."""

    def __init__(self, max_values: int, max_bytes: int) -> None:
        super().__init__()
        self._values_left, self._bytes_left = max_values, max_bytes

    def reserve(self, values: int, kind: ColumnType) -> None:
        """Count values before their buffers are made.

        Raises:
            BatchTooLargeError: If they are too many, or too large.
        """
        self._values_left -= values
        self._bytes_left -= values * width_of(kind)
        if self._values_left < 0 or self._bytes_left < 0:
            raise BatchTooLargeError("the rows have too many values for one call", action="Send fewer rows in a call.")


def blocks_of_rows(
    rows: Sequence[Mapping[str, Any]], columns: TopicColumns, *, max_values: int, max_bytes: int
) -> RowBlocks:
    """Return the input of `column_parts` for rows by name; what a row lacks is its default, or null.

    Args:
        rows: at least one.
        columns: those of the topic.
        max_values: maximum of values in all rows, parts of nested ones included.
        max_bytes: maximum bytes of values of one width.

    Raises:
        InvalidRequestError: For a value that does not fit, or a column that the topic does not have; the message has
            the row and the column.
        BatchTooLargeError: For rows over the limits.
    """
    names = {column.name for column in columns.current}
    for place, row in enumerate(rows):
        if unknown := row.keys() - names:
            raise InvalidRequestError(
                f"row {place}: the topic has no column {min(unknown)!r:.80}",
                action=f"Its columns are {', '.join(sorted(names))}.",
            )
    buffers = _Buffers(max_values, max_bytes)
    return RowBlocks(columns.batch_text, [_block(rows, column, buffers) for column in columns.current], len(rows))


def _block(rows: Sequence[Mapping[str, Any]], column: TopicColumn, buffers: _Buffers) -> ColumnBlock:
    default = column.default_value
    values = [row.get(column.name, default) for row in rows]
    if column.is_required and None in values:
        raise InvalidRequestError(
            f"row {values.index(None)}: column {column.name} is required, and null", action="Give it a value."
        )
    buffers.clear()
    try:
        _collect(values, column.type, buffers)
    except _FAILURES as error:
        raise _misfit(values, column, error) from error
    sizes = struct.pack(f"<{len(buffers)}I", *map(len, buffers))
    parts = [part for buffer in (sizes, *buffers) for part in (buffer, _ZEROS[: -len(buffer) % 8]) if part]
    return ColumnBlock(parts, sum(map(len, parts)), values.count(None), *_bounds(values, column.type))


def _misfit(values: list[Any], column: TopicColumn, error: Exception) -> InvalidRequestError:
    """Return the error about the first value that does not fit."""
    for place, value in enumerate(values):
        try:
            _collect([value], column.type, _Buffers(_ANY, _ANY))
        except _FAILURES as found:
            return InvalidRequestError(
                f"row {place}: column {column.name}: {value!r:.80} is no {column.type}: {found}",
                action="Give it a value of this type.",
            )
    return InvalidRequestError(f"column {column.name}: the values are too large together: {error}")


_ANY = 1 << 40
_FAILURES = (TypeError, ValueError, OverflowError, AttributeError, ArithmeticError, struct.error)


def _collect(values: list[Any], kind: ColumnType, buffers: _Buffers) -> None:
    """Append the buffers of values in the order of a block: validity, offsets, data, children."""
    buffers.reserve(len(values), kind)
    nulls = values.count(None)
    valid = [value is not None for value in values] if nulls else []
    buffers.append(_bits(valid))
    match kind.name:
        case "bool":
            buffers.append(_bits([value is not None and _of_class(bool, value) for value in values]))
        case "struct":
            known = {name for name, _ in kind.children}
            for value in values:
                if value is not None and (unknown := value.keys() - known):
                    raise ValueError(f"it has no field {min(unknown)!r:.80}")
            for name, child in kind.children:
                _collect([None if value is None else value.get(name) for value in values], child, buffers)
        case "list":
            lists = [[] if value is None else _of_class(list, value) for value in values]
            buffers.append(_offsets(map(len, lists), len(values)))
            _collect([each for value in lists for each in value], kind.children[0][1], buffers)
        case "map":
            pairs = [[] if value is None else _pairs(value) for value in values]
            buffers += [_offsets(map(len, pairs), len(values)), b""]
            for place, (_, child) in enumerate(kind.children):
                entries = [pair[place] for value in pairs for pair in value]
                if place == 0 and None in entries:
                    raise ValueError("a key of a map is null")
                _collect(entries, child, buffers)
        case "string":
            _collect_texts([b"" if value is None else _of_class(str, value).encode() for value in values], buffers)
        case "binary" if not kind.numbers:
            _collect_texts([b"" if value is None else _of_class(bytes, value) for value in values], buffers)
        case _ if kind.name in NUMBERS:
            numbers = [0 if value is None else _number(value, kind) for value in values]
            buffers.append(np.array(numbers, NUMBERS[kind.name]).tobytes())
        case _:
            zeros = bytes(width_of(kind))
            buffers.append(b"".join(zeros if value is None else _of_one_width(value, kind) for value in values))


def _bits(flags: list[bool]) -> bytes:
    return np.packbits(np.array(flags, np.bool_), bitorder="little").tobytes()


def _offsets(sizes: Iterable[int], count: int) -> bytes:
    ends = np.zeros(count + 1, np.int64)
    np.cumsum(np.fromiter(sizes, np.int64, count), out=ends[1:])
    return ends.astype("<i4").tobytes()


def _collect_texts(texts: list[bytes], buffers: _Buffers) -> None:
    buffers += [_offsets(map(len, texts), len(texts)), b"".join(texts)]


def _pairs(value: Any) -> list[tuple[Any, Any]]:
    """Return the entries of a map: of a dict, or of a list of pairs, as `row_of_json` has it."""
    found = value.items() if isinstance(value, Mapping) else _of_class(list, value)
    return [(key, entry) for key, entry in found]


def _of_class(wanted: type, value: Any) -> Any:
    if not isinstance(value, wanted):
        raise TypeError(f"it is {type(value).__name__}")
    return value


def _number(value: Any, kind: ColumnType) -> Any:
    if isinstance(value, bool) or not isinstance(value, int if kind.name in INTEGERS else int | float):
        raise TypeError(f"it is {type(value).__name__}")
    if kind.name in INTEGERS:
        return value
    number: float = float(value)
    if kind.name == "float":
        (stored,) = _FLOAT.unpack(_FLOAT.pack(number))  # OverflowError: it would become infinite.
    else:
        stored = number
    if isinstance(value, int) and stored != value:
        raise ValueError("it has more digits")
    return number


def _of_one_width(value: Any, kind: ColumnType) -> bytes:
    """Return the stored bytes of a fixed binary, a decimal, a date, a time, a duration or a timestamp."""
    if kind.name == "binary":
        data = bytes(_of_class(bytes, value))
        if len(data) != kind.numbers[0]:
            raise ValueError(f"it has {len(data)} bytes")
        return data
    if kind.name == "decimal":
        return _unscaled(_of_class(Decimal, value), *kind.numbers).to_bytes(width_of(kind), "little", signed=True)
    return _count(value, kind).to_bytes(width_of(kind), "little", signed=True)


def _unscaled(value: Decimal, precision: int, scale: int) -> int:
    """Return a decimal in units of its last digit."""
    if not value.is_finite():
        raise ValueError("it is not finite")
    sign, digits, exponent = value.as_tuple()
    number, shift = int("".join(map(str, digits))), int(exponent) + scale
    rest = 0
    if number and -len(digits) < shift <= precision:
        number, rest = (number * 10**shift, 0) if shift >= 0 else divmod(number, 10**-shift)
    elif number:
        rest = 1
    if rest or number >= 10**precision:
        raise ValueError(f"it has more than {precision} digits, {scale} of them after the point")
    return -number if sign else number


def _count(value: Any, kind: ColumnType) -> int:
    """Return the number that is stored of a date, a time, a duration or a timestamp."""
    if kind.name == "date":
        if isinstance(value, datetime) and value.time() != time.min:
            raise ValueError("it has a time")
        return int(_of_class(date, value).toordinal()) - _EPOCH_DAY
    if isinstance(value, int) and not isinstance(value, bool):
        if kind.name == "time" and not 0 <= value < day_in(kind.unit):
            raise ValueError("it is not within a day")
        return value
    if kind.name == "time":
        microseconds = timedelta(
            hours=_of_class(time, value).hour,
            minutes=value.minute,
            seconds=value.second,
            microseconds=value.microsecond,
        ) // _MICROSECOND  # fmt: skip
    elif kind.name == "duration":
        microseconds = _of_class(timedelta, value) // _MICROSECOND
    else:
        moment = _of_class(datetime, value)
        microseconds = ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH) // _MICROSECOND
    if kind.unit == "ns":
        return int(microseconds) * 1_000
    number, rest = divmod(microseconds, 1_000_000 // PER_SECOND[kind.unit])
    if rest:
        raise ValueError(f"it is finer than {kind.unit}")
    return int(number)


def _bounds(values: list[Any], kind: ColumnType) -> tuple[int, bytes, bytes]:
    """Return the kind of bounds of values, the least and the greatest."""
    found = [value for value in values if value is not None]
    if not found or not has_bounds(kind):
        return NO_BOUNDS, _ZEROS, _ZEROS
    if kind.name in {"date", "time", "duration", "timestamp"}:
        counts = [_count(value, kind) for value in found]  # Whole numbers and times cannot be compared.
        return pack_bounds(kind, min(counts), max(counts))
    if kind.name == "float":
        found = np.array(found, "<f4").tolist()
    if kind.name in {"float", "double"} and any(map(isnan, found)):
        return NO_BOUNDS, _ZEROS, _ZEROS
    return pack_bounds(kind, min(found), max(found))
