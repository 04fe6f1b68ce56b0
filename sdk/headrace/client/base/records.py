"""Records that applications receive: single records, and batches that stay columns until they are accessed.

A `RecordBatch` is a sequence of `Record`s over the columns that a broker sent. The objects are created by C loops, one
batch at a time, on first use; `to_arrow` never creates them.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, repeat
from typing import Any, NamedTuple, cast, overload

import numpy as np
import numpy.typing as npt

from headrace.client.base.serializers import Deserializer, deserialize
from headrace.wire.decoded import BinaryColumn, Columns, Headers
from headrace.wire.ids import TopicPartition
from headrace.wire.trace_context import BATCH_TRACEPARENT, TRACEPARENT
from headrace.wire.typed.topic_columns import TopicColumn, TopicColumns

__all__ = ["DecodedBatch", "Deserializers", "Record", "RecordBatch", "RecordMetadata", "TopicPartition"]


METADATA_COLUMNS = ("_topic", "_partition", "_offset", "_timestamp", "_key", "_headers")
"""Columns of a typed topic's tables besides its own; without the underscore, those of other tables."""

HEADERS_AT_ONCE = 50_000
"""Maximum number of headers whose objects are created at once; one record may exceed it."""


class Record(NamedTuple):
    """Record as an application receives it."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    """Milliseconds since 1970: set by the producer, or the time at which its batch was opened."""
    key: Any
    """bytes or None, unless a key_deserializer is set."""
    value: Any
    """bytes or None (a null value), unless a value_deserializer is set; of a typed topic a dict by column name."""
    headers: tuple[tuple[str, bytes], ...]

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        from headrace.display.html_tables import records_html

        return records_html([self], "Record")


class RecordMetadata(NamedTuple):
    """Position at which a record was stored."""

    topic: str
    partition: int
    offset: int
    """-1 with acks=0, and if a retry was recognised so late that the broker had forgotten the offset."""
    timestamp_ms: int


class _PlainTuple(tuple[Any, ...]):
    """Has the constructor of `tuple`: a class that inherits from it first is called without Python code."""

    __slots__ = ()


class _Received(_PlainTuple, Record):
    """Record made from a tuple of its fields, in a sixth of the time of calling Record; copies are of type Record."""

    __slots__ = ()
    __new__ = tuple.__new__  # type: ignore[assignment]

    def __reduce__(self) -> tuple[type[Record], tuple[Any, ...]]:
        return Record, tuple(self)


_Received.__name__ = _Received.__qualname__ = Record.__name__  # For `repr`.
_make_record = cast("Callable[[tuple[Any, ...]], Record]", _Received)


@dataclass(frozen=True, slots=True)
class Deserializers:
    """Functions that convert a consumer's bytes into objects; `None` returns bytes."""

    key: Deserializer | None = None
    value: Deserializer | None = None


