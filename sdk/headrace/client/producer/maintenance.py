"""Background of a producer: one operation for timed work, one for metadata.

A blocking producer runs both on one thread, an asyncio producer in two tasks. They start with the first batch, so that
an unused producer costs neither.
"""

import logging
import time
from contextlib import AbstractContextManager
from typing import Any, Protocol

from headrace.client.base.background import Background, WaitSignal
from headrace.client.base.clock import monotonic_ms
from headrace.client.base.errors import ClosedError
from headrace.client.base.operations import Operation, Pause
from headrace.client.base.request_ids import request_id_scope
from headrace.client.base.retry import OVERDUE_MS, Backoff
from headrace.wire.errors import HeadraceError

IDLE_MS = 3_600_000
"""Wait of the timer operation if nothing is due."""

_log = logging.getLogger("headrace.client")


class Maintained(Protocol):
    """Core of a producer."""

    def seal_due(self) -> int | None:
        """Do the due work; return the next time to check, in monotonic ms, or `None`."""

    def refresh(self) -> Operation[bool]:
        """Read metadata and the producer id if needed; return whether nothing is needed any more."""


class ProducerMaintenance:
    """Runs `seal_due` when work is due and `refresh` when metadata or an id is needed. Any thread."""

    def __init__(
        self,
        maintained: Maintained,
        background: Background,
        lock: AbstractContextManager[Any],
        backoff: Backoff,
        *,
        metadata_max_age_ms: int,
    ) -> None:
        self._maintained = maintained
        self._background = background
        self._lock = lock
        self._backoff = backoff
        self._max_age_seconds = metadata_max_age_ms / 1000
        self._tick = background.make_signal()
        self._wanted = background.make_signal()
        self._wakes_ms = monotonic_ms() + IDLE_MS
        """Time until which the timer operation waits; code that lowers it also sets `_tick`."""
        self._is_started = False
        self._is_stopped = False

    def due_at(self, at_ms: int | None) -> None:
        """Check at a monotonic time in ms: wakes the timer operation only if it would wait beyond it."""
        if at_ms is None or at_ms >= self._wakes_ms:
            return
        self._wakes_ms = at_ms
        self._start()
        self._tick.set()

    def look(self) -> None:
        """Do due work now."""
        self.due_at(self._seal_due())

    def _seal_due(self) -> int | None:
        """Do due work; return the next time to check, which is soon after a failure."""
        try:
            return self._maintained.seal_due()
        except Exception:
            _log.exception("sealing failed")
            return monotonic_ms() + OVERDUE_MS

    def refresh_wanted(self) -> None:
        """Read metadata or the producer id soon."""
        self._start()
        self._wanted.set()

    def stop(self) -> None:
        """Start nothing any more; closing the background ends running operations."""
        with self._lock:
            self._is_stopped = True

    def _start(self) -> None:
        if self._is_started:
            return
        with self._lock:
            if not self._is_started and not self._is_stopped:
                self._is_started = True
                self._background.spawn(self._run_clock())
                self._background.spawn(self._run_refresh())

    def _run_clock(self) -> Operation[None]:
        is_busy = False
        while True:
            now_ms = monotonic_ms()
            # Each call must be checked after `OVERDUE_MS`; under load that must not cause a turn each.
            self._wakes_ms = now_ms + (OVERDUE_MS if is_busy else IDLE_MS)
            due_ms = self._seal_due()
            if due_ms is not None and due_ms < self._wakes_ms:
                self._wakes_ms = max(due_ms, now_ms + 1)
            until_ms = self._wakes_ms
            yield WaitSignal(self._tick, max(0.0, until_ms / 1000 - time.monotonic()))
            self._tick.clear()
            is_busy = monotonic_ms() < until_ms

    def _run_refresh(self) -> Operation[None]:
        """Refresh when needed, and before metadata exceeds its maximum age; never twice within a short time."""
        seconds, failures = self._max_age_seconds, 0
        while True:
            yield WaitSignal(self._wanted, seconds)
            self._wanted.clear()
            is_satisfied = False
            try:
                with request_id_scope():
                    is_satisfied = yield from self._maintained.refresh()
                failures = 0
            except ClosedError:
                return
            except HeadraceError as error:
                failures += 1
                _log.warning("metadata could not be read (try %d): %s", failures, error)
            except Exception:
                failures += 1
                _log.exception("reading metadata failed")
            yield Pause(self._delay_ms(failures) / 1000)
            seconds = self._max_age_seconds if is_satisfied else 0.0

    def _delay_ms(self, failures: int) -> int:
        """Return the delay after a refresh by the number of consecutive failures.

        A successful refresh may be repeated without back-off while a leader is elected.
        """
        return self._backoff.delay_ms(failures) if failures else self._backoff.look_delay_ms()
