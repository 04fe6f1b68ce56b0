"""Deferral of Ctrl-C during steps that it would corrupt.

Python runs a signal handler in the main thread between any two of its steps. A KeyboardInterrupt raised while gRPC
starts a call leaves the channel's lock held, and every later call and `close` waits for it forever. One raised while a
batch moves from one list to another loses the batch. So the main thread starts calls and moves batches with SIGINT
deferred, for milliseconds.

`_signal` has the functions that those of `signal` wrap. The wrappers take ten times as long, because they look up names
for handlers that have none; a producer defers SIGINT several times per batch.
"""

import _signal  # type: ignore[import-not-found]
import signal
import threading
from types import FrameType
from typing import Any

SIGINT = int(signal.SIGINT)


class DeferredKeyboardInterrupt:
    """Context manager that defers SIGINT to the end of its block. May be nested.

    It does nothing on other threads than the main one, and if SIGINT has no Python handler.
    """

    __slots__ = ("_came", "_handler")

    def __init__(self) -> None:
        self._handler: Any = None
        self._came: tuple[int, FrameType | None] | None = None

    def __enter__(self) -> None:
        if threading.get_ident() != threading.main_thread().ident:
            return
        handler = _signal.getsignal(SIGINT)
        if callable(handler):
            self._handler = handler
            _signal.signal(SIGINT, self._put_off)

    def __exit__(self, *exc: object) -> None:
        if self._handler is None:
            return
        _signal.signal(SIGINT, self._handler)
        if self._came is not None:
            self._handler(*self._came)

    def _put_off(self, number: int, frame: FrameType | None) -> None:
        self._came = (number, frame)
