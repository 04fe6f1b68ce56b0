"""`headrace.load`: topics as tables of Parquet, Delta or Iceberg, by this process alone.

headrace.load("clicks", to="/data/clicks")                    # what there is now; the next call continues
headrace.load("clicks", to="s3://lake/clicks", format="delta", follow=True, stop=event)

Each commit of a table has rows and the positions after them, so that every record is in it once, whatever is killed
when.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Literal, Unpack

from headrace.client.admin.admin import Admin
from headrace.client.base.config import AdminConfig, build
from headrace.client.base.errors import ConfigError
from headrace.client.base.settings_types import AdminSettings
from headrace.client.consumer.consumer import Consumer
from headrace.client.loading.explained import explained
from headrace.client.loading.progress import TOLD_SECONDS, LoadedTopic, LoadProgress, Progress
from headrace.display.progress import progress_bar
from headrace.wire.errors import OffsetOutOfRangeError
from headrace.wire.ids import TopicPartition

if TYPE_CHECKING:
    from headrace.client.loading.topic_load import TopicLoad

FORMATS = ("parquet", "delta", "iceberg")
EVERY_SECONDS = 5.0
MAX_BYTES = 256 << 20
POLL_SECONDS = 0.25
"""Maximum wait for records, after which `stop` is looked at."""
LOOK_SECONDS = 30.0
"""Interval at which new partitions are looked for."""
FETCH_BYTES = 4 << 20
PREFETCH_BYTES = 8 << 20
"""What is read ahead must fit into a small process."""


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """Options of a load; see `load`."""

    format: str
    catalog: str
    partition_by: tuple[str, ...]
    every: float
    max_bytes: int
    accept_data_loss: bool


def load(
    *topics: str,
    to: str | os.PathLike[str],
    format: Literal["parquet", "delta", "iceberg"] = "parquet",
    catalog: str = "",
    partition_by: Sequence[str] = ("event_hour",),
    follow: bool = False,
    every: float = EVERY_SECONDS,
    max_bytes: int = MAX_BYTES,
    until: int | datetime | None = None,
    accept_data_loss: bool = False,
    on_corrupt_batch: Literal["fail", "skip"] = "fail",
    stop: threading.Event | None = None,
    progress: Progress | None = None,
    **settings: Unpack[AdminSettings],
) -> list[LoadedTopic]:
    """Load topics into tables, each from where its table ends, and return a summary for each.

    Rows and positions are committed together: if the process is killed, the next load continues without a gap or a
    duplicate. A typed topic's table has its columns and `_partition`, `_offset`, `_timestamp`, `_key`; that of another
    topic has `key`, `value`, `topic`, `partition`, `offset`, `timestamp`, `headers`. Tables in directories are those of
    `spark_jobs.load`, which can continue them.

    Args:
        topics: names of topics.
        to: directory or URL of the table (`s3://` for Delta); of several topics, each has a table of its name in it.
        format: of the tables. Delta needs `headrace[delta]`, Iceberg `headrace[iceberg]`.
        catalog: of Iceberg: name of a catalog in pyiceberg's configuration; `to` is the table's name in it,
            `namespace.table`, or of several topics the namespace. Empty: a catalog in the directory.
        partition_by: columns by whose values the table has directories; `event_hour` is the hour of the record's time.
        follow: load new records until `stop` is set; otherwise, what there is at the beginning.
        every: maximum time in seconds for which rows wait for their commit, when following.
        max_bytes: size of rows in memory terms from which they are committed.
        until: end of the load in each partition: an offset, or the time of the first record that is not loaded.
        accept_data_loss: continue where the log begins if retention removed records that were not loaded.
        on_corrupt_batch: whether a batch that cannot be decoded ends the load, or is skipped and logged.
        stop: ends the load from another thread; what was read is committed.
        progress: called after each commit, and when following also every 10 seconds without one.
        settings: see `AdminConfig`.

    Raises:
        LoadError: If a table is in use, has another source or other columns, or cannot be written; or records were
            removed before they were loaded.
        CorruptBatchError: If a batch cannot be decoded.
        UnknownTopicError: If a topic does not exist.
        NoBrokersAvailableError: If no address responded.
    """
    build(AdminConfig, settings)
    if not topics or len(set(topics)) < len(topics):
        raise ConfigError("name the topics to load, each once")
    if format not in FORMATS:
        raise ConfigError(f"format={format!r} is not one of {', '.join(FORMATS)}")
    if until is not None and follow:
        raise ConfigError("until and follow exclude each other: a load that follows has no end")
    try:
        from headrace.client.loading.topic_load import TopicLoad
    except ImportError as error:
        raise ConfigError(f"loading needs {error.name}", action="Run `pip install 'headrace[load]'`.") from error
    options = LoadOptions(format, catalog, tuple(partition_by), every, max_bytes, accept_data_loss)
    started = time.monotonic()
    with explained(os.fspath(to)), ExitStack() as stack:
        admin = stack.enter_context(Admin(**settings))
        loads = [
            TopicLoad(admin, topic, _target(os.fspath(to), topic, options, len(topics)), options, stack)
            for topic in topics
        ]
        consumer = Consumer(
            auto_offset_reset="error",
            fetch_max_bytes=FETCH_BYTES,
            max_poll_bytes=FETCH_BYTES,
            prefetch_bytes=PREFETCH_BYTES,
            on_corrupt_batch=on_corrupt_batch,
            **settings,
        )
        stack.callback(consumer.close)
        loading = _Loading(consumer, loads, options, progress)
        loading.run(None if follow else _ends(loads, until), stop or threading.Event())
        summaries = [each.finish() for each in loads]
    for summary in summaries:
        summary.seconds = round(time.monotonic() - started, 3)
    return summaries


class _Loading:
    """Reads all topics with one consumer. One thread."""

    def __init__(
        self,
        consumer: Consumer,
        loads: Sequence[TopicLoad],
        options: LoadOptions,
        progress: Progress | None,
    ) -> None:
        self._consumer = consumer
        self._loads = {each.topic: each for each in loads}
        self._options = options
        self._progress = progress
        self._looked_at = 0.0
        self._told_at = time.monotonic()

    def run(self, ends: Mapping[TopicPartition, int] | None, stop: threading.Event) -> None:
        """Load up to `ends`, or with `None` until `stop`; then commit what was read."""
        self._assign(ends)
        total = self._left(ends)
        with progress_bar(f"load {', '.join(self._loads)}", "records", total) as bar:
            since: float | None = None
            while not stop.is_set() and self._left(ends) != 0:
                self._read(ends)
                now = time.monotonic()
                if since is None and any(each.rows for each in self._loads.values()):
                    since = now
                is_late = ends is None and since is not None and now - since >= self._options.every
                if is_late or sum(each.bytes for each in self._loads.values()) >= self._options.max_bytes:
                    self._commit()
                    since = None
                if total is not None:
                    bar.reach(total - (self._left(ends) or 0))
                    continue
                if now - self._looked_at >= LOOK_SECONDS:
                    self._assign(ends)
                self._tell()
            self._commit()

    def _assign(self, ends: Mapping[TopicPartition, int] | None) -> None:
        """Read the partitions of `ends`, or with `None` all, also new ones, from where they are loaded to."""
        self._looked_at = time.monotonic()
        wanted = {}
        for topic, each in self._loads.items():
            if set(each.log.offsets("latest")) != set(each.positions):
                each.starts()
            places = {TopicPartition(topic, number): at for number, at in each.positions.items()}
            wanted.update({tp: at for tp, at in places.items() if ends is None or tp in ends})
        if set(wanted) != set(self._consumer.assignment()):
            self._consumer.assign(wanted)

    def _read(self, ends: Mapping[TopicPartition, int] | None) -> None:
        try:
            batch = self._consumer.poll(POLL_SECONDS)
        except OffsetOutOfRangeError:
            # Retention has removed records meanwhile: an error, or a loss that was accepted.
            starts = {topic: each.starts() for topic, each in self._loads.items()}
            for where in self._consumer.assignment():  # Without partitions that were added since.
                self._consumer.seek(where, starts[where.topic][where.partition])
            return
        for decoded in batch.decoded_batches:
            end = None if ends is None else ends[decoded.source]
            self._report(self._loads[decoded.source.topic].add(decoded, end))
        for where in self._consumer.assignment():
            at = self._consumer.position(where)
            if ends is not None and at >= ends[where]:
                self._consumer.pause(where)
                at = max(ends[where], self._loads[where.topic].positions[where.partition])
            self._loads[where.topic].positions[where.partition] = at

    def _left(self, ends: Mapping[TopicPartition, int] | None) -> int | None:
        """Return how many offsets are left up to `ends`; `None` without an end."""
        if ends is None:
            return None
        return sum(max(0, end - self._loads[tp.topic].positions[tp.partition]) for tp, end in ends.items())

    def _commit(self) -> None:
        for each in self._loads.values():
            self._report(each.commit())

    def _report(self, committed: LoadProgress | None) -> None:
        if committed is not None and self._progress is not None:
            self._told_at = time.monotonic()
            self._progress(committed)

    def _tell(self) -> None:
        """Tell that there was no commit for a while."""
        if self._progress is not None and time.monotonic() - self._told_at >= TOLD_SECONDS:
            self._told_at = time.monotonic()
            for each in self._loads.values():
                self._progress(each.progress())


def _target(to: str, topic: str, options: LoadOptions, topics: int) -> str:
    if topics == 1:
        return to
    return f"{to}.{topic}" if options.catalog else f"{to.rstrip('/')}/{topic}"


def _ends(loads: Sequence[TopicLoad], until: int | datetime | None) -> dict[TopicPartition, int]:
    ends = {}
    for each in loads:
        latest = each.log.offsets("latest")
        if isinstance(until, datetime):
            before = each.log.offsets(until)
            latest = {number: min(end, before[number]) for number, end in latest.items()}
        elif until is not None:
            latest = {number: min(end, until) for number, end in latest.items()}
        ends.update({TopicPartition(each.topic, number): end for number, end in latest.items()})
    return ends
