"""Operations of one caller that run side by side, blocking: their calls are in flight together.

The caller's thread runs all of them, while it waits for one. Calls are on the threads of the connections. The asyncio
class with the same methods, `side_by_side_async`, has a task for each.
"""

import heapq
import itertools
import queue
import time
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from typing import Any, Generic, TypeVar

from headrace.client.base.operations import BeginCall, Call, Operation, Pause
from headrace.client.base.request_ids import request_id_scope

Result = TypeVar("Result")


class Started(Generic[Result]):
    """Operation that was started, and its outcome."""

    __slots__ = ("context", "error", "is_done", "operation", "result")

    def __init__(self, operation: Operation[Result]) -> None:
        self.operation = _scoped(operation)
        self.context = copy_context()
        self.is_done = False
        self.result: Result | None = None
        self.error: Exception | None = None


class SideBySide:
    """Operations that run side by side. One thread; close it after use."""

    def __init__(self, run_step: Callable[[Any], Any]) -> None:
        """`run_step` runs a step of an operation, as for `execute`."""
        self._run_step = run_step
        self._answers: queue.SimpleQueue[tuple[Started[Any], Any, Exception | None]] = queue.SimpleQueue()
        self._pauses: list[tuple[float, int, Started[Any]]] = []
        self._numbers = itertools.count()
        self._running: dict[Started[Any], None] = {}

    def start(self, operation: Operation[Result]) -> Started[Result]:
        """Start an operation: run it up to its first call, which is sent. It continues in `result`."""
        started = Started(operation)
        self._running[started] = None
        self._advance(started, None, None)
        return started

    def result(self, started: Started[Result]) -> Result:
        """Wait for the result of an operation; the others continue meanwhile.

        Raises:
            HeadraceError: The error that ended the operation.
        """
        while not started.is_done:
            self._advance(*self._next())
        if started.error is not None:
            raise started.error
        return started.result  # type: ignore[return-value]

    def close(self) -> None:
        """End the operations that are left; the answers to their calls are ignored."""
        for started in self._running:
            started.context.run(started.operation.close)
        self._running.clear()

    def _next(self) -> tuple[Started[Any], Any, Exception | None]:
        """Wait for the next answer, or for the end of a pause."""
        while True:
            left = self._pauses[0][0] - time.monotonic() if self._pauses else None
            if left is not None and left <= 0:
                return heapq.heappop(self._pauses)[2], None, None
            try:
                return self._answers.get(timeout=left)
            except queue.Empty:
                continue

    def _advance(self, started: Started[Any], outcome: Any, error: Exception | None) -> None:
        """Run an operation until it waits again, or to its end."""
        run, operation = started.context.run, started.operation
        try:
            while True:
                step = run(operation.send, outcome) if error is None else run(operation.throw, error)
                outcome = error = None
                match step:
                    case Call():
                        try:
                            run(self._run_step, BeginCall(step, partial(self._answered, started)))
                        except Exception as failure:
                            error = failure
                        else:
                            return
                    case Pause():
                        until = time.monotonic() + step.seconds
                        heapq.heappush(self._pauses, (until, next(self._numbers), started))
                        return
                    case _:
                        raise AssertionError(f"no such step: {step!r}")
        except StopIteration as done:
            started.result = done.value
        except Exception as failure:
            started.error = failure
        started.is_done = True
        self._running.pop(started, None)

    def _answered(self, started: Started[Any], answer: Any, error: Exception | None) -> None:
        self._answers.put((started, answer, error))


def _scoped(operation: Operation[Result]) -> Operation[Result]:
    """Run an operation under a request id of its own; always in the same context."""
    with request_id_scope():
        return (yield from operation)
