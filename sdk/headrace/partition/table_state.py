"""Newest version of each column of a table's partition: where it is in the log. Pure.

Every key is in memory, and no value: the log has those, as in Bitcask (Sheehy and Smith, 2010). That a row does not
exist is known without a read. `RowOffsets` has all records below an offset, `UncommittedRows` what follows them in a
leader's log, for conditions on a row.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice, repeat
from typing import NamedTuple

import numpy as np

from headrace.partition.column_expiries import ColumnExpiries
from headrace.partition.ordered_keys import OrderedKeys
from headrace.partition.removed_rows import RemovedRows
from headrace.wire.batch import read_header
from headrace.wire.columns import decode_batch
from headrace.wire.decoded import BinaryColumn, Columns
from headrace.wire.errors import CorruptBatchError
from headrace.wire.request_trace import RequestOutcome
from headrace.wire.table_keys import (
    ABSENT,
    after_row,
    expiries_of,
    is_table_key,
    prefix_end,
    row_of,
    row_start,
    rows_start,
    split_key,
    table_key,
)

CLOCK_STEP_MS = 1_000
"""Step back of a clock up to which what has expired stays so."""
MANY_CHANGES = 10_000
"""Uncommitted changes up to which those that are committed by now are kept."""


class ColumnSlice(NamedTuple):
    """Columns of a row: those with these names, or those from `start` on, below `end`."""

    names: tuple[bytes, ...] = ()
    start: bytes = b""
    end: bytes | None = None

    @property
    def is_all(self) -> bool:
        """Whether it has every column."""
        return not self.names and not self.start and self.end is None


ALL_COLUMNS = ColumnSlice()


class CurrentRow(NamedTuple):
    """Columns of a row with the offset of each, by name, and its version; without columns it does not exist."""

    columns: dict[bytes, int]
    version: int


class ColumnChange(NamedTuple):
    """One record of a table."""

    key: bytes
    offset: int
    is_deletion: bool
    expires_ms: int

    @property
    def row(self) -> bytes:
        """Start of all keys of its row."""
        return row_of(self.key)


def decode_table_batch(batch: memoryview, note_unreadable: Callable[[CorruptBatchError], None]) -> Columns:
    """Return a stored batch, decoded.

    Of one that no reader can decode, as it was stored with `validate=header`, the error is noted, and the records have
    no keys: they are in no row.

    Raises:
        UnsupportedCodecError: If the codec's package is not installed here: other replicas know the rows.
    """
    header = read_header(batch)
    try:
        return decode_batch(batch, max_payload_bytes=header.payload_bytes)
    except CorruptBatchError as error:
        note_unreadable(error)
        return Columns(header, BinaryColumn(np.zeros(1, np.int32), memoryview(b""), None), None, None, None)


def changes_of(columns: Columns) -> list[ColumnChange]:
    """Return the changes in a batch, without records whose keys are of no table."""
    values = columns.value_column
    deletes: Iterable[bool] = repeat(False) if values.validity is None else (~values.valid()).tolist()
    expiries: Iterable[int] = repeat(0) if columns.header_columns is None else expiries_of(columns).tolist()
    records = zip(columns.keys(), columns.offsets(), deletes, expiries, strict=False)
    return [ColumnChange._make(each) for each in records if each[0] is not None and is_table_key(each[0])]


def _only_sets(columns: Columns) -> bool:
    """Return whether no record of a batch deletes a column or expires."""
    return columns.header_columns is None and columns.value_column.validity is None


def _count_rows(keys: Iterable[bytes]) -> int:
    """Count the rows of keys, which ascend."""
    count, start = 0, b""
    for key in keys:
        if not start or not key.startswith(start):
            count, start = count + 1, row_of(key)
    return count


class RowOffsets:
    """Offset of the newest record of each column, of the log up to `end_offset`."""

    def __init__(self, batches: Iterable[Columns] = (), start_offset: int = 0, now_ms: int = 0) -> None:
        """Take the records of batches from `start_offset` on, in their order, without what has expired at `now_ms`.

        Slow for many: not on the event loop.
        """
        newest: dict[bytes | None, int] = {}
        deletions: dict[bytes, int] = {}
        expiring: dict[bytes, int] = {}
        self.newer_end = 0
        """Offset below which records are that have replaced some that the log does not have any more."""
        for columns in batches:
            self.note_removed(columns)
            if columns.header.base_offset >= start_offset and not expiring and _only_sets(columns):
                newest.update(zip(columns.keys(), columns.offsets(), strict=True))
                continue
            for key, offset, is_deletion, expires_ms in changes_of(columns):
                if offset < start_offset:
                    continue
                if is_deletion:
                    newest.pop(key, None)
                    deletions[row_of(key)] = offset
                else:
                    newest[key] = offset
                if expires_ms and not is_deletion:
                    expiring[key] = expires_ms
                else:
                    expiring.pop(key, None)
        expired = [key for key, expires_ms in expiring.items() if expires_ms <= now_ms]
        self._expired_ms = max((expiring.pop(key) for key in expired), default=0)
        """The greatest time of those at which the columns that were removed have expired."""
        for key in expired:
            row = row_of(key)
            deletions[row] = max(newest.pop(key), deletions.get(row, ABSENT))
        keys = sorted(key for key in newest if key is not None and is_table_key(key))
        self._keys = OrderedKeys(keys, list(map(newest.__getitem__, keys)))
        self._expiries = ColumnExpiries(expiring)
        self.rows = _count_rows(keys)
        """Number of rows."""
        self._deletions = {
            row: offset
            for row, offset in deletions.items()
            if (left := self._keys.first(row, after_row(row), sys.maxsize)) and offset > max(at for _, at in left)
        }
        """Offset of the newest record of those that have deleted a column or have expired, by `row_start` of rows that
        exist; none if the row has a newer column.
        """
        self.end_offset = 0
        self.removed: RemovedRows | None = None
        """Rows that were removed, if anyone asks why a row does not exist."""

    @property
    def columns(self) -> int:
        """Number of columns of all rows."""
        return len(self._keys)

    @property
    def key_bytes(self) -> int:
        """Memory of their keys, and of the times at which they expire, estimated."""
        return self._keys.size_bytes + self._expiries.size_bytes

    def note_removed(self, columns: Columns) -> None:
        """Take from a batch, before its changes, up to where the log must be read for a complete state."""
        if columns.removed_records is not None:
            self.newer_end = max(self.newer_end, columns.removed_records.newer_end)

    def apply(self, change: ColumnChange) -> None:
        """Apply the next change."""
        key, offset, is_deletion, expires_ms = change
        if is_deletion:
            if self._remove(key, RequestOutcome.MISS_DELETED):
                self._deletions[row_of(key)] = offset
        else:
            neighbours = self._keys.set(key, offset)
            if neighbours is not None:
                row = row_of(key)
                self.rows += not (neighbours[0].startswith(row) or neighbours[1].startswith(row))
            if self._deletions:
                self._deletions.pop(row_of(key), None)
        if expires_ms or self._expiries.times:
            self._expiries.set(key, 0 if is_deletion else expires_ms)

    def _remove(self, key: bytes, why: RequestOutcome) -> bool:
        """Remove a key; reads of its row find `why` if that was the last one. Return whether the row exists now."""
        row = row_of(key)
        is_there = self._keys.remove(key)
        if self._keys.first(row, after_row(row), 1):
            return True
        if is_there:
            self.rows -= 1
            self._deletions.pop(row, None)
            if self.removed is not None:
                self.removed.note(row, why)
        return False

    def expire(self, now_ms: int, most: int = sys.maxsize) -> bool:
        """Remove about `most` of the columns that have expired; return whether there may be more.

        `now_ms` is the wall clock. Of a row all columns that expire together go. That leaves the versions of their rows
        as they are: what a record has replaced may have been of a lower one.
        """
        expired, has_more = self._expiries.take(now_ms, most)
        for expires_ms, key in expired:
            self._expired_ms = max(self._expired_ms, expires_ms)
            offset = self._keys.get(key)
            if self._remove(key, RequestOutcome.MISS_EXPIRED):
                row = row_of(key)
                self._deletions[row] = max(offset, self._deletions.get(row, ABSENT))
        return has_more

    def lacks_columns(self, now_ms: int) -> bool:
        """Return whether columns are removed that have not expired at `now_ms`: the clock was put back."""
        return now_ms < self._expired_ms - CLOCK_STEP_MS

    def forget_below(self, offset: int, start: bytes, most: int) -> bytes | None:
        """Remove columns below the log start among `most` keys from `start` on; return where to continue."""
        doomed, last = [], None
        for count, (key, at) in enumerate(self._keys.items(start)):
            if count == most:
                last = key
                break
            if at < offset:
                doomed.append(key)
        for key in doomed:
            self._expiries.set(key, 0)
            self._remove(key, RequestOutcome.MISS)
        return last

    def columns_of(
        self, row: bytes, wanted: ColumnSlice = ALL_COLUMNS, most: int = sys.maxsize
    ) -> list[tuple[bytes, int]]:
        """Return name and offset of a row's first `most` columns, in order."""
        if wanted.names:
            found = ((name, self._keys.get(table_key(row, name))) for name in sorted(set(wanted.names)))
            return list(islice((pair for pair in found if pair[1] >= 0), most))
        prefix = row_start(row)
        end = after_row(prefix) if wanted.end is None else prefix + wanted.end
        size = len(prefix)
        return [(key[size:], offset) for key, offset in self._keys.first(prefix + wanted.start, end, most)]

    def only_column(self, row: bytes) -> tuple[bytes, int] | None:
        """Return the column of a row that has one, and no deletion since; `None` for others, and for some of those."""
        prefix = row_start(row)
        found = self._keys.only(prefix)
        if found is None or prefix in self._deletions:
            return None
        return found[0][len(prefix) :], found[1]

    def rows_from(self, start: bytes, end: bytes | None, prefix: bytes) -> Iterator[bytes]:
        """Yield the rows from `start` on, below `end`, that begin with `prefix`; a row may be added meanwhile."""
        first = max(rows_start(start), rows_start(prefix))
        ends = (None if end is None else rows_start(end), prefix_end(rows_start(prefix)))
        last = min((each for each in ends if each is not None), default=None)
        while (found := next(self._keys.items(first, last), None)) is not None:
            parts = split_key(found[0])
            assert parts is not None
            yield parts[0]
            first = after_row(row_start(parts[0]))

    def version_of(self, row: bytes) -> int:
        """Return the version of a row: the offset of its last record, `ABSENT` if it does not exist."""
        prefix = row_start(row)
        version = self._keys.greatest(prefix, after_row(prefix))
        return max(version, self._deletions.get(prefix, ABSENT)) if self._deletions and version >= 0 else version

    def current_version(self, row: bytes, uncommitted: Mapping[bytes, ColumnChange]) -> int:
        """Return the version of a row with the uncommitted changes by key; as `current`, faster for many columns."""
        later = {key: change for key, change in uncommitted.items() if change.offset >= self.end_offset}
        version, prefix = self.version_of(row), row_start(row)
        if not later:
            return version
        is_there = not all(change.is_deletion for change in later.values()) or any(
            key not in later for key, _ in self._keys.items(prefix, after_row(prefix))
        )
        return max(version, *(change.offset for change in later.values())) if is_there else ABSENT

    def current(self, row: bytes, uncommitted: Mapping[bytes, ColumnChange]) -> CurrentRow:
        """Return a row with the uncommitted changes by key."""
        found = dict(self.columns_of(row))
        version, prefix = self.current_version(row, uncommitted), len(row_start(row))
        for key, change in uncommitted.items():
            if change.offset < self.end_offset:
                continue  # It has this change, or a later one.
            if change.is_deletion:
                found.pop(key[prefix:], None)
            else:
                found[key[prefix:]] = change.offset
        return CurrentRow(found, version)


