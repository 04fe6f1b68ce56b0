"""Arrow types, tables and rows of typed topics: what is taken, and what is said of the rest."""

from __future__ import annotations

import datetime as dt
import json
import re
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from headrace.wire.columns import decode_batch
from headrace.wire.encoding import RowBlocks, column_parts
from headrace.wire.errors import InvalidConfigError, InvalidRequestError
from headrace.wire.typed.array_blocks import block_of_array
from headrace.wire.typed.arrow_columns import (
    array_of_block,
    arrays_of_rows,
    arrays_of_table,
    arrow_schema,
    arrow_type,
    check_required,
    check_row,
    column_type,
    columns_of,
)
from headrace.wire.typed.blocks import read_block, values_of
from headrace.wire.typed.column_types import parse_type, zone_of
from headrace.wire.typed.json_values import json_row, row_of_json
from headrace.wire.typed.row_blocks import blocks_of_rows
from headrace.wire.typed.row_keys import keys_of_blocks
from headrace.wire.typed.topic_columns import TopicColumns, parse_columns
from headrace.wire.typed.typed_columns import TypedColumns


@pytest.mark.parametrize(
    ("arrow", "text"),
    [
        (pa.dictionary(pa.int8(), pa.large_string()), "string"),
        (pa.string_view(), "string"),
        (pa.large_binary(), "binary"),
        (pa.binary_view(), "binary"),
        (pa.binary(5), "binary[5]"),
        (pa.date64(), "date"),
        (pa.decimal256(50, 2), "decimal(50, 2)"),
        (pa.time64("ns"), "time[ns]"),
        (pa.duration("us"), "duration[us]"),
        (pa.timestamp("s"), "timestamp[s]"),
        (pa.large_list(pa.int8()), "list<int8>"),
        (pa.list_(pa.float32(), 3), "list<float>"),
        (pa.map_(pa.string(), pa.bool_()), "map<string, bool>"),
        (pa.struct([pa.field("a", pa.int64())]), "struct<a: int64>"),
    ],
)
def test_kinds_of_arrow_types(arrow: Any, text: str) -> None:
    """Variants of one kind of value have one type."""
    assert str(column_type(arrow)) == text
    assert column_type(arrow_type(parse_type(text))) == parse_type(text)


@pytest.mark.parametrize("arrow", [pa.null(), pa.float16(), pa.struct([]), pa.sparse_union([pa.field("a", pa.int8())])])
def test_types_that_no_column_has(arrow: Any) -> None:
    """The error names the type."""
    with pytest.raises(InvalidConfigError, match="is no type of a column"):
        column_type(arrow)


def test_columns_of_a_schema() -> None:
    """A field that is not nullable is required, and back."""
    schema = pa.schema([pa.field("a", pa.int64(), nullable=False), pa.field("b", pa.string())])
    assert str(columns_of(schema)) == "a int64 required, b string"
    assert arrow_schema(columns_of(schema).columns).equals(schema)


COLUMNS = parse_columns('1 a int64 required, 2 b string default "x", 3 c timestamp[ms, UTC], 4 d double')


def test_tables() -> None:
    """Columns are found by name, cast without a loss, and filled; chunks are joined."""
    table = pa.table({"d": pa.array([1, None], pa.int32()), "a": pa.chunked_array([[1], [2]])})
    found = arrays_of_table(table, COLUMNS)
    assert [array.to_pylist() for array in found] == [[1, 2], ["x", "x"], [None, None], [1.0, None]]
    assert arrays_of_table(table.to_batches()[0].slice(0, 1), COLUMNS)[0].to_pylist() == [1]
    assert [len(array) for array in arrays_of_table(table.slice(0, 0), COLUMNS)] == [0] * 4
    for wrong, message in (
        (pa.table({"a": [1], "e": [1]}), "the topic has no column 'e'"),
        (pa.Table.from_arrays([pa.array([1])] * 2, names=["a", "a"]), "two columns have the same name"),
        (pa.table({"b": ["y"]}), "the required column a is missing"),
        (pa.table({"a": [1, None]}), "column a is required, and null in row 1"),
        (pa.table({"a": pa.chunked_array([[1.0], [2.0, 3.5, 4.5]])}), "double does not fit int64 in row 2: .*3.5"),
        (pa.table({"a": [[1]]}), "column a: list<item: int64> does not fit int64: "),
        (pa.table({"a": [1], "c": ["noon"]}), "column c: string does not fit timestamp"),
    ):
        with pytest.raises(InvalidRequestError, match=message):
            arrays_of_table(wrong, COLUMNS)


