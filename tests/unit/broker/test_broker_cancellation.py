"""What a caller that goes away leaves behind: no thread beside the next one's, and no place in a line."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from headrace_broker.runtime.directory_calls import DirectoryCalls
from headrace_broker.runtime.inflation import Inflation


def gate() -> tuple[asyncio.Event, threading.Event, Callable[[], None]]:
    """Whether a call is at work in its thread, what lets it go on, and the call."""
    entered, opened, loop = asyncio.Event(), threading.Event(), asyncio.get_running_loop()

    def call() -> None:
        loop.call_soon_threadsafe(entered.set)
        assert opened.wait(20)

    return entered, opened, call


async def test_a_cancelled_call_of_the_directory_ends_before_the_next_begins() -> None:
    """H40: a stop that waits no longer for a note of the version closes the directory behind it, and not beside it."""
    with ThreadPoolExecutor(2) as executor:
        calls, (entered, opened, call) = DirectoryCalls(executor), gate()
        first = asyncio.create_task(calls.run(call))
        await entered.wait()
        first.cancel()
        second = asyncio.create_task(calls.run(opened.is_set))
        await asyncio.wait([second], timeout=0.1)
        opened.set()
        assert await second
        with pytest.raises(asyncio.CancelledError):
            await first


async def test_a_caller_that_is_cancelled_at_its_turn_gives_it_to_the_next() -> None:
    """Both happen in one turn of the event loop."""
    with closing(Inflation(max_bytes=10)) as inflation:
        entered, opened, call = gate()
        first = asyncio.create_task(inflation.run(10, call))
        await entered.wait()
        second, third = (asyncio.create_task(inflation.run(10, lambda: None)) for _ in range(2))
        first.add_done_callback(lambda _: second.cancel())
        await asyncio.sleep(0)
        opened.set()
        await asyncio.wait_for(third, 20)
        assert inflation.used_bytes == 0
