"""Writes to etcd that are attempted until it is known what became of them, within a deadline.

Any coordinator writes for clients and administrators: the compares decide every race. A write whose answer was lost is
neither done nor failed: it is sent again on the same compares until one attempt is answered (PROTOCOL C2, C3). Used by
the stores of topics, partitions and brokers; belongs to the event loop. Deadlines are the event loop's time, seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog
from headrace.wire.errors import (
    HeadraceError,
    MetastoreUnavailableError,
    Outcome,
    TimedOutError,
    TopicAlreadyExistsError,
)
from headrace_server.metastore.api import (
    KeyValue,
    Metastore,
    MetastoreRolledBackError,
    MetastoreUnknownOutcomeError,
    RangeResult,
    TxnResult,
)

from headrace_coordinator.core.topic_writes import Write
from headrace_coordinator.metrics import CoordinatorMetrics

log = structlog.get_logger(__name__)

RETRY_SECONDS = 0.1
T = TypeVar("T")


class WriteTracker:
    """What became of the writes of one call so far."""

    def __init__(self) -> None:
        self.pending = False
        """A write was sent and not answered yet."""
        self.unanswered: MetastoreUnavailableError | None = None
        """How an earlier write went unanswered."""


class AmbiguousWriteResolver:
    """Reads and writes with the rule of the module; at most `max_inflight` transactions at once."""

    def __init__(self, metastore: Metastore, metrics: CoordinatorMetrics, *, max_inflight: int) -> None:
        self._metastore = metastore
        self._metrics = metrics
        self._permits = asyncio.Semaphore(max_inflight)

    async def read(self, key: str, deadline: float) -> KeyValue | None:
        """Read a key.

        Raises:
            MetastoreUnavailableError: no answer; nothing was written.
        """
        return (await self._answered(self._metastore.get(key), deadline)).key_value

    async def read_prefix(self, prefix: str, deadline: float) -> RangeResult:
        """Read all keys of a prefix. Raises as `read`."""
        return await self._answered(self._metastore.range(prefix), deadline)

    async def send(self, tracker: WriteTracker, write: Write) -> TxnResult:
        """Send one transaction once, as a part of an attempt."""
        async with self._permits:
            tracker.pending = True
            result = await self._metastore.txn(write.compares, write.success, write.failure)
            tracker.pending = False
            return result

    async def resolve(self, attempt: Callable[[WriteTracker], Awaitable[T | None]], deadline: float, what: str) -> T:
        """Attempt until it settles: a result or a typed error. None and lost answers mean: again.

        An error that ends it says UNKNOWN as soon as one write went unanswered.

        Raises:
            MetastoreUnavailableError: no answer in time, with the outcome.
            TimedOutError: no attempt came through in time; nothing was applied.
        """
        tracker = WriteTracker()
        try:
            async with asyncio.timeout_at(deadline):
                while True:
                    settled = await self._attempt_once(attempt, tracker, what)
                    if settled is not None:
                        return settled
                    await asyncio.sleep(RETRY_SECONDS)
        except TimeoutError:
            if tracker.pending or tracker.unanswered is not None:
                raise MetastoreUnavailableError(
                    f"{what}: etcd did not answer in time", outcome=Outcome.UNKNOWN
                ) from tracker.unanswered
            raise TimedOutError(
                f"{what} did not end in time",
                outcome=Outcome.NOT_APPLIED,
                action="Try again with a longer deadline; nothing has taken effect.",
            ) from None

    async def _attempt_once(
        self, attempt: Callable[[WriteTracker], Awaitable[T | None]], tracker: WriteTracker, what: str
    ) -> T | None:
        try:
            return await attempt(tracker)
        except MetastoreRolledBackError:
            raise
        except MetastoreUnknownOutcomeError as error:
            self._metrics.ambiguous_writes.inc()
            log.warning("write_unanswered", what=what, cause=error.message)
            tracker.unanswered = error
            tracker.pending = False
            return None
        except MetastoreUnavailableError:
            if tracker.unanswered is None:
                raise
            return None
        except HeadraceError as error:
            if tracker.unanswered is not None and not isinstance(error, TopicAlreadyExistsError):
                error.outcome = Outcome.UNKNOWN
            raise

    async def _answered(self, read: Awaitable[T], deadline: float) -> T:
        """Wait for a read; where it fails nothing was written."""
        try:
            async with asyncio.timeout_at(deadline):
                return await read
        except MetastoreRolledBackError:
            raise
        except MetastoreUnavailableError as error:
            raise MetastoreUnavailableError(error.message, outcome=Outcome.NOT_APPLIED) from error
        except TimeoutError:
            raise MetastoreUnavailableError("etcd did not answer in time", outcome=Outcome.NOT_APPLIED) from None
