"""Filling the producer windows of a replica from its log, when it is opened (H48)."""

from __future__ import annotations

from headrace_broker.core.producers import ProducerWindows
from headrace_broker.storage.log import PartitionLog


def rebuild_producers(producers: ProducerWindows, partition_log: PartitionLog) -> None:
    """Restore the newest snapshot and add the batches behind it. Blocks: call it in a thread, before the first use.

    Raises LogDamagedError, StorageOfflineError.
    """
    snapshot = partition_log.load_producer_snapshot()
    start = int(partition_log.log_start_offset)
    if snapshot is not None and producers.restore(snapshot[1]):
        start = max(start, snapshot[0])
    for header in partition_log.headers(start) if start < partition_log.log_end_offset else ():
        if header.base_offset >= start:
            producers.record_batch(header)
