"""Periodic work of a broker: checkpoints, free space, retention, removal of deleted topics, scrubbing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import structlog
from headrace.log.directory import DataDirectory
from headrace.log.errors import REFUSALS, RETRY_AFTER_MS, SliceCutError
from headrace.log.log import PartitionLog
from headrace.log.record_selection import Kept
from headrace.wire.batch import MAX_OFFSET
from headrace.wire.errors import HeadraceError, OffsetOutOfRangeError
from headrace.wire.ids import Offset
from headrace_server.rpc import LIGHTEST_ITEMS_PER_TURN, let_others_run

from headrace_broker.core.messages import LogStartWanted
from headrace_broker.core.roles import Role
from headrace_broker.runtime.partition import Partition
from headrace_broker.runtime.partition_context import Checkpointed, PartitionContext
from headrace_broker.runtime.replica_manager import ReplicaManager

log = structlog.get_logger(__name__)

IDLE_SECONDS = 0.2
"""A partition's high watermark is noted when it has committed nothing for this time after its last commit."""
CHECKPOINTS_A_ROUND = 50
"""Maximum checkpoints of a maintenance round, each an fsync and half a millisecond: a thousand partitions, which would
otherwise cost more than their appends, take twenty rounds in turn."""
TABLES_SECONDS = 0.2
"""Interval in which the states of tables follow their logs without a read: it limits what a read must catch up with."""
COPYING_MS = 60_000
"""A follower that has fetched within this time is copying the log, or has all of it."""
SCRUB_BYTES = 1 << 20
"""Bytes that are read and verified at a time."""
LOAD_SAMPLES = 30
"""Samples in one window of measured loads: with the default, every ten seconds, a thousandth of the loop's time for ten
thousand partitions."""
SIZES_ROUNDS = 10
"""Number of rounds from one sum of the sizes of all logs to the next, for the metrics."""
SNAPSHOTS_A_ROUND = 20
"""Maximum producer snapshots per maintenance round, each an fsync: a thousand partitions take a minute."""


async def maintain(replica_manager: ReplicaManager, directory: DataDirectory, context: PartitionContext) -> None:
    """Checkpoint logs, check the free space, remove deleted topics, every maintenance_interval_ms until cancelled."""
    checkpointed, rounds = 0, 0
    while True:
        await asyncio.sleep(context.settings.maintenance_interval_ms / 1000)
        await check_space(directory, context)
        if rounds % SIZES_ROUNDS == 0:
            note_sizes(replica_manager.partitions, context, context.now_ms())
        rounds += 1
        now_ms = _believed_ms(context)
        due: list[Partition] = []
        for index, partition in enumerate(replica_manager.partitions):
            await let_others_run(index, LIGHTEST_ITEMS_PER_TURN)
            if _maintain_partition(partition, now_ms):
                due.append(partition)
        checkpointed = await checkpoint_in_turn(replica_manager.partitions, checkpointed)
        kept = 0
        for partition in sorted(due, key=lambda each: each.producers.last_snapshot_ms):
            kept += await _snapshot_producers(partition)
            if kept == SNAPSHOTS_A_ROUND:
                break
        await replica_manager.note_metadata()
        await replica_manager.deletion.delete_due()
        await replica_manager.reopen_refused()


async def check_space(directory: DataDirectory, context: PartitionContext) -> None:
    """Check the volume, and set the metrics of its space; they stay as they are if it does not respond."""
    try:
        usage = await asyncio.get_running_loop().run_in_executor(context.executor, directory.check_space)
    except HeadraceError as error:  # Which partitions can be served, their own files tell.
        log.warning("disk_not_checked", reason=str(error))
        return
    before, context.metrics.disk_space.usage = context.metrics.disk_space.usage, usage
    context.metrics.appends_rejected_disk_full.set(usage.refusing)
    if usage.refusing != (before is not None and before.refusing):
        log.warning("disk_full" if usage.refusing else "disk_space_recovered", free_bytes=usage.free_bytes)


def note_sizes(partitions: Sequence[Partition], context: PartitionContext, now_ms: int) -> None:
    """Set the metrics of the sizes of all logs, and of what compaction has not reached."""
    metrics, logs = context.metrics, [found for partition in partitions if (found := partition.log) is not None]
    metrics.log_bytes.set(sum(found.size_bytes for found in logs))
    metrics.log_segments.set(sum(found.segment_count for found in logs))
    compacted = [found.compaction for partition in partitions if (found := _log_to_compact(partition)) is not None]
    metrics.uncompacted_bytes.set(sum(each.uncompacted_bytes for each in compacted))
    metrics.compaction_lag_seconds.set(max((each.overdue_ms(now_ms) for each in compacted), default=0) / 1000)


