"""Differences between an asyncio module and the blocking one that `tools/async_to_sync.py` generates from it."""

from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from typing import Any, TypeVar

Result = TypeVar("Result")

ASYNC = True
"""Code under `if ASYNC and ...:` is omitted from the blocking module; `if not ASYNC:` is for that module only."""


def time_limit_async(seconds: float) -> AbstractAsyncContextManager[Any]:
    """Limit the time of an asyncio block. The blocking modules import this one, and no asyncio."""
    import asyncio

    return asyncio.timeout(seconds)


def time_limit(seconds: float) -> AbstractContextManager[None]:
    """Limit nothing: the blocking module's `time_limit_async`, as blocking calls have their own limits."""
    return nullcontext()


async def result_async(future: Awaitable[Any], seconds: float | None) -> Any:
    """Return the result of a future; raise `TimeoutError` after `seconds`, unless they are `None`."""
    import asyncio

    async with asyncio.timeout(seconds):
        return await future


def result(future: Any, seconds: float | None) -> Any:
    """Return the result of a future; raise `TimeoutError` after `seconds`, unless they are `None`."""
    return future.result(seconds)


async def ashielded(work: Coroutine[Any, Any, Result]) -> Result:
    """Await `work`, which a cancellation of the caller does not end. The blocking module calls `work` directly."""
    import asyncio

    return await asyncio.shield(asyncio.ensure_future(work))


def call(function: Callable[..., Result], *arguments: Any) -> Result:
    """Call a function that blocks."""
    return function(*arguments)


async def acall(function: Callable[..., Result], *arguments: Any) -> Result:
    """Call a function that blocks, on another thread."""
    import asyncio

    return await asyncio.to_thread(function, *arguments)
