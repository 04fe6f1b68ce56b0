"""Records that a compaction removes at once, without the time for which deletions stay: those of deleted rows. Pure."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headrace.log.compacted_writer import Mask
from headrace.wire.decoded import Columns
from headrace.wire.table_keys import column_expiries, is_table_key, row_of


class PurgedRecords(NamedTuple):
    """Records below an offset: of some rows, of rows that begin with a prefix, or all deletions with what they delete.

    All of the rows were deleted below that offset, so that no record of them there is current.
    """

    before_offset: int
    row_starts: frozenset[bytes] = frozenset()
    """`row_start` of each row."""
    prefix: bytes | None = None
    """`rows_start` of the prefix."""
    deleted: bool = False
    """All null values, and what has expired."""

    def removed(self, columns: Columns, now_ms: int) -> Mask:
        """Return which records of a batch go at `now_ms`, in ms since 1970."""
        below = columns.offset_array(0, columns.record_count) < self.before_offset
        if columns.key_column is None or not below.any():
            return np.zeros(columns.record_count, np.bool_)
        if self.deleted:
            expires_ms = column_expiries(columns)
            is_gone = ~columns.value_column.valid() | ((expires_ms > 0) & (expires_ms <= now_ms))
            return below & is_gone & columns.key_column.valid()
        keys = columns.keys()
        found = [key is not None and is_table_key(key) and self._has(key) for key in keys]
        return below & np.array(found, np.bool_)

    def _has(self, key: bytes) -> bool:
        return key.startswith(self.prefix) if self.prefix is not None else row_of(key) in self.row_starts
