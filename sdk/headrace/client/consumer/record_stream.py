"""Iteration `for record in consumer` and `async for record in consumer`, which share no code."""

from collections.abc import Awaitable, Iterator
from itertools import chain
from typing import Any

from headrace.client.base.errors import ConfigError
from headrace.client.base.operations import Operation
from headrace.client.base.records import Record
from headrace.client.consumer.consumer_core import ConsumerCore


class RecordStream:
    """Iterates over records by C loops, one decoded batch at a time."""

    _core: ConsumerCore

    def _do(self, operation: Operation[Any]) -> Any:
        """Execute an operation of the core."""
        raise NotImplementedError

    def _read(self, operation: Operation[Any]) -> Any:
        """Execute an operation that receives records."""
        return self._do(operation)

    def __iter__(self) -> Iterator[Record]:
        """Return an iterator without an end over the records; it waits if there is none."""
        return chain.from_iterable(self._decoded_batches())  # In C: a generator would be resumed for every record.

    def _decoded_batches(self) -> Iterator[Iterator[Record]]:
        while True:
            yield self._read(self._core.next_records())


class AsyncRecordStream:
    """Iterates over records; a cancelled wait can be repeated."""

    _core: ConsumerCore
    _records: Iterator[Record] = iter(())
    _is_read = False

    def _do(self, operation: Operation[Any]) -> Awaitable[Any]:
        """Execute an operation of the core."""
        raise NotImplementedError

    async def _read(self, operation: Operation[Any]) -> Any:
        """Execute an operation that receives records. One task at a time, because two would share one position."""
        if self._is_read:
            operation.close()
            raise ConfigError("another task is reading with this Consumer", action="Make a Consumer for each task.")
        self._is_read = True
        try:
            return await self._do(operation)
        finally:
            self._is_read = False

    def __aiter__(self) -> "AsyncRecordStream":
        return self

    async def __anext__(self) -> Record:
        """Return the next record; waits if there is none."""
        if self._core.fetcher.cursor is not None:
            try:
                record = next(self._records, None)
            except Exception:
                self._core.settle()  # The next call continues after the record that could not be read.
                raise
            if record is not None:
                self._core.fetcher.check()
                return record
        while True:
            self._records = await self._read(self._core.next_records())
            record = next(self._records, None)
            if record is not None:
                return record
