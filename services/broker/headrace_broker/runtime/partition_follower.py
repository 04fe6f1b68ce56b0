"""Follower side of replication: when a partition fetches from its leader, and how it applies the response."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import structlog
from headrace.log.errors import REFUSALS
from headrace.wire.errors import CorruptBatchError, HeadraceError
from headrace.wire.ids import Offset
from headrace_server.partition_state import Replica

from headrace_broker.core.messages import BatchesReplicated, LeaderReported, LogRestarted, LogTruncated
from headrace_broker.core.replica_fetch import (
    AppendBatches,
    FetchAnswer,
    Refetch,
    ResetLog,
    TruncateTo,
    next_step,
    truncate_or_reset,
)
from headrace_broker.core.roles import Role
from headrace_broker.runtime.partition_host import PartitionHost
from headrace_broker.runtime.uninterrupted import uninterrupted

if TYPE_CHECKING:
    from headrace_broker.runtime.partition import Partition

log = structlog.get_logger(__name__)

_INLINE_BYTES = 128 << 10
"""Larger responses of a leader are checked and written in a thread (H46)."""
_COPY_LOOK_SECONDS = 1.0
"""Interval at which a throttled copy checks whether it is still throttled."""


class PartitionFollower:
    """Fetches of one partition. Belongs to the event loop."""

    def __init__(self, partition: Partition, host: PartitionHost) -> None:
        self._partition = partition
        self._replica = partition.replica
        self._context = partition.context
        self._log_lock = partition.log_lock
        self._host = host
        self._applying = False  # a response of the leader is being written
        self._fetches_after = False  # a fetch became due meanwhile and is sent afterwards
        self._more = False  # the leader has more data than its last response
        self._next_offset = Offset(0)  # end of the write in progress, where the leader's log continues; 0: unknown
        self.leader_flushed_offset = 0
        """Of the last answer of this leader epoch."""
        self._reported_durable_offset = Offset(0)  # of the last fetch sent
        self._copy_until_ms = 0.0  # a throttled copy waits until then
        self._copied_at_rate = 0
        self._copy_timer: asyncio.TimerHandle | None = None

    def follow(self, leader: Replica) -> None:
        """Fetch from `leader` from now on."""
        self._more, self._next_offset, self.leader_flushed_offset = False, Offset(0), 0
        self._host.follow(self._partition, leader)

    def may_fetch(self) -> bool:
        """Return whether a follower may fetch now; if not, the work in progress triggers a fetch when it ends.

        The work itself does so, not its caller, because a broken stream cancels the caller but not the work.

        With durability=fsync a follower at the log end flushes first, because its next fetch acknowledges.
        """
        replica = self._replica
        if replica.role is not Role.FOLLOWING:
            return False
        if self._applying and not self._next_offset:
            self._fetches_after = True
            return False
        if self._holds_back():
            return False
        at_end = self._partition.flush_policy.is_always and not self._more
        if at_end and replica.flushed_offset < replica.log_end_offset:
            self._context.flusher.request(self._partition, self._partition.topic)
            return False
        return True

    def _holds_back(self) -> bool:
        """Return whether the throttle of a move delays this replica; it is checked at least once a second."""
        rate = self._copy_rate()
        if rate != self._copied_at_rate:
            self._copied_at_rate, self._copy_until_ms = rate, 0.0
        left_ms = self._copy_until_ms - self._context.clock.monotonic_ms()
        if left_ms <= 0:
            return False
        if self._copy_timer is None:
            seconds = min(left_ms / 1000, _COPY_LOOK_SECONDS)
            self._copy_timer = asyncio.get_running_loop().call_later(seconds, self._copy_on)
        return True

    def _copy_on(self) -> None:
        self._copy_timer = None
        self._host.fetch(self._partition)

    def _copy_rate(self) -> int:
        """Return the throttle of this replica while a move adds it, in bytes per second; `0` means none."""
        state = self._replica.state
        return state.copy_bytes_per_second if state is not None and self._context.broker_id in state.adding else 0

    def begin_fetch(self, end_offset: int) -> tuple[int, Offset, Offset] | None:
        """Begin a fetch as `FollowerFetches.begin`. Return the token, the durable offset to report for a log that ends
        at `end_offset`, and where the response begins; `0` means at `end_offset`.

        A fetch that waits at the leader is replaced if more has been flushed since it was sent.
        """
        ahead_offset = self._next_offset if self._next_offset > end_offset else Offset(0)
        durable_offset = min(self._replica.flushed_offset, Offset(end_offset))
        replace = durable_offset > self._reported_durable_offset
        token = self._replica.fetches.begin(replace=replace, ahead_offset=ahead_offset)
        if token is None:
            return None
        self._reported_durable_offset = durable_offset
        return token, durable_offset, ahead_offset

    async def take_answer(self, answer: FetchAnswer) -> bool:
        """Apply a leader's response; return False if it is not the awaited one.

        Raises:
            CorruptBatchError: If the batches fail their checks (I17); nothing was appended.
            REFUSALS: If the disk rejects the write; nothing was appended.
            HeadraceError: If the replica has gone offline.
        """
        return await uninterrupted(self._take_answer(answer))

    async def _take_answer(self, answer: FetchAnswer) -> bool:
        async with self._log_lock:
            if self._replica.role in (Role.OFFLINE, Role.DELETED):
                return False
            try:
                if self._partition.producers.are_stale:
                    await self._partition.producers.rebuild()
                step = next_step(self._replica, self._partition.open_log, answer)
                self._applying = step is not None
                if isinstance(step, TruncateTo):
                    step = await self._partition.in_thread(partial(truncate_or_reset, self._partition.open_log, step))
                match step:
                    case AppendBatches():
                        await self._append_replicated(step)
                    case TruncateTo(offset):
                        await self._truncate_log(offset)
                    case ResetLog(offset, previous_crc):
                        await self._reset_log(offset, previous_crc)
                    case Refetch() | None:
                        pass
            except HeadraceError as error:
                self._replica.fetches.end()  # A response that continues these batches cannot be used.
                if not isinstance(error, CorruptBatchError):
                    self._partition.fail_unless_refused(error)
                raise
            finally:
                self._applying, self._next_offset = False, Offset(0)
                if self._fetches_after:
                    self._fetches_after = False
                    self._host.fetch(self._partition)
            return step is not None

    async def _append_replicated(self, step: AppendBatches) -> None:
        partition_log = self._partition.open_log
        self._more = step.more
        if len(step.batches):
            try:
                if step.deletions_end > partition_log.deletions_end:  # First: the batches may lack deletions.
                    raise_end = partial(partition_log.compaction.raise_deletions_end, step.deletions_end)
                    await self._partition.in_thread(raise_end)
                if len(step.batches) <= _INLINE_BYTES and not self._append_blocks(len(step.batches)):
                    headers = partition_log.append_replicated(step.batches)
                else:
                    self._fetch_ahead(step)
                    headers = await self._partition.in_thread(lambda: partition_log.append_replicated(step.batches))
            except REFUSALS:
                await self._take_report(step)  # A higher log start frees space.
                raise
            self._partition.handle(BatchesReplicated(headers))
            self._context.metrics.replicated_in_bytes.inc(len(step.batches))
            self._partition.meter.note_written(len(step.batches))
            self._partition.flush_policy.note_appended(
                sum(header.record_count for header in headers), self._partition.topic
            )
            rate = self._copied_at_rate = self._copy_rate()
            if rate:
                now_ms = self._context.clock.monotonic_ms()
                self._copy_until_ms = max(self._copy_until_ms, now_ms) + len(step.batches) * 1000 / rate
        await self._take_report(step)

    def _append_blocks(self, size_bytes: int) -> bool:
        """Return whether an append may wait for the disk: the first one of a leader epoch fsyncs the epochs (H46)."""
        partition_log = self._partition.open_log
        begins_epoch = partition_log.last_epoch < self._replica.leader_epoch
        may_sync = partition_log.append_may_sync(size_bytes, self._context.now_ms())
        return self._partition.appender.is_slow or may_sync or begins_epoch

    async def _take_report(self, step: AppendBatches) -> None:
        """Adopt the leader's high watermark and log start, up to the end of this log; flush what it has flushed."""
        self._partition.handle(LeaderReported(step.high_watermark))
        self.leader_flushed_offset = step.flushed_offset
        self._partition.flush_policy.follow_leader(step.flushed_offset)
        start = min(step.log_start_offset, self._replica.high_watermark)
        if start > self._replica.log_start_offset:
            await self._partition.log_start.apply(Offset(start))

    def _fetch_ahead(self, step: AppendBatches) -> None:
        """Fetch the next slice while a thread writes this one."""
        if step.more and step.next_offset and not self._copy_rate():
            self._next_offset = Offset(step.next_offset)
            self._host.fetch(self._partition)

    async def _truncate_log(self, offset: int) -> None:
        log.warning(
            "log_truncated",
            topic=self._partition.topic, partition=self._partition.number,
            log_end_offset=self._replica.log_end_offset, to=offset,
        )  # fmt: skip
        await self._cut(lambda: self._partition.open_log.truncate_to(offset))
        self._partition.handle(LogTruncated(Offset(self._partition.open_log.end.offset)))
        self._context.metrics.truncations.inc()

    async def _reset_log(self, offset: int, previous_crc: int) -> None:
        log.warning("log_reset", topic=self._partition.topic, partition=self._partition.number, offset=offset)
        await self._cut(lambda: self._partition.open_log.reset_to(offset, previous_crc), restart_offset=offset)
        self._partition.handle(LogRestarted(Offset(offset)))

    async def _cut(self, cut: Callable[[], object], *, restart_offset: int = -1) -> None:
        """Truncate the log and rebuild its producers.

        A truncation that is rejected halfway has still truncated the log: the core is informed before the error is
        raised, and the producers are rebuilt before the next append or snapshot (H35).
        """
        self._partition.producers.are_stale = True
        try:
            await self._partition.in_thread(cut)
            await self._partition.producers.rebuild()
        except REFUSALS:
            end_offset = Offset(self._partition.open_log.end.offset)
            if end_offset == restart_offset == self._partition.open_log.log_start_offset:
                self._partition.handle(LogRestarted(end_offset))
            elif end_offset < self._replica.log_end_offset:
                self._partition.handle(LogTruncated(end_offset))
            raise
