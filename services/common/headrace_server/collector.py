"""Garbage collection of a service: long-lived objects are visited once an hour, not in every full collection.

A full collection of CPython visits every object and stops the process meanwhile: 100 to 150 ms for a broker with 10,000
partitions. The survivors of a long collection are frozen (`gc.freeze`); every `WHOLE_SECONDS` a collection visits them,
too, so that cyclic garbage among them stays for up to an hour. Without a collector such cycles would stay for ever,
higher thresholds would only make the pause rarer, and a separate thread would hold the GIL as long.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

LONG_SECONDS = 0.010
"""CPU time of a full collection above which its survivors are frozen."""
WHOLE_SECONDS = 3_600.0


class CollectorPacer:
    """Callback of the garbage collector, called in the thread that triggered the collection; see the module."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._whole_at = monotonic()
        self._started = 0.0

    def install(self) -> None:
        """Freeze the current objects and register for the life of the process; a second call does nothing."""
        if any(isinstance(each, CollectorPacer) for each in gc.callbacks):
            return
        gc.collect()
        gc.freeze()
        gc.callbacks.append(self)

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        """Handle the `start` or `stop` of a collection (the interface of `gc.callbacks`)."""
        if info["generation"] != 2:
            return
        if phase == "start":
            if self._monotonic() - self._whole_at >= WHOLE_SECONDS:
                self._whole_at = self._monotonic()
                gc.unfreeze()
            self._started = time.thread_time()
        elif time.thread_time() - self._started >= LONG_SECONDS:
            gc.freeze()
