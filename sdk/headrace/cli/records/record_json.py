"""Records as JSON, written by `consume --output json` and read by `produce --input json`.

One object per record: `{"key": ..., "value": ..., "headers": [{"key": ..., "value": ...}], "timestamp_ms": ...}`. Keys,
values and header values are encoded by `bytes_text`. Pure.
"""

import difflib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.cli.common import bytes_text
from headrace.cli.common.rendering import JsonValue
from headrace.cli.records.record_format import FormattableRecord

if TYPE_CHECKING:
    from headrace.wire.typed.topic_columns import TopicColumns

MAX_TIMESTAMP_MS = 2**63 - 1

_READ = ("key", "value", "headers", "timestamp_ms")
_IGNORED = ("topic", "partition", "offset")
"""Fields written by consume and ignored by produce, which has its own destination."""


@dataclass(frozen=True, slots=True)
class OutgoingRecord:
    """Record that `headrace produce` sends."""

    # A dict is a row of a typed topic.
    value: bytes | dict[str, Any] | None
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes]] = ()
    # Milliseconds since 1970; None means the time of sending.
    timestamp_ms: int | None = None
    # Size of key and value, for rates and summaries.
    size_bytes: int = -1

    def __post_init__(self) -> None:
        if self.size_bytes < 0:
            object.__setattr__(self, "size_bytes", len(self.key or b"") + len(self.value or b""))


def to_document(record: FormattableRecord) -> dict[str, JsonValue]:
    """Return the JSON form of a consumed record."""
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "key": bytes_text.to_json(record.key),
        "value": _value(record.value),
        "headers": [{"key": name, "value": bytes_text.to_json(value)} for name, value in record.headers],
    }


def _value(value: object) -> JsonValue:
    """Return the JSON form of a value: an object for a row of a typed topic."""
    if isinstance(value, dict):
        from headrace.wire.typed.json_values import json_row

        row: JsonValue = json.loads(json_row(value))
        return row
    assert value is None or isinstance(value, bytes)
    return bytes_text.to_json(value)


def parse_row(line: bytes, columns: "TopicColumns") -> dict[str, Any]:
    """Return the row in one line of JSON.

    Raises:
        ValueError: If the line is invalid, or the row does not fit; the message has the reason.
    """
    from headrace.wire.errors import InvalidRequestError
    from headrace.wire.typed.arrow_columns import check_row
    from headrace.wire.typed.json_values import row_of_json

    document = _document(line)
    if not isinstance(document, dict):
        raise ValueError('a row is an object such as {"page": "/"}')
    try:
        row = row_of_json(document, columns)
        check_row(row, columns)
    except InvalidRequestError as error:
        raise ValueError(error.message) from error
    return row


def _document(line: bytes) -> Any:
    """Return the document in a line. Raises ValueError, also if it is nested too deeply."""
    try:
        return json.loads(line)
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None


def parse_json_line(line: bytes) -> OutgoingRecord:
    """Return the record in one line of JSON.

    Raises:
        ValueError: If the line is invalid; the message has the reason, without the line's number.
    """
    try:
        document = _document(line)
    except UnicodeDecodeError:
        raise ValueError("the line is not UTF-8, as JSON must be") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON at character {error.pos + 1}: {error.msg}") from None
    if not isinstance(document, dict):
        raise ValueError('a record is an object such as {"key": "k", "value": "v"}')
    unknown = [name for name in document if name not in _READ and name not in _IGNORED]
    if unknown:
        near = difflib.get_close_matches(unknown[0], _READ, n=1)
        hint = f", did you mean {near[0]!r}?" if near else f"; there are {', '.join(_READ)}"
        raise ValueError(f"unknown field {unknown[0]!r}{hint}")
    if "value" not in document:
        raise ValueError("the field 'value' is missing; a null value is written as null")
    return OutgoingRecord(
        value=bytes_text.from_json(document["value"], "value"),
        key=bytes_text.from_json(document.get("key"), "key"),
        headers=tuple(_headers(document.get("headers"))),
        timestamp_ms=_timestamp(document.get("timestamp_ms")),
    )


def _headers(headers: object) -> list[tuple[str, bytes]]:
    match headers:
        case None:
            return []
        case dict():
            return [_header(name, value) for name, value in headers.items()]
        case list():
            found = []
            for entry in headers:
                match entry:
                    case {"key": str(name), "value": value, **rest} if not rest:
                        found.append(_header(name, value))
                    case _:
                        raise ValueError('a header is {"key": "name", "value": ...}')
            return found
        case _:
            raise ValueError('headers must be a list of {"key": ..., "value": ...} or an object')


def _header(name: str, value: object) -> tuple[str, bytes]:
    data = bytes_text.from_json(value, f"header {name!r}")
    if data is None:
        raise ValueError(f"header {name!r} has no value; use an empty string")
    return name, data


def _timestamp(value: object) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_TIMESTAMP_MS:
        raise ValueError("timestamp_ms must be a whole number of milliseconds since 1970")
    return value
