"""Newest offset of each key in a number of batches, by numpy alone: what compaction keeps. Pure.

Keys are found by a hash and then compared byte by byte, so that two keys with one hash are two keys. There is no loop
over records: a compaction leaves the interpreter to the threads that serve.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.wire.decoded import BinaryColumn, Bytes, Int64s

_Words = npt.NDArray[np.uint64]
_Bools = npt.NDArray[np.bool_]

_MIX = np.uint64(0x9E37_79B9_7F4A_7C15)
_SHIFT = np.uint64(29)
_GATHERED_BYTES = 4 << 20
"""Bytes of keys that are hashed or compared at once."""
_MASKS = np.array([2 ** (8 * size) - 1 for size in range(9)], np.uint64)
"""By number of bytes: a word of which only these are left."""
KEY_BYTES = 40
"""Memory of one key in `KeyOffsets` besides its bytes."""


@dataclass(frozen=True, slots=True, eq=False)
class Keys:
    """Keys of records, in any order."""

    data: Bytes
    """Ends with at least 8 bytes that belong to no key."""
    starts: Int64s
    """int64[n]: start of each key in `data`."""
    sizes: Int64s
    """int64[n]: bytes of each key."""

    @classmethod
    def of(cls, columns: Sequence[BinaryColumn]) -> "Keys":
        """Join columns; a null counts as an empty key."""
        starts, position = [np.zeros(0, np.int64)], 0
        for column in columns:
            starts.append(column.offsets[:-1] + np.int64(position))
            position += len(column.data)
        sizes = [np.zeros(0, np.int64), *(np.diff(column.offsets).astype(np.int64) for column in columns)]
        data = np.frombuffer(b"".join([*(column.data for column in columns), bytes(8)]), np.uint8)
        return cls(data, np.concatenate(starts), np.concatenate(sizes))

    def take(self, rows: npt.NDArray[np.int64]) -> "Keys":
        """Return the keys at these places, in the same memory."""
        return Keys(self.data, self.starts[rows], self.sizes[rows])

    def hashes(self, seed: int) -> _Words:
        """Return a hash of each key."""
        hashes = (self.sizes.astype(np.uint64) ^ np.uint64(seed)) * _MIX
        for rows, words in self._rows_of_words():
            mixed = hashes[rows]
            for place in range(words.shape[1]):
                mixed = (mixed ^ words[:, place]) * _MIX
                mixed ^= mixed >> _SHIFT
            hashes[rows] = mixed * _MIX
        return hashes

    def equal(self, others: "Keys") -> _Bools:
        """Return which keys are the same as the other ones at the same places."""
        are_equal: _Bools = self.sizes == others.sizes
        rows = np.flatnonzero(are_equal)
        mine, theirs = self.take(rows), others.take(rows)
        for places, words in mine._rows_of_words():
            are_equal[rows[places]] = (words == theirs.take(places)._words(words.shape[1])).all(axis=1)
        return are_equal

    def _rows_of_words(self) -> Iterator[tuple[Int64s, _Words]]:
        """Yield the places of keys of one number of words, and the words, padded with zeros: uint64[places, words]."""
        counts = (self.sizes + 7) // 8
        for count in (np.flatnonzero(np.bincount(counts)[1:]) + 1).tolist():
            places = np.flatnonzero(counts == count)
            step = max(1, _GATHERED_BYTES // (8 * count))
            for first in range(0, len(places), step):
                rows = places[first : first + step]
                yield rows, self.take(rows)._words(count)

    def _words(self, count: int) -> _Words:
        """Return keys of at most `count` words, all of them with more than `count` - 1."""
        anywhere: _Words = np.ndarray(len(self.data) - 7, np.uint64, self.data.data, strides=(1,))
        words = np.empty((len(self.starts), count), np.uint64)
        for place in range(count):
            words[:, place] = anywhere[self.starts + 8 * place]
        words[:, -1] &= _MASKS[self.sizes - 8 * (count - 1)]
        return words


class KeyOffsets:
    """Keys of consecutive records with the newest offset of each; about `KEY_BYTES` of memory a key and its bytes."""

    def __init__(self, columns: Sequence[BinaryColumn], offsets: Int64s, seed: int) -> None:
        """Take the keys of records in ascending order of their `offsets`. `seed` varies the hash."""
        self._seed = seed
        keys = Keys.of(columns)
        hashes = keys.hashes(seed)
        order = np.argsort(hashes, kind="stable")
        hashes, offsets, keys = hashes[order], offsets[order], keys.take(order)
        are_same = np.append(hashes[1:] == hashes[:-1], np.zeros(min(1, len(hashes)), np.bool_))
        rows = np.flatnonzero(are_same)
        differ = rows[~keys.take(rows).equal(keys.take(rows + 1))]
        # Hashes of several keys, which are looked up one by one.
        self._shared = np.unique(hashes[differ])
        several = np.flatnonzero(np.isin(hashes, self._shared)).tolist() if len(differ) else ()
        shared = {row: _bytes_of(keys, row) for row in several}
        self._by_key = {key: int(offsets[row]) for row, key in shared.items()}
        self.replaced = np.empty(len(hashes), np.bool_)
        """Which of the records have a newer one of their key, in the order in which they were given."""
        self.replaced[order] = are_same
        for row, key in shared.items():
            self.replaced[order[row]] = offsets[row] < self._by_key[key]
        last = np.flatnonzero(~are_same)
        self._hashes, self._offsets, self._keys = hashes[last], offsets[last], keys.take(last)

    def newest(self, keys: Keys) -> Int64s:
        """Return the newest offset of each key; -1 for a key that is not among those taken."""
        newest = np.full(len(keys.starts), -1, np.int64)
        if not len(self._hashes):
            return newest
        hashes = keys.hashes(self._seed)
        order = np.argsort(hashes)  # In order they are found in a fifth of the time: neighbours are in the same cache.
        places = np.empty(len(order), np.int64)
        places[order] = np.minimum(np.searchsorted(self._hashes, hashes[order]), len(self._hashes) - 1)
        rows = np.flatnonzero(self._hashes[places] == hashes)
        places = places[rows]
        are_equal = keys.take(rows).equal(self._keys.take(places))
        newest[rows[are_equal]] = self._offsets[places[are_equal]]
        for row in np.flatnonzero(np.isin(hashes, self._shared)).tolist() if len(self._shared) else ():
            newest[row] = self._by_key.get(_bytes_of(keys, row), -1)
        return newest


def _bytes_of(keys: Keys, row: int) -> bytes:
    start = int(keys.starts[row])
    return keys.data[start : start + int(keys.sizes[row])].tobytes()
