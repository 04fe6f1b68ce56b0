"""Many rows as the records of a producer, and the versions that they are given. Pure.

The columns of a row are consecutive records of one batch (`group_ends`), so that the row is stored as a whole or not at
all. Rows are collected by partition, and sent in chunks.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import timedelta
from functools import lru_cache
from itertools import chain, islice
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from headrace.client.base.config import ClientConfig, TableConfig
from headrace.client.base.data_frames import arrow_of
from headrace.client.base.errors import ConfigError, SerializationError
from headrace.client.base.serializers import Serializer, resolve_serializer, serialize
from headrace.client.table.rows import key_of, name_of
from headrace.wire.errors import HeadraceError, Outcome
from headrace.wire.partitioning import partition_for_key
from headrace.wire.table_keys import ABSENT, check_column, check_row, expiry_headers, row_start, split_key

Versions: TypeAlias = npt.NDArray[np.int64]
GivenRow: TypeAlias = tuple[str | bytes, Mapping[str, Any]]
"""Key and columns of a row; a value of `None` deletes its column."""

COLLECTED_BYTES = 4 << 20
"""Bytes of keys and values that are collected for all partitions before they are sent."""
LARGE_ROW_BYTES = 128 << 10
"""A row of more bytes is a chunk of its own, so that an error of the chunk is the row's."""
RUN_ROWS = 256
"""Rows that are converted together if they have the same columns."""
ARROW_ROWS = 10_000
"""Rows of an Arrow table that are Python objects at a time."""
MAX_BATCH_RECORDS = 1_000_000
"""Columns of one row, as many as a batch may have."""
MAX_DELIVERY_MS = 900_000
_COLUMN_BYTES = 32


class PutManyError(HeadraceError):
    """Some rows of `put_many` were not written, or it is not known whether they were. Put those again.

    `outcome` is NOT_APPLIED if none of the rows without a version was written. The cause is chained.

    Attributes:
        row: number of the first row that failed, from 0.
        key: its key.
        versions: int64[n]: versions of the rows that were taken, -1 for those that are not known to be written.
    """

    def __init__(self, row: int, key: bytes, versions: Versions, cause: HeadraceError, outcome: Outcome) -> None:
        super().__init__(
            f"row {row} ({key!r}) was not written: {cause.message}",
            code=cause.code,
            outcome=outcome,
            retriable=cause.retriable,
            action=cause.action,
        )
        self.row = row
        self.key = key
        self.versions = versions


class FailedRow(NamedTuple):
    """Row that failed, and why."""

    row: int
    key: bytes
    cause: HeadraceError


@dataclass(slots=True)
class RowChunk:
    """Columns of rows of one partition, as records in the order of the rows."""

    partition: int
    keys: list[bytes] = field(default_factory=list)
    values: list[bytes | None] = field(default_factory=list)
    # For each row, the number of records up to its end.
    ends: list[int] = field(default_factory=list)
    # Numbers of the rows.
    rows: list[int] = field(default_factory=list)

    def extend(self, keys: Sequence[bytes], values: Sequence[bytes | None], columns: int, rows: Sequence[int]) -> None:
        """Add the records of some rows of the same number of columns."""
        before = len(self.keys)
        self.keys += keys
        self.values += values
        self.ends += range(before + columns, len(self.keys) + 1, columns)
        self.rows += rows

    def headers(self, expires_ms: int) -> list[tuple[tuple[str, bytes], ...]]:
        """Return the headers of the records, which expire at this time in ms since 1970."""
        return [expiry_headers(expires_ms)] * len(self.keys)


