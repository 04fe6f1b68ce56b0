"""What the partitions of one broker share: settings, clock, counters, threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Protocol

from headrace.wire.ids import BrokerId
from headrace_server.clock import Clock

from headrace_broker.metrics import BrokerMetrics
from headrace_broker.runtime.flusher import Flusher
from headrace_broker.runtime.inflation import Inflation
from headrace_broker.settings import BrokerSettings


def _report(error: BaseException) -> None:
    """Report it to the event loop: there is no broker to end."""
    asyncio.get_running_loop().call_exception_handler({"message": "an invariant is violated", "exception": error})


class Checkpointed(Protocol):
    """What has a high watermark on the disk; a `Partition`."""

    async def checkpoint(self, *, force: bool) -> None:
        """Write a checkpoint if the last one is stale, and is due or `force`."""


@dataclass(frozen=True, slots=True)
class PartitionContext:
    """What all partitions of a broker share."""

    broker_id: BrokerId
    settings: BrokerSettings
    clock: Clock
    metrics: BrokerMetrics
    flusher: Flusher
    executor: Executor  # for appends that became slow, blocking reads and maintenance
    inflation: Inflation = field(default_factory=Inflation)  # for columns of batches that enter
    records: Inflation = field(default_factory=Inflation)  # for answers in the simple form
    clock_doubt: Callable[[], str] = lambda: ""
    """Why the wall clock cannot be believed now; empty: it can (H43)."""
    stamp_clock: Callable[[], int] | None = None
    """See `now_ms`; `None`: the wall clock is always believed."""
    advanced: dict[Checkpointed, None] = field(default_factory=dict)
    """Partitions that have committed something since `maintenance.checkpoint_idle` looked."""
    crash: Callable[[BaseException], None] = _report
    """End the broker: an invariant is violated. Returns at once."""

    def now_ms(self) -> int:
        """Return the time of a trusted clock, with which records are stamped and their own times are compared."""
        return self.clock.now_ms() if self.stamp_clock is None else self.stamp_clock()

    def watch(self, task: asyncio.Task[None]) -> None:
        """End the broker when a task without an awaiter fails: its error is a bug."""
        task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.crash(error)
