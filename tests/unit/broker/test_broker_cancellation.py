"""What a caller that goes away leaves behind: no second thread next to its successor's, and no place in a queue."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from headrace_broker.runtime.directory_calls import DirectoryCalls
from headrace_broker.runtime.inflation import Inflation

from tests.unit.broker.test_broker_runtime import Gate


class Work:
    def do(self) -> None:
        """What a thread does."""


async def test_a_cancelled_call_of_the_directory_ends_before_the_next_begins() -> None:
    """H40: a stop that no longer waits for a version's note closes the directory after it, not during it."""
    with ThreadPoolExecutor(2) as executor:
        calls, work = DirectoryCalls(executor), Work()
        gate = Gate(work, "do")
        first = asyncio.create_task(calls.run(work.do))
        await gate.reached()
        first.cancel()
        second = asyncio.create_task(calls.run(gate.opened.is_set))
        await asyncio.wait([second], timeout=0.1)
        gate.opened.set()
        assert await second
        with pytest.raises(asyncio.CancelledError):
            await first


async def test_a_caller_that_is_cancelled_at_its_turn_gives_it_to_the_next() -> None:
    """Both happen in one turn of the event loop."""
    with closing(Inflation(max_bytes=10)) as inflation:
        work = Work()
        gate = Gate(work, "do")
        first = asyncio.create_task(inflation.run(10, work.do))
        await gate.reached()
        second, third = (asyncio.create_task(inflation.run(10, lambda: None)) for _ in range(2))
        first.add_done_callback(lambda _: second.cancel())
        await asyncio.sleep(0)
        gate.opened.set()
        await asyncio.wait_for(third, 20)
        assert inflation.used_bytes == 0
