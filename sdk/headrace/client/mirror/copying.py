"""Copy of one partition from a log to a mirror's: fetches and appends, each ahead of the others. One event loop.

The position is the end of the mirror's log and nothing else: after any failure the copy continues there. Appends in
flight need no order among them: one that arrives before its predecessor does not fit, and is refused.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from headrace.client.admin.admin_async import AsyncAdmin
from headrace.client.admin.partition_calls import CopyResult, Fetched, PartitionCalls
from headrace.client.base.config import AdminConfig, build
from headrace.client.base.operations import Operation, aexecute
from headrace.client.mirror.rows import records_behind
from headrace.client.net.transport import open_connections_async
from headrace.partition.fitting import LogPoint, fitting, gap
from headrace.wire.batch import BatchHeader, read_header
from headrace.wire.crc import ReadableBuffer
from headrace.wire.errors import DivergedLogError, HeadraceError, OffsetOutOfRangeError, Outcome
from headrace.wire.ids import TopicPartition

Result = TypeVar("Result")

FETCH_WAIT_MS = 1_000
"""Time for which a fetch waits for records at the end of the source."""
MEMORY_BYTES = 64 << 20
"""Memory for the answers of all copies of one worker; each has at most three of them."""
MIN_FETCHED_BYTES = 64 << 10
MAX_FETCHED_BYTES = 4 << 20
MAX_APPENDS = 2
"""Appends of one copy in flight while the source has more: one is received while the one before is written."""


class Side:
    """Connections to the source or to the target of a mirror. Use as an async context manager."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """Create it with settings of `AdminConfig`. Raises ConfigError."""
        self.settings: dict[str, Any] = dict(settings)
        self._config = build(AdminConfig, self.settings)
        self.admin = AsyncAdmin(**settings)
        self._connections = open_connections_async("Mirror", self._config)

    async def __aenter__(self) -> "Side":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._connections.close()
        await self.admin.close()

    def topic(self, name: str, topic_id: bytes) -> PartitionCalls:
        """Return the calls about one topic."""
        return PartitionCalls(name, topic_id, self._config)

    async def run(self, operation: Operation[Result]) -> Result:
        """Run an operation of `PartitionCalls`."""
        return await aexecute(operation, self._connections.run_step)


class CopyLimits:
    """Limits of several copies together."""

    def __init__(self, bytes_per_second: int = 0) -> None:
        """`0` means no limit."""
        self.bytes_per_second = bytes_per_second
        self.copies = 1
        """Number of copies that may run at the same time."""
        self._free_at = 0.0

    @property
    def fetched_bytes(self) -> int:
        """Bytes of one fetch, and so of one append, unless a single batch is larger."""
        return max(MIN_FETCHED_BYTES, min(MAX_FETCHED_BYTES, MEMORY_BYTES // self.copies))

    async def take(self, size_bytes: int) -> None:
        """Wait until `size_bytes` may be copied."""
        if not self.bytes_per_second:
            return
        now = asyncio.get_running_loop().time()
        begins = max(now, self._free_at)
        self._free_at = begins + size_bytes / self.bytes_per_second
        await asyncio.sleep(begins - now)


@dataclass(slots=True)
class CopyState:
    """How far the copy of one partition is."""

    topic: str
    partition: int
    end_offset: int = -1
    """End of the mirror's log; -1 until it is known."""
    source_end_offset: int = -1
    """High watermark of the source when it answered last."""
    answered_ms: int = 0
    """Time at which the source answered last, ms since 1970; 0 if it has not."""
    copied_ms: int = 0
    """Append timestamp, by the source, of the last batch that was copied."""
    size_bytes: int = 0
    """Bytes copied since the start."""

    @property
    def lag(self) -> int:
        """Records of the source that are not copied; -1 while it is not known."""
        return records_behind(self.end_offset, self.source_end_offset)


@dataclass(frozen=True, slots=True)
class _Append:
    """Append in flight."""

    task: asyncio.Task[CopyResult]
    last: BatchHeader
    """Header of its last batch."""
    size_bytes: int
    is_first: bool
    """Whether none was in flight before it."""


