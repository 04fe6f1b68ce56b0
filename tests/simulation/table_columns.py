"""Whether the replicas of a table agree on its columns, whatever each of them has compacted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from headrace.log import PartitionLog
from headrace.partition.table_state import changes_of

from tests.simulation.log_batches import decoded_batches


class NewestRecord(NamedTuple):
    """Newest record of a column in one replica."""

    offset: int
    may_go: bool
    """It deletes the column, or expires."""


class TableReplica(NamedTuple):
    """What one replica holds of a table."""

    newest: dict[bytes, NewestRecord]
    """By column."""
    records: dict[int, tuple[bytes, bytes | None, int]]
    """By offset: column, value and the time at which it expires."""


def read_replica(log: PartitionLog, end_offset: int) -> TableReplica:
    """Return all records of a log below an offset."""
    found = TableReplica({}, {})
    for columns in decoded_batches(log, end_offset):
        values = dict(zip(columns.offsets(), columns.values(), strict=True))
        for key, at, is_deletion, expires_ms in changes_of(columns):
            found.newest[key] = NewestRecord(at, is_deletion or expires_ms > 0)
            found.records[at] = key, values[at], expires_ms
    return found


def compare_columns(replicas: Mapping[str, TableReplica]) -> list[str]:
    """Return where replicas differ: what one has as newest others have, too, or have removed."""
    problems = []
    for at in sorted({at for replica in replicas.values() for at in replica.records}):
        there = {name: replica.records[at] for name, replica in replicas.items() if at in replica.records}
        if len(set(there.values())) > 1:
            problems.append(f"the records at {at} are {there}")
    for key in sorted({key for replica in replicas.values() for key in replica.newest}):
        records = {name: replica.newest[key] for name, replica in replicas.items() if key in replica.newest}
        offsets = {record.offset for record in records.values()}
        if len(offsets) > 1 or (len(records) < len(replicas) and not all(each.may_go for each in records.values())):
            problems.append(f"the newest records of {key!r} are {records} of replicas {', '.join(replicas)}")
    return problems
