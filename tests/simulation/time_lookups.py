"""Whether readers that begin at a time skipped nothing: the look-up by time of leaders, in the index and in the log."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from headrace.log import PartitionLog
from headrace.partition.table_state import changes_of

from tests.simulation.log_batches import decoded_batches


class TimeLookup(NamedTuple):
    """A reader's question for the first record at or after a time, and the answer."""

    client: str
    at_ms: int
    """The time in the question, in ms since 1970."""
    offset: int
    """Where the reader begins."""


def record_times(log: PartitionLog, end_offset: int, *, compacts: bool = False) -> list[tuple[int, int]]:
    """Return offsets and timestamps of the records of a log up to an offset, without those that compaction may remove.

    Another replica may have removed them when it was asked.
    """
    found: list[tuple[int, int]] = []
    newest: dict[bytes, int] = {}
    removable: set[int] = set()
    for columns in decoded_batches(log, end_offset):
        found += zip(columns.offsets(), columns.timestamps(), strict=True)
        if not compacts:
            continue
        removable |= {each.offset for each in changes_of(columns) if each.expires_ms > 0}
        for key, at, value in zip(columns.keys(), columns.offsets(), columns.values(), strict=True):
            if value is None:
                removable.add(at)
            if key in newest:
                removable.add(newest[key])
            if key is not None:
                newest[key] = at
    return [each for each in found if each[0] not in removable]


def check_lookups(lookups: Iterable[TimeLookup], records: Sequence[tuple[int, int]], log_start: int) -> list[str]:
    """Return which answers skipped a record.

    An answer may be too early: at the batch of a record, if that is compressed, or at the end that a reader saw.

    Args:
        lookups: questions and answers of one partition.
        records: offsets and timestamps that its log has in the end.
        log_start: below it, records were removed, and may have been then.
    """
    problems = []
    for each in lookups:
        skipped = [at for at, ms in records if log_start <= at < each.offset and ms >= each.at_ms]
        if skipped:
            problems.append(f"{each} skips the record at {skipped[0]}")
    return problems
