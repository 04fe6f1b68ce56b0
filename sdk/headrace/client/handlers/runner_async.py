"""`Consumer.run` on an event loop: one task reads, other tasks call the handler."""

import asyncio
import contextlib
import inspect
import logging
from typing import TYPE_CHECKING

from headrace.client.base.clock import monotonic_ms
from headrace.client.base.errors import HandlerTimeoutError, WakeupError
from headrace.client.base.records import Record
from headrace.client.handlers.handler_pool import TURN_S, AsyncHandler, HandlerPool, RunOptions, RunSummary
from headrace.client.handlers.stop_signals import stop_signals
from headrace.client.handlers.work_queue import Task

if TYPE_CHECKING:
    from headrace.client.consumer.consumer_async import AsyncConsumer

log = logging.getLogger("headrace.consumer")


class AsyncRunner:
    """Run of one consumer; used on its loop only."""

    def __init__(self, consumer: "AsyncConsumer", handler: AsyncHandler, options: RunOptions) -> None:
        self._consumer = consumer
        self._handler = handler
        self._waiters: set[asyncio.Future[None]] = set()
        core = consumer._core
        self.pool = HandlerPool(options, core.config, core.in_group(), wake_workers=self._wake, wake=core.fetcher.wake)

    def stop(self) -> None:
        """End the run soon."""
        self.pool.stop()

    async def run(self) -> RunSummary:
        """Read and handle records until `stop`, a signal, or an error. A cancellation cancels the running handlers."""
        pool, consumer = self.pool, self._consumer
        workers: list[asyncio.Task[None]] = []
        try:
            with self._signals():
                await consumer._do(pool.begin())
                workers += [asyncio.create_task(self._serve()) for _ in range(pool.options.concurrency)]
                try:
                    while not pool.stops:
                        pool.take(await consumer._read(consumer._core.poll(TURN_S, pool.room(), is_traced=False)))
                        self._turn()
                except WakeupError:
                    pool.stop()
                except Exception as error:
                    pool.fail(error)
                await self._drain()
        finally:
            for worker in workers:
                worker.cancel()
            if workers:
                await asyncio.wait(workers)
            summary: RunSummary = await consumer._do(pool.finish())
        if pool.error is not None:
            raise pool.error
        return summary

    def _turn(self) -> None:
        pause, resume = self.pool.turn(self._consumer.assignment())
        self._consumer.pause(*pause)
        self._consumer.resume(*resume)

    async def _drain(self) -> None:
        """Let handlers finish within the time limit."""
        self.pool.queue.revoke_all()
        try:
            async with asyncio.timeout(self.pool.options.drain_timeout_ms / 1000):
                while not self.pool.drained():
                    await self._wait(None)
        except TimeoutError:
            log.warning("handlers are at work still, and are cancelled")
        self._consumer.resume(*self.pool.paused(self._consumer.assignment()))

    # --- workers ---

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def _wait(self, seconds: float | None) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            async with asyncio.timeout(seconds):
                await waiter
        except TimeoutError:
            return
        finally:
            self._waiters.discard(waiter)

    async def _serve(self) -> None:
        while True:
            now = monotonic_ms()
            task = self.pool.queue.take(now)
            if task is None:
                due_ms = self.pool.queue.next_due_ms()
                await self._wait(None if due_ms is None else max(1, due_ms - now) / 1000)
            elif task.is_given_up:
                try:
                    await self._consumer._do(self.pool.send_to_dead_letter_topic(task))
                except Exception as error:
                    self.pool.fail(error)
            else:
                await self._handle(task)

    async def _handle(self, task: Task) -> None:
        limit_ms = self.pool.options.handler_timeout_ms
        limit = asyncio.timeout(None if limit_ms is None else limit_ms / 1000)
        try:
            async with limit:
                record = self.pool.record_of(task)
                if record.headers:
                    with self.pool.span_of(record):
                        await self._call(record)
                else:
                    await self._call(record)
        except asyncio.CancelledError:
            self.pool.handler_failed(task, asyncio.CancelledError())
            raise
        except Exception as error:
            is_late = limit_ms is not None and limit.expired()
            self.pool.handler_failed(task, HandlerTimeoutError(limit_ms or 0) if is_late else error)
        else:
            self.pool.succeeded(task)

    async def _call(self, record: Record) -> None:
        result = self._handler(record)
        if inspect.isawaitable(result):
            await result

    def _signals(self) -> contextlib.AbstractContextManager[None]:
        if not self.pool.options.handle_signals:
            return contextlib.nullcontext()
        loop = asyncio.get_running_loop()
        return stop_signals.call(lambda: loop.call_soon_threadsafe(self.stop))
