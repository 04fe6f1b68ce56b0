"""Blocks of Arrow arrays, and the bounds of their values; `headrace.wire.typed.payload` has the layout.

Imports pyarrow, so it is imported on first use only.
"""

import struct
from functools import lru_cache
from math import isnan
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.wire.crc import ReadableBuffer
from headrace.wire.typed.blocks import INT64_BOUNDS, NUMBERS, has_bounds, pack_bounds, width_of
from headrace.wire.typed.column_types import ColumnType
from headrace.wire.typed.payload import NO_BOUNDS, TEXT, ColumnBlock

_ZEROS = bytes(8)
_TEXTS = frozenset({"string", "binary"})
_FIRST_BYTES = np.array([2 ** (8 * count) - 1 for count in range(9)], np.uint64)
"""By the number of bytes of a text: what is kept of 8."""


class ArrayBlocks:
    """Array of a column, parts of which become blocks: what is the same for all parts is found once. Immutable.

    Blocks are views of the array's buffers, which must not change while a block is in use.
    """

    def __init__(self, array: Any, kind: ColumnType) -> None:
        self._array, self._kind = array, kind
        self._width = width_of(kind)
        self._data = memoryview(b"")
        self._numbers: npt.NDArray[Any] | None = None
        """Values of an array of numbers or times without null."""
        self._offsets: npt.NDArray[np.int32] | None = None
        """Of texts without null."""
        buffers = array.buffers()
        if array.null_count or buffers[-1] is None:
            return
        if kind.name in _TEXTS and not kind.numbers:
            self._data = memoryview(buffers[2])
            self._offsets = np.frombuffer(buffers[1], np.int32, len(array) + 1, 4 * array.offset)
        elif self._width and (kind.name in NUMBERS or kind.name in INT64_BOUNDS):
            dtype = NUMBERS.get(kind.name, f"<i{self._width}")
            self._numbers = np.frombuffer(buffers[1], dtype, len(array), array.offset * self._width)
            self._data = memoryview(buffers[1])[array.offset * self._width :]

    def block(self, start: int, end: int) -> ColumnBlock:
        """Return the block of the entries from `start` to `end`."""
        null_count = 0
        buffers: list[ReadableBuffer] = [b""]
        if self._numbers is not None:
            numbers = self._data[start * self._width : end * self._width]
            if len(numbers) % 8 == 0:  # As most are: what follows is for all.
                return ColumnBlock(
                    [_layout(2).pack(0, len(numbers)), numbers], 8 + len(numbers), 0, *self.bounds(start, end)
                )
            buffers.append(numbers)
        elif self._offsets is not None:
            _collect_texts(self._offsets[start : end + 1], self._data, buffers)
        else:
            part = self._array.slice(start, end - start)
            buffers, null_count = [], part.null_count
            _collect(part, buffers)
        sizes = [len(buffer) for buffer in buffers]
        layout = _layout(len(sizes))
        parts: list[ReadableBuffer] = [layout.pack(*sizes)]
        total = layout.size
        for buffer, size in zip(buffers, sizes, strict=True):
            if size:
                parts.append(buffer)
                total += size
            if gap := -size % 8:
                parts.append(_ZEROS[:gap])
                total += gap
        return ColumnBlock(parts, total, null_count, *self.bounds(start, end))

    def bounds(self, start: int, end: int) -> tuple[int, bytes, bytes]:
        """Return the kind of bounds of the entries from `start` to `end`, their minimum and their maximum."""
        if start < end and self._numbers is not None:
            # Four times as fast as Arrow's; methods of the array would be a call more each.
            values = self._numbers[start:end]
            lowest, highest = np.minimum.reduce(values).item(), np.maximum.reduce(values).item()
            if not (isnan(lowest) or isnan(highest)):
                return pack_bounds(self._kind, lowest, highest)
        if start < end and self._offsets is not None:
            return TEXT, *_text_bounds(self._offsets[start : end + 1], self._data)
        return _arrow_bounds(self._array.slice(start, end - start), self._kind)


@lru_cache(256)
def _layout(buffers: int) -> struct.Struct:
    """Return the layout of the sizes of this number of buffers, and of the gap after them."""
    return struct.Struct(f"<{buffers}I{-4 * buffers % 8}x")


