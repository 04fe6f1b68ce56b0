"""Reads the logs of brokers from their disks and compares them with what was reported of them (I6, I17).

A log that did not change since it was read last is not read again, and one that did from the segment before the first
that changed: what the others hold was compared, and each batch's digest covers all before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import google_crc32c
from headrace.log.segment import INDEX_SUFFIXES
from headrace.wire.batch import iter_batches

from tests.simulation.exercise import CHECKED
from tests.simulation.reference_log import Entry, ReferenceLog
from tests.simulation.world import SimulationError

if TYPE_CHECKING:
    from tests.simulation.host import Host
    from tests.simulation.invariants import Checks

Epoch = tuple[int, int]


class ReadDisk(NamedTuple):
    """All that decides how a comparison of a log with its reference ends."""

    log_start: int
    log_end: int
    epochs: tuple[Epoch, ...]
    segments: dict[int, object]
    """By base offset: the segment's size, and when its files changed last."""
    reference: tuple[int, int, Entry | None]
    """Its batches, start and last batch."""


class DiskChecks:
    """Reads disks for `Checks`."""

    def __init__(self, checks: Checks) -> None:
        self._checks = checks

    def check(self, host: Host, reference: ReferenceLog, *, anew: bool) -> None:
        """Compare what is not compared yet, or everything."""
        if host.log.offline:
            return
        present = _present(host, reference)
        begin = 0 if anew or host.read_disk is None else _first_offset(host.read_disk, present)
        if begin is not None:
            with host.broker.node.sound_disk():
                self._compare(host, reference, max(begin, present.log_start))
        host.read_disk = present

    def _compare(self, host: Host, reference: ReferenceLog, begin: int) -> None:
        log = host.log
        if begin < log.log_end_offset:
            log.reader.verify(begin)
        read = ReferenceLog(reference.broker_id)
        self._checks.read_log(host, read, begin)
        self._check_bytes(host, begin)
        # A compacted batch may begin before the log start, in records that the reference was not opened with.
        there, mine = ([each for each in one.entries if each.end > begin] for one in (read, reference))
        host.broker.cluster.world.count(CHECKED + "I6")
        if there != mine or read.end != reference.end:
            raise SimulationError("I6", f"{host.label}: the disk does not hold what was written")
        check_epochs(_epochs(host), there, reference.end, host.label)

    def _check_bytes(self, host: Host, offset: int) -> None:
        """The payloads are what their headers say, by a checksum that the code under test did not compute (I17)."""
        log = host.log
        while offset < log.log_end_offset:
            with log.reader.read(offset, 1 << 20, log.log_end_offset) as found:
                for header, view in iter_batches(found.read()):
                    host.broker.cluster.world.count(CHECKED + "I17")
                    if google_crc32c.value(bytes(view[36:])) != header.crc:
                        raise SimulationError("I17", f"{host.label}: the batch at {header.base_offset} is corrupt")
                offset = found.end_offset


def check_epochs(held: Sequence[Epoch], entries: Sequence[Entry], log_end: int, who: str) -> None:
    """Compare a log's epochs with those of the batches that a scan found, up to the log end (I6).

    The scan may begin inside an epoch, and the log start lie inside its first batch. The last epoch may have no batch.
    """
    rises = all(before[0] < after[0] and before[1] < after[1] for before, after in pairwise(held))
    begin = entries[0].end if entries else log_end
    starts = [(each.epoch, each.base) for before, each in pairwise(entries) if each.epoch != before.epoch]
    found = [each for each in held if begin <= each[1] < log_end]
    first = [epoch for epoch, start in held if start < begin][-1:]
    is_right = found == starts and first == [each.epoch for each in entries[:1]]
    if not rises or (entries and not is_right) or any(start > log_end for _, start in held):
        raise SimulationError("I6", f"{who}: epochs {held} up to {log_end}; a scan from {begin} gives {starts}")


def _epochs(host: Host) -> tuple[Epoch, ...]:
    return tuple((int(epoch), int(start)) for epoch, start in host.log.epochs())


def _present(host: Host, reference: ReferenceLog) -> ReadDisk:
    log = host.log
    versions = host.broker.node.filesystem.versions(log.directory)
    segments: dict[int, object] = {}
    for each in log._segments.items:
        stem = each.path.removesuffix(".log")
        files = [versions.get(stem + suffix) for suffix in (".log", *INDEX_SUFFIXES)]
        segments[each.base_offset] = (each.path, each.size_bytes, files)
    mine = len(reference.entries), reference.start, reference.entries[-1] if reference.entries else None
    return ReadDisk(int(log.log_start_offset), int(log.log_end_offset), _epochs(host), segments, mine)


def _first_offset(before: ReadDisk, now: ReadDisk) -> int | None:
    """Return from where a log has to be read again: everything from 0, nothing from `None`."""
    if before == now:
        return None
    changed = [base for base in before.segments if before.segments[base] != now.segments.get(base)]
    changed += [base for base in now.segments if base not in before.segments]
    if not changed or not set(before.epochs) <= set(now.epochs) or before.log_start != now.log_start:
        return 0
    return max((base for base in now.segments if base < min(changed)), default=0)
