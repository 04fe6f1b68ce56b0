"""What a broker does by the clock: checkpoints, free space, retention, removal of deleted topics, scrubbing."""

from __future__ import annotations

import asyncio
from functools import partial

import structlog
from headrace.wire.errors import HeadraceError, OffsetOutOfRangeError

from headrace_broker.core.messages import LogStartRaised
from headrace_broker.core.replica import Role
from headrace_broker.runtime.assignments import Assignments
from headrace_broker.runtime.partition import Partition
from headrace_broker.runtime.services import PartitionServices
from headrace_broker.storage.directory import DataDirectory
from headrace_broker.storage.errors import SliceCutError
from headrace_broker.storage.log import PartitionLog, RetentionResult

log = structlog.get_logger(__name__)

SCRUB_BYTES = 1 << 20
"""Checked at a time."""
SNAPSHOTS_A_ROUND = 20
"""Snapshots of producers that one round of maintenance writes, each an fsync: a thousand partitions take a minute."""


async def maintain(assignments: Assignments, directory: DataDirectory, services: PartitionServices) -> None:
    """Checkpoint logs, look at the free space, remove deleted topics, each maintenance_interval_ms until cancelled."""
    loop = asyncio.get_running_loop()
    refusing = False
    while True:
        await asyncio.sleep(services.settings.maintenance_interval_ms / 1000)
        usage = await loop.run_in_executor(services.executor, directory.check_space)
        services.metrics.disk_free_bytes.set(usage.free_bytes)
        services.metrics.disk_total_bytes.set(usage.total_bytes)
        services.metrics.disk_refusing.set(usage.refusing)
        logs = [found for partition in assignments.partitions if (found := partition.log) is not None]
        services.metrics.log_bytes.set(sum(found.size_bytes for found in logs))
        services.metrics.log_segments.set(sum(found.segment_count for found in logs))
        if usage.refusing != refusing:
            refusing = usage.refusing
            log.warning("disk_full" if refusing else "disk_has_room", free_bytes=usage.free_bytes)
        for partition in assignments.partitions:
            await _maintain_partition(partition)
        kept = 0
        for partition in sorted(assignments.partitions, key=lambda each: each.kept_ms):
            kept += await _keep_producers(partition)
            if kept == SNAPSHOTS_A_ROUND:
                break
        await assignments.remove_doomed()


async def retain(assignments: Assignments, services: PartitionServices) -> None:
    """Apply retention to every partition each retention_interval_ms until cancelled."""
    while True:
        await asyncio.sleep(services.settings.retention_interval_ms / 1000)
        for partition in assignments.partitions:
            result = await _retain_partition(partition)
            if result is None:
                continue
            services.metrics.deleted_segments.inc(result.deleted_segments)
            if result.clock_jumped:
                log.error("retention_skipped_clock_jumped", topic=partition.topic, partition=partition.number)


def _log_at_work(partition: Partition) -> PartitionLog | None:
    return None if partition.replica.role in (Role.OFFLINE, Role.DELETED) else partition.log


async def _maintain_partition(partition: Partition) -> None:
    """One round: old producers, a checkpoint."""
    partition_log = _log_at_work(partition)
    if partition_log is None:
        return
    now_ms = partition.services.clock.now_ms()
    partition.replica.producers.expire(now_ms)
    high_watermark = partition.replica.high_watermark
    if not partition_log.checkpoint_is_stale(high_watermark):
        return
    try:
        await partition.in_thread(lambda: partition_log.checkpoint(now_ms, high_watermark))
    except HeadraceError as error:
        partition.fail(error)


async def _keep_producers(partition: Partition) -> bool:
    if _log_at_work(partition) is None:
        return False
    try:
        return await partition.keep_producers_if_due()
    except HeadraceError as error:
        partition.fail(error)
        return False


async def _retain_partition(partition: Partition) -> RetentionResult | None:
    """One round: roll by time, remove what is over; None where the replica has no log to shorten."""
    partition_log = _log_at_work(partition)
    if partition_log is None:
        return None

    def shorten() -> RetentionResult:
        now_ms = partition.services.clock.now_ms()
        partition_log.roll_if_due(now_ms)
        result = partition_log.apply_retention(now_ms, partition.replica.high_watermark)
        partition_log.remove_deleted_files(now_ms)
        return result

    async with partition.log_lock:
        try:
            result = await partition.in_thread(shorten)
        except HeadraceError as error:
            partition.fail(error)
            return None
        partition.handle(LogStartRaised(partition_log.log_start_offset))
    return result


async def scrub(assignments: Assignments, services: PartitionServices) -> None:
    """Read and check all that is stored each scrub_interval_ms, a little at a time, until cancelled (H33)."""
    settings = services.settings
    if not settings.scrub_interval_ms:
        return
    while True:
        await asyncio.sleep(settings.scrub_interval_ms / 1000)
        for partition in assignments.partitions:
            await _scrub_partition(partition)
        log.info("scrubbed")


async def _scrub_partition(partition: Partition) -> None:
    """Check one log up to what was flushed when it began."""
    rate = partition.services.settings.scrub_bytes_per_second
    offset, end_offset = 0, partition.replica.flushed_offset
    while (partition_log := _log_at_work(partition)) is not None:
        offset = max(offset, partition_log.log_start_offset)
        if offset >= min(end_offset, partition_log.log_end_offset):
            return
        before = offset
        try:
            offset, size_bytes = await partition.in_thread(partial(partition_log.verify_from, before, SCRUB_BYTES))
        except OffsetOutOfRangeError:
            continue  # Retention has taken it meanwhile.
        except SliceCutError:
            return
        except HeadraceError as error:
            partition.note_read_error(error)
            return
        partition.services.metrics.scrubbed_bytes.inc(size_bytes)
        await asyncio.sleep(size_bytes / rate)
