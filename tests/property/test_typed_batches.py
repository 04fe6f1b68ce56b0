"""Typed batches of random columns and rows: what goes in comes out, and readers of other columns read them."""

from __future__ import annotations

import datetime as dt
import json
import struct
from decimal import Decimal
from typing import Any

import pyarrow as pa
from headrace.client.producer.rows import ColumnSizes
from headrace.wire.batch import check_batch
from headrace.wire.columns import check_columns, decode_batch
from headrace.wire.compression import Codec
from headrace.wire.encoding import RowBlocks, column_parts
from headrace.wire.errors import InvalidConfigError
from headrace.wire.typed.array_blocks import ArrayBlocks, block_of_array
from headrace.wire.typed.arrow_columns import array_of_block, arrays_of_rows, arrow_schema, arrow_type, column_type
from headrace.wire.typed.blocks import read_block, values_of
from headrace.wire.typed.column_types import ColumnType, parse_type
from headrace.wire.typed.json_values import json_row, row_of_json
from headrace.wire.typed.payload import DOUBLE, INT64, NO_BOUNDS, TEXT, UINT64
from headrace.wire.typed.row_blocks import blocks_of_rows
from headrace.wire.typed.topic_columns import TopicColumns, evolved, parse_columns, writable
from headrace.wire.typed.typed_columns import TypedColumns
from hypothesis import given, settings
from hypothesis import strategies as st

