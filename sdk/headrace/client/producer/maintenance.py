"""A producer's two threads: one that watches the clock, one that asks coordinators.

Both end with it, or when it is collected.
Started when the first batch is opened, so that a producer that is made and not used costs none.
"""

import logging
import threading
import time
import weakref
from collections.abc import Callable
from types import MethodType
from typing import Any, cast

from headrace.client.base.clock import monotonic_ms
from headrace.client.base.config import ProducerConfig
from headrace.client.base.errors import ClosedError
from headrace.client.base.retry import Backoff
from headrace.wire.errors import HeadraceError

IDLE_LOOK_MS = 1_000
"""How long the clock's thread sleeps with nothing due; then it sees whether its producer is still there."""

_log = logging.getLogger("headrace.client")


class ProducerMaintenance:
    """Runs `seal_due` when something is due and `refresh` when something is wanted. Any thread."""

    def __init__(
        self,
        config: ProducerConfig,
        backoff: Backoff,
        seal_due: Callable[[], int | None],
        refresh: Callable[[], bool],
    ) -> None:
        self._config = config
        self._backoff = backoff
        self._seal_due = weakref.WeakMethod(cast(MethodType, seal_due))
        self._refresh = weakref.WeakMethod(cast(MethodType, refresh))
        self._tick = threading.Event()
        self._wanted = threading.Event()
        self._stopped = threading.Event()
        self._start_lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._wakes_ms = 0

    def due_at(self, at_ms: int | None) -> None:
        """Something is due at a monotonic time in ms: wake the clock's thread only if it would sleep past it."""
        if at_ms is None:
            return
        if not self._threads:
            self._start()
        if at_ms < self._wakes_ms:
            self._wakes_ms = at_ms
            self._tick.set()

    def refresh_wanted(self) -> None:
        """Ask for metadata or the producer id soon."""
        if not self._threads:
            self._start()
        self._wanted.set()

    def pause(self, seconds: float) -> None:
        """Wait, but not past `close`."""
        self._stopped.wait(seconds)

    def close(self) -> None:
        """End both threads; waits for the clock's, which never blocks long."""
        self._stopped.set()
        self._tick.set()
        self._wanted.set()
        for thread in self._threads[:1]:
            if thread is not threading.current_thread():
                thread.join(1.0)

    def _start(self) -> None:
        with self._start_lock:
            if self._threads or self._stopped.is_set():
                return
            loops: list[tuple[str, Any]] = [("headrace-linger", _run_clock), ("headrace-refresh", _run_refresh)]
            threads = [threading.Thread(target=run, args=(self,), name=name, daemon=True) for name, run in loops]
            for thread in threads:
                thread.start()
            self._threads = threads

    def _wait(self, event: threading.Event, seconds: float | None) -> bool:
        """Wait for an event; whether to go on."""
        event.wait(seconds)
        event.clear()
        return not self._stopped.is_set()


def _run_clock(maintenance: ProducerMaintenance) -> None:
    """Between two looks `_wakes_ms` says until when it sleeps; whoever lowers it sets the event too."""
    seconds = 0.0
    while maintenance._wait(maintenance._tick, seconds):
        seal_due = maintenance._seal_due()
        if seal_due is None:
            return
        now_ms = monotonic_ms()
        maintenance._wakes_ms = now_ms + IDLE_LOOK_MS
        try:
            due_ms = seal_due()
        except Exception:
            _log.exception("sealing failed")
            due_ms = None
        del seal_due
        if due_ms is not None and due_ms < maintenance._wakes_ms:
            maintenance._wakes_ms = max(due_ms, now_ms + 1)
        seconds = max(0.0, maintenance._wakes_ms / 1000 - time.monotonic())


def _run_refresh(maintenance: ProducerMaintenance) -> None:
    """Refresh when something is wanted, and before metadata grows too old; never twice within a short while."""
    seconds = maintenance._config.metadata_max_age_ms / 1000
    failures = 0
    while maintenance._wait(maintenance._wanted, seconds):
        refresh = maintenance._refresh()
        if refresh is None:
            return
        satisfied = False
        try:
            satisfied = refresh()
            failures = 0
        except ClosedError:
            return
        except HeadraceError as error:
            failures += 1
            _log.warning("metadata could not be read (try %d): %s", failures, error)
        except Exception:
            failures += 1
            _log.exception("reading metadata failed")
        del refresh
        maintenance._stopped.wait(refresh_delay_ms(maintenance._backoff, failures) / 1000)
        seconds = maintenance._config.metadata_max_age_ms / 1000 if satisfied else 0.0


def refresh_delay_ms(backoff: Backoff, failures: int) -> int:
    """Return the delay after a metadata refresh, in milliseconds, by the number of failures in a row.

    One that succeeded may have to be repeated while a leader is elected; that one takes no back-off.
    """
    return backoff.delay_ms(failures) if failures else backoff.look_delay_ms()
