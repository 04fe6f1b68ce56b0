"""Sends a Ctrl-C again that came while Python ran a finalizer.

Python runs a signal's handler between any two steps of the main thread, so also within `__del__` or the callback of a
weak reference. What is raised there is printed and dropped ("Exception ignored in"): the KeyboardInterrupt with it, and
the program goes on as if nobody had pressed a key. py4j has such a callback for every Java object.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

AGAIN_SECONDS = 0.05
"""By then the finalizer has ended; where the next one has begun, the signal is sent once more."""


@contextmanager
def no_interrupt_lost() -> Iterator[None]:
    """While the block runs, a KeyboardInterrupt that a finalizer dropped is raised in the main thread after it."""
    before = sys.unraisablehook

    def hook(dropped: sys.UnraisableHookArgs) -> None:
        if not issubclass(dropped.exc_type, KeyboardInterrupt):
            before(dropped)
            return
        timer = threading.Timer(AGAIN_SECONDS, _interrupt)
        timer.daemon = True
        timer.start()

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before


def _interrupt() -> None:
    # To the main thread itself: it may be waiting for a socket, which a signal to another thread does not end.
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
