"""Text of columns and of their types, and which changes each mode allows."""

from __future__ import annotations

import pytest
from headrace.wire.errors import InvalidConfigError
from headrace.wire.typed.column_types import parse_type, widens
from headrace.wire.typed.topic_columns import evolved, parse_columns, writable


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("int64", "int64"),
        (" long ", "int64"),
        ("text", "string"),
        ("binary[16]", "binary[16]"),
        ("decimal(10,2)", "decimal(10, 2)"),
        ("decimal(5)", "decimal(5, 0)"),
        ("timestamp[ms]", "timestamp[ms]"),
        ("timestamp[us,UTC]", "timestamp[us, UTC]"),
        ("timestamp[us, Europe/Berlin]", "timestamp[us, Europe/Berlin]"),
        ('timestamp[us, "Europe/Berlin"]', "timestamp[us, Europe/Berlin]"),
        ('timestamp[us, "+01:00"]', 'timestamp[us, "+01:00"]'),
        ('timestamp[us, "America/Port-au-Prince"]', 'timestamp[us, "America/Port-au-Prince"]'),
        ("timestamp[us, Etc/GMT+3]", "timestamp[us, Etc/GMT+3]"),
        ("list<map<string,double>>", "list<map<string, double>>"),
        ('struct<a: int8, "b c": list<struct<d: bool>>>', 'struct<a: int8, "b c": list<struct<d: bool>>>'),
    ],
)
def test_types_are_read_and_written(text: str, written: str) -> None:
    """A type has one text, which is read as the same type."""
    assert str(parse_type(text)) == written
    assert parse_type(written) == parse_type(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a word is missing at 'its end'"),
        ("integer7", "integer7 is no type"),
        ("decimal(77, 2)", "77 is outside 1 .. 76"),
        ("decimal(4, 5)", "5 is outside 0 .. 4"),
        ("timestamp", r"'\[' is missing"),
        ("timestamp[hours]", "hours is not one of the units s, ms, us, ns"),
        ("list<int8", "'>' is missing"),
        ("struct<a: int8, a: int8>", "two fields of a struct are named a"),
        ("int8 int8", "nothing more is expected at 'int8'"),
        ("binary[0]", "0 is outside 1"),
        ('timestamp[us, ""]', "a name is empty"),
        ("list<" * 20 + "int8" + ">" * 20, "nested more than 16 deep"),
    ],
)
def test_wrong_types_say_where(text: str, message: str) -> None:
    """The error has the place and the rule."""
    with pytest.raises(InvalidConfigError, match=message):
        parse_type(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a word is missing"),
        ("1 a int64 dropped", "there is no column"),
        ("a int64, a string", "two columns have the name a"),
        ("1 a int64, 1 b string", "two columns have the id 1"),
        ("0 a int64", "the id 0 is outside"),
        ("_a int64", "begins with an underscore"),
        ("a int64 requird", "requird is not one of required, key, default, dropped"),
        ("a int64 dropped", "dropped needs an id"),
        ("a int64 default x", "the default of a, 'x', is no int64"),
        ("a int64 default true", "the default of a, 'true', is no int64"),
        ("a int8 default 128", "the default of a, 128, is outside int8"),
        ("a list<int8> default []", "Defaults are JSON values of numbers"),
        ('a string default "x" required', "is no string"),
        (", ".join(f"c{number} bool" for number in range(1001)), "there are 1001 columns"),
        ('a string default "' + "x" * 70_000 + '"', "the text has 70019 characters, more than 65536"),
    ],
)
def test_wrong_columns_say_where(text: str, message: str) -> None:
    """The error has the place and the rule."""
    with pytest.raises(InvalidConfigError, match=message):
        parse_columns(text)


def test_columns_are_read_and_written() -> None:
    """Quotes, commas and brackets in names and defaults are kept."""
    text = (
        '1 a string default "x, \\"y\\" <", 2 "odd name" struct<x: int8, y: int8>, 9 gone int8 dropped, 3 k int64 key'
    )
    columns = parse_columns(text)
    assert str(columns) == text
    assert [column.name for column in columns.current] == ["a", "odd name", "k"]
    assert columns.current[0].default_value == 'x, "y" <'
    assert columns.batch_text == '1 a string, 2 "odd name" struct<x: int8, y: int8>, 3 k int64 key'
    assert [column.name for column in columns.keys] == ["k"]
    with pytest.raises(InvalidConfigError, match="Use one of: a, odd name, k"):
        columns.by_name("b")