def block_of_array(array: Any, kind: ColumnType) -> ColumnBlock:
    """Return the block of an array; see `ArrayBlocks`."""
    return ArrayBlocks(array, kind).block(0, len(array))


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
        if not kind.num_fields:
            _collect_texts(offsets, memoryview(found[2] or b""), buffers)
            return
        first, last = _collect_offsets(offsets, buffers)
        if pa.types.is_map(kind):
            buffers.append(b"")
            for child in (array.keys, array.items):
                _collect(child.slice(first, last - first), buffers)
        else:
            _collect(array.values.slice(first, last - first), buffers)
    else:
        width = kind.bit_width // 8
        buffers.append(memoryview(found[1])[start * width : (start + count) * width] if count else b"")


def _collect_texts(offsets: npt.NDArray[np.int32], data: memoryview, buffers: list[ReadableBuffer]) -> None:
    first, last = _collect_offsets(offsets, buffers)
    buffers.append(data[first:last])


def _collect_offsets(offsets: npt.NDArray[np.int32], buffers: list[ReadableBuffer]) -> tuple[int, int]:
    """Append offsets that begin at 0; return the first and the last one."""
    first, last = int(offsets[0]), int(offsets[-1])
    buffers.append(np.ascontiguousarray(offsets - first if first else offsets, "<i4").data.cast("B"))
    return first, last


def _bits(buffer: Any, start: int, count: int) -> ReadableBuffer:
    if start % 8 == 0 and count % 8 == 0:
        return memoryview(buffer)[start // 8 : (start + count) // 8]
    bits = np.unpackbits(np.frombuffer(buffer, np.uint8), bitorder="little")[start : start + count]
    return np.packbits(bits, bitorder="little").data


def _arrow_bounds(array: Any, kind: ColumnType) -> tuple[int, bytes, bytes]:
    """Return the bounds of an array by Arrow, which knows nulls and NaN."""
    if array.null_count == len(array) or not has_bounds(kind):
        return NO_BOUNDS, _ZEROS, _ZEROS
    found = pc.min_max(_as_int64(array) if kind.name in INT64_BOUNDS else array)
    lowest, highest = found["min"].as_py(), found["max"].as_py()
    if lowest is None or (isinstance(lowest, float) and (isnan(lowest) or isnan(highest))):
        return NO_BOUNDS, _ZEROS, _ZEROS
    return pack_bounds(kind, lowest, highest)


def _text_bounds(offsets: npt.NDArray[np.int32], buffer: memoryview) -> tuple[bytes, bytes]:
    """Return the bounds of texts without null: the first 8 bytes of each as one number, an eighth of Arrow's time.

    The least of the first bytes are the first bytes of the least text.
    """
    first, last = int(offsets[0]) & -8, int(offsets[-1])
    end = first + (last - first & -8) + 16
    if end <= len(buffer):
        words = np.frombuffer(buffer[first:end], "<u8")
    else:
        words = np.frombuffer(bytes(buffer[first:last]) + bytes(16 + -last % 8), "<u8")
    # From the two whole words in which each lies, because numpy copies numbers that are not aligned one by one.
    starts = offsets[:-1] - first
    places, shifts = (starts >> 3).astype(np.intp), ((starts & 7) << 3).astype(np.uint64)
    heads = words.take(places) >> shifts
    heads |= words[1:].take(places) << (np.uint64(64) - shifts)  # A shift by 64 gives 0.
    lengths = offsets[1:] - offsets[:-1]
    if np.minimum.reduce(lengths) < 8:
        heads &= _FIRST_BYTES.take(lengths, mode="clip")
    heads = heads.byteswap(inplace=True)
    lowest, highest = int(np.minimum.reduce(heads)), int(np.maximum.reduce(heads))
    return lowest.to_bytes(8, "big"), highest.to_bytes(8, "big")


def _as_int64(array: Any) -> Any:
    """Return times as the numbers that Arrow stores."""
    kind = array.type
    if pa.types.is_date32(kind) or pa.types.is_time32(kind):
        array = array.view(pa.int32())
    elif pa.types.is_temporal(kind):
        array = array.view(pa.int64())
    return array.cast(pa.int64())
