"""What differs between an asyncio module and the blocking one that `tools/async_to_sync.py` makes of it."""

import asyncio
from collections.abc import Awaitable, Coroutine
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

Result = TypeVar("Result")

ASYNC = True
"""What `if ASYNC and ...:` guards is left out of the blocking module; `if not ASYNC:` is for that one alone."""

time_limit_async = asyncio.timeout
"""A block that is cancelled after some seconds."""


def time_limit(seconds: float) -> AbstractContextManager[None]:
    """The blocking module's `time_limit_async` limits nothing: blocking calls have limits of their own."""
    return nullcontext()


async def result_async(future: Awaitable[Any], seconds: float) -> Any:
    """Return the result of a future; raise `TimeoutError` if there is none within some seconds."""
    async with asyncio.timeout(seconds):
        return await future


def result(future: Any, seconds: float) -> Any:
    """Return the result of a future; raise `TimeoutError` if there is none within some seconds."""
    return future.result(seconds)


async def ashielded(work: Coroutine[Any, Any, Result]) -> Result:
    """Await `work`, which a cancellation of the caller does not end. The blocking module has `work` alone."""
    return await asyncio.shield(asyncio.ensure_future(work))
