"""Operations of one caller that run side by side on an event loop; see `headrace.client.base.side_by_side`."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from headrace.client.base.operations import Operation, aexecute

Result = TypeVar("Result")


class AsyncSideBySide:
    """Operations that run side by side. One task; close it after use."""

    def __init__(self, run_step: Callable[[Any], Awaitable[Any]]) -> None:
        """`run_step` runs a step of an operation, as for `aexecute`."""
        self._run_step = run_step
        self._tasks: dict[asyncio.Task[Any], None] = {}

    def start(self, operation: Operation[Result]) -> "asyncio.Task[Result]":
        """Start an operation."""
        task = asyncio.get_running_loop().create_task(aexecute(operation, self._run_step))
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    async def result(self, started: "asyncio.Task[Result]") -> Result:
        """Wait for the result of an operation.

        Raises:
            HeadraceError: The error that ended the operation.
        """
        return await started

    def close(self) -> None:
        """End the operations that are left."""
        for task in list(self._tasks):
            task.cancel()

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        del self._tasks[task]
        if not task.cancelled():
            task.exception()  # Raised by `result`, if anyone waits for it.
