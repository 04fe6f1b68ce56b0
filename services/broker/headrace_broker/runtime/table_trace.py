"""Request trace of tables with `trace_sample`: their requests here, and the task that writes them to `__table_trace`.

What a call costs is a checksum of each key; keys that are not in the sample are only counted. Memory is bounded: what
cannot be written in time is dropped and counted, in the metrics and in the next block
(`docs/reference/trace-format.md`). Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeAlias

import structlog
from headrace.partition.removed_rows import RemovedRows
from headrace.partition.row_writes import RowWrite
from headrace.v1 import tables_pb2, topics_pb2
from headrace.wire.ids import BrokerId
from headrace.wire.request_trace import (
    MAX_BLOCK_REQUESTS,
    KeySampler,
    RequestOutcome,
    TableOperation,
    TraceBuffer,
    requests_in,
)
from headrace.wire.table_keys import ABSENT
from headrace_server.internal_topic_writer import NotWrittenError

from headrace_broker.table_metrics import TableMetrics

log = structlog.get_logger(__name__)

CLIENT_ID = "headrace-table-trace"
LOOK_SECONDS = 2.0
FLUSH_SECONDS = 10.0
"""Longest time from a request to the write of its block. A write costs 10 ms of the processor, as 4,000 samples do."""
LAST_FLUSH_SECONDS = 2.0
"""Longest time of the write at a stop."""
MANY_REQUESTS = MAX_BLOCK_REQUESTS // 8
"""Sampled requests of a table that are written at the next look."""
MAX_PENDING_BYTES = 4 << 20
"""Bytes of blocks that wait to be written; older ones are dropped."""
MAX_WRITE_BYTES = 512 << 10
"""Bytes of blocks in one write, which must fit into a batch."""


class RecordWriter(Protocol):
    """An `InternalTopicWriter`."""

    async def write(self, records: Sequence[topics_pb2.Record]) -> None:
        """Write records; raise NotWrittenError."""


Arrival: TypeAlias = tuple[int, int]
"""Time of a request's arrival, microseconds since 1970, and its gap, which is that of its first key."""


class RequestTrace:
    """Trace of one table at this broker, of all its partitions."""

    def __init__(
        self, buffer: TraceBuffer, sampler: KeySampler, key: tuple[bytes, float], now_us: Callable[[], int]
    ) -> None:
        """`key` is the table and its sampled fraction; `now_us` the wall clock in microseconds since 1970."""
        self.buffer = buffer
        self.sampler = sampler
        self._now_us = now_us
        self.key = key
        self.overflowed = 0
        """`overflowed` of the buffer at its last block."""
        self.users = 0
        """Partitions that note requests here."""

    def arrive(self) -> Arrival:
        """Return the arrival of a request: now."""
        at_us = self._now_us()
        return at_us, self.buffer.arrive(at_us)

    def note_gets(
        self,
        keys: Sequence[bytes],
        rows: Sequence[tables_pb2.TableRow],
        removed: RemovedRows | None,
        arrival: Arrival,
        latency_us: int,
    ) -> None:
        """Note rows that were read by their keys, which are `keys`."""
        sampled, (at_us, gap_us) = self.sampler.positions(keys), arrival
        for place in sampled:
            row, gap = rows[place], 0 if place else gap_us
            outcome = RequestOutcome.HIT
            if row.version == ABSENT:
                outcome = RequestOutcome.MISS if removed is None else removed.outcome_of(row.key)
            self.buffer.add(at_us, gap, TableOperation.GET, outcome, row.key, _value_bytes(row), latency_us)
        self.buffer.skip(len(keys) - len(sampled))

    def note_scan(
        self, keys: Sequence[bytes], rows: Sequence[tables_pb2.TableRow], arrival: Arrival, latency_us: int
    ) -> None:
        """Note the rows of a page of a scan, whose keys are `keys`."""
        sampled, (at_us, gap_us) = self.sampler.positions(keys), arrival
        for place in sampled:
            row, gap = rows[place], 0 if place else gap_us
            self.buffer.add(
                at_us, gap, TableOperation.SCAN, RequestOutcome.DONE, row.key, _value_bytes(row), latency_us
            )
        self.buffer.skip(len(keys) - len(sampled))

    def note_write(self, write: RowWrite, arrival: Arrival, latency_us: int, *, applied: bool) -> None:
        """Note the write of a row."""
        if not self.sampler.samples(write.row):
            self.buffer.skip(1)
            return
        size_bytes = sum(len(value) for value in write.columns.values() if value is not None)
        outcome = RequestOutcome.DONE if applied else RequestOutcome.CONFLICT
        self.buffer.add(*arrival, _operation_of(write, applied=applied), outcome, write.row, size_bytes, latency_us)


class _Block(NamedTuple):
    trace: RequestTrace
    value: bytes


