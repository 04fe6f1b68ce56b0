"""Blocking `Consumer.run`: the calling thread reads, other threads call the handler."""

import contextlib
import logging
import threading
import time
from typing import TYPE_CHECKING

from headrace.client.base.clock import monotonic_ms
from headrace.client.base.errors import HandlerTimeoutError, WakeupError
from headrace.client.handlers.handler_pool import TURN_S, Handler, HandlerPool, RunOptions, RunSummary
from headrace.client.handlers.stop_signals import stop_signals
from headrace.client.handlers.work_queue import Task

if TYPE_CHECKING:
    from headrace.client.consumer.consumer import Consumer

log = logging.getLogger("headrace.consumer")


class Runner:
    """Run of one consumer, on the thread that calls `run`; `stop` may be called on any."""

    def __init__(self, consumer: "Consumer", handler: Handler, options: RunOptions) -> None:
        self._consumer = consumer
        self._handler = handler
        self._at_work: dict[int, tuple[Task, int]] = {}
        self._threads: dict[int, threading.Thread] = {}
        self._ends = False
        self._started = 0
        self._abandoned = 0
        self.pool = HandlerPool(
            options,
            consumer._core.config,
            consumer._core.in_group(),
            wake_workers=self._wake,
            wake=consumer._core.fetcher.wake,
        )
        self._changed = threading.Condition(self.pool.lock)

    def stop(self) -> None:
        """End the run soon."""
        self.pool.stop()

    def run(self) -> RunSummary:
        """Read and handle records until `stop`, a signal, or an error."""
        pool, consumer = self.pool, self._consumer
        with self._signals():
            consumer._do(pool.begin())
            for _ in range(pool.options.concurrency):
                self._start_worker()
            try:
                while not pool.stops:
                    pool.take(consumer._read(consumer._core.poll(TURN_S, pool.room(), is_traced=False)))
                    self._turn()
            except WakeupError:
                pool.stop()
            except BaseException as error:
                pool.fail(error)
            summary = self._end()
        if pool.error is not None:
            raise pool.error
        return summary

    def _turn(self) -> None:
        pause, resume = self.pool.turn(self._consumer.assignment())
        self._consumer.pause(*pause)
        self._consumer.resume(*resume)
        limit_ms = self.pool.options.handler_timeout_ms
        if limit_ms is not None:
            self._abandon_late(limit_ms)

    def _abandon_late(self, limit_ms: int) -> None:
        """Abandon threads whose handler hangs, as a thread cannot be ended, and start other ones."""
        now = monotonic_ms()
        with self.pool.lock:
            late = [ident for ident, (_, since) in self._at_work.items() if now - since >= limit_ms]
            for ident in late:
                task, _ = self._at_work.pop(ident)
                self._threads.pop(ident)
                self._abandoned += 1
                log.warning("the handler hangs at %s offset %d", task.where, task.record.offset)
                self.pool.handler_failed(task, HandlerTimeoutError(limit_ms), is_final=True)
                if self._abandoned <= self.pool.options.concurrency:
                    self._start_worker()
                else:
                    self.pool.fail(HandlerTimeoutError(limit_ms))

    def _end(self) -> RunSummary:
        """Let handlers finish within the time limit, then commit."""
        pool = self.pool
        deadline = time.monotonic() + pool.options.drain_timeout_ms / 1000
        with self._changed:
            pool.queue.revoke_all()
            self._changed.wait_for(pool.drained, max(0.0, deadline - time.monotonic()))
            self._ends = True
            self._changed.notify_all()
        self._consumer.resume(*pool.paused(self._consumer.assignment()))
        for thread in list(self._threads.values()):
            thread.join(max(0.0, deadline - time.monotonic()))
        summary: RunSummary = self._consumer._do(pool.finish())
        return summary

    # --- workers ---

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _start_worker(self) -> None:
        self._started += 1
        ident = self._started
        thread = threading.Thread(target=self._serve, args=(ident,), name=f"headrace-run-{ident}", daemon=True)
        self._threads[ident] = thread
        thread.start()

    def _serve(self, ident: int) -> None:
        while (task := self._next(ident)) is not None:
            if task.is_given_up:
                with self.pool.lock:
                    self._at_work.pop(ident, None)
                try:
                    self._consumer._do(self.pool.send_to_dead_letter_topic(task))
                except BaseException as raised:
                    self.pool.fail(raised)
                continue
            error: BaseException | None = None
            try:
                record = self.pool.record_of(task)
                if record.headers:
                    with self.pool.span_of(record):
                        self._handler(record)
                else:
                    self._handler(record)
            except BaseException as raised:
                error = raised
            with self.pool.lock:
                if self._at_work.pop(ident, None) is None:
                    return  # It timed out and was abandoned.
                if error is None:
                    self.pool.succeeded(task)
                    continue
                self.pool.handler_failed(task, error)
                if not isinstance(error, Exception):
                    self.pool.fail(error)

    def _next(self, ident: int) -> Task | None:
        with self._changed:
            while not self._ends:
                now = monotonic_ms()
                task = self.pool.queue.take(now)
                if task is not None:
                    self._at_work[ident] = task, now
                    return task
                due_ms = self.pool.queue.next_due_ms()
                self._changed.wait(None if due_ms is None else max(1, due_ms - now) / 1000)
        return None

    def _signals(self) -> contextlib.AbstractContextManager[None]:
        return stop_signals.call(self._on_signal) if self.pool.options.handle_signals else contextlib.nullcontext()

    def _on_signal(self) -> None:
        """Set a flag only, which the next turn checks: the main thread may hold any lock at this moment."""
        self.pool.stops = True
