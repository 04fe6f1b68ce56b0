"""Rows of a table in responses: which columns a read wants, and how much fits. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from headrace.partition.batch_cache import RecordValue
from headrace.partition.table_state import ALL_COLUMNS, ColumnSlice, RowOffsets
from headrace.v1 import tables_pb2
from headrace.wire.errors import InvalidRequestError
from headrace.wire.table_keys import ABSENT, check_column

MAX_KEYS = 10_000
"""Maximum keys of one GetRows."""
PAGE_ROWS = 1_000
"""Maximum rows of a page of ScanRows."""
MAX_COLUMNS = 20_000
"""Maximum columns of a row in one answer."""
COLUMNS_AT_ONCE = 300
"""Columns whose values are read at a time, unless these are large: a few milliseconds."""
MAX_ANSWER_BYTES = 3 << 20
"""Bytes of keys, names and values of an answer; its first column may exceed them."""
_COLUMN_BYTES = 24
_ROW_BYTES = 16


class WantedColumns(NamedTuple):
    """Columns of each row that a read returns."""

    columns: ColumnSlice
    limit: int


class FoundRow(NamedTuple):
    """Row as of one moment: its columns with their offsets, and whether more follow."""

    key: bytes
    version: int
    columns: list[tuple[bytes, int]]
    next_column: bytes | None


def wanted_columns(said: tables_pb2.ColumnSlice) -> WantedColumns:
    """Check and convert a part of a request. Raises InvalidRequestError."""
    names: Sequence[bytes] = [check_column(name) for name in said.names]
    if names and (said.start or said.HasField("end")):
        raise InvalidRequestError("columns are given by their names or by a range, not by both")
    if said.limit < 0:
        raise InvalidRequestError(f"a limit of {said.limit} columns is negative")
    end = said.end if said.HasField("end") else None
    columns = ColumnSlice(tuple(names), said.start, end)
    limit = min(said.limit or MAX_COLUMNS, MAX_COLUMNS)
    return WantedColumns(ALL_COLUMNS if columns.is_all else columns, limit)


def look_up(state: RowOffsets, key: bytes, wanted: WantedColumns) -> FoundRow:
    """Return a row as it is in a state."""
    if wanted.columns is ALL_COLUMNS and (column := state.only_column(key)) is not None:
        return FoundRow(key, column[1], [column], None)  # As below, but faster.
    found = state.columns_of(key, wanted.columns, wanted.limit + 1)
    is_cut = len(found) > wanted.limit
    return FoundRow(key, state.version_of(key), found[: wanted.limit], found[-1][0] if is_cut else None)


class FittingValues:
    """Values of the columns of rows, read in their order until they fill an answer, some columns at a time."""

    def __init__(self, found: Iterable[FoundRow], room_bytes: int) -> None:
        """`room_bytes` is the room that the answer has."""
        self._offsets = [offset for row in found for _, offset in row.columns]
        self._place, self._step = 0, COLUMNS_AT_ONCE
        self.room_bytes = room_bytes
        """Bytes after which a read may end."""
        self.values: dict[int, RecordValue] = {}
        """Values by offset, of the first columns."""

    def next_offsets(self) -> list[int]:
        """Return the offsets to read next, which ascend; none if the answer is full, or has all."""
        if self.room_bytes < 0:
            return []
        return sorted(set(self._offsets[self._place : self._place + self._step]))

    def note(self, read: Mapping[int, RecordValue]) -> bool:
        """Take the values of `next_offsets`, or some of them that exceed the room; return `False` if one is gone."""
        size_bytes, end = sum(len(each.value) for each in read.values()), self._place + self._step
        if size_bytes > self.room_bytes and self._step > 1:  # In the order of the log: try about as many as fit.
            self._step = max(1, min(self._step // 2, self.room_bytes * len(read) // size_bytes))
            return True
        if any(offset not in read for offset in self._offsets[self._place : end]):
            return False
        self.values.update(read)
        self.room_bytes -= size_bytes
        self._place, self._step = end, min(2 * self._step, COLUMNS_AT_ONCE)
        return True


class RowsAnswer:
    """Rows of one response."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self.keys: list[bytes] = []
        """Keys of the rows."""
        self.hits = 0
        """Number of those that exist."""

        self.is_full = False
        """Whether no further row fits."""

    @property
    def room_bytes(self) -> int:
        """Bytes that still fit."""
        return MAX_ANSWER_BYTES - self.size_bytes

    def add(self, found: Sequence[FoundRow], values: Mapping[int, RecordValue], rows: Any) -> None:
        """Add rows to a repeated field until it is full; `values` has their first columns, more than fit or all.

        Each row is whole, but the first one if it alone has too many bytes: clients of earlier releases read its rest
        only for Arrow.
        """
        for row in found:
            if self.is_full:
                return
            self._add(row, values, rows)

    def _add(self, row: FoundRow, values: Mapping[int, RecordValue], rows: Any) -> None:
        answer, size_bytes = rows.add(), self.size_bytes + len(row.key) + _ROW_BYTES
        answer.key, answer.version = row.key, row.version
        next_column, columns = row.next_column, answer.columns
        for name, offset in row.columns:
            read = values.get(offset)
            size = 0 if read is None else len(name) + len(read.value) + _COLUMN_BYTES
            if read is None or (size_bytes + size > MAX_ANSWER_BYTES and (columns or self.keys)):
                self.is_full = True
                if self.keys:
                    del rows[-1]
                    return
                next_column = name
                break
            size_bytes += size
            column = columns.add()  # Faster than with its fields as arguments.
            column.name, column.version = name, offset
            column.value, column.timestamp_ms = read
        if next_column is not None:
            answer.next_column = next_column
        self.keys.append(row.key)
        self.hits += row.version != ABSENT
        self.size_bytes = size_bytes
        self.is_full = self.is_full or size_bytes >= MAX_ANSWER_BYTES