class RowWrites:
    """Rows of one `put_many`: collects them, and keeps what has become of each. One thread."""

    def __init__(self, partitions: int, serializer: Serializer | None) -> None:
        """`partitions` is the number of the table's partitions."""
        self._partitions = partitions
        self._serializer = serializer
        self._versions = np.full(1_024, ABSENT, np.int64)
        self._count = 0
        self._collected: dict[int, RowChunk] = {}
        self._collected_bytes = 0
        self._failed: FailedRow | None = None
        self._outcome = Outcome.NOT_APPLIED

    @property
    def count(self) -> int:
        """Number of rows that were taken so far."""
        return self._count

    @property
    def has_failed(self) -> bool:
        """Whether a row has failed."""
        return self._failed is not None

    def chunks(self, rows: Iterable[GivenRow]) -> Iterator[RowChunk]:
        """Yield the records of the rows. A row that is none has failed, and ends the chunks."""
        given = iter(rows)
        first = 0
        while run := list(islice(given, RUN_ROWS)):
            self._note_rows(first + len(run))
            if not self._collect_run(first, run):
                yield from self._collect_each(first, run)
            first += len(run)
            if self._failed is not None:
                break
            if self._collected_bytes >= COLLECTED_BYTES:
                yield from self._taken()
        yield from self._taken()

    def _taken(self) -> Iterator[RowChunk]:
        taken, self._collected, self._collected_bytes = self._collected, {}, 0
        yield from taken.values()

    def _note_rows(self, count: int) -> None:
        self._count = count
        if count > len(self._versions):
            self._versions = np.concatenate([self._versions, np.full(count, ABSENT, np.int64)])

    def _chunk(self, partition: int) -> RowChunk:
        chunk = self._collected.get(partition)
        if chunk is None:
            chunk = self._collected[partition] = RowChunk(partition)
        return chunk

    def _collect_run(self, first: int, run: list[GivenRow]) -> bool:
        """Collect rows that all have the same names, with little work for each; return `False` for any others."""
        try:
            keys, columns = zip(*run, strict=True)
            if set(map(type, columns)) != {dict} or len(names := set(map(tuple, columns))) != 1:
                return False
            values = self._serialized(list(chain.from_iterable(each.values() for each in columns)))
            starts = [row_start(check_row(key_of(key))) for key in keys]
            [encoded] = map(_column_names, names)
        except (HeadraceError, TypeError, ValueError):
            return False  # Row by row, the one that is wrong is found.
        record_keys = [start + name for start in starts for name in encoded]
        size = sum(map(len, record_keys)) + sum(map(len, filter(None, values))) + _COLUMN_BYTES * len(record_keys)
        if size > LARGE_ROW_BYTES or not encoded:
            return False
        self._collected_bytes += size
        count = len(encoded)
        if self._partitions == 1:
            self._chunk(0).extend(record_keys, values, count, range(first, first + len(run)))
            return True
        for place, key in enumerate(keys):
            chunk = self._chunk(partition_for_key(key_of(key), self._partitions))
            start = place * count
            chunk.keys += record_keys[start : start + count]
            chunk.values += values[start : start + count]
            chunk.ends.append(len(chunk.keys))
            chunk.rows.append(first + place)
        return True

    def _collect_each(self, first: int, run: list[GivenRow]) -> Iterator[RowChunk]:
        """Collect rows one by one; yield chunks that come before a large row, and such a row."""
        for number, row in enumerate(run, first):
            try:
                key, names, values = self._converted(row)
            except HeadraceError as error:
                self._count = number + 1
                self.note_failure(number, _shown_key(row), error)
                return
            if not names:
                continue
            start, partition = row_start(key), partition_for_key(key, self._partitions)
            keys = [start + name for name in names]
            size = sum(map(len, keys)) + sum(map(len, filter(None, values))) + _COLUMN_BYTES * len(keys)
            if size > LARGE_ROW_BYTES and partition in self._collected:
                yield self._collected.pop(partition)
            self._chunk(partition).extend(keys, values, len(keys), [number])
            self._collected_bytes += size
            if size > LARGE_ROW_BYTES:
                yield self._collected.pop(partition)
            if self._collected_bytes >= COLLECTED_BYTES:
                yield from self._taken()

    def _converted(self, row: GivenRow) -> tuple[bytes, tuple[bytes, ...], list[bytes | None]]:
        """Return key, names and values of a row."""
        try:
            given, columns = row
        except (TypeError, ValueError):
            raise SerializationError(f"a row is a {type(row).__name__}, not a pair of key and columns") from None
        if not isinstance(columns, Mapping):
            raise SerializationError(f"the columns are a {type(columns).__name__}, not a mapping")
        return check_row(key_of(given)), _column_names(tuple(columns)), self._serialized(list(columns.values()))

    def _serialized(self, values: list[Any]) -> list[bytes | None]:
        if self._serializer is str.encode:
            try:
                return list(map(str.encode, values))
            except (TypeError, UnicodeError):
                pass  # A deletion, or a value that is no text.
        elif self._serializer is None and set(map(type, values)) <= {bytes, type(None)}:
            return values
        return [serialize(self._serializer, value, "value") for value in values]

    # --- what has become of them ---

    def note_written(self, chunk: RowChunk, first: int, records: int, base_offset: int) -> None:
        """Note that `records` records of a chunk from `first` on are stored from an offset on; -1 if it is unknown."""
        if base_offset < 0:
            return
        start, end = np.searchsorted(chunk.ends, (first, first + records), side="right").tolist()
        self._versions[chunk.rows[start:end]] = np.asarray(chunk.ends[start:end]) - 1 - first + base_offset

    def note_failure(self, row: int, key: bytes, cause: HeadraceError) -> None:
        """Note that a row has failed."""
        if self._failed is None or row < self._failed.row:
            self._failed = FailedRow(row, key, cause)
        if cause.outcome != Outcome.NOT_APPLIED:
            self._outcome = Outcome.UNKNOWN

    def note_refused(self, chunk: RowChunk, cause: HeadraceError) -> None:
        """Note that the producer did not take a chunk, or took a part of it."""
        self.note_records_failed(chunk, 0, cause)
        if len(chunk.rows) > 1:
            self._outcome = Outcome.UNKNOWN

    def note_records_failed(self, chunk: RowChunk, first: int, cause: HeadraceError) -> None:
        """Note that the records of a chunk from `first` on have failed."""
        place = int(np.searchsorted(chunk.ends, first, side="right"))
        key = split_key(chunk.keys[first])
        assert key is not None, "it is made of a row and a column"
        self.note_failure(chunk.rows[place], key[0], cause)

    def versions(self) -> Versions:
        """Return the version of each row, once all are written.

        Raises:
            PutManyError: If some were not.
        """
        versions = self._versions[: self._count].copy()
        if self._failed is not None:
            raise PutManyError(*self._failed[:2], versions, self._failed.cause, self._outcome) from self._failed.cause
        return versions


