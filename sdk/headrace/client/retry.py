"""Back-off with full-range jitter. Pure: chance is given, time is the caller's."""

import random


class Backoff:
    """The delays between tries: exponential, between half and all of the step, never above the maximum."""

    __slots__ = ("_initial_ms", "_maximum_ms", "_random")

    def __init__(self, initial_ms: int, maximum_ms: int, rng: random.Random) -> None:
        assert 0 < initial_ms <= maximum_ms
        self._initial_ms = initial_ms
        self._maximum_ms = maximum_ms
        self._random = rng

    def delay_ms(self, attempt: int, at_least_ms: int = 0) -> int:
        """Give the delay before try number `attempt` (1 is the first retry), in milliseconds.

        Args:
            attempt: how many tries have failed, from 1.
            at_least_ms: what the server asked for; the delay is never shorter.
        """
        step = min(self._maximum_ms, self._initial_ms << min(max(attempt, 1) - 1, 20))
        return max(at_least_ms, int(step * (0.5 + self._random.random() / 2)))