async def keep_high_watermarks(context: PartitionContext) -> None:
    """Run `note_idle` every IDLE_SECONDS until cancelled."""
    before: dict[Checkpointed, None] = {}
    while True:
        await asyncio.sleep(IDLE_SECONDS)
        before = await note_idle(before, context)


async def note_idle(before: dict[Checkpointed, None], context: PartitionContext) -> dict[Checkpointed, None]:
    """Note the high watermarks of the partitions of `before` that have committed nothing since; return the others.

    The high watermark that a killed process leaves is therefore older than this only for partitions with continuous
    writes (I18). One call of a thread for all partitions: their number is not limited.
    """
    advanced = dict(context.advanced)
    context.advanced.clear()
    idle = [partition for partition in before if partition not in advanced]
    if idle:
        failures = await asyncio.get_running_loop().run_in_executor(context.executor, _note, idle)
        for partition, error in failures:
            if not isinstance(error, HeadraceError):
                log.error("high_watermark_not_noted", exc_info=error)
            partition.fail_unless_refused(error)
    return advanced


def _note(partitions: Sequence[Checkpointed]) -> list[tuple[Checkpointed, Exception]]:
    failures = []
    for partition in partitions:
        try:
            partition.note_high_watermark()
        except Exception as error:
            failures.append((partition, error))
    return failures


async def checkpoint_in_turn(partitions: Sequence[Checkpointed], first: int) -> int:
    """Checkpoint those that are due, `CHECKPOINTS_A_ROUND` at most, from number `first` on; return the next number."""
    written = 0
    for index in range(len(partitions)):
        if written == CHECKPOINTS_A_ROUND:
            return (first + index) % len(partitions)
        await let_others_run(index, LIGHTEST_ITEMS_PER_TURN)
        partition = partitions[(first + index) % len(partitions)]
        if partition.has_stale_checkpoint:
            written += await partition.checkpoint()
    return 0


async def measure_loads(replica_manager: ReplicaManager, context: PartitionContext) -> None:
    """Sample the load of every replica, LOAD_SAMPLES times in a window of the averages, until cancelled."""
    window_ms = context.settings.load_window_ms
    while True:
        await asyncio.sleep(window_ms / 1000 / LOAD_SAMPLES)
        for index, partition in enumerate(replica_manager.partitions):
            await let_others_run(index, LIGHTEST_ITEMS_PER_TURN)
            partition.meter.sample(context.clock.monotonic_ms(), window_ms)


async def keep_tables_up(context: PartitionContext) -> None:
    """Let the state of each table follow its log, every TABLES_SECONDS until cancelled.

    One that takes longer, as after a start, is continued while the others follow.
    """
    while True:
        await asyncio.sleep(TABLES_SECONDS)
        for table in list(context.tables):
            with suppress(HeadraceError):  # The next read has it.
                await table.keep_up(TABLES_SECONDS)


async def retain(replica_manager: ReplicaManager, context: PartitionContext) -> None:
    """Apply retention to every partition every retention_interval_ms until cancelled."""
    while True:
        await asyncio.sleep(context.settings.retention_interval_ms / 1000)
        now_ms = _believed_ms(context)
        for partition in replica_manager.partitions:
            await _retain_partition(partition, now_ms)


def _believed_ms(context: PartitionContext) -> int | None:
    """Return the wall clock, or `None` while it is in doubt: nothing is rolled, deleted or expired then (H43)."""
    return None if context.clock_doubt() else context.now_ms()


def _log_at_work(partition: Partition) -> PartitionLog | None:
    return None if partition.replica.role in (Role.OFFLINE, Role.DELETED) else partition.log


def _maintain_partition(partition: Partition, now_ms: int | None) -> bool:
    """Expire old producers, and flush a log that holds files open; return whether a producer snapshot is due."""
    partition_log = _log_at_work(partition)
    if partition_log is None:
        return False
    if now_ms is not None:
        partition.replica.producers.expire(now_ms)
    if partition_log.durability.holds_files:
        partition.flush_policy.flush_soon()
    return partition.producers.snapshot_is_due


async def _snapshot_producers(partition: Partition) -> bool:
    if _log_at_work(partition) is None:
        return False
    try:
        return await partition.producers.snapshot_if_due()
    except HeadraceError as error:
        partition.fail_unless_refused(error)
        return False


async def _retain_partition(partition: Partition, now_ms: int | None) -> Offset | None:
    """Roll the log by time and unlink removed files; for a leader, return the log start for all replicas.

    The result is `None` for a follower, which adopts its leader's log start.
    """
    partition_log = _log_at_work(partition)
    if partition_log is None:
        return None

    def look() -> Offset | None:
        with suppress(*REFUSALS):  # Retention, which frees space, must not wait for free space.
            if now_ms is not None:
                partition_log.roll_if_due(now_ms)
        with suppress(*REFUSALS):
            partition_log.retention.remove_deleted_files(partition.context.clock.monotonic_ms())
        if partition.replica.role is not Role.LEADING:
            return None
        return partition_log.retention.plan(now_ms, partition.replica.high_watermark)

    async with partition.log_lock:
        try:
            plan = await partition.in_thread(look)
        except HeadraceError as error:
            partition.fail_unless_refused(error)
            return None
    if plan is not None:
        partition.handle(LogStartWanted(min(plan, partition.replica.high_watermark)))
    return plan


