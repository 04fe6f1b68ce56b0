"""Selection of columns of a typed topic by names and values, as a reader is given it."""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import compress
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.client.base.arguments import listed
from headrace.client.base.errors import ConfigError
from headrace.client.base.records import METADATA_COLUMNS
from headrace.v1 import broker_pb2
from headrace.wire.batch import BatchFlags
from headrace.wire.decoded import BinaryColumn, Columns, HeaderColumns, Headers
from headrace.wire.encoding import join_column
from headrace.wire.typed.payload import DOUBLE, INT64, NO_BOUNDS, TEXT, UINT64
from headrace.wire.typed.selection import MAX_RANGES, ColumnRange, ColumnSelection
from headrace.wire.typed.topic_columns import TopicColumn, TopicColumns, parse_columns
from headrace.wire.typed.typed_columns import TypedColumns

_OF_REST = {"_timestamp", "_key", "_headers"}
_OPEN = {
    INT64: (struct.pack("<q", -(2**63)), struct.pack("<q", 2**63 - 1)),
    UINT64: (bytes(8), struct.pack("<Q", 2**64 - 1)),
    DOUBLE: (struct.pack("<d", float("-inf")), struct.pack("<d", float("inf"))),
    TEXT: (bytes(8), b"\xff" * 8),
}
"""By kind of bounds: the least and the greatest, where a range has no end."""


@dataclass(frozen=True)
class NamedSelection:
    """Columns that a reader returns, and ranges in which their values must be."""

    columns: TopicColumns
    """Columns of the topic."""
    names: tuple[str, ...] | None
    """Columns that are returned; `None` for all of the topic, with keys and headers."""
    where: tuple[tuple[str, Any, Any], ...] = ()
    """Column, minimum and maximum, both included; `None` for no end."""

    @cached_property
    def returned(self) -> tuple[TopicColumn, ...]:
        """Columns of the topic that are returned."""
        if self.names is None:
            return self.columns.current
        return tuple(self.columns.by_name(name) for name in self.names if name not in METADATA_COLUMNS)

    @cached_property
    def ends(self) -> tuple[tuple[TopicColumn, Any, Any], ...]:
        """`where` with ends that the columns have: Arrow arrays of one value, or `None`.

        Raises:
            ConfigError: If a value is none of its column's type.
        """
        columns = [self.columns.by_name(name) for name, _, _ in self.where]
        return tuple(
            (column, _end(column, low, is_low=True), _end(column, high, is_low=False))
            for column, (_, low, high) in zip(columns, self.where, strict=True)
        )

    @cached_property
    def on_wire(self) -> ColumnSelection:
        """What is fetched: the returned columns, and those of the ranges; at most as many ranges as a broker takes."""
        ids = {column.id for column in self.returned} | {column.id for column, _, _ in self.ends}
        ranges = [_range(column, low, high) for column, low, high in self.ends]
        rest = self.names is None or not _OF_REST.isdisjoint(self.names)
        return ColumnSelection(frozenset(ids), rest, tuple(each for each in ranges if each is not None)[:MAX_RANGES])

    @cached_property
    def message(self) -> broker_pb2.ColumnSelection:
        """`on_wire` as a message."""
        found = self.on_wire
        return broker_pb2.ColumnSelection(
            column_ids=sorted(found.ids),
            rest=found.rest,
            ranges=[
                broker_pb2.ColumnRange(
                    column_id=each.column_id, bounds=each.bounds, minimum=each.minimum, maximum=each.maximum
                )
                for each in found.ranges
            ],
        )


def named_selection(
    topic: str, columns: str, names: Sequence[str] | None, where: Mapping[str, tuple[Any, Any]] | None
) -> NamedSelection | None:
    """Return the selection of a reader's arguments; `None` for whole batches.

    Raises:
        ConfigError: If the topic is not typed, or an argument is not of the stated form.
        InvalidConfigError: If there is no such column.
    """
    if names is None and not where:
        return None
    if not columns:
        raise ConfigError(
            f"columns and where are for typed topics, and {topic} has no columns", action="Leave them out."
        )
    listed("columns", names or ())
    ranges = []
    for name, ends in (where or {}).items():
        if not isinstance(ends, tuple | list) or len(ends) != 2:
            raise ConfigError(f"where: {name} has no two ends", action="Pass (minimum, maximum), with None for no end.")
        ranges.append((name, ends[0], ends[1]))
    found = NamedSelection(parse_columns(columns), None if names is None else tuple(names), tuple(ranges))
    _ = found.on_wire  # Names and values are checked here.
    return found


