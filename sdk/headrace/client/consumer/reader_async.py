"""Asyncio `Reader`: reads a bounded part of a topic once from start to end, without a group.

async with headrace.aio.Reader("clicks", start=timedelta(hours=-1), end="current") as reader:
    table = await reader.to_arrow()
"""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from typing import Any, Unpack

from headrace.client.base.acompat import ASYNC
from headrace.client.base.call_counts import CallStats
from headrace.client.base.config import ReaderConfig, build, client_repr
from headrace.client.base.errors import ConfigError
from headrace.client.base.operations import aexecute
from headrace.client.base.records import DecodedBatch, Record, RecordBatch
from headrace.client.base.settings_types import ReaderSettings
from headrace.client.consumer.reader_core import OffsetPoint, ReaderCore
from headrace.client.fetch.fetching_async import AsyncFetcher
from headrace.wire.ids import TopicPartition


class AsyncReader:
    """Reads the partitions of one topic from `start` to `end`, then stops. One task at a time; `close` from any."""

    def __init__(
        self,
        topic: str,
        *,
        start: OffsetPoint | Mapping[int, OffsetPoint] = "earliest",
        end: OffsetPoint | Mapping[int, OffsetPoint] = "current",
        last_per_partition: int | None = None,
        partitions: Sequence[int] | None = None,
        columns: Sequence[str] | None = None,
        where: Mapping[str, tuple[Any, Any]] | None = None,
        **settings: Unpack[ReaderSettings],
    ) -> None:
        """Create a reader. When it connects, it resolves `start` and `end` in each partition.

        Args:
            topic: name of the topic.
            start: where to start; a mapping has one entry per partition. A timedelta is relative to now and negative:
                `timedelta(hours=-1)` is an hour ago.
            end: where to end, exclusive, with the same values; by default the records visible now.
            last_per_partition: number of offsets of each partition before `end`, instead of `start`. After compaction
                some have no record.
            partitions: partitions to read; `None` means all.
            columns: of a typed topic, the columns to read: brokers send no others. Those of headrace begin with an
                underscore: `_topic`, `_partition`, `_offset`, `_timestamp`, `_key` and `_headers`. Without the last
                three, records have no key, no headers and the batch's timestamp.
            where: of a typed topic, ranges in which the rows must be: (minimum, maximum) by column, both included,
                `None` for no end. Brokers skip batches that have no such row.
            settings: see `ReaderConfig`.

        Raises:
            ConfigError: For an unknown setting, an invalid offset point, or both `start` and `last_per_partition`.
            NoBrokersAvailableError: If no address responded.
            UnknownTopicError, UnknownPartitionError: If the topic or a partition does not exist.
        """
        self._config = config = build(ReaderConfig, settings)
        if last_per_partition is not None and (last_per_partition < 1 or start != "earliest"):
            raise ConfigError("last_per_partition must be at least 1 and excludes start")
        self._fetcher = AsyncFetcher(config, "Reader", "error")
        self._core = ReaderCore(config, self._fetcher.manager)
        self._range = (topic, start, end, last_per_partition, partitions, columns, where)
        self._is_open = False
        if not ASYNC:
            self._open()

    async def _open(self) -> None:
        try:
            await aexecute(self._core.open(*self._range), self._fetcher.arun_step)
            self._core.fetcher.start()
        except BaseException:
            await self.close()
            raise
        self._is_open = True

    async def __aenter__(self) -> "AsyncReader":
        """Connect and resolve the range, if not done yet."""
        if not self._is_open:
            await self._open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return client_repr("Reader", self._config, f"topic={self._range[0]}")

    def __del__(self) -> None:
        fetcher = getattr(self, "_fetcher", None)  # Not set after wrong settings.
        if fetcher is not None:
            fetcher.close_unclosed(self, self.close)

    async def __aiter__(self) -> AsyncIterator[Record]:
        """Yield the records one by one, in order within each partition, until the end.

        After a `break`, the next loop or call continues with the record behind the last one.
        """
        async for decoded_batches in self._fetched_batches(None):
            for decoded, offsets in self._core.looped(decoded_batches):
                for record in decoded.records(offsets):
                    yield record
                del decoded

    async def batches(self, timeout: float | None = None) -> AsyncGenerator[RecordBatch, None]:
        """Yield the records in batches, one per fetch and partition, of at most `max_poll_bytes`.

        Raises:
            TimedOutError: If no records arrived for `timeout` seconds (`None` disables the limit).
        """
        async for decoded_batches in self._fetched_batches(timeout):
            yield RecordBatch(decoded_batches)

    async def read(self, timeout: float | None = None) -> RecordBatch:
        """Return all remaining records as one batch; all of them are in memory at once. People see a progress bar.

        After an error, the next call returns the same records.
        """
        found: list[DecodedBatch] = []
        with self._core.all_or_none(), self._core.progress_bar() as bar:
            async for decoded_batches in self._fetched_batches(timeout):
                found += decoded_batches
                bar.reach(self._core.passed_offsets(decoded_batches))
        return RecordBatch(found)

    async def to_arrow(self, timeout: float | None = None) -> Any:
        """Return all remaining records as a `pyarrow.Table`; see `read` and `RecordBatch.to_arrow`."""
        with self._core.all_or_none():
            return self._core.table_of(await self.read(timeout))

    async def to_pandas(self, timeout: float | None = None) -> Any:
        """Return all remaining records as a `pandas.DataFrame`; see `read`."""
        with self._core.all_or_none():
            found = await self.read(timeout)
            return self._core.frame_of(found)

    def start_offsets(self) -> dict[TopicPartition, int]:
        """Return the first offset of each partition."""
        return dict(self._core.starts)

    def end_offsets(self) -> dict[TopicPartition, int]:
        """Return the end offset of each partition, exclusive."""
        return dict(self._core.ends)

    @property
    def topic_id(self) -> bytes:
        """Id of the topic that is read; a later topic of the same name has another one."""
        return self._core.topic_id

    def calls(self) -> CallStats:
        """Return statistics of the fetch calls, including waits for data; cheap, any thread."""
        return self._core.fetcher.positions.counts.stats()._replace(grpc_fallbacks=self._fetcher.grpc_fallbacks)

    async def close(self) -> None:
        """Stop fetching and close the connections within seconds; waits raise ClosedError. Idempotent."""
        await self._fetcher.aclose()

    async def _fetched_batches(self, timeout: float | None) -> AsyncIterator[list[DecodedBatch]]:
        if ASYNC and not self._is_open:
            raise ConfigError("this Reader is not open", action="Write `async with Reader(...) as reader:`.")
        self._core.settle()
        while True:
            decoded_batches = await aexecute(self._core.next_decoded_batches(timeout), self._fetcher.arun_step)
            if decoded_batches is None:
                return
            yield decoded_batches
