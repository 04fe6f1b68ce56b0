"""Progress line of a job on stderr: current step, progress of Spark, elapsed time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOK_SECONDS = 0.3
LINE_SECONDS = 10.0
"""Minimum interval of lines if stderr is not a terminal."""


class ProgressLine:
    """Current step of a job. Belongs to the job's thread; another thread polls Spark's progress."""

    def __init__(self, *, quiet: bool) -> None:
        self._console = Console(stderr=True, highlight=False, soft_wrap=True, quiet=quiet)
        columns = (TextColumn("{task.description}"), BarColumn(20), TaskProgressColumn(), TimeElapsedColumn())
        self._bar = Progress(*columns, console=self._console, transient=True)
        self._task: TaskID | None = None

    @contextmanager
    def shown(self) -> Iterator[ProgressLine]:
        """Show the line while the block runs."""
        if self._console.is_terminal:
            with self._bar:
                yield self
        else:
            yield self

    def step(self, text: str) -> None:
        """Set the text of the current step."""
        if not self._console.is_terminal:
            self._console.print(text)
            return
        if self._task is not None:
            self._bar.remove_task(self._task)
        self._task = self._bar.add_task(text, total=None)

    @contextmanager
    def following(self, spark: SparkSession) -> Iterator[None]:
        """Show the tasks that Spark completes while the block runs."""
        ended = threading.Event()
        thread = threading.Thread(target=self._follow, args=(spark, ended), name="progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _follow(self, spark: SparkSession, ended: threading.Event) -> None:
        tracker = spark.sparkContext.statusTracker()
        waited = 0.0
        while not ended.wait(LOOK_SECONDS):
            stages = [info for number in tracker.getActiveStageIds() if (info := tracker.getStageInfo(number))]
            done, total = sum(info.numCompletedTasks for info in stages), sum(info.numTasks for info in stages)
            if not total:
                continue
            if self._task is not None:
                self._bar.update(self._task, completed=done, total=total)
            waited += LOOK_SECONDS
            if not self._console.is_terminal and waited >= LINE_SECONDS:
                self._console.print(f"  {done} of {total} tasks")
                waited = 0.0
