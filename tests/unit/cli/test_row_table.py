"""Rows of a typed topic as a table on a terminal."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

from headrace.cli.records.row_table import RowTable
from headrace.client.base.records import Record

AT_MS = 1_700_049_600_000


def record(offset: int, value: dict[str, Any] | None, **more: Any) -> Record:
    return Record("visits", 0, offset, AT_MS, more.get("key"), value, more.get("headers", ()))


def test_columns_are_as_wide_as_the_first_rows() -> None:
    """Numbers on the right, null as "-", one line each; later rows have the same widths."""
    show = RowTable(["page", "user", "price", "at"], wide=False)
    noon = dt.datetime(2023, 11, 15, 12, tzinfo=dt.UTC)
    first = show([
        record(9, {"page": "/a\nb", "user": 7, "price": Decimal("1.50"), "at": noon}),
        record(10, {"page": None, "user": 12345, "price": None, "at": noon}),
    ]).decode().splitlines()  # fmt: skip
    assert first == [
        "PARTITION  OFFSET  TIMESTAMP                 page    user  price  at",
        "        0       9  2023-11-15T12:00:00.000Z  /a\\nb      7   1.50  2023-11-15T12:00:00+00:00",
        "        0      10  2023-11-15T12:00:00.000Z  -      12345      -  2023-11-15T12:00:00+00:00",
    ]
    assert show([record(11, {"page": "/longer", "user": 1, "price": None, "at": noon})]).decode().splitlines() == [
        "        0      11  2023-11-15T12:00:00.000Z  /longer      1      -  2023-11-15T12:00:00+00:00",
    ]


def test_wide_has_keys_and_headers() -> None:
    """Lists and structs are JSON; a record without a row is a row of nulls."""
    show = RowTable(["tags"], wide=True)
    lines = show([record(0, {"tags": ["a"]}, key=b"k", headers=(("n", b"1"),)), record(1, None)]).decode().splitlines()
    assert [line.split() for line in lines] == [
        ["PARTITION", "OFFSET", "TIMESTAMP", "KEY", "HEADERS", "tags"],
        ["0", "0", "2023-11-15T12:00:00.000Z", "k", "n=1", '["a"]'],
        ["0", "1", "2023-11-15T12:00:00.000Z", "-", "-", "-"],
    ]
