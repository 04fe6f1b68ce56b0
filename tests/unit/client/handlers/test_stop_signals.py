"""SIGINT and SIGTERM during `Consumer.run`: every run of the main thread ends, and handlers of the application stay."""

import asyncio
import signal

import pytest

from tests.unit.client.consumer.test_group_consumer import consumer_for, fill
from tests.unit.client.consumer.test_group_consumer_async import consumer_for as async_consumer_for

STOPS = [signal.SIGINT, signal.SIGTERM]


@pytest.fixture(params=STOPS)
def number(request):
    """A signal for which the application has no handler before the test, and none after it."""
    before = signal.getsignal(request.param)
    yield request.param
    signal.signal(request.param, before)


def raises(number):
    """A handler of records that raises a signal once it is called."""

    def handle(_record):
        signal.raise_signal(number)

    return handle


def raises_async(number):
    async def handle(_record):
        signal.raise_signal(number)

    return handle


def test_a_handler_of_the_application_is_called_once_the_run_has_ended(clicks, groups, number):
    """An application that runs again until its own handler sets a flag would never end."""
    fill(clicks, 5)
    calls = []
    signal.signal(number, lambda number, _frame: calls.append((number, groups.offset("clicks", 0))))
    with consumer_for(clicks) as consumer:
        consumer.run(raises(number), concurrency=1)
        assert calls == [(number, groups.offset("clicks", 0))]
        signal.raise_signal(number)
    assert len(calls) == 2


def test_a_handler_of_the_application_may_end_the_process(clicks, groups, number):
    fill(clicks, 5)
    signal.signal(number, lambda *_: exit(3))
    with consumer_for(clicks) as consumer, pytest.raises(SystemExit, match="3"):
        consumer.run(raises(number), concurrency=1)
    assert groups.offset("clicks", 0) >= 1


async def test_a_handler_of_the_event_loop_is_called_and_stays(clicks, groups, number):
    fill(clicks, 1)
    calls = []
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(number, calls.append, number)
    async with async_consumer_for(clicks) as consumer:
        await consumer.run(raises_async(number), concurrency=1)
    assert calls == [number]
    assert loop.remove_signal_handler(number)


def test_ctrl_c_of_asyncio_run_is_put_back_and_ends_nothing_after_the_run(clicks, groups):
    fill(clicks, 5)

    async def main():
        before = signal.getsignal(signal.SIGINT)
        async with async_consumer_for(clicks) as consumer:
            await consumer.run(raises_async(signal.SIGINT), concurrency=1)
        await asyncio.sleep(0)
        return signal.getsignal(signal.SIGINT) == before

    assert asyncio.run(main())


async def test_a_signal_ends_all_runs_of_an_event_loop(clicks, groups, number):
    """Also in the order in which they began, the handlers are put back by the last one."""
    fill(clicks, 5)
    before = signal.getsignal(number)
    started = asyncio.Event()

    async def wait(_record):
        started.set()

    async with async_consumer_for(clicks) as first, async_consumer_for(clicks) as second:
        runs = [asyncio.create_task(first.run(wait)), asyncio.create_task(second.run(wait))]
        await started.wait()
        signal.raise_signal(number)
        async with asyncio.timeout(20):
            await asyncio.gather(*runs)
    assert signal.getsignal(number) == before


async def test_a_handler_that_is_set_during_the_run_stays(clicks, groups, number):
    fill(clicks, 5)

    def own(*_):
        """Do nothing."""

    async with async_consumer_for(clicks) as consumer:

        async def handle(_record):
            signal.signal(number, own)
            consumer.stop()

        await consumer.run(handle, concurrency=1)
    assert signal.getsignal(number) is own
