"""The shell's parts without a process: appends that became slow, group commit, bounds, sessions."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from headrace.log.directory import DataDirectory
from headrace.partition.log_settings import log_settings
from headrace.partition.topic_configs import Durability, TopicConfig
from headrace.wire.encoding import encode_batch
from headrace.wire.errors import NotLeaderError, Outcome, StorageOfflineError, ThrottledError
from headrace.wire.ids import BrokerId, Offset
from headrace_broker.core.messages import SessionLost, SessionStarted, StateSeen
from headrace_broker.core.roles import Role
from headrace_broker.metrics import BrokerMetrics
from headrace_broker.runtime.budget import MemoryBudget
from headrace_broker.runtime.flusher import MAX_FLUSHES_AT_ONCE, ROUNDS_LOOKED_AT, Flusher
from headrace_broker.runtime.partition import Partition, PartitionContext
from headrace_broker.runtime.partition_appender import LARGE_BYTES
from headrace_broker.runtime.waiters import FetchWaiters, WakeUp
from headrace_broker.settings import BrokerSettings
from headrace_server.caller_turns import note_call
from headrace_server.calls import CALLER
from headrace_server.partition_state import PartitionState, Replica
from prometheus_client import CollectorRegistry

from tests.fakes.manual_clock import ManualClock

TOPIC_ID = bytes(range(16))


def batch(*values: bytes, producer: tuple[int, int, int] = (-1, -1, -1)) -> bytes:
    return encode_batch(
        list(values),
        base_timestamp_ms=1_700_000_000_000,
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
    )


class Host:
    """A broker without others: starts epochs, and notes who wants to leave the in-sync set."""

    def __init__(self) -> None:
        self.tasks: list[asyncio.Task[None]] = []
        self.left: list[Partition] = []

    def start_epoch(self, partition: Partition, leader_epoch: int) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(partition.persist_epoch(leader_epoch)))

    def raise_log_start(self, partition: Partition, offset: Offset) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(partition.log_start.raise_to(offset)))

    def leave_in_sync(self, partition: Partition, *, corrupt: bool) -> None:
        self.left.append(partition)

    def _unexpected(self, *_: object) -> None:
        raise AssertionError("nothing is followed or proposed here")

    follow = unfollow = fetch = propose = _unexpected


@asynccontextmanager
async def leading_partition(path: Path) -> AsyncIterator[Partition]:
    """A partition over a real log that this broker leads at epoch 0."""
    metrics = BrokerMetrics(CollectorRegistry())
    settings = BrokerSettings(broker_id=1, data_dir=str(path))
    flusher = Flusher(metrics)
    directory = DataDirectory.open(str(path), cluster_id="c", generation=1, broker_id=1, new_storage_id=bytes(16))
    with ThreadPoolExecutor(2) as executor:
        context = PartitionContext(BrokerId(1), settings, ManualClock(), metrics, flusher, executor)
        host = Host()
        config = TopicConfig()
        partition_log = directory.open_log(TOPIC_ID, 0, log_settings(config))
        partition = Partition("t", TOPIC_ID, 0, partition_log, config=config, context=context, host=host)
        partition.handle(SessionStarted(5))
        me = Replica(1, 5)
        partition.handle(StateSeen(PartitionState((1,), me, 0, (me,)), 9))
        await host.tasks[0]
        try:
            yield partition
        finally:
            flusher.close()
            directory.close(clean=False)


class Gate:
    """Holds a blocking call of a log in its thread until the test opens it."""

    def __init__(self, log: object, method: str) -> None:
        self.entered, self.opened = asyncio.Event(), threading.Event()
        loop, call = asyncio.get_running_loop(), getattr(log, method)

        def held(*arguments: Any, **fields: Any) -> Any:
            loop.call_soon_threadsafe(self.entered.set)
            assert self.opened.wait(20)
            return call(*arguments, **fields)

        setattr(log, method, held)

    async def reached(self) -> None:
        await asyncio.wait_for(self.entered.wait(), 20)


def rot(path: Path) -> None:
    """Flip a bit of the last record of the first segment."""
    file = path / f"{TOPIC_ID.hex()}-0" / f"{0:020d}.log"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def show_two_in_sync(partition: Partition) -> None:
    """Have the leader see another in-sync replica."""
    me, other = Replica(1, 5), Replica(2, 6)
    partition.handle(StateSeen(PartitionState((1, 2), me, 0, (me, other), partition_epoch=1), 10))


async def committed(partition: Partition, end_offset: int) -> None:
    wait = partition.acknowledgements.of(end_offset, 0)
    if wait is not None:
        assert await asyncio.wait_for(wait[1], 20) is None


async def test_a_slow_append_moves_the_next_ones_to_a_thread_in_order(partition: Partition) -> None:
    """DESIGN 4: once an append took 20 ms they go to a thread, in the order of the calls, until one is fast again."""
    clock = partition.context.clock
    assert isinstance(clock, ManualClock)
    real_append = partition.open_log.append
    threads: list[threading.Thread] = []
    delays = [20, 20, 0, 0]

    def append(*arguments: object, **fields: object) -> Offset:
        threads.append(threading.current_thread())
        clock.advance(delays.pop(0))
        return real_append(*arguments, **fields)  # type: ignore[arg-type]

    partition.open_log.append = append  # type: ignore[assignment,method-assign]
    first = partition.appender.append_now([batch(b"0")], -1, committed=True)
    assert first is not None
    assert partition.appender.append_now([batch(b"x")], -1, committed=True) is None
    results = await asyncio.gather(
        *(partition.appender.append([batch(b"%d" % n, producer=(7, 0, n))], -1, committed=True) for n in range(2))
    )
    assert [result.base_offsets for result in results] == [[1], [2]]
    inline = partition.appender.append_now([batch(b"3")], -1, committed=True)
    assert inline is not None
    assert inline.base_offsets == [3]
    main = threading.current_thread()
    assert [thread is main for thread in threads] == [True, False, False, True]
    await committed(partition, 4)
    partition.replica.validate_state()


async def test_a_large_append_leaves_the_loop_to_another_caller_that_is_active(partition: Partition) -> None:
    """A write that waits for the disk would block all calls; without another caller a thread would only cost."""
    large, small = batch(bytes(LARGE_BYTES)), batch(b"x")
    CALLER.set("greedy")
    note_call("greedy")
    assert partition.appender.append_now([large], -1, committed=True) is not None
    note_call("quiet")
    assert partition.appender.append_now([large], -1, committed=True) is None
    assert partition.appender.append_now([small], -1, committed=True) is not None
    gate = Gate(partition.open_log, "append")
    written = asyncio.create_task(partition.appender.append([large], -1, committed=True))
    await gate.reached()
    assert partition.appender.append_now([small], -1, committed=True) is None  # It does not overtake.
    gate.opened.set()
    assert (await written).base_offsets == [2]


async def test_while_the_key_promises_durability_everything_is_flushed(partition: Partition) -> None:
    """H30: a topic that asks for fsync no more is flushed until the key says so; one that asks again is told of it."""
    state = partition.replica.state
    assert state is not None
    partition.handle(StateSeen(replace(state, durable=True, partition_epoch=1), 10))
    partition.update_config(TopicConfig(durability=Durability.ASYNC))
    assert partition.appender.append_now([batch(b"0")], -1, committed=True) is not None
    await committed(partition, 1)
    assert partition.replica.flushed_offset == 1
    partition.update_config(TopicConfig())
    partition.handle(StateSeen(replace(state, durable=False, partition_epoch=2), 11))
    assert partition.replica.flushed_only


async def test_leadership_lost_during_a_slow_append_is_unknown(partition: Partition) -> None:
    """H52: the batch is in the log, so the next leader may commit it: UNKNOWN, never NOT_APPLIED."""
    loop = asyncio.get_running_loop()
    real_append, lost = partition.open_log.append, threading.Event()

    def lose() -> None:
        partition.handle(SessionLost())
        lost.set()

    def append(*arguments: object, **fields: object) -> Offset:
        loop.call_soon_threadsafe(lose)
        assert lost.wait(20)
        return real_append(*arguments, **fields)  # type: ignore[arg-type]

    partition.open_log.append = append  # type: ignore[assignment,method-assign]
    result = await partition.appender.append([batch(b"a"), batch(b"b", producer=(7, 0, 0))], -1, committed=True)
    assert isinstance(result.error, NotLeaderError)
    assert result.error.outcome is Outcome.UNKNOWN
    assert partition.replica.high_watermark == 0
    partition.replica.validate_state()


async def test_a_failed_fsync_takes_the_replica_offline(partition: Partition) -> None:
    """H34: at once, for good; those who wait get an unknown outcome."""
    calls = []

    def flush() -> Offset:
        calls.append(1)
        raise StorageOfflineError("fsync failed")

    partition.open_log.flush = flush  # type: ignore[method-assign]
    result = partition.appender.append_now([batch(b"a")], -1, committed=True)
    assert result is not None
    wait = partition.acknowledgements.of(1, 0)
    assert wait is not None
    error = await asyncio.wait_for(wait[1], 20)
    assert error is not None
    assert error.outcome is Outcome.UNKNOWN
    assert partition.replica.role is Role.OFFLINE
    partition.flush_policy.flush_soon()
    assert len(calls) == 1


class SlowLog:
    """Something to flush that waits to be let go."""

    def __init__(self) -> None:
        self.appended = 0
        self.rounds = 0
        self.flushed: list[int] = []
        self.go = threading.Semaphore(0)
        self.running = threading.Event()

    def flush_blocking(self) -> Offset:
        covered = self.appended
        self.rounds += 1
        self.running.set()
        assert self.go.acquire(timeout=20)
        return Offset(covered)

    def on_flushed(self, offset: Offset) -> None:
        self.flushed.append(offset)

    def on_flush_failed(self, error: BaseException) -> None:
        raise AssertionError(error)


async def until(condition: object) -> None:
    async with asyncio.timeout(20):
        while not condition():  # type: ignore[operator]  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_one_fsync_serves_all_that_wait() -> None:
    """Group commit: whatever asks while a round runs is covered by exactly one more."""
    flusher, log = Flusher(BrokerMetrics(CollectorRegistry())), SlowLog()
    log.appended = 1
    flusher.request(log, "")
    await until(log.running.is_set)
    for appended in range(2, 10):
        log.appended = appended
        flusher.request(log, "")
    log.go.release()
    await until(lambda: log.flushed == [1])
    await until(lambda: log.rounds == 2)
    log.go.release()
    await until(lambda: log.flushed == [1, 9])
    assert log.rounds == 2
    flusher.close()


async def test_a_second_fsync_request_ends_when_the_flusher_is_closed() -> None:
    flusher, log = Flusher(BrokerMetrics(CollectorRegistry())), SlowLog()
    log.appended = 1
    flusher.request(log, "")
    await until(log.running.is_set)
    flusher.request(log, "")
    log.go.release()
    flusher.close()
    await until(lambda: log.flushed == [1])
    assert log.rounds == 1


async def test_at_most_eight_fsyncs_run_at_once() -> None:
    """DESIGN 4: eight threads; the others wait their turn."""
    flusher = Flusher(BrokerMetrics(CollectorRegistry()))
    logs = [SlowLog() for _ in range(MAX_FLUSHES_AT_ONCE + 2)]
    for log in logs:
        flusher.request(log, "")
    await until(lambda: sum(log.running.is_set() for log in logs) == MAX_FLUSHES_AT_ONCE)
    assert not any(log.running.is_set() for log in logs[-2:])
    for log in logs:
        log.go.release()
    await until(lambda: all(log.flushed for log in logs))
    flusher.close()


@pytest.mark.parametrize(("milliseconds", "at_once"), [(0.3, 2), (3.5, 4), (20, MAX_FLUSHES_AT_ONCE)])
async def test_fsyncs_at_once_are_as_many_as_wait_for_the_disk(milliseconds: float, at_once: int) -> None:
    """One round of four was short because there was nothing to write; that says nothing of the disk."""
    flusher = Flusher(BrokerMetrics(CollectorRegistry()))
    for index in range(ROUNDS_LOOKED_AT):
        flusher._observe(0.0001 if index % 5 == 0 else milliseconds / 1000)
    logs = [SlowLog() for _ in range(MAX_FLUSHES_AT_ONCE + 2)]
    for log in logs:
        flusher.request(log, "")
    await until(lambda: sum(log.running.is_set() for log in logs) == at_once)
    assert [log.running.is_set() for log in logs] == [True] * at_once + [False] * (len(logs) - at_once)
    for log in logs:
        log.go.release()
    await until(lambda: all(log.flushed for log in logs))
    flusher.close()


async def test_no_caller_waits_for_all_that_another_one_appended_to() -> None:
    """Of one's own partition and of one that another caller has asked for, too, the round is among the next two."""
    flusher = Flusher(BrokerMetrics(CollectorRegistry()))
    flood, own = [SlowLog() for _ in range(3 * MAX_FLUSHES_AT_ONCE)], SlowLog()
    for log in flood:
        flusher.request(log, "flood")
    shared = flood[-1]
    flusher.request(shared, "honest")
    flusher.request(own, "honest")
    for at, log in enumerate((shared, own)):
        for ended in flood[2 * at : 2 * at + 2]:
            ended.go.release()
        await until(log.running.is_set)
    for log in (*flood, own):
        log.go.release()
    await until(lambda: all(log.flushed for log in (*flood, own)))
    assert [log.rounds for log in (*flood, own)] == [1] * (len(flood) + 1)
    flusher.close()


