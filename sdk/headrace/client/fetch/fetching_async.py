"""The engine of asyncio readers: tasks that keep fetches in flight, and a queue that the application empties. One loop.

What to fetch, what an answer means and where to go on are the blocking engine's; here its threads are tasks, and its
waits are awaited. The tasks belong to the engine and end with `aclose`.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine
from typing import Any

import grpc

from headrace.client.base.background_async import AsyncBackground
from headrace.client.base.clock import monotonic_ms
from headrace.client.base.errors import ClosedError
from headrace.client.base.request_ids import operation_metadata
from headrace.client.base.unclosed import close_in_loop
from headrace.client.fetch.corrupt_batches import WriteLetters
from headrace.client.fetch.dead_letters import producer_settings
from headrace.client.fetch.fetch_plan import FetchPlan
from headrace.client.fetch.fetching import Fetcher, NextFetch
from headrace.client.fetch.partition_fetch_state import CompletedFetch
from headrace.client.net.bootstrap_client import error_of_call
from headrace.client.net.connection_async import AsyncConnections
from headrace.client.net.transfer_async import AsyncTransfers
from headrace.client.producer.producer_async import Producer
from headrace.wire.errors import HeadraceError


class AsyncFetcher(Fetcher):
    """Owned by one consumer or reader; its loop alone touches it."""

    def __init__(self, config: Any, what: str, **rest: Any) -> None:
        """As `Fetcher`. Connects when first used."""
        super().__init__(config, what, **rest)
        self._channels = AsyncConnections(what, config)
        self._async_transfers = AsyncTransfers(config)
        self._data_there = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self.loop = asyncio.get_running_loop()

    def _make_background(self) -> AsyncBackground:
        return AsyncBackground(f"headrace-{self._what.lower()}", self.arun_step)

    async def arun_step(self, step: Any) -> Any:
        """Do one step, and give what came of it."""
        if isinstance(step, NextFetch):
            return await self.wait_fetch(step.timeout, delivery_paused=step.delivery_paused)
        if isinstance(step, WriteLetters):
            return await self._write_letters_async(step)
        return await self._channels.run_step(step)

    async def _write_letters_async(self, step: WriteLetters) -> None:
        if self._letters is None:
            self._letters = Producer(**producer_settings(self._config))
        for letter in step.letters:
            await self._letters.send_and_wait(step.topic, letter.value, letter.key, headers=letter.headers)

    async def wait_fetch(self, timeout: float | None, *, delivery_paused: bool = False) -> CompletedFetch | None:
        """Wait for the next completed fetch, as `Fetcher.next_fetch`; with timeout 0 it awaits nothing.

        No await stands between taking the completed fetch and returning it, so a cancelled wait loses none.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            self._data_there.clear()
            completed = self._pop(delivery_paused)
            if completed is not None:
                return completed
            left = None if deadline is None else deadline - time.monotonic()
            if (left is not None and left <= 0) or self._take_wake() or self._ends_wait(delivery_paused):
                return None
            try:
                async with asyncio.timeout(left):
                    await self._data_there.wait()
            except TimeoutError:
                continue

    def wakeup(self) -> None:
        """End the wait of the application's task, now or the next."""
        self._wakeup = True
        self._data_there.set()

    async def aclose(self) -> None:
        """End all tasks and close the connections. Again: nothing."""
        if self._forked or self._closed:
            return
        self._closed = True
        self._data_there.set()
        for task in self._tasks:
            task.cancel()
        await asyncio.shield(asyncio.ensure_future(self._end()))

    @property
    def is_open(self) -> bool:
        """Whether there is something to close."""
        return self._channels.is_open and not self._forked

    def close_unclosed(self, owner: object, close: Callable[[], Any]) -> None:
        """Close an owner that was collected and left something open."""
        if self.is_open:
            close_in_loop(owner, self.loop, close)

    async def _end(self) -> None:
        assert isinstance(self.background, AsyncBackground)
        await self.background.close()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._async_transfers.close()
        await self._channels.close()
        if self._letters is not None:
            with contextlib.suppress(HeadraceError):  # Each letter was waited for.
                await self._letters.close(0)

    def _wake_application(self) -> None:
        self._data_there.set()

    def _own(self, work: Coroutine[Any, Any, None]) -> None:
        task = self.loop.create_task(work, name=f"headrace-{self._what.lower()}")
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self._fail(error)

    def _plan(self, now: int) -> None:
        for plan in self.positions.plan(self._cluster_metadata, now):
            self._own(self._fetch_plan(plan))

    async def _fetch_plan(self, plan: FetchPlan) -> None:
        """Make one call and take its answer in."""
        timeout = (self._config.fetch_max_wait_ms + self._config.request_timeout_ms) / 1000
        answer, error, started_seconds = None, None, time.monotonic()
        try:
            answer = await self._async_transfers.fetch(plan.transfer_address, plan.request, timeout)
            if answer is None:
                fetch = self._channels.endpoint(plan.address).fetch
                call = fetch(plan.request, timeout=timeout, metadata=operation_metadata())
                answer = await self._channels.answer(call)
        except grpc.RpcError as failure:
            error = error_of_call(failure)
        except ClosedError:
            return
        except HeadraceError as failure:
            error = failure
        self.positions.counts.took(time.monotonic() - started_seconds)
        self._take(plan, answer, error, monotonic_ms())
        self._wake_engine()
