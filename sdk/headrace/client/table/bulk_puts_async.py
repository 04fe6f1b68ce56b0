"""`put_many` of a `Table`: chunks of rows, by an idempotent producer with many batches in flight."""

import threading
import time
from collections import deque
from typing import Any

from headrace.client.base.acompat import result_async
from headrace.client.base.config import TableConfig
from headrace.client.producer.producer_async import Producer
from headrace.client.table.row_writes import RowChunk, RowWrites, Versions, bulk_settings, given_rows, parts_of
from headrace.client.table.table_calls_async import AsyncTableCalls
from headrace.client.table.table_operations import TableOperations
from headrace.display.progress import progress_bar
from headrace.wire.errors import HeadraceError


class AsyncBulkPuts:
    """Belongs to a `Table`. Any number of callers may use it; the producer is made by the first call."""

    def __init__(self, name: str, config: TableConfig, operations: TableOperations, calls: AsyncTableCalls) -> None:
        self._name = name
        self._config = config
        self._operations = operations
        self._calls = calls
        self._producer_lock = threading.Lock()
        self._producer: Producer | None = None

    async def close(self) -> None:
        """Close the producer; calling it again does nothing."""
        with self._producer_lock:
            producer, self._producer = self._producer, None
        if producer is not None:
            await producer.close()

    async def put(self, rows: Any, key_column: str, ttl_ms: int, *, delete_nulls: bool) -> Versions:
        """Put rows; see `Table.put_many`."""
        given = given_rows(rows, self._config, key_column, delete_nulls)
        partitions, table_ttl_ms = await self._calls.run(self._operations.bulk_target(self._operations.deadline(None)))
        lives_ms = ttl_ms or table_ttl_ms
        producer, writes = self._bulk_producer(), RowWrites(partitions, given.serializer)
        sent: deque[tuple[RowChunk, int, int, Any]] = deque()
        with progress_bar(f"put rows into {self._name}", "rows", given.total) as bar:
            for chunk in writes.chunks(given.rows):
                headers = chunk.headers(time.time_ns() // 1_000_000 + lives_ms) if lives_ms else None
                try:
                    batches = await producer.send_many(
                        self._name,
                        chunk.values,
                        keys=chunk.keys,
                        headers=headers,
                        partition=chunk.partition,
                        group_ends=chunk.ends,
                    )
                except HeadraceError as error:
                    writes.note_refused(chunk, error)
                    break
                sent.extend(parts_of(chunk, batches.parts))
                bar.reach(writes.count)
                while sent and sent[0][-1].done():
                    await self._settle(writes, *sent.popleft())
                if writes.has_failed:
                    break
            while sent:
                await self._settle(writes, *sent.popleft())
                bar.reach(writes.count)
        return writes.versions()

    async def _settle(self, writes: RowWrites, chunk: RowChunk, first: int, records: int, future: Any) -> None:
        """Wait for the acknowledgement of some records, and note it."""
        try:
            metadata = await result_async(future, None)
        except HeadraceError as error:
            writes.note_records_failed(chunk, first, error)
        else:
            writes.note_written(chunk, first, records, metadata.offset)

    def _bulk_producer(self) -> Producer:
        with self._producer_lock:
            if self._producer is None:
                self._producer = Producer(**bulk_settings(self._config))
            return self._producer