FLOATS = [0.5, -0.0, None, float("nan"), float("inf"), -float("inf"), 2.0**-149]


@pytest.mark.parametrize(
    ("kind", "fits", "wrong"),
    [
        ("float", FLOATS, 0.1),
        ("float", FLOATS, 1e300),
        ("list<float>", [FLOATS, None, []], [0.5, 0.1]),
        ("struct<x: int64, y: float>", [{"x": 1, "y": 0.5}, None], {"x": 1, "y": 0.1}),
        ("map<string, float>", [[("k", 0.5)], None], [("k", 0.5), ("l", 0.1)]),
        ("decimal(4, 1)", [0.1, 0.5, None], 0.25),
    ],
)
def test_no_digits_of_a_wider_number_are_cut_off(kind: str, fits: list[Any], wrong: Any) -> None:
    """At any depth; pyarrow alone rounds."""
    columns = parse_columns(f"1 v {kind}")
    wide = arrow_type(parse_columns(f"1 v {re.sub('float|decimal.*', 'double', kind)}").current[0].type)
    (found,) = arrays_of_table(pa.table({"v": pa.array([*fits, *fits], wide)}), columns)
    assert repr(found.cast(wide).to_pylist()) == repr(pa.array([*fits, *fits], wide).to_pylist())
    with pytest.raises(InvalidRequestError, match=rf"column v: .* does not fit .* in row {len(fits)}: .* would become"):
        arrays_of_table(pa.table({"v": pa.array([*fits, wrong], wide)}), columns)


def test_digits_of_a_decimal_are_not_cut_off_by_a_double() -> None:
    columns = parse_columns("1 v double")
    (found,) = arrays_of_table(pa.table({"v": pa.array([Decimal("0.10"), None])}), columns)
    assert found.to_pylist() == [0.1, None]
    with pytest.raises(InvalidRequestError, match="column v"):
        arrays_of_table(pa.table({"v": pa.array([Decimal("12345678901234567890.12")])}), columns)


def test_a_dictionary_of_any_values_is_a_column() -> None:
    """Arrow itself casts no dictionary of lists."""
    for kind, values in (("list<string>", [["a"], ["b", "c"]]), ("string", ["a", "b"])):
        array = pa.DictionaryArray.from_arrays(pa.array([1, 0, None, 1]), pa.array(values))
        (found,) = arrays_of_table(pa.table({"v": array.slice(1)}), parse_columns(f"1 v {kind}"))
        assert found.to_pylist() == [values[0], None, values[1]]


def test_rows() -> None:
    """Rows have defaults; the error names the row, the column and the value."""
    rows = [{"a": 1}, {"a": 2, "b": None, "d": 3}]
    assert [array.to_pylist() for array in arrays_of_rows(rows, COLUMNS)][1:] == [
        ["x", None],
        [None, None],
        [None, 3.0],
    ]
    for row in rows:
        check_row(row, COLUMNS)
    with pytest.raises(InvalidRequestError, match="row 1: column a: 'two' is no int64"):
        arrays_of_rows([{"a": 1}, {"a": "two"}], COLUMNS)
    lacking, *_ = arrays_of_rows([{"a": 1}, {}], COLUMNS)
    with pytest.raises(InvalidRequestError, match="column a is required, and null in row 1"):
        check_required(lacking, COLUMNS.current[0])
    for row, message in (
        ({"a": 1, "e": 2}, "the topic has no column 'e'"),
        ({}, "column a is required, and null"),
        ({"a": 2**63}, "column a: 9223372036854775808 is no int64"),
        ({"a": 1, "b": 7}, "column b: 7 is no string"),
        ({"a": 2.5}, "column a: 2.5 is no int64"),
        ({"a": 1, "c": "noon"}, "column c: 'noon' is no timestamp"),
    ):
        with pytest.raises(InvalidRequestError, match=message):
            check_row(row, COLUMNS)


