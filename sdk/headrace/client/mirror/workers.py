"""Workers of several mirrors in one process. One event loop."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from headrace.client.mirror.copying import end_tasks
from headrace.client.mirror.mirrors_async import AsyncMirrors
from headrace.client.mirror.rows import MirrorDescription
from headrace.client.mirror.worker import MirrorWorker
from headrace.wire.errors import HeadraceError

LOOK_SECONDS = 5.0
"""Interval at which new mirrors are looked for."""
_log = logging.getLogger("headrace.mirror")


async def run_workers(
    names: Sequence[str] | None,
    settings: dict[str, Any],
    worker_id: str = "",
    on_report: Callable[[str, MirrorDescription | None], object] = lambda name, described: None,
) -> None:
    """Copy mirrors of a cluster until cancelled.

    Args:
        names: their names; `None` means all, also later ones.
        settings: of the cluster that has the mirrors, see `AdminConfig`.
        worker_id: name of this worker in reports; random by default.
        on_report: called with the name of a mirror and what its worker reports; `None` means nothing any more.
    """
    tasks: dict[str, asyncio.Task[None]] = {}

    def begin(name: str) -> None:
        worker = MirrorWorker(name, worker_id=worker_id, on_report=on_report, **settings)
        tasks[name] = asyncio.create_task(worker.run())

    try:
        async with AsyncMirrors(**settings) as mirrors:
            for name in names or ():
                begin(name)
            while True:
                if names is None:
                    await _follow(mirrors, tasks, begin, on_report)
                await asyncio.sleep(LOOK_SECONDS)
    finally:
        await end_tasks(tasks.values())


async def _follow(
    mirrors: AsyncMirrors,
    tasks: "dict[str, asyncio.Task[None]]",
    begin: Callable[[str], None],
    on_report: Callable[[str, MirrorDescription | None], object],
) -> None:
    """Begin and end workers as mirrors are created and deleted."""
    try:
        found = {mirror.name for mirror in await mirrors.list_mirrors()}
    except HeadraceError as error:
        _log.warning("the mirrors cannot be read: %s", error)
        return
    for name in found - set(tasks):
        begin(name)
    gone = set(tasks) - found
    await end_tasks([tasks.pop(name) for name in gone])
    for name in gone:
        on_report(name, None)
