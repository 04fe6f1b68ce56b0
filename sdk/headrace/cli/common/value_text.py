"""Values of columns as text. Pure."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from headrace.display.visible_text import visible
from headrace.wire.typed.json_values import json_value

MAX_WIDTH = 60
"""Maximum width of a column of a table; longer values are not cut, and shift the rest of their line."""
_NUMBERS = frozenset({"int", "float", "Decimal", "NoneType"})


def widths_of(lines: Iterable[Sequence[str]]) -> list[int]:
    """Return the widths of a table's columns by some of its lines, the heading among them."""
    return [min(MAX_WIDTH, max(map(len, cells))) for cells in zip(*lines, strict=True)]


def are_numbers(values: Iterable[Any]) -> bool:
    """Return whether a column has values, and they are numbers or null: it is aligned on the right."""
    found = {type(value).__name__ for value in values}
    return bool(found) and found <= _NUMBERS


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
