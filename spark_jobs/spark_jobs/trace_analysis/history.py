"""The requests of each key in their order, and reuse distances. Pure: arrays in, arrays out.

A reuse distance is the number of other keys that were requested between two requests of a key: the request is a hit of
an LRU cache that holds more keys than that (Mattson et al., 1970). Distances are computed for all requests at once:
with p the request of the same key before request i, the first request j of each key between them is one whose own
predecessor is before p. So the distance is the number of all j < i whose predecessor is before p, less those up to p.
That is a count of smaller numbers to the left, done here bit by bit as in a wavelet matrix: one stable partition of all
requests for each bit.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Positions = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


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


def smaller_before(numbers: npt.NDArray[np.int64], weights: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the sums of the weights of the smaller numbers before each number.

    Args:
        numbers: int64[n], at least 0, below 2^31.
        weights: int64[k, n]: k weights of each number.

    Returns:
        int64[k, n].
    """
    count = len(numbers)
    values, starts = numbers.astype(np.int32), np.zeros(count, np.int32)
    held, sums = list(weights), [np.zeros(count, np.int64) for _ in weights]
    places = np.arange(count, dtype=np.int32)
    zeros, weight_of_zeros = np.zeros(count + 1, np.int32), np.zeros(count + 1, np.int64)
    for bit in reversed(range(int(values.max()).bit_length() if count else 0)):
        ones = (values >> bit) & 1 != 0
        of_ones, of_zeros = np.flatnonzero(ones), np.flatnonzero(~ones)
        order = np.concatenate([of_zeros, of_ones])
        first = starts[of_ones]
        for row in range(len(held)):
            np.cumsum(np.where(ones, 0, held[row]), out=weight_of_zeros[1:])
            sums[row][of_ones] += weight_of_zeros[of_ones] - weight_of_zeros[first]
            sums[row], held[row] = sums[row][order], held[row][order]
        np.cumsum(~ones, out=zeros[1:])
        starts = np.concatenate([zeros[starts[of_zeros]], zeros[-1] + first - zeros[first]])
        values, places = values[order], places[order]
    found = np.empty((len(sums), count), np.int64)
    found[:, places] = sums
    return found
