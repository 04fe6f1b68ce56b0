"""Futures of the asyncio producer. Used on one event loop."""

import asyncio
from collections.abc import Callable, Generator, Sequence
from typing import Any

from headrace.client.base.records import RecordMetadata
from headrace.client.producer.futures import PendingBatch
from headrace.client.producer.futures import RecordFuture as SyncRecordFuture


class RecordFuture:
    """Result of one record: `await future` returns its metadata, any number of times."""

    __slots__ = ("_future",)

    def __init__(self, future: SyncRecordFuture) -> None:
        self._future = future

    def done(self) -> bool:
        """Return whether the record was delivered or has failed."""
        return self._future.done()

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        """Wait for the acknowledgement. Cancellation ends the wait, not the delivery.

        Raises:
            HeadraceError: The reason of the failure; `outcome` states whether the record may be stored.
        """
        if not self._future.done():
            yield from until_done(self._future.batch).__await__()
        return self._future.result(0)

    def __repr__(self) -> str:
        return repr(self._future)


class BatchFuture:
    """Results of the records of one `send_many`; awaitable."""

    __slots__ = ("parts",)

    def __init__(self, parts: Sequence[tuple[SyncRecordFuture, int]]) -> None:
        self.parts = [(RecordFuture(future), records) for future, records in parts]
        """(future of the batch's first record, number of records), in the order in which they were sealed."""

    def __len__(self) -> int:
        return sum(records for _, records in self.parts)

    def done(self) -> bool:
        """Return whether every record was delivered or has failed."""
        return all(future.done() for future, _ in self.parts)

    def __await__(self) -> Generator[Any, None, list[tuple[RecordMetadata, int]]]:
        """Wait for every acknowledgement; return the metadata of each run's first record, and the run's length.

        Raises:
            HeadraceError: The first failure.
        """
        return self._all().__await__()

    def __repr__(self) -> str:
        return f"BatchFuture({len(self)} records, {'done' if self.done() else 'pending'})"

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
