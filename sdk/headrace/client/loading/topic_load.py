"""One topic on its way into one table: rows that were read and are not committed yet, and the positions after them."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from headrace.client.base.arrow_tables import batch_of, typed_batch_of, typed_columns_of, typed_schema
from headrace.client.base.records import DecodedBatch
from headrace.client.loading.columns import METADATA, UNTYPED, Directories, file_columns, untyped_columns
from headrace.client.loading.formats import LoadFormat, open_table
from headrace.client.loading.progress import LoadedTopic, LoadProgress, PartitionProgress
from headrace.client.loading.row_writer import RowWriter
from headrace.client.loading.tables.errors import LoadError
from headrace.client.loading.tables.places import AnyAttempt
from headrace.client.loading.tables.state import TableState
from headrace.client.loading.topic_log import TopicLog
from headrace.wire.ids import TopicPartition
from headrace.wire.typed.topic_columns import TopicColumns, parse_columns

if TYPE_CHECKING:
    from headrace.client.admin.admin import Admin
    from headrace.client.loading.load import LoadOptions

COMPACTION_FILES = 32
"""Number of new files after which small ones are looked for."""


class TopicLoad:
    """Load of one topic. One thread; `stack` has the table's lock until it is closed."""

    def __init__(self, admin: Admin, topic: str, to: str, options: LoadOptions, stack: ExitStack) -> None:
        """Lock the table, and complete or undo the work of a killed load.

        Raises:
            LoadError: If the table is in use, has another source, or cannot be written.
            UnknownTopicError: If the topic does not exist.
        """
        self.topic = topic
        self.summary = LoadedTopic(topic, to, options.format)
        self.positions: dict[int, int] = {}
        """Offset of the next record to read, by partition."""
        self._admin = admin
        self._options = options
        self._attempt: AnyAttempt | None = None
        self._writer: RowWriter | None = None
        self._new_files = COMPACTION_FILES
        self.log = TopicLog(admin, topic)
        self._columns_text = self.log.columns()
        self._table = open_table(to, LoadFormat(options.format), options.catalog, is_typed=bool(self._columns_text))
        self._set_columns()
        self._table.prepare(self._columns, self.log.source, options.partition_by)
        self._place = self._table.place
        stack.enter_context(self._place.lock())
        stack.callback(self.abandon)
        self._table.recover()
        self._state = self._table.state()
        self._state.check_source(self.log.source)
        self._state.check_partitioning(options.partition_by)
        self._check_columns()

    # --- reading ---

    def starts(self) -> dict[int, int]:
        """Return where to begin in each partition, also in new ones.

        Raises:
            LoadError: If records were removed before they were loaded, or the log ends before the table's position.
        """
        known = {int(partition): offset for partition, offset in self._state.positions.items()}
        plan = self.log.plan({**known, **self.positions}, accept_data_loss=self._options.accept_data_loss)
        self.summary.lost += sum(loss.earliest - loss.wanted for loss in plan.losses)
        self.positions = dict(plan.starts)
        return self.positions

    @property
    def bytes(self) -> int:
        """Size of the rows that are not committed yet."""
        return 0 if self._writer is None else self._writer.bytes

    @property
    def rows(self) -> int:
        """Number of the rows that are not committed yet."""
        return 0 if self._writer is None else self._writer.rows

    def add(self, decoded: DecodedBatch, end: int | None) -> None:
        """Write records to the open files, as far as they are below `end`. A new column ends the commit before it.

        Raises:
            LoadError: If the table cannot have their columns.
        """
        if end is not None and decoded.end_offset > end:
            decoded = decoded.cut(0, bisect_left(decoded.offsets(), end))
        if decoded.is_empty:
            return
        typed = decoded.columns.typed  # Has the columns of the producer, which may be newer than the reader's.
        if typed is not None and _newest_id(typed.columns) > self._newest_id:
            self._columns_text = self.log.columns()
            self._set_columns()
            if self._writer is not None:
                self._commit(self._positions_before(decoded))
            self._check_columns()
        if self._writer is None:
            self._attempt = self._place.begin()
            self._writer = RowWriter(
                self._attempt, self._columns, self._directories, keeps_columns=self._table.keeps_columns
            )
        self._writer.write(self._rows(decoded))
        self.positions[decoded.source.partition] = decoded.end_offset

    def _rows(self, decoded: DecodedBatch) -> Any:
        if self._typed is None:
            return batch_of(decoded)
        return typed_batch_of(decoded, self._typed_columns, self._typed_schema)

    def _positions_before(self, decoded: DecodedBatch) -> dict[int, int]:
        return {**self.positions, decoded.source.partition: decoded.base_offset}

    # --- committing ---

    def commit(self) -> LoadProgress | None:
        """Commit the rows and the positions; return what was committed, `None` if there is nothing new.

        Raises:
            LoadError: If the topic is another one now, or the commit failed.
        """
        unchanged = {int(partition): at for partition, at in self._state.positions.items()} == self.positions
        if self._writer is None and (unchanged or not self._state.version):
            return None
        return self._commit(self.positions)

    def _commit(self, positions: Mapping[int, int]) -> LoadProgress:
        started = time.monotonic()
        before = self._state
        if self._attempt is None:
            self._attempt = self._place.begin()
        if self._writer is not None:
            self._writer.close()
        self.log.check_source()
        attempt, self._attempt, self._writer = self._attempt, None, None
        try:
            named = {str(partition): offset for partition, offset in positions.items()}
            partition_by = self._options.partition_by
            self._state = after = self._table.commit(attempt, self.log.source, named, partition_by, after=before)
        except BaseException:
            # Whether it is committed is in the table: nothing else may decide what is removed.
            self._table.recover()
            raise
        self._add_up(before, after)
        self._compact(after.files - before.files)
        return self.progress(after.rows - before.rows, after.files - before.files, time.monotonic() - started)

    def _compact(self, files: int) -> None:
        self._new_files += files
        if self._new_files >= COMPACTION_FILES:
            self._new_files = 0
            if replaced := self._table.compact():
                self.summary.compacted += replaced
                self._state = self._table.state()

    def _add_up(self, before: TableState, after: TableState) -> None:
        self.summary.commits += 1
        self.summary.rows += after.rows - before.rows
        self.summary.bytes += after.bytes - before.bytes
        self.summary.files += after.files - before.files

    def abandon(self) -> None:
        """Remove the files of rows that are not committed."""
        if self._writer is not None:
            self._writer.abandon()
        if self._attempt is not None:
            self._attempt.discard()
        self._attempt = self._writer = None

    def finish(self) -> LoadedTopic:
        """Return the summary."""
        self.summary.partitions = self.progress().partitions
        self.summary.table_rows, self.summary.table_files = self._state.rows, self._state.files
        self.summary.table_bytes = self._state.bytes
        return self.summary

    def progress(self, rows: int = 0, files: int = 0, seconds: float = 0.0) -> LoadProgress:
        """Return how far each partition is behind its log, with the figures of a commit."""
        starts, ends = self.log.offsets("earliest"), self.log.offsets("latest")
        positions = {
            number: self._state.positions.get(str(number), at) for number, at in sorted(self.positions.items())
        }
        behind = {number: at for number, at in positions.items() if at < ends.get(number, 0)}
        oldest = {number: max(at, starts.get(number, 0)) for number, at in behind.items()}
        times = self._admin.record_times(self.topic, oldest) if oldest else {}
        now_ms = time.time_ns() // 1_000_000
        found = []
        for number, position in positions.items():
            at_ms = times.get(TopicPartition(self.topic, number))
            lag_ms = 0 if number not in behind else None if at_ms is None else max(0, now_ms - at_ms)
            lag = max(0, ends[number] - position) if number in ends else None
            found.append(PartitionProgress(number, position, lag, lag_ms))
        return LoadProgress(self.topic, rows, files, seconds, tuple(found))

    # --- columns ---

    def _set_columns(self) -> None:
        names: Sequence[str] = UNTYPED
        self._typed: TopicColumns | None = None
        schema = untyped_columns()
        if self._columns_text:
            self._typed = parse_columns(self._columns_text)
            self._newest_id = _newest_id(self._typed.columns)
            names = [*(column.name for column in self._typed.current), *METADATA]
            self._typed_columns = typed_columns_of(self._typed.current, names)
            schema = self._typed_schema = typed_schema(self._typed_columns)
        self._columns = file_columns(schema, LoadFormat(self._options.format))
        self._directories = Directories(
            self._options.partition_by, self._columns, has_empty_text=self._table.keeps_columns
        )

    def _check_columns(self) -> None:
        """Check that the columns have the types that they have in the table; further ones may be new.

        Raises:
            LoadError: If one has another type, for example because the topic's column was widened.
        """
        if found := self._table.conflicts(self._columns):
            raise LoadError(f"{'; '.join(found)}: load {self.topic} into another table from now on")


def _newest_id(columns: Sequence[Any]) -> int:
    return max((column.id for column in columns), default=0)