def parts_of(chunk: RowChunk, parts: Iterable[tuple[Any, int]]) -> Iterator[tuple[RowChunk, int, int, Any]]:
    """Yield for each batch of a chunk the chunk, its first record, its number of records, and its future."""
    first = 0
    for future, records in parts:
        yield chunk, first, records, future
        first += records


def bulk_settings(config: TableConfig) -> dict[str, Any]:
    """Return the settings of the producer of a table's `put_many`."""
    return {
        **{each.name: getattr(config, each.name) for each in fields(ClientConfig)},
        "linger_ms": 0,
        "batch_records": MAX_BATCH_RECORDS,
        "max_block_ms": config.request_timeout_ms,
        "delivery_timeout_ms": min(config.request_timeout_ms, MAX_DELIVERY_MS),
    }


def checked_ttl_ms(ttl: timedelta | None) -> int:
    """Return a time to live in ms, 0 for none.

    Raises:
        ConfigError: If it is over.
    """
    if ttl is None:
        return 0
    ttl_ms = round(ttl / timedelta(milliseconds=1))
    if ttl_ms < 1:
        raise ConfigError(f"ttl={ttl!r} is in the past", action="Use delete.")
    return ttl_ms


class GivenRows(NamedTuple):
    """Rows of a `put_many`."""

    rows: Iterable[GivenRow]
    serializer: Serializer | None
    """Serializer of their values; `None` for bytes."""
    total: int | None
    """Number of rows; `None` if it is not known before the last one."""


def given_rows(rows: Any, config: TableConfig, key_column: str, delete_nulls: bool) -> GivenRows:
    """Return the rows of an iterable of pairs of key and columns, of Arrow, pandas or Polars.

    Bytes and text of Arrow are taken as they are, if the table's values are bytes or text.

    Raises:
        ConfigError: If there is no such key column, or a column that is neither bytes nor text needs a serializer.
    """
    serializer = resolve_serializer(config.value_serializer, "value_serializer")
    table = arrow_of(rows)
    if not hasattr(table, "schema"):
        return GivenRows(rows, serializer, _count_of(rows))
    import pyarrow as pa

    is_plain = config.value_serializer in (None, "bytes", "str")
    schema = table.schema
    if key_column not in schema.names:
        raise ConfigError(f"there is no column {key_column!r} for the keys", action="Name it by key_column.")
    if len(set(schema.names)) < len(schema.names):
        raise ConfigError("two columns have the same name")
    for each in schema:
        if (is_plain or each.name == key_column) and not _is_binary(each.type):
            raise ConfigError(
                f"column {each.name} is {each.type}, neither bytes nor text",
                action='Cast it to text; for columns other than the key value_serializer="json" takes any value.',
            )
    if isinstance(table, pa.RecordBatchReader):
        batches: Iterable[Any] = table
    else:
        batches = table.to_batches() if isinstance(table, pa.Table) else [table]
    plain = None if is_plain else serializer
    return GivenRows(_arrow_rows(batches, key_column, delete_nulls, is_plain), plain, _count_of(table))


def _count_of(rows: Any) -> int | None:
    try:
        return len(rows)
    except TypeError:
        return None


def _arrow_rows(batches: Iterable[Any], key_column: str, delete_nulls: bool, is_plain: bool) -> Iterator[GivenRow]:
    import pyarrow as pa

    for whole in batches:
        for start in range(0, len(whole), ARROW_ROWS):
            batch = whole.slice(start, ARROW_ROWS)
            names = [name for name in batch.schema.names if name != key_column]
            arrays = [batch.column(name) for name in names]
            columns = [(array.cast(pa.binary()) if is_plain else array).to_pylist() for array in arrays]
            keys = batch.column(key_column).cast(pa.binary()).to_pylist()
            leaves_out = not delete_nulls and any(array.null_count for array in arrays)
            for key, *values in zip(keys, *columns, strict=True):
                found = dict(zip(names, values, strict=True))
                if leaves_out and None in values:
                    found = {name: value for name, value in found.items() if value is not None}
                yield key, found


def _is_binary(arrow_type: Any) -> bool:
    from pyarrow import types

    checks: tuple[Callable[[Any], bool], ...] = (
        types.is_binary, types.is_large_binary, types.is_string, types.is_large_string, types.is_null,
    )  # fmt: skip
    return any(check(arrow_type) for check in checks)


@lru_cache(256)
def _column_names(names: tuple[str, ...]) -> tuple[bytes, ...]:
    return tuple(check_column(name_of(name)) for name in names)


def _shown_key(row: Any) -> bytes:
    try:
        return key_of(row[0])
    except (HeadraceError, TypeError, LookupError):
        return repr(row)[:100].encode()
