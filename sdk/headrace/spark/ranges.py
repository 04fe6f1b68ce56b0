"""Ranges of offsets: what a read consists of, split over tasks, held against the log's start. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from headrace.client.base.errors import ConfigError
from headrace.wire.ids import TopicPartition


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
class DataLoss:
    """Records that were wanted and that retention has removed."""

    where: TopicPartition
    wanted: int
    """The first offset wanted."""
    earliest: int
    """Where the log starts."""
    records: int
    """How many of the wanted ones are gone."""

    def __str__(self) -> str:
        return (
            f"{self.where}: offset {self.wanted} was wanted and the log starts at {self.earliest}, "
            f"{self.records} records are gone"
        )


def check_order(ranges: Iterable[OffsetRange], latest: Mapping[TopicPartition, int], start: str, end: str) -> None:
    """Check the ranges of a batch against each other and the log's end; `start` and `end` name the options.

    Raises:
        ConfigError: one starts behind its end, or a bound is behind the log's end.
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
    """Cut off what the log has no more, and say what that was."""
    kept, losses = [], []
    for part in ranges:
        first = earliest[part.where]
        if len(part) and part.start < first:
            losses.append(DataLoss(part.where, part.start, first, min(first, part.end) - part.start))
            part = OffsetRange(part.where, first, max(first, part.end))
        kept.append(part)
    return kept, losses


def split(ranges: Iterable[OffsetRange], min_partitions: int, max_records: int) -> list[OffsetRange]:
    """Divide ranges over tasks: at most `max_records` each, and at least `min_partitions` tasks (0: any).

    Large ranges are divided in proportion, into parts that differ by one record at most; empty ones are left out.
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
    """Return ends that are `limit` records away from the starts, all together, shared by how much waits in each.

    Whatever waits somewhere gets one record at least, unless there are more partitions than that; shares are rounded by
    largest remainder, so that their sum is the limit.
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
