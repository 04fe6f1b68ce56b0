"""Columns of a table's files: types that its format has, and rows by directory."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.client.base.arrow_tables import SCHEMA
from headrace.client.loading.formats import LoadFormat
from headrace.client.loading.tables.errors import LoadError
from headrace.wire.typed.arrow_columns import cast_exactly, first_misfit

HOUR = "event_hour"
HOUR_MS = 3_600_000
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
EMPTY_TEXT = "__EMPTY__"
"""Directory of the empty text in Iceberg, whose files have one value each; in Parquet and Delta that is null."""
RESERVED_TEXTS = re.compile(f"({EMPTY_TEXT}|{NO_VALUE})_*")
"""Texts of Iceberg whose directory would be that of the empty text or of null; theirs has a further `_`."""
UNTYPED = ("key", "value", "topic", "partition", "offset", "timestamp", "headers")
"""Columns of a topic of bytes, in the order of those of `spark_jobs.load`, and the headers."""
METADATA = ("_partition", "_offset", "_timestamp", "_key")
"""Columns besides a typed topic's own, as in `spark_jobs.load`."""
_ESCAPED = re.compile(r"[\x00-\x1f\x7f\"#%'*/:=?\\{\[\]^]")
"""Characters that Spark escapes in the name of a directory."""


def file_type(kind: Any, table_format: LoadFormat) -> Any:
    """Return the type of a column in files for an Arrow type.

    Times of s and ms have microseconds in files, as Spark's. Delta and Iceberg have no unsigned integers and no
    nanoseconds; Delta has no times of day.

    Raises:
        LoadError: If the format has no type for it.
    """
    types = pa.types
    is_plain = table_format is LoadFormat.PARQUET
    if types.is_dictionary(kind):
        return file_type(kind.value_type, table_format)
    if types.is_timestamp(kind):
        return kind if is_plain and kind.unit == "ns" else pa.timestamp("us", kind.tz and "UTC")
    if types.is_time(kind) and table_format is not LoadFormat.DELTA:
        return kind if is_plain and kind.unit == "ns" else pa.time64("us")
    if types.is_list(kind):
        return pa.list_(file_type(kind.value_type, table_format))
    if types.is_map(kind):
        return pa.map_(file_type(kind.key_type, table_format), file_type(kind.item_type, table_format))
    if types.is_struct(kind):
        fields = [kind.field(place) for place in range(kind.num_fields)]
        return pa.struct([(field.name, file_type(field.type, table_format)) for field in fields])
    if types.is_unsigned_integer(kind) and not is_plain:
        return {8: pa.int32(), 16: pa.int32(), 32: pa.int64(), 64: pa.decimal128(20, 0)}[kind.bit_width]
    if table_format is LoadFormat.ICEBERG and types.is_signed_integer(kind):
        return pa.int32() if kind.bit_width < 64 else kind
    if types.is_fixed_size_binary(kind) and not types.is_decimal(kind) and table_format is LoadFormat.DELTA:
        return pa.binary()
    if types.is_duration(kind) or types.is_time(kind) or (types.is_decimal256(kind) and not is_plain):
        raise LoadError(f"{table_format.value} has no type for {kind}; load it into a table of another format")
    return kind


def file_columns(schema: Any, table_format: LoadFormat) -> Any:
    """Return the columns of files for a topic's Arrow columns; all of them may be null.

    Raises:
        LoadError: If the format has no type for one.
    """
    fields = []
    for field in schema:
        try:
            fields.append(pa.field(field.name, file_type(field.type, table_format)))
        except LoadError as error:
            raise LoadError(f"column {field.name}: {error}") from None
    return pa.schema(fields)


def untyped_columns() -> Any:
    """Return the Arrow columns of a topic of bytes."""
    return pa.schema([SCHEMA.field(name) for name in UNTYPED])


def conformed(batch: Any, columns: Any) -> Any:
    """Return a record batch with these columns, of which the batch has all.

    Raises:
        LoadError: If a value does not fit, such as nanoseconds.
    """
    arrays = []
    for field in columns:
        array = batch.column(field.name)
        if array.type != field.type:
            try:
                array = cast_exactly(array, field.type)
            except pa.ArrowInvalid as error:
                where = f"column {field.name}{_place_of_misfit(batch, array, field.type)}"
                is_beyond_all = pa.types.is_timestamp(array.type) and array.type.unit in ("s", "ms")
                advice = "no table has such times" if is_beyond_all else "load it into a table of another format"
                raise LoadError(f"{where}: {error}; {advice}") from None
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=columns)


