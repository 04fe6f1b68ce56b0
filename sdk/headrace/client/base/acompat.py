"""Differences between an asyncio module and the blocking one that `tools/async_to_sync.py` generates from it."""

import asyncio
from collections.abc import Awaitable, Coroutine
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

Result = TypeVar("Result")

ASYNC = True
"""Code under `if ASYNC and ...:` is omitted from the blocking module; `if not ASYNC:` is for that module only."""

time_limit_async = asyncio.timeout
"""Context manager that is cancelled after some seconds."""


def time_limit(seconds: float) -> AbstractContextManager[None]:
    """Limit nothing: the blocking module's `time_limit_async`, as blocking calls have their own limits."""
    return nullcontext()


async def result_async(future: Awaitable[Any], seconds: float | None) -> Any:
    """Return the result of a future; raise `TimeoutError` after `seconds`, unless they are `None`."""
    async with asyncio.timeout(seconds):
        return await future


def result(future: Any, seconds: float | None) -> Any:
    """Return the result of a future; raise `TimeoutError` after `seconds`, unless they are `None`."""
    return future.result(seconds)


async def ashielded(work: Coroutine[Any, Any, Result]) -> Result:
    """Await `work`, which a cancellation of the caller does not end. The blocking module calls `work` directly."""
    return await asyncio.shield(asyncio.ensure_future(work))
