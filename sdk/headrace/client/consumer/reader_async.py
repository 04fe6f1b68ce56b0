"""The asyncio `Reader`: a bounded part of a topic, without a group, read once from start to end.

async with headrace.aio.Reader("clicks", start=timedelta(hours=-1), end="current") as reader:
    table = await reader.to_arrow()
"""

from collections.abc import AsyncIterator, Mapping, Sequence
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
    """Reads one topic's partitions from `start` up to `end` and stops there. One task at a time; `close` from any."""

    def __init__(
        self,
        topic: str,
        *,
        start: OffsetPoint | Mapping[int, OffsetPoint] = "earliest",
        end: OffsetPoint | Mapping[int, OffsetPoint] = "current",
        last_per_partition: int | None = None,
        partitions: Sequence[int] | None = None,
        **settings: Unpack[ReaderSettings],
    ) -> None:
        """Take the range and the settings. When it connects, it fixes `start` and `end` in each partition.

        Args:
            topic: its name.
            start: where to start; a mapping gives each partition its own. A timedelta counts from now and is
                negative: `timedelta(hours=-1)` is an hour ago.
            end: where to end, exclusive, in the same ways; by default what is visible now.
            last_per_partition: number of records of each partition before `end`, in place of `start`.
            partitions: which; None: all.
            settings: see `ReaderConfig`.

        Raises:
            ConfigError: an unknown setting, a bad offset point, `start` and `last_per_partition` together.
            NoBrokersAvailableError: no address answered.
            UnknownTopicError, UnknownPartitionError: there is none such.
        """
        self._config = config = build(ReaderConfig, settings)
        if last_per_partition is not None and (last_per_partition < 1 or start != "earliest"):
            raise ConfigError("last_per_partition is at least 1 and goes without start")
        self._fetcher = AsyncFetcher(config, "Reader", "error")
        self._core = ReaderCore(config, self._fetcher.manager)
        self._range = (topic, start, end, last_per_partition, partitions)
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
        """Connect and fix the range, unless that is done."""
        if not self._is_open:
            await self._open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return client_repr("Reader", self._config, f"topic={self._range[0]}")

    def __del__(self) -> None:
        fetcher = getattr(self, "_fetcher", None)  # Wrong settings leave none.
        if fetcher is not None:
            fetcher.close_unclosed(self, self.close)

    async def __aiter__(self) -> AsyncIterator[Record]:
        """Yield the records one by one, partitions as they come, each in order; ends at the end."""
        async for decoded_batches in self._fetched_batches(None):
            decoded_batches.reverse()
            while decoded_batches:
                decoded = decoded_batches.pop()
                for record in decoded.records(iter(decoded.offsets())):
                    yield record
                del decoded  # Before the next one is inflated.

    async def batches(self, timeout: float | None = None) -> AsyncIterator[RecordBatch]:
        """Yield the records in batches, one a fetch and partition, of at most `max_poll_bytes`.

        Raises:
            TimedOutError: nothing came for `timeout` seconds (None: wait without end).
        """
        async for decoded_batches in self._fetched_batches(timeout):
            yield RecordBatch(decoded_batches)

    async def read(self, timeout: float | None = None) -> RecordBatch:
        """Return all records that are left, as one batch; they are all in memory then."""
        found: list[DecodedBatch] = []
        async for decoded_batches in self._fetched_batches(timeout):
            found += decoded_batches
        return RecordBatch(found)

    async def to_arrow(self, timeout: float | None = None) -> Any:
        """Return all records that are left as a `pyarrow.Table`; see `RecordBatch.to_arrow`."""
        return (await self.read(timeout)).to_arrow()

    async def to_pandas(self, timeout: float | None = None) -> Any:
        """Return all records that are left as a `pandas.DataFrame`."""
        return (await self.read(timeout)).to_pandas()

    def start_offsets(self) -> dict[TopicPartition, int]:
        """Return the first offset of each partition."""
        return dict(self._core.starts)

    def end_offsets(self) -> dict[TopicPartition, int]:
        """Return the end offset of each partition, exclusive."""
        return dict(self._core.ends)

    @property
    def topic_id(self) -> bytes:
        """The id of the topic that is read: one that is created later under its name has another."""
        return self._core.topic_id

    def calls(self) -> CallStats:
        """Return statistics of the fetch calls, waits for data included; cheap, any thread."""
        return self._core.fetcher.positions.counts.stats()._replace(grpc_fallbacks=self._fetcher.grpc_fallbacks)

    async def close(self) -> None:
        """End fetching and close the connections within seconds; what waits raises ClosedError. Again: nothing."""
        await self._fetcher.aclose()

    async def _fetched_batches(self, timeout: float | None) -> AsyncIterator[list[DecodedBatch]]:
        if ASYNC and not self._is_open:
            raise ConfigError("this Reader is not open", action="Write `async with Reader(...) as reader:`.")
        while True:
            decoded_batches = await aexecute(self._core.next_decoded_batches(timeout), self._fetcher.arun_step)
            if decoded_batches is None:
                return
            yield decoded_batches
