"""Offsets of the next commits of a load. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MissingOffsets:
    """Records that retention deleted before they were loaded."""

    partition: int
    wanted: int
    """First offset that is not in the table."""
    earliest: int
    """First offset of the log."""

    def __str__(self) -> str:
        return (
            f"partition {self.partition} begins at offset {self.earliest} and the table ends at {self.wanted}: "
            f"{self.earliest - self.wanted} records were deleted"
        )


class TruncatedError(Exception):
    """The log ends before the table's position: records were lost after they had been loaded, or it is another log."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Offsets to load by partition."""

    starts: Mapping[int, int]
    """Start offsets, inclusive: the table's positions, or the log starts."""
    ends: Mapping[int, int]
    """End offsets, exclusive: the current log ends."""
    losses: tuple[MissingOffsets, ...]

    @property
    def records(self) -> int:
        """Number of offsets in the plan."""
        return sum(self.ends[partition] - start for partition, start in self.starts.items())

    def first(self, limit: int) -> Mapping[int, int]:
        """Return the end offsets of a commit of about `limit` records: of each partition the same share of its backlog,
        and at least one record."""
        total = self.records
        if total <= limit:
            return self.ends
        ends = {}
        for partition, start in self.starts.items():
            left = self.ends[partition] - start
            ends[partition] = start + min(left, max(1, left * limit // total))
        return ends

    def after(self, ends: Mapping[int, int]) -> Plan:
        """Return the rest of the plan after all offsets below `ends` are in the table."""
        return Plan(ends, self.ends, ())


def plan_load(positions: Mapping[int, int], earliest: Mapping[int, int], latest: Mapping[int, int]) -> Plan:
    """Compare a table with its topic, and return the offsets to load.

    Args:
        positions: first offset that is not in the table, by partition; a partition that others do not have is new, and
            the table has none of its records.
        earliest: log start by partition.
        latest: log end by partition, exclusive.

    Raises:
        TruncatedError: If the table is ahead of the log.
    """
    ahead = {partition: at for partition, at in positions.items() if at > latest[partition]}
    if ahead:
        partition, at = next(iter(sorted(ahead.items())))
        raise TruncatedError(
            f"the table ends at offset {at} of partition {partition}, and the log at {latest[partition]}: "
            "the log has lost records since they were loaded; load into another directory"
        )
    wanted = {partition: positions.get(partition, 0 if positions else first) for partition, first in earliest.items()}
    starts = {partition: max(at, earliest[partition]) for partition, at in sorted(wanted.items())}
    losses = tuple(
        MissingOffsets(partition, at, earliest[partition])
        for partition, at in sorted(wanted.items())
        if at < earliest[partition]
    )
    return Plan(starts, {partition: latest[partition] for partition in starts}, losses)
