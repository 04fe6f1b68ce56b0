"""What a notebook shows of a table: its size and its first rows."""

from collections.abc import Iterator
from itertools import islice
from typing import Protocol

from headrace.client.table.rows import Row, TableCount
from headrace.display.html_tables import MAX_ROWS, count_text, html_table
from headrace.display.visible_text import visible
from headrace.wire.errors import HeadraceError

PREVIEW_SECONDS = 5.0
"""Time for each of the two calls: a cluster that is away must not hold the notebook up."""


class PreviewedTable(Protocol):
    """What a preview needs of a `Table`."""

    def count(self, *, timeout: float | None = None) -> TableCount:
        """See `Table`."""

    def scan(self, *, page_rows: int = 500, timeout: float | None = None) -> Iterator[Row]:
        """See `Table`."""


def preview_html_async(table: object, name: str) -> str | None:
    """Return nothing, so that the text of an asyncio table is shown: reading it would need a task."""
    return None


def preview_html(table: PreviewedTable, name: str) -> str | None:
    """Return the first rows of a table, in the order of a scan; its problem if it cannot be read."""
    try:
        count = table.count(timeout=PREVIEW_SECONDS)
        rows = list(islice(table.scan(page_rows=MAX_ROWS, timeout=PREVIEW_SECONDS), MAX_ROWS))
    except HeadraceError as error:
        return html_table((), (), f"Table {name} cannot be read: {error.message}")
    names = list(dict.fromkeys(column for row in rows for column in row))
    lines = [(row.key, *(row.get(column) for column in names)) for row in rows]
    return html_table(["key", *map(visible, names)], lines, f"Table {name}: {count_text(count.rows, 'row')}")
