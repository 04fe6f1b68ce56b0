"""Format strings, records as JSON and YAML, tables of records."""

import json
import re
import struct
from typing import NamedTuple

import pytest
import yaml
from headrace.cli.common import bytes_text
from headrace.cli.records.record_format import FormatSyntaxError, compile_format
from headrace.cli.records.record_json import parse_json_line, parse_row, to_document
from headrace.cli.records.record_writers import RecordOutput, record_writer, timestamp_text
from headrace.wire.typed.topic_columns import parse_columns
from hypothesis import given
from hypothesis import strategies as st


class FormatRecord(NamedTuple):
    topic: str = "clicks"
    partition: int = 3
    offset: int = 42
    timestamp_ms: int = 1_795_262_400_000
    key: bytes | None = b"k"
    value: bytes | None = b"value"
    headers: tuple[tuple[str, bytes], ...] = (("trace", b"1"), ("zone", b"b"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"%t %p %o %k %s\n", b"clicks 3 42 k value\n"),
        ("%T", b"1795262400000"),
        ("%K/%S", b"1/5"),
        ("%R", struct.pack(">i", 5)),
        ("%h", b"trace=1,zone=b"),
        ("100%%", b"100%"),
        (r"a\tb\x00\\", b"a\tb\0\\"),
        ("ä%s", "ävalue".encode()),
        ("%s\udcff", b"value\xff"),
        ("", b""),
    ],
)
def test_letters_print_what_they_name(text: str, expected: bytes) -> None:
    """Each of kcat's letters and each escape."""
    assert compile_format(text)(FormatRecord()) == expected


def test_an_absent_value_has_length_minus_one() -> None:
    """A null value prints nothing but can be told from an empty one."""
    assert compile_format("%s|%S|%k|%K")(FormatRecord(key=None, value=None)) == b"|-1||-1"


@pytest.mark.parametrize(("text", "position"), [("%", 0), ("%z", 1), ("ab\\q", 2), ("\\", 0), (r"\xZZ", 2), ("%s%", 2)])
def test_a_bad_format_points_at_the_place(text: str, position: int) -> None:
    """The caret is below the character at fault."""
    with pytest.raises(FormatSyntaxError) as caught:
        compile_format(text)
    assert caught.value.explain().splitlines()[2].index("^") == position + 2


@given(st.none() | st.binary(max_size=50))
def test_bytes_survive_json(data: bytes | None) -> None:
    """Any bytes, UTF-8 or not, come back from their JSON form."""
    assert bytes_text.from_json(json.loads(json.dumps(bytes_text.to_json(data))), "value") == data


@given(
    st.none() | st.binary(max_size=20),
    st.none() | st.binary(max_size=20),
    st.lists(
        st.tuples(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), st.binary(max_size=5)), max_size=3
    ),
    st.integers(0, 2**63 - 1),
)
def test_what_consume_writes_produce_reads(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes]], timestamp_ms: int
) -> None:
    """`consume --output json` piped into `produce --input json` loses nothing."""
    record = FormatRecord(key=key, value=value, headers=tuple(headers), timestamp_ms=timestamp_ms)
    _, write = record_writer(RecordOutput.JSON, None)
    line = write(record)
    assert line.count(b"\n") == 1
    back = parse_json_line(line)
    assert (back.key, back.value, back.headers, back.timestamp_ms) == (key, value, tuple(headers), timestamp_ms)
    _, write_yaml = record_writer(RecordOutput.YAML, None)
    assert yaml.safe_load(write_yaml(record)) == to_document(record)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"", "not JSON at character 1"),
        (b'{"value": 1,}', "not JSON"),
        (b"[1]", "a record is an object"),
        (b"{}", "'value' is missing"),
        (b'{"value": 5}', "value must be a string, null or"),
        (b'{"value": {"a": 1}}', "not an object"),
        (b'{"value": {"base64": "!"}}', "not valid base64"),
        (b'{"value": "v", "kye": "k"}', "did you mean 'key'"),
        (b'{"value": "v", "timestamp_ms": "now"}', "whole number"),
        (b'{"value": "v", "timestamp_ms": -1}', "whole number"),
        (b'{"value": "v", "timestamp_ms": true}', "whole number"),
        (b'{"value": "v", "headers": 3}', "headers must be"),
        (b'{"value": "v", "headers": [{"key": 1}]}', "a header is"),
        (b'{"value": "v", "headers": {"a": null}}', "has no value"),
        (b'{"value": "\\ud800"}', "surrogate"),
        (b"\xff", "not UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_a_bad_line_says_what_is_wrong(line: bytes, says: str) -> None:
    """Every malformed record is refused with a sentence, never with another exception."""
    with pytest.raises(ValueError, match=re.escape(says)):
        parse_json_line(line)


def test_headers_may_be_an_object() -> None:
    """The short form of headers."""
    assert parse_json_line(b'{"value": null, "headers": {"a": "1"}}').headers == (("a", b"1"),)


def test_a_table_shows_no_control_character() -> None:
    """A value cannot move the cursor or ring the bell of the terminal."""
    heading, write = record_writer(RecordOutput.WIDE, None)
    row = write(FormatRecord(value=b"a\x1b[31m\n\xffb", key=b"\x07"))
    assert row.endswith(b"a\\x1b[31m\\n\\xffb\n")
    assert b"\\x07" in row
    assert heading.split() == [b"PARTITION", b"OFFSET", b"TIMESTAMP", b"KEY", b"HEADERS", b"VALUE"]


def test_raw_writes_values_as_they_are() -> None:
    """Lines in, lines out."""
    _, write = record_writer(RecordOutput.RAW, None)
    assert write(FormatRecord(value=b"\xff\0")) == b"\xff\0\n"
    assert write(FormatRecord(value=None)) == b"\n"


def test_a_timestamp_beyond_the_calendar_is_a_number() -> None:
    """int64 reaches further than ISO 8601."""
    assert timestamp_text(1_795_262_400_250) == "2026-11-21T12:00:00.250Z"
    assert timestamp_text(2**63 - 1) == str(2**63 - 1)


def test_a_row_that_is_nested_too_deeply_is_a_wrong_line() -> None:
    """As a record is, so that the error has its file and line."""
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_row(b'{"a": ' + b"[" * 100_000, parse_columns("1 a int64"))
