"""Produce requests that wait for the high watermark (acks=all), ordered by end offset.

Owned by a `Leadership`; a token identifies one waiting request of the driver.
"""

from __future__ import annotations

import heapq


class Acknowledgements:
    """Waiting tokens in the order of their end offsets."""

    def __init__(self) -> None:
        self._pending: list[tuple[int, int]] = []  # heap of (end offset, token)
        self._waiting: set[int] = set()  # tokens of `_pending` that a call still waits for

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, end_offset: int, token: int) -> None:
        """Add `token`, which waits for `end_offset`."""
        heapq.heappush(self._pending, (end_offset, token))
        self._waiting.add(token)

    def drop(self, token: int) -> None:
        """Forget `token`: its caller no longer waits."""
        self._waiting.discard(token)

    def release(self, high_watermark: int) -> list[int]:
        """Remove and return the tokens whose end offset `high_watermark` has reached, in offset order."""
        released = []
        while self._pending and self._pending[0][0] <= high_watermark:
            token = heapq.heappop(self._pending)[1]
            if token in self._waiting:
                self._waiting.remove(token)
                released.append(token)
        return released

    def take_all(self) -> list[int]:
        """End all waits; return their tokens in offset order."""
        tokens = [token for _, token in sorted(self._pending) if token in self._waiting]
        self._pending.clear()
        self._waiting.clear()
        return tokens

    def validate(self, high_watermark: int) -> None:
        """Assert that no token waits for a committed offset (I9)."""
        assert all(end > high_watermark for end, token in self._pending if token in self._waiting), "I9"
        assert self._waiting <= {token for _, token in self._pending}
