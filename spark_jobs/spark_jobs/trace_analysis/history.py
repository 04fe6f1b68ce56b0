"""The requests of each key in their order, and the keys of a range of requests. Pure: arrays in, arrays out.

Distinct keys of the requests from a to b are counted by those requests j whose key has no request between a and j: its
request before j is before a. That is the number of all j < b with a predecessor before a, less those before a, which
all have one or none. The first number is one of points (j, predecessor) in a corner of the plane, for which sums of
squares are kept: what is left are two strips, as wide as a square.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Positions = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_FEW_SQUARES = 1 << 22
"""Squares that are kept of any trace; of a longer one, as many as it has requests."""
_AT_ONCE = 1 << 20
"""Points of strips that are looked at in one step."""


class KeyOrder(NamedTuple):
    """Requests ordered by key, then as before."""

    order: Positions
    """int64[n]: positions of the requests."""
    first: Flags
    """bool[n], in this order: whether it is the key's first request."""


def by_key(key_hash: npt.NDArray[np.uint64]) -> KeyOrder:
    """Return the requests ordered by key.

    Keys are told apart by the first 64 - log2(n) bits of their hashes, so that one sort of numbers does it: of a
    million keys in a million requests, 0.03 pairs are taken for one key.
    """
    count = len(key_hash)
    low = np.uint64((1 << max(1, count.bit_length())) - 1)
    packed = key_hash & ~low
    packed |= np.arange(count, dtype=np.uint64)
    packed.sort()
    order = (packed & low).astype(np.int64)
    packed &= ~low
    first = np.ones(count, np.bool_)
    np.not_equal(packed[1:], packed[:-1], out=first[1:])
    return KeyOrder(order, first)


def previous_positions(keys: KeyOrder) -> Positions:
    """Return the position of the same key's request before each request, -1 for the first; int64[n]."""
    previous = np.full(len(keys.order), -1, np.int64)
    repeated = np.flatnonzero(~keys.first)
    previous[keys.order[repeated]] = keys.order[repeated - 1]
    return previous


def keys_of_ranges(
    previous: Positions, weights: Positions, begins: Positions, ends: Positions
) -> tuple[Positions, Positions]:
    """Return the number of distinct keys of some ranges of requests, and the sum of their weights; int64[q] each.

    Args:
        previous: int64[n], n below 2^31: what `previous_positions` returns.
        weights: int64[n]: weight of the key of each request.
        begins: int64[q]: first position of each range, 0 to n.
        ends: int64[q]: position after its last, at least the first.
    """
    plane = _Plane(previous, weights, len(begins))
    is_first = previous < 0
    numbers, sums = plane.corners(begins, ends)
    numbers += _sums_before(is_first)[ends] - begins
    sums += _sums_before(np.where(is_first, weights, 0))[ends] - _sums_before(weights)[begins]
    return numbers, sums


def _sums_before(values: npt.NDArray[Any]) -> Positions:
    """Return the sum of the values before each position; int64[n + 1]."""
    return np.append(0, np.cumsum(values, dtype=np.int64))


class _Plane:
    """Requests that have a predecessor, as points (position, position of the predecessor)."""

    def __init__(self, previous: Positions, weights: Positions, corners: int) -> None:
        """`corners` is about the number of those that are wanted."""
        count = len(previous)
        squares = min(round((count * corners) ** (1 / 3) / 2), math.isqrt(max(count, _FEW_SQUARES)))
        self._width = -(-count // max(1, squares)) or 1
        self._side = count // self._width + 1
        points = np.flatnonzero(previous >= 0)
        predecessors = previous[points]
        square = points // self._width * self._side + predecessors // self._width
        self._numbers, self._sums = (self._sums_of_squares(square, each) for each in (None, weights[points]))
        padded = count + self._width
        self._previous = np.full(padded, count, np.int32)
        self._previous[points] = predecessors
        self._next = np.full(padded, count, np.int32)
        self._next[predecessors] = points
        self._weights = np.append(weights, np.zeros(self._width, np.int64))

    def _sums_of_squares(self, square: Positions, weights: Positions | None) -> npt.NDArray[np.float64]:
        """Return the sums of the first squares in both directions, from none on."""
        sums = np.zeros((self._side + 1, self._side + 1))
        sums[1:, 1:] = np.bincount(square, weights, self._side**2).reshape(self._side, self._side)
        np.cumsum(sums, axis=0, out=sums)
        return np.cumsum(sums, axis=1, out=sums)

    def corners(self, predecessors: Positions, positions: Positions) -> tuple[Positions, Positions]:
        """Return the number and the weight of the points before both limits of each corner."""
        width = self._width
        lines, columns = positions // width, predecessors // width
        numbers, sums = (held[lines, columns].astype(np.int64) for held in (self._numbers, self._sums))
        step = max(1, _AT_ONCE // width)
        for start in range(0, len(positions), step):
            part = slice(start, start + step)
            line, column = lines[part] * width, columns[part] * width
            for strip in (
                self._strip(self._previous, line, positions[part], predecessors[part]),
                self._strip(self._next, column, predecessors[part], line),
            ):
                numbers[part] += strip[0]
                sums[part] += strip[1]
        return numbers, sums

    def _strip(
        self, linked: npt.NDArray[np.int32], starts: Positions, ends: Positions, limits: Positions
    ) -> tuple[Positions, Positions]:
        """Return the number and the weight of the positions from `starts` to `ends` that are linked to one before."""
        windows = np.lib.stride_tricks.sliding_window_view
        held = windows(linked, self._width)[starts] < limits.astype(np.int32)[:, None]
        held &= np.arange(self._width, dtype=np.int32) < (ends - starts).astype(np.int32)[:, None]
        numbers = np.count_nonzero(held, axis=1)
        sums = _sums_before(windows(self._weights, self._width)[starts][held])
        ends_of_rows = np.cumsum(numbers)
        return numbers, sums[ends_of_rows] - sums[ends_of_rows - numbers]
