"""Back-off with full jitter, and how often a new leader is looked for. Pure: chance is given, time is the caller's.

Back-off is for a server that must be tried again, after an answer or none. A partition whose leader is gone is looked
for in the metadata instead, at `look_delay_ms`, for all partitions of a client together: what it waits for is the
election, and the new leader is tried at once.
"""

import random

LOOK_MS = 100
"""Metadata is read again after this long to twice this long while some partition's leader is looked for."""
OVERDUE_MS = 1_000
"""A call that waits this much longer than the wait in its request makes its client read metadata for a newer leader."""


class Backoff:
    """The delays between tries: exponential, between nothing and all of the step, never above the maximum."""

    __slots__ = ("_initial_ms", "_maximum_ms", "_random")

    def __init__(self, initial_ms: int, maximum_ms: int, rng: random.Random) -> None:
        assert 0 < initial_ms <= maximum_ms
        self._initial_ms = initial_ms
        self._maximum_ms = maximum_ms
        self._random = rng

    def delay_ms(self, attempt: int, at_least_ms: int = 0) -> int:
        """Return the delay before try number `attempt` (1 is the first retry), in milliseconds, at least 1.

        Args:
            attempt: how many tries have failed, from 1.
            at_least_ms: the minimum that the server named; the delay is never shorter.
        """
        step = min(self._maximum_ms, self._initial_ms << min(max(attempt, 1) - 1, 20))
        return max(at_least_ms, 1, int(step * self._random.random()))

    def look_delay_ms(self) -> int:
        """Return the delay before metadata is read again for want of a leader, in milliseconds."""
        return LOOK_MS + int(LOOK_MS * self._random.random())


class Overdue:
    """Whether a call should have been answered by now, and when to read metadata because of it."""

    __slots__ = ("_look_at_ms", "due_ms")

    def __init__(self, sent_ms: int, wait_ms: int) -> None:
        """`wait_ms` is how long the broker may wait before it answers."""
        self.due_ms = self._look_at_ms = sent_ms + wait_ms + OVERDUE_MS

    def is_due(self, now_ms: int) -> bool:
        """Whether it should have been answered."""
        return now_ms >= self.due_ms

    def takes_look(self, now_ms: int) -> bool:
        """Whether to read metadata now because of it: once in `OVERDUE_MS`."""
        if now_ms < self._look_at_ms:
            return False
        self._look_at_ms = now_ms + OVERDUE_MS
        return True

    def next_ms(self, now_ms: int) -> int:
        """Return the time of its next event."""
        return self.due_ms if now_ms < self.due_ms else max(self._look_at_ms, now_ms + 1)
