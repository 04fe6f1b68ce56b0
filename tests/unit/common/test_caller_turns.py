"""Turns of callers: a queue, and slices of the event loop."""

import asyncio

from headrace_server import caller_turns
from headrace_server.caller_turns import CallerQueue, has_others, next_turn, note_call
from headrace_server.calls import CALLER


def test_callers_have_turns_and_an_item_is_there_once():
    queue = CallerQueue()
    for item in (1, 2, 3, 2):
        queue.put("flood", item)
    queue.put("honest", 3)
    assert [queue.pop() for _ in range(4)] == [("flood", 1), ("honest", 3), ("flood", 2), ("flood", 3)]
    assert not queue


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


class Slices:
    """A large call whose slices last three seconds each, on a loop whose clock the test turns."""

    def __init__(self, monkeypatch, count):
        self.now, self.done, self._monkeypatch = 100.0, [], monkeypatch
        monkeypatch.setattr(caller_turns, "SMALL_SECONDS", 5)
        monkeypatch.setattr(caller_turns, "LARGE_SECONDS", 60)
        self.call = asyncio.create_task(self.work("large", count))

    async def work(self, caller, count):
        CALLER.set(caller)
        for _ in range(count):
            await next_turn()
            self.now += 3
            self.done.append(self.now)

    async def at(self, seconds, calls=""):
        self.now = seconds
        with self._monkeypatch.context() as patched:
            patched.setattr(asyncio.get_running_loop(), "time", lambda: self.now)
            for caller in calls.split():
                note_call(caller)
            for _ in range(20):
                await asyncio.sleep(0)
        return self.done


async def test_beside_small_calls_the_loop_is_left_to_them_after_a_slice_for_as_long_as_it_lasted(monkeypatch):
    slices = Slices(monkeypatch, 2)
    assert await slices.at(100, calls="small") == [103]
    assert await slices.at(105.9) == [103]
    assert await slices.at(106) == [103, 109]
    await slices.call


async def test_slices_wait_neither_for_their_own_caller_nor_for_one_of_large_calls(monkeypatch):
    slices = Slices(monkeypatch, 3)
    assert await slices.at(100, calls="large") == [103, 106, 109]
    for caller in ("wide", "large"):
        slices.call = asyncio.create_task(slices.work(caller, 2))
        await slices.at(slices.now, calls="wide")
    assert slices.done == [103, 106, 109, 112, 115, 118, 121]


async def test_of_callers_of_large_calls_the_recent_ones_are_kept(monkeypatch):
    monkeypatch.setattr(caller_turns, "MAX_LARGE", 2)
    turns, loop = caller_turns._Turns(), asyncio.get_running_loop()
    for number in range(100):
        with monkeypatch.context() as patched:
            patched.setattr(loop, "time", lambda now=2.0 * number: now)
            turns._pause(loop, str(number), 0.0)
    assert len(turns._large) <= 2


async def test_another_caller_is_active_for_a_while_after_its_last_call(monkeypatch):
    """The caller's own calls, however many, are none of another one."""
    now, loop = 100.0, asyncio.get_running_loop()
    monkeypatch.setattr(loop, "time", lambda: now)
    found = []
    for at, caller in ((100, "greedy"), (100.1, "greedy"), (100.2, "quiet"), (100.3, "greedy"), (100.5, "greedy")):
        now = at
        note_call(caller)
        CALLER.set("greedy")
        found.append(has_others())
    assert found == [False, False, True, True, False]
    CALLER.set("quiet")
    assert has_others()
