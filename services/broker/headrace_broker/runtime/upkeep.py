"""What a broker does by the clock: checkpoints, free space, retention, removal of deleted topics."""

from __future__ import annotations

import asyncio

import structlog

from headrace_broker.runtime.assignments import Assignments
from headrace_broker.runtime.partition import PartitionServices
from headrace_broker.storage.directory import DataDirectory

log = structlog.get_logger(__name__)


async def maintain(assignments: Assignments, directory: DataDirectory, services: PartitionServices) -> None:
    """Checkpoint logs, look at the free space, remove deleted topics, each maintenance_interval_ms until cancelled."""
    loop = asyncio.get_running_loop()
    refusing = False
    while True:
        await asyncio.sleep(services.settings.maintenance_interval_ms / 1000)
        usage = await loop.run_in_executor(services.executor, directory.check_space)
        services.metrics.disk_free_bytes.set(usage.free_bytes)
        if usage.refusing != refusing:
            refusing = usage.refusing
            log.warning("disk_full" if refusing else "disk_has_room", free_bytes=usage.free_bytes)
        for partition in assignments.partitions:
            await partition.maintain()
        await assignments.remove_doomed()


async def retain(assignments: Assignments, services: PartitionServices) -> None:
    """Apply retention to every partition each retention_interval_ms until cancelled."""
    while True:
        await asyncio.sleep(services.settings.retention_interval_ms / 1000)
        for partition in assignments.partitions:
            result = await partition.apply_retention()
            if result is None:
                continue
            services.metrics.deleted_segments.inc(result.deleted_segments)
            if result.clock_jumped:
                log.error("retention_skipped_clock_jumped", topic=partition.topic, partition=partition.number)
