"""Polling of a condition until it holds, the time is over or the demo stops."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from headrace_devcluster.errors import ClusterNotHealthyError

POLL_SECONDS = 0.05
TIMEOUT_SECONDS = 60.0


class StoppedError(Exception):
    """Demo stopped before the condition held; the stopping thread has the reason."""


def wait_until(
    condition: Callable[[], bool], what: str, stop: threading.Event, timeout_seconds: float = TIMEOUT_SECONDS
) -> None:
    """Return when `condition()` is true.

    Raises:
        StoppedError: If `stop` is set.
        ClusterNotHealthyError: If the time is over; the message names `what`.
    """
    deadline = time.monotonic() + timeout_seconds
    while not condition():
        if time.monotonic() > deadline:
            raise ClusterNotHealthyError(
                f"{what}: not within {timeout_seconds:g} s",
                action="Run it again on a machine with less to do; should it stay so, it is a bug.",
            )
        if stop.wait(POLL_SECONDS):
            raise StoppedError(what)
