"""Turns of callers: a queue, and slices of the event loop."""

import asyncio

import pytest
from headrace_server import caller_turns
from headrace_server.caller_turns import CallerQueue, held_turn, must_wait, next_turn, note_call
from headrace_server.calls import CALLER
from headrace_server.native.begun_tasks import begin


def test_callers_have_turns_and_an_item_is_there_once():
    queue = CallerQueue()
    for item in (1, 2, 3, 2):
        queue.put("flood", item)
    queue.put("honest", 3)
    assert [queue.pop()[:2] for _ in range(4)] == [("flood", 1), ("honest", 3), ("flood", 2), ("flood", 3)]
    assert not queue


def test_callers_have_equal_costs_and_not_equal_items():
    """One caller's items cost eight times those of the other: for each of them the other has eight."""
    queue = CallerQueue(quantum=4)
    for item in range(100):
        queue.put("large", item, 8)
        queue.put("small", item, 1)
    served = [queue.pop() for _ in range(63)]
    costs = {caller: sum(cost for each, _, cost in served if each == caller) for caller in ("large", "small")}
    assert abs(costs["large"] - costs["small"]) <= 8, costs
    assert [item for caller, item, _ in served if caller == "small"] == list(range(costs["small"]))


def test_a_caller_that_was_away_has_no_credit_of_earlier():
    queue = CallerQueue(quantum=10)
    queue.put("a", 1, 1)
    assert queue.pop() == ("a", 1, 1)
    for item in range(3):
        queue.put("a", item, 9)
        queue.put("b", item, 9)
    assert [queue.pop()[0] for _ in range(6)] == ["a", "b"] * 3


async def work(caller, slices, done):
    CALLER.set(caller)
    for _ in range(slices):
        await next_turn()
        done.append(caller)


async def test_a_turn_of_the_loop_has_one_slice_however_many_calls_are_large():
    done, most = [], 0
    async with asyncio.TaskGroup() as tasks:
        calls = [tasks.create_task(work("flood", 5, done)) for _ in range(20)]
        while not all(call.done() for call in calls):
            before = len(done)
            await asyncio.sleep(0)
            most = max(most, len(done) - before)
    assert len(done) == 100
    assert most == 1


async def test_slices_of_a_caller_do_not_wait_for_all_of_another_one():
    done = []
    async with asyncio.TaskGroup() as tasks:
        for _ in range(20):
            tasks.create_task(work("flood", 5, done))
        tasks.create_task(work("honest", 3, done))
    assert [at for at, caller in enumerate(done) if caller == "honest"][-1] < 10


async def test_a_cancelled_call_takes_no_turn_from_others():
    done = []
    cancelled = [asyncio.create_task(work("a", 1, done)) for _ in range(3)]
    last = asyncio.create_task(work("a", 1, done))
    await asyncio.sleep(0)
    for each in cancelled:
        each.cancel()
    async with asyncio.timeout(20):
        await last
    assert all(each.cancelled() for each in cancelled)
    assert done == ["a"]


class Clock:
    """The loop's time, which the test turns."""

    def __init__(self, monkeypatch):
        self.now, self._monkeypatch = 100.0, monkeypatch
        monkeypatch.setattr(caller_turns, "ACTIVE_SECONDS", 5)

    async def at(self, seconds, calls=""):
        """Let callers call at a time, and everybody run for a while."""
        self.now = seconds
        with self._monkeypatch.context() as patched:
            patched.setattr(asyncio.get_running_loop(), "time", lambda: self.now)
            for caller in calls.split():
                note_call(caller)
            for _ in range(20):
                await asyncio.sleep(0)

    def must_wait(self, caller, size_bytes):
        CALLER.set(caller)
        with self._monkeypatch.context() as patched:
            patched.setattr(asyncio.get_running_loop(), "time", lambda: self.now)
            return must_wait(size_bytes)


class Slices(Clock):
    """A large call whose slices last three seconds each."""

    def __init__(self, monkeypatch, count):
        super().__init__(monkeypatch)
        self.done = []
        self.call = asyncio.create_task(self.work("large", count))

    async def work(self, caller, count):
        CALLER.set(caller)
        for _ in range(count):
            await next_turn()
            self.now += 3
            self.done.append(self.now)


