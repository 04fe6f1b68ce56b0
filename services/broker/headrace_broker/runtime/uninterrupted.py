"""Work that a cancelled caller must not break off half way: its thread would go on, without the lock."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


async def uninterrupted(work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Await `work` to its end; a cancellation meanwhile takes effect after it."""
    task = asyncio.create_task(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # Nobody is left to hear of it.
        raise cancelled
    return task.result()
