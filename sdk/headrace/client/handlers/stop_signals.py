"""SIGINT and SIGTERM end `Consumer.run`, and then reach the handlers that the application has."""

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """Handlers of SIGINT and SIGTERM, shared by all runs of the main thread: an event loop may have several."""

    def __init__(self) -> None:
        self._stops: list[Callable[[], object]] = []
        self._handlers_before: dict[int, Any] = {}
        self._came: dict[int, None] = {}

    @contextlib.contextmanager
    def call(self, stop: Callable[[], object]) -> Iterator[None]:
        """Call `stop` on a signal within the block, between any two steps of the main thread, which may hold any lock.

        When the last block ends, the application's handlers are back, and its own are called for signals that have
        come. Does nothing on another thread than the main one.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self._stops.append(stop)
        try:
            if len(self._stops) == 1:
                self._replace_handlers()
            yield
        finally:
            self._stops.remove(stop)
            if not self._stops:
                self._restore_handlers()

    def _replace_handlers(self) -> None:
        for number in SIGNALS:
            before = signal.getsignal(number)
            if before is not None:  # Python cannot put back a handler that is not its own.
                self._handlers_before[number] = before
                signal.signal(number, self._on_signal)

    def _restore_handlers(self) -> None:
        before, self._handlers_before = self._handlers_before, {}
        came, self._came = self._came, {}
        for number, handler in before.items():
            if signal.getsignal(number) == self._on_signal:  # Otherwise the application has set one meanwhile.
                signal.signal(number, handler)
        for number in came:
            if _is_own(before[number]):
                before[number](number, None)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._came[number] = None
        for stop in list(self._stops):
            stop()


def _is_own(handler: Any) -> bool:
    """Return whether a handler is the application's own: not Python's default, nor that of `asyncio.run`."""
    owner = getattr(getattr(handler, "func", None), "__self__", None)
    is_of_asyncio = isinstance(owner, getattr(sys.modules.get("asyncio"), "Runner", ()))
    return callable(handler) and handler is not signal.default_int_handler and not is_of_asyncio


stop_signals = StopSignals()
