"""Shared context of all partitions of one broker: settings, clock, counters, threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Protocol

from headrace.partition.batch_cache import BatchCache
from headrace.wire.ids import BrokerId
from headrace_server.clock import Clock

from headrace_broker.metrics import BrokerMetrics
from headrace_broker.runtime.flusher import Flusher
from headrace_broker.runtime.inflation import Inflation
from headrace_broker.runtime.table_trace import TableTraces
from headrace_broker.settings import BrokerSettings
from headrace_broker.table_metrics import ObservedTable

TABLE_BUILDS = 2
"""States of tables that are made from their logs at a time."""


def _report(error: BaseException) -> None:
    """Report an error to the event loop if there is no broker to stop."""
    asyncio.get_running_loop().call_exception_handler({"message": "an invariant is violated", "exception": error})


class Checkpointed(Protocol):
    """Owner of a high watermark that survives its process: a `Partition`."""

    @property
    def has_stale_checkpoint(self) -> bool:
        """Whether `checkpoint` may be called, and would write one if it were due; takes no lock."""

    async def checkpoint(self) -> bool:
        """Write a checkpoint if one is due; return whether it did. Call it while `has_stale_checkpoint`."""

    def note_high_watermark(self) -> None:
        """Note it without an fsync. Blocks: call it in a thread."""

    def fail_unless_refused(self, error: Exception) -> bool:
        """Take the replica offline for an error of the storage; return False if the call was rejected and may succeed
        later.
        """


class KeptUp(ObservedTable, Protocol):
    """State that follows a log: a `PartitionTable`."""

    async def keep_up(self, seconds: float) -> None:
        """Continue the state up to what is committed now, and wait for that for some seconds."""


@dataclass(frozen=True, slots=True)
class PartitionContext:
    """Context of all partitions of a broker."""

    broker_id: BrokerId
    settings: BrokerSettings
    clock: Clock
    metrics: BrokerMetrics
    flusher: Flusher
    executor: Executor  # for appends that became slow, blocking reads and maintenance
    inflation: Inflation = field(default_factory=Inflation)  # for columns of produced batches
    records: Inflation = field(default_factory=Inflation)  # for responses in the simple form
    row_batches: BatchCache = field(default_factory=lambda: BatchCache(1 << 20))  # for reads of tables
    clock_doubt: Callable[[], str] = lambda: ""
    """Returns why the wall clock is in doubt; empty if it is not (H43)."""
    stamp_clock: Callable[[], int] | None = None
    """See `now_ms`; `None` means that the wall clock is always trusted."""
    advanced: dict[Checkpointed, None] = field(default_factory=dict)
    """Partitions with commits since the last `maintenance.note_idle`."""
    tables: dict[KeptUp, None] = field(default_factory=dict)
    """Tables of all partitions."""
    table_builds: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(TABLE_BUILDS))
    """Held while a table's state is made in a thread: more at a time would take as long, and the threads of others."""
    traces: TableTraces | None = None
    """Request traces of the tables; `None` means that none is traced."""
    crash: Callable[[BaseException], None] = _report
    """Stops the broker after a violated invariant. Returns at once."""

    def now_ms(self) -> int:
        """Return the time of a trusted clock, for timestamps of records and checks of producers' timestamps."""
        return self.clock.now_ms() if self.stamp_clock is None else self.stamp_clock()

    def watch(self, task: asyncio.Task[None]) -> None:
        """Stop the broker if a task without an awaiter fails, because its error is a bug."""
        task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.crash(error)
