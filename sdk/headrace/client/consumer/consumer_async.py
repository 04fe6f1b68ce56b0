"""The asyncio `Consumer`: an endless stream of the records of some partitions. One event loop, one task that reads.

It executes the operations of the blocking class on the loop. The position is exactly that of the records that the task
has received, also in the middle of `async for`; a wait that is cancelled has received nothing.
"""

import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Unpack

from headrace.client.base.call_counts import CallStats
from headrace.client.base.errors import ConfigError
from headrace.client.base.operations import Operation, aexecute
from headrace.client.base.records import Record, RecordBatch
from headrace.client.base.settings_types import ConsumerSettings
from headrace.client.base.unclosed import close_in_loop
from headrace.client.consumer.consumer import Consumer as BlockingConsumer
from headrace.client.fetch.fetching_async import AsyncFetcher
from headrace.client.group.consumer_health import ConsumerHealth
from headrace.client.group.member import CLOSE_TIMEOUT_S
from headrace.client.group.offsets import CommitCallback, OffsetAndMetadata
from headrace.client.handlers.handler_pool import RunOptions, RunSummary
from headrace.client.handlers.run_arguments import RunArguments
from headrace.client.handlers.runner_async import AsyncRunner
from headrace.wire.ids import TopicPartition


class Consumer:
    """Reads partitions for ever; settings and errors are `headrace.Consumer`'s. `async with` connects.

    What may wait is a coroutine; what cannot is a plain method.
    """

    def __init__(self, *topics: str, **settings: Unpack[ConsumerSettings]) -> None:
        """Check the settings; make it where the loop runs. See `ConsumerConfig` for the settings.

        Raises:
            ConfigError: an unknown setting or a value out of range.
        """
        self._core = _Core(topics, settings)
        self._records: Iterator[Record] = iter(())
        self._is_open = False
        self._reads = False
        self._runner: AsyncRunner | None = None

    async def __aenter__(self) -> "Consumer":
        """Connect, and find where to start.

        Raises:
            NoBrokersAvailableError: no address answered.
            UnknownTopicError: one of the topics is not there.
        """
        if not self._is_open:
            try:
                await self._do(self._core._open())
            except BaseException:
                await self._core.engine.aclose()
                raise
            self._is_open = True
            self._core._start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        """Close it; leaving the block without an error says that everything received was dealt with."""
        await self._close(CLOSE_TIMEOUT_S, finish=kind is None)

    def __repr__(self) -> str:
        return repr(self._core)

    def __del__(self) -> None:
        core = getattr(self, "_core", None)  # Wrong settings leave none.
        if core is not None and core.engine.is_open:
            close_in_loop(self, core.engine.loop, self.close)

    def __aiter__(self) -> "Consumer":
        return self

    async def __anext__(self) -> Record:
        """Return the next record; waits where there is none. A wait that is cancelled can be made again."""
        if self._core._current is not None:
            try:
                record = next(self._records, None)
            except Exception:
                self._core._settle()  # The next call goes on behind the record that could not be read.
                raise
            if record is not None:
                self._core._fetcher.check()
                return record
        while True:
            self._records = await self._read(self._core._next_records())
            record = next(self._records, None)
            if record is not None:
                return record

    async def poll(self, timeout: float | None = 1.0, max_records: int | None = None) -> RecordBatch:
        """Return fetched records; wait up to `timeout` seconds for the first one (`None` disables the limit).

        Args:
            timeout: in seconds; 0 only looks.
            max_records: at most so many; None: what one fetch brought. Never more than `max_poll_bytes`.

        Raises:
            CorruptBatchError: a batch is corrupt wherever it can be read; `next_offset` says where to seek to go on.
            LogTruncationError: records that were received were lost or replaced; `diverging_offset` says from where on.
            OffsetOutOfRangeError: the position is gone, and auto_offset_reset is `error`.
            WakeupError: another task called `wakeup`.
        """
        batch: RecordBatch = await self._read(self._core._poll(timeout, max_records))
        return batch

    async def assign(self, partitions: Sequence[TopicPartition] | Mapping[TopicPartition, int]) -> None:
        """Read exactly these partitions, from the offsets given or where `auto_offset_reset` says."""
        await self._run(self._core._assign_only(partitions))

    async def seek_to_timestamp(self, when: datetime | float, *partitions: TopicPartition) -> None:
        """Go on from the first record at or after `when` (a datetime, or ms since 1970) in some partitions, or all."""
        await self._run(self._core._seek_to(when, partitions))

    async def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Go on from the log start of some partitions, or of all."""
        await self._run(self._core._seek_to("earliest", partitions))

    async def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Go on from what comes next in some partitions, or in all."""
        await self._run(self._core._seek_to("latest", partitions))

    def seek(self, where: TopicPartition, offset: int) -> None:
        """Go on from `offset` in one partition."""
        self._core.seek(where, offset)

    def assignment(self) -> list[TopicPartition]:
        """Return the partitions that are read, ascending."""
        return self._core.assignment()

    def position(self, where: TopicPartition) -> int:
        """Return the offset of the next record that the application will receive of a partition."""
        return self._core.position(where)

    def pause(self, *partitions: TopicPartition) -> None:
        """Receive nothing of some partitions until `resume`; their positions stay."""
        self._core.pause(*partitions)

    def resume(self, *partitions: TopicPartition) -> None:
        """Receive records of paused partitions again."""
        self._core.resume(*partitions)

    def paused(self) -> list[TopicPartition]:
        """Return the partitions that are paused, ascending."""
        return self._core.paused()

    def lag(self) -> dict[TopicPartition, int | None]:
        """Return the lag in records by partition, as of the last fetch; `None` means that it is not known yet."""
        return self._core.lag()

    async def run(self, handler: Callable[[Record], Awaitable[Any]], **options: Unpack[RunArguments]) -> RunSummary:
        """Await `handler(record)` for every record, several at a time, and commit what is done, until `stop`.

        Options, result and errors are those of `headrace.Consumer.run`; a handler that takes longer than
        handler_timeout_ms is cancelled, and its record tried again.
        """
        runner = self._runner = AsyncRunner(self, handler, RunOptions.of(options))
        try:
            return await runner.run()
        finally:
            self._runner = None

    def stop(self) -> None:
        """End `run` after the handlers at work; from this loop."""
        if self._runner is not None:
            self._runner.stop()

    async def commit(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None, timeout: float = 30.0
    ) -> None:
        """Store offsets for the group and wait until they are; see `headrace.Consumer.commit`."""
        await self._run(self._core._commit(offsets, timeout))

    def commit_async(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None,
        callback: CommitCallback | None = None,
    ) -> None:
        """Store offsets in the background; `callback(offsets, error or None)` is called when records are asked for."""
        self._core.commit_async(offsets, callback)

    async def committed(
        self, *partitions: TopicPartition, timeout: float = 30.0
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Ask what the group has stored of some partitions, or of all that are read; None: nothing."""
        found: dict[TopicPartition, OffsetAndMetadata | None] = await self._run(
            self._core._committed(partitions, timeout)
        )
        return found

    def assignment_epoch(self, where: TopicPartition) -> int:
        """Return the fencing token of a partition: it is larger for every later owner."""
        return self._core.assignment_epoch(where)

    def calls(self) -> CallStats:
        """Return statistics of the fetch calls, waits for data included; cheap."""
        return self._core.calls()

    def health(self) -> ConsumerHealth:
        """Say whether this consumer can work; cheap."""
        return self._core.health()

    def wakeup(self) -> None:
        """End the current or the next wait of the reading task with a WakeupError. From this loop."""
        self._core.wakeup()

    async def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """End fetching and close the connections; what waits raises ClosedError. Again: nothing.

        A consumer of a group commits what it has finished with and leaves, as `headrace.Consumer.close` says.
        """
        await self._close(timeout, finish=False)

    async def _close(self, timeout: float, *, finish: bool) -> None:
        core = self._core
        try:
            if self._is_open and core._group is not None and core._group.begins_to_close():
                core._settle()
                await self._do(core._group.closing(timeout, finish=finish))
        finally:
            await core.engine.aclose()

    async def _read(self, operation: Operation[Any]) -> Any:
        """Execute an operation that receives records; one task at a time, since two would share one position."""
        if self._reads:
            operation.close()
            raise ConfigError("another task is reading with this Consumer", action="Make a Consumer for each task.")
        self._reads = True
        try:
            return await self._run(operation)
        finally:
            self._reads = False

    async def _run(self, operation: Operation[Any]) -> Any:
        if not self._is_open:
            with contextlib.closing(operation):
                self._core._fetcher.check()
                raise ConfigError("this Consumer is not open", action="Write `async with Consumer(...) as consumer:`.")
        return await self._do(operation)

    async def _do(self, operation: Operation[Any]) -> Any:
        return await aexecute(operation, self._core.engine.arun_step)


class _Core(BlockingConsumer):
    """The blocking consumer over the loop's engine; only its operations and what does not wait are used."""

    def __init__(self, topics: Sequence[str], settings: Mapping[str, Any]) -> None:
        self._set_up(topics, settings, AsyncFetcher)

    def __del__(self) -> None:
        """The class around it closes it."""

    @property
    def engine(self) -> AsyncFetcher:
        assert isinstance(self._fetcher, AsyncFetcher)
        return self._fetcher
