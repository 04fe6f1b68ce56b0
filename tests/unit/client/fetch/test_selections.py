"""Ranges of a reader: which rows of a typed batch are in them."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from headrace.client.base.errors import ConfigError
from headrace.client.fetch.selections import filtered, named_selection
from headrace.partition.selections import selection_of
from headrace.v1 import broker_pb2
from headrace.wire.columns import decode_batch
from headrace.wire.encoding import RowBlocks, column_parts
from headrace.wire.typed.array_blocks import block_of_array
from headrace.wire.typed.arrow_columns import arrow_type
from headrace.wire.typed.topic_columns import parse_columns


def rows_within(kind: str, stored: list[int], low: Any, high: Any) -> list[int]:
    """Places of the stored values, given in the column's unit, that are within a range."""
    text = f"1 a {kind}"
    arrow = arrow_type(parse_columns(text).current[0].type)
    array = pa.array(stored, pa.int32() if arrow.bit_width == 32 else pa.int64()).view(arrow)
    block = block_of_array(array, parse_columns(text).current[0].type)
    batch = b"".join(column_parts(RowBlocks(text, [block], len(stored)), base_timestamp_ms=0))
    selection = named_selection("t", text, None, {"a": (low, high)})
    assert selection is not None
    found = filtered(decode_batch(batch, max_payload_bytes=1 << 20), selection)
    return list(found.offsets())


def moment(microseconds: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)


@pytest.mark.parametrize(
    ("kind", "low", "high", "found"),
    [
        ("timestamp[ms, UTC]", moment(1), None, [2, 3]),
        ("timestamp[ms, UTC]", moment(-1), moment(1_999), [1, 2]),
        ("timestamp[ms]", moment(1_000), moment(1_000), [2]),
        ("timestamp[ms]", moment(1), moment(999), []),
        ("timestamp[us]", pd.Timestamp(1, unit="ns"), pd.Timestamp(1_001, unit="ns"), [2]),
        ("duration[s]", timedelta(seconds=-1, microseconds=1), timedelta(seconds=1.5), [1, 2]),
        ("date", datetime(1970, 1, 1, 12), None, [2, 3]),
        ("date", None, datetime(1970, 1, 1, 12), [0, 1]),
        ("date", date(1970, 1, 1), datetime(1970, 1, 2), [1, 2]),
    ],
)
def test_an_end_that_is_finer_than_the_column_is_rounded_into_the_range(
    kind: str, low: Any, high: Any, found: list[int]
) -> None:
    """A row outside is not returned, and none within is missing."""
    assert rows_within(kind, [-1, 0, 1, 2], low, high) == found


def test_the_end_of_a_day_is_an_end() -> None:
    """After the last second there is no time of day."""
    assert rows_within("time[s]", [0, 86_399], time(23, 59, 59, 1), None) == []
    assert rows_within("time[s]", [0, 86_399], time(0, 0, 0, 1), time(23, 59, 59, 1)) == [1]


def test_an_end_of_another_type_is_refused() -> None:
    with pytest.raises(ConfigError, match="where: 'noon' is no timestamp"):
        rows_within("timestamp[ms]", [1], None, "noon")


def test_ranges_beyond_those_that_a_broker_takes_are_filtered_by_the_reader() -> None:
    """A broker refuses more than 16."""
    columns = parse_columns(", ".join(f"{number} c{number} int64" for number in range(1, 18)))
    arrays = [pa.array([1, 2], pa.int64())] * 16 + [pa.array([0, 1], pa.int64())]
    blocks = [block_of_array(array, column.type) for array, column in zip(arrays, columns.current, strict=True)]
    batch = b"".join(column_parts(RowBlocks(columns.batch_text, blocks, 2), base_timestamp_ms=0))
    where = {column.name: (1, None) for column in columns.current}
    selection = named_selection("t", str(columns), None, where)
    assert selection is not None
    asked = selection_of(broker_pb2.TopicFetch(selection=selection.message))
    assert asked == selection.on_wire
    assert [each.column_id for each in selection.message.ranges] == list(range(1, 17))
    assert list(filtered(decode_batch(batch, max_payload_bytes=1 << 20), selection).offsets()) == [1]
