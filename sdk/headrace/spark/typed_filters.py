"""Filters that Spark pushes down to a read of a typed topic. Pure except for pyspark's classes.

Filters on `_partition`, `_offset` and `_timestamp` have the effect of those on `partition`, `offset` and `timestamp` of
a topic of bytes (`headrace.spark.filters`). Comparisons of a column of the topic with a value become a range of the
column: brokers skip batches without a row in it, and readers the other rows. Spark evaluates them again.

Columns of floating point are not narrowed: Spark sorts NaN above all numbers, Arrow compares it with none.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import StructType

from headrace.spark.filters import Pushed
from headrace.wire.typed.topic_columns import TopicColumns

Where = tuple[tuple[str, Any, Any], ...]
"""Ranges of columns: name, minimum and maximum, both included, `None` for no end."""

_METADATA = frozenset({"_partition", "_offset", "_timestamp"})
_TYPES = frozenset(
    {"boolean", "tinyint", "smallint", "int", "bigint", "string", "binary", "date", "timestamp", "timestamp_ntz"}
)
"""Types that have bounds in batches, and the order that they have in Spark."""


class ColumnFilters:
    """Combined effect of pushed filters. Changed by `take` only."""

    def __init__(self, pushed: Pushed) -> None:
        """`pushed` takes those on what headrace knows of each row."""
        self._pushed = pushed
        self._ends: dict[str, tuple[Any, Any]] = {}

    def take(self, condition: Filter) -> bool:
        """Add a filter; return whether it is applied exactly, so that Spark need not evaluate it again."""
        path: tuple[str, ...] = getattr(condition, "attribute", ())
        if len(path) != 1:
            return False
        (name,) = path
        if name in _METADATA:
            return self._pushed.take(dataclasses.replace(condition, attribute=(name[1:],)))  # type: ignore[call-arg]
        if not name.startswith("_"):
            match condition:
                case EqualTo() | EqualNullSafe():
                    self._narrow(name, condition.value, condition.value)
                case In() if values := [value for value in condition.value if value is not None]:
                    self._narrow(name, min(values), max(values))
                case GreaterThan() | GreaterThanOrEqual():
                    self._narrow(name, condition.value, None)
                case LessThan() | LessThanOrEqual():
                    self._narrow(name, None, condition.value)
        return False

    def _narrow(self, name: str, low: Any, high: Any) -> None:
        before_low, before_high = self._ends.get(name, (None, None))
        lows = [end for end in (low, before_low) if end is not None]
        highs = [end for end in (high, before_high) if end is not None]
        if lows or highs:
            self._ends[name] = max(lows, default=None), min(highs, default=None)

    @property
    def has_ranges(self) -> bool:
        """Whether there is a range of a column."""
        return bool(self._ends)

    def where(self, schema: StructType, columns: TopicColumns) -> Where:
        """Return the ranges for a reader: of the columns that have the same type in the frame and in the topic."""
        from headrace.spark.typed import spark_type

        types = {field.name: field.dataType.simpleString() for field in schema}
        kinds = {column.name: column.type for column in columns.current}
        return tuple(
            (name, low, high)
            for name, (low, high) in self._ends.items()
            if types.get(name) in _TYPES and name in kinds and types[name] == _text(spark_type(kinds[name]))
        )


def _text(kind: Any) -> str:
    return "" if kind is None else str(kind.simpleString())


def ranges_of(where: Where) -> Mapping[str, tuple[Any, Any]]:
    """Return the argument `where` of a reader."""
    return {name: (low, high) for name, low, high in where}
