"""Whether what clients saw of a table's rows is linearizable: each row is a register with versions that grow.

A version is a record's offset, so the order of writes is known: what remains to be shown is that each operation fits
into it at a moment between its begin and its end (Herlihy and Wing, 1990), and that a write under a condition directly
follows the version that it names. What was written to expire may be absent from its time on, as far as brokers' clocks
agree; a deletion whose version is not known takes effect while its call lasts, and one in doubt up to `LATE_MS` later.
What either has replaced never comes back. This module imports nothing of headrace.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

ABSENT = -1
MAX_VERSION = 1 << 63
LATE_MS = 15_000
"""A write in doubt happens so long after its call at most: no message and no process waits longer."""
OK = "ok"
REFUSED = "refused"
"""A write under a condition that did not hold; its version is the row's."""
UNKNOWN = "unknown"
FAILED = "failed"
"""A write that had certainly no effect."""
KEPT = "(kept)"
"""Filling of a write under a condition that has left the one of the version which it names."""


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
    lives_ms: int | None = None
    """A write of what ends by itself after that time."""
    deletes: bool = False
    """A write after which there is no row. Its version is not known."""
    begin_ms: int = 0
    end_ms: int = 0
    """When the call began and ended, by a clock that all share."""
    filling: str | None = None
    """What was read or was to be written of the row's other column; `None`: there is none."""


def check_registers(operations: Iterable[Operation], *, clocks_differ_ms: int = 0) -> list[str]:
    """Return what contradicts a linearizable register in each row, where brokers' clocks differ by so much at most."""
    rows: dict[str, list[Operation]] = {}
    for each in operations:
        rows.setdefault(each.row, []).append(each)
    return [problem for row in sorted(rows) for problem in _check_row(rows[row], clocks_differ_ms)]


def _check_row(operations: list[Operation], clocks_differ_ms: int) -> Iterable[str]:
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
    yield from _check_fillings(operations, attempts)
    endings = _Endings(attempts, values, clocks_differ_ms)
    yield from _check_conditions(operations, attempts, values, endings)
    yield from _check_order(operations, endings)


def _check_fillings(operations: list[Operation], attempts: dict[str, Operation]) -> Iterable[str]:
    """Both columns of a row are of the write that has its version, or the other is as that write found it."""
    fillings: dict[int, str | None] = {ABSENT: None}
    found = [each for each in operations if each.outcome == OK and each.version != ABSENT and each.value in attempts]
    for each in sorted(found, key=lambda each: each.version):
        written = attempts[each.value]
        if each.version not in fillings:
            if written.filling != KEPT:
                fillings[each.version] = written.filling
            elif written.expected in fillings:
                fillings[each.version] = fillings[written.expected]
            elif not each.writes:
                fillings[each.version] = each.filling  # Nothing else tells: others must read the same.
        if not each.writes and fillings[each.version] != each.filling:
            yield f"{each.client} read {each.filling} next to {each.value} of {each.row}, not {fillings[each.version]}"


class _Endings:
    """What may have removed a row: writes whose time was over, and deletions."""

    def __init__(self, attempts: dict[str, Operation], values: dict[int, str], clocks_differ_ms: int) -> None:
        versions = {value: version for version, value in values.items()}
        self._ends = [(versions.get(value), each) for value, each in attempts.items() if _may_end(each)]
        self._writes = {version: attempts[value] for version, value in values.items() if value in attempts}
        self._clocks_differ_ms = clocks_differ_ms

    def may_have_ended(self, since: int, until: int, seen: Operation) -> bool:
        """Whether a row that had version `since` may have been absent before `until`, and when `seen` ended."""
        return any(self._may_end_it(version, write, since, until, seen) for version, write in self._ends)

    def _may_end_it(self, version: int | None, write: Operation, since: int, until: int, seen: Operation) -> bool:
        is_late = seen.writes and seen.outcome == UNKNOWN  # It was applied after its end, or before.
        if write.begin >= seen.end and not is_late:
            return False
        lives_ms = 0 if write.lives_ms is None else write.lives_ms
        seen_ms = seen.end_ms + LATE_MS if is_late else seen.end_ms
        if lives_ms and seen_ms < write.begin_ms + lives_ms - self._clocks_differ_ms:
            return False
        if version is not None:
            return since <= version < until
        before = self._writes.get(since)
        if before is None:
            return True
        if write.outcome == OK:
            return before.begin < write.end  # Otherwise the version is one of a later write.
        return before.begin_ms <= write.end_ms + LATE_MS


def _may_end(write: Operation) -> bool:
    """Whether a row may be absent by a write."""
    return (write.lives_ms is not None or write.deletes) and write.outcome in (OK, UNKNOWN)


def _check_conditions(
    operations: list[Operation], attempts: dict[str, Operation], values: dict[int, str], endings: _Endings
) -> Iterable[str]:
    """A write under a condition, also one whose answer was lost and that was read, directly follows that version."""
    versions = sorted(values)
    for before, version in zip([ABSENT, *versions], versions, strict=False):
        write = attempts.get(values[version])
        if write is None or write.expected is None or write.expected >= before:
            continue
        if write.expected != ABSENT or not endings.may_have_ended(before, version, write):
            yield f"{write.client} wrote {write.row} at {version} for {write.expected}, after {before}"
    for each in operations:
        if each.outcome == REFUSED and each.version == each.expected:
            yield f"{each.client} was refused {each.row} at {each.version}, which it had expected"


def _check_order(operations: list[Operation], endings: _Endings) -> Iterable[str]:
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
        if each.version == ABSENT and endings.may_have_ended(newest.version, MAX_VERSION, each):
            continue
        if each.version < newest.version or (is_write and each.version == newest.version):
            what = "wrote" if is_write else "saw"
            yield f"{each.client} {what} {each.row} at {each.version} after {newest.client} had {newest.version}"
