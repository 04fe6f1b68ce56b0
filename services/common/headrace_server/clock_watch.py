"""Plausibility check of this process's wall clock, which is required before any deletion by age (PROTOCOL H43).

A clock is in doubt

- after it has jumped relative to the machine's boot time since the process started, until it is back;
- if, at the start, it differs too much from the last time seen: that of the newest record on the disk, and the clocks
  that processes have written to etcd;
- if more than half of the other processes, not counting those in doubt themselves, have a different time.

The doubt ends when as many others agree, or when an operator confirms the time (`headrace-broker trust-clock`), but
not by waiting. A clock that others contradict, all of a jump at once, stays in doubt. A clock in doubt costs only disk
space.

Meanwhile records are stamped with the most likely time, `ClockWatch.now_ms`, because they are later deleted by their
timestamp.

`ClockWatch` is the logic, without I/O and with time from its `Clock`. `ClockExchange` writes `clocks/{process}` to
etcd and reads those of others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

import structlog
from headrace.wire.errors import MetastoreUnavailableError
from prometheus_client import Gauge

from headrace_server.clock import Clock
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.key_table import ClockKey
from headrace_server.metadata_view import ClusterView
from headrace_server.metastore.api import Metastore, MetastoreRolledBackError, Put

log = structlog.get_logger(__name__)

LIMIT_MS = 24 * 3_600_000
"""Clocks that differ by more disagree; a clock that moved by more has jumped."""
DRIFT_PPM = 500
"""Maximum rate at which an adjustment may slew a clock, NTP's limit."""
INTERVAL_SECONDS = 120.0
OPERATOR = "operator"
"""Process name under which `trust-clock` writes."""


class _Reading(NamedTuple):
    wall_ms: int
    read_ms: int  # boot time of this machine at its arrival
    doubtful: bool


