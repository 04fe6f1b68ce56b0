"""Sends an asyncio producer's claims to the audit topic: a task, and a small producer of its own."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.client.base.config import ProducerConfig
from headrace.client.interceptors.audit import AuditLedger, Claim
from headrace.client.interceptors.audit_interceptor import (
    BETWEEN_CLAIMS_S,
    CLOSE_TIMEOUT_S,
    DELIVERY_TIMEOUT_MS,
    Complaints,
)
from headrace.client.interceptors.interceptor import ProducedBatch
from headrace.wire.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.client.producer.producer_async import Producer


class AsyncAuditInterceptor:
    """As `AuditInterceptor`, on one event loop."""

    def __init__(self, config: ProducerConfig, make_producer: Callable[[], "Producer"]) -> None:
        self._topic = config.audit_topic
        self._interval_s = config.audit_interval_ms / 1000
        self._ledger = AuditLedger(config)
        self._make_producer = make_producer
        self._producer: Producer | None = None
        self._complaints = Complaints(config.audit_topic)
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._stopped = False

    def on_sealed(self, batch: ProducedBatch) -> None:
        """Count a batch; a window that it begins is claimed soon."""
        if not self._ledger.sealed(batch):
            return
        if self._task is None and not self._stopped:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="headrace-audit")
        self._wanted.set()

    def on_finished(self, batch: ProducedBatch, error: HeadraceError | None) -> None:
        """Count what became of a batch."""
        self._ledger.finished(batch, error)

    async def close(self, timeout: float | None) -> None:
        """Send the last claims, for up to `timeout` seconds, after everything else was resolved."""
        self._stopped = True
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.wait([self._task])
        if not self._task.cancelled():
            self._task.result()
        deadline = time.monotonic() + (CLOSE_TIMEOUT_S if timeout is None else timeout)
        await self._send(max(0.0, deadline - time.monotonic()), closed=True)
        if self._producer is not None:
            try:
                await self._producer.close(max(0.0, deadline - time.monotonic()))
            except HeadraceError as error:
                self._complaints.failed(error)

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s):
                    await self._wanted.wait()
            self._wanted.clear()
            await self._send(DELIVERY_TIMEOUT_MS / 1000)
            await asyncio.sleep(BETWEEN_CLAIMS_S)

    async def _send(self, timeout: float, *, closed: bool = False) -> None:
        taken = list[Claim]()
        try:
            async with asyncio.timeout(timeout):
                if self._producer is None:
                    self._producer = self._make_producer()
                claims = self._ledger.claims(time.time_ns() // 1_000_000, closed=closed)
                sent = [(claim, await self._producer.send(self._topic, claim.value, claim.key)) for claim in claims]
                for claim, future in sent:
                    await future
                    taken.append(claim)
            self._complaints.worked()
        except (HeadraceError, TimeoutError) as error:
            self._complaints.failed(error)
        finally:
            self._ledger.taken(taken)
