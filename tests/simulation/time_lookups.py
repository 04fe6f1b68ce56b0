"""Whether readers that begin at a time skipped nothing: the look-up by time of leaders, in the index and in the log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from headrace.log import PartitionLog
from headrace.wire.batch import iter_batches
from headrace.wire.columns import decode_batch


class TimeLookup(NamedTuple):
    """A reader's question for the first record at or after a time, and the answer."""

    client: str
    at_ms: int
    """The time in the question, in ms since 1970."""
    offset: int
    """Where the reader begins."""
    begin_ms: int
    """When the question was asked, in virtual ms."""


class TimedBatch(NamedTuple):
    """One batch of a log: its records with their timestamps."""

    base: int
    epoch: int
    is_whole: bool
    """Compaction has removed none of its records."""
    records: Sequence[tuple[int, int]]


def timed_batches(log: PartitionLog, end_offset: int) -> list[TimedBatch]:
    """Return the batches of a log up to an offset."""
    found, offset = [], int(log.log_start_offset)
    while offset < end_offset:
        with log.reader.read(offset, 1 << 20, end_offset) as part:
            for header, view in iter_batches(part.read()):
                columns = decode_batch(bytes(view), max_payload_bytes=1 << 20)
                records = list(zip(columns.offsets(), columns.timestamps(), strict=True))
                found.append(TimedBatch(header.base_offset, header.leader_epoch, not header.is_compacted, records))
            offset = part.end_offset
    return found


def check_lookups(
    lookups: Iterable[TimeLookup],
    batches: Sequence[TimedBatch],
    log_start: int,
    appended_ms: Mapping[tuple[int, int], int],
) -> list[str]:
    """Return which answers skipped a record, or began too early.

    Args:
        lookups: questions and answers of one partition.
        batches: what its log has in the end.
        log_start: below it, records were removed, and may have been then.
        appended_ms: when batches were appended, in virtual ms, by base offset and epoch, as far as that is known.
    """
    problems = []
    for each in lookups:
        for batch in batches:
            skipped = [at for at, ms in batch.records if log_start <= at < each.offset and ms >= each.at_ms]
            if skipped:
                problems.append(f"{each} skips the record at {skipped[0]}")
            was_there = appended_ms.get((batch.base, batch.epoch), each.begin_ms) < each.begin_ms
            rest = [ms for at, ms in batch.records if at >= each.offset]
            begins_here = bool(rest) and batch.base <= each.offset
            if begins_here and batch.is_whole and was_there and each.offset > log_start and max(rest) < each.at_ms:
                problems.append(f"{each} begins before the time, in the batch at {batch.base}")
    return problems
