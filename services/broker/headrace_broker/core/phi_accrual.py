"""How much to doubt that a peer lives, from when its messages arrived: phi accrual (Hayashibara et al., SRDS 2004).

phi(t) = -log10 P(the next message is later than t), t being the silence so far: at phi 1 one doubt in ten is wrong, at
phi 8 one in 10^8, if silences are as they were. P is the upper tail of a normal distribution with the mean and the
standard deviation of the last intervals, as in the paper:

    phi(t) = -log10(erfc(z / sqrt(2)) / 2),   z = (t - mean) / max(deviation, MIN_DEVIATION_MS)

Cassandra takes the tail of an exponential distribution instead (phi = t / (mean * ln 10)), for gossip whose intervals
vary as widely as they are long. Here the sender keeps time: it promises a message at least every `promised_ms`. The
exponential tail would ask for a silence of 18 intervals where the normal one asks for about four.

A suspected failure is no proof: it is not read where in-sync sets, leadership or visibility are decided. Driven by
`headrace_broker.runtime.failure_detector` and by the simulator. Pure: times are monotonic milliseconds that the caller
gives.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection

WINDOW_INTERVALS = 200
"""Intervals remembered a peer: at one in 500 ms the last 100 seconds."""
MIN_DEVIATION_MS = 250
"""The least standard deviation: a peer as regular as a clock may still be late by a few scheduler's turns."""
LONGEST_INTERVAL_MS = 5_000
"""A longer interval is not remembered: it was an outage and says nothing of the rhythm after it."""
TRUST_AFTER_MS = 5_000
"""A suspected peer is trusted again when phi stayed below half the threshold for so long."""
LATE_TICK_MS = 500
"""A tick that is later than promised by more says that the observer stood still, and did not listen meanwhile."""

_LOG10_E = math.log10(math.e)
_FAR = 20.0  # from this many deviations on the tail is computed by its logarithm: erfc would reach zero


class ArrivalIntervals:
    """The intervals between one peer's messages, and phi. O(1) an arrival; owned by a `PhiAccrualFailureDetector`."""

    def __init__(self, at_ms: int, promised_ms: int) -> None:
        """Begin as if a message had come at `at_ms`; until there are intervals, twice `promised_ms` is expected."""
        self.heard_ms = at_ms
        self._shortest_ms = promised_ms // 2
        self._intervals: deque[int] = deque()
        self._sum = 0
        self._sum_of_squares = 0
        for interval_ms in (promised_ms, 3 * promised_ms):
            self._remember(interval_ms)

    def arrive(self, at_ms: int, *, listened: bool = True) -> None:
        """A message came; not `listened`: the observer stood still, so the interval is not the peer's.

        Messages that follow each other faster than promised come with traffic: they are heartbeats, but say nothing
        of how long the silence between two may be.
        """
        interval_ms = at_ms - self.heard_ms
        if listened and self._shortest_ms <= interval_ms <= LONGEST_INTERVAL_MS:
            self._remember(interval_ms)
        self.heard_ms = max(self.heard_ms, at_ms)

    def excuse(self, by_ms: int, at_ms: int) -> None:
        """Exclude `by_ms` of the silence until `at_ms`: this broker did not receive."""
        self.heard_ms = min(self.heard_ms + by_ms, at_ms)

    def phi(self, at_ms: int) -> float:
        """Return the level of suspicion: finite, at least 0, and never falling while the silence lasts."""
        count = len(self._intervals)
        mean = self._sum / count
        # In whole numbers, so that nothing is cancelled away.
        variance = (count * self._sum_of_squares - self._sum * self._sum) / (count * count)
        deviation = max(math.sqrt(variance), MIN_DEVIATION_MS)
        return _minus_log10_of_tail((at_ms - self.heard_ms - mean) / deviation)

    def _remember(self, interval_ms: int) -> None:
        if len(self._intervals) == WINDOW_INTERVALS:
            oldest = self._intervals.popleft()
            self._sum -= oldest
            self._sum_of_squares -= oldest * oldest
        self._intervals.append(interval_ms)
        self._sum += interval_ms
        self._sum_of_squares += interval_ms * interval_ms


def _minus_log10_of_tail(z: float) -> float:
    """-log10 P(X > z) of the standard normal distribution."""
    if z < _FAR:
        return max(0.0, -math.log10(math.erfc(z / math.sqrt(2)) / 2))
    # The tail is density(z) * z / (z^2 + 1), within 2 / z^4 of it and never above (Gordon's inequality).
    return z * z / 2 * _LOG10_E + math.log10(math.sqrt(2 * math.pi) * (z * z + 1) / z)


class PhiAccrualFailureDetector:
    """Which peers are suspected, with hysteresis. One task calls `arrive`, and `tick` every `tick_ms`."""

    def __init__(self, *, threshold: float, promised_ms: int, tick_ms: int) -> None:
        """Suspect from phi = `threshold` on; peers promise a message at least every `promised_ms`."""
        self._threshold = threshold
        self._promised_ms = promised_ms
        self._tick_ms = tick_ms
        self._ticked_ms: int | None = None
        self._peers: dict[int, ArrivalIntervals] = {}
        self._levels: dict[int, float] = {}
        self._doubted_ms: dict[int, int] = {}  # of suspected peers: when phi was last at half the threshold or more

    @property
    def levels(self) -> dict[int, float]:
        """Phi by broker id, as of the last tick; absent brokers are not expected to send. Read-only."""
        return self._levels

    @property
    def suspected(self) -> tuple[int, ...]:
        """The suspected brokers as of the last tick, ascending."""
        return tuple(sorted(self._doubted_ms))

    def arrive(self, broker_id: int, at_ms: int) -> None:
        """Note that a message of a peer came; one that is not expected says nothing."""
        peer = self._peers.get(broker_id)
        if peer is not None:
            peer.arrive(at_ms, listened=self._lateness(at_ms) <= LATE_TICK_MS)

    def tick(self, at_ms: int, expected: Collection[int]) -> None:
        """Judge the peers in `expected`: those that are registered and should be sending; forget all others."""
        lateness_ms = self._lateness(at_ms)
        self._ticked_ms = at_ms
        for broker_id in [known for known in self._peers if known not in expected]:
            del self._peers[broker_id]
            self._doubted_ms.pop(broker_id, None)
        for broker_id in expected:
            if broker_id not in self._peers:
                self._peers[broker_id] = ArrivalIntervals(at_ms, self._promised_ms)
        if lateness_ms > LATE_TICK_MS:
            for peer in self._peers.values():
                peer.excuse(lateness_ms, at_ms)
        self._levels = {broker_id: peer.phi(at_ms) for broker_id, peer in self._peers.items()}
        for broker_id, level in self._levels.items():
            self._judge(broker_id, level, at_ms)

    def _judge(self, broker_id: int, level: float, at_ms: int) -> None:
        if level >= self._threshold or (broker_id in self._doubted_ms and level >= self._threshold / 2):
            self._doubted_ms[broker_id] = at_ms
        elif at_ms - self._doubted_ms.get(broker_id, at_ms) >= TRUST_AFTER_MS:
            del self._doubted_ms[broker_id]

    def _lateness(self, at_ms: int) -> int:
        """How much later than promised a tick at `at_ms` is; 0 or less: it is not."""
        return 0 if self._ticked_ms is None else at_ms - self._ticked_ms - self._tick_ms
