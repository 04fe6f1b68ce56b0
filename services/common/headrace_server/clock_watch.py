"""Whether the wall clock of this process can be believed: what deletes by age asks before it deletes (PROTOCOL H43).

A clock is in doubt

- when it has jumped against the machine's boot time since the process started, until it is back;
- when, at the start, it is further from the last time that was seen than it may be: the newest record on the disk, and
  the clocks that processes have written to etcd;
- when more than half of the other processes, those that do not doubt themselves, have another time.

Doubt ends where as many others agree, or where an operator says what time it is (`headrace-broker trust-clock`), and
not by waiting. A clock that others disprove, all of a jump at once, stays in doubt. A wrong clock costs disk space.

Meanwhile records are stamped with the time that is most likely right, `ClockWatch.now_ms`: they are deleted by their
stamp when the doubt is over.

`ClockWatch` decides: no I/O, time by its `Clock`. `ClockExchange` writes `clocks/{process}` to etcd and reads those of
others.
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
"""Clocks that are further apart disagree; a clock that moved further has jumped."""
DRIFT_PPM = 500
"""What adjusting a clock may add to it or take from it, as NTP's limit is."""
INTERVAL_SECONDS = 120.0
OPERATOR = "operator"
"""The process name under which `trust-clock` writes."""


class _Reading(NamedTuple):
    wall_ms: int
    read_ms: int  # boot time of this machine when it came
    doubtful: bool


class ClockWatch:
    """Belongs to the event loop."""

    def __init__(self, clock: Clock, *, limit_ms: int = LIMIT_MS) -> None:
        self._clock = clock
        self._limit_ms = limit_ms
        self._difference_ms = float(clock.now_ms() - clock.boottime_ms())
        self._followed_ms = self._started_ms = clock.boottime_ms()
        self._last_seen_ms = 0
        self._confirmed = False  # another process has had the same time since the start
        self._readings: dict[str, _Reading] = {}
        self._is_believed = False  # as `doubt` has found it, and nothing was taken in since

    def note_seen(self, wall_ms: int) -> None:
        """Record a time that was seen before this process started: of a record, or of a process in etcd."""
        self._last_seen_ms = max(self._last_seen_ms, wall_ms)
        self._is_believed = False

    def note(self, process: str, wall_ms: int, *, doubtful: bool) -> None:
        """Record the time that another process has just written; `operator`'s is trusted."""
        reading = _Reading(wall_ms, self._clock.boottime_ms(), doubtful)
        self._is_believed = False
        if process != OPERATOR:
            self._readings[process] = reading
        elif self._agrees(reading):
            self._believe()

    def forget(self, process: str) -> None:
        """A process is no longer registered: its time says nothing."""
        self._readings.pop(process, None)
        self._is_believed = False

    @property
    def processes(self) -> set[str]:
        """The processes whose times count."""
        return set(self._readings)

    def now_ms(self) -> int:
        """The time to stamp records with: the wall clock's where it can be believed.

        Else what the other processes have (the median), or what the clock would show had it not jumped. A process that
        has doubted its clock since its start and hears of no other has the later of the clock and the last time that
        was seen: a record that is stamped too late is kept too long, and one that is stamped too early goes too early.
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
        """Why the clock cannot be believed, in a sentence; empty: it can."""
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
        """Follow what a clock may legally do: be slewed."""
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
    """Writes the own clock to etcd and gives the watch what the others write. Owned by a service's app."""

    def __init__(
        self, watch: ClockWatch, name: str, view: ClusterView, metastore: Metastore, clock: Clock, gauge: Gauge
    ) -> None:
        """`name`: as `broker-1`. `gauge` is 1 while the clock is in doubt. The view is loaded."""
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

        A record may be of a time in which the clock was in doubt.
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
        """As `ClockWatch.doubt`; a change is logged."""
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
        """Write and look each `INTERVAL_SECONDS`, until cancelled."""
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
    """Return what etcd keeps of a clock that shows `now_ms` (milliseconds since 1970) and that an operator believes."""
    return metadata_pb2.ProcessClock(wall_ms=now_ms, believed_ms=now_ms).SerializeToString()


def _hours(milliseconds: float) -> str:
    return f"{milliseconds / 3_600_000:.1f} hours"
