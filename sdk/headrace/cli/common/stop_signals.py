"""Clean exit on signals: an exception in the main thread that is never lost.

Python runs a signal handler between any two steps of the main thread, also within `__del__` or the callback of a weak
reference. An exception there is printed and dropped ("Exception ignored in"), and the program continues as if the
signal had not arrived. py4j has such a callback for every Java object.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

AGAIN_SECONDS = 0.05
"""Delay after which the finalizer has ended; if another one has started, the signal is sent again."""


@contextmanager
def stop_signals(*numbers: signal.Signals) -> Iterator[None]:
    """Raise SystemExit with 128 + its number for each of these signals, within the block.

    Such a SystemExit, or a KeyboardInterrupt (also without SIGINT in `numbers`), is raised again after a finalizer that
    drops it.
    """
    hook_before = sys.unraisablehook

    def hook(dropped: sys.UnraisableHookArgs) -> None:
        number = _signal_of(dropped.exc_value)
        if number is None:
            hook_before(dropped)
            return
        timer = threading.Timer(AGAIN_SECONDS, _send, [number])
        timer.daemon = True
        timer.start()

    handlers_before = {number: signal.signal(number, _exit) for number in numbers}
    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = hook_before
        for number, handler in handlers_before.items():
            signal.signal(number, handler)


def _exit(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _signal_of(error: BaseException | None) -> int | None:
    """Return the signal whose handler raised this error in a finalizer, or `None`."""
    match error:
        case KeyboardInterrupt():
            return signal.SIGINT
        case SystemExit(code=int(code)) if code > 128:
            return code - 128
    return None


def _send(number: int) -> None:
    # To the main thread, which may wait for a socket; a signal to another thread would not interrupt it.
    signal.pthread_kill(threading.main_thread().ident or 0, number)