def _place_of_misfit(batch: Any, array: Any, kind: Any) -> str:
    """Return partition and offset of the first value that does not fit, or nothing if the batch does not have them."""
    if not {"_partition", "_offset"} <= set(batch.schema.names):
        return ""
    row = first_misfit(array, lambda part: cast_exactly(part, kind))
    partition, offset = (batch.column(name)[row].as_py() for name in ("_partition", "_offset"))
    return f", partition {partition}, offset {offset}"


class Directories:
    """Directories of rows by the values of columns. Immutable."""

    def __init__(self, names: Sequence[str], columns: Any, *, has_empty_text: bool = False) -> None:
        """`columns` are those of the files, which have the names; `event_hour` is derived from the record's time.

        `has_empty_text` gives each text another directory than null, also the empty one.

        Raises:
            LoadError: If one does not exist, or its type is none of strings, integers, bools and dates.
        """
        self.names = tuple(names)
        self._label = _distinct_label if has_empty_text else _label
        self.hour_of = "_timestamp" if "_timestamp" in columns.names else "timestamp"
        for name in self.names:
            if name in columns.names:
                kind = columns.field(name).type
                if not (pa.types.is_string(kind) or pa.types.is_integer(kind) or kind in (pa.bool_(), pa.date32())):
                    raise LoadError(f"--partition-by {name}: it is {kind}; name a string, an integer, a bool or a date")
            elif name != HOUR:
                raise LoadError(f"--partition-by {name}: the table has the columns {', '.join(columns.names)}")

    def split(self, batch: Any) -> Iterator[tuple[str, Any]]:
        """Yield the directory of some rows, and the rows."""
        codes = np.zeros(batch.num_rows, np.int64)
        texts: list[list[str]] = []
        for name in self.names:
            found, labels = self._hours(batch) if name not in batch.schema.names else self._values(batch.column(name))
            codes = codes * len(labels) + found
            texts.append([f"{name}={label}" for label in labels])
        first = int(codes[0]) if len(codes) else 0
        if (codes == first).all():
            yield _path(first, texts), batch
            return
        for code in np.unique(codes).tolist():
            yield _path(code, texts), batch.take(_indices(np.flatnonzero(codes == code)))

    def _hours(self, batch: Any) -> tuple[Any, list[str]]:
        times = batch.column(self.hour_of)
        ticks = _numbers(times.cast(pa.int64()), np.int64)
        hours, codes = np.unique(ticks // (HOUR_MS * 1_000), return_inverse=True)
        labels = np.datetime_as_string(hours.astype("datetime64[h]"), "h")
        return codes, [label.replace("T", "-") for label in labels.tolist()]

    def _values(self, array: Any) -> tuple[Any, list[str]]:
        encoded = pc.dictionary_encode(array, null_encoding="encode")
        values = _texts_of_dates(encoded.dictionary) if array.type == pa.date32() else encoded.dictionary.to_pylist()
        labels = [self._label(value) for value in values]
        return _numbers(encoded.indices, np.int32).astype(np.int64), labels


def _numbers(array: Any, dtype: Any) -> Any:
    """Return the numbers of an Arrow array. Its own conversions import pandas if installed: a second, and 40 MB."""
    buffer = array.buffers()[1]
    return np.frombuffer(buffer, dtype, len(array), array.offset * np.dtype(dtype).itemsize)


def _texts_of_dates(dates: Any) -> list[str | None]:
    """Return dates in ISO 8601, also those outside the years 1 to 9999, which Python has not."""
    days = dates.view(pa.int32()).to_pylist()
    return [None if day is None else str(np.datetime64(day, "D")) for day in days]


def _indices(numbers: Any) -> Any:
    return pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers)])


def _distinct_label(value: Any) -> str:
    if value == "":
        return EMPTY_TEXT
    is_reserved = isinstance(value, str) and RESERVED_TEXTS.fullmatch(value)
    return _label(f"{value}_" if is_reserved else value)


def _label(value: Any) -> str:
    if value is None or value == "":
        return NO_VALUE
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)


def _path(code: int, texts: Sequence[Sequence[str]]) -> str:
    parts = []
    for labels in reversed(texts):
        code, place = divmod(code, len(labels))
        parts.append(labels[place])
    return "/".join(reversed(parts))
