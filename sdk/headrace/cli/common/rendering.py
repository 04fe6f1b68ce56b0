"""Output of a command's result, as a table for people or as one JSON or YAML document for programs.

Pure: reports in, text out. A `Report` has the document, whose structure is stable, and the same facts laid out for
people, whose structure is not. `wide` is the table with more columns.
"""

import enum
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, assert_never

from headrace.display.visible_text import visible

JsonValue: TypeAlias = "bool | int | float | str | Sequence[JsonValue] | Mapping[str, JsonValue] | None"


class OutputFormat(enum.StrEnum):
    """Output format of a command's result."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"


@dataclass(frozen=True, slots=True)
class Column:
    """Column of a table."""

    heading: str
    # Field of the row.
    field: str
    # Shown by `wide` only.
    wide: bool = False


@dataclass(frozen=True, slots=True)
class TableSection:
    """Rows below headings; numbers are right-aligned."""

    columns: Sequence[Column]
    rows: Sequence[Mapping[str, JsonValue]]
    # Printed if there are no rows.
    empty: str = "(none)"
    # The whole table is shown by `wide` only.
    wide: bool = False


@dataclass(frozen=True, slots=True)
class Facts:
    """Names and values, one per line."""

    pairs: Sequence[tuple[str, JsonValue]]


@dataclass(frozen=True, slots=True)
class Note:
    """Separate sentence."""

    text: str


Section: TypeAlias = TableSection | Facts | Note


@dataclass(frozen=True, slots=True)
class Report:
    """Result of a command."""

    # Printed by `json` and `yaml`.
    document: JsonValue
    # Printed by `table` and `wide`, with an empty line between sections.
    sections: Sequence[Section] = field(default_factory=tuple)


def render(report: Report, output: OutputFormat) -> str:
    """Return the report as text with a final line end; empty if there is nothing to print."""
    match output:
        case OutputFormat.JSON:
            return json_document(report.document, indent=2) + "\n"
        case OutputFormat.YAML:
            return yaml_document(report.document)
        case OutputFormat.TABLE | OutputFormat.WIDE:
            wide = output is OutputFormat.WIDE
            shown = [each for each in report.sections if wide or not (isinstance(each, TableSection) and each.wide)]
            return "\n".join(_section_text(section, wide=wide) for section in shown)
        case _:
            assert_never(output)


def json_document(
    value: JsonValue, indent: int | None = None, *, default: Callable[[Any], object] | None = None
) -> str:
    """Return one JSON document, with printable Unicode unchanged and other characters as `\\uNNNN`.

    `default` is that of `json.dumps`: what it returns is written for a value that JSON does not have.
    """
    text = json.dumps(value, indent=indent, ensure_ascii=False, default=default)
    if all(line.isprintable() for line in text.split("\n")):
        return text
    return json.dumps(value, indent=indent, default=default)


def yaml_document(value: JsonValue) -> str:
    """Return one YAML document, keys in their order, without the `---` that separates documents of a stream."""
    import yaml

    # PyYAML writes U+0085, U+2028 and U+FEFF unescaped and misreads them, and bidirectional characters reorder terminal
    # output. Therefore a document with any character that is not printable is written in ASCII.
    readable = json.dumps(value, ensure_ascii=False).isprintable()
    text: str = yaml.safe_dump(value, sort_keys=False, allow_unicode=readable, default_flow_style=False, width=1_000)
    return text


def cell_text(value: JsonValue) -> str:
    """Return the text of a value in a table: `-` if it is absent, lists with commas."""
    match value:
        case None | "":
            return "-"
        case bool():
            return "yes" if value else "no"
        case str():
            return visible(value)
        case int() | float():
            return str(value)
        case Mapping():
            return ",".join(f"{visible(name)}={cell_text(inner)}" for name, inner in value.items()) or "-"
        case Sequence():
            return ",".join(cell_text(inner) for inner in value) or "-"
        case _:
            assert_never(value)


def duration_text(milliseconds: int) -> str:
    """Return milliseconds as text: `7d`, `1h30m`, `250ms`."""
    if milliseconds < 0:
        return str(milliseconds)
    rest, parts = milliseconds, []
    for unit, length in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)):
        count, rest = divmod(rest, length)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0ms"


def bytes_text(count: int) -> str:
    """Return a number of bytes as text, in powers of 1,024: `1.5 GiB`."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(amount) < 1024:
            return f"{count} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def _section_text(section: Section, *, wide: bool) -> str:
    match section:
        case TableSection():
            return _table_text(section, wide=wide)
        case Facts():
            width = max((len(name) for name, _ in section.pairs), default=0) + 1
            return "".join(f"{visible(name) + ':':<{width}}  {cell_text(value)}\n" for name, value in section.pairs)
        case Note():
            return visible(section.text, keep="\n") + "\n"
        case _:
            assert_never(section)


def _table_text(table: TableSection, *, wide: bool) -> str:
    if not table.rows:
        return table.empty + "\n"
    columns = [column for column in table.columns if wide or not column.wide]
    lines = [[column.heading for column in columns]]
    lines += [[cell_text(row.get(column.field)) for column in columns] for row in table.rows]
    numeric = [_is_numeric([row.get(column.field) for row in table.rows]) for column in columns]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    return "".join(table_line(line, widths, numeric) for line in lines)


def table_line(cells: Iterable[str], widths: Iterable[int], are_right: Iterable[bool]) -> str:
    """Return a line of a table, with some cells on the right of their column; longer cells shift the rest."""
    padded = (
        cell.rjust(width) if is_right else cell.ljust(width)
        for cell, width, is_right in zip(cells, widths, are_right, strict=True)
    )
    return "  ".join(padded).rstrip() + "\n"


def _is_numeric(values: Sequence[JsonValue]) -> bool:
    present = [value for value in values if value is not None]
    return bool(present) and all(isinstance(value, int | float) and not isinstance(value, bool) for value in present)
