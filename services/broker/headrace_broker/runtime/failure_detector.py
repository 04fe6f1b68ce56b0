"""Peers that this broker suspects to be dead: measured, exported as metrics, published in its registration.

Both ends of the replication streams report messages: a leader those of its followers, a follower those of its leaders.
The controller only uses suspicions to choose among equal candidates for leadership. Owned by the broker's app, belongs
to the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Protocol

import structlog

from headrace_broker.core.phi_accrual import PhiAccrualFailureDetector
from headrace_broker.metrics import BrokerMetrics

log = structlog.get_logger(__name__)

PUBLISH_SECONDS = 1.0
"""Minimum interval of writes of the registration."""


class Publisher(Protocol):
    """Publisher of suspected failures: `registration.Registration`."""

    async def announce_suspected(self, broker_ids: Sequence[int]) -> bool:
        """Publish the suspected brokers; return False if the call must be repeated."""
        ...


class PeerFailureDetector:
    """Failure detector of one broker; see the module."""

    def __init__(self, table: PhiAccrualFailureDetector, publisher: Publisher, metrics: BrokerMetrics) -> None:
        self._table = table
        self._publisher = publisher
        self._metrics = metrics
        self._published: tuple[int, ...] = ()
        self._changed = asyncio.Event()

    def on_heartbeat(self, broker_id: int, at_ms: int) -> None:
        """Record a message of a peer at `at_ms` (monotonic)."""
        self._table.arrive(broker_id, at_ms)

    def level(self, broker_id: int) -> float:
        """Return phi of a peer as of the last tick; `0` for one that is not expected to send."""
        return self._table.levels.get(broker_id, 0.0)

    def tick(self, at_ms: int, expected: Collection[int]) -> None:
        """Update phi of the `expected` peers; call it at the tick interval of the table."""
        forgotten = [broker_id for broker_id in self._table.levels if broker_id not in expected]
        self._table.tick(at_ms, expected)
        gauge = self._metrics.peer_phi
        for broker_id in forgotten:
            gauge.remove(str(broker_id))
        for broker_id, level in self._table.levels.items():
            gauge.labels(str(broker_id)).set(level)
        if self._table.suspected != self._published:
            self._changed.set()

    async def run(self) -> None:
        """Publish changes, until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            suspected = self._table.suspected
            if suspected != self._published and await self._publisher.announce_suspected(suspected):
                log.info("suspected_brokers_published", suspected=list(suspected))
                self._published = suspected
            await asyncio.sleep(PUBLISH_SECONDS)
