"""Calls of the data directory from the event loop: in a thread, one at a time. Shared by what a broker does with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

import structlog
from headrace.wire.errors import HeadraceError, InternalError

from headrace_broker.runtime.uninterrupted import uninterrupted

log = structlog.get_logger(__name__)

ResultT = TypeVar("ResultT")


class DirectoryCalls:
    """Belongs to the event loop."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._lock = asyncio.Lock()

    async def run(self, call: Callable[[], ResultT]) -> ResultT:
        """Return what `call` returns; raises its HeadraceError, and InternalError for any other exception.

        A cancellation takes effect when `call` has ended: its thread never runs concurrently with the next one's.
        """
        async with self._lock:
            return await uninterrupted(self._run(call))

    async def _run(self, call: Callable[[], ResultT]) -> ResultT:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, call)
        except HeadraceError:
            raise
        except Exception as error:
            # One log that meets a bug of ours must not take the others down with it.
            log.exception("directory_call_failed")
            raise InternalError(f"the storage met an unexpected {type(error).__name__}") from error
