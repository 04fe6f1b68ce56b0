"""Keys of the records of a table, and when a record expires.

A table is a compacted topic in which each column of each row is a record: its key is the row's key and the column's
name, its value is the column's value, a null value deletes the column. The two parts are joined so that keys compare,
byte by byte, as pairs of row and column compare: all columns of a row are neighbours.

    key := row with each 00 written as 00 FF, then 00 01, then column

The row alone decides the partition: CRC-32 of its key modulo the number of partitions, as for the keys of other topics.
The order of pairs by an escape byte is that of FoundationDB's tuple layer.
"""

from collections.abc import Iterable

import numpy as np

from headrace.wire.decoded import Columns, Int64s
from headrace.wire.errors import InvalidRequestError
from headrace.wire.partitioning import partition_for_key

MAX_ROW_BYTES = 16 << 10
"""Maximum bytes of a row's key."""
MAX_COLUMN_BYTES = 16 << 10
"""Maximum bytes of a column's name."""
EXPIRES_HEADER = "headrace.expires_ms"
"""Header of a record that expires: the time in ms since 1970, in decimal digits."""
_EXPIRES_NAME = np.frombuffer(EXPIRES_HEADER.encode(), np.uint8)
_MAX_EXPIRES_MS = (1 << 63) - 1
ABSENT = -1
"""Version of a row that does not exist."""
ROW_END = b"\x00\x01"
"""Bytes between a row and its column: every key of a table has them."""


def table_key(row: bytes, column: bytes) -> bytes:
    """Return the key of a column's record."""
    return row_start(row) + column


def split_key(key: bytes) -> tuple[bytes, bytes] | None:
    """Return the row and the column of a key; `None` if it is no key of a table."""
    if not is_table_key(key):
        return None
    row, _, column = key.partition(ROW_END)
    return row.replace(b"\x00\xff", b"\x00"), column


def is_table_key(key: bytes) -> bool:
    """Return whether a record's key is one of a table; others, from before the topic was one, may have a `ROW_END`."""
    end = key.find(ROW_END)
    return end > 0 and (key.find(b"\x00", 0, end) < 0 or key.count(b"\x00", 0, end) == key.count(b"\x00\xff", 0, end))


def row_start(row: bytes) -> bytes:
    """Return the first key that a row can have."""
    return rows_start(row) + ROW_END


def after_row(start: bytes) -> bytes:
    """Return the key after the last one that the row with this `row_start` can have."""
    return start[:-1] + b"\x02"


def row_of(key: bytes) -> bytes:
    """Return the part of a table's key that all keys of its row share: `row_start` of its row."""
    return key[: key.index(ROW_END) + len(ROW_END)]


def rows_start(row: bytes) -> bytes:
    """Return the first key of the rows from `row` on, or of those that begin with it."""
    return row.replace(b"\x00", b"\x00\xff")


def prefix_end(prefix: bytes) -> bytes | None:
    """Return the first byte string after all that begin with `prefix`; `None` if there is none."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else None


def check_row(row: bytes) -> bytes:
    """Return a row's key if it is one.

    Raises:
        InvalidRequestError: If it is empty or longer than `MAX_ROW_BYTES`.
    """
    if not row:
        raise InvalidRequestError("the row has an empty key", action="Give each row a key of at least one byte.")
    if len(row) > MAX_ROW_BYTES:
        raise InvalidRequestError(
            f"a row's key of {len(row)} bytes is over the limit of {MAX_ROW_BYTES}",
            action="Shorten it, for example to a hash of it.",
        )
    return row


def check_column(name: bytes) -> bytes:
    """Return a column's name if it is one; it may be empty.

    Raises:
        InvalidRequestError: If it is longer than `MAX_COLUMN_BYTES`.
    """
    if len(name) > MAX_COLUMN_BYTES:
        raise InvalidRequestError(
            f"a column's name of {len(name)} bytes is over the limit of {MAX_COLUMN_BYTES}", action="Shorten it."
        )
    return name


def check_own_partition(rows: Iterable[bytes], partition: int, partitions: int) -> None:
    """Check that the rows with these keys are in a partition: in another one no reader would find them.

    Raises:
        InvalidRequestError: If one of them is not.
    """
    for row in rows:
        if (own := partition_for_key(row, partitions)) != partition:
            raise InvalidRequestError(
                f"a row's key is of partition {own} of {partitions}, not of {partition}",
                action="Send it to CRC-32 of the key, as of zlib, modulo the number of partitions.",
            )


def expiry_headers(expires_ms: int) -> tuple[tuple[str, bytes], ...]:
    """Return the headers of a record that expires at a time in ms since 1970; `0` means never."""
    return ((EXPIRES_HEADER, b"%d" % expires_ms),) if expires_ms else ()


def expiries_of(columns: Columns) -> Int64s:
    """Return when each record of a batch expires, int64[n] of ms since 1970; `0` means never."""
    found = np.zeros(columns.record_count, np.int64)
    headers = columns.header_columns
    if headers is None:
        return found
    starts = headers.keys.offsets[:-1]
    named = np.flatnonzero(np.diff(headers.keys.offsets) == len(_EXPIRES_NAME))
    if len(named) == 0:
        return found
    names = np.frombuffer(headers.keys.data, np.uint8)[starts[named, None] + np.arange(len(_EXPIRES_NAME))]
    named = named[(names == _EXPIRES_NAME).all(axis=1)]
    rows = np.searchsorted(headers.list_offsets, named, side="right") - 1
    cuts, values = headers.values.offsets, headers.values.data
    for row, start, end in zip(*(each[::-1].tolist() for each in (rows, cuts[named], cuts[named + 1])), strict=True):
        value = bytes(values[start:end])
        if value.isdigit() and len(value) < 20:  # The first such header counts, which comes last here.
            found[row] = min(int(value), _MAX_EXPIRES_MS)
    return found


def column_expiries(columns: Columns) -> Int64s:
    """As `expiries_of`, but only records with a key of a table expire: `0` for all others."""
    found = expiries_of(columns)
    if found.any():
        keys = columns.keys()
        found[[key is None or not is_table_key(key) for key in keys]] = 0
    return found
