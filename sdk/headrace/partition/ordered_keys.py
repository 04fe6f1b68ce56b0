"""Keys in order, each with a number, in little memory: a key of 20 bytes takes about 70. Pure.

A list of lists of keys, as in the package `sortedcontainers`, with the numbers in arrays next to them: an insertion
moves at most `_MOST` entries. A dict would take twice the memory, and has no order.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np

_MOST = 1024
"""Keys in one list; a fuller one is divided."""
_FILLED = 768
"""Keys in each list of keys that are built at once."""
_FEW = 64
"""Numbers whose greatest one is found faster without numpy."""
KEY_BYTES = 51
"""Memory of a key besides its bytes, measured: the object, its place in a list, and its number."""


class OrderedKeys:
    """Map from keys to numbers below 2^63, in the order of the keys."""

    __slots__ = ("_count", "_keys", "_lasts", "_numbers", "_size_bytes")

    def __init__(self, keys: Sequence[bytes] = (), numbers: Sequence[int] = ()) -> None:
        """Take `keys`, which ascend strictly, and the number of each."""
        starts = range(0, len(keys), _FILLED)
        self._keys = [list(keys[start : start + _FILLED]) for start in starts]
        self._numbers = [array("q", numbers[start : start + _FILLED]) for start in starts]
        self._lasts = [part[-1] for part in self._keys]
        self._count, self._size_bytes = len(keys), sum(map(len, keys))

    @property
    def size_bytes(self) -> int:
        """Memory of the keys and their numbers, estimated."""
        return self._size_bytes + KEY_BYTES * self._count

    def __len__(self) -> int:
        return self._count

    def get(self, key: bytes) -> int:
        """Return the number of a key; `-1` if it is not there."""
        part = bisect_left(self._lasts, key)
        if part == len(self._lasts):
            return -1
        keys = self._keys[part]
        at = bisect_left(keys, key)
        return self._numbers[part][at] if keys[at] == key else -1

    def set(self, key: bytes, number: int) -> tuple[bytes, bytes] | None:
        """Set the number of a key; return the keys before and after it if it is new, an empty one for none."""
        part = bisect_left(self._lasts, key)
        if part == len(self._lasts):
            if not part:
                self._keys, self._numbers, self._lasts = [[key]], [array("q", (number,))], [key]
                self._count, self._size_bytes = 1, len(key)
                return b"", b""
            part -= 1
        keys, numbers = self._keys[part], self._numbers[part]
        at = bisect_left(keys, key)
        if at < len(keys) and keys[at] == key:
            numbers[at] = number
            return None
        before = keys[at - 1] if at else self._lasts[part - 1] if part else b""
        after = keys[at] if at < len(keys) else b""  # Beyond the last of a list is the end of all.
        keys.insert(at, key)
        numbers.insert(at, number)
        self._lasts[part] = keys[-1]
        self._count += 1
        self._size_bytes += len(key)
        if len(keys) > _MOST:
            self._divide(part)
        return before, after

    def _divide(self, part: int) -> None:
        # Keys that ascend all go to the last list: what is before them stays full.
        half = _FILLED if part == len(self._keys) - 1 else _MOST // 2
        keys, numbers = self._keys[part], self._numbers[part]
        self._keys[part : part + 1] = [keys[:half], keys[half:]]
        self._numbers[part : part + 1] = [numbers[:half], numbers[half:]]
        self._lasts[part : part + 1] = [keys[half - 1], keys[-1]]

    def remove(self, key: bytes) -> bool:
        """Remove a key; return whether it was there."""
        part = bisect_left(self._lasts, key)
        if part == len(self._lasts):
            return False
        keys = self._keys[part]
        at = bisect_left(keys, key)
        if keys[at] != key:
            return False
        del keys[at]
        del self._numbers[part][at]
        self._count -= 1
        self._size_bytes -= len(key)
        if keys:
            self._lasts[part] = keys[-1]
        else:
            del self._keys[part], self._numbers[part], self._lasts[part]
        return True

    def items(self, start: bytes = b"", end: bytes | None = None) -> Iterator[tuple[bytes, int]]:
        """Yield the keys from `start` on, below `end`, with their numbers. The map must not change meanwhile."""
        part = bisect_left(self._lasts, start)
        if part == len(self._lasts):
            return
        at = bisect_left(self._keys[part], start)
        for each in range(part, len(self._keys)):
            keys, numbers = self._keys[each], self._numbers[each]
            stop = len(keys) if end is None or end > keys[-1] else bisect_left(keys, end)
            yield from zip(keys[at:stop], numbers[at:stop], strict=True)
            if stop < len(keys):
                return
            at = 0

    def greatest(self, start: bytes, end: bytes) -> int:
        """Return the greatest number of the keys from `start` on, below `end`; `-1` if there are none."""
        part = bisect_left(self._lasts, start)
        if part == len(self._lasts):
            return -1
        at, found = bisect_left(self._keys[part], start), -1
        for each in range(part, len(self._keys)):
            keys, numbers = self._keys[each], self._numbers[each]
            stop = len(keys) if end > keys[-1] else bisect_left(keys, end)
            if stop - at > _FEW:
                found = max(found, int(np.frombuffer(numbers, np.int64)[at:stop].max()))
            elif stop > at:
                found = max(found, *numbers[at:stop])
            if stop < len(keys):
                break
            at = 0
        return found

    def only(self, prefix: bytes) -> tuple[bytes, int] | None:
        """Return the key that begins with `prefix`, with its number, if there is surely no other: a fast `first`."""
        part = bisect_left(self._lasts, prefix)
        if part == len(self._lasts):
            return None
        keys = self._keys[part]
        at = bisect_left(keys, prefix)
        key, after = keys[at], at + 1
        if after == len(keys) or not key.startswith(prefix) or keys[after].startswith(prefix):
            return None
        return key, self._numbers[part][at]

    def first(self, start: bytes, end: bytes, most: int) -> list[tuple[bytes, int]]:
        """Return the first `most` keys from `start` on, below `end`, with their numbers: as `items`, faster for few."""
        part = bisect_left(self._lasts, start)
        if part == len(self._lasts):
            return []
        keys = self._keys[part]
        at = stop = bisect_left(keys, start)
        limit = min(at + most, len(keys))
        while stop < limit and keys[stop] < end:
            stop += 1
        if stop == len(keys) and stop - at < most:
            return list(islice(self.items(start, end), most))  # They may continue in the next list.
        if stop - at == 1:
            return [(keys[at], self._numbers[part][at])]
        return list(zip(keys[at:stop], self._numbers[part][at:stop], strict=True))