class TableTraces:
    """Traces of all tables of a broker."""

    def __init__(self, secret: bytes, broker_id: BrokerId, metrics: TableMetrics, now_us: Callable[[], int]) -> None:
        """`secret` is a key derived from the cluster's; `now_us` is the wall clock in microseconds since 1970."""
        self._secret = secret
        self._broker_id = broker_id
        self._metrics = metrics
        self._now_us = now_us
        self._traces: dict[tuple[bytes, float], RequestTrace] = {}
        self._pending: deque[_Block] = deque()
        self._pending_bytes = 0
        self._writing = asyncio.Lock()

    def acquire(self, table: str, table_id: bytes, fraction: float) -> RequestTrace:
        """Return the trace of a table at a fraction above 0, for one of its partitions, until `release`."""
        key = table_id, fraction
        found = self._traces.get(key)
        if found is None:
            sampler = KeySampler(self._secret, table_id, fraction)
            found = self._traces[key] = RequestTrace(
                TraceBuffer(sampler, table, table_id, self._broker_id), sampler, key, self._now_us
            )
        found.users += 1
        return found

    def release(self, trace: RequestTrace) -> None:
        """Undo an `acquire`; without a user the trace ends, and what it has is written."""
        trace.users -= 1
        if not trace.users:
            self._drain(trace)
            del self._traces[trace.key]

    def _drain(self, trace: RequestTrace) -> None:
        values = trace.buffer.drain()
        self._metrics.trace_dropped.inc(trace.buffer.overflowed - trace.overflowed)
        trace.overflowed = trace.buffer.overflowed
        self._pending.extend(_Block(trace, value) for value in values)
        self._pending_bytes += sum(map(len, values))
        while self._pending_bytes > MAX_PENDING_BYTES:
            block = self._pending.popleft()
            self._pending_bytes -= len(block.value)
            block.trace.buffer.note_lost(block.value)
            self._metrics.trace_dropped.inc(requests_in(block.value))

    async def run(self, writer: RecordWriter) -> None:
        """Write blocks every FLUSH_SECONDS, or once there are many requests, until cancelled."""
        failing, waited = False, 0.0
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            waited += LOOK_SECONDS
            if not self.is_due(waited):
                continue
            waited = 0.0
            try:
                await self.flush(writer)
                failing = False
            except NotWrittenError as error:
                if not failing:
                    log.warning("table_trace_not_written", cause=str(error))
                failing = True

    def is_due(self, waited: float) -> bool:
        """Return whether to write what was noted in these seconds since the last write."""
        return waited >= FLUSH_SECONDS or any(len(each.buffer) >= MANY_REQUESTS for each in self._traces.values())

    async def flush(self, writer: RecordWriter) -> None:
        """Write what was noted.

        Raises:
            NotWrittenError: If it is not written; it stays, as far as there is room.
        """
        async with self._writing:
            for trace in list(self._traces.values()):
                self._drain(trace)
            while self._pending:
                await self._write_some(writer)

    async def flush_at_stop(self, writer: RecordWriter) -> None:
        """Write what was noted while the broker still serves, as it may lead the topic, and replicates."""
        with contextlib.suppress(NotWrittenError, TimeoutError):
            async with asyncio.timeout(LAST_FLUSH_SECONDS):
                await self.flush(writer)

    def end(self) -> None:
        """Count what was not written as dropped: no write follows."""
        for trace in self._traces.values():
            self._drain(trace)
        requests = sum(requests_in(block.value) for block in self._pending)
        self._pending.clear()
        self._pending_bytes = 0
        if requests:
            self._metrics.trace_dropped.inc(requests)
            log.warning("table_trace_dropped", requests=requests)

    async def _write_some(self, writer: RecordWriter) -> None:
        blocks = [self._pending.popleft()]
        size_bytes = len(blocks[0].value)
        while self._pending and size_bytes + len(self._pending[0].value) <= MAX_WRITE_BYTES:
            blocks.append(self._pending.popleft())
            size_bytes += len(blocks[-1].value)
        time_ms = self._now_us() // 1000
        try:
            await writer.write([topics_pb2.Record(value=block.value, timestamp_ms=time_ms) for block in blocks])
        except (NotWrittenError, asyncio.CancelledError):
            self._pending.extendleft(reversed(blocks))
            raise
        self._pending_bytes -= size_bytes
        self._metrics.trace_requests.inc(sum(requests_in(block.value) for block in blocks))


def _operation_of(write: RowWrite, *, applied: bool) -> TableOperation:
    if write.deletes_row and applied:
        return TableOperation.DELETE
    return TableOperation.PUT if write.if_version is None else TableOperation.COMPARE_AND_PUT


def _value_bytes(row: tables_pb2.TableRow) -> int:
    return sum(len(column.value) for column in row.columns)