class UncommittedRows:
    """Newest change of each key in the log between what a `RowOffsets` has and `end_offset`."""

    def __init__(self) -> None:
        self._rows: dict[bytes, dict[bytes, ColumnChange]] = {}
        self._count = 0
        self._search_at = MANY_CHANGES
        """Number of changes at which those that are committed by now are dropped: twice what the last search left, so
        that a leader whose followers lag does not search them again for each change.
        """
        self.end_offset = 0

    def begin(self, offset: int) -> None:
        """Forget everything, and begin at `offset`."""
        self._rows.clear()
        self._count, self._search_at, self.end_offset = 0, MANY_CHANGES, offset

    def apply(self, change: ColumnChange, committed: int) -> None:
        """Apply the next change; those below `committed` may go."""
        self._rows.setdefault(row_of(change.key), {})[change.key] = change
        self._count += 1
        if self._count > self._search_at:
            self._drop_committed(committed)
            self._search_at = max(MANY_CHANGES, 2 * self._count)

    def _drop_committed(self, committed: int) -> None:
        self._rows = {
            row: left
            for row, keys in self._rows.items()
            if (left := {key: each for key, each in keys.items() if each.offset >= committed})
        }
        self._count = sum(map(len, self._rows.values()))

    def of(self, row: bytes) -> dict[bytes, ColumnChange]:
        """Return the changes of a row by key; those that are committed by now may be among them."""
        return self._rows.get(row_start(row), {})
