"""Coroutines that get a task only if they wait, as with `asyncio.eager_task_factory` of Python 3.12.

A task costs an iteration of the event loop before its first step, and another one after its last; most requests never
wait. Until it first waits, a coroutine is in no task: it must not use `asyncio.timeout` or a `TaskGroup` before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import copy_context
from typing import Any


class _Begun(Coroutine[Any, Any, None]):
    """Rest of a coroutine that has begun, and waits."""

    __slots__ = ("_coroutine", "_waits_for")

    def __init__(self, coroutine: Coroutine[Any, Any, None], waits_for: Any) -> None:
        self._coroutine = coroutine
        self._waits_for = [waits_for]
        """What the coroutine waits for, until the first step of the task."""

    def send(self, value: Any) -> Any:
        """See `Coroutine`."""
        return self._waits_for.pop() if self._waits_for else self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:
        """See `Coroutine`. A task that is cancelled before its first step cancels the coroutine where it waits."""
        self._waits_for.clear()
        return self._coroutine.throw(*error)

    def close(self) -> None:
        """See `Coroutine`."""
        self._coroutine.close()

    def __await__(self) -> Any:
        """See `Coroutine`."""
        raise NotImplementedError


def begin(coroutine: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop) -> asyncio.Task[None] | None:
    """Run a coroutine, in a context of its own, until it waits; return the task of the rest, `None` if it is over.

    Raises what the coroutine raises before it waits.
    """
    context = copy_context()
    try:
        waits_for = context.run(coroutine.send, None)
    except StopIteration:
        return None
    return loop.create_task(_Begun(coroutine, waits_for), context=context)
