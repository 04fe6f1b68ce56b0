"""Replication during an append in its thread: the log is ahead of the core, and no answer is sent too early."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

from headrace.wire.batch import read_header
from headrace.wire.ids import Offset
from headrace_broker.core.messages import BatchesReplicated, LogTruncated, StateSeen
from headrace_broker.core.roles import Role
from headrace_broker.runtime.partition import Partition
from headrace_broker.runtime.replica_fetcher import ReplicaFetcher
from headrace_server.metadata_view import ClusterView
from headrace_server.partition_state import PartitionState, Replica

from tests.unit.broker.test_broker_runtime import batch, committed

OTHER = Replica(2, 7)


@asynccontextmanager
async def append_in_thread(partition: Partition, *values: bytes) -> AsyncIterator[None]:
    """Within: the batch is in the log, and the event loop has not been told; after: it has."""
    loop = asyncio.get_running_loop()
    written, go_on = asyncio.Event(), threading.Event()
    real_append = partition.open_log.append

    def append(*arguments: Any, **fields: Any) -> Offset:
        base = real_append(*arguments, **fields)
        loop.call_soon_threadsafe(written.set)
        assert go_on.wait(20)
        return base

    partition.open_log.append = append  # type: ignore[method-assign]
    appending = asyncio.create_task(partition.appender.append([batch(*values)], -1, committed=False))
    try:
        await asyncio.wait_for(written.wait(), 20)
        yield
    finally:
        go_on.set()
        partition.open_log.append = real_append  # type: ignore[method-assign]
        await appending


def follow_other(partition: Partition) -> None:
    """Another broker leads from now on."""
    cast(Any, partition)._host.follow = lambda *_: None
    cast(Any, partition)._host.fetch = lambda *_: None
    me = Replica(1, 5)
    partition.handle(StateSeen(PartitionState((1, 2), OTHER, 1, (me, OTHER)), 99))
    assert partition.replica.role is Role.FOLLOWING


async def test_followers_are_sent_what_the_core_knows(partition: Partition) -> None:
    """Otherwise a follower acknowledges an offset that the leader's core has not heard of."""
    partition.appender.append_now([batch(b"a")], -1, committed=False)
    async with append_in_thread(partition, b"b", b"c"):
        assert (partition.open_log.log_end_offset, partition.replica.log_end_offset) == (3, 1)
        found, next_offset = await partition.reads.locate_for_replica(0, 1 << 20)
        assert found is not None
        assert (len(found), next_offset) == (partition.open_log.reader.batch_with(0).batch_bytes, None)
        assert await partition.reads.locate_for_replica(1, 1 << 20) == (None, None)
    found, next_offset = await partition.reads.locate_for_replica(1, 1 << 20)
    assert found is not None
    assert (len(found), next_offset) == (partition.open_log.reader.batch_with(1).batch_bytes, None)


async def test_a_fetch_names_the_log_of_one_moment(partition: Partition) -> None:
    """H32: offset and chain of two moments look like another history, and good records would be cut."""
    partition.appender.append_now([batch(b"a")], -1, committed=False)
    await committed(partition, 1)
    fetcher = ReplicaFetcher(OTHER.broker_id, cast(ClusterView, None), lambda _challenge: None, lambda: None)
    async with append_in_thread(partition, b"b"):
        follow_other(partition)
        fetcher.add(partition)
        partition.replica.flushed_offset = partition.replica.log_end_offset  # what the flusher would say
        ((topic,),) = ([*fetcher._make_request().topics],)
        (entry,) = topic.partitions
        partition_log = partition.open_log
        before = partition_log.reader.batch_before(entry.offset)
        assert before is not None
        assert (entry.last_crc, entry.last_epoch) == (before.crc, before.leader_epoch)
        assert entry.durable_offset <= entry.offset


async def test_a_flush_that_is_told_after_a_cut_counts_no_further_than_the_cut(partition: Partition) -> None:
    """I16: what took the place of records that were cut is not durable because those were."""
    partition.appender.append_now([batch(b"a"), batch(b"b")], -1, committed=False)
    await committed(partition, 2)
    follow_other(partition)
    partition.replica.high_watermark = Offset(1)
    late = partition.flush_blocking()
    replaced = partition.open_log.truncate_to(1)
    partition.handle(LogTruncated(replaced))
    made = batch(b"c")
    partition.open_log.append([(made, read_header(made))], leader_epoch=1, append_timestamp_ms=1_700_000_000_001)
    partition.handle(BatchesReplicated([partition.open_log.reader.batch_with(1)]))
    partition.on_flushed(late)
    assert (late, partition.replica.log_end_offset, partition.replica.flushed_offset) == (2, 2, 1)
    partition.on_flushed(partition.flush_blocking())
    assert partition.replica.flushed_offset == 2
