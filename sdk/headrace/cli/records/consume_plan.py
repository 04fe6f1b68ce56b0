"""Offsets that `headrace consume` reads, and selection of the last n records. Pure."""

import heapq
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from headrace.cli.records.offsets import (
    LogBounds,
    OffsetSelection,
    Position,
    PositionKind,
    clamp_start,
    resolve_position,
)
from headrace.cli.records.record_format import FormattableRecord

RecordT = TypeVar("RecordT", bound=FormattableRecord)


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """Offsets to read of one partition: `start` to `stop`, exclusive; `stop=None` means without end."""

    partition: int
    start: int
    stop: int | None
    # A sentence if the requested offset is not in the log.
    note: str = ""
    log_start: int = 0

    @property
    def empty(self) -> bool:
        """Whether there is nothing to read."""
        return self.stop is not None and self.start >= self.stop

    def before(self) -> "PartitionPlan":
        """Return the plan of twice as many offsets before these, or of those from the log start."""
        assert self.stop is not None, "there is no end to count from"
        return replace(self, start=max(self.log_start, self.start - 2 * (self.stop - self.start)), stop=self.start)


def timestamps_of(wanted: OffsetSelection, now_ms: int) -> list[int]:
    """Return the timestamps in milliseconds whose offsets the plan needs."""
    found = []
    for position in (wanted.start, wanted.stop):
        if position is None:
            continue
        if position.kind is PositionKind.TIME:
            found.append(position.amount)
        elif position.kind is PositionKind.AGO:
            found.append(max(now_ms - position.amount, 0))
    return found


def plan_partitions(
    wanted: OffsetSelection,
    bounds: Mapping[int, LogBounds],
    by_time: Mapping[int, Mapping[int, int]],
    *,
    now_ms: int,
    stop_at_end: bool,
) -> list[PartitionPlan]:
    """Resolve the range in every partition.

    Args:
        wanted: the requested range.
        bounds: log bounds of each partition.
        by_time: by partition, offsets by timestamp in milliseconds, for all of `timestamps_of`.
        now_ms: milliseconds since 1970.
        stop_at_end: stop at the current log end.
    """
    return [
        _plan(partition, wanted, limits, by_time.get(partition, {}), now_ms=now_ms, stop_at_end=stop_at_end)
        for partition, limits in sorted(bounds.items())
    ]


def _plan(
    partition: int,
    wanted: OffsetSelection,
    bounds: LogBounds,
    by_time: Mapping[int, int],
    *,
    now_ms: int,
    stop_at_end: bool,
) -> PartitionPlan:
    def resolve(position: Position) -> int:
        return resolve_position(position, bounds, now_ms=now_ms, offset_at=by_time.__getitem__)

    asked = resolve(wanted.start)
    start = clamp_start(asked, bounds)
    stop = None if wanted.stop is None else resolve(wanted.stop)
    if stop_at_end:
        stop = bounds.latest if stop is None else min(stop, bounds.latest)
    note = ""
    if asked != start:
        held = f"has offsets {bounds.earliest} to {bounds.latest - 1}"
        if bounds.earliest == bounds.latest:
            held = "is empty"
        note = f"partition {partition} {held}, starting at {start}, not {asked}"
    return PartitionPlan(partition, start, stop, note, bounds.earliest)


class LastRecords:
    """The last `count` records of all partitions by timestamp, with each partition's in offset order.

    Memory: at most twice `count` records per partition.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._tails: dict[int, deque[FormattableRecord]] = {}
        self._later: dict[int, deque[FormattableRecord]] = {}
        """Records of earlier reads of a partition, which come after those in its tail."""

    def add(self, records: Iterable[FormattableRecord]) -> None:
        """Add records, ascending by offset within each partition."""
        for record in records:
            tail = self._tails.get(record.partition)
            if tail is None:
                tail = self._tails[record.partition] = deque(maxlen=self._count)
            tail.append(record)

    def further(self, plans: Iterable[PartitionPlan]) -> list[PartitionPlan]:
        """Return plans of what to read before `plans`, of partitions with fewer records than wanted.

        Offsets that compaction has removed have no record, so that N offsets may have fewer than N.
        """
        found = []
        for each in plans:
            tail = self._tails.pop(each.partition, deque(maxlen=self._count))
            tail.extend(self._later.pop(each.partition, ()))
            if len(tail) < self._count and each.start > each.log_start:
                self._later[each.partition] = tail
                found.append(each.before())
            else:
                self._tails[each.partition] = tail
        return found

    def take(self) -> Sequence[FormattableRecord]:
        """Remove and return the records, oldest first."""
        # Merge from the back, always the newest of all tails, so that no partition's order changes.
        heads = [(-tail[-1].timestamp_ms, partition) for partition, tail in self._tails.items() if tail]
        heapq.heapify(heads)
        found: list[FormattableRecord] = []
        while heads and len(found) < self._count:
            _, partition = heapq.heappop(heads)
            tail = self._tails[partition]
            found.append(tail.pop())
            if tail:
                heapq.heappush(heads, (-tail[-1].timestamp_ms, partition))
        self._tails.clear()
        found.reverse()
        return found
