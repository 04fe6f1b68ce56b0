"""Rows whose records a purge removes from the files of a replica: what is asked, and what must hold. Pure.

Brokers and directories close the active segment, compact without these records, and unlink at once what was replaced.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from headrace.log.purged_records import PurgedRecords
from headrace.log.record_selection import Kept
from headrace.partition.producers import ProducerWindows
from headrace.partition.table_rows import MAX_KEYS
from headrace.partition.table_state import RowOffsets
from headrace.v1 import tables_pb2
from headrace.wire.errors import InvalidRequestError
from headrace.wire.table_keys import check_row, row_start, rows_start

ROWS_PER_TURN = 300


class PurgedRows(NamedTuple):
    """Which rows of a partition to purge, below an offset: by key, by prefix, or all that are deleted."""

    before_offset: int
    keys: tuple[bytes, ...] = ()
    prefix: bytes | None = None
    deleted: bool = False

    @property
    def records(self) -> PurgedRecords:
        """Their records."""
        prefix = None if self.prefix is None else rows_start(self.prefix)
        return PurgedRecords(self.before_offset, frozenset(map(row_start, self.keys)), prefix, self.deleted)

    def kept(self, producers: ProducerWindows, now_ms: int) -> Kept:
        """Return the batches that stay as they are, because their producers may send them again."""
        # What a deletion deletes may be in a batch that would stay.
        return Kept() if self.deleted else Kept(producers.retried_batches(now_ms), producers.retry_window_ms)


def purged_rows(request: tables_pb2.PurgeRowsRequest) -> PurgedRows:
    """Check and convert a request.

    Raises:
        InvalidRequestError: If it does not name rows in one way, or too many.
    """
    if bool(request.keys) + request.HasField("prefix") + request.deleted != 1:
        raise InvalidRequestError(
            "a purge names keys, or a prefix, or deleted", action="Name the rows in one of the three ways."
        )
    if len(request.keys) > MAX_KEYS or request.before_offset < 0:
        raise InvalidRequestError(
            f"{len(request.keys)} keys are more than {MAX_KEYS}, or before_offset {request.before_offset} is negative"
        )
    prefix = request.prefix if request.HasField("prefix") else None
    return PurgedRows(request.before_offset, tuple(map(check_row, request.keys)), prefix, request.deleted)


def check_deleted(rows: RowOffsets, wanted: PurgedRows) -> Iterator[None]:
    """Check that the rows do not exist; columns that were written at the offset or later are others.

    Yields after each `ROWS_PER_TURN` rows, where an event loop takes its next turn.

    Raises:
        InvalidRequestError: If one of them exists.
    """
    for count, key in enumerate(wanted.keys if wanted.prefix is None else rows.rows_from(b"", None, wanted.prefix)):
        if any(offset < wanted.before_offset for _, offset in rows.columns_of(key)):
            raise InvalidRequestError(
                f"a row to purge exists: it has columns below offset {wanted.before_offset}",
                action="Delete the row first, and name the offset of a read that follows the deletion.",
            )
        if count % ROWS_PER_TURN == ROWS_PER_TURN - 1:
            yield
