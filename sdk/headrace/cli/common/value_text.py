"""Values of columns as text and as JSON. Pure."""

import base64
import json
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

from headrace.display.visible_text import visible

MAX_WIDTH = 60
"""Maximum width of a column of a table; longer values are not cut, and shift the rest of their line."""


def cell_text(value: Any) -> str:
    """Return a value as it is in a table, on one line."""
    found = plain(value)
    if found is None:
        return "-"
    if isinstance(found, str):
        return visible(found)
    if isinstance(found, bool | dict | list):
        return json.dumps(found, ensure_ascii=False, default=str)
    return str(found)


def plain(value: Any) -> Any:
    """Return a value in its JSON form: bytes in base64, times in ISO 8601, durations in s, decimals as numbers."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, date | datetime | time):
        return value.isoformat()
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value
