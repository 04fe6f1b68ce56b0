"""Calls of the data directory from the event loop, in a thread and one at a time. Shared by all components."""

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
    """Serialized calls of the data directory. Belongs to the event loop."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._lock = asyncio.Lock()

    async def run(self, call: Callable[[], ResultT]) -> ResultT:
        """Return the result of `call`; raise its HeadraceError, or InternalError for any other exception.

        A cancellation takes effect after `call` has ended, so that it never runs concurrently with the next one.
        """
        async with self._lock:
            return await uninterrupted(self._run(call))

    async def _run(self, call: Callable[[], ResultT]) -> ResultT:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, call)
        except HeadraceError:
            raise
        except Exception as error:
            # A bug that affects one log must not stop the others.
            log.exception("directory_call_failed")
            raise InternalError(f"the storage met an unexpected {type(error).__name__}") from error