@pytest.mark.parametrize(
    ("text", "right", "wrong"),
    [
        ("1 a list<int8>", [1, None], [1, 2.5]),
        ("1 a map<string, int64>", {"k": 1}, {"k": 1.5}),
        ("1 a struct<x: uint8, y: double>", {"x": 1, "y": 0.5}, {"x": 1.5, "y": 0.5}),
    ],
)
def test_no_fraction_is_cut_off(text: str, right: object, wrong: object) -> None:
    """A number with a fraction is no whole number, at any depth."""
    columns = parse_columns(text)
    check_row({"a": right}, columns)
    with pytest.raises(InvalidRequestError, match="column a: "):
        check_row({"a": wrong}, columns)


@pytest.mark.parametrize(
    ("kind", "fits", "wrong"),
    [
        ("float", [2**24, -(2**24), 0.1, float("inf"), 3.4e38], 2**24 + 1),
        ("float", [0.5], 1e39),
        ("double", [2**53, 0, 1e308], 2**53 + 1),
        ("double", [1], 10**400),
        ("list<float>", [[2**24, 0.1]], [1e39]),
        ("struct<x: list<double>>", [{"x": [2**53]}], {"x": [2**53 + 1]}),
    ],
)
def test_a_number_that_a_float_has_not_is_refused(kind: str, fits: list[Any], wrong: Any) -> None:
    """In the simple form as by `send`: it was rounded, or became infinite. Fractions are rounded in both."""
    columns = parse_columns(f"1 a {kind}")
    limits = {"max_values": 100, "max_bytes": 1_000}
    rows = [{"a": value} for value in fits]
    for row in rows:
        check_row(row, columns)
    (block,) = blocks_of_rows(rows, columns, **limits).blocks
    (array,) = arrays_of_rows(rows, columns)
    assert b"".join(block.parts) == b"".join(block_of_array(array, columns.current[0].type).parts)
    with pytest.raises(InvalidRequestError, match=r"column a: .* is no "):
        check_row({"a": wrong}, columns)
    with pytest.raises(InvalidRequestError, match=r"row 1: column a: .* is no "):
        blocks_of_rows([rows[0], {"a": wrong}], columns, **limits)


@pytest.mark.parametrize("kind", ["duration[ns]", "map<duration[ns], duration[ns]>"])
def test_durations_in_nanoseconds_are_whole_numbers_of_json(kind: str) -> None:
    """What readers are given can be written again: it was taken for seconds."""
    columns = parse_columns(f"1 a {kind}")
    value: Any = 1_500 if kind == "duration[ns]" else {1_500: 7}
    found = typed(columns, [{"a": value}])
    assert found.rows(0, 1) == [{"a": value}]
    again = row_of_json(json.loads(json_row({"a": value})), columns)
    (block,) = blocks_of_rows([again], columns, max_values=10, max_bytes=1_000).blocks
    assert values_of(read_block(b"".join(block.parts), columns.current[0].type, 1)) == [value]
    with pytest.raises(InvalidRequestError, match="column a: "):
        row_of_json({"a": 1.5 if kind == "duration[ns]" else {"1500": 1.5}}, columns)


FINE = dt.datetime(2026, 1, 1, 15, 30, 0, 999, dt.UTC)


