"""Which records have a newer one of their key, by numpy alone: what compaction removes. Pure.

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
_HALF = np.uint64(32)
_LOWER = np.uint64(2**32 - 1)
_GATHERED_BYTES = 4 << 20
"""Bytes of keys that are hashed or compared at once."""
_COPIED_BYTES = 1 << 18
"""Bytes of keys that are copied at once, with 24 bytes of memory for each."""
_ROUNDS = 8
"""Keys with one hash are compared as often with each other; of more, each is looked up in a set."""
_MASKS = np.array([2 ** (8 * size) - 1 for size in range(9)], np.uint64)
"""By number of bytes: a word of which only these are left."""
KEY_BYTES = 40
"""Memory of one key in `NewerKeys` besides its bytes."""
_LAST_HASH = 2**64 - 1
_PLACE_BITS = np.uint64(2**26 - 1)
"""Lower bits of a hash that are not used: 38 bits find few others among a million keys."""


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

    def copied(self) -> "Keys":
        """Return the same keys in memory that has no others."""
        ends = np.cumsum(self.sizes)
        starts = ends - self.sizes
        data = np.zeros(int(self.sizes.sum()) + 8, np.uint8)
        for begin in range(0, len(data) - 8, _COPIED_BYTES):
            end = min(begin + _COPIED_BYTES, len(data) - 8)
            rows = slice(int(np.searchsorted(ends, begin, "right")), int(np.searchsorted(starts, end)))
            counts = np.minimum(ends[rows], end) - np.maximum(starts[rows], begin)
            data[begin:end] = self.data[np.arange(begin, end) + np.repeat(self.starts[rows] - starts[rows], counts)]
        return Keys(data, starts, self.sizes)

    def hashes(self, seed: int) -> _Words:
        """Return a hash of each key: without the seed, no two keys are known to have one (NH, of UMAC)."""
        hashes = (self.sizes.astype(np.uint64) ^ np.uint64(seed)) * _MIX
        for rows, words in self._rows_of_words():
            mixed = hashes[rows]
            for place, secret in enumerate(_secrets(seed, words.shape[1])):
                word = words[:, place] + secret
                mixed += (word & _LOWER) * (word >> _HALF)
            hashes[rows] = (mixed ^ (mixed >> _HALF)) * _MIX
        return hashes

    def each(self) -> Iterator[bytes]:
        """Yield the keys as bytes."""
        data = self.data.data
        for start, size in zip(self.starts.tolist(), self.sizes.tolist(), strict=True):
            yield bytes(data[start : start + size])

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


@dataclass(frozen=True, slots=True, eq=False)
class _Layer:
    """Keys in the order of their hashes, each once."""

    hashes: _Words
    keys: Keys

    @property
    def size_bytes(self) -> int:
        """Memory of this layer."""
        return len(self.keys.data) + KEY_BYTES * len(self.hashes)

    def holds(self, hashes: _Words, keys: Keys) -> _Bools:
        """Return which of these keys are here; `hashes` are theirs, in ascending order."""
        found = np.zeros(len(hashes), np.bool_)
        places = np.searchsorted(self.hashes, hashes)
        rows = np.flatnonzero(places < len(self.hashes))
        for _ in range(_ROUNDS):
            if not len(rows):
                break
            rows = rows[self.hashes[places[rows]] == hashes[rows]]
            found[rows] = keys.take(rows).equal(self.keys.take(places[rows]))
            rows = rows[~found[rows]]  # Another key with this hash: the next one may be the same.
            places[rows] += 1
            rows = rows[places[rows] < len(self.hashes)]
        if len(rows):
            wanted = set(keys.take(rows).each())
            here = wanted.intersection(self.keys.take(np.flatnonzero(np.isin(self.hashes, hashes[rows]))).each())
            found[rows] = [key in here for key in keys.take(rows).each()]
        return found

    def joined(self, other: "_Layer") -> "_Layer":
        """Return the keys of both, which have none in common."""
        hashes = np.concatenate([self.hashes, other.hashes])
        order = np.argsort(hashes, kind="stable")
        starts = np.concatenate([self.keys.starts, other.keys.starts + len(self.keys.data)])
        sizes = np.concatenate([self.keys.sizes, other.keys.sizes])
        data = np.concatenate([self.keys.data, other.keys.data])
        return _Layer(hashes[order], Keys(data, starts[order], sizes[order]))

    def below(self, end_hash: int) -> "_Layer":
        """Return the keys with smaller hashes, in memory of their own."""
        count = int(np.searchsorted(self.hashes, np.uint64(end_hash)))
        return _Layer(self.hashes[:count].copy(), self.keys.take(np.arange(count)).copied())


class NewerKeys:
    """Keys of the records that were read so far, from the newest to the oldest: older records of them are replaced.

    One turn over all records takes the keys with hashes from `first_hash` on that fit into memory; the next turn
    continues at `next_hash`.
    """

    def __init__(self, seed: int, memory_bytes: int, first_hash: int = 0) -> None:
        """`seed` varies the hash, and is the same for all turns."""
        self._seed = seed
        self._memory_bytes = memory_bytes
        self._first, self._last = first_hash, _LAST_HASH
        # Each has at least twice as many keys as the next one.
        self._layers: list[_Layer] = []

    @property
    def next_hash(self) -> int | None:
        """First hash of the next turn; `None` means that all keys were taken."""
        return None if self._last == _LAST_HASH else self._last + 1

    def replaced(self, columns: Sequence[BinaryColumn], *, takes: bool) -> _Bools:
        """Return which records have a newer one of their key: in their order, which is that of their offsets, after
        all those that were taken before. If it `takes` them, older records are compared with these, too.
        """
        keys = Keys.of(columns)
        hashes, order = _in_order(keys.hashes(self._seed))
        turn = slice(
            int(np.searchsorted(hashes, np.uint64(self._first))),
            int(np.searchsorted(hashes, np.uint64(self._last), "right")),
        )
        hashes, order = hashes[turn], order[turn]
        keys = keys.take(order)
        are_replaced = _have_later(hashes, keys) if takes else np.zeros(len(hashes), np.bool_)
        rows = np.flatnonzero(~are_replaced)
        for layer in self._layers:
            found = layer.holds(hashes[rows], keys.take(rows))
            are_replaced[rows[found]] = True
            rows = rows[~found]
        if takes and len(rows):
            self._take(_Layer(hashes[rows], keys.take(rows).copied()))
        replaced = np.zeros(sum(len(column.offsets) - 1 for column in columns), np.bool_)
        replaced[order] = are_replaced
        return replaced

    def _take(self, layer: _Layer) -> None:
        self._layers.append(layer)
        while len(self._layers) > 1 and len(self._layers[-2].hashes) < 2 * len(self._layers[-1].hashes):
            self._layers[-2:] = [self._layers[-2].joined(self._layers[-1])]
        while sum(each.size_bytes for each in self._layers) > self._memory_bytes:
            hashes = self._layers[0].hashes
            middle = int(hashes[len(hashes) // 2])
            if middle == int(hashes[0]):
                return  # Less than one hash cannot be taken at a time: its keys may need more memory than this.
            self._last = middle - 1
            self._layers = [part for each in self._layers if len((part := each.below(middle)).hashes)]


def _in_order(hashes: _Words) -> tuple[_Words, Int64s]:
    """Return the upper bits of hashes, in ascending order, and their places; the earlier of two equal ones first.

    Several times faster than `argsort`: the places are sorted with them, in their lower bits.
    """
    places = np.arange(len(hashes), dtype=np.uint64)
    assert len(hashes) <= int(_PLACE_BITS) + 1, "a batch has fewer records"
    together = np.sort((hashes & ~_PLACE_BITS) | places)
    return together & ~_PLACE_BITS, (together & _PLACE_BITS).astype(np.int64)


def _have_later(hashes: _Words, keys: Keys) -> _Bools:
    """Return which of these keys, in ascending order of their `hashes`, are there once more further back."""
    found = np.zeros(len(hashes), np.bool_)
    rows = np.flatnonzero(hashes[1:] == hashes[:-1])
    for distance in range(1, _ROUNDS + 1):
        if not len(rows):
            break
        found[rows] = keys.take(rows).equal(keys.take(rows + distance))
        rows = rows[~found[rows]]  # Several keys with this hash.
        rows = rows[rows + distance + 1 < len(hashes)]
        rows = rows[hashes[rows] == hashes[rows + distance + 1]]
    if len(rows):
        later = set[bytes]()
        places = np.flatnonzero(np.isin(hashes, hashes[rows]))[::-1]
        for place, key in zip(places.tolist(), keys.take(places).each(), strict=True):
            found[place] = key in later
            later.add(key)
    return found


def _secrets(seed: int, count: int) -> _Words:
    """Return as many words, which nothing but the seed gives away (SplitMix64)."""
    words = np.arange(1, count + 1, dtype=np.uint64) * _MIX + np.uint64(seed)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58_476D_1CE4_E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D0_49BB_1331_11EB)
    secrets: _Words = words ^ (words >> np.uint64(31))
    return secrets
