"""What differs between an asyncio module and the blocking one that `tools/async_to_sync.py` makes of it."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")

ASYNC = True
"""What `if ASYNC and ...:` guards is left out of the blocking module; `if not ASYNC:` is for that one alone."""


async def ashielded(work: Coroutine[Any, Any, Result]) -> Result:
    """Await `work`, which a cancellation of the caller does not end. The blocking module has `work` alone."""
    return await asyncio.shield(asyncio.ensure_future(work))
