"""Writes the audit log to the topic `__audit` until each event is acknowledged.

A write whose response was lost is repeated, so that an event may be there twice, with the same `server`, `time_ms` and
`request_id`. Belongs to the event loop; `run` is a task of the app.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

import structlog
from headrace.v1 import topics_pb2

from headrace_server.audit.audit_log import AuditLog
from headrace_server.audit.events import AuditEvent
from headrace_server.internal_topic_writer import InternalTopicWriter, NotWrittenError

log = structlog.get_logger(__name__)

AUDIT_TOPIC = "__audit"
CLIENT_ID = "headrace-audit"
MAX_EVENTS = 500
MAX_WRITE_BYTES = 512 << 10
"""Size of the events of one write, which must fit into a batch; an event has at most `MAX_EVENT_BYTES`."""
FLUSH_SECONDS = 1.0
RETRY_SECONDS = (0.5, 10.0)
"""First and longest pause after a failure."""


class AuditWriter:
    """See the module."""

    def __init__(self, audit_log: AuditLog, writer: InternalTopicWriter) -> None:
        """`writer` is of the topic."""
        self._audit_log = audit_log
        self._writer = writer
        self._failures = 0

    async def run(self) -> None:
        """Write events until cancelled; then log how many are left."""
        try:
            await self._run()
        finally:
            if left := len(self._audit_log):
                log.error("audit_events_left", events=left)

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_SECONDS if self._audit_log.holds_repeated else None):
                    await self._audit_log.wait()
            self._audit_log.flush()
            events = self._audit_log.take(MAX_EVENTS, MAX_WRITE_BYTES)
            if not events:
                continue
            try:
                await self._write(events)
            except BaseException as error:
                self._audit_log.give_back(events)
                if not isinstance(error, NotWrittenError):
                    raise
                await self._pause(error)
            else:
                self._failures = 0

    async def _pause(self, error: Exception) -> None:
        first, longest = RETRY_SECONDS
        if self._failures == 0:
            log.warning("audit_not_written", cause=str(error))
        await asyncio.sleep(min(longest, first * 2**self._failures))
        self._failures = min(self._failures + 1, 10)

    async def _write(self, events: Sequence[AuditEvent]) -> None:
        await self._writer.write(
            [topics_pb2.Record(value=event.to_json(), timestamp_ms=event.time_ms) for event in events]
        )
