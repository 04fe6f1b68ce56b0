"""Cancellation: work that a cancelled caller must not interrupt, and cancellation of tasks by a caller.

A caller's own cancellation is never lost: it takes effect after the wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


def spawn_unless_ending(tasks: asyncio.TaskGroup, work: Coroutine[Any, Any, None]) -> bool:
    """Run `work` as a task of the group; return False if the group is ending and accepts no tasks."""
    try:
        tasks.create_task(work)
    except RuntimeError:
        work.close()
        return False
    return True


async def uninterrupted(work: Coroutine[Any, Any, ResultT] | asyncio.Future[ResultT]) -> ResultT:
    """Await `work` to its end; a cancellation takes effect after it."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # Mark it as retrieved; there is no caller to report it to.
        raise cancelled
    return task.result()


async def cancel_and_wait(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and wait for their ends, even if the caller is cancelled meanwhile.

    `suppress(CancelledError)` around `await task` would also suppress the caller's own cancellation.

    Raises:
        Exception: The error of the first task that failed, if any.
        CancelledError: If the caller was cancelled.
    """
    for task in tasks:
        task.cancel()
    cancelled: asyncio.CancelledError | None = None
    while pending := [task for task in tasks if not task.done()]:
        try:
            await asyncio.wait(pending)
        except asyncio.CancelledError as error:
            cancelled = error
    failures = [met for task in tasks if not task.cancelled() and (met := task.exception()) is not None]
    if failures:
        raise failures[0]
    if cancelled is not None:
        raise cancelled
