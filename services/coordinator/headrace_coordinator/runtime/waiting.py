"""Waits for conditions on a view, without polling. Belongs to the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headrace_server.metadata_view import ClusterView


async def wait_until(view: ClusterView, shows: Callable[[], bool], deadline: float | None) -> bool:
    """Wait until `shows()` holds, checked after every change of the view; return False at `deadline`.

    The deadline is in loop time; `None` disables it.
    """
    if shows():
        return True
    changed = asyncio.Event()
    unsubscribe = view.subscribe(lambda revision, keys: changed.set())
    try:
        return await wait_for_changes(changed, shows, deadline)
    finally:
        unsubscribe()


async def wait_for_changes(changed: asyncio.Event, shows: Callable[[], bool], deadline: float | None) -> bool:
    """Wait until `shows()` holds, checked now and whenever `changed` is set; return False at `deadline`."""
    try:
        async with asyncio.timeout_at(deadline):
            while not shows():
                await changed.wait()
                changed.clear()
    except TimeoutError:
        return False
    return True