@dataclass(frozen=True, slots=True)
class DecodedBatch:
    """Consecutive records of one batch. Immutable, any thread."""

    source: TopicPartition
    columns: Columns
    start: int
    """Index of the first record within the batch."""
    end: int
    """Index after the last record."""
    deserializers: Deserializers
    topic_columns: TopicColumns | None = None
    """Columns of a typed topic, by which its rows are returned; `None` for those of the batch."""

    @property
    def is_empty(self) -> bool:
        """Whether it has no records: it only moves a reader to its end."""
        return self.start == self.end

    @property
    def base_offset(self) -> int:
        """Offset of the first record; of an empty one, its end."""
        return self.end_offset if self.is_empty else self.offsets()[0]

    @property
    def end_offset(self) -> int:
        """Offset at which a reader continues; behind the last record, in a compacted topic not directly behind it."""
        return self.columns.offset_after(self.end)

    @property
    def leader_epoch(self) -> int:
        """Leader epoch of the batch."""
        return self.columns.header.leader_epoch

    @property
    def payload_bytes(self) -> int:
        """Approximate share of the records in the batch's payload, after decompression."""
        header = self.columns.header
        return header.payload_bytes * (self.end - self.start) // max(1, header.record_count)

    def cut(self, start: int, end: int) -> "DecodedBatch":
        """Return the records `start` to `end`, as indexes within this decoded batch."""
        return replace(self, start=self.start + start, end=self.start + end)

    def offset_after(self, records: int) -> int:
        """Return the offset at which a reader continues that has the first `records`."""
        return self.columns.offset_after(self.start + records)

    def offsets(self) -> Sequence[int]:
        """Return the records' offsets."""
        return self.columns.offsets(self.start, self.end)

    def records(self, offsets: Iterator[int]) -> Iterator[Record]:
        """Return the records by C loops alone; `offsets` is consumed in step with them and limits their number."""
        columns, start, end = self.columns, self.start, self.end
        values: Iterator[Any]
        if columns.typed is not None and self.deserializers.value is None:
            values = iter(columns.typed.rows(start, end, self.current_columns))
        else:
            values = self._objects(_entries(columns.value_column, start, end), self.deserializers.value, "value")
        keys: Iterator[Any] = repeat(None)
        if columns.key_column is not None:
            keys = self._objects(_entries(columns.key_column, start, end), self.deserializers.key, "key")
        times: Iterator[int] = repeat(columns.header.base_timestamp_ms)
        if columns.timestamps_ms is not None:
            times = iter(columns.timestamps_ms[start:end].tolist())
        headers: Iterator[Any] = repeat(())
        if columns.header_columns is not None:
            headers = _headers(columns, start, end)
        return map(
            _make_record,
            zip(
                repeat(self.source.topic),
                repeat(self.source.partition),
                offsets,
                times,
                keys,
                values,
                headers,
                strict=False,
            ),
        )

    def traceparents(self) -> Iterator[bytes]:
        """Yield the trace contexts of the records, that of the whole batch first; one may come several times."""
        columns = self.columns.header_columns
        if columns is None or TRACEPARENT.encode() not in bytes(columns.keys.data):
            return
        shared = _batch_header(self.columns)
        if shared is not None:
            yield shared[1]
        for headers in self.columns.headers(self.start, self.end):
            yield from (value for name, value in headers if name in {TRACEPARENT, BATCH_TRACEPARENT})

    @property
    def current_columns(self) -> Sequence[TopicColumn]:
        """Columns of the rows of a typed batch."""
        assert self.columns.typed is not None, "the batch is typed"
        return self.columns.typed.columns if self.topic_columns is None else self.topic_columns.current

    def _objects(self, data: list[Any], how: Deserializer | None, what: str) -> Iterator[Any]:
        if how is None:
            return iter(data)
        return map(deserialize, repeat(how), data, repeat(what), repeat(self.source), self.offsets())


def bytes_of(value: Any) -> Any:
    """Return a value that was not deserialized as bytes: a row of a typed topic as a JSON object, others unchanged."""
    if not isinstance(value, dict):
        return value
    from headrace.wire.typed.json_values import json_row

    return json_row(value)


def _entries(column: BinaryColumn, start: int, end: int) -> list[Any]:
    whole = start == 0 and end == len(column.offsets) - 1
    return column.to_list() if whole else column.part(start, end).to_list()


def _headers(columns: Columns, start: int, end: int) -> Iterator[Headers]:
    """Yield the headers of records; if there are very many, create the objects for some records at a time."""
    assert columns.header_columns is not None
    ends = columns.header_columns.list_offsets
    has_context = BATCH_TRACEPARENT.encode() in bytes(columns.header_columns.keys.data)
    shared = _batch_header(columns) if has_context else None
    if shared is not None and ends[-1] == 1:
        return repeat((shared,))
    if ends[end] - ends[start] <= HEADERS_AT_ONCE:
        headers = iter(columns.headers(start, end))
    else:
        headers = chain.from_iterable(_headers_in_pieces(columns, ends, start, end))
    return map(_share, headers, repeat(shared)) if has_context else headers


def _batch_header(columns: Columns) -> tuple[str, bytes] | None:
    """Return the header that the batch's first record has for all of them; see `headrace.wire.trace_context`."""
    if not columns.record_count or columns.record_offsets is not None:
        return None
    found = (value for name, value in columns.headers(0, 1)[0] if name == BATCH_TRACEPARENT)
    value = next(found, None)
    return None if value is None else (TRACEPARENT, value)


def _share(headers: Headers, shared: tuple[str, bytes] | None) -> Headers:
    """Return a record's headers with the context that its batch shares, if it has none of its own."""
    own = tuple((TRACEPARENT if name == BATCH_TRACEPARENT else name, value) for name, value in headers)
    return own if shared is None or any(name == TRACEPARENT for name, _ in own) else (*own, shared)


