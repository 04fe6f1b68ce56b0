"""The garbage collector of a service: what lives long is looked at once an hour, not whenever a call makes much.

A full collection of CPython looks at every object and stops the process meanwhile: 100 to 150 ms where a broker holds
10,000 partitions. After one that was long its survivors are set apart (`gc.freeze`), and every
`WHOLE_SECONDS` they are looked at again, so that what became garbage in cycles among them is found by then.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

LONG_SECONDS = 0.010
"""Processor time of a full collection from which on its survivors are set apart."""
WHOLE_SECONDS = 3_600.0


class CollectorPacer:
    """See the module. Called by the collector, in whatever thread it runs."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._whole_at = monotonic()
        self._started = 0.0

    def install(self) -> None:
        """Set apart what is there now, and follow the collector for the life of the process; once in a process."""
        if any(isinstance(each, CollectorPacer) for each in gc.callbacks):
            return
        gc.collect()
        gc.freeze()
        gc.callbacks.append(self)

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        """For `gc.callbacks`."""
        if info["generation"] != 2:
            return
        if phase == "start":
            if self._monotonic() - self._whole_at >= WHOLE_SECONDS:
                self._whole_at = self._monotonic()
                gc.unfreeze()
            self._started = time.thread_time()
        elif time.thread_time() - self._started >= LONG_SECONDS:
            gc.freeze()
