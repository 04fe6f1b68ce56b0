"""The writer of the audit log: every event is written, in order, by writes that a broker accepts."""

import asyncio

from headrace_broker.rpc.records import MAX_RECORDS_BYTES
from headrace_server.audit import audit_writer
from headrace_server.audit.audit_writer import AuditWriter
from headrace_server.internal_topic_writer import NotWrittenError

from tests.fakes.manual_clock import ManualClock
from tests.unit.common.audit.test_audit_log import audit_log, event


class Topic:
    """Takes writes as a broker does: none that is too large, and none at first."""

    def __init__(self, count):
        self.values, self.failures = [], 1
        self._count = count
        self.is_complete = asyncio.Event()

    async def write(self, records):
        size_bytes = sum(len(record.value) for record in records)
        if size_bytes > MAX_RECORDS_BYTES or self.failures:
            self.failures -= size_bytes <= MAX_RECORDS_BYTES
            raise NotWrittenError(f"{size_bytes} bytes")
        self.values += [record.value for record in records]
        if len(self.values) >= self._count:
            self.is_complete.set()


async def test_large_events_are_written_by_several_writes(monkeypatch):
    """Else who can make 300 acts at once with 4 KiB each stops the audit log of a server until it restarts."""
    monkeypatch.setattr(audit_writer, "RETRY_SECONDS", (0.01, 0.01))
    log = audit_log()
    events = [event(number, kind="act", request="x" * 4_096) for number in range(600)]
    for each in events:
        log.note_act(each)
    topic = Topic(len(events))
    writing = asyncio.create_task(AuditWriter(log, topic, ManualClock()).run())
    async with asyncio.timeout(20):
        await topic.is_complete.wait()
    writing.cancel()
    await asyncio.wait([writing])
    assert topic.values == [each.to_json() for each in events]
