"""Turns of callers: a queue, and slices of the event loop."""

import asyncio

from headrace_server.caller_turns import CallerQueue, next_turn
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
