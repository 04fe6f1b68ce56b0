"""Events of one server on their way to the topic: administrative acts, and refusals and data calls at a bounded rate.

A refusal or data call is written at once; those of the same user, method and topic in the second after it are one event
with their number.
If the topic cannot be written for long, the newest events are dropped and counted, and their number is an event itself:
nothing is lost silently. So is an event that is too large for a write, which would be repeated for ever and hold all
later ones. Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
from collections import Counter as TallyCounter
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

import structlog
from prometheus_client import Counter

from headrace_server.audit.events import AuditEvent
from headrace_server.clock import Clock

log = structlog.get_logger("audit")

MAX_WAITING = 10_000
"""Events that wait for the topic."""
MAX_WAITING_BYTES = 16 << 20
"""Their size as records."""
MAX_EVENT_BYTES = 256 << 10
"""Size of an event as a record. Names and requests are cut, so that no caller makes a larger one; it would be lost."""
REPEATED_MS = 1_000
"""Least time between two events about refusals, or data calls, of one user, method and topic."""
MAX_REPEATED = 1_000
"""Users, methods and topics whose refusals and data calls are told apart; of each kind, others are one event without
names.
"""
MAX_TOPICS_OF_USER = 100
"""Of these, methods and topics of one user; its calls of a method on further topics are one event without a topic."""

_Key = tuple[str, str, str, tuple[str, ...]]
"""Kind, user, method and topics of events that are one within a second."""


@dataclass(slots=True)
class _Held:
    """Refusals or data calls of one user, method and topic that no event has yet."""

    since_ms: int
    """Time of the last event about them, monotonic: the wall clock may be set back."""
    latest: AuditEvent
    count: int = 0


class AuditLog:
    """See the module."""

    def __init__(self, lost: Counter, is_on: Callable[[], bool], clock: Clock) -> None:
        """`is_on` tells whether the topic is written; acts are logged in any case."""
        self._lost_counter = lost
        self._is_on = is_on
        self._clock = clock
        self._waiting: deque[tuple[AuditEvent, int]] = deque()
        """Events with their sizes."""
        self._waiting_bytes = 0
        self._lost = 0
        self._repeated: dict[_Key, _Held] = {}
        self._topics_of: TallyCounter[str] = TallyCounter()
        """Keys with a topic, by user."""
        self._has_events = asyncio.Event()

    def __len__(self) -> int:
        """Return the number of events that wait, held ones included."""
        return len(self._waiting) + sum(held.count > 0 for held in self._repeated.values())

    @property
    def holds_repeated(self) -> bool:
        """Whether `flush` has something to do."""
        return bool(self._repeated)

    def note_act(self, event: AuditEvent) -> None:
        """Write an administrative act, served or failed."""
        log.info(
            "act",
            user=event.user,
            address=event.address,
            method=event.method,
            resources=list(event.resources),
            error=event.error,
        )
        self._put(event)

    def note_repeated(self, event: AuditEvent) -> None:
        """Write a refusal or data call, or hold it for the next event about its user, method and topic."""
        if not self._is_on():
            return
        key, event, now_ms = *self._place(event), self._clock.monotonic_ms()
        held = self._repeated.get(key)
        if held is None:
            held = self._repeated[key] = _Held(now_ms - REPEATED_MS, event)
            if event.resources:
                self._topics_of[event.user] += 1
        held.latest = event
        held.count += 1
        if now_ms - held.since_ms >= REPEATED_MS:
            self._put_held(held, now_ms)

    def _place(self, event: AuditEvent) -> tuple[_Key, AuditEvent]:
        """Return the key of a refusal or data call, and what an event with this key tells of it.

        A user cannot fill the table with topics of its own, so that a topic of others, or another user, has no place.
        """
        key = _key_of(event)
        if key not in self._repeated and event.resources and self._topics_of[event.user] >= MAX_TOPICS_OF_USER:
            event = replace(event, resources=())
            key = _key_of(event)
        if key not in self._repeated and len(self._repeated) >= MAX_REPEATED:
            event = AuditEvent(event.time_ms, event.server, "", "", "", "", event.kind)
            key = _key_of(event)
        return key, event

    def flush(self) -> None:
        """Write the events that were held long enough. Call it about once a second."""
        now_ms = self._clock.monotonic_ms()
        for key, held in list(self._repeated.items()):
            if now_ms - held.since_ms < REPEATED_MS:
                continue
            if held.count:
                self._put_held(held, now_ms)
            else:
                del self._repeated[key]
                self._forget_topic(held.latest)

    def _forget_topic(self, event: AuditEvent) -> None:
        if event.resources:
            self._topics_of[event.user] -= 1
            if not self._topics_of[event.user]:
                del self._topics_of[event.user]

    def _put_held(self, held: _Held, now_ms: int) -> None:
        self._put(replace(held.latest, count=held.count))
        held.since_ms, held.count = now_ms, 0

    def _put(self, event: AuditEvent) -> None:
        if not self._is_on():
            return
        size_bytes = len(event.to_json())
        is_full = len(self._waiting) >= MAX_WAITING or self._waiting_bytes + size_bytes > MAX_WAITING_BYTES
        if is_full or size_bytes > MAX_EVENT_BYTES:
            self._lost += 1
            self._lost_counter.inc()
            return
        self._waiting.append((event, size_bytes))
        self._waiting_bytes += size_bytes
        self._has_events.set()

    async def wait(self) -> None:
        """Wait until there are events."""
        await self._has_events.wait()

    def take(self, most: int, most_bytes: int = MAX_WAITING_BYTES) -> list[AuditEvent]:
        """Remove and return up to `most` events, in order; the number of lost ones last.

        Those behind the first one do not exceed `most_bytes` together with it.
        """
        taken: list[AuditEvent] = []
        while self._waiting and len(taken) < most:
            event, size_bytes = self._waiting[0]
            most_bytes -= size_bytes
            if taken and most_bytes < 0:
                break
            self._waiting.popleft()
            self._waiting_bytes -= size_bytes
            taken.append(event)
        if not self._waiting:
            self._has_events.clear()
            if self._lost and taken:
                last = taken[-1]
                taken.append(AuditEvent(last.time_ms, last.server, "", "", "", "", "lost", count=self._lost))
                self._lost = 0
        return taken

    def give_back(self, events: list[AuditEvent]) -> None:
        """Put events back that could not be written; `take` returns them again."""
        sized = [(event, len(event.to_json())) for event in events]
        self._waiting.extendleft(reversed(sized))
        self._waiting_bytes += sum(size_bytes for _, size_bytes in sized)
        if self._waiting:
            self._has_events.set()


def _key_of(event: AuditEvent) -> _Key:
    return event.kind, event.user, event.method, event.resources
