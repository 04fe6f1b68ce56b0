"""Workers of several mirrors in one process, which also answer operators. One event loop."""

import asyncio
import logging
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from headrace.client.mirror.answers import answer
from headrace.client.mirror.copying import end_tasks
from headrace.client.mirror.mirrors_async import AsyncMirrors
from headrace.client.mirror.rows import MirrorDescription, SourceQuestion, mirror_names, open_questions
from headrace.client.mirror.worker import MirrorWorker
from headrace.wire.errors import HeadraceError

LOOK_SECONDS = 1.0
"""Interval at which new mirrors, and questions of operators, are looked for."""
_log = logging.getLogger("headrace.mirror")


async def run_workers(
    names: Sequence[str] | None,
    settings: dict[str, Any],
    worker_id: str = "",
    on_report: Callable[[str, MirrorDescription | None], object] = lambda name, described: None,
) -> None:
    """Copy mirrors of a cluster, and answer operators, until cancelled.

    Args:
        names: their names; `None` means all, also later ones.
        settings: of the cluster that has the mirrors, see `AdminConfig`.
        worker_id: name of this worker in reports; random by default.
        on_report: called with the name of a mirror and what its worker reports; `None` means nothing any more.
    """
    async with AsyncMirrors(**settings) as mirrors:
        process = _Workers(names, settings, mirrors, worker_id, on_report)
        try:
            told = ""
            while True:
                try:
                    await process.look()
                    told = ""
                except Exception as error:
                    if repr(error) != told:
                        _log.exception("the table of mirrors cannot be followed")
                    told = repr(error)
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            await process.stop()


class _Workers:
    """Workers of one process, and its answers to operators."""

    def __init__(
        self,
        names: Sequence[str] | None,
        settings: dict[str, Any],
        mirrors: AsyncMirrors,
        worker_id: str,
        on_report: Callable[[str, MirrorDescription | None], object],
    ) -> None:
        self._names, self._settings, self._mirrors = names, settings, mirrors
        self.worker_id = worker_id or uuid.uuid4().hex[:12]
        self._on_report = on_report
        self._copying: dict[str, asyncio.Task[None]] = {}
        self._answering: dict[str, asyncio.Task[None]] = {}
        """Answers by the key of their question, until its row is gone."""
        self._unreadable: set[str] = set()
        """Keys of the questions that cannot be read, until their rows are gone."""
        self._share(names or ())

    async def look(self) -> None:
        """Begin and end workers as mirrors are created and deleted, and answers as there are questions."""
        try:
            rows = await self._mirrors.rows(reports=False)
        except HeadraceError as error:
            _log.warning("the mirrors cannot be read: %s", error)
            return
        if self._names is None:
            names = mirror_names(rows)
            gone = [name for name in self._copying if name not in names]
            await end_tasks([self._copying.pop(name) for name in gone])
            for name in gone:
                self._on_report(name, None)
            self._share(names)
        await end_tasks([self._answering.pop(key) for key in list(self._answering) if key not in rows])
        self._unreadable &= rows.keys()
        for key, question in open_questions(rows, self.worker_id).items():
            if question is None:
                if key not in self._unreadable:
                    _log.warning("%s of the table of mirrors cannot be read, and is not answered", key)
                self._unreadable.add(key)
            elif key not in self._answering and (self._names is None or question.mirror in self._names):
                self._answering[key] = asyncio.create_task(self._answer(key, question))

    async def _answer(self, key: str, question: SourceQuestion) -> None:
        """Answer a question; where that cannot be stored, the next look tries again."""
        try:
            await answer(self._mirrors, key, self.worker_id, question, self._settings)
        except Exception as error:
            trace = None if isinstance(error, HeadraceError) else error
            _log.warning(
                "the answer about the source of mirror %s cannot be stored: %s", question.mirror, error, exc_info=trace
            )
            self._answering.pop(key, None)

    def _share(self, names: Sequence[str]) -> None:
        """Begin the workers of mirrors that have none."""
        for name in names:
            if name not in self._copying:
                worker = MirrorWorker(name, worker_id=self.worker_id, on_report=self._on_report, **self._settings)
                self._copying[name] = asyncio.create_task(worker.run())

    async def stop(self) -> None:
        """End all of it."""
        await end_tasks([*self._copying.values(), *self._answering.values()])
