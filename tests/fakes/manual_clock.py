"""A clock for tests and simulations."""

from __future__ import annotations


class ManualClock:
    """A clock that moves only when told; one thread moves it."""

    def __init__(self, now_ms: int = 1_700_000_000_000, monotonic_ms: int = 0) -> None:
        self._now_ms = now_ms
        self._monotonic_ms = monotonic_ms

    def now_ms(self) -> int:
        """Return the wall time set."""
        return self._now_ms

    def monotonic_ms(self) -> int:
        """Return the monotonic time set."""
        return self._monotonic_ms

    def boottime_ms(self) -> int:
        """Return the monotonic time set: this machine never sleeps."""
        return self._monotonic_ms

    def advance(self, by_ms: int) -> None:
        """Move all clocks forward by `by_ms` >= 0."""
        assert by_ms >= 0
        self._now_ms += by_ms
        self._monotonic_ms += by_ms

    def set_wall(self, by_ms: int) -> None:
        """Move the wall clock alone, either way, as who sets it does."""
        self._now_ms += by_ms
