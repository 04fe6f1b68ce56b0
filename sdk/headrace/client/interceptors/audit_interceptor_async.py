"""Interceptor that sends a producer's claims to the audit topic in the background, by a small separate producer.

With a separate producer, a full buffer delays no claim, and a claim that cannot be sent affects no future, flush or
close: counting never harms the records. Claims that could not be sent are kept and retried.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.client.base.acompat import result_async, time_limit_async
from headrace.client.base.config import ProducerConfig
from headrace.client.base.worker_async import AsyncWorker
from headrace.client.interceptors.audit import (
    BETWEEN_CLAIMS_S,
    CLOSE_TIMEOUT_S,
    DELIVERY_TIMEOUT_MS,
    AuditLedger,
    Claim,
    Complaints,
)
from headrace.client.interceptors.interceptor import ProducedBatch
from headrace.wire.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.client.producer.producer_async import Producer


class AsyncAuditInterceptor:
    """Counts a producer's batches and sends the claims in the background, from the first batch on.

    A `ProducerInterceptor` owned by one producer.
    """

    def __init__(self, config: ProducerConfig, make_producer: Callable[[], "Producer"]) -> None:
        self._topic = config.audit_topic
        self._ledger = AuditLedger(config)
        self._make_producer = make_producer
        self._producer: Producer | None = None
        self._complaints = Complaints(config.audit_topic)
        interval_s = config.audit_interval_ms / 1000
        self._worker = AsyncWorker("headrace-audit", self._send_due, interval_s=interval_s, pause_s=BETWEEN_CLAIMS_S)

    def on_sealed(self, batch: ProducedBatch) -> None:
        """Count a batch; a window that it opens is claimed soon."""
        if self._ledger.sealed(batch):
            self._worker.wake()

    def on_finished(self, batch: ProducedBatch, error: HeadraceError | None) -> None:
        """Count the result of a batch."""
        self._ledger.finished(batch, error)

    async def close(self, timeout: float | None) -> None:
        """Send the last claims for up to `timeout` seconds, after everything else was resolved."""
        deadline = time.monotonic() + (CLOSE_TIMEOUT_S if timeout is None else timeout)
        if await self._worker.stop(max(0.0, deadline - time.monotonic())):
            await self._send(max(0.0, deadline - time.monotonic()), closed=True)
        if self._producer is not None:
            try:
                await self._producer.close(max(0.0, deadline - time.monotonic()))
            except HeadraceError as error:
                self._complaints.failed(error)

    async def _send_due(self) -> None:
        await self._send(DELIVERY_TIMEOUT_MS / 1000)

    async def _send(self, timeout: float, *, closed: bool = False) -> None:
        deadline = time.monotonic() + timeout
        sent, taken = [], list[Claim]()
        try:
            async with time_limit_async(timeout):
                if self._producer is None:
                    self._producer = self._make_producer()
                for claim in self._ledger.claims(time.time_ns() // 1_000_000, closed=closed):
                    sent.append((claim, await self._producer.send(self._topic, claim.value, claim.key)))
                for claim, future in sent:
                    await result_async(future, max(0.0, deadline - time.monotonic()))
                    taken.append(claim)
            self._complaints.worked()
        except (HeadraceError, TimeoutError) as error:
            self._complaints.failed(error)
        finally:
            self._ledger.taken(taken)
