"""Lag of groups, for people and for programs. Pure, except for calls of `Admin`.

Records are exact. Times are the age of the first unread record by its timestamp.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from headrace.cli.common.rendering import JsonValue, duration_text

if TYPE_CHECKING:
    from headrace.client.admin.groups import PartitionLag


class Lag(NamedTuple):
    """Total lag of several partitions."""

    # Sum of the known lags; None if none is known.
    records: int | None
    # Maximum of the known times.
    behind_ms: int | None
    # Number of partitions with unknown lag.
    unknown: int

    def row(self) -> dict[str, JsonValue]:
        """Return the lag as fields of a document."""
        return {
            "lag_records": self.records,
            "lag_ms": self.behind_ms,
            "lag_unknown_partitions": self.unknown,
        }


NO_LAG: dict[str, JsonValue] = dict.fromkeys(Lag(None, None, 0).row())
"""Lag that was not requested."""


def total_lag(lags: "Iterable[PartitionLag]") -> Lag:
    """Return the total lag of partitions."""
    found = list(lags)
    records = [each.records for each in found if each.records is not None]
    times = [each.behind_ms for each in found if each.behind_ms is not None]
    return Lag(sum(records) if records else None, max(times, default=None), len(found) - len(records))


def time_text(milliseconds: int | None) -> str | None:
    """Return a time for people, in whole seconds from one second on."""
    if milliseconds is None:
        return None
    return duration_text(milliseconds if milliseconds < 1_000 else milliseconds // 1_000 * 1_000)


def lag_notes(lags: "Sequence[PartitionLag]") -> list[str]:
    """Return sentences that explain the figures."""
    notes = []
    if missed := [each for each in lags if each.missed_records]:
        named = ", ".join(f"{each.topic}:{each.partition} {each.missed_records:,}" for each in missed)
        notes.append(f"records deleted before they were read, not counted as lag: {named}")
    if beyond := [each for each in lags if 0 <= each.end_offset < each.committed_offset]:
        named = ", ".join(f"{each.topic}:{each.partition}" for each in beyond)
        notes.append(f"the offset is after the end of the log, as after an unclean election: {named}")
    problems: dict[str, list[str]] = {}
    for each in lags:
        if each.problem:
            problems.setdefault(each.problem, []).append(f"{each.topic}:{each.partition}")
    notes += [f"{', '.join(named)}: {problem}" for problem, named in problems.items()]
    return notes
