"""Table of a typed topic's rows for a terminal: `headrace consume --output table`. Pure."""

from collections.abc import Sequence
from typing import Any

from headrace.cli.common.rendering import table_line
from headrace.cli.common.value_text import are_numbers, cell_text, widths_of
from headrace.cli.records.record_writers import timestamp_text
from headrace.display.visible_text import to_line, visible


class RowTable:
    """Formats rows below the names of their columns. The first rows decide how wide a column is."""

    def __init__(self, names: Sequence[str], *, wide: bool) -> None:
        """`names` are those of the topic's columns; `wide` adds the key and the headers of each record."""
        self._names = names
        self._wide = wide
        self._widths: list[int] = []
        self._are_right: list[bool] = []

    def __call__(self, records: Sequence[Any]) -> bytes:
        """Return the lines of records, at the first call below the heading."""
        lines = [self._cells(record) for record in records]
        if not self._widths:
            heading = [*self._own, *map(cell_text, self._names)]
            lines.insert(0, heading)
            self._widths = widths_of(lines)
            rows = [record.value for record in records if isinstance(record.value, dict)]
            self._are_right = [name in {"PARTITION", "OFFSET"} for name in self._own]
            self._are_right += [are_numbers(row.get(name) for row in rows) for name in self._names]
        text = "".join(table_line(cells, self._widths, self._are_right) for cells in lines)
        return text.encode(errors="backslashreplace")

    @property
    def _own(self) -> list[str]:
        return ["PARTITION", "OFFSET", "TIMESTAMP", *(["KEY", "HEADERS"] if self._wide else [])]

    def _cells(self, record: Any) -> list[str]:
        cells = [str(record.partition), str(record.offset), timestamp_text(record.timestamp_ms)]
        if self._wide:
            pairs = [f"{visible(name)}={to_line(value)}" for name, value in record.headers]
            cells += ["-" if record.key is None else to_line(record.key), ",".join(pairs) or "-"]
        row = record.value if isinstance(record.value, dict) else {}
        return [*cells, *(cell_text(row.get(name)) for name in self._names)]