class ClockWatch:
    """Plausibility of the wall clock. Belongs to the event loop."""

    def __init__(self, clock: Clock, *, limit_ms: int = LIMIT_MS) -> None:
        self._clock = clock
        self._limit_ms = limit_ms
        self._difference_ms = float(clock.now_ms() - clock.boottime_ms())
        self._followed_ms = self._started_ms = clock.boottime_ms()
        self._last_seen_ms = 0
        self._confirmed = False  # another process has agreed since the start
        self._readings: dict[str, _Reading] = {}
        self._is_believed = False  # cached result of `doubt`, valid until the next input

    def note_seen(self, wall_ms: int) -> None:
        """Record a time from before the start of this process: of a record, or of a process in etcd."""
        self._last_seen_ms = max(self._last_seen_ms, wall_ms)
        self._is_believed = False

    def note(self, process: str, wall_ms: int, *, doubtful: bool) -> None:
        """Record the time that another process has just written; that of `operator` is trusted."""
        reading = _Reading(wall_ms, self._clock.boottime_ms(), doubtful)
        self._is_believed = False
        if process != OPERATOR:
            self._readings[process] = reading
        elif self._agrees(reading):
            self._believe()

    def forget(self, process: str) -> None:
        """Remove the time of a process that is no longer registered."""
        self._readings.pop(process, None)
        self._is_believed = False

    @property
    def processes(self) -> set[str]:
        """Processes whose times count."""
        return set(self._readings)

    def now_ms(self) -> int:
        """Return the time for timestamps of records: the wall clock's, unless it is in doubt.

        In doubt, it is the median of the other processes' times, or the clock without its jump. A process whose clock
        has been in doubt since the start and that has no other times uses the later of the clock and the last time
        seen: a late timestamp keeps a record too long, an early one deletes it too early.
        """
        if (self._is_believed and not self._has_jumped()) or not self.doubt():
            return self._clock.now_ms()
        if sound := self._sound():
            return sorted(map(self._now_by, sound.values()))[len(sound) // 2]
        boottime_ms = self._clock.boottime_ms()
        if self._last_seen_ms and not self._confirmed:
            seen_ms = self._last_seen_ms + boottime_ms - self._started_ms
            before_jump_ms = boottime_ms + round(self._difference_ms)
            if abs(before_jump_ms - seen_ms) > self._limit_ms:
                return max(before_jump_ms, seen_ms)
        return boottime_ms + round(self._difference_ms)

    def doubt(self) -> str:
        """Return a sentence that says why the clock is in doubt; empty if it is not."""
        found = self._find_doubt()
        self._is_believed = not found
        return found

    def _find_doubt(self) -> str:
        self._follow_drift()
        sound = self._sound()
        agreeing = sum(map(self._agrees, sound.values()))
        if sound and 2 * agreeing >= len(sound):
            self._believe()
            return ""
        jump_ms = self._offset_ms() - self._difference_ms
        if abs(jump_ms) > self._limit_ms:
            return f"the clock has jumped by {_hours(jump_ms)} since the process started"
        if sound:
            name = next(name for name, each in sound.items() if not self._agrees(each))
            apart_ms = self._clock.now_ms() - self._now_by(sound[name])
            return f"{len(sound) - agreeing} of {len(sound)} other clocks differ, {name}'s by {_hours(apart_ms)}"
        apart_ms = self._clock.now_ms() - self._last_seen_ms
        if self._last_seen_ms and not self._confirmed and abs(apart_ms) > self._limit_ms:
            return f"the newest time that was seen before this start is {_hours(apart_ms)} away"
        return ""

    def _sound(self) -> dict[str, _Reading]:
        return {name: each for name, each in self._readings.items() if not each.doubtful}

    def _has_jumped(self) -> bool:
        return abs(self._offset_ms() - self._difference_ms) > self._limit_ms

    def _offset_ms(self) -> int:
        return self._clock.now_ms() - self._clock.boottime_ms()

    def _follow_drift(self) -> None:
        """Track slewing of the clock, which is legitimate."""
        now_ms = self._clock.boottime_ms()
        allowed_ms = (now_ms - self._followed_ms) * DRIFT_PPM / 1_000_000
        self._followed_ms = now_ms
        gap_ms = self._offset_ms() - self._difference_ms
        if abs(gap_ms) > self._limit_ms:
            return  # It has jumped.
        self._difference_ms += max(-allowed_ms, min(gap_ms, allowed_ms))

    def _now_by(self, reading: _Reading) -> int:
        return reading.wall_ms + self._clock.boottime_ms() - reading.read_ms

    def _agrees(self, reading: _Reading) -> bool:
        return abs(self._clock.now_ms() - self._now_by(reading)) <= self._limit_ms

    def _believe(self) -> None:
        self._difference_ms = self._offset_ms()
        self._confirmed = True


class ClockExchange:
    """Writes the own clock to etcd and passes the others' clocks to the watch. Owned by a service's app."""

    def __init__(
        self, watch: ClockWatch, name: str, view: ClusterView, metastore: Metastore, clock: Clock, gauge: Gauge
    ) -> None:
        """`name` is such as `broker-1`; `gauge` is 1 while the clock is in doubt. The view is loaded."""
        self.watch = watch
        self._name = name
        self._view = view
        self._metastore = metastore
        self._clock = clock
        self._gauge = gauge
        self._told = ""
        own = view.source.get(view.keyspace.clock(name))
        self._believed_ms = 0 if own is None else metadata_pb2.ProcessClock.FromString(own.value).believed_ms
        self._seen_ms = 0
        for found in view.source.items(view.keyspace.clock_prefix()):
            self._seen_ms = max(self._seen_ms, metadata_pb2.ProcessClock.FromString(found.value).believed_ms)
        watch.note_seen(self._seen_ms)

    def note_newest_record(self, append_ms: int) -> None:
        """Record the append time of the newest record on the disk, unless etcd has a trusted time.

        The record may have been written while the clock was in doubt.
        """
        if not self._seen_ms:
            self.watch.note_seen(append_ms)

    def _on_change(self, _revision: int, keys: Sequence[str]) -> None:
        for key in keys:
            match self._view.keyspace.parse(key):
                case ClockKey(process) if process != self._name:
                    found = self._view.source.get(key)
                    if found is not None:
                        reading = metadata_pb2.ProcessClock.FromString(found.value)
                        self.watch.note(process, reading.wall_ms, doubtful=reading.in_doubt)

    def look(self) -> str:
        """Return `ClockWatch.doubt`, and log its changes."""
        doubt = self.watch.doubt()
        self._gauge.set(bool(doubt))
        if bool(doubt) != bool(self._told):
            if doubt:
                log.error("clock_in_doubt", reason=doubt, advice="nothing is deleted by age; see HeadraceClockInDoubt")
            else:
                log.warning("clock_trusted")
        self._told = doubt
        return doubt

    async def run(self) -> None:
        """Write the clock and check the doubt every `INTERVAL_SECONDS`, until cancelled."""
        unsubscribe: Callable[[], None] = self._view.subscribe(self._on_change)
        try:
            while True:
                self._forget_gone()
                in_doubt, now_ms = bool(self.look()), self._clock.now_ms()
                if not in_doubt:
                    self._believed_ms = now_ms
                reading = metadata_pb2.ProcessClock(wall_ms=now_ms, in_doubt=in_doubt, believed_ms=self._believed_ms)
                try:
                    key = self._view.keyspace.clock(self._name)
                    await self._metastore.txn([], success=[Put(key, reading.SerializeToString())])
                except MetastoreRolledBackError:
                    raise
                except MetastoreUnavailableError as error:
                    log.debug("clock_not_written", cause=str(error))
                await asyncio.sleep(INTERVAL_SECONDS)
        finally:
            unsubscribe()

    def _forget_gone(self) -> None:
        registered = {f"broker-{broker_id}" for broker_id in self._view.brokers}
        registered.update(f"coordinator-{coordinator_id}" for coordinator_id in self._view.coordinators)
        for process in self.watch.processes - registered:
            self.watch.forget(process)


async def trust_clock(metastore: Metastore, key: str, clock: Clock) -> int:
    """Declare this machine's clock correct for every process; return its time in milliseconds since 1970.

    Raises MetastoreUnavailableError.
    """
    now_ms = clock.now_ms()
    await metastore.txn([], success=[Put(key, believed_clock(now_ms))])
    return now_ms


def believed_clock(now_ms: int) -> bytes:
    """Return the etcd value of a clock that an operator has confirmed at `now_ms` (milliseconds since 1970)."""
    return metadata_pb2.ProcessClock(wall_ms=now_ms, believed_ms=now_ms).SerializeToString()


def _hours(milliseconds: float) -> str:
    return f"{milliseconds / 3_600_000:.1f} hours"
