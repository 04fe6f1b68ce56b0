"""Writes of rows of a table: from the message, and as a batch. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from headrace.v1 import broker_pb2, tables_pb2
from headrace.wire.encoding import encode_batch
from headrace.wire.errors import InvalidRequestError
from headrace.wire.table_keys import check_column, check_row, expiry_headers, row_start


class RowWrite(NamedTuple):
    """Change of one row."""

    row: bytes
    columns: Mapping[bytes, bytes | None]
    """Value by name; `None` deletes the column."""
    deletes_row: bool
    if_version: int | None
    expires_ms: int
    producer: tuple[int, int, int] = (-1, -1, -1)
    """Producer id, its epoch, and the sequence of the first record."""

    @property
    def needs_state(self) -> bool:
        """Whether what is written depends on what the row has."""
        return self.deletes_row or self.if_version is not None

    def encode(self, now_ms: int) -> bytes:
        """Return the batch of the columns."""
        # Values last, so that the last record's offset is the version of the row.
        names = sorted(self.columns, key=lambda name: self.columns[name] is not None)
        prefix, headers = row_start(self.row), expiry_headers(self.expires_ms)
        return encode_batch(
            [self.columns[name] for name in names],
            [prefix + name for name in names],
            base_timestamp_ms=now_ms,
            headers=[() if self.columns[name] is None else headers for name in names] if headers else None,
            producer_id=self.producer[0],
            producer_epoch=self.producer[1],
            base_sequence=self.producer[2],
        )


def read_row_write(request: tables_pb2.WriteRowRequest, table_ttl_ms: int, now_ms: int) -> RowWrite:
    """Check and convert a request to a table with this time to live.

    Raises:
        InvalidRequestError: If a field is invalid.
    """
    if bool(request.columns) == request.delete_row:
        raise InvalidRequestError(
            "a write has either columns or delete_row", action="Name the columns, or set delete_row alone."
        )
    columns = {
        check_column(column.name): column.value if column.HasField("value") else None for column in request.columns
    }
    if len(columns) < len(request.columns):
        raise InvalidRequestError("a column is named twice")
    if request.ttl_ms < 0:
        raise InvalidRequestError(f"ttl_ms {request.ttl_ms} is in the past", action="Delete the columns instead.")
    ttl_ms = request.ttl_ms or table_ttl_ms
    return RowWrite(
        check_row(request.key),
        columns,
        request.delete_row,
        request.if_version if request.HasField("if_version") else None,
        now_ms + ttl_ms if ttl_ms else 0,
        identity_of(request.producer if request.HasField("producer") else None),
    )


def identity_of(producer: broker_pb2.ProducerIdentity | None) -> tuple[int, int, int]:
    """Return producer id, epoch and first sequence of a batch that the broker encodes; -1 for `None`.

    Raises:
        InvalidRequestError: If one is negative.
    """
    if producer is None:
        return -1, -1, -1
    identity = (producer.producer_id, producer.producer_epoch, producer.base_sequence)
    if min(identity) < 0:
        raise InvalidRequestError("producer_id, producer_epoch and base_sequence must not be negative")
    return identity