@pytest.mark.parametrize(
    ("kind", "fits", "wrong", "message"),
    [
        ("timestamp[ms, UTC]", FINE.replace(microsecond=2_000), FINE, "it is finer than ms"),
        ("timestamp[s]", FINE.replace(microsecond=0), FINE.replace(microsecond=2_000), "it is finer than s"),
        ("timestamp[us]", FINE, pd.Timestamp(1, unit="ns"), "it is finer than us"),
        ("timestamp[ns]", pd.Timestamp(1, unit="ns"), "noon", ""),
        ("time[s]", dt.time(1, 2, 3), dt.time(1, 2, 3, 4), "it is finer than s"),
        ("duration[ms]", dt.timedelta(milliseconds=-1), dt.timedelta(microseconds=-1), "it is finer than ms"),
        ("duration[us]", dt.timedelta(microseconds=1), pd.Timedelta(1, unit="ns"), "it is finer than us"),
        ("date", dt.datetime(2026, 1, 1), dt.datetime(2026, 1, 1, 15, 30), "it has a time"),
        ("list<timestamp[s]>", [FINE.replace(microsecond=0), None, 5], [FINE], "it is finer than s"),
    ],
)
def test_no_part_of_a_time_is_cut_off(kind: str, fits: Any, wrong: Any, message: str) -> None:
    """As in the simple form, of which the blocks are the same."""
    columns = parse_columns(f"1 a {kind}")
    limits = {"max_values": 10, "max_bytes": 1_000}
    check_row({"a": fits}, columns)
    with pytest.raises(InvalidRequestError, match=f"column a: .*{message}"):
        check_row({"a": wrong}, columns)
    if not type(wrong).__module__.startswith("pandas"):
        blocks_of_rows([{"a": fits if kind != "timestamp[ns]" else 1}], columns, **limits)
        with pytest.raises(InvalidRequestError, match=f"column a: .*{message}"):
            blocks_of_rows([{"a": wrong}], columns, **limits)


@pytest.mark.parametrize(
    ("kind", "last", "wrong"),
    [
        ("time[s]", 86_399, 86_400),
        ("time[ms]", 86_399_999, -1),
        ("time[us]", 86_399_999_999, 86_400 * 10**6),
        ("time[ns]", 86_399_999_999_999, -5),
    ],
)
def test_a_time_that_is_not_within_a_day_is_refused(kind: str, last: int, wrong: int) -> None:
    """At any depth, in each way to write it: readers of the batch would lose its other rows, too."""
    for text, nested in ((kind, lambda number: number), (f"list<struct<x: {kind}>>", lambda number: [{"x": number}])):
        columns = parse_columns(f"1 a {text}")
        rows = [{"a": nested(number)} for number in (0, last)]
        rows += [{"a": None}, {"a": nested(wrong)}]
        limits = {"max_values": 10, "max_bytes": 1_000}
        check_row(rows[1], columns)
        assert arrays_of_rows(rows[:3], columns)[0].null_count == 1
        blocks_of_rows(rows[:2], columns, **limits)
        with pytest.raises(InvalidRequestError, match=r"column a: .* is no "):
            check_row(rows[3], columns)
        with pytest.raises(InvalidRequestError, match=r"row 3: column a: .* is no "):
            arrays_of_rows(rows, columns)
        with pytest.raises(InvalidRequestError, match=r"column a: .* is no .*it is not within a day"):
            blocks_of_rows(rows[3:], columns, **limits)
        table = pa.table({"a": pa.array([row["a"] for row in rows], arrow_type(columns.current[0].type))})
        arrays_of_table(table.slice(0, 3), columns)
        with pytest.raises(InvalidRequestError, match=r"column a: .* does not fit .* in row 3: .*acceptable range"):
            arrays_of_table(table, columns)
        with pytest.raises(InvalidRequestError, match="in row 1: "):
            arrays_of_table(table.slice(2), columns)


