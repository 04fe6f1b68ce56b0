"""Ranges of offsets of a read: division over tasks, and comparison with the log start. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from headrace.client.base.errors import ConfigError
from headrace.wire.ids import TopicPartition

NO_END = 2**62
"""Log end if the leader or an in-sync replica is unavailable: all records of the micro-batch there count as earlier."""


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Consecutive offsets of one partition."""

    where: TopicPartition
    start: int
    end: int
    """Exclusive."""

    def __len__(self) -> int:
        return max(0, self.end - self.start)


@dataclass(frozen=True, slots=True)
class AsOf:
    """Moment of which a read has the newest record of each key."""

    is_latest: bool
    """Whether it is any moment during the read."""
    time_ms: int
    """Time by which columns have expired, in ms since 1970; -1 for that of the newest record below the end."""


@dataclass(frozen=True, slots=True)
class DataLoss:
    """Requested records that retention has removed."""

    where: TopicPartition
    wanted: int
    """First requested offset."""
    earliest: int
    """Log start."""
    records: int
    """Number of requested records that were removed."""

    def __str__(self) -> str:
        return (
            f"{self.where}: offset {self.wanted} was requested and the log starts at {self.earliest}, "
            f"{self.records} records were removed"
        )


def check_order(ranges: Iterable[OffsetRange], latest: Mapping[TopicPartition, int], start: str, end: str) -> None:
    """Check the ranges of a batch for consistency and against the log end; `start` and `end` name the options.

    Raises:
        ConfigError: If one starts after its end, or a bound is after the log end.
    """
    for part in ranges:
        last = latest[part.where]
        for name, offset in ((start, part.start), (end, part.end)):
            if offset > last:
                raise ConfigError(f"{name}: {offset} for {part.where} is past its end, {last}")
        if part.start > part.end:
            raise ConfigError(f"{start}: {part.start} for {part.where} is after {end}, {part.end}")


def within_log(
    ranges: Sequence[OffsetRange], earliest: Mapping[TopicPartition, int]
) -> tuple[list[OffsetRange], list[DataLoss]]:
    """Remove parts below the log start; also return what was removed."""
    kept, losses = [], []
    for part in ranges:
        first = earliest[part.where]
        if len(part) and part.start < first:
            losses.append(DataLoss(part.where, part.start, first, min(first, part.end) - part.start))
            part = OffsetRange(part.where, first, max(first, part.end))
        kept.append(part)
    return kept, losses


def split(ranges: Iterable[OffsetRange], min_partitions: int, max_records: int) -> list[OffsetRange]:
    """Divide ranges over tasks: at most `max_records` each, and at least `min_partitions` tasks (0 means any number).

    Large ranges are divided in proportion, into parts that differ by at most one record; empty ones are omitted.
    """
    full = [part for part in ranges if len(part)]
    counts = [-(-len(part) // max_records) if max_records else 1 for part in full]
    total = sum(map(len, full))
    if sum(counts) < min_partitions:
        counts = [
            min(len(part), max(count, -(-len(part) * min_partitions // total)))
            for part, count in zip(full, counts, strict=True)
        ]
    parts: list[OffsetRange] = []
    for part, count in zip(full, counts, strict=True):
        cuts = [part.start + len(part) * index // count for index in range(count + 1)]
        parts += [OffsetRange(part.where, cuts[index], cuts[index + 1]) for index in range(count)]
    return parts


def limited(
    starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], limit: int
) -> dict[TopicPartition, int]:
    """Return ends that are `limit` records in total after the starts, shared in proportion to the waiting records.

    Every partition with waiting records gets at least one, unless there are more partitions than that; shares are
    rounded by largest remainder, so that their sum is the limit.
    """
    waiting = {where: end - starts.get(where, 0) for where, end in sorted(ends.items()) if end > starts.get(where, 0)}
    if sum(waiting.values()) <= limit:
        return dict(ends)
    least = 1 if limit >= len(waiting) else 0
    spare = limit - least * len(waiting)
    total = sum(waiting.values()) - least * len(waiting)
    shares = {where: least + (size - least) * spare // total for where, size in waiting.items()}
    remainders = {where: (size - least) * spare % total for where, size in waiting.items()}
    for where in sorted(waiting, key=lambda where: (-remainders[where], where))[: limit - sum(shares.values())]:
        shares[where] += 1
    return {where: starts.get(where, 0) + shares[where] if where in shares else end for where, end in ends.items()}
