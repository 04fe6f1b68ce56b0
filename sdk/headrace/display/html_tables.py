"""What notebooks show of topics, records, rows and results: small HTML tables, by the `_repr_html_` of their classes.

All text is escaped and cut, and the number of rows is limited, whatever the values are. There are no colours: those of
the notebook, dark or light, apply. Pure.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from itertools import islice
from reprlib import Repr
from typing import TYPE_CHECKING, Any

from headrace.display.visible_text import to_line, visible

if TYPE_CHECKING:
    from headrace.client.base.records import Record

MAX_ROWS = 10
"""Rows of records, tables and results."""
MAX_TOPICS = 50
"""Rows of lists of topics."""
MAX_COLUMNS = 30
MAX_CHARACTERS = 100
"""Characters of one value, a heading or a caption."""
_ITEMS = 20
"""Entries of a list or a mapping within a value."""
_short = Repr()
_short.maxstring = _short.maxother = MAX_CHARACTERS
_short.maxdict = _short.maxlist = _short.maxtuple = _short.maxset = _short.maxfrozenset = _ITEMS


def html_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], caption: str, *, most: int = MAX_ROWS) -> str:
    """Return a table below a caption; values are bytes, text, numbers, times, `None`, or anything with a `repr`.

    Args:
        columns: headings; those after `MAX_COLUMNS` are left out, and a note says so.
        rows: values in the order of the columns; no more than `most` are taken.
        caption: what the table shows, and how many rows there are.
        most: number of rows that are shown.
    """
    shown = columns[:MAX_COLUMNS]
    if len(shown) < len(columns):
        caption = f"{caption}; {len(columns) - len(shown):,} more columns"
    lines = ["<table>", f'<caption style="text-align: left">{_text(caption)}</caption>', "<thead><tr>"]
    lines += [f"<th>{_text(name)}</th>" for name in shown]
    lines.append("</tr></thead><tbody>")
    for row in islice(rows, most):
        cells = "".join(_cell(value) for value in row[: len(shown)])
        lines.append(f"<tr>{cells}</tr>")
    return "".join([*lines, "</tbody></table>"])


def html_facts(facts: Mapping[str, Any], caption: str) -> str:
    """Return a table of names and values, a line each."""
    lines = "".join(f'<tr><th style="text-align: left">{_text(name)}</th>{_cell(facts[name])}</tr>' for name in facts)
    return f'<table><caption style="text-align: left">{_text(caption)}</caption><tbody>{lines}</tbody></table>'


def records_html(records: "Sequence[Record]", caption: str) -> str:
    """Return a table of records: of a typed topic with its columns, and of others without what none of them has."""
    rows = [record.value for record in records]
    own: list[str] | None = None
    if rows and all(isinstance(row, dict) for row in rows):
        own = list(dict.fromkeys(str(name) for row in rows for name in row))
    has_keys = any(record.key is not None for record in records)
    has_headers = any(record.headers for record in records)
    columns = ["topic", "partition", "offset", "timestamp", *(["key"] if has_keys else [])]
    columns += [*(["value"] if own is None else own), *(["headers"] if has_headers else [])]
    lines = []
    for record in records:
        line = [record.topic, record.partition, record.offset, time_of(record.timestamp_ms)]
        line += [record.key] if has_keys else []
        line += [record.value] if own is None else [record.value.get(name) for name in own]
        lines.append([*line, record.headers] if has_headers else line)
    return html_table(columns, lines, caption)


def count_text(count: int, noun: str, shown: int = MAX_ROWS) -> str:
    """Return how many there are, and how many of them are shown if that is fewer."""
    text = f"{count:,} {noun}" + ("" if count == 1 else "s")
    return text if count <= shown else f"{text}, of which the first {shown:,} are shown"


def time_of(timestamp_ms: int) -> datetime | int:
    """Return the time of a record; the number itself if it is out of the range of years."""
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return timestamp_ms


def _cell(value: Any) -> str:
    if value is None:
        return '<td style="opacity: 0.5">null</td>'
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f'<td style="text-align: right">{_text(_line(value))}</td>'
    return f'<td style="text-align: left">{_text(_line(value))}</td>'


def _line(value: Any) -> str:
    # Four bytes are at most one character, and a longer value is cut anyway.
    if isinstance(value, bytes | bytearray | memoryview):
        return to_line(bytes(value[: 4 * MAX_CHARACTERS + 4]))
    if isinstance(value, str):
        return value
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="milliseconds")
    try:
        return _short.repr(value)
    except Exception:  # A deserializer may return objects of any class.
        return f"<{type(value).__name__}>"


def _text(text: str) -> str:
    """Return text of which nothing is markup or a control character, on one line of limited length."""
    cut = text if len(text) <= MAX_CHARACTERS else text[: MAX_CHARACTERS - 1] + "…"
    return escape(visible(cut))
