"""Description of a broker's disk for `ProcessService`."""

from __future__ import annotations

import asyncio

from headrace.disk_probe import filesystem_of, measure_fsync
from headrace.log.directory import DataDirectory
from headrace.log.errors import storage_error
from headrace.v1 import process_pb2

from headrace_broker.runtime.partition_context import PartitionContext
from headrace_broker.runtime.replica_manager import ReplicaManager

MAX_TOPIC_IDS = 100
"""Maximum topic ids of unclaimed logs in one description of a broker."""


async def describe_disk(
    replica_manager: ReplicaManager, directory: DataDirectory, context: PartitionContext, measure: bool
) -> process_pb2.DiskDescription:
    """Describe the data directory; with `measure` time an fsync. Raises StorageOfflineError, or as `storage_error`."""
    path, settings = directory.path, context.settings
    offline_logs, unclaimed = replica_manager.offline_logs, replica_manager.deletion.unclaimed
    topic_ids = sorted({log_id.topic_id for log_id in unclaimed})

    def look() -> process_pb2.DiskDescription:
        usage = directory.check_space()
        return process_pb2.DiskDescription(
            data_dir=path,
            total_bytes=usage.total_bytes,
            free_bytes=usage.free_bytes,
            refuse_below_bytes=settings.disk_refuse_below_bytes,
            resume_above_bytes=settings.disk_resume_above_bytes,
            fsync_us=round(measure_fsync(path) * 1_000_000) if measure else 0,
            filesystem=filesystem_of(path),
            offline_logs=offline_logs,
            unclaimed_logs=len(unclaimed),
            unclaimed_topic_ids=topic_ids[:MAX_TOPIC_IDS],
        )

    try:
        return await asyncio.get_running_loop().run_in_executor(context.executor, look)
    except OSError as error:
        raise storage_error(path, error) from error
