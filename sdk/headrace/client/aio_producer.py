"""The asyncio `Producer`: the blocking one's parts, with waits that are awaited. One event loop.

A record takes the fast path without leaving the loop. Where it would have to wait, for metadata or for room in the buffer,
the wait is a thread's, a few at most, and the coroutine awaits it. Acknowledgements come back to the loop by one
`call_soon_threadsafe` a batch that somebody awaits.
"""

import asyncio
import contextlib
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from headrace.client.accumulator import Headers
from headrace.client.config import ProducerConfig, build
from headrace.client.errors import ConfigError
from headrace.client.producer import Producer as BlockingProducer
from headrace.client.receipts import ManyReceipt, PendingBatch
from headrace.client.receipts import Receipt as BlockingReceipt
from headrace.client.records import RecordMetadata
from headrace.wire.errors import HeadraceError

Result = TypeVar("Result")

WAITING_THREADS = 4
"""How many sends may wait at a time for room or for a topic; more wait for these."""


class Receipt:
    """What became of one record: `await receipt` gives where it went, or raises why it failed."""

    __slots__ = ("_receipt",)

    def __init__(self, receipt: BlockingReceipt) -> None:
        self._receipt = receipt

    def done(self) -> bool:
        """Whether the record was delivered or has failed."""
        return self._receipt.done()

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        """Wait for the acknowledgement.

        Raises:
            HeadraceError: why it failed; `outcome` says whether it may be read later.
        """
        if not self._receipt.done():
            yield from _until_done(self._receipt.batch).__await__()
        return self._receipt.result(0)


class Producer:
    """Sends records from coroutines. Use it with `async with`; see `headrace.Producer` for what is the same."""

    def __init__(self, **settings: Any) -> None:
        """See `ProducerConfig` for the settings; `receipts` is always on here. Connects when first used.

        Raises:
            ConfigError: an unknown setting, a value out of range, or settings that contradict each other.
        """
        if not build(ProducerConfig, settings).receipts:
            raise ConfigError("receipts=False is for the blocking Producer")
        self._producer = BlockingProducer(**settings)
        self._threads = ThreadPoolExecutor(WAITING_THREADS, thread_name_prefix="headrace-aio-send")

    async def __aenter__(self) -> "Producer":
        return self

    async def __aexit__(self, exc_type: type[BaseException] | None, *exc: object) -> None:
        """Flush and close; after an exception close without waiting long, so that it is not hidden."""
        if exc_type is None:
            await self.close()
        else:
            with contextlib.suppress(HeadraceError):
                await self.close(timeout=1.0)

    async def send(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        *,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Receipt:
        """Take one record; it is on its way when this returns. Arguments and errors are those of `headrace.Producer.send`.

        Returns:
            A receipt to be awaited, or not.
        """
        receipt = self._producer.try_send(topic, value, key, headers, partition, timestamp_ms)
        if receipt is None:
            call = partial(
                self._producer.send, topic, value, key, headers=headers, partition=partition, timestamp_ms=timestamp_ms
            )
            receipt = await self._in_thread(call)
        return Receipt(receipt)

    async def send_and_wait(self, topic: str, value: Any, key: Any = None, **rest: Any) -> RecordMetadata:
        """Send one record and wait for its acknowledgement.

        Raises:
            HeadraceError: why it failed; `outcome` says whether it may be read later.
        """
        return await (await self.send(topic, value, key, **rest))

    async def send_many(
        self,
        topic: str,
        values: Any,
        *,
        keys: Any = None,
        headers: Sequence[Headers | None] | None = None,
        timestamps_ms: Any = None,
        partition: int | None = None,
    ) -> list[tuple[Receipt, int]]:
        """Take many records at once; see `headrace.Producer.send_many`.

        Returns:
            One (receipt of the first record, how many records) a batch.
        """
        call = partial(
            self._producer.send_many,
            topic,
            values,
            keys=keys,
            headers=headers,
            timestamps_ms=timestamps_ms,
            partition=partition,
        )
        many: ManyReceipt = await self._in_thread(call)
        return [(Receipt(receipt), records) for receipt, records in many.parts]

    async def flush(self, timeout: float | None = None) -> None:
        """Send everything that was taken so far and wait until it is acknowledged.

        Raises:
            DeliveryError: what failed since the last flush, or is still on its way after `timeout` seconds.
        """
        await self._in_thread(partial(self._producer.flush, timeout))

    async def close(self, timeout: float | None = 30.0) -> None:
        """Flush for up to `timeout` seconds, then give up what is left, and close. Again: nothing.

        Raises:
            DeliveryError: what was not delivered.
        """
        try:
            await asyncio.to_thread(self._producer.close, timeout)
        finally:
            self._threads.shutdown(wait=False)

    async def partitions_for(self, topic: str) -> int:
        """Give how many partitions a topic has."""
        return await self._in_thread(partial(self._producer.partitions_for, topic))

    async def _in_thread(self, call: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)


async def _until_done(batch: PendingBatch) -> None:
    """Wait on the running loop until a batch is done."""
    loop = asyncio.get_running_loop()
    waiter = loop.create_future()

    def wake() -> None:
        if not waiter.done():
            waiter.set_result(None)

    def done() -> None:
        with contextlib.suppress(RuntimeError):  # The loop was closed meanwhile: nobody waits any more.
            loop.call_soon_threadsafe(wake)

    batch.call_when_done(done)
    batch.expedite()
    await waiter