async def test_beside_small_calls_the_loop_is_left_to_them_after_a_slice_for_as_long_as_it_lasted(monkeypatch):
    slices = Slices(monkeypatch, 2)
    await slices.at(100, calls="small")
    assert slices.done == [103]
    await slices.at(105.9)
    assert slices.done == [103]
    await slices.at(106)
    assert slices.done == [103, 109]
    await slices.call


async def test_slices_do_not_wait_for_callers_that_use_much(monkeypatch):
    monkeypatch.setattr(caller_turns, "LIGHT_BYTES_PER_SECOND", 1)
    slices = Slices(monkeypatch, 3)
    await slices.at(100, calls="large wide")
    assert slices.done == [103, 106, 109]


@pytest.mark.parametrize("steps", [0, 3])
@pytest.mark.parametrize("is_begun", [False, True])
async def test_turns_that_are_held_come_one_by_one(is_begun, steps):
    """Also if a turn ends within the step that began it, and if its call gets a task only when it waits."""
    held, most, per_iteration = 0, 0, 0

    async def call():
        nonlocal held, most, per_iteration
        for _ in range(5):
            await next_turn()
            with held_turn(1):
                held += 1
                per_iteration += 1
                most = max(most, held, per_iteration)
                for _ in range(steps):
                    await asyncio.sleep(0)
                held -= 1

    loop, calls = asyncio.get_running_loop(), []
    for _ in range(4):
        calls += [begin(call(), loop) if is_begun else loop.create_task(call()) for _ in range(5)]
        await asyncio.sleep(0)
        per_iteration = 0
    while not all(each.done() for each in calls):
        await asyncio.sleep(0)
        per_iteration = 0
    assert most == 1


async def test_a_turn_that_is_held_ends_with_its_work_and_its_pause_is_as_long(monkeypatch):
    """The next turn is neither during the work, which waits for a thread, nor during the same time after it."""
    clock, finished, done = Clock(monkeypatch), asyncio.Event(), []

    async def hold():
        CALLER.set("heavy")
        await next_turn(1)
        with held_turn(1):
            await finished.wait()

    tasks = [asyncio.create_task(hold()), asyncio.create_task(work("other", 1, done))]
    await clock.at(100, calls="small")
    finished.set()
    await clock.at(100.01)  # ends now
    assert not done
    await clock.at(100.0199)
    assert not done
    await clock.at(100.0201)
    assert done == ["other"]
    await asyncio.gather(*tasks)


async def test_a_turn_is_held_for_a_bounded_time(monkeypatch):
    monkeypatch.setattr(caller_turns, "MAX_HELD_SECONDS", 0)
    done = []

    async def stuck():
        await next_turn()
        with held_turn(1):
            await asyncio.Event().wait()

    async with asyncio.timeout(20):
        task = asyncio.create_task(stuck())
        for _ in range(5):
            await asyncio.sleep(0)
        await work("other", 1, done)
    task.cancel()
    assert done == ["other"]


@pytest.mark.parametrize(
    ("own", "other", "waits"), [(1 << 30, True, True), (1 << 30, False, False), (1000, True, False)]
)
async def test_a_call_waits_if_its_caller_uses_much_and_another_one_is_active(monkeypatch, own, other, waits):
    clock = Clock(monkeypatch)
    await clock.at(100, calls="greedy other greedy" if other else "greedy")
    assert clock.must_wait("greedy", own) is waits
    assert clock.must_wait("other", 1_000) is False
    clock.now = 106.0
    assert clock.must_wait("greedy", own) is False, "the others are gone"


async def test_of_callers_the_recent_ones_are_kept(monkeypatch):
    monkeypatch.setattr(caller_turns, "MAX_CALLERS", 2)
    turns = caller_turns._Turns()
    for number in range(100):
        turns.note_call(str(number), 100.0)
    assert list(turns._paid_at) == ["98", "99"]
