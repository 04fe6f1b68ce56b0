"""Put Ctrl-C off for the moment in which it would do harm.

Python runs a signal's handler in the main thread between any two steps of it. A KeyboardInterrupt raised while gRPC
starts a call leaves the channel's lock held, and every later call and `close` waits for it for ever; raised while a
batch moves from one list to another it loses the batch. So the main thread starts calls and moves batches with SIGINT
put off: milliseconds.

`_signal` has the functions that those of `signal` wrap; the wrappers take ten times as long, as they look up names for
handlers that have none. That is noticed: a producer puts SIGINT off several times a batch.
"""

import _signal  # type: ignore[import-not-found]
import signal
import threading
from types import FrameType
from typing import Any

SIGINT = int(signal.SIGINT)


class DeferredKeyboardInterrupt:
    """A `with` block that SIGINT cannot break into; what came meanwhile is raised at its end. May be nested.

    On other threads than the main one, and where SIGINT has no Python handler, it does nothing.
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