async def test_several_callers_that_ask_during_a_round_get_one_more() -> None:
    flusher, log = Flusher(BrokerMetrics(CollectorRegistry())), SlowLog()
    flusher.request(log, "a")
    await until(log.running.is_set)
    for caller in "abc":
        flusher.request(log, caller)
    for _ in range(3):
        log.go.release()
    await until(lambda: len(log.flushed) == 2)
    flusher.close()
    assert log.rounds == 2


def test_bytes_in_flight_are_bounded() -> None:
    """Issue 2, 5: beyond the budget a call is THROTTLED, definitely, with the time to wait."""
    budget = MemoryBudget(100, BrokerMetrics(CollectorRegistry()))
    budget.take(60)
    with pytest.raises(ThrottledError) as caught:
        budget.take(41)
    assert caught.value.outcome is Outcome.NOT_APPLIED
    assert caught.value.retry_after_ms > 0
    budget.give_back(60)
    budget.take(100)


class Watched:
    """A partition as waiters see it."""

    def __init__(self) -> None:
        self.watchers: dict[WakeUp, None] = {}


def test_waiting_fetches_are_bounded_and_leave_nothing_behind() -> None:
    """Issue 2, 5: beyond the bound no call waits; a stop wakes all."""
    waiters, partition = FetchWaiters(1, BrokerMetrics(CollectorRegistry())), Watched()
    event = waiters.try_enter([partition], "a")
    assert event is not None
    assert waiters.try_enter([partition], "a") is None
    waiters.close()
    assert event.is_set
    waiters.leave(event, [partition])
    assert not partition.watchers
    assert waiters.try_enter([partition], "a") is None