def stored(arrow: Any, *values: bytes) -> Any:
    """An array of values that Arrow has not looked at."""
    offsets = np.cumsum([0, *map(len, values)], dtype=np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(values))]
    return pa.Array.from_buffers(arrow, len(values), buffers if arrow == pa.string() else [None, buffers[2]])


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (stored(pa.string(), b"ok", "\u00e4".encode(), b"\xff"), "in row 2: Invalid UTF8"),
        (pa.ListArray.from_arrays([0, 2, 3], stored(pa.string(), b"ok", b"", b"\xff")), "in row 1: Invalid UTF8"),
        (pa.MapArray.from_arrays([0, 1, 2], stored(pa.string(), b"k", b"\xff"), [1, 2]), "in row 1: Invalid UTF8"),
        (stored(pa.decimal128(5, 2), *(n.to_bytes(16, "little") for n in (99_999, 100_000))), "in row 1: .*precision"),
    ],
)
def test_arrays_that_hold_what_their_type_has_not_are_refused(array: Any, message: str) -> None:
    """As those of another library may: Arrow takes any bytes, and readers refuse them."""
    columns = parse_columns(f"1 a {column_type(array.type)}")
    ends = 2 if "row 2" in message else 1
    assert arrays_of_table(pa.table({"a": array}).slice(0, ends), columns)[0].equals(array.slice(0, ends))
    with pytest.raises(InvalidRequestError, match=f"column a: .* does not fit .* {message}"):
        arrays_of_table(pa.table({"a": array}), columns)


@pytest.mark.parametrize("value", [np.datetime64("NaT", "us"), pa.scalar(None, pa.timestamp("us"))])
def test_null_in_any_form_is_no_value_of_a_required_column(value: object) -> None:
    """Arrow has null for some objects that are not `None`."""
    check_row({"at": value}, parse_columns("1 at timestamp[us]"))
    with pytest.raises(InvalidRequestError, match="column at is required, and null"):
        check_row({"at": value}, parse_columns("1 at timestamp[us] required"))


def typed(columns: TopicColumns, rows: list[dict[str, Any]]) -> TypedColumns:
    """Return rows as a reader decodes them."""
    arrays = arrays_of_rows(rows, columns)
    blocks = [block_of_array(array, column.type) for array, column in zip(arrays, columns.current, strict=True)]
    batch = b"".join(column_parts(RowBlocks(columns.batch_text, blocks, len(rows)), base_timestamp_ms=0))
    found = decode_batch(batch, max_payload_bytes=1 << 20)
    assert found.typed is not None
    assert json.loads(found.values()[0]) == json.loads(json_row(rows[0]))
    return found.typed


@pytest.mark.parametrize("zone", ["+01:00", "-03:30", "America/Port-au-Prince", "Etc/GMT-3", "Europe/Paris"])
def test_times_of_any_zone(zone: str) -> None:
    """Arrow has offsets and names with hyphens; Python objects and JSON have the same moment."""
    moment = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC).astimezone(zone_of(zone))
    columns = parse_columns(str(columns_of(pa.schema([pa.field("at", pa.timestamp("us", zone))]))))
    assert arrow_schema(columns.current).field("at").type == pa.timestamp("us", zone)
    numbered = parse_columns(f"1 {columns}")
    found = typed(numbered, [{"at": moment}])
    (value,) = found.values(numbered.current[0])
    assert value == moment
    assert value.utcoffset() != dt.timedelta()
    assert found.array(numbered.current[0]).cast(pa.int64()).to_pylist() == [int(moment.timestamp()) * 10**6]


def test_rows_of_a_zone_that_this_machine_lacks_say_so() -> None:
    """They are not corrupt: a reader that passes over corrupt batches would lose them."""
    columns = parse_columns("1 at timestamp[us, Europe/Atlantis]")
    array = pa.array([0], pa.timestamp("us"))
    batch = column_parts(
        RowBlocks(str(columns), [block_of_array(array, columns.current[0].type)], 1), base_timestamp_ms=0
    )
    found = decode_batch(b"".join(batch), max_payload_bytes=1 << 20)
    with pytest.raises(InvalidConfigError, match=r"there is no time zone 'Europe/Atlantis'.*install tzdata"):
        found.values()


