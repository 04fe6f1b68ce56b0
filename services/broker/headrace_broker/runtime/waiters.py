"""Fetches that wait for data, limited in number, woken by changes of any of their partitions.

The slots are shared between callers: if `n` of them wait, none gets more than `1 / (n + 1)` of all slots, so that a new
caller finds free ones.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from headrace_server.places import share_of

from headrace_broker.metrics import BrokerMetrics


class Wakeable(Protocol):
    """Owner of the events that are set after a change: a `Partition`."""

    watchers: dict[asyncio.Event, None]


class FetchWaiters:
    """Waiting fetches, owned by the broker's RPC service. Belongs to the event loop."""

    def __init__(self, max_waiting: int, metrics: BrokerMetrics) -> None:
        self._max_waiting = max_waiting
        self._waiting: dict[asyncio.Event, str] = {}
        self._of_peer: Counter[str] = Counter()
        self._closed = False
        metrics.waiting_fetches.set_function(lambda: len(self._waiting))

    def try_enter(self, partitions: Sequence[Wakeable], peer: str) -> asyncio.Event | None:
        """Start to wait at `partitions`; return `None` if too many, in total or of `peer`, wait or the broker stops."""
        if self._closed or len(self._waiting) >= self._max_waiting:
            return None
        of_peer = self._of_peer[peer]
        peers = len(self._of_peer) + (not of_peer)
        if of_peer >= share_of(self._max_waiting, peers):
            return None
        event = asyncio.Event()
        self._waiting[event] = peer
        self._of_peer[peer] = of_peer + 1
        for partition in partitions:
            partition.watchers[event] = None
        return event

    def leave(self, event: asyncio.Event, partitions: Sequence[Wakeable]) -> None:
        """Stop waiting after `try_enter`."""
        for partition in partitions:
            partition.watchers.pop(event, None)
        peer = self._waiting.pop(event, None)
        if peer is not None:
            self._of_peer[peer] -= 1
            if not self._of_peer[peer]:
                del self._of_peer[peer]

    def close(self) -> None:
        """Wake all waiters at shutdown; no new ones are accepted."""
        self._closed = True
        for event in self._waiting:
            event.set()

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed
