"""Metrics of refused calls, of those that a stricter posture would refuse, and of answers that quotas hold."""

from __future__ import annotations

from prometheus_client import Counter

MAX_SERIES = 1_000
"""Label sets of one metric; further ones are counted under the user `other`."""


class DecisionCounts:
    """Counts decisions of an `IdentityGate`. Names are of users and resources, so that their number is bounded."""

    def __init__(self, refused: Counter, would_refuse: Counter, held_seconds: Counter) -> None:
        """`refused` has the labels user and method, `would_refuse` also right, `held_seconds` user and quota."""
        self._refused = refused
        self._would_refuse = would_refuse
        self._held_seconds = held_seconds
        self._seen: dict[Counter, set[tuple[str, ...]]] = {refused: set(), would_refuse: set(), held_seconds: set()}

    def refused(self, user: str, method: str) -> None:
        """See `gate.Counts`."""
        self._count(self._refused, (user, method), ("other", method))

    def would_refuse(self, user: str, method: str, right: str) -> None:
        """See `gate.Counts`."""
        self._count(self._would_refuse, (user, method, right), ("other", method, ""))

    def held(self, user: str, use: str, seconds: float) -> None:
        """See `gate.Counts`."""
        self._count(self._held_seconds, (user or "anonymous", use), ("other", use), seconds)

    def _count(self, counter: Counter, labels: tuple[str, ...], others: tuple[str, ...], amount: float = 1.0) -> None:
        seen = self._seen[counter]
        if labels not in seen:
            if len(seen) >= MAX_SERIES:
                labels = others
            seen.add(labels)
        counter.labels(*labels).inc(amount)