BIG = 1 << 24
SIMPLE: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "int8": st.integers(-128, 127),
    "int16": st.integers(-(2**15), 2**15 - 1),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "uint8": st.integers(0, 255),
    "uint64": st.integers(0, 2**64 - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "string": st.text(max_size=8),
    "binary": st.binary(max_size=8),
    "binary[3]": st.binary(min_size=3, max_size=3),
    "date": st.dates(),
    "time[ms]": st.integers(0, 86_399_999).map(
        lambda ms: (dt.datetime(1970, 1, 1) + dt.timedelta(milliseconds=ms)).time()
    ),
    "timestamp[us, UTC]": st.datetimes(timezones=st.just(dt.UTC)),
    "timestamp[ms]": st.datetimes().map(lambda at: at.replace(microsecond=at.microsecond // 1000 * 1000)),
    "duration[s]": st.integers(-(10**9), 10**9).map(lambda seconds: dt.timedelta(seconds=seconds)),
    "decimal(10, 2)": st.integers(-(10**10) + 1, 10**10 - 1).map(lambda number: Decimal(number).scaleb(-2)),
    "decimal(50, 3)": st.integers(-(10**50) + 1, 10**50 - 1).map(lambda number: Decimal(f"{number}e-3")),
}


@st.composite
def typed_values(draw: st.DrawFn, depth: int = 2) -> tuple[str, st.SearchStrategy[Any]]:
    """Draw the text of a type and a strategy of its values."""
    kind = draw(st.sampled_from(["simple"] * 4 + (["list", "map", "struct"] if depth else [])))
    if kind == "simple":
        text = draw(st.sampled_from(sorted(SIMPLE)))
        return text, SIMPLE[text]
    if kind == "list":
        text, values = draw(typed_values(depth - 1))
        return f"list<{text}>", st.lists(st.none() | values, max_size=3)
    if kind == "map":
        text, values = draw(typed_values(depth - 1))
        key = draw(st.sampled_from(["string", "int64", "bool", "date", "binary", "double", "decimal(10, 2)"]))
        return f"map<{key}, {text}>", st.dictionaries(SIMPLE[key], st.none() | values, max_size=3)
    fields = [draw(typed_values(depth - 1)) for _ in range(draw(st.integers(1, 2)))]
    text = ", ".join(f"f{place}: {kind}" for place, (kind, _) in enumerate(fields))
    return f"struct<{text}>", st.fixed_dictionaries(
        {f"f{place}": st.none() | values for place, (_, values) in enumerate(fields)}
    )


@st.composite
def tables(draw: st.DrawFn) -> tuple[TopicColumns, list[dict[str, Any]]]:
    """Draw columns and rows of them."""
    kinds = [draw(typed_values()) for _ in range(draw(st.integers(1, 4)))]
    required = [draw(st.booleans()) for _ in kinds]
    text = ", ".join(
        f"c{place} {kind}{' required' * needed}"
        for place, ((kind, _), needed) in enumerate(zip(kinds, required, strict=True))
    )
    row = {
        f"c{place}": values if needed else st.none() | values
        for place, ((_, values), needed) in enumerate(zip(kinds, required, strict=True))
    }
    rows = draw(st.lists(st.fixed_dictionaries(row), min_size=1, max_size=12))
    return parse_columns(evolved("", text, "backward")), rows


def written(columns: TopicColumns, rows: list[dict[str, Any]], codec: Codec, start: int = 0) -> TypedColumns:
    """Return the rows from `start` on as a reader decodes them, from a batch that a leader has checked."""
    arrays = [array.slice(start) for array in arrays_of_rows(rows, columns)]
    blocks = [block_of_array(array, column.type) for array, column in zip(arrays, columns.current, strict=True)]
    parts = column_parts(RowBlocks(columns.batch_text, blocks, len(rows) - start), base_timestamp_ms=0, codec=codec)
    batch = b"".join(parts)
    header = check_batch(batch, max_batch_bytes=BIG, max_records=BIG, max_payload_bytes=BIG)
    check_columns(batch, header, max_payload_bytes=BIG)
    found = decode_batch(batch, max_payload_bytes=BIG).typed
    assert found is not None
    found.check()
    return found


@given(table=tables(), codec=st.sampled_from(list(Codec)), data=st.data())
@settings(max_examples=150, deadline=None)
def test_rows_come_back(table: tuple[TopicColumns, list[dict[str, Any]]], codec: Codec, data: st.DataObject) -> None:
    """As objects and as Arrow arrays, also those of a slice."""
    columns, rows = table
    start = data.draw(st.integers(0, len(rows) - 1))
    found = written(columns, rows, codec, start)
    assert found.rows(0, len(rows) - start) == rows[start:]
    arrays = arrays_of_rows(rows, columns)
    for column, array in zip(columns.current, arrays, strict=True):
        assert found.array(column).equals(array.slice(start))
        assert column_type(array.type) == column.type
    assert arrow_schema(columns.current).names == [column.name for column in columns.current]


WIDER = {
    "int8": "int64", "int16": "double", "uint8": "int32", "float": "double", "string": "binary",
    "decimal(10, 2)": "decimal(20, 2)",
}  # fmt: skip


@given(table=tables(), data=st.data())
@settings(max_examples=150, deadline=None)
def test_readers_of_other_columns(table: tuple[TopicColumns, list[dict[str, Any]]], data: st.DataObject) -> None:
    """After any change that `backward` allows, the new columns read old rows, as objects and as Arrow arrays alike."""
    columns, rows = table
    texts = []
    for column in columns.current:
        change = data.draw(st.sampled_from(["keep", "drop", "widen", "rename", "nullable"]))
        text = str(column)
        if change == "drop":
            continue
        if change == "widen":
            text = text.replace(str(column.type), WIDER.get(str(column.type), str(column.type)))
        if change == "rename":
            text = text.replace(column.name, f"{column.name}_new", 1)
        texts.append(text.replace(" required", "") if change == "nullable" else text)
    texts += data.draw(
        st.lists(st.sampled_from(["n1 int64", 'n2 string default "x"', "n3 double default 2"]), unique=True)
    )
    if not texts:
        return
    now = parse_columns(evolved(str(columns), ", ".join(texts), "backward"))
    assert writable(columns.batch_text, now) in {"", *_missing(now)}
    found = written(columns, rows, Codec.NONE)
    table_now = pa.table([found.array(column) for column in now.current], schema=arrow_schema(now.current))
    for column in now.current:
        values = found.values(column)
        old = columns.by_id(column.id)
        if old is None:
            assert values == [column.default_value] * len(rows)
        else:
            assert values == [_wide(row[old.name], old.type, column.type) for row in rows]
        array = table_now.column(column.name).combine_chunks()
        again = pa.array(values, array.type)
        assert again.equals(array)


@given(table=tables(), data=st.data())
@settings(max_examples=150, deadline=None)
def test_readers_of_older_columns(table: tuple[TopicColumns, list[dict[str, Any]]], data: st.DataObject) -> None:
    """After any change that `forward` allows, the old columns read new rows, as objects and as Arrow arrays alike."""
    columns, rows = table
    before: list[str] = []
    after: list[str] = []
    for column in columns.current:
        change = data.draw(st.sampled_from(["keep", "add", "narrow", "rename", "require"]))
        text = old = str(column).partition(" ")[2]
        if change == "add":
            after.append(text)
            continue
        if change == "narrow":
            old = text.replace(str(column.type), WIDER.get(str(column.type), str(column.type)))
        if change == "rename":
            old = text.replace(column.name, f"{column.name}_old", 1)
        before.append(text.replace(" required", "") if change == "require" else old)
        after.append(f"{len(before)} {text}")
    before += data.draw(
        st.lists(st.sampled_from(["n1 int64", 'n2 string default "x"', "n3 double default 2"]), unique=True)
    )
    if not before:
        return
    was = parse_columns(evolved("", ", ".join(before), "forward"))
    now = parse_columns(evolved(str(was), ", ".join(after), "forward"))
    found = written(now, rows, Codec.NONE)
    table_was = pa.table([found.array(column) for column in was.current], schema=arrow_schema(was.current))
    for column in was.current:
        values, new = found.values(column), now.by_id(column.id)
        if new is None or new.is_dropped:
            assert values == [column.default_value] * len(rows)
        else:
            assert values == [_wide(row[new.name], new.type, column.type) for row in rows]
        array = table_was.column(column.name).combine_chunks()
        assert pa.array(values, array.type).equals(array)


def _missing(columns: TopicColumns) -> set[str]:
    return {f"the required column {column.name} is missing" for column in columns.current}


def _wide(value: Any, old: ColumnType, new: ColumnType) -> Any:
    if old == new or value is None:
        return value
    if new == parse_type("double"):
        return float(value)
    return value.encode() if new == parse_type("binary") else value


@given(old=tables(), new=tables(), mode=st.sampled_from(["backward", "forward", "full", "none"]))
@settings(max_examples=100, deadline=None)
def test_columns_change_or_are_refused(
    old: tuple[TopicColumns, list[Any]], new: tuple[TopicColumns, list[Any]], mode: str
) -> None:
    """Every change is refused with a reason, or has a result that is stable and keeps every id's meaning."""
    before, wanted = str(old[0]), ", ".join(str(each).split(" ", 1)[1] for each in new[0].current)
    try:
        after = evolved(before, wanted, mode)
    except InvalidConfigError:
        return
    assert evolved(after, after, mode) == after
    now = parse_columns(after)
    for column in old[0].columns:
        kept = now.by_id(column.id)
        assert kept is not None, "an id is kept in mind"
        if not kept.is_dropped:
            assert kept.name == column.name


BOUNDED = sorted(name for name in SIMPLE if not name.startswith("decimal"))


@st.composite
def slices(draw: st.DrawFn) -> tuple[str, list[Any], Any]:
    """Draw a type, values that may be null, and an array of them that is a part of another one."""
    text = draw(st.sampled_from(BOUNDED))
    values = SIMPLE[text] if draw(st.booleans()) else st.none() | SIMPLE[text]
    found = draw(st.lists(values, min_size=1, max_size=40))
    around = draw(st.lists(SIMPLE[text], max_size=3))
    array = pa.array(around + found + around, arrow_type(parse_type(text)))
    return text, found, array.slice(len(around), len(found))


def stored(text: str, array: Any) -> list[Any]:
    """Return the values that bounds are of: numbers, also for times and bools, and bytes for text."""
    if text.startswith(("date", "time[ms]")):
        array = array.view(pa.int32())
    elif text.startswith(("timestamp", "duration")):
        array = array.view(pa.int64())
    values = [value.encode() if isinstance(value, str) else value for value in array.to_pylist()]
    return [int(value) if isinstance(value, bool) else value for value in values if value is not None]


@given(drawn=slices())
@settings(max_examples=300, deadline=None)
def test_bounds_are_the_least_and_the_greatest(drawn: tuple[str, list[Any], Any]) -> None:
    """Of any part of an array, with nulls or without; of text the first eight bytes of both."""
    text, _, array = drawn
    values = stored(text, array)
    kind, least, greatest = ArrayBlocks(array, parse_type(text)).bounds(0, len(array))
    if not values:
        assert kind == NO_BOUNDS
        return
    ends = min(values), max(values)
    if isinstance(ends[0], bytes):
        assert (kind, least, greatest) == (TEXT, *(end[:8].ljust(8, b"\0") for end in ends))
    else:
        codes = {"float": (DOUBLE, "<d"), "double": (DOUBLE, "<d"), "uint64": (UINT64, "<Q")}
        expected, code = codes.get(text, (INT64, "<q"))
        assert (kind, *(struct.unpack(code, end)[0] for end in (least, greatest))) == (expected, *ends)


@given(drawn=slices(), data=st.data())
@settings(max_examples=300, deadline=None)
def test_blocks_of_parts_are_those_of_slices(drawn: tuple[str, list[Any], Any], data: st.DataObject) -> None:
    """What is found once for an array is right for each part of it."""
    text, _, array = drawn
    kind = parse_type(text)
    start = data.draw(st.integers(0, len(array)))
    end = data.draw(st.integers(start, len(array)))
    found = ArrayBlocks(array, kind).block(start, end)
    expected = block_of_array(array.slice(start, end - start), kind)
    assert (b"".join(found.parts), *found[1:]) == (b"".join(expected.parts), *expected[1:])


@given(table=tables(), data=st.data())
@settings(max_examples=100, deadline=None)
def test_sizes_of_parts_are_those_of_their_arrays(
    table: tuple[TopicColumns, list[dict[str, Any]]], data: st.DataObject
) -> None:
    """But for bits that are counted in whole bytes and the last offset of texts."""
    columns, rows = table
    arrays = [*arrays_of_rows(rows, columns), pa.array([str(place) * 100 for place in range(len(rows))])]
    start = data.draw(st.integers(0, len(rows)))
    end = data.draw(st.integers(start, len(rows)))
    exact = sum(array.slice(start, end - start).nbytes for array in arrays)
    assert abs(ColumnSizes(arrays).bytes(start, end) - exact) <= 8 * len(arrays)


@given(table=tables())
@settings(max_examples=300, deadline=None)
def test_rows_as_json_make_the_blocks_that_arrow_makes(table: tuple[TopicColumns, list[dict[str, Any]]]) -> None:
    """The same values and bounds: what a broker stores of JSON is what a producer stores of the rows."""
    columns, rows = table
    sent = [row_of_json(json.loads(json_row(row)), columns) for row in rows]
    found = blocks_of_rows(sent, columns, max_values=BIG, max_bytes=BIG)
    for column, block, array in zip(columns.current, found.blocks, arrays_of_rows(rows, columns), strict=True):
        expected = block_of_array(array, column.type)
        values, wanted = (
            values_of(read_block(b"".join(each.parts), column.type, len(rows))) for each in (block, expected)
        )
        assert values == wanted, column
        assert block[2:] == expected[2:], column
        array_of_block(b"".join(block.parts), column.type, len(rows))