class PartitionCopy:
    """Copy of one partition."""

    def __init__(
        self,
        number: int,
        source: tuple[Side, PartitionCalls],
        target: tuple[Side, PartitionCalls],
        limits: CopyLimits,
        progress: Callable[[CopyState], object] = lambda state: None,
    ) -> None:
        """`progress` is called after each append, and when the source has answered that it has nothing else."""
        self._number = number
        self._source, self._source_calls = source
        self._target, self._target_calls = target
        self._limits = limits
        self._progress = progress
        self.state = CopyState(self._target_calls.topic, number)
        self._end = self._ahead = LogPoint(0, 0)
        """End of the mirror's log, and where it ends after the appends in flight."""
        self._appends: deque[_Append] = deque()
        self._log_start = 0

    async def run(self, until: int | None = None) -> None:
        """Copy until the mirror's log ends at `until` or later; `None`: until cancelled.

        Raises:
            DivergedLogError: If the logs have different records, or the source ends before the mirror.
            UnknownTopicIdError: If the topic was deleted, here or at the source.
            InvalidRequestError: If the mirror was promoted.
            HeadraceError: An error that lasts longer than `request_timeout_ms`; running again continues.
        """
        await self._take_end()
        await self._check_end()
        fetching: asyncio.Task[Fetched] | None = None
        try:
            while until is None or self._end.offset < until:
                fetching = fetching or asyncio.create_task(self._fetch(self._ahead.offset))
                fetched = await fetching
                fetching = None
                batches = list(fitting(fetched.batches, self._ahead, until))
                self.state.source_end_offset = fetched.high_watermark
                self.state.answered_ms = time.time_ns() // 1_000_000
                if fetched.chain_crc is not None:  # Empty: there is no batch that would have the chain value.
                    end = LogPoint(fetched.log_start_offset, fetched.chain_crc)
                    batches = list(gap(self._ahead, end, self.state.answered_ms))
                left = 0
                if batches:
                    last = read_header(batches[-1])
                    if until is None or last.end_offset < until:
                        fetching = asyncio.create_task(self._fetch(last.end_offset))
                        left = MAX_APPENDS - 1 if last.end_offset < fetched.high_watermark else 0
                    await self._limits.take(sum(map(len, batches)))
                    self._begin_append(batches, last, fetched.deletions_end)
                if not await self._settle(left) and fetching is not None:
                    await end_tasks([fetching])  # It is ahead of where the log ends.
                    fetching = None
                await self._follow_log_start(fetched.log_start_offset)
                self._progress(self.state)
        finally:
            await end_tasks([each.task for each in self._appends] + ([fetching] if fetching is not None else []))
            self._appends.clear()

    def _begin_append(self, batches: Sequence[ReadableBuffer], last: BatchHeader, deletions_end: int) -> None:
        """Append batches behind those in flight."""
        calls, run = self._target_calls, self._target.run
        task = asyncio.create_task(run(calls.append(self._number, batches, deletions_end=deletions_end)))
        self._appends.append(_Append(task, last, sum(map(len, batches)), is_first=not self._appends))
        self._ahead = LogPoint(last.end_offset, last.chain_crc)

    async def _settle(self, left: int) -> bool:
        """Wait until at most `left` appends are in flight; return False if the log ends elsewhere than they did.

        Then none is in flight, and what they had is fetched again. An append that fails behind another one fails for
        the other's reason, or again when it is the first.
        """
        while len(self._appends) > left or (self._appends and self._appends[0].task.done()):
            append = self._appends.popleft()
            try:
                appended = await append.task
            except HeadraceError:
                if append.is_first:
                    raise
                break
            if appended.log_end_offset != append.last.end_offset:
                break  # Another leader has begun there, or another worker has copied.
            self._note_end(appended)
            self.state.copied_ms = append.last.append_timestamp_ms
            self.state.size_bytes += append.size_bytes
        else:
            return True
        await end_tasks([each.task for each in self._appends])
        self._appends.clear()
        await self._take_end()
        return False

    async def _take_end(self) -> None:
        """Ask where the mirror's log ends; nothing may be in flight."""
        self._note_end(await self._target.run(self._target_calls.append(self._number, [], deletions_end=0)))
        self._ahead = self._end

    def _note_end(self, appended: CopyResult) -> None:
        self._end = LogPoint(appended.log_end_offset, appended.chain_crc)
        self.state.end_offset = self._end.offset

    async def _check_end(self) -> None:
        """Check that the source's log is the same where the mirror's ends.

        A source that was restored may end there, too, with other records: no batch follows that would not fit.
        """
        if not self._end.offset:
            return
        found = await self._source.run(self._source_calls.batch_with(self._number, self._end.offset - 1))
        if found is not None and found[0] == self._end.offset and found[1] != self._end.chain_crc:
            raise DivergedLogError(
                f"the source has another record than the mirror at offset {found[0] - 1}: it has lost records, or was "
                "restored from a backup",
                outcome=Outcome.NOT_APPLIED,
            )

    async def _fetch(self, offset: int) -> Fetched:
        """Fetch at an offset, or from the start of the source's log if that is later."""
        try:
            return await self._fetch_at(offset)
        except OffsetOutOfRangeError:
            tp, admin = TopicPartition(self._source_calls.topic, self._number), self._source.admin
            start = (await admin.list_offsets(tp.topic, "earliest", partitions=[self._number]))[tp].offset
            end = (await admin.list_offsets(tp.topic, "latest", partitions=[self._number]))[tp].offset
            if end < offset:
                raise DivergedLogError(
                    f"partition {tp} ends at offset {end} at its source, and the mirror's at {offset}: the source has "
                    "lost records, or was restored from a backup",
                    outcome=Outcome.NOT_APPLIED,
                ) from None
            if start <= offset:
                raise
        return await self._fetch_at(start)

    async def _fetch_at(self, offset: int) -> Fetched:
        max_bytes = self._limits.fetched_bytes
        fetching = self._source_calls.fetch(self._number, offset, max_wait_ms=FETCH_WAIT_MS, max_bytes=max_bytes)
        return await self._source.run(fetching)

    async def _follow_log_start(self, log_start: int) -> None:
        """Delete at the mirror what the source has deleted, as far as it is copied and replicated."""
        log_start = min(log_start, self._end.offset)
        if log_start <= self._log_start:
            return
        tp = TopicPartition(self._target_calls.topic, self._number)
        number = [tp.partition]
        committed = (await self._target.admin.list_offsets(tp.topic, "latest", partitions=number))[tp].offset
        if committed < log_start:
            return  # After the next answer of the source.
        if (await self._target.admin.list_offsets(tp.topic, "earliest", partitions=number))[tp].offset < log_start:
            await self._target.admin.delete_records(tp.topic, {tp.partition: log_start})
        self._log_start = log_start


async def end_tasks(tasks: "Iterable[asyncio.Task[Any]]") -> None:
    """Cancel tasks, and wait until they have ended."""
    ending = list(tasks)
    for task in ending:
        task.cancel()
    if ending:
        await asyncio.wait(ending)
    for task in ending:
        if not task.cancelled():
            task.exception()  # Its error is of no interest any more.
