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
from headrace.client.loading.load_target import LoadTarget
from headrace.client.loading.progress import LoadedTopic, LoadProgress
from headrace.client.loading.row_writer import RowWriter
from headrace.client.loading.tables.errors import LoadError
from headrace.client.loading.tables.places import AnyAttempt
from headrace.client.loading.topic_log import TopicLog
from headrace.wire.typed.payload import Directory
from headrace.wire.typed.topic_columns import TopicColumn, TopicColumns, parse_columns

if TYPE_CHECKING:
    from headrace.client.admin.admin import Admin
    from headrace.client.loading.load import LoadOptions

COLUMNS_SECONDS = 30.0
"""Maximum wait for a coordinator that does not have the columns of records yet."""
LOOK_AGAIN_SECONDS = 0.1
MAX_KNOWN_TEXTS = 100
"""Maximum number of producers' columns that are remembered as seen."""


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
        self._read_epochs: dict[int, tuple[int, int]] = {}
        """End of the last batch that was read, and its leader epoch."""
        self._options = options
        self._attempt: AnyAttempt | None = None
        self._writer: RowWriter | None = None
        self.log = TopicLog(admin, topic)
        self._columns_text = self.log.columns()
        self._table = open_table(to, LoadFormat(options.format), options.catalog, is_typed=bool(self._columns_text))
        self._set_columns()
        self._table.prepare(self._columns, self.log.source, options.partition_by)
        self._place = self._table.place
        stack.enter_context(self._place.lock())
        stack.callback(self.abandon)
        self._target = LoadTarget(self._table, self.log.source, options.partition_by, self.summary)
        self._check_columns()

    # --- reading ---

    def starts(self) -> dict[int, int]:
        """Return where to begin in each partition, also in new ones.

        Raises:
            LoadError: If records were removed before they were loaded, or the log ends before the table's position.
        """
        known = self._target.positions
        at = {**known, **self.positions}
        plan = self.log.plan(at, self._epochs_at(at), accept_data_loss=self._options.accept_data_loss)
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

    def add(self, decoded: DecodedBatch, end: int | None) -> LoadProgress | None:
        """Write records to the open files, as far as they are below `end`.

        At a change of columns commit the rows before, and return what was committed.

        Raises:
            LoadError: If the table cannot have their columns.
        """
        if end is not None and decoded.end_offset > end:
            decoded = decoded.cut(0, bisect_left(decoded.offsets(), end))
        if decoded.is_empty:
            return None
        committed = None
        if decoded.columns.typed is not None:
            committed = self._follow_columns(decoded, decoded.columns.typed.directory)
        if self._writer is None:
            self._attempt = self._place.begin()
            self._writer = RowWriter(
                self._attempt, self._columns, self._directories, keeps_columns=self._table.keeps_columns
            )
        self._writer.write(self._rows(decoded))
        self.positions[decoded.source.partition] = decoded.end_offset
        self._read_epochs[decoded.source.partition] = decoded.end_offset, decoded.leader_epoch
        return committed

    def _rows(self, decoded: DecodedBatch) -> Any:
        if self._typed is None:
            return batch_of(decoded)
        return typed_batch_of(decoded, self._typed_columns, self._typed_schema)

    def _positions_before(self, decoded: DecodedBatch) -> dict[int, int]:
        return {**self.positions, decoded.source.partition: decoded.base_offset}

    def _epochs_at(self, positions: Mapping[int, int]) -> dict[int, int]:
        """Return the leader epochs of the records before `positions`, as far as known."""
        ends = self._read_epochs.items()
        read = {number: epoch for number, (end, epoch) in ends if positions.get(number) == end and epoch >= 0}
        return self._target.epochs_at(positions) | read

    # --- committing ---

    def commit(self) -> LoadProgress | None:
        """Commit the rows and the positions; return what was committed, `None` if there is nothing new.

        Raises:
            LoadError: If the topic is another one now, or the commit failed.
        """
        unchanged = self._target.positions == self.positions
        if self._writer is None and (unchanged or not self._target.state.version):
            return None
        return self._commit(self.positions)

    def _commit(self, positions: Mapping[int, int]) -> LoadProgress:
        started = time.monotonic()
        if self._attempt is None:
            self._attempt = self._place.begin()
        if self._writer is not None:
            self._writer.close()
        self.log.check_source()
        attempt, self._attempt, self._writer = self._attempt, None, None
        rows, files = self._target.commit(attempt, positions, self._epochs_at(positions))
        return self.progress(rows, files, time.monotonic() - started)

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
        return self._target.finish()

    def progress(self, rows: int = 0, files: int = 0, seconds: float = 0.0) -> LoadProgress:
        """Return how far each partition is behind its log, with the figures of a commit."""
        parts = self.log.progress({**self.positions, **self._target.positions})
        return LoadProgress(self.topic, rows, files, seconds, parts)

    # --- columns ---

    def _set_columns(self) -> None:
        names: Sequence[str] = UNTYPED
        self._typed: TopicColumns | None = None
        schema = untyped_columns()
        if self._columns_text:
            self._typed = parse_columns(self._columns_text)
            self._known_texts = {self._typed.batch_text}
            names = [*(column.name for column in self._typed.current), *METADATA]
            self._typed_columns = typed_columns_of(self._typed.current, names)
            schema = self._typed_schema = typed_schema(self._typed_columns)
        self._columns = file_columns(schema, LoadFormat(self._options.format))
        self._directories = Directories(
            self._options.partition_by, self._columns, has_empty_text=self._table.keeps_columns
        )

    def _follow_columns(self, decoded: DecodedBatch, directory: Directory) -> LoadProgress | None:
        """Look up the columns if those of the producer, which may be older or newer, have not been seen yet.

        Return the commit of the rows before, if they have others.

        Raises:
            LoadError: If the table cannot have the columns of now, or coordinators do not have those of the producer.
        """
        if directory.text in self._known_texts:
            return None
        before, committed = self._columns_text, None
        self._renew_columns(directory.columns.columns)
        if self._columns_text != before:
            if self._writer is not None:
                committed = self._commit(self._positions_before(decoded))
            self._check_columns()
        if len(self._known_texts) >= MAX_KNOWN_TEXTS:
            self._known_texts.clear()
        self._known_texts.add(directory.text)
        return committed

    def _renew_columns(self, written: Sequence[TopicColumn]) -> None:
        """Look up the columns until they have those of a producer: a coordinator may be late.

        Raises:
            LoadError: If they do not have them after half a minute.
        """
        deadline = time.monotonic() + COLUMNS_SECONDS
        while True:
            self._columns_text = self.log.columns()
            self._set_columns()
            if not any(map(self._lacks, written)):
                return
            if time.monotonic() >= deadline:
                raise LoadError(
                    f"records of {self.topic} have a column, or values of one, that coordinators do not have; run the "
                    "load again, which continues"
                )
            time.sleep(LOOK_AGAIN_SECONDS)

    def _lacks(self, written: TopicColumn) -> bool:
        """Return whether a column is not known, or would lose digits. Casts between other types fail at a loss."""
        known = None if self._typed is None else self._typed.by_id(written.id)
        if known is None:
            return True
        return not known.is_dropped and (known.type.name, written.type.name) == ("float", "double")

    def _check_columns(self) -> None:
        """Check that the columns have the types that they have in the table; further ones may be new.

        Raises:
            LoadError: If one has another type, for example because the topic's column was widened.
        """
        if found := self._table.conflicts(self._columns):
            raise LoadError(f"{'; '.join(found)}: load {self.topic} into another table from now on")
