"""Lifecycle of a process: signals, clean shutdown with a deadline, exit codes, and error output.

A service is an async function with a `StopRequest` as its argument: it starts, serves until `stop.requested()` returns,
shuts down and returns. Its tasks are in its own TaskGroup, so that the failure of one task ends the service.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import structlog
from headrace.wire.errors import HeadraceError, InvalidConfigError

from headrace_server.descriptors import raise_limit
from headrace_server.settings import SettingsError

log = structlog.get_logger(__name__)

ResultT = TypeVar("ResultT")

SWITCH_SECONDS = 0.0005
"""Switch interval of the interpreter. A thread that completes an fsync or delivers a call needs the GIL several times,
and would wait Python's default of 5 ms for a busy event loop each time."""
REPORT_SECONDS = 0.5
"""Maximum time for the last line of the log before a forced exit."""


class ProcessExitCode(IntEnum):
    """Exit code of the process."""

    OK = 0
    FAILED = 1
    """The process failed while running; see the log."""
    BAD_SETTINGS = 2
    """It cannot start: invalid settings, an address in use, a directory of another cluster."""
    STOP_TIMED_OUT = 3
    """The clean shutdown exceeded its timeout; the next start recovers."""
    FORCED = 130
    """A second signal forced the exit."""


class StopRequest:
    """Request to stop the service, set by a signal or by the service itself; belongs to the event loop."""

    def __init__(self, on_set: Callable[[], object] = lambda: None) -> None:
        """`on_set` is called once, when the stop is requested."""
        self._on_set = on_set
        self._event = asyncio.Event()
        self.reason = ""

    def set(self, reason: str) -> None:
        """Request the stop; the first reason is kept."""
        if not self._event.is_set():
            self.reason = reason
            self._event.set()
            self._on_set()

    def is_set(self) -> bool:
        """Return whether the stop was requested."""
        return self._event.is_set()

    async def requested(self) -> str:
        """Wait until the stop is requested; return the reason."""
        await self._event.wait()
        return self.reason

    async def unless_requested(self, work: Coroutine[Any, Any, ResultT]) -> ResultT | None:
        """Return the result of `work`, or cancel it and return `None` if the stop is requested first."""
        working, stopping = asyncio.create_task(work), asyncio.create_task(self.requested())
        try:
            await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
            return working.result() if working.done() else None
        finally:
            working.cancel()
            stopping.cancel()


def run(serve: Callable[[StopRequest], Awaitable[None]], *, stop_timeout_seconds: float) -> ProcessExitCode:
    """Run a service until it returns or SIGTERM or SIGINT stops it, and return the exit code.

    The soft limit of open files is first raised to the hard one. After the stop is requested the service has
    `stop_timeout_seconds`; then, or at a second signal, the process exits at once, as after a crash.
    """
    code = ProcessExitCode.OK
    raise_limit()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        asyncio.run(_run(serve, stop_timeout_seconds))
    except* InvalidConfigError as group:
        _print_errors(group)
        code = ProcessExitCode.BAD_SETTINGS
    except* HeadraceError as group:
        _print_errors(group)
        code = ProcessExitCode.FAILED
    except* Exception as group:
        log.error("service_failed", exc_info=group)
        code = ProcessExitCode.FAILED
    return code


async def _run(serve: Callable[[StopRequest], Awaitable[None]], stop_timeout_seconds: float) -> None:
    # A thread, not a task: it must end the process even if the loop is blocked.
    timed_out = partial(log.error, "stop_timed_out", after_seconds=stop_timeout_seconds)
    timer = threading.Timer(stop_timeout_seconds, _exit_now, [ProcessExitCode.STOP_TIMED_OUT, timed_out])
    timer.daemon = True
    stop = StopRequest(timer.start)
    loop = asyncio.get_running_loop()
    signals: list[str] = []

    def on_signal(name: str) -> None:
        if signals:
            _exit_now(ProcessExitCode.FORCED, partial(log.warning, "stop_forced", signal=name))
        signals.append(name)
        stop.set(name)
        log.info("stop_requested", signal=name)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number.name)
    await serve(stop)


def _exit_now(code: ProcessExitCode, report: Callable[[], object]) -> None:
    """Exit as after a crash. `report` logs the reason, in a thread: standard error may be a pipe that is not read."""
    reporting = threading.Thread(target=report, daemon=True)
    reporting.start()
    reporting.join(REPORT_SECONDS)
    os._exit(code)


def report_failure(error: HeadraceError) -> ProcessExitCode:
    """Print the error of an administrator's command and return the command's exit code."""
    print(f"error: {error}", file=sys.stderr)
    return ProcessExitCode.BAD_SETTINGS if isinstance(error, SettingsError) else ProcessExitCode.FAILED


def _print_errors(group: BaseExceptionGroup[HeadraceError]) -> None:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            _print_errors(error)
        else:
            log.debug("start_failed", exc_info=error)
            print(f"error: {error}", file=sys.stderr)


def write_ready_file(path: Path, content: Mapping[str, object]) -> None:
    """Write `content` as JSON to `path`, atomically, so that a waiting process never reads a partial file."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(json.dumps({"pid": os.getpid(), **content}) + "\n")
    partial.replace(path)
