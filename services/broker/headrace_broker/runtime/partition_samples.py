"""State of each partition for `/metrics/detail`."""

from __future__ import annotations

from headrace_broker.core.roles import Role
from headrace_broker.metrics import PartitionSample
from headrace_broker.runtime.partition import Partition


def describe_sample(partition: Partition) -> PartitionSample:
    """Return the state of a partition. Thread-safe, but the values may be of different moments."""
    replica, log, state = partition.replica, partition.log, partition.replica.state
    leads = replica.role is Role.LEADING and state is not None
    return PartitionSample(
        topic=partition.topic,
        partition=partition.number,
        log_start_offset=replica.log_start_offset,
        log_end_offset=replica.log_end_offset,
        high_watermark=replica.high_watermark,
        flushed_offset=replica.flushed_offset,
        log_bytes=0 if log is None else log.size_bytes,
        log_segments=0 if log is None else log.segment_count,
        leader=leads,
        leader_epoch=replica.leader_epoch,
        offline=replica.role is Role.OFFLINE,
        replicas=len(state.replicas) if leads and state is not None else -1,
        in_sync_replicas=len(state.in_sync) if leads and state is not None else -1,
        produced_records=partition.appender.records,
        produced_bytes=partition.appender.size_bytes,
        fetched_bytes=partition.fetched_bytes,
    )
