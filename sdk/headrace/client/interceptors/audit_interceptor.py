"""Sends a producer's claims to the audit topic: a thread, and a small producer of its own.

Of its own, so that a full buffer delays no claim, and a claim that cannot be sent shows in no future, flush or close:
records are never worse off for being counted. What could not be sent is kept and tried again.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from headrace.client.base.config import ClientConfig, ProducerConfig
from headrace.client.interceptors.audit import AuditLedger, Claim
from headrace.client.interceptors.interceptor import ProducedBatch
from headrace.wire.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.client.producer.producer import Producer

BETWEEN_CLAIMS_S = 0.1
"""A window that begins is claimed at once, but not more often than this."""
MAX_BLOCK_MS = 5_000
DELIVERY_TIMEOUT_MS = 30_000
CLOSE_TIMEOUT_S = 10.0
"""How long the last claims may take where `close` has no limit."""

_log = logging.getLogger("headrace.client")


def publisher_settings(config: ProducerConfig) -> dict[str, Any]:
    """Return the settings of the producer that sends the claims of another one."""
    shared = {field.name: getattr(config, field.name) for field in fields(ClientConfig)}
    return {
        **shared,
        "client_id": f"{config.client_id}-audit",
        "linger_ms": 0,
        "max_block_ms": MAX_BLOCK_MS,
        "delivery_timeout_ms": DELIVERY_TIMEOUT_MS,
    }


class Complaints:
    """Says that claims cannot be sent: once for each time that they cannot."""

    def __init__(self, audit_topic: str) -> None:
        self._audit_topic = audit_topic
        self._failing = False

    def failed(self, error: Exception) -> None:
        """Claims were not taken; they are kept."""
        if not self._failing:
            _log.warning(
                "claims could not be sent to the audit topic %s and are tried again, records are not affected: %s",
                self._audit_topic,
                error,
            )
        self._failing = True

    def worked(self) -> None:
        """Claims were taken."""
        self._failing = False


class AuditInterceptor:
    """Counts a producer's batches and sends the claims from a thread, which starts with the first batch.

    A `ProducerInterceptor`. Owned by a producer.
    """

    def __init__(self, config: ProducerConfig, make_producer: Callable[[], "Producer"]) -> None:
        self._topic = config.audit_topic
        self._interval_s = config.audit_interval_ms / 1000
        self._ledger = AuditLedger(config)
        self._starting = threading.Lock()
        self._make_producer = make_producer
        self._producer: Producer | None = None
        self._complaints = Complaints(config.audit_topic)
        self._wanted = threading.Event()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def on_sealed(self, batch: ProducedBatch) -> None:
        """Count a batch; a window that it begins is claimed soon."""
        if not self._ledger.sealed(batch):
            return
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="headrace-audit", daemon=True)
                self._thread.start()
        self._wanted.set()

    def on_finished(self, batch: ProducedBatch, error: HeadraceError | None) -> None:
        """Count what became of a batch."""
        self._ledger.finished(batch, error)

    def close(self, timeout: float | None) -> None:
        """Send the last claims, for up to `timeout` seconds, after everything else was resolved."""
        self._stopped.set()
        self._wanted.set()
        if self._thread is None:
            return
        deadline = time.monotonic() + (CLOSE_TIMEOUT_S if timeout is None else timeout)
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if not self._thread.is_alive():
            self._send(max(0.0, deadline - time.monotonic()), closed=True)
        if self._producer is not None:
            try:
                self._producer.close(max(0.0, deadline - time.monotonic()))
            except HeadraceError as error:
                self._complaints.failed(error)

    def _run(self) -> None:
        while True:
            self._wanted.wait(self._interval_s)
            self._wanted.clear()
            if self._stopped.is_set():
                return
            self._send(DELIVERY_TIMEOUT_MS / 1000)
            self._stopped.wait(BETWEEN_CLAIMS_S)

    def _send(self, timeout: float, *, closed: bool = False) -> None:
        deadline = time.monotonic() + timeout
        sent, taken = [], list[Claim]()
        try:
            if self._producer is None:
                self._producer = self._make_producer()
            for claim in self._ledger.claims(time.time_ns() // 1_000_000, closed=closed):
                sent.append((claim, self._producer.send(self._topic, claim.value, claim.key)))
            for claim, future in sent:
                future.result(max(0.0, deadline - time.monotonic()))
                taken.append(claim)
            self._complaints.worked()
        except (HeadraceError, TimeoutError) as error:
            self._complaints.failed(error)
        finally:
            self._ledger.taken(taken)