BEFORE = "1 a int32 required, 2 b string, 3 c double default 1.5"


def test_ids_last() -> None:
    """A name keeps its id, a new one has the next, a dropped one is kept in mind, a rename is told by the id."""
    assert evolved("", "a int32 required, b string, c double default 1.5", "backward") == BEFORE
    assert evolved(BEFORE, BEFORE, "full") == BEFORE
    dropped = evolved(BEFORE, "c double default 1.5, a int32 required", "backward")
    assert dropped == "3 c double default 1.5, 1 a int32 required, 2 b string dropped"
    again = evolved(dropped, "c double default 1.5, a int32 required, b string", "backward")
    assert again == "3 c double default 1.5, 1 a int32 required, 4 b string, 2 b string dropped"
    renamed = evolved(BEFORE, "1 id int32 required, b string, a double", "backward")
    assert renamed == "1 id int32 required, 2 b string, 4 a double, 3 c double dropped"
    with pytest.raises(InvalidConfigError, match="the id 2 of x is not that of a column"):
        evolved(dropped, "2 x string, 1 a int32 required", "backward")
    retyped = evolved(BEFORE, "a string, b string, c double default 1.5", "none")
    assert retyped == "4 a string, 2 b string, 3 c double default 1.5, 1 a int32 required dropped".replace(
        " required dropped", " dropped"
    )


@pytest.mark.parametrize(
    ("wanted", "allowed"),
    [
        (f"{BEFORE}, d string", {"backward", "forward", "full", "none"}),
        (f"{BEFORE}, d string required", {"forward", "none"}),
        (f'{BEFORE}, d string required default ""', {"backward", "forward", "full", "none"}),
        ("2 b string, 3 c double default 1.5", {"backward", "none"}),
        ("1 a int32 required, 3 c double default 1.5", {"backward", "forward", "full", "none"}),
        ("1 a int32 required, 2 b string", {"backward", "forward", "full", "none"}),
        (BEFORE.replace("int32", "int64"), {"backward", "none"}),
        (BEFORE.replace("int32", "int16"), {"forward", "none"}),
        (BEFORE.replace("int32", "uint32"), {"none"}),
        (BEFORE.replace("string", "binary"), {"backward", "none"}),
        (BEFORE.replace("int32 required", "int32"), {"backward", "none"}),
        (BEFORE.replace("b string", "b string required"), {"forward", "none"}),
        (BEFORE.replace("b string", 'b string required default "x"'), {"forward", "none"}),
        (BEFORE.replace("double default 1.5", "double"), {"backward", "forward", "full", "none"}),
        (BEFORE.replace("int32 required", "int32 required default 1"), {"backward", "forward", "full", "none"}),
    ],
)
def test_modes(wanted: str, allowed: set[str]) -> None:
    """Each mode allows what its readers can do with, and refuses the rest with its name."""
    for mode in ("backward", "forward", "full", "none"):
        if mode in allowed:
            evolved(BEFORE, wanted, mode)
        else:
            with pytest.raises(InvalidConfigError, match=f"with compatibility={mode}"):
                evolved(BEFORE, wanted, mode)


@pytest.mark.parametrize(
    ("wanted", "allowed"),
    [
        ('1 a int64, 2 k string required default "FR"', {"backward", "forward", "full", "none"}),
        ("1 a int64, 2 k string required", {"forward", "none"}),
        ("1 a int64, 2 k string", {"backward", "none"}),
        ("1 a int64", {"backward", "forward", "full", "none"}),
    ],
)
def test_a_default_stands_for_records_without_the_column(wanted: str, allowed: set[str]) -> None:
    """Without it they could not be read; and it is not read in place of a null that a record has."""
    before = '1 a int64, 2 k string required default "DE"'
    for mode in ("backward", "forward", "full", "none"):
        if mode in allowed:
            evolved(before, wanted, mode)
        else:
            with pytest.raises(InvalidConfigError, match=f"with compatibility={mode}"):
                evolved(before, wanted, mode)
    assert writable("1 a int64", parse_columns(before)) == ""
    assert "may be null in the batch" in writable("1 a int64, 2 k string", parse_columns(before))


