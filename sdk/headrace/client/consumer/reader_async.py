"""The asyncio `Reader`: a bounded part of a topic, without a group, read once from start to end. One event loop.

async with headrace.aio.Reader("clicks", start=timedelta(hours=-1)) as reader:
    table = await reader.to_arrow()
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from headrace.client.base.call_counts import CallStats
from headrace.client.base.errors import ConfigError
from headrace.client.base.records import DecodedBatch, Record, RecordBatch
from headrace.client.consumer.reader import OffsetPoint
from headrace.client.consumer.reader import Reader as BlockingReader
from headrace.client.fetch.fetching_async import AsyncFetcher
from headrace.wire.ids import TopicPartition


class Reader:
    """Reads a topic's partitions from `start` to `end` and stops; see `headrace.Reader`. `async with` connects."""

    def __init__(
        self,
        topic: str,
        *,
        start: OffsetPoint | Mapping[int, OffsetPoint] = "earliest",
        end: OffsetPoint | Mapping[int, OffsetPoint] = "current",
        last: int | None = None,
        partitions: Sequence[int] | None = None,
        **settings: Any,
    ) -> None:
        """Check the settings; make it where the loop runs. Arguments are those of `headrace.Reader`.

        Raises:
            ConfigError: an unknown setting, `start` and `last` together.
        """
        self._core = _Core(settings, start, last)
        self._what = (topic, start, end, last, partitions)
        self._is_open = False

    async def __aenter__(self) -> "Reader":
        """Connect and fix where to start and to end in each partition.

        Raises:
            ConfigError: a bad offset point.
            NoBrokersAvailableError: no address answered.
            UnknownTopicError, UnknownPartitionError: there is none such.
        """
        if not self._is_open:
            try:
                await self._core.engine.run(self._core._open(*self._what))
            except BaseException:
                await self.close()
                raise
            self._is_open = True
            self._core.engine.begin()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def __aiter__(self) -> AsyncIterator[Record]:
        """Yield the records one by one, partitions as they come, each in order; ends at the end."""
        async for batch in self.batches():
            for record in batch:
                yield record

    async def batches(self, timeout: float | None = None) -> AsyncIterator[RecordBatch]:
        """Yield the records in batches, one a fetch and partition.

        Raises:
            TimedOutError: nothing came for `timeout` seconds (None: wait without end).
        """
        while (decoded_batches := await self._next(timeout)) is not None:
            yield RecordBatch(decoded_batches)

    async def read(self, timeout: float | None = None) -> RecordBatch:
        """Return all records that are left, as one batch; they are all in memory then."""
        found: list[DecodedBatch] = []
        while (decoded_batches := await self._next(timeout)) is not None:
            found.extend(decoded_batches)
        return RecordBatch(found)

    async def to_arrow(self, timeout: float | None = None) -> Any:
        """Return all records that are left as a `pyarrow.Table`; see `RecordBatch.to_arrow`."""
        return (await self.read(timeout)).to_arrow()

    async def to_pandas(self, timeout: float | None = None) -> Any:
        """Return all records that are left as a `pandas.DataFrame`."""
        return (await self.read(timeout)).to_pandas()

    def start_offsets(self) -> dict[TopicPartition, int]:
        """Return the first offset of each partition."""
        return self._core.start_offsets()

    def end_offsets(self) -> dict[TopicPartition, int]:
        """Return the end offset of each partition, exclusive."""
        return self._core.end_offsets()

    def calls(self) -> CallStats:
        """Return statistics of the fetch calls, waits for data included; cheap."""
        return self._core.calls()

    async def close(self) -> None:
        """End fetching and close the connections; what waits raises ClosedError. Again: nothing."""
        await self._core.engine.shut()

    async def _next(self, timeout: float | None) -> list[DecodedBatch] | None:
        if not self._is_open:
            raise ConfigError("this Reader is not open", action="Write `async with Reader(...) as reader:`.")
        decoded_batches: list[DecodedBatch] | None = await self._core.engine.run(
            self._core._next_decoded_batches(timeout)
        )
        return decoded_batches


class _Core(BlockingReader):
    """The blocking reader over the loop's engine; only its operations are used."""

    def __init__(
        self, settings: Mapping[str, Any], start: OffsetPoint | Mapping[int, OffsetPoint], last: int | None
    ) -> None:
        self._set_up(settings, start, last, AsyncFetcher)

    @property
    def engine(self) -> AsyncFetcher:
        assert isinstance(self._fetcher, AsyncFetcher)
        return self._fetcher