def _headers_in_pieces(columns: Columns, ends: npt.NDArray[np.int32], start: int, end: int) -> Iterator[list[Headers]]:
    while start < end:
        fits = int(np.searchsorted(ends, ends[start] + HEADERS_AT_ONCE, "right")) - 1
        stop = min(end, max(start + 1, fits))
        yield columns.headers(start, stop)
        start = stop


class RecordBatch(Sequence[Record]):
    """Records in the order of receipt, as a sequence and as a source of tables. Immutable; any thread."""

    __slots__ = ("_records", "decoded_batches")

    def __init__(self, decoded_batches: Sequence[DecodedBatch]) -> None:
        self.decoded_batches: tuple[DecodedBatch, ...] = tuple(decoded_batches)
        self._records: list[Record] | None = None

    def __len__(self) -> int:
        return sum(decoded.end - decoded.start for decoded in self.decoded_batches)

    def __iter__(self) -> Iterator[Record]:
        if self._records is not None:
            return iter(self._records)
        return chain.from_iterable(decoded.records(iter(decoded.offsets())) for decoded in self.decoded_batches)

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> list[Record]: ...
    def __getitem__(self, index: int | slice) -> Record | list[Record]:
        return self._list()[index]

    def __repr__(self) -> str:
        return f"RecordBatch({len(self)} records of {len(self.by_partition())} partitions)"

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the first records, of which alone objects are made."""
        from headrace.display.html_tables import MAX_ROWS, count_text, records_html

        return records_html(self._first(MAX_ROWS), count_text(len(self), "record"))

    def _first(self, count: int) -> list[Record]:
        records: list[Record] = []
        for decoded in self.decoded_batches:
            part = decoded.cut(0, min(decoded.end - decoded.start, count - len(records)))
            records.extend(part.records(iter(part.offsets())))
            if len(records) == count:
                break
        return records

    def _list(self) -> list[Record]:
        if self._records is None:
            records: list[Record] = []
            for decoded in self.decoded_batches:
                records.extend(decoded.records(iter(decoded.offsets())))
            self._records = records
        return self._records

    def by_partition(self) -> dict[TopicPartition, "RecordBatch"]:
        """Return the records of each partition, in order, partitions in the order in which they first appear."""
        parts: dict[TopicPartition, list[DecodedBatch]] = {}
        for decoded in self.decoded_batches:
            parts.setdefault(decoded.source, []).append(decoded)
        return {source: RecordBatch(decoded_batches) for source, decoded_batches in parts.items()}

    def to_arrow(self, columns: Sequence[str] | None = None) -> Any:
        """Return a `pyarrow.Table` over the same memory, with one Arrow chunk per batch and no copy.

        Of a typed topic, the table has its columns, or those that are named here: also `_topic`, `_partition`,
        `_offset`, `_timestamp`, `_key` and `_headers`. Of another topic:

        Columns: topic (dictionary of string), partition int32, offset int64, timestamp (ms, UTC), key and value binary,
        headers list<struct<key: string, value: binary>>. Keys and values are the bytes as sent; deserializers do not
        apply, except for `headrace.schemas.Avro` of values: the table has the columns of the record's schema, as that
        of a typed topic, and null for a null value.

        Raises:
            ImportError: If pyarrow is not installed; install `headrace[arrow]`.
            InvalidConfigError: If there is no such column, or a field of the Avro schema can be none.
            SerializationError: If an Avro value does not fit; it has the partition and the offset.
        """
        from headrace.client.base.arrow_tables import table_of

        return table_of(self.decoded_batches, columns)

    def to_pandas(self) -> Any:
        """Return a `pandas.DataFrame` with the columns of `to_arrow`; deserializers apply to keys and values.

        A column with values that pandas has not, such as dates outside the years 1 to 9999, has objects, as rows have.

        Raises:
            ImportError: If pandas or pyarrow is not installed.
            SerializationError: If a deserializer failed.
        """
        from headrace.client.base.arrow_objects import frame_of

        frame = frame_of(self.to_arrow())
        if "value" not in frame or any(decoded.columns.typed is not None for decoded in self.decoded_batches):
            return frame
        for name in ("key", "value"):
            if any(getattr(decoded.deserializers, name) for decoded in self.decoded_batches):
                frame[name] = type(frame[name])([getattr(record, name) for record in self], index=frame.index)
        return frame
