"""Tests that are coroutines: each runs in an event loop of its own, and ends within `WAIT_SECONDS`, or the
`ASYNC_SECONDS` of its module."""

from __future__ import annotations

import asyncio
import inspect
from contextlib import AsyncExitStack, _AsyncGeneratorContextManager
from types import TracebackType

import pytest

WAIT_SECONDS = 60.0


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine function, and see that it leaves no task behind.

    A fixture that returns an asynchronous context manager gives what that yields.
    """
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    seconds = getattr(pyfuncitem.module, "ASYNC_SECONDS", WAIT_SECONDS)
    given = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}

    async def run() -> None:
        async with asyncio.timeout(seconds), AsyncExitStack() as stack:
            stack.push_async_exit(_no_task_is_left)
            for name, value in given.items():
                if isinstance(value, _AsyncGeneratorContextManager):
                    given[name] = await stack.enter_async_context(value)
            await pyfuncitem.obj(**given)

    asyncio.run(run())
    return True


async def _no_task_is_left(
    kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
) -> None:
    """Wait for the tasks that are left; those of a test that failed do not hide why it did."""
    left = [
        task for task in asyncio.all_tasks() if task is not asyncio.current_task() and "site-packages" not in repr(task)
    ]
    if left and error is None:
        await asyncio.wait(left, timeout=WAIT_SECONDS / 4)
        assert not [task for task in left if not task.done()]
