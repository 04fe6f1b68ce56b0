"""Equality of rows: key and value, and headers and timestamp if the query has them.

A row to write and a stored record then have the same `RowKey`, regardless of order and position.
"""

import hashlib
import struct
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from headrace.client.base.records import DecodedBatch
from headrace.spark.arrow_columns import keys_of, values_of
from headrace.spark.typed_rows import stored_values, values_of_structs

RowKey = bytes
"""Digest of 16 bytes, then timestamp in ms and partition if these belong to the row, as int64 and int32."""
DIGEST_BYTES = 16
NO_TIME = -(2**63)
NO_PARTITION = -1

_SIZES = struct.Struct("<qq")
_PLACE = struct.Struct("<qi")


def row_key(digest: bytes, time_ms: int, partition: int) -> RowKey:
    """Return a key; `NO_TIME` and `NO_PARTITION` if the row does not have them."""
    return digest + _PLACE.pack(time_ms, partition)


def bare(key: RowKey, *, with_time: bool, with_partition: bool) -> RowKey:
    """Remove the fields from a stored record's key that rows of the query do not have."""
    time_ms, partition = _PLACE.unpack_from(key, DIGEST_BYTES)
    return row_key(key[:DIGEST_BYTES], time_ms if with_time else NO_TIME, partition if with_partition else NO_PARTITION)


def row_parts(rows: Any) -> Iterator[tuple[bytes, int, int]]:
    """Yield digest, timestamp in ms and partition of each row of a `pyarrow.RecordBatch`."""
    names = rows.schema.names
    count = rows.num_rows
    keys = _binary(rows.column("key")) if "key" in names else [None] * count
    headers = rows.column("headers").to_pylist() if "headers" in names else [None] * count
    times = times_of(rows) or [None] * count
    partitions = rows.column("partition").to_pylist() if "partition" in names else [None] * count
    for key, value, pairs, time_ms, partition in zip(
        keys, _values(rows.column("value")), headers, times, partitions, strict=True
    ):
        told = ((pair["key"], pair["value"]) for pair in pairs or ())
        yield (
            _digest(key, value, told),
            NO_TIME if time_ms is None else time_ms,
            NO_PARTITION if partition is None else partition,
        )


def times_of(rows: Any) -> list[int | None] | None:
    """Return the column `timestamp` in ms since 1970; `None` if there is none."""
    if "timestamp" not in rows.schema.names:
        return None
    micros = rows.column("timestamp").cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_pylist()
    return [None if at is None else at // 1000 for at in micros]


def stored_parts(decoded: DecodedBatch) -> Iterator[tuple[bytes, int]]:
    """Yield digest and timestamp in ms of each record of a decoded batch."""
    columns = decoded.columns
    times = columns.timestamps()[decoded.start : decoded.end]
    headers = columns.headers(decoded.start, decoded.end)
    values = values_of([decoded]).to_pylist() if columns.typed is None else stored_values(decoded)
    keys = keys_of([decoded]).to_pylist()
    for key, value, pairs, time_ms in zip(keys, values, headers, times, strict=True):
        yield _digest(key, value, pairs), time_ms


def _values(column: Any) -> list[bytes | None]:
    return [*values_of_structs(column)] if pa.types.is_struct(column.type) else _binary(column)


def _binary(column: Any) -> list[bytes | None]:
    found: list[bytes | None] = column.cast(pa.binary()).to_pylist()
    return found


def _digest(key: bytes | None, value: bytes | None, headers: Iterable[tuple[str, bytes]]) -> bytes:
    digest = hashlib.blake2b(
        _SIZES.pack(-1 if key is None else len(key), -1 if value is None else len(value)), digest_size=DIGEST_BYTES
    )
    digest.update(key or b"")
    digest.update(value or b"")
    for name, data in headers:
        encoded = name.encode()
        digest.update(_SIZES.pack(len(encoded), len(data)))
        digest.update(encoded)
        digest.update(data)
    return digest.digest()
