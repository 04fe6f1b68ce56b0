"""The asyncio consumer of a group: the blocking one's parts, on a loop; callbacks may be coroutines."""

from __future__ import annotations

import asyncio

import headrace
import headrace.aio
import pytest
from headrace import HandlerError, RetryPolicy, TopicPartition
from headrace.wire.errors import FencedInstanceError, NotOwnerError

from tests.unit.client.consumer.test_group_consumer import fill

P0, P1 = TopicPartition("clicks", 0), TopicPartition("clicks", 1)
FAST = RetryPolicy(attempts=2, backoff_ms=1, backoff_max_ms=2)


def consumer_for(cluster, **settings):
    settings = {
        "auto_offset_reset": "earliest",
        "fetch_max_wait_ms": 50,
        "auto_commit_interval_ms": 20,
        "retry_backoff_ms": 1,
        "retry_backoff_max_ms": 20,
        **settings,
    }
    return headrace.aio.Consumer("clicks", bootstrap_servers=cluster.address, group_id="g", **settings)


async def poll_until(consumer, condition):
    while not condition():
        await consumer.poll(0.02)


async def test_a_consumer_that_is_closed_at_once_waits_for_nothing(clicks, groups, monkeypatch):
    """Its loops have not had a turn yet when they are cancelled."""
    monkeypatch.setattr("headrace.client.group.session.STOP_TIMEOUT_S", 3_600)
    async with asyncio.timeout(20):
        async with consumer_for(clicks):
            pass


async def test_records_come_callbacks_are_awaited_and_closing_commits_and_leaves(clicks, groups):
    fill(clicks, 20)
    calls = []

    async def on_assigned(partitions):
        await asyncio.sleep(0)
        calls.append(("assigned", partitions))

    def on_revoked(partitions):
        calls.append(("revoked", partitions))

    async with consumer_for(clicks, on_assigned=on_assigned, on_revoked=on_revoked) as consumer:
        seen = []
        async for record in consumer:
            seen.append(record.offset)
            if record.offset == 12:
                break
        assert consumer.health().ready
        assert await consumer.committed(P1) == {P1: None}
        assert consumer.assignment_epoch(P0) == 2
    assert seen == list(range(13))
    assert calls == [("assigned", [P0]), ("revoked", [P0])]
    assert groups.offset("clicks", 0) == 13
    assert groups.left == groups.members


async def test_a_partition_moves_and_a_commit_in_the_callback_comes_first(clicks, groups):
    fill(clicks, 20)
    fill(clicks, 20, partition=1)
    done = []

    async def on_revoked(partitions):
        await consumer.commit({P0: 3})

    async with consumer_for(clicks, enable_auto_commit=False, on_revoked=on_revoked) as consumer:
        await poll_until(consumer, consumer.assignment)
        groups.assign(("clicks", 1))
        await poll_until(consumer, lambda: consumer.assignment() == [P1])
        await poll_until(consumer, lambda: groups.reported_owned() == {("clicks", 1)})
        assert groups.offset("clicks", 0) == 3
        with pytest.raises(NotOwnerError):
            await consumer.commit({P0: 4})
        consumer.commit_async({P1: 5}, callback=lambda offsets, error: done.append(error))
        await poll_until(consumer, lambda: done)
        groups.fence(FencedInstanceError("two"))
        with pytest.raises(FencedInstanceError):
            await poll_until(consumer, lambda: False)
    assert done == [None]
    assert groups.offset("clicks", 1) == 5


async def test_a_wait_that_is_cancelled_loses_nothing(clicks, groups):
    async with consumer_for(clicks) as consumer:
        await poll_until(consumer, consumer.assignment)
        waiting = asyncio.create_task(anext(consumer))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        fill(clicks, 1)
        assert (await anext(consumer)).offset == 0


async def test_run_handles_everything_retries_and_writes_dead_letters(clicks, groups):
    fill(clicks, 60)
    seen, most, at_work = [], [], set()
    async with consumer_for(clicks) as consumer:

        async def handle(record):
            at_work.add(record.offset)
            most.append(len(at_work))
            await asyncio.sleep(0)
            at_work.discard(record.offset)
            if record.offset == 7:
                raise ValueError("poison")
            if record.offset == 8 and record.offset not in seen:
                seen.append(8)
                await asyncio.sleep(30)
            seen.append(record.offset)
            if len(set(seen)) == 59:
                consumer.stop()

        summary = await consumer.run(handle, concurrency=4, retry=FAST, dead_letter="dead", handler_timeout_ms=50)
        assert (summary.handled, summary.failed, summary.dead_letters) == (59, 3, 1)
    assert max(most) == 4
    assert groups.offset("clicks", 0) == 60
    with headrace.Reader("dead", bootstrap_servers=clicks.address) as reader:
        (letter,) = reader
    assert letter.value == b"0/7"


async def test_run_without_a_dead_letter_topic_ends_at_a_poisoned_record(clicks, groups):
    fill(clicks, 10)
    async with consumer_for(clicks) as consumer:

        async def handle(record):
            if record.offset == 4:
                raise ValueError("poison")

        with pytest.raises(HandlerError, match="clicks-0 offset 4, 2 times"):
            await consumer.run(handle, retry=FAST, ordering="partition")
        assert consumer.position(P0) == 4
    assert groups.offset("clicks", 0) == 4


async def test_a_run_that_is_cancelled_cancels_its_handlers_and_commits_what_is_done(clicks, groups):
    fill(clicks, 10)
    stuck = asyncio.Event()
    async with consumer_for(clicks) as consumer:

        async def handle(record):
            if record.offset == 3:
                stuck.set()
                await asyncio.sleep(60)

        running = asyncio.create_task(consumer.run(handle, concurrency=1))
        await stuck.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert groups.offset("clicks", 0) == 3
