"""Phi accrual failure detection over the arrival times of a peer's messages (Hayashibara et al., SRDS 2004).

phi(t) = -log10 P(the next message is later than t), where t is the silence so far: at phi 1 one suspicion in ten is
wrong, at phi 8 one in 10^8, if the intervals keep their distribution. P is the upper tail of a normal distribution with
the mean and the standard deviation of the last intervals, as in the paper:

    phi(t) = -log10(erfc(z / sqrt(2)) / 2),   z = (t - mean) / max(deviation, MIN_DEVIATION_MS)

Cassandra uses the tail of an exponential distribution (phi = t / (mean * ln 10)), which suits the irregular intervals
of gossip. Here the sender promises a message at least every `promised_ms`: the exponential tail would reach phi 8 after
18 intervals, the normal one after about four.

A suspicion is no proof: decisions on in-sync sets, leadership and visibility do not use it. Driven by
`headrace_broker.runtime.failure_detector` and by the simulator. Pure: times are monotonic milliseconds and
arguments.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection

WINDOW_INTERVALS = 200
"""Intervals kept per peer: at one in 500 ms the last 100 seconds."""
MIN_DEVIATION_MS = 250
"""The minimum standard deviation: scheduling can delay even a perfectly regular peer."""
LONGEST_INTERVAL_MS = 5_000
"""A longer interval is not kept: it was an outage and does not predict the intervals after it."""
TRUST_AFTER_MS = 5_000
"""A suspected peer is trusted again after phi has been below half the threshold for this time."""
LATE_TICK_MS = 500
"""A tick that is late by more than this means that the observer was stopped and received nothing meanwhile."""

_LOG10_E = math.log10(math.e)
_FAR = 20.0  # from this many deviations on the tail is computed by its logarithm: erfc would reach zero


class ArrivalIntervals:
    """The intervals between one peer's messages, and phi. O(1) per arrival; owned by a `PhiAccrualFailureDetector`."""

    def __init__(self, at_ms: int, promised_ms: int) -> None:
        """Start as if a message had arrived at `at_ms`, with a prior mean interval of twice `promised_ms`."""
        self.heard_ms = at_ms
        self._shortest_ms = promised_ms // 2
        self._intervals: deque[int] = deque()
        self._sum = 0
        self._sum_of_squares = 0
        for interval_ms in (promised_ms, 3 * promised_ms):
            self._remember(interval_ms)

    def arrive(self, at_ms: int, *, listened: bool = True) -> None:
        """Record a message. Without `listened` its interval is not kept, because the observer was stopped meanwhile.

        Intervals below half of the promised one come from traffic. They prove that the peer lives, but do not predict
        how long its silence may be.
        """
        interval_ms = at_ms - self.heard_ms
        if listened and self._shortest_ms <= interval_ms <= LONGEST_INTERVAL_MS:
            self._remember(interval_ms)
        self.heard_ms = max(self.heard_ms, at_ms)

    def excuse(self, by_ms: int, at_ms: int) -> None:
        """Exclude `by_ms` of the silence until `at_ms`: this broker did not receive."""
        self.heard_ms = min(self.heard_ms + by_ms, at_ms)

    def phi(self, at_ms: int) -> float:
        """Return the suspicion level: finite, at least 0, and not falling during a silence."""
        count = len(self._intervals)
        mean = self._sum / count
        # In integers, to avoid cancellation.
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
    """Return -log10 P(X > z) of the standard normal distribution."""
    if z < _FAR:
        return max(0.0, -math.log10(math.erfc(z / math.sqrt(2)) / 2))
    # The tail is density(z) * z / (z^2 + 1), within 2 / z^4 of it and never above (Gordon's inequality).
    return z * z / 2 * _LOG10_E + math.log10(math.sqrt(2 * math.pi) * (z * z + 1) / z)


class PhiAccrualFailureDetector:
    """The suspected peers, with hysteresis. One task calls `arrive`, and `tick` every `tick_ms`."""

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
        """Record a message of a peer; ignore a peer that is not expected."""
        peer = self._peers.get(broker_id)
        if peer is not None:
            peer.arrive(at_ms, listened=self._lateness(at_ms) <= LATE_TICK_MS)

    def tick(self, at_ms: int, expected: Collection[int]) -> None:
        """Update phi of the peers in `expected` (registered, and should be sending); forget all others."""
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
        """Return how late a tick at `at_ms` is, in milliseconds; `0` or less means that it is on time."""
        return 0 if self._ticked_ms is None else at_ms - self._ticked_ms - self._tick_ms