async def test_a_change_wakes_one_wait() -> None:
    """Also if it came before the wait; after it the next wait lasts until the next change, or the deadline."""
    loop, wake_up = asyncio.get_running_loop(), WakeUp()
    far = loop.time() + 20
    wake_up.set()
    assert await wake_up.wait_until(far)
    waiting = asyncio.ensure_future(wake_up.wait_until(far))
    await asyncio.sleep(0)
    assert not waiting.done()
    wake_up.set()
    wake_up.set()
    assert await waiting
    assert not await wake_up.wait_until(loop.time())


async def test_a_cancelled_wait_leaves_nothing_behind() -> None:
    """A change after it is that of the next wait."""
    loop, wake_up = asyncio.get_running_loop(), WakeUp()
    waiting = asyncio.ensure_future(wake_up.wait_until(loop.time() + 20))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    wake_up.set()
    assert await wake_up.wait_until(loop.time() + 20)


def test_waiting_places_are_shared_between_callers() -> None:
    """F11: one caller leaves half of them, two leave a third, and what one leaves is there again."""
    waiters, partition = FetchWaiters(12, BrokerMetrics(CollectorRegistry())), Watched()

    def enter_all(peer: str) -> list[WakeUp]:
        entered = []
        while (event := waiters.try_enter([partition], peer)) is not None:
            entered.append(event)
        return entered

    first = enter_all("a")
    assert len(first) == 6
    assert len(enter_all("b")) == 4
    assert len(enter_all("c")) == 2
    for event in first:
        waiters.leave(event, [partition])
        waiters.leave(event, [partition])
    assert len(enter_all("d")) == 3
