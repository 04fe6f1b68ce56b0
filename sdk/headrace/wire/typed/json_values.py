"""Rows as JSON objects, and back: one form for readers, the simple form of Produce and Fetch, commands and SQL.

| value | JSON |
| --- | --- |
| bytes | text in base64 |
| date, time, timestamp | text in ISO 8601; a whole number in nanoseconds, and outside the years 1 to 9999 |
| duration | seconds; a whole number of its unit in nanoseconds, and where Python's `timedelta` ends |
| decimal | text, which keeps all digits; a number if its type has none after the point |
| NaN and the infinities | the texts `NaN`, `Infinity` and `-Infinity` |
| key of a map | the text of its JSON; a map with nested keys is a list of pairs |
"""

import base64
import binascii
import json
import math
import re
from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from operator import index
from typing import Any

from headrace.wire.errors import InvalidRequestError
from headrace.wire.typed.column_types import INTEGERS, ColumnType
from headrace.wire.typed.topic_columns import TopicColumns

_SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
"""Numbers that JSON lacks."""
_FINER = re.compile(r"[.,]\d{6}0*[1-9]")
"""Digits after the microseconds, which Python leaves out."""
_WHOLE = re.compile(r"-?\d{1,20}", re.ASCII)


def json_row(row: Mapping[str, Any]) -> bytes:
    """Return a row as a JSON object.

    Raises:
        TypeError: If a value has no JSON form.
    """
    try:
        return json.dumps(row, default=_known_form, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError):  # A number that JSON lacks, or a key of a map that is no text.
        return json.dumps(json_value(row), default=_known_form, ensure_ascii=False).encode()


def json_value(value: Any) -> Any:
    """Return a value in its JSON form; one that has none is returned unchanged."""
    if isinstance(value, Mapping):
        return {_key_text(key): json_value(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return _form(value)


def _form(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Decimal):
        exponent = value.as_tuple().exponent
        return int(value) if isinstance(exponent, int) and exponent >= 0 else f"{value:f}"
    return value


def _known_form(value: Any) -> Any:
    found = _form(value)
    if found is value:
        raise TypeError(f"{type(value).__name__} has no JSON form")
    return found


def _key_text(key: Any) -> str:
    form = json_value(key)
    return form if isinstance(form, str) else json.dumps(form)


def row_of_json(document: Mapping[str, Any], columns: TopicColumns, *, cuts_times: bool = False) -> dict[str, Any]:
    """Return a row as Python objects. Names and values that do not fit are left to the check of the row.

    Args:
        document: the row as JSON.
        columns: those of the row.
        cuts_times: whether a time that is finer than microseconds, which Python has not, is cut, and not an error.

    Raises:
        InvalidRequestError: If a text is not of the column's form; the message has the column.
    """
    kinds = {column.name: column.type for column in columns.current}
    row: dict[str, Any] = {}
    for name, value in document.items():
        try:
            row[name] = _value(kinds[name], value, cuts_times) if name in kinds else value
        except (TypeError, ValueError, AttributeError, ArithmeticError, binascii.Error) as error:
            raise InvalidRequestError(
                f"column {name}: {value!r:.80} is no {kinds[name]}: {error}", action="Give it a value of this type."
            ) from error
    return row


def _value(kind: ColumnType, value: Any, cuts_times: bool) -> Any:
    if value is None:
        return None
    if not cuts_times and kind.unit and isinstance(value, str) and _FINER.search(value):
        raise ValueError("it is finer than us; in nanoseconds it is a whole number")
    match kind.name:
        case "float" | "double":
            return _SPECIAL.get(value, value) if isinstance(value, str) else value
        case "binary":
            return base64.b64decode(value, validate=True)
        case "decimal":
            return Decimal(str(value))
        case "date" | "time" | "timestamp" if isinstance(value, int):
            return value
        case "duration" if kind.unit == "ns":
            return index(value)
        case "date":
            return date.fromisoformat(value)
        case "time":
            return time.fromisoformat(value)
        case "timestamp":
            return _moment(value, kind)
        case "duration":
            return timedelta(seconds=value)
        case "list":
            return [_value(kind.children[0][1], each, cuts_times) for each in value]
        case "map":
            keys, items = kind.children[0][1], kind.children[1][1]
            if keys.children:  # A list of pairs.
                return [(_value(keys, key, cuts_times), _value(items, each, cuts_times)) for key, each in value]
            return [(_key(keys, key, cuts_times), _value(items, each, cuts_times)) for key, each in value.items()]
        case "struct":
            parts = dict(kind.children)
            return {
                name: _value(parts[name], each, cuts_times) if name in parts else each for name, each in value.items()
            }
        case _:
            return value


def _key(kind: ColumnType, text: str, cuts_times: bool) -> Any:
    """Return the key of a map by its text."""
    if kind.name == "bool":
        return {"true": True, "false": False}.get(text, text)
    if kind.name in INTEGERS or kind.unit == "ns":
        return int(text)
    if kind.name in {"float", "double"}:
        return float(text)
    try:
        return _value(kind, float(text) if kind.name == "duration" else text, cuts_times)
    except ValueError:
        if kind.name in {"date", "timestamp"} and _WHOLE.fullmatch(text):
            return int(text)  # Outside the years that Python has.
        raise


def _moment(text: str, kind: ColumnType) -> datetime:
    """Return a time; without a zone in the text it is UTC, and without one in the type it has none."""
    found = datetime.fromisoformat(text)
    if not kind.zone:
        return found if found.tzinfo is None else found.astimezone(UTC).replace(tzinfo=None)
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found
