"""When the columns of a table expire: the next ones are known without a search. Pure."""

from __future__ import annotations

import heapq

from headrace.wire.table_keys import row_of

EXPIRY_BYTES = 200
"""Memory of an entry, measured: a tuple, two times, and the places of the key in two dicts."""


class ColumnExpiries:
    """Maps the keys of columns that expire to times in ms since 1970."""

    def __init__(self, times: dict[bytes, int]) -> None:
        """Take the time of each key."""
        self.times = times
        """They are changed by `set` and `take` alone."""
        # One entry a key, at its time or earlier: a column that is written again and again leaves no others.
        self._entries = [(expires_ms, key) for key, expires_ms in times.items()]
        self._entry_times = dict(times)
        heapq.heapify(self._entries)

    @property
    def size_bytes(self) -> int:
        """Memory, estimated."""
        return EXPIRY_BYTES * len(self._entries)

    def set(self, key: bytes, expires_ms: int) -> None:
        """Set when a column expires; `0` means never."""
        if not expires_ms:
            self.times.pop(key, None)
            return
        self.times[key] = expires_ms
        entry_ms = self._entry_times.get(key)
        if entry_ms is None or expires_ms < entry_ms:
            self._entry_times[key] = expires_ms
            heapq.heappush(self._entries, (expires_ms, key))

    def take(self, now_ms: int, most: int) -> tuple[list[tuple[int, bytes]], bool]:
        """Remove the columns that have expired, the earliest first; return them, and whether there are more.

        Some more than `most` entries are looked at so that the columns of a row that expire together are together.
        """
        taken, count, last = list[tuple[int, bytes]](), 0, None
        while self._entries and self._entries[0][0] <= now_ms:
            entry_ms, key = self._entries[0]
            if count >= most and last != (entry_ms, row_of(key)):
                return taken, True
            count += 1
            if count == most:
                last = entry_ms, row_of(key)
            if self._settle_first() and self.times.pop(key, None) is not None:
                taken.append((entry_ms, key))
        return taken, False

    def _settle_first(self) -> bool:
        """Remove the first entry, or put it where it belongs; return whether it was that of its key, and removed."""
        entry_ms, key = self._entries[0]
        if self._entry_times.get(key) != entry_ms:  # There was an earlier one.
            heapq.heappop(self._entries)
            return False
        expires_ms = self.times.get(key, entry_ms)
        if expires_ms > entry_ms:  # It was written again.
            self._entry_times[key] = expires_ms
            heapq.heapreplace(self._entries, (expires_ms, key))
            return False
        heapq.heappop(self._entries)
        del self._entry_times[key]
        return True