async def compact(replica_manager: ReplicaManager, context: PartitionContext) -> None:
    """Compact logs one after another until cancelled: those that are due every compaction_interval_ms, and until the
    next time those that have become due again meanwhile.
    """
    clock, interval_ms = context.clock, context.settings.compaction_interval_ms
    next_ms = clock.monotonic_ms() + interval_ms
    while True:
        await asyncio.sleep(max(0, next_ms - clock.monotonic_ms()) / 1000)
        next_ms = clock.monotonic_ms() + interval_ms
        partitions = [each for each in replica_manager.partitions if each.config.compacts]
        while partitions:
            partitions = [each for each in partitions if await compact_partition(each, _believed_ms(context))]
            if clock.monotonic_ms() >= next_ms:
                break  # Others may be due, too.


def _log_to_compact(partition: Partition) -> PartitionLog | None:
    return _log_at_work(partition) if partition.config.compacts else None


async def compact_partition(partition: Partition, now_ms: int | None) -> bool:
    """Compact the log of one replica if that is due, in a thread, while it serves; return whether it was."""
    partition_log, replica, metrics = _log_to_compact(partition), partition.replica, partition.context.metrics
    if partition_log is None or now_ms is None or partition.corruption.is_compaction_paused:
        return False
    compaction, high_watermark, producers = partition_log.compaction, int(replica.high_watermark), replica.producers
    if (table := partition.table) is not None:
        await table.expire(now_ms)  # Before their records go: the clock may be put back.
        # What its state has not read yet may delete what it has.
        high_watermark = min(high_watermark, table.state.end_offset)
    try:
        if not await partition.in_thread(lambda: compaction.is_due(now_ms, high_watermark)):
            return False
        if _log_to_compact(partition) is None:
            return False  # The topic was altered meanwhile.
        kept = Kept(producers.retried_batches(now_ms), producers.retry_window_ms, _copied_up_to(partition))
        report = await partition.in_thread(lambda: compaction.compact(now_ms, high_watermark, kept))
    except HeadraceError as error:
        if _log_at_work(partition) is partition_log:
            partition.corruption.note_compaction_error(error)
        return False
    if report is not None:
        metrics.compactions.inc()
        metrics.compacted_bytes.inc(report.size_bytes)
        metrics.compaction_written_bytes.inc(report.written_bytes)
        metrics.compaction_removed_records.inc(report.removed_records)
        log.info("log_compacted", topic=partition.topic, partition=partition.number, **report._asdict())
    return report is not None


def _copied_up_to(partition: Partition) -> int:
    """Return up to where every follower that is copying this log has it."""
    leadership = partition.replica.leadership
    since_ms = partition.context.clock.monotonic_ms() - COPYING_MS
    followers = () if leadership is None else leadership.followers
    return min((each.offset for each in followers if each.fetched_ms >= since_ms), default=MAX_OFFSET)


async def scrub(replica_manager: ReplicaManager, context: PartitionContext) -> None:
    """Read and verify all stored data every scrub_interval_ms, in small steps, until cancelled (H33)."""
    settings = context.settings
    if not settings.scrub_interval_ms:
        return
    while True:
        await asyncio.sleep(settings.scrub_interval_ms / 1000)
        for partition in replica_manager.partitions:
            await _scrub_partition(partition)
        log.info("scrubbed")


async def _scrub_partition(partition: Partition) -> None:
    """Verify one log up to the flushed offset at the start."""
    rate = partition.context.settings.scrub_bytes_per_second
    offset, end_offset = 0, partition.replica.flushed_offset
    while (partition_log := _log_at_work(partition)) is not None:
        offset = max(offset, partition_log.log_start_offset)
        if offset >= min(end_offset, partition_log.log_end_offset):
            return
        before = offset
        try:
            offset, size_bytes = await partition.in_thread(
                partial(partition_log.reader.verify_from, before, SCRUB_BYTES)
            )
        except OffsetOutOfRangeError:
            continue  # Retention has deleted it meanwhile.
        except SliceCutError:
            return
        except REFUSALS:
            await asyncio.sleep(RETRY_AFTER_MS / 1000)
            continue
        except HeadraceError as error:
            partition.corruption.note_read_error(error)
            return
        partition.context.metrics.scrubbed_bytes.inc(size_bytes)
        await asyncio.sleep(size_bytes / rate)