@pytest.mark.parametrize(
    ("kind", "value", "key"),
    [
        ("map<list<int64>, string>", [([1, None], "x"), ([1, None], None)], b'[[[[1,null],"x"],[[1,null],null]]]'),
        ("map<struct<x: date>, int8>", [({"x": dt.date(2026, 1, 1)}, 1)], b'[[[{"x":"2026-01-01"},1]]]'),
        ("list<map<map<int8, bool>, int8>>", [[({1: True}, 2)], None, []], b'[[[[{"1":true},2]],null,[]]]'),
    ],
)
def test_maps_with_nested_keys_are_lists_of_pairs(kind: str, value: Any, key: bytes) -> None:
    """Old topics may have them: readers get what can be sent again, also as JSON and as a key."""
    columns = parse_columns(f"1 a {kind}")
    rows = [{"a": value}, {"a": None}]
    assert typed(columns, rows).rows(0, 2) == rows
    again = row_of_json(json.loads(json_row(rows[0])), columns)
    check_row(again, columns)
    blocks = blocks_of_rows([again], columns, max_values=100, max_bytes=1_000).blocks
    assert keys_of_blocks(blocks, [columns.current[0].type], 1) == [key]


def test_a_dict_has_the_last_of_repeated_keys() -> None:
    """An Arrow map may repeat them, and an array has all."""
    kind = parse_type("map<string, int64>")
    array = pa.array([[("x", 1), ("x", 2)]], arrow_type(kind))
    block = b"".join(block_of_array(array, kind).parts)
    assert values_of(read_block(block, kind, 1)) == [{"x": 2}]
    assert array_of_block(block, kind, 1).equals(array)


def test_columns_of_another_time() -> None:
    """A reader has columns by id: renamed, widened, or their default; objects and arrays alike."""
    rows = [{"a": 1, "b": "x", "f": 0.5}, {"a": None, "b": None, "f": None}]
    found = typed(parse_columns("1 a int32, 2 b string, 3 f float"), rows)
    now = parse_columns("1 n double, 2 b binary, 3 f double, 9 new int64 default 7, 10 none date")
    expected = {"n": [1.0, None], "b": [b"x", None], "f": [0.5, None], "new": [7, 7], "none": [None, None]}
    for column in now.current:
        assert found.values(column) == expected[column.name]
        assert found.array(column).to_pylist() == expected[column.name]
    kept = found.filtered(np.array([True, False]))
    assert [kept.values(column) for column in now.current] == [[each[0]] for each in expected.values()]
    assert [kept.array(column).to_pylist() for column in now.current] == [[each[0]] for each in expected.values()]
    none = found.filtered(np.array([False, False]))
    assert [len(none.array(column)) + len(none.values(column)) for column in now.current] == [0] * 5
    narrow = parse_columns("1 a int8").current[0]
    with pytest.raises(InvalidRequestError, match=r"column a: .*: the batch has int32"):
        typed(parse_columns("1 a int32"), [{"a": 1_000}]).array(narrow)


def test_rows_as_json() -> None:
    """What JSON lacks has a form of its own; what has none is an error."""
    row = {
        "b": b"\0\xff", "m": Decimal("1.50"), "d": dt.date(2026, 1, 2), "t": dt.time(3, 4),
        "u": dt.timedelta(seconds=2), "s": dt.datetime(2026, 1, 2, tzinfo=dt.UTC),
    }  # fmt: skip
    assert json.loads(json_row(row)) == {
        "b": "AP8=", "m": "1.50", "d": "2026-01-02", "t": "03:04:00", "u": 2.0, "s": "2026-01-02T00:00:00+00:00",
    }  # fmt: skip
    with pytest.raises(TypeError, match="object has no JSON form"):
        json_row({"o": object()})