@pytest.mark.parametrize("zone", ["UTC", "utc", "Europe/Paris", '"+01:00"', '"-11:30"', '"America/Port-au-Prince"'])
def test_a_column_has_a_time_zone_that_exists(zone: str) -> None:
    assert evolved("", f"at list<timestamp[us, {zone}]>", "backward") == f"1 at list<timestamp[us, {zone}]>"


@pytest.mark.parametrize("key", ["list<int64>", "struct<x: int64>", "map<string, int64>"])
def test_a_new_map_with_nested_keys_is_refused(key: str) -> None:
    """Python has no dict of them. A topic that has one already can be altered."""
    for kind in (f"map<{key}, string>", f"struct<a: list<map<{key}, string>>>"):
        with pytest.raises(InvalidConfigError, match=f"columns: a: keys of a map cannot be of the type {key}.*Use"):
            evolved("", f"a {kind}", "none")
        with pytest.raises(InvalidConfigError, match="columns: a: keys of a map"):
            evolved("1 a int64", f"a {kind}", "none")
        assert evolved(f"1 a {kind}", f"a {kind}, b int64", "backward") == f"1 a {kind}, 2 b int64"


@pytest.mark.parametrize("zone", ["Europe/Berln", "Europe", '"+25:00"', '"+1"', '"../etc/passwd"', "nowhere"])
def test_a_new_column_of_a_time_zone_that_does_not_exist_is_refused(zone: str) -> None:
    """Its rows could not be read as Python objects, nor as JSON. A topic that has such a column can be altered."""
    for kind in (f"timestamp[us, {zone}]", f"struct<a: list<timestamp[s, {zone}]>>"):
        with pytest.raises(InvalidConfigError, match="columns: at: there is no time zone"):
            evolved("", f"at {kind}", "none")
        with pytest.raises(InvalidConfigError, match="columns: at: there is no time zone"):
            evolved("1 a int64", f"a int64, at {kind}", "none")
        assert evolved(f"1 at {kind}", f"at {kind}, b int64", "backward") == f"1 at {kind}, 2 b int64"


def test_keys_are_fixed() -> None:
    """The key columns decide the partitions: they stay, in every mode."""
    before = "1 a int64 key, 2 b string"
    for wanted in ("a int64 key, b string key", "b string", "a int64 required, b string", "a string key, b string"):
        with pytest.raises(InvalidConfigError, match="the key is a, which cannot change"):
            evolved(before, wanted, "none")
    assert evolved(before, "1 renamed int64 key", "backward") == "1 renamed int64 key, 2 b string dropped"


@pytest.mark.parametrize(
    ("batch", "wrong"),
    [
        ("1 a int32 required, 2 b string, 3 c double", ""),
        ("1 renamed int16 required", ""),
        ("2 b string", "the required column a is missing"),
        ("1 a int32", "column a may be null in the batch, and is required in the topic"),
        ("1 a int64 required", "column a is int64, and int32 in the topic"),
        ("1 a int32 required, 4 d string", "the topic has no column 4"),
    ],
)
def test_what_may_be_appended(batch: str, wrong: str) -> None:
    """Fewer columns and narrower types may, if readers can do without the rest."""
    assert writable(batch, parse_columns(BEFORE)).startswith(wrong)
    assert bool(writable(batch, parse_columns(BEFORE))) == bool(wrong)


def test_widening() -> None:
    """No widening loses a value."""
    pairs = [("int8", "int64"), ("uint8", "int16"), ("uint32", "double"), ("float", "double"), ("string", "binary")]
    assert all(widens(parse_type(old), parse_type(new)) for old, new in pairs)
    wrong = [("int64", "double"), ("int8", "uint64"), ("uint8", "int8"), ("double", "float"), ("string", "binary[4]")]
    assert not any(widens(parse_type(old), parse_type(new)) for old, new in wrong)
    assert widens(parse_type("decimal(5, 2)"), parse_type("decimal(9, 2)"))
    assert not widens(parse_type("decimal(5, 2)"), parse_type("decimal(9, 3)"))
