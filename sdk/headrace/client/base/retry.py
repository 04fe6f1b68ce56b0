"""Back-off with full jitter, the interval of leader look-ups, and the outcome of several tries. Pure: randomness and
time are arguments.

Back-off applies to a server that must be tried again, after a response or none. For a partition whose leader is gone,
metadata is read at `look_delay_ms` intervals, for all partitions of a client together: the wait is for the election,
and the new leader is tried at once.
"""

import random

from headrace.wire.errors import HeadraceError, Outcome

LOOK_MS = 100
"""Minimum interval of metadata requests while a leader is looked up; the maximum is twice this."""
OVERDUE_MS = 1_000
"""A call that exceeds the wait in its request by this time makes its client read metadata for a newer leader."""


class Backoff:
    """Delays between tries: exponential steps with full jitter, never above the maximum."""

    __slots__ = ("_initial_ms", "_maximum_ms", "_random")

    def __init__(self, initial_ms: int, maximum_ms: int, rng: random.Random) -> None:
        assert 0 < initial_ms <= maximum_ms
        self._initial_ms = initial_ms
        self._maximum_ms = maximum_ms
        self._random = rng

    def delay_ms(self, attempt: int, at_least_ms: int = 0) -> int:
        """Return the delay before try number `attempt` (1 is the first retry), in milliseconds, at least 1.

        Args:
            attempt: number of failed tries, from 1.
            at_least_ms: minimum requested by the server; the delay is never shorter.
        """
        step = min(self._maximum_ms, self._initial_ms << min(max(attempt, 1) - 1, 20))
        return max(at_least_ms, 1, int(step * self._random.random()))

    def look_delay_ms(self) -> int:
        """Return the delay before metadata is read again because a leader is missing, in milliseconds."""
        return LOOK_MS + int(LOOK_MS * self._random.random())


class Overdue:
    """Overdue check of one call, and the times at which to read metadata because of it."""

    __slots__ = ("_look_at_ms", "due_ms")

    def __init__(self, sent_ms: int, wait_ms: int) -> None:
        """`wait_ms` is the time for which the broker may wait before it responds."""
        self.due_ms = self._look_at_ms = sent_ms + wait_ms + OVERDUE_MS

    def is_due(self, now_ms: int) -> bool:
        """Return whether the response is overdue."""
        return now_ms >= self.due_ms

    def takes_look(self, now_ms: int) -> bool:
        """Return whether to read metadata now because of it: once per `OVERDUE_MS`."""
        if now_ms < self._look_at_ms:
            return False
        self._look_at_ms = now_ms + OVERDUE_MS
        return True

    def next_ms(self, now_ms: int) -> int:
        """Return the time of its next event."""
        return self.due_ms if now_ms < self.due_ms else max(self._look_at_ms, now_ms + 1)


class Tries:
    """Tries of one call: if one of them may have been applied, so may the call, whatever the error of the last one is.

    A call without an effect, by its method's name, is never in doubt.
    """

    __slots__ = ("_in_doubt", "has_effect")

    def __init__(self, method: str) -> None:
        self.has_effect = not method.startswith(_WITHOUT_EFFECT)
        """Whether the method may change something."""
        self._in_doubt = False

    @property
    def in_doubt(self) -> bool:
        """Whether a try that failed may have been applied."""
        return self._in_doubt

    def failed(self, error: HeadraceError) -> None:
        """Note the error of a try."""
        self._in_doubt = self._in_doubt or (self.has_effect and error.outcome == Outcome.UNKNOWN)

    def applied_in_part(self) -> None:
        """Note that a part of the call was applied."""
        self._in_doubt = self.has_effect

    def final(self, error: HeadraceError) -> HeadraceError:
        """Return the error of the call, with the outcome of all its tries."""
        if self._in_doubt:
            error.outcome = Outcome.UNKNOWN
        return error


_WITHOUT_EFFECT = (
    "Check", "Count", "Describe", "Dump", "Fetch", "Get", "InitProducerId", "List", "OpenSession", "Scan", "WhoAmI",
)  # fmt: skip
