"""Whether what clients saw of a table's rows is linearizable: each row is a register with versions that grow.

A version is a record's offset, so the order of writes is known: what remains to be shown is that each operation fits
into it at a moment between its begin and its end (Herlihy and Wing, 1990), and that a write under a condition directly
follows the version that it names. What was written to expire may be absent at any time, for brokers have clocks of
their own; what it has replaced never comes back. This module imports nothing of headrace.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

ABSENT = -1
MAX_VERSION = 1 << 63
OK = "ok"
REFUSED = "refused"
"""A write under a condition that did not hold; its version is the row's."""
UNKNOWN = "unknown"
FAILED = "failed"
"""A write that had certainly no effect."""


class Operation(NamedTuple):
    """One call on one row; begin and end are places in the order of all events."""

    client: str
    row: str
    begin: int
    end: int
    outcome: str
    version: int
    """What was read or written; `ABSENT` for a row that does not exist, or if it is not known."""
    value: str
    """What was read or was to be written."""
    writes: bool = False
    expected: int | None = None
    """Version under which a write was to happen; `None`: under any."""
    from_replica: bool = False
    """A read that may be of the past."""
    expires: bool = False
    """A write of what ends by itself."""


def check_registers(operations: Iterable[Operation]) -> list[str]:
    """Return what contradicts a linearizable register in each row."""
    rows: dict[str, list[Operation]] = {}
    for each in operations:
        rows.setdefault(each.row, []).append(each)
    return [problem for row in sorted(rows) for problem in _check_row(rows[row])]


def _check_row(operations: list[Operation]) -> Iterable[str]:
    values: dict[int, str] = {}
    attempts = {each.value: each for each in operations if each.writes}
    for each in operations:
        if each.outcome != OK or each.version == ABSENT:
            continue
        known = values.setdefault(each.version, each.value)
        if known != each.value:
            yield f"{each.row} at {each.version} is {known}, and {each.value} for {each.client}"
        written = attempts.get(each.value)
        if written is None:
            yield f"{each.client} read {each.value} of {each.row}, which no one wrote"
        elif written.outcome in (FAILED, REFUSED):
            yield f"{each.client} read {each.value} of {each.row}, whose write was {written.outcome}"
        elif written.begin > each.end:
            yield f"{each.client} read {each.value} of {each.row} before it was written"
    versions = sorted(values)
    yield from _check_conditions(operations, attempts, values, versions)
    yield from _check_order(operations, attempts, values)


def _check_conditions(
    operations: list[Operation], attempts: dict[str, Operation], values: dict[int, str], versions: list[int]
) -> Iterable[str]:
    """A write under a condition, also one whose answer was lost and that was read, directly follows that version."""
    for before, version in zip([ABSENT, *versions], versions, strict=False):
        write = attempts.get(values[version])
        if write is None or write.expected is None or write.expected >= before:
            continue
        if write.expected != ABSENT or not _may_have_expired(attempts, values, before, version, write.end):
            yield f"{write.client} wrote {write.row} at {version} for {write.expected}, after {before}"
    for each in operations:
        if each.outcome == REFUSED and each.version == each.expected:
            yield f"{each.client} was refused {each.row} at {each.version}, which it had expected"


def _check_order(operations: list[Operation], attempts: dict[str, Operation], values: dict[int, str]) -> Iterable[str]:
    """What has ended before an operation begins is not undone for it."""
    shown = [each for each in operations if each.outcome in (OK, REFUSED)]
    ends = sorted((each for each in shown if not each.from_replica), key=lambda each: each.end)
    newest: Operation | None = None
    place = 0
    for each in sorted(shown, key=lambda each: each.begin):
        while place < len(ends) and ends[place].end < each.begin:
            if newest is None or ends[place].version > newest.version:
                newest = ends[place]
            place += 1
        if newest is None or each.from_replica:
            continue
        is_write = each.writes and each.outcome == OK
        if each.version == ABSENT and _may_have_expired(attempts, values, newest.version, MAX_VERSION, each.end):
            continue
        if each.version < newest.version or (is_write and each.version == newest.version):
            what = "wrote" if is_write else "saw"
            yield f"{each.client} {what} {each.row} at {each.version} after {newest.client} had {newest.version}"


def _may_have_expired(attempts: dict[str, Operation], values: dict[int, str], since: int, until: int, end: int) -> bool:
    """Whether a write of a version from `since` on, below `until`, that began before `end` may have expired by then."""
    versions = {value: version for version, value in values.items()}
    for value, write in attempts.items():
        if write.expires and write.begin < end:
            version = versions.get(value)
            if write.outcome == UNKNOWN if version is None else since <= version < until:
                return True
    return False