def filtered(columns: Columns, selection: NamedSelection) -> Columns:
    """Return the rows of a typed batch that are in all ranges, with the offsets that they have.

    The result is like a compacted batch: without the other records, to the end of the range of offsets.
    """
    typed = columns.typed
    if typed is None or not selection.where:
        return columns
    kept = _kept(columns, typed, selection)
    if kept.all():
        return columns
    header, offsets = columns.header, columns.offset_array(0, columns.record_count)
    headers = None
    if columns.header_columns is not None:
        headers = _header_columns(list(compress(columns.headers(), kept.tolist())))
    return Columns(
        header._replace(
            record_count=int(kept.sum()), flags=header.flags | BatchFlags.COMPACTED, producer_id=header.end_offset
        ),
        typed.filtered(kept),
        None if columns.key_column is None else columns.key_column.take(kept),
        None if columns.timestamps_ms is None else columns.timestamps_ms[kept],
        headers,
        offsets[kept],
    )


def _kept(columns: Columns, typed: TypedColumns, selection: NamedSelection) -> npt.NDArray[np.bool_]:
    """Return which rows are in all ranges; null is in none."""
    import pyarrow.compute as pc

    kept = np.ones(columns.record_count, np.bool_)
    if selection.on_wire.excludes(columns.header, typed.directory):
        return ~kept
    for column, low, high in selection.ends:
        array = typed.array(typed.widest(column))
        for end, compare in ((low, pc.greater_equal), (high, pc.less_equal)):
            if end is not None:
                found = compare(array, end[0])
                kept &= found.fill_null(fill_value=False).to_numpy(zero_copy_only=False)
        if low is None and high is None:
            kept &= array.is_valid().to_numpy(zero_copy_only=False)
    return kept


def _header_columns(headers: list[Headers]) -> HeaderColumns:
    """Return headers of records as columns."""
    pairs = [pair for of_record in headers for pair in of_record]
    cuts = np.zeros(len(headers) + 1, np.int32)
    np.cumsum([len(of_record) for of_record in headers], out=cuts[1:])
    names, values = (
        join_column("header", [name.encode() for name, _ in pairs]),
        join_column("header", [value for _, value in pairs]),
    )
    return HeaderColumns(
        cuts,
        BinaryColumn(names.offsets, memoryview(names.data), None),
        BinaryColumn(values.offsets, memoryview(values.data), None),
    )


def _range(column: TopicColumn, low: Any, high: Any) -> ColumnRange | None:
    """Return a range by which batches are skipped, of ends as `ends` has them; `None` for a column without bounds."""
    from headrace.wire.typed.array_blocks import ArrayBlocks

    found = [(NO_BOUNDS, b"") if end is None else ArrayBlocks(end, column.type).bounds(0, 1)[:2] for end in (low, high)]
    kinds = {kind for kind, _ in found if kind != NO_BOUNDS}
    if len(kinds) != 1:
        return None
    (kind,) = kinds
    (low_kind, minimum), (high_kind, maximum) = found
    least, most = _OPEN[kind]
    return ColumnRange(column.id, kind, minimum if low_kind == kind else least, maximum if high_kind == kind else most)


def _end(column: TopicColumn, value: Any, *, is_low: bool) -> Any:
    """Return an end as an array of one value; one that is finer than the column is rounded into the range."""
    import pyarrow as pa

    from headrace.wire.typed.arrow_columns import array_of_value, arrow_type, is_finer

    if value is None:
        return None
    try:
        if not is_finer(value, column.type):
            return array_of_value(value, column.type)
        array = pa.array([value], arrow_type(column.type))  # Rounded down.
        whole = pa.int32() if array.type.bit_width == 32 else pa.int64()
        return pa.array([array.view(whole)[0].as_py() + is_low], whole).view(array.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise ConfigError(f"where: {value!r} is no {column.type}, the type of {column.name}") from error
