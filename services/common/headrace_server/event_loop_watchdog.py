"""Liveness of the event loop: a sampler of its lag, and a watchdog that reports a stall.

`LoopLagSampler` is a task. `EventLoopWatchdog` is a thread, because code on a blocked loop cannot report the block. It
fails the liveness probe and logs the stack of every thread, so that an operator finds the reason of a restart.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import re
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from typing import IO

import structlog

from headrace_server.health import Health, HealthCause
from headrace_server.instruments import CommonMetrics

log = structlog.get_logger(__name__)

MAX_STACK_CHARACTERS = 16_384
"""Maximum length of a dump of all threads."""


class LoopLagSampler:
    """Measures the lag of the event loop, and counts its turns as a sign of progress.

    `run` is a task of the loop; `count` may be read from any thread: a keep-alive thread stops if the count does not
    change (PROTOCOL H89).
    """

    INTERVAL_SECONDS = 0.25

    def __init__(self, all_metrics: Sequence[CommonMetrics], on_sample: Callable[[], None] | None = None) -> None:
        self._all_metrics = all_metrics
        self.on_sample = on_sample
        self.count = 0

    async def run(self) -> None:
        """Sample until cancelled."""
        cpu_seconds = time.thread_time()
        while True:
            due = time.monotonic() + self.INTERVAL_SECONDS
            await asyncio.sleep(self.INTERVAL_SECONDS)
            lag_seconds = max(0.0, time.monotonic() - due)
            before, cpu_seconds = cpu_seconds, time.thread_time()
            for metrics in self._all_metrics:
                metrics.loop_lag_seconds.observe(lag_seconds)
                metrics.loop_cpu_seconds.inc(cpu_seconds - before)
            self.count += 1
            if self.on_sample is not None:
                self.on_sample()


class EventLoopWatchdog:
    """Fails liveness while a `LoopLagSampler` makes no progress. Create and stop it on the loop's thread."""

    def __init__(
        self, sampler: LoopLagSampler, health: Health, all_metrics: Sequence[CommonMetrics], *, stall_ms: int
    ) -> None:
        """Check about ten times in `stall_ms`.

        Checks are counted instead of time, because a late check (paused process, sleeping machine) proves nothing
        about the loop.
        """
        self._sampler = sampler
        self._health = health
        self._all_metrics = all_metrics
        self._interval_seconds = stall_ms / 10_000
        self._loop_thread = threading.get_ident()
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="loop-watchdog", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread."""
        self._ends.set()
        self._thread.join()

    def _run(self) -> None:
        seen, looks = self._sampler.count, 0
        stalled_at = 0.0
        while not self._ends.wait(self._interval_seconds):
            if self._sampler.count != seen:
                seen, looks = self._sampler.count, 0
                if stalled_at:
                    self._health.release(HealthCause.EVENT_LOOP_BLOCKED)
                    log.warning("event_loop_recovered", stalled_seconds=round(time.monotonic() - stalled_at, 1))
                    stalled_at = 0.0
                continue
            looks += 1
            if looks >= 10 and not stalled_at:
                stalled_at = time.monotonic() - looks * self._interval_seconds
                for metrics in self._all_metrics:
                    metrics.loop_stalls.inc()
                self._health.hold(HealthCause.EVENT_LOOP_BLOCKED)  # The log may be what the loop is blocked by.
                seconds = round(looks * self._interval_seconds, 1)
                log.error("event_loop_stalled", stalled_seconds=seconds, threads=self._stacks())

    def _stacks(self) -> str:
        """Return the stacks of all threads, the event loop's first, or the reason why there are none.

        `faulthandler` reads them while no thread runs. A walk over `sys._current_frames` does not: frames of threads
        that run on or end meanwhile may lead anywhere.
        """
        try:
            with _scratch_file() as file:
                faulthandler.dump_traceback(file, all_threads=True)
                file.seek(0)
                blocks = file.read().decode(errors="replace").strip().split("\n\n")
        except OSError as error:
            return str(error)
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        names[self._loop_thread] = "event loop"
        parts: dict[int, str] = {self._loop_thread: ""}
        for block in blocks:
            head, _, frames = block.partition("\n")
            found = re.search(r"0x([0-9a-f]+)", head)
            ident = int(found[1], 16) if found else 0
            if ident != threading.get_ident():
                parts[ident] = f"{names.get(ident, 'thread')}:\n{frames}"
        return "\n".join(parts.values())[:MAX_STACK_CHARACTERS]


def _scratch_file() -> IO[bytes]:
    """Return an empty file; in memory where the system has such, for a disk may be what the loop is blocked by."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("headrace-stacks"), "w+b")
    return tempfile.TemporaryFile()
