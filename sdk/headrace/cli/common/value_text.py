"""Values of columns as text. Pure."""

import json
from typing import Any

from headrace.display.visible_text import visible
from headrace.wire.typed.json_values import json_value

MAX_WIDTH = 60
"""Maximum width of a column of a table; longer values are not cut, and shift the rest of their line."""


def cell_text(value: Any) -> str:
    """Return a value as it is in a table, on one line."""
    found = json_value(value)
    return "-" if found is None else visible(value_text(value))


def value_text(value: Any) -> str:
    """Return a value as text without any escape; not safe on a terminal."""
    found = json_value(value)
    if isinstance(found, str):
        return found
    if isinstance(found, bool | dict | list):
        return json.dumps(found, ensure_ascii=False, default=str)
    return str(found)
