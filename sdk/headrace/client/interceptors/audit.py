"""Claims of a producer, from which the audit job counts whether all its records arrived (the paper, section 4). No I/O.

A *claim* is one record of the audit topic, a JSON object; its key is `instance`, so that the claims of one producer
stay in order:

    field             meaning
    claim             1, the format
    topic             topic whose records are counted
    window_start_ms   records with a timestamp from here ...
    window_ms         ... for this time; windows start at multiples of it since 1970
    application, host sender of the records
    instance          one lifetime of one producer: 32 hexadecimal digits
    sequence          number of the claim within its instance, from 0, without gaps
    sent              records passed to delivery since the instance's last claim for this topic and window
    acknowledged      records acknowledged since then
    failed            records known not to have been written; the application has the error
    unknown           records without a response: they may have been written
    settled           the window is over, or the producer closed, and nothing is in flight: this is the last claim
    as_of_ms          the producer's clock

Counts are differences: a reader adds up the claims of different sequence numbers, and counts a duplicate once. Of the
claimed records, between `acknowledged` and `sent - failed` must be in the log. A window with a claim and none that is
`settled` belongs to a producer that was killed, and the number of records that it sent is unknown; its first claim is
sent with the window's first batch, so that few records have no claim. A missing sequence number means the same for a
whole instance.
"""

import json
import logging
import secrets
import socket
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from headrace.client.base.config import ClientConfig, ProducerConfig
from headrace.client.interceptors.interceptor import ProducedBatch
from headrace.wire.errors import HeadraceError, Outcome

CLAIM_FORMAT = 1
MAX_WAITING_CLAIMS = 10_000
"""Maximum number of claims not yet stored. Beyond it the oldest is dropped, and its number stays missing."""
BETWEEN_CLAIMS_S = 0.1
"""Minimum interval between the immediate claims of new windows."""
MAX_BLOCK_MS = 5_000
DELIVERY_TIMEOUT_MS = 30_000
CLOSE_TIMEOUT_S = 10.0
"""Time limit of the last claims if `close` has no limit."""

_log = logging.getLogger("headrace.client")


@dataclass(slots=True)
class _Window:
    """Counts of one topic and window since its last claim."""

    in_flight: int = 0
    """Records sealed and not resolved, regardless of claims."""
    sent: int = 0
    acknowledged: int = 0
    failed: int = 0
    unknown: int = 0

    @property
    def changed(self) -> bool:
        return bool(self.sent or self.acknowledged or self.failed or self.unknown)


@dataclass(frozen=True, slots=True)
class Claim:
    """Record of the audit topic."""

    key: bytes
    value: bytes


class AuditLedger:
    """Counts a producer's records by topic and window, and turns the counts into claims. Any thread.

    A window is forgotten once its settled claim is made; late records open it again.
    """

    def __init__(self, config: ProducerConfig) -> None:
        self._own_topic = config.audit_topic
        self._window_ms = config.audit_window_ms
        self._application = config.audit_application or config.client_id
        self._host = socket.gethostname()
        self._instance = secrets.token_hex(16)
        self._sequence = 0
        self._windows: dict[tuple[str, int], _Window] = {}
        self._waiting: deque[Claim] = deque()
        self._lock = threading.Lock()

    def sealed(self, batch: ProducedBatch) -> bool:
        """Count a batch that is sent; return whether it opened a window, which should be claimed soon."""
        if batch.where.topic == self._own_topic:
            return False
        begun = False
        with self._lock:
            for start_ms, count in self._shares(batch):
                key = (batch.where.topic, start_ms)
                if key not in self._windows:
                    self._windows[key] = _Window()
                    begun = True
                window = self._windows[key]
                window.sent += count
                window.in_flight += count
        return begun

    def finished(self, batch: ProducedBatch, error: HeadraceError | None) -> None:
        """Count the result of a batch."""
        if batch.where.topic == self._own_topic:
            return
        with self._lock:
            for start_ms, count in self._shares(batch):
                window = self._windows[batch.where.topic, start_ms]
                window.in_flight -= count
                if error is None or error.outcome is Outcome.APPLIED:
                    window.acknowledged += count
                elif error.outcome is Outcome.NOT_APPLIED:
                    window.failed += count
                else:
                    window.unknown += count

    def claims(self, now_ms: int, *, closed: bool = False) -> list[Claim]:
        """Return the claims that the audit topic has not stored yet, including new ones; see `taken`."""
        with self._lock:
            for (topic, start_ms), window in list(self._windows.items()):
                is_over = closed or start_ms + self._window_ms <= now_ms
                settled = is_over and not window.in_flight
                if not window.changed and not settled:
                    continue
                self._waiting.append(self._claim(topic, start_ms, window, now_ms, settled=settled))
                if settled:
                    del self._windows[topic, start_ms]
                else:
                    self._windows[topic, start_ms] = _Window(window.in_flight)
            while len(self._waiting) > MAX_WAITING_CLAIMS:
                self._waiting.popleft()
            return list(self._waiting)

    def taken(self, claims: Sequence[Claim]) -> None:
        """Forget claims that the audit topic has stored."""
        gone = set(map(id, claims))
        with self._lock:
            self._waiting = deque(claim for claim in self._waiting if id(claim) not in gone)

    def _shares(self, batch: ProducedBatch) -> list[tuple[int, int]]:
        """Return (window start in ms, number of records) for each window of a batch."""
        if batch.timestamps_ms is None:
            return [(batch.timestamp_ms // self._window_ms * self._window_ms, batch.record_count)]
        times = [batch.timestamp_ms if at_ms is None else at_ms for at_ms in batch.timestamps_ms]
        starts, counts = np.unique(np.array(times, np.int64) // self._window_ms, return_counts=True)
        return [(start * self._window_ms, count) for start, count in zip(starts.tolist(), counts.tolist(), strict=True)]

    def _claim(self, topic: str, start_ms: int, window: _Window, now_ms: int, *, settled: bool) -> Claim:
        document = {
            "claim": CLAIM_FORMAT,
            "topic": topic,
            "window_start_ms": start_ms,
            "window_ms": self._window_ms,
            "application": self._application,
            "host": self._host,
            "instance": self._instance,
            "sequence": self._sequence,
            "sent": window.sent,
            "acknowledged": window.acknowledged,
            "failed": window.failed,
            "unknown": window.unknown,
            "settled": settled,
            "as_of_ms": now_ms,
        }
        self._sequence += 1
        return Claim(self._instance.encode(), json.dumps(document, separators=(",", ":")).encode())


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
    """Logs that claims cannot be sent, once for each series of failures."""

    def __init__(self, audit_topic: str) -> None:
        self._audit_topic = audit_topic
        self._failing = False

    def failed(self, error: Exception) -> None:
        """Record that claims were not stored; they are kept."""
        if not self._failing:
            _log.warning(
                "claims could not be sent to the audit topic %s and are tried again, records are not affected: %s",
                self._audit_topic,
                error,
            )
        self._failing = True

    def worked(self) -> None:
        """Record that claims were stored."""
        self._failing = False
