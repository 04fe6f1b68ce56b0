"""Positions in many Avro values, which are decoded side by side: each step reads the same field of all values.

A step over a thousand values costs numpy little more than a step over one, and Python nothing for each value.
"""

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
PADDING = 16
"""Zeros after the data: a number may be read past the end of the last value before that is noticed."""


GATHERED_BYTES = 1 << 20
"""Bytes of texts that are copied in one step, which takes sixteen times as much memory."""


class NotDecodedError(Exception):
    """The values cannot be decoded side by side; row by row they can, or have an error with its place."""


class ValueCursor:
    """Positions of values, and their ends: int64[n], in bytes of the same data."""

    def __init__(self, data: npt.NDArray[np.uint8], positions: Int64s, ends: Int64s) -> None:
        """`data` ends with `PADDING` zeros."""
        self._data = data
        self._ends = ends
        self.positions = positions

    def __len__(self) -> int:
        return len(self.positions)

    def part(self, chosen: Int64s) -> "ValueCursor":
        """Return the cursor of some of the values."""
        return ValueCursor(self._data, self.positions[chosen], self._ends[chosen])

    def put(self, chosen: Int64s, part: "ValueCursor") -> None:
        """Take over the positions of a part."""
        self.positions[chosen] = part.positions

    def skip(self, sizes: Int64s | int) -> Int64s:
        """Move by a number of bytes, and return the positions before.

        Raises:
            NotDecodedError: If a size is negative, or a value ends before that.
        """
        before = self.positions
        self.positions = before + sizes
        if (self.positions > self._ends).any() or (self.positions < before).any():
            raise NotDecodedError
        return before

    def finish(self) -> None:
        """Check that all values are decoded.

        Raises:
            NotDecodedError: If one is longer.
        """
        if (self.positions != self._ends).any():
            raise NotDecodedError

    def bytes(self) -> npt.NDArray[np.uint8]:
        """Read a byte of each."""
        return self._data[self.skip(1)]

    def longs(self) -> Int64s:
        """Read an int or a long of each: base 128, zigzag."""
        byte = self._data[self.positions]
        sizes = np.ones(len(byte), np.int64)
        found = (byte & 0x7F).astype(np.uint64)
        more = np.flatnonzero(byte & 0x80)
        for shift in range(7, 64, 7):
            if not len(more):
                break
            byte = self._data[self.positions[more] + sizes[more]]
            found[more] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
            sizes[more] += 1
            more = more[byte & 0x80 != 0]
        if len(more):
            raise NotDecodedError
        self.skip(sizes)
        return (found >> np.uint64(1)).astype(np.int64) ^ -(found & np.uint64(1)).astype(np.int64)

    def numbers(self, dtype: str) -> npt.NDArray[np.generic]:
        """Read a number of a fixed size of each, such as `<f8`."""
        width = np.dtype(dtype).itemsize
        # Of untyped bytes, because numpy checks the alignment of each number.
        every = np.ndarray(len(self._data) - width + 1, f"V{width}", self._data, strides=(1,))
        return every[self.skip(width)].view(dtype)

    def texts(self, sizes: Int64s, *, wanted: bool) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
        """Read bytes of each: return their offsets int32[n + 1] and all bytes, none unless `wanted`."""
        starts = self.skip(sizes)
        ends = np.zeros(len(sizes) + 1, np.int64)
        np.cumsum(sizes, out=ends[1:])
        if not wanted:
            return np.zeros(1, np.int32), self._data[:0]
        if ends[-1] >= 1 << 31:
            raise NotDecodedError
        found = np.empty(ends[-1], np.uint8)
        first = 0
        while first < len(sizes):
            last = max(first + 1, int(np.searchsorted(ends, ends[first] + GATHERED_BYTES, "right")) - 1)
            if last == first + 1:  # It may be a large one.
                found[ends[first] : ends[last]] = self._data[starts[first] : starts[first] + sizes[first]]
            else:
                moves = np.repeat(starts[first:last] - ends[first:last], sizes[first:last])
                found[ends[first] : ends[last]] = self._data[moves + np.arange(ends[first], ends[last])]
            first = last
        return ends.astype(np.int32), found

    def whole_numbers(self, sizes: Int64s, width: int) -> npt.NDArray[np.uint8]:
        """Read big-endian whole numbers of each; return them with `width` bytes, little-endian: uint8[n, width]."""
        if (sizes > width).any():
            raise NotDecodedError
        starts = self.skip(sizes)
        places = (starts + sizes)[:, None] - 1 - np.arange(width)
        inside = places >= starts[:, None]
        found = np.where(inside, self._data[np.where(inside, places, 0)], 0).astype(np.uint8)
        negative = (sizes > 0) & (self._data[np.minimum(starts, len(self._data) - 1)] >= 0x80)
        found[~inside & negative[:, None]] = 0xFF
        return found
