"""Filters that Spark pushes down, converted to ranges that need not be read. Pure except for pyspark's classes.

Filters on `topic`, `partition` and `offset` are applied exactly, so Spark need not evaluate them again. A lower bound
of `timestamp` moves the start to the first record that is not older; later records may be older, so Spark evaluates it
again. An upper bound has no effect: a later record may be older.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from headrace.spark.ranges import OffsetRange
from headrace.wire.ids import TopicPartition

_NEVER_NULL = frozenset({"topic", "partition", "offset", "timestamp"})
_NO_END = 2**63 - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(slots=True)
class Pushed:
    """Combined effect of pushed filters. Changed by `take` only."""

    topics: set[str] | None = None
    """`None` means all."""
    partitions: set[int] | None = None
    first_partition: int = 0
    end_partition: int = _NO_END
    start: int = 0
    end: int = _NO_END
    """Range of offsets, the end exclusive."""
    not_before_ms: int = -1
    """Timestamp below which records are not requested; -1 means no bound."""
    offsets: set[int] | None = None
    """`None` means all in the range."""

    def take(self, condition: Filter) -> bool:
        """Add a filter; return whether it is applied exactly, so that Spark need not evaluate it again."""
        path: tuple[str, ...] = getattr(condition, "attribute", ())
        if len(path) != 1:
            return False
        column = path[0]
        match condition:
            case IsNotNull():
                return column in _NEVER_NULL
            case EqualTo() | EqualNullSafe():
                return self._take_values(column, [condition.value])
            case In():
                return self._take_values(column, condition.value)
            case GreaterThan():
                return self._take_lower(column, condition.value, 1)
            case GreaterThanOrEqual():
                return self._take_lower(column, condition.value, 0)
            case LessThan():
                return self._take_upper(column, condition.value, 0)
            case LessThanOrEqual():
                return self._take_upper(column, condition.value, 1)
        return False

    def _take_values(self, column: str, values: Iterable[Any]) -> bool:
        given = {value for value in values if value is not None}
        match column:
            case "topic" if all(isinstance(value, str) for value in given):
                self.topics = given if self.topics is None else self.topics & given
                return True
            case "partition" if _are_numbers(given):
                self.partitions = given if self.partitions is None else self.partitions & given
                return True
            case "offset" if _are_numbers(given):
                self.offsets = given if self.offsets is None else self.offsets & given
                # The range includes other values between them: exact for one value only.
                return len(given) <= 1
            case "timestamp" if len(given) == 1:
                self._take_time(*given)
        return False

    def _take_lower(self, column: str, value: Any, beyond: int) -> bool:
        match column:
            case "partition" if _are_numbers([value]):
                self.first_partition = max(self.first_partition, value + beyond)
                return True
            case "offset" if _are_numbers([value]):
                self.start = max(self.start, value + beyond)
                return True
            case "timestamp":
                self._take_time(value)
        return False

    def _take_upper(self, column: str, value: Any, beyond: int) -> bool:
        match column:
            case "partition" if _are_numbers([value]):
                self.end_partition = min(self.end_partition, value + beyond)
                return True
            case "offset" if _are_numbers([value]):
                self.end = min(self.end, value + beyond)
                return True
        return False

    def _take_time(self, value: Any) -> None:
        if isinstance(value, datetime) and value.tzinfo is not None:
            self.not_before_ms = max(self.not_before_ms, (value - _EPOCH) // timedelta(milliseconds=1))

    def wants(self, where: TopicPartition) -> bool:
        """Return whether any record of a partition passes."""
        return (
            (self.topics is None or where.topic in self.topics)
            and (self.partitions is None or where.partition in self.partitions)
            and self.first_partition <= where.partition < self.end_partition
        )

    def cut(self, part: OffsetRange) -> OffsetRange:
        """Return the part of a range that passes the filters."""
        start, end = max(part.start, self.start), min(part.end, self.end)
        if self.offsets is not None:
            start = max(start, min(self.offsets, default=_NO_END))
            end = min(end, max(self.offsets, default=-1) + 1)
        return OffsetRange(part.where, start, max(start, end))


def _are_numbers(values: Iterable[Any]) -> bool:
    return all(type(value) is int for value in values)
