"""The asyncio `Consumer` and `Reader`: the blocking ones, each driven by one thread of its own. One event loop.

Fetching and decoding go on beside the loop. A wait for records is that thread's; a task that is cancelled in it wakes it up,
and what it received in that moment is kept for the next caller: nothing is skipped.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

from headrace.client.consumer import Consumer as BlockingConsumer
from headrace.client.consumer import ConsumerHealth
from headrace.client.errors import ClosedError, ConfigError, WakeupError
from headrace.client.reader import Reader as BlockingReader
from headrace.client.records import Record, RecordBatch
from headrace.wire.ids import TopicPartition

Result = TypeVar("Result")

CHUNK_RECORDS = 5_000
"""How many records `async for` takes over at a time."""


class Consumer:
    """Reads partitions for ever; see `headrace.Consumer` for arguments, settings and errors. One task reads with it."""

    def __init__(self, *topics: str, **settings: Any) -> None:
        """Take the topics and settings; `async with` connects."""
        self._make = partial(BlockingConsumer, *topics, **settings)
        self._consumer: BlockingConsumer | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="headrace-aio-consumer")
        self._rest: list[Record] = []
        self._next = 0
        self._kept: RecordBatch | None = None

    async def __aenter__(self) -> "Consumer":
        """Connect, and find where to start."""
        if self._consumer is None:
            self._consumer = await self._in_thread(self._make)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def __aiter__(self) -> AsyncIterator[Record]:
        return self._records()

    async def _records(self) -> AsyncIterator[Record]:
        while True:
            while self._next < len(self._rest):
                self._next += 1
                yield self._rest[self._next - 1]
            batch = await self._poll(None, CHUNK_RECORDS)
            self._rest, self._next = list(batch), 0

    async def poll(self, timeout: float | None = 1.0, max_records: int | None = None) -> RecordBatch | list[Record]:
        """Give what is there, waiting up to `timeout` seconds for the first record (None: without end).

        What `async for` had taken over and not given out comes first, as a list.
        """
        left = self._rest[self._next :][:max_records]
        if left:
            self._next += len(left)
            return left
        return await self._poll(timeout, max_records)

    async def _poll(self, timeout: float | None, max_records: int | None) -> RecordBatch:
        kept, self._kept = self._kept, None
        if kept is not None:
            return kept
        consumer = self._require()
        loop = asyncio.get_running_loop()
        work = loop.run_in_executor(self._thread, partial(consumer.poll, timeout, max_records))
        try:
            return await asyncio.shield(work)
        except WakeupError:  # Meant for a poll that was cancelled and had ended by itself.
            return await self._poll(timeout, max_records)
        except asyncio.CancelledError:
            consumer.wakeup()
            try:
                batch = await work
                self._kept = batch if len(batch) else None
            except (WakeupError, ClosedError):
                pass
            raise

    async def assign(self, partitions: Sequence[TopicPartition] | Mapping[TopicPartition, int]) -> None:
        """Read exactly these partitions, from the offsets given or where `auto_offset_reset` says."""
        self._rest, self._next, self._kept = [], 0, None
        await self._call("assign", partitions)

    async def assignment(self) -> list[TopicPartition]:
        """Give the partitions that are read, ascending."""
        found: list[TopicPartition] = await self._call("assignment")
        return found

    async def position(self, where: TopicPartition) -> int:
        """Give the offset of the next record that the application will receive of a partition."""
        first = next((record.offset for record in self._ahead() if record[:2] == where), None)
        return await self._call("position", where) if first is None else first

    async def seek(self, where: TopicPartition, offset: int) -> None:
        """Go on from `offset` in one partition."""
        await self._call("seek", where, offset)
        self._forget([where])

    async def seek_to_timestamp(self, when: datetime | float, *partitions: TopicPartition) -> None:
        """Go on from the first record at or after `when` in some partitions, or all."""
        await self._call("seek_to_timestamp", when, *partitions)
        self._forget(partitions)

    async def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Go on from the log start of some partitions, or of all."""
        await self._call("seek_to_beginning", *partitions)
        self._forget(partitions)

    async def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Go on from what comes next in some partitions, or in all."""
        await self._call("seek_to_end", *partitions)
        self._forget(partitions)

    async def pause(self, *partitions: TopicPartition) -> None:
        """Receive nothing of some partitions until `resume`; their positions stay."""
        for where in partitions:
            position = await self.position(where)
            await self._call("pause", where)
            await self._call("seek", where, position)
        self._forget(partitions)

    async def resume(self, *partitions: TopicPartition) -> None:
        """Receive records of paused partitions again."""
        await self._call("resume", *partitions)

    async def lag(self) -> dict[TopicPartition, int | None]:
        """Give, by partition, how many records are still ahead, as far as the last fetch tells; None: not known yet."""
        lags: dict[TopicPartition, int | None] = await self._call("lag")
        for record in self._ahead():
            where = TopicPartition(record.topic, record.partition)
            behind = lags.get(where)
            if behind is not None:
                lags[where] = behind + 1
        return lags

    def health(self) -> ConsumerHealth:
        """Say whether this consumer can work; cheap."""
        return self._require().health()

    async def close(self) -> None:
        """End fetching and close the connections. Again: nothing."""
        consumer = self._consumer
        if consumer is not None:
            await asyncio.to_thread(consumer.close)
        self._thread.shutdown(wait=False)

    def _ahead(self) -> list[Record]:
        """What was taken over from the thread and not yet given out."""
        return [*self._rest[self._next :], *(self._kept or ())]

    def _forget(self, partitions: Sequence[TopicPartition]) -> None:
        """Drop what is ahead of some partitions, or of all."""
        gone = {tuple(where) for where in partitions}
        self._rest = [record for record in self._ahead() if gone and record[:2] not in gone]
        self._next, self._kept = 0, None

    def _require(self) -> BlockingConsumer:
        if self._consumer is None:
            raise ConfigError("this Consumer is not open", action="Write `async with Consumer(...) as consumer:`.")
        return self._consumer

    async def _call(self, method: str, *args: Any) -> Any:
        return await self._in_thread(partial(getattr(self._require(), method), *args))

    async def _in_thread(self, call: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)


class Reader:
    """Reads one topic's partitions from `start` up to `end` and stops there; see `headrace.Reader`."""

    def __init__(self, topic: str, **settings: Any) -> None:
        """Take what to read and the settings; `async with` connects."""
        self._make = partial(BlockingReader, topic, **settings)
        self._reader: BlockingReader | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="headrace-aio-reader")

    async def __aenter__(self) -> "Reader":
        """Connect, and fix where to start and to end."""
        if self._reader is None:
            self._reader = await self._in_thread(self._make)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def __aiter__(self) -> AsyncIterator[Record]:
        """Give the records one by one; ends at the end."""
        async for batch in self.batches():
            for record in batch:
                yield record

    async def batches(self, timeout: float | None = None) -> AsyncIterator[RecordBatch]:
        """Give the records in batches, one a fetch and partition."""
        batches = self._require().batches(timeout)
        while (batch := await self._in_thread(lambda: next(batches, None))) is not None:
            yield batch

    async def read(self, timeout: float | None = None) -> RecordBatch:
        """Give all records that are left, as one batch."""
        return await self._in_thread(partial(self._require().read, timeout))

    async def to_arrow(self, timeout: float | None = None) -> Any:
        """Give all records that are left as a `pyarrow.Table`."""
        return await self._in_thread(partial(self._require().to_arrow, timeout))

    async def to_pandas(self, timeout: float | None = None) -> Any:
        """Give all records that are left as a `pandas.DataFrame`."""
        return await self._in_thread(partial(self._require().to_pandas, timeout))

    async def close(self) -> None:
        """End fetching and close the connections. Again: nothing."""
        if self._reader is not None:
            await asyncio.to_thread(self._reader.close)
        self._thread.shutdown(wait=False)

    def _require(self) -> BlockingReader:
        if self._reader is None:
            raise ConfigError("this Reader is not open", action="Write `async with Reader(...) as reader:`.")
        return self._reader

    async def _in_thread(self, call: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)
