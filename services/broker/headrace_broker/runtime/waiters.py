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


class WakeUp:
    """Set after a change, for one waiting call. Belongs to the event loop; it needs no task, unlike `asyncio.timeout`.

    A change between two waits is not missed.
    """

    __slots__ = ("_waiting", "is_set")

    def __init__(self) -> None:
        self.is_set = False
        self._waiting: asyncio.Future[None] | None = None

    def set(self) -> None:
        """Wake the call, or have its next wait return at once."""
        self.is_set = True
        self._end()

    async def wait_until(self, deadline: float) -> bool:
        """Wait for a change since the last wait; return `False` if there was none until `deadline`, in loop time."""
        if not self.is_set:
            loop = asyncio.get_running_loop()
            self._waiting = loop.create_future()
            timer = loop.call_at(deadline, self._end)
            try:
                await self._waiting
            finally:
                timer.cancel()
                self._waiting = None
        was_set, self.is_set = self.is_set, False
        return was_set

    def _end(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


class Wakeable(Protocol):
    """Owner of what is set after a change: a `Partition`."""

    watchers: dict[WakeUp, None]


class FetchWaiters:
    """Waiting fetches, owned by the broker's RPC service. Belongs to the event loop."""

    def __init__(self, max_waiting: int, metrics: BrokerMetrics) -> None:
        self._max_waiting = max_waiting
        self._waiting: dict[WakeUp, str] = {}
        self._of_peer: Counter[str] = Counter()
        self._closed = False
        metrics.waiting_fetches.set_function(lambda: len(self._waiting))

    def try_enter(self, partitions: Sequence[Wakeable], peer: str) -> WakeUp | None:
        """Start to wait at `partitions`; return `None` if too many, in total or of `peer`, wait or the broker stops."""
        if self._closed or len(self._waiting) >= self._max_waiting:
            return None
        of_peer = self._of_peer[peer]
        peers = len(self._of_peer) + (not of_peer)
        if of_peer >= share_of(self._max_waiting, peers):
            return None
        wake_up = WakeUp()
        self._waiting[wake_up] = peer
        self._of_peer[peer] = of_peer + 1
        for partition in partitions:
            partition.watchers[wake_up] = None
        return wake_up

    def leave(self, wake_up: WakeUp, partitions: Sequence[Wakeable]) -> None:
        """Stop waiting after `try_enter`."""
        for partition in partitions:
            partition.watchers.pop(wake_up, None)
        peer = self._waiting.pop(wake_up, None)
        if peer is not None:
            self._of_peer[peer] -= 1
            if not self._of_peer[peer]:
                del self._of_peer[peer]

    def close(self) -> None:
        """Wake all waiters at shutdown; no new ones are accepted."""
        self._closed = True
        for wake_up in self._waiting:
            wake_up.set()

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed
