"""The writer of the audit log: every event is written, in order, by writes that a broker accepts."""

import asyncio

from headrace.v1 import cluster_pb2, topics_pb2
from headrace_broker.rpc.records import MAX_RECORDS_BYTES
from headrace_server.audit import audit_writer
from headrace_server.audit.audit_writer import AuditWriter
from headrace_server.audit.events import describe_request, resources_of
from headrace_server.internal_topic_writer import NotWrittenError

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
    writing = asyncio.create_task(AuditWriter(log, topic).run())
    async with asyncio.timeout(20):
        await topic.is_complete.wait()
    writing.cancel()
    await asyncio.wait([writing])
    assert topic.values == [each.to_json() for each in events]


async def test_an_act_with_a_huge_name_holds_no_later_one(monkeypatch):
    """Any caller can name a topic that no write takes: JSON has six bytes for each of these characters."""
    monkeypatch.setattr(audit_writer, "RETRY_SECONDS", (0.01, 0.01))
    request = cluster_pb2.DeleteTopicsRequest(topics=[topics_pb2.TopicRef(name="\x01" * 180_000)])
    log = audit_log()
    huge = event(1, kind="act", resources=resources_of(request), request=describe_request(request))
    ordinary = event(2, kind="act")
    for each in (huge, ordinary):
        log.note_act(each)
    topic = Topic(2)
    writing = asyncio.create_task(AuditWriter(log, topic).run())
    async with asyncio.timeout(20):
        await topic.is_complete.wait()
    writing.cancel()
    await asyncio.wait([writing])
    assert topic.values == [huge.to_json(), ordinary.to_json()]
