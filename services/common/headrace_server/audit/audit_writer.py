"""Writes the audit log to the topic `__audit`, over the brokers' internal listeners, until each event is acknowledged.

A write whose response was lost is repeated, so that an event may be there twice, with the same `server`, `time_ms` and
`request_id`. Belongs to the event loop; `run` is a task of the app.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence

import grpc
import structlog
from headrace.v1 import broker_pb2, broker_pb2_grpc, topics_pb2
from headrace.wire.ids import BrokerId

from headrace_server.audit.audit_log import AuditLog
from headrace_server.audit.events import AuditEvent
from headrace_server.calls import AUTHORIZATION_KEY
from headrace_server.clock import Clock
from headrace_server.metadata_view import ClusterView
from headrace_server.tls import TlsIdentity, open_channel

log = structlog.get_logger(__name__)

AUDIT_TOPIC = "__audit"
CLIENT_ID = "headrace-audit"
MAX_EVENTS = 500
FLUSH_SECONDS = 1.0
WRITE_SECONDS = 10.0
RETRY_SECONDS = (0.5, 10.0)
"""First and longest pause after a failure."""


class AuditWriter:
    """See the module."""

    def __init__(
        self,
        audit_log: AuditLog,
        view: ClusterView,
        server_name: str,
        make_token: Callable[[], str],
        tls: TlsIdentity | None,
        clock: Clock,
    ) -> None:
        """`make_token` returns a token of this server; `tls` is its client identity, `None` means plain text."""
        self._audit_log = audit_log
        self._view = view
        self._server_name = server_name
        self._make_token = make_token
        self._tls = tls
        self._clock = clock
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
            self._audit_log.flush(self._clock.now_ms())
            events = self._audit_log.take(MAX_EVENTS)
            if not events:
                continue
            try:
                await self._write(events)
            except BaseException as error:
                self._audit_log.give_back(events)
                if not isinstance(error, _NotWrittenError | grpc.aio.AioRpcError):
                    raise
                await self._pause(error)
            else:
                self._failures = 0

    async def _pause(self, error: Exception) -> None:
        first, longest = RETRY_SECONDS
        if self._failures == 0:
            cause = error.code().name if isinstance(error, grpc.aio.AioRpcError) else str(error)
            log.warning("audit_not_written", cause=cause)
        await asyncio.sleep(min(longest, first * 2**self._failures))
        self._failures = min(self._failures + 1, 10)

    async def _write(self, events: Sequence[AuditEvent]) -> None:
        topic = self._view.topics.get(AUDIT_TOPIC)
        if topic is None:
            raise _NotWrittenError("the controller has not created the topic yet")
        partition = sum(self._server_name.encode()) % topic.partitions
        entry = self._view.partition(topic.topic_id, partition)
        leader = None if entry is None else self._view.brokers.get(BrokerId(entry.state.leader_id))
        if leader is None:
            raise _NotWrittenError("the partition has no leader")
        records = [topics_pb2.Record(value=event.to_json(), timestamp_ms=event.time_ms) for event in events]
        request = broker_pb2.ProduceRequest(
            client_id=CLIENT_ID,
            acks=broker_pb2.ACKS_ALL,
            timeout_ms=round(WRITE_SECONDS * 1000),
            topics=[
                broker_pb2.TopicProduce(
                    topic=topics_pb2.TopicRef(topic_id=topic.topic_id),
                    partitions=[broker_pb2.PartitionProduce(partition=partition, records=records)],
                )
            ],
        )
        metadata = ((AUTHORIZATION_KEY, f"Bearer {self._make_token()}"),)
        async with open_channel(leader.live.internal_address, _CHANNEL_OPTIONS, self._tls) as channel:
            stub = broker_pb2_grpc.BrokerServiceStub(channel)
            response = await stub.Produce(request, timeout=WRITE_SECONDS + 1, metadata=metadata)
        result = response.topics[0].partitions[0]
        if result.HasField("error"):
            raise _NotWrittenError(result.error.message)


class _NotWrittenError(Exception):
    """The events were not written, or not acknowledged."""


_CHANNEL_OPTIONS = (("grpc.enable_retries", 0), ("grpc.use_local_subchannel_pool", 1))
