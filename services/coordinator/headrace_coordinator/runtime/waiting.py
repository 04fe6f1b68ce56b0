"""Waits for a view to show something, woken by its changes: no polling. Belongs to the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headrace_server.metadata_view import ClusterView


async def wait_until(view: ClusterView, shows: Callable[[], bool], deadline: float | None) -> bool:
    """Return True once `shows()` holds, which is asked after every change of the view; False at `deadline`.

    The deadline is the event loop's time; None: wait as long as it takes.
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
    """Return True once `shows()` holds, which is asked now and whenever `changed` is set; False at `deadline`."""
    try:
        async with asyncio.timeout_at(deadline):
            while not shows():
                await changed.wait()
                changed.clear()
    except TimeoutError:
        return False
    return True
