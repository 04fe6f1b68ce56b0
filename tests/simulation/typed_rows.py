"""Rows of a typed topic whose columns change meanwhile. A record's name is the value of the first column, by its id."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow
from headrace.wire.decoded import Columns
from headrace.wire.typed.topic_columns import TopicColumns, parse_columns

COLUMNS = "1 name string, 2 filling string required, 3 note_7 int32"
NAMES = ("name", "title", "label")
"""What the column with names is called, one after another."""
NOTE = "note_"
"""Prefix of the names of columns whose values are the rest of the name, which no two of them share."""


def row_of(columns: TopicColumns, name: str, size: int) -> dict[str, Any]:
    """Return a row of about `size` bytes."""
    notes = {column.name: _note(column.name) for column in columns.current if column.name.startswith(NOTE)}
    return dict(zip(_labels(columns), (name, "x" * (size - len(name))), strict=True)) | notes


def table_of(rows: Sequence[Mapping[str, Any]]) -> pyarrow.Table:
    """Return rows, at least one, as a table."""
    return pyarrow.table({label: [row[label] for row in rows] for label in rows[0]})


def _labels(columns: TopicColumns) -> list[str]:
    found = [columns.by_id(number) for number in (1, 2)]
    return [column.name for column in found if column is not None]


def _note(label: str) -> int:
    return int(label.removeprefix(NOTE))


def name_in(row: Mapping[str, Any]) -> str:
    """Return the name of the record with a row, whatever the column is called.

    Empty if the row has lost it, or has a value of another column.
    """
    if any(value not in (None, _note(label)) for label, value in row.items() if label.startswith(NOTE)):
        return ""
    return next((row[label] for label in NAMES if row.get(label)), "")


def names_in(batch: Columns) -> list[str]:
    """Return the names of the records of a batch; empty where its column has none."""
    values = batch.typed
    assert values is not None
    named = next(column for column in values.columns if column.id == 1)
    return [name or "" for name in values.values(named)]


def changed(before: str, chance: random.Random) -> str:
    """Return what an administrator asks for who renames the first column, lets the second be null, or adds, widens or
    drops a third.
    """
    columns = parse_columns(before)
    named, filling = _labels(columns)
    if chance.random() < 0.6:
        named = chance.choice([label for label in NAMES if label != named])
    is_required = any(column.id == 2 and column.is_required for column in columns.current)
    wanted = [f"1 {named} string", f"2 {filling} string" + " required" * (is_required and chance.random() < 0.5)]
    note = next((column for column in columns.current if column.id > 2), None)
    if note is None and chance.random() < 0.5:
        wanted.append(f"{NOTE}{chance.randrange(1 << 31)} int32")
    elif note is not None and str(note.type) == "int32" and chance.random() < 0.5:
        wanted.append(f"{note.id} {note.name} int64")
    return ", ".join(wanted)
