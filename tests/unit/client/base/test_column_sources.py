"""Columns of a typed topic from what an application has."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any

import duckdb
import pandas as pd
import pyarrow as pa
import pydantic
import pytest
from headrace.client.base.column_sources import columns_text
from headrace.client.base.errors import ConfigError
from headrace.wire.errors import HeadraceError


@dataclass
class Tree:
    """Class that has itself inside."""

    left: Tree | None


class PolarsFrame:
    """Data frame with a schema of its own, which becomes Arrow by `to_arrow`, as one of Polars."""

    schema = (("a", int),)

    def to_arrow(self) -> Any:
        return pa.table({"a": [1]})


def nested(depth: int) -> Any:
    kind = pa.int8()
    for _ in range(depth):
        kind = pa.list_(kind)
    return pa.schema([pa.field("a", kind)])


def test_columns_of_tables() -> None:
    """An Arrow schema, table or stream, and data frames of each kind have the same columns."""
    table = pa.table({"a": [1]})
    with duckdb.connect() as connection:
        relation = connection.sql("select 1::bigint as a")
        for source in (table.schema, table, pd.DataFrame({"a": [1]}), PolarsFrame(), relation, "a int64"):
            assert columns_text(source) == "a int64", source


class Place(pydantic.BaseModel):
    """Model in a model."""

    city: str
    position: tuple[float, ...] | None = None


class Visit(pydantic.BaseModel):
    """Source of columns."""

    page: str
    user: int | None = None
    price: Annotated[Decimal, "decimal(10, 2)"]
    place: Place
    at: datetime.datetime


def test_columns_of_a_pydantic_model() -> None:
    """Fields that may be None may be null; a model in it is a struct."""
    assert columns_text(Visit) == (
        "page string required, user int64, price decimal(10, 2) required, "
        "place struct<city: string, position: list<double>> required, at timestamp[us, UTC] required"
    )


@pytest.mark.parametrize("source", [nested(17), nested(500), Tree, "a " + "list<" * 17 + "int8" + ">" * 17])
def test_types_that_are_nested_too_deeply(source: Any) -> None:
    """The error says so in a sentence, whatever the source."""
    with pytest.raises(HeadraceError, match="nested more than 16 deep"):
        columns_text(source)
    assert columns_text(nested(16))


def test_what_has_no_columns() -> None:
    """The error names the type of the object."""
    for source in (7, ["a"], {"a": 1}):
        with pytest.raises(ConfigError, match=f"{type(source).__name__} has no columns"):
            columns_text(source)
