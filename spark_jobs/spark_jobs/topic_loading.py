"""Loads a topic into a table: Spark writes the files of a range of offsets, which are committed with its end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import headrace
import pyarrow
from headrace.client.loading.explained import explained
from headrace.client.loading.formats import open_table
from headrace.client.loading.load_plan import Plan
from headrace.client.loading.load_target import LoadTarget
from headrace.client.loading.progress import TOLD_SECONDS, LoadedTopic, LoadProgress, Progress
from headrace.client.loading.tables.attempts import Attempt, begin, left_behind, table_lock
from headrace.client.loading.tables.places import AnyAttempt
from headrace.client.loading.topic_log import TopicLog

from spark_jobs.batch_spans import commit_span
from spark_jobs.command import JobError
from spark_jobs.load_options import Load
from spark_jobs.progress import ProgressLine
from spark_jobs.row_files import copy_files, write_rows
from spark_jobs.topic_frame import read_topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def load_topic(
    spark: SparkSession,
    wanted: Load,
    progress: ProgressLine,
    report: Progress = lambda _: None,
) -> LoadedTopic:
    """Load the records of the topic that are not in the table; if it follows, until Ctrl-C.

    `report` is called after each commit, and if the load follows also every 10 seconds without one.

    Raises:
        JobError: If Spark read another number of records, or the table cannot have their columns.
        LoadError: If records were removed before they were loaded, the table is ahead of the log, has another source or
            is in use, or the commit fails.
    """
    started = time.monotonic()
    with (
        explained(str(wanted.table)),
        headrace.Admin(bootstrap_servers=wanted.bootstrap_servers, client_id="load") as admin,
        contextlib.ExitStack() as stack,
    ):
        loading = _Loading(spark, wanted, TopicLog(admin, wanted.topic), stack)
        try:
            loading.run(progress, report)
        except KeyboardInterrupt:
            if wanted.every is None:
                raise
        summary = loading.finish()
    summary.seconds = round(time.monotonic() - started, 3)
    return summary


class _Loading:
    """Load of one topic. One thread; `stack` has the table's lock until it is closed."""

    def __init__(self, spark: SparkSession, wanted: Load, log: TopicLog, stack: contextlib.ExitStack) -> None:
        self._spark, self._wanted, self._log, self._stack = spark, wanted, log, stack
        self._summary = LoadedTopic(wanted.topic, str(wanted.table), wanted.format.value)
        self._typed = bool(log.columns())
        self._table = open_table(str(wanted.table), wanted.format, wanted.catalog, is_typed=self._typed)
        self._is_locked = False
        if not wanted.catalog or self._table.state().source is not None:
            self._lock()
        if wanted.is_elsewhere:
            assert wanted.staging is not None, "a table elsewhere has a directory for staging"
            stack.enter_context(table_lock(wanted.staging))
            for attempt in left_behind(wanted.staging):
                attempt.remove()
        self._target = LoadTarget(self._table, log.source, wanted.partition_by, self._summary)
        self._reached: Mapping[int, int] = self._target.positions

    def _lock(self) -> None:
        """Lock the table, if it is where that is possible. A table of a catalog has a place once it exists."""
        if not self._is_locked:
            self._is_locked = True
            self._stack.enter_context(self._table.place.lock())

    def run(self, progress: ProgressLine, report: Progress) -> None:
        """Load what there is; if the load follows, again and again."""
        told = time.monotonic()
        while True:
            began = time.monotonic()
            at = self._target.positions
            plan = self._log.plan(at, self._target.epochs_at(at), accept_data_loss=self._wanted.accept_loss)
            self._summary.lost += sum(loss.earliest - loss.wanted for loss in plan.losses)
            self._reached = plan.starts
            while plan.records:
                plan = self._load(plan, progress, report)
                told = time.monotonic()
            if self._wanted.every is None:
                return
            if time.monotonic() - told >= TOLD_SECONDS:
                report(self._progress(0, 0, 0.0))
                told = time.monotonic()
            time.sleep(max(0.0, began + self._wanted.every - time.monotonic()))

    def _load(self, plan: Plan, progress: ProgressLine, report: Progress) -> Plan:
        """Commit the first records of a plan; return the rest of it."""
        began = time.monotonic()
        ends = plan.first(self._wanted.commit_records)
        records = sum(ends.values()) - sum(plan.starts.values())
        progress.step(f"loading {records:,} of {plan.records:,} records")
        with progress.following(self._spark), commit_span(self._wanted.topic, records):
            rows, files = self._commit(plan.starts, ends, records)
        self._reached = ends
        report(self._progress(rows, files, time.monotonic() - began))
        return plan.after(ends)

    def _commit(self, starts: Mapping[int, int], ends: Mapping[int, int], records: int) -> tuple[int, int]:
        """Load a range of offsets and commit it; return the new rows and files."""
        staged = begin(self._wanted.staging if self._wanted.staging is not None else self._table.root)
        try:
            epochs = self._log.epochs(ends)  # Before the records are read: later, they may be replaced.
            attempt = self._write(staged, starts, ends, records)
        except BaseException:
            self._table.recover()
            raise
        finally:
            if self._wanted.staging is not None:
                staged.remove()
        return self._target.commit(attempt, ends, epochs)

    def _write(self, staged: Attempt, starts: Mapping[int, int], ends: Mapping[int, int], records: int) -> AnyAttempt:
        """Write the files of a range of offsets; return the attempt that has them where the table is."""
        wanted = self._wanted
        servers, is_lossy = wanted.bootstrap_servers, wanted.accept_loss
        frame = read_topic(self._spark, servers, wanted.topic, starts, ends, accept_loss=is_lossy, typed=self._typed)
        write_rows(frame, wanted, staged.data, keeps_columns=self._table.keeps_columns)
        files = staged.files()
        self._check_rows(sum(file.rows for file in files), records, starts, ends)
        self._log.check_source()
        if files:
            self._prepare(staged.columns(files[0]).remove_metadata())
        if wanted.staging is None:
            return staged
        attempt = self._table.place.begin()
        copy_files(staged, attempt)
        return attempt

    def _check_rows(self, rows: int, records: int, starts: Mapping[int, int], ends: Mapping[int, int]) -> None:
        """Check that no record is missing, except for those that retention removed, if that is accepted, and gaps of
        compaction.

        Raises:
            JobError: If one is.
        """
        earliest = self._log.offsets("earliest") if rows < records and self._wanted.accept_loss else {}
        removed = sum(max(0, min(earliest.get(number, 0), ends[number]) - start) for number, start in starts.items())
        if rows > records or (rows < records - removed and not self._log.is_compacted()):
            raise JobError(
                f"Spark read {rows:,} records where offsets say {records:,}; nothing was committed. "
                "If the topic was compacted before, load it with `headrace load`"
            )
        self._summary.lost += min(records - rows, removed)

    def _prepare(self, columns: pyarrow.Schema) -> None:
        """Create the table if that must be done before a commit; check that the columns of the rows have the types that
        they have in it. Further ones may be new.

        Raises:
            JobError: If one has another type, for example because the topic's column was widened.
        """
        self._table.prepare(columns, self._log.source, self._wanted.partition_by)
        self._lock()
        if found := self._table.conflicts(columns):
            raise JobError(f"{'; '.join(found)}: cast it by --select, or load into another directory")

    def _progress(self, rows: int, files: int, seconds: float) -> LoadProgress:
        return LoadProgress(self._wanted.topic, rows, files, seconds, self._log.progress(self._reached))

    def finish(self) -> LoadedTopic:
        """Return the summary."""
        self._target.state = self._table.state()  # An interrupted commit may have been made.
        self._summary.partitions = self._log.progress({**self._reached, **self._target.positions})
        return self._target.finish()
