"""Rows from JSON objects, in the form in which `json_row` writes them."""

import base64
import binascii
from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

from headrace.wire.errors import InvalidRequestError
from headrace.wire.typed.column_types import ColumnType
from headrace.wire.typed.topic_columns import TopicColumns


def row_of_json(document: Mapping[str, Any], columns: TopicColumns) -> dict[str, Any]:
    """Return a row as Python objects. Names and values that do not fit are left to the check of the row.

    Raises:
        InvalidRequestError: If a text is not of the column's form; the message has the column.
    """
    kinds = {column.name: column.type for column in columns.current}
    row: dict[str, Any] = {}
    for name, value in document.items():
        try:
            row[name] = _value(kinds[name], value) if name in kinds else value
        except (TypeError, ValueError, AttributeError, ArithmeticError, binascii.Error) as error:
            raise InvalidRequestError(
                f"column {name}: {value!r:.80} is no {kinds[name]}: {error}", action="Give it a value of this type."
            ) from error
    return row


def _value(kind: ColumnType, value: Any) -> Any:
    if value is None:
        return None
    match kind.name:
        case "binary":
            return base64.b64decode(value, validate=True)
        case "decimal":
            return Decimal(str(value))
        case "date":
            return date.fromisoformat(value)
        case "time":
            return value if isinstance(value, int) else time.fromisoformat(value)
        case "timestamp":
            return value if isinstance(value, int) else _moment(value, kind)
        case "duration":
            return timedelta(seconds=value)
        case "list":
            return [_value(kind.children[0][1], each) for each in value]
        case "map":
            keys, items = kind.children[0][1], kind.children[1][1]
            return [(_value(keys, key), _value(items, each)) for key, each in value.items()]
        case "struct":
            parts = dict(kind.children)
            return {name: _value(parts[name], each) if name in parts else each for name, each in value.items()}
        case _:
            return value


def _moment(text: str, kind: ColumnType) -> datetime:
    """Return a time; without a zone in the text it is UTC, and without one in the type it has none."""
    found = datetime.fromisoformat(text)
    if not kind.zone:
        return found if found.tzinfo is None else found.astimezone(UTC).replace(tzinfo=None)
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found
