"""Asyncio `Consumer`: an endless stream of the records of some partitions (paper, section 3).

One task reads with it. The position is exactly that of the records that it has received, also during an iteration; a
cancelled wait has received no record.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Unpack

from headrace.client.base.acompat import ASYNC
from headrace.client.base.call_counts import CallStats
from headrace.client.base.config import ConsumerConfig, build
from headrace.client.base.errors import ConfigError
from headrace.client.base.operations import Operation, aexecute
from headrace.client.base.records import RecordBatch
from headrace.client.base.settings_types import ConsumerSettings
from headrace.client.consumer.consumer_core import ConsumerCore
from headrace.client.consumer.record_stream import AsyncRecordStream
from headrace.client.fetch.fetching_async import AsyncFetcher
from headrace.client.group.consumer_health import ConsumerHealth
from headrace.client.group.member import CLOSE_TIMEOUT_S
from headrace.client.group.offsets import CommitCallback, OffsetAndMetadata
from headrace.client.handlers.handler_pool import AsyncHandler, RunOptions, RunSummary
from headrace.client.handlers.run_arguments import RunArguments
from headrace.client.handlers.runner_async import AsyncRunner
from headrace.wire.ids import TopicPartition


class AsyncConsumer(AsyncRecordStream):
    """Reads partitions without end. One task reads with it.

    `Consumer("clicks", "views")` reads all partitions of the topics, including those added later; `Consumer()` followed
    by `assign` reads chosen ones. `Consumer("clicks", group_id="billing")` shares them with the other consumers of the
    group. `wakeup`, `stop`, `close` and `health` may be called by other tasks.
    """

    def __init__(self, *topics: str, **settings: Unpack[ConsumerSettings]) -> None:
        """Create a consumer with the settings of `ConsumerConfig`. When it connects, it looks up its initial positions.

        Raises:
            ConfigError: For an unknown setting or a value out of range.
            NoBrokersAvailableError: If no address responded.
            UnknownTopicError: If one of the topics does not exist; a group waits for it.
        """
        config = build(ConsumerConfig, settings)
        self._fetcher = AsyncFetcher(config, "Consumer", config.auto_offset_reset)
        self._core = ConsumerCore(topics, config, self._fetcher.manager)
        self._runner: AsyncRunner | None = None
        self._is_open = False
        if not ASYNC:
            self._open()

    async def _open(self) -> None:
        try:
            await aexecute(self._core.open(), self._fetcher.arun_step)
            self._core.start()
        except BaseException:
            await self._fetcher.aclose()
            raise
        self._is_open = True

    async def __aenter__(self) -> "AsyncConsumer":
        """Connect and look up the initial positions, if not done yet."""
        if not self._is_open:
            await self._open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it; without an error in the block, all received records count as processed."""
        await self._close(CLOSE_TIMEOUT_S, finish=kind is None)

    def __repr__(self) -> str:
        return repr(self._core)

    def __del__(self) -> None:
        fetcher = getattr(self, "_fetcher", None)  # Not set after wrong settings.
        if fetcher is not None:
            fetcher.close_unclosed(self, self.close)

    # --- records ---

    async def poll(self, timeout: float | None = 1.0, max_records: int | None = None) -> RecordBatch:
        """Return fetched records; wait up to `timeout` seconds for the first one (`None` disables the limit).

        Args:
            timeout: in seconds; 0 does not wait.
            max_records: maximum number; `None` means the records of one fetch. Never more than `max_poll_bytes`.

        Raises:
            CorruptBatchError: A batch is corrupt on every replica; seek to `next_offset` to continue.
            LogTruncationError: Received records were lost or replaced, from `diverging_offset` on.
            OffsetOutOfRangeError: The position is no longer in the log, and auto_offset_reset is `error`.
            TopicRecreatedError: The topic was deleted and created again, and auto_offset_reset is `error`.
            WakeupError: `wakeup` was called.
        """
        batch: RecordBatch = await self._read(self._core.poll(timeout, max_records))
        return batch

    # --- positions ---

    async def assign(self, partitions: Sequence[TopicPartition] | Mapping[TopicPartition, int]) -> None:
        """Read exactly these partitions, from the given offsets or according to `auto_offset_reset`.

        Raises:
            UnknownTopicError, UnknownPartitionError: If one does not exist.
            ConfigError: If the consumer was created with topics, or for a group.
        """
        await self._do(self._core.assign_only(partitions))

    def assignment(self) -> list[TopicPartition]:
        """Return the partitions that are read, ascending."""
        return self._core.assignment()

    def position(self, where: TopicPartition) -> int:
        """Return the offset of the next record that the application will receive of a partition."""
        return self._core.position(where)

    def seek(self, where: TopicPartition, offset: int) -> None:
        """Continue at `offset` in one partition."""
        self._core.seek(where, offset)

    async def seek_to_timestamp(self, when: datetime | float, *partitions: TopicPartition) -> None:
        """Seek to the first record at or after `when` (a datetime, or ms since 1970) in some partitions, or all."""
        await self._do(self._core.seek_to(when, partitions))

    async def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Seek to the log start of some partitions, or of all."""
        await self._do(self._core.seek_to("earliest", partitions))

    async def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Seek to the end of the log, where the next record will be written, in some partitions or in all."""
        await self._do(self._core.seek_to("latest", partitions))

    def pause(self, *partitions: TopicPartition) -> None:
        """Stop delivering some partitions until `resume`; their positions stay."""
        self._core.pause(*partitions)

    def resume(self, *partitions: TopicPartition) -> None:
        """Receive records of paused partitions again."""
        self._core.resume(*partitions)

    def paused(self) -> list[TopicPartition]:
        """Return the partitions that are paused, ascending."""
        return self._core.paused()

    def lag(self) -> dict[TopicPartition, int | None]:
        """Return the lag in records by partition, as of the last fetch; `None` means unknown."""
        return self._core.lag()

    # --- handlers ---

    async def run(self, handler: AsyncHandler, **options: Unpack[RunArguments]) -> RunSummary:
        """Call `handler` with every record, several at a time, and commit finished ones, until `stop`.

        Each record is handled at least once: records not committed when a process died are handled again.

        Args:
            handler: called on threads of the run. After an exception it is called again with the record, as `retry`
                states, while others continue; then the record goes to `dead_letter`, with the cause in headers.
            options: see `RunOptions`: `concurrency=8` parallel handlers; `ordering="key"` (records of a key one by one
                in order, those without a key in any order) or `"partition"`; `retry=RetryPolicy(...)`; `dead_letter`, a
                topic; `handler_timeout_ms`: a handler that exceeds it is abandoned and its record fails at once;
                `buffer_records` and `window_records` limit records read ahead and finished out of order;
                `drain_timeout_ms` limits the time for handlers to finish when partitions or the run end;
                `handle_signals`: SIGINT and SIGTERM end the run, on the main thread; then the handler that the
                application has set for them is called.

        Returns:
            Counts of the run. The consumer's position is the first unfinished record of each partition.

        Raises:
            HandlerError: If a record failed permanently and no dead-letter topic takes it.
            ConfigError: If the consumer has no group, or an option is unknown or out of range.
            HeadraceError: As `poll`.
        """
        runner = self._runner = AsyncRunner(self, handler, RunOptions.of(options))
        try:
            return await runner.run()
        finally:
            self._runner = None

    def stop(self) -> None:
        """End `run` after the active handlers; any thread, including a handler's."""
        runner = self._runner
        if runner is not None:
            runner.stop()

    # --- offsets of the group ---

    async def commit(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None, timeout: float = 30.0
    ) -> None:
        """Commit offsets of the group and wait for the result.

        Args:
            offsets: next record to read, by partition; `None` means all received records, including the current one.
            timeout: in seconds; after it the commit is still being retried.

        Raises:
            NotOwnerError: If another member now owns a partition; the others are stored.
            UnknownMemberError: If the session ended before they were stored; as far as known, none was.
            TimedOutError: If the outcome is not known yet.
            ClosedError: If the consumer was closed before the outcome was known.
        """
        await self._do(self._core.commit(offsets, timeout))

    def commit_async(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None,
        callback: CommitCallback | None = None,
    ) -> None:
        """Commit offsets in the background; `callback(offsets, error or None)` is called by the next poll."""
        self._core.commit_async(offsets, callback)

    async def committed(
        self, *partitions: TopicPartition, timeout: float = 30.0
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the committed offsets of some partitions, or of all that are read; `None` for a partition without one.

        Raises:
            HeadraceError: If no coordinator responded in time.
        """
        found: dict[TopicPartition, OffsetAndMetadata | None] = await self._do(
            self._core.committed(partitions, timeout)
        )
        return found

    def assignment_epoch(self, where: TopicPartition) -> int:
        """Return the fencing token of a partition: it is larger for every later owner.

        Raises:
            NotOwnerError: If this consumer does not read it.
        """
        return self._core.in_group().assignment_epoch(where)

    # --- health and close ---

    def calls(self) -> CallStats:
        """Return statistics of the fetch calls, including waits for data; cheap, any thread."""
        return self._core.fetcher.positions.counts.stats()._replace(grpc_fallbacks=self._fetcher.grpc_fallbacks)

    def health(self) -> ConsumerHealth:
        """Return whether this consumer can work; cheap, any thread."""
        return self._core.health()

    def wakeup(self) -> None:
        """End the current or the next wait for records with a WakeupError."""
        self._core.fetcher.wakeup()

    async def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Stop fetching and close the connections, within seconds. Calling it again does nothing. Any thread.

        A consumer of a group commits its processed records, calls on_revoked and leaves, within `timeout` seconds; call
        it on the thread that reads. The last received records do not count as processed: call `commit` before, or leave
        the `with` block instead.
        """
        await self._close(timeout, finish=False)

    async def _close(self, timeout: float, *, finish: bool) -> None:
        try:
            if self._is_open:
                await aexecute(self._core.closing(timeout, finish=finish), self._fetcher.arun_step)
        finally:
            await self._fetcher.aclose()

    async def _do(self, operation: Operation[Any]) -> Any:
        """Execute an operation of the core."""
        if ASYNC and not self._is_open:
            operation.close()
            self._core.fetcher.check()
            raise ConfigError("this Consumer is not open", action="Write `async with Consumer(...) as consumer:`.")
        return await aexecute(operation, self._fetcher.arun_step)
