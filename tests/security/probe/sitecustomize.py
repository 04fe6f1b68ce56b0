"""Measures, in a server that a test starts with this directory in PYTHONPATH, what keeps its event loops from turning.

Every callback that costs more than `LEAST_SECONDS` of its thread's processor time leaves a line, seconds and name, in
the file of the process in `LOOP_PROBE_DIRECTORY`. Under other load processor time is more exact than time by the clock.
"""

from __future__ import annotations

import asyncio
import gc
import os
import time
from typing import Any

LEAST_SECONDS = 0.005


def _name(handle: Any) -> str:
    callback = getattr(handle, "_callback", None)
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return getattr(owner.get_coro(), "__qualname__", repr(owner.get_coro()))
    return getattr(callback, "__qualname__", None) or type(callback).__qualname__


def _install(directory: str) -> None:
    target = os.open(os.path.join(directory, str(os.getpid())), os.O_CREAT | os.O_APPEND | os.O_WRONLY | os.O_CLOEXEC)
    run = asyncio.Handle._run

    def timed(self: Any) -> None:
        name, started = _name(self), time.thread_time()
        run(self)
        took = time.thread_time() - started
        if took >= LEAST_SECONDS:
            os.write(target, f"{took:.6f} {name}\n".encode())

    asyncio.Handle._run = timed  # type: ignore[method-assign]
    collecting = [0.0]

    def collect(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            collecting[0] = time.thread_time()
        elif (took := time.thread_time() - collecting[0]) >= LEAST_SECONDS:
            os.write(target, f"{took:.6f} gc-{info['generation']}\n".encode())

    gc.callbacks.append(collect)


if (_directory := os.environ.get("LOOP_PROBE_DIRECTORY")) is not None:
    _install(_directory)
