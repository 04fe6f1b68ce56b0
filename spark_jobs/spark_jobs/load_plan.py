"""Which offsets the next commit of a load takes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MissingOffsets:
    """Records that retention removed before they were loaded."""

    partition: int
    wanted: int
    """The first offset that is not in the table."""
    earliest: int
    """The first that the log still has."""

    def __str__(self) -> str:
        return (
            f"partition {self.partition} begins at offset {self.earliest} and the table ends at {self.wanted}, "
            f"{self.earliest - self.wanted} are gone"
        )


class TruncatedError(Exception):
    """The log ends before the table does: records were lost after they had been loaded, or this is another log."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What there is to load, by partition."""

    starts: Mapping[int, int]
    """Inclusive: where the table ends, or the log begins."""
    ends: Mapping[int, int]
    """Exclusive: where the log ends now."""
    losses: tuple[MissingOffsets, ...]

    @property
    def records(self) -> int:
        """How many offsets lie between."""
        return sum(self.ends[partition] - start for partition, start in self.starts.items())

    def first(self, limit: int) -> Mapping[int, int]:
        """Return the end of a commit of about `limit` records: of each partition the same share of its backlog, and at
        least one record."""
        total = self.records
        if total <= limit:
            return self.ends
        ends = {}
        for partition, start in self.starts.items():
            left = self.ends[partition] - start
            ends[partition] = start + min(left, max(1, left * limit // total))
        return ends

    def after(self, ends: Mapping[int, int]) -> Plan:
        """Return the plan that is left once everything below `ends` is in the table."""
        return Plan(ends, self.ends, ())


def plan_load(positions: Mapping[int, int], earliest: Mapping[int, int], latest: Mapping[int, int]) -> Plan:
    """Compare a table with its topic.

    Args:
        positions: partition -> the first offset that is not in the table; partitions that are new have none.
        earliest: partition -> where its log begins.
        latest: partition -> where it ends, exclusive.

    Raises:
        TruncatedError: the table is ahead of the log, or has partitions that the topic has not.
    """
    ahead = {partition: at for partition, at in positions.items() if at > latest.get(partition, 0)}
    if ahead:
        partition, at = next(iter(sorted(ahead.items())))
        raise TruncatedError(
            f"the table ends at offset {at} of partition {partition}, and the log at {latest.get(partition, 0)}: "
            "the log has lost records since they were loaded; load into another directory"
        )
    starts = {partition: max(positions.get(partition, first), first) for partition, first in sorted(earliest.items())}
    losses = tuple(
        MissingOffsets(partition, at, earliest[partition])
        for partition, at in sorted(positions.items())
        if at < earliest[partition]
    )
    return Plan(starts, {partition: latest[partition] for partition in starts}, losses)
