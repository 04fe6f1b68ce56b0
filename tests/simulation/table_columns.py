"""Whether the replicas of a table agree on its columns, whatever each of them has compacted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from headrace.log import PartitionLog
from headrace.partition.table_state import changes_of
from headrace.wire.batch import iter_batches
from headrace.wire.columns import decode_batch


class NewestRecord(NamedTuple):
    """Newest record of a column in one replica."""

    offset: int
    may_go: bool
    """It deletes the column, or expires."""


def newest_columns(log: PartitionLog, end_offset: int) -> dict[bytes, NewestRecord]:
    """Return the newest record of each column in a log."""
    found: dict[bytes, NewestRecord] = {}
    offset = int(log.log_start_offset)
    while offset < end_offset:
        with log.reader.read(offset, 1 << 20, end_offset) as part:
            for _, batch in iter_batches(part.read()):
                for change in changes_of(decode_batch(bytes(batch), max_payload_bytes=1 << 20)):
                    found[change.key] = NewestRecord(change.offset, change.is_deletion or change.expires_ms > 0)
            offset = part.end_offset
    return found


def compare_columns(replicas: Mapping[str, Mapping[bytes, NewestRecord]]) -> list[str]:
    """Return where replicas differ: what one has as newest others have, too, or have removed."""
    problems = []
    for key in sorted({key for columns in replicas.values() for key in columns}):
        records = {name: columns[key] for name, columns in replicas.items() if key in columns}
        offsets = {record.offset for record in records.values()}
        if len(offsets) > 1 or (len(records) < len(replicas) and not all(each.may_go for each in records.values())):
            problems.append(f"the newest records of {key!r} are {records} of replicas {', '.join(replicas)}")
    return problems
