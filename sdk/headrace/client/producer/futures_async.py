"""Futures of the asyncio producer. Used on one event loop."""

import asyncio
from collections.abc import Callable, Generator
from typing import Any

from headrace.client.base.records import RecordMetadata
from headrace.client.producer.futures import PendingBatch, PendingRecord, PendingRecords


class RecordFuture(PendingRecord):
    """Result of one record: `await future` returns its metadata, any number of times."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        """Wait for the acknowledgement. Cancellation ends the wait, not the delivery.

        Raises:
            HeadraceError: The reason of the failure; `outcome` states whether the record may be stored.
        """
        if not self.batch.done():
            yield from until_done(self.batch).__await__()
        self.batch.wait(0)
        return self.batch.metadata(self.index)


class BatchFuture(PendingRecords[RecordFuture]):
    """Results of the records of one `send_many`; awaitable."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, list[tuple[RecordMetadata, int]]]:
        """Wait for every acknowledgement; return the metadata of each run's first record, and the run's length.

        Raises:
            HeadraceError: The first failure.
        """
        return self._all().__await__()

    async def _all(self) -> list[tuple[RecordMetadata, int]]:
        return [(await future, records) for future, records in self.parts]


async def until_done(batch: PendingBatch) -> None:
    """Wait until a batch is delivered or has failed; an open batch is sent now."""
    if batch.done():
        return
    waiter = asyncio.get_running_loop().create_future()
    batch.call_when_done(_waker(waiter))
    batch.flush_now()
    await waiter


def _waker(waiter: "asyncio.Future[None]") -> Callable[[], None]:
    return lambda: None if waiter.done() else waiter.set_result(None)
