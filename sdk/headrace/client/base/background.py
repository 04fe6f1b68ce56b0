"""Concurrent operations on one thread: the background of a blocking consumer or reader.

They run like tasks on an event loop: each waits for a call, an event or a time without delaying the others. Calls are
in flight on gRPC's threads. `background_async` runs the same operations on an event loop.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from contextvars import Context
from functools import partial
from typing import Any, NamedTuple, Protocol

from headrace.client.base.errors import ClosedError
from headrace.client.base.operations import BeginCall, Call, Changes, Operation, Pause, StartCall
from headrace.client.base.request_ids import outside_operations
from headrace.client.base.unclosed import close_in_thread

log = logging.getLogger("headrace.client")


class Signal(Protocol):
    """Event for one waiting operation, like `threading.Event`."""

    def set(self) -> None:
        """Resume the operation, now or at its next wait; any thread."""

    def clear(self) -> None:
        """Reset the signal."""


class WaitSignal(NamedTuple):
    """Step that waits for a signal or a timeout. The operation clears the signal before it checks for work again."""

    signal: Any
    seconds: float


class LongPollCall(NamedTuple):
    """Step that makes a call which waits at its server. A signal ends it; the result is then `None`."""

    call: Call
    signal: Any


class Spawned(Protocol):
    """Operation in the background."""

    def cancel(self) -> Any:
        """Close it at its current wait."""

    def done(self) -> bool:
        """Return whether it has ended."""


class Background(Protocol):
    """Runs operations concurrently. They end by themselves, on cancellation, or with their owner."""

    @property
    def endings(self) -> Changes:
        """Changes that are notified whenever an operation has ended."""

    def make_signal(self) -> Signal:
        """Return a signal for one of the operations."""

    def make_changes(self, lock: Any) -> Changes:
        """Return the changes that an application's thread or task uses in `WaitUntil`; `lock` guards the conditions."""

    def spawn(self, operation: Operation[None]) -> Spawned:
        """Start an operation."""

    def start(self, call: Call, ended: Callable[[Any, Exception | None], None]) -> None:
        """Start a call; `ended` is called once with its response or error: on any thread, or before this returns."""


class _LoopSignal:
    __slots__ = ("_loop", "is_set", "waiter")

    def __init__(self, loop: "BackgroundLoop") -> None:
        self._loop = loop
        self.is_set = False
        self.waiter: tuple[_Task, int] | None = None

    def set(self) -> None:
        if self.is_set:  # The operation that clears it checks for work afterwards.
            return
        with self._loop.lock:
            self.is_set = True
            if self.waiter is not None:
                self._loop.resume(*self.waiter)

    def clear(self) -> None:
        self.is_set = False


class _Task:
    """Operation with its pending wait. Each step starts a turn: results of an earlier turn are dropped."""

    __slots__ = ("_loop", "call", "context", "deadline", "operation", "signal", "turn")

    def __init__(self, loop: "BackgroundLoop", operation: Operation[None]) -> None:
        self._loop = loop
        self.operation = operation
        self.context = Context()
        self.turn = 0
        self.deadline: float | None = None
        self.signal: _LoopSignal | None = None
        self.call: Any = None

    def cancel(self) -> None:
        with self._loop.lock:
            self._loop.resume(self, self.turn, error=GeneratorExit())

    def done(self) -> bool:
        return not self._loop.has(self)

    def stop_waiting(self) -> None:
        """Start a turn. Called under the lock."""
        self.turn += 1
        self.deadline = None
        if self.signal is not None:
            self.signal.waiter = None
            self.signal = None


class BackgroundLoop:
    """Background of one client. The thread runs from the first `spawn` until `close`."""

    def __init__(self, name: str, run_step: Callable[[Any], Any]) -> None:
        """`name` is that of the thread; `run_step` raises `ClosedError` once the connections are closed."""
        self._name = name
        self._run_step = run_step
        self._tasks: dict[_Task, None] = {}
        self._resumed: deque[tuple[_Task, int, Any, BaseException | None]] = deque()
        self.lock = threading.RLock()
        """Guards the tasks and their signals. No other lock is taken under it."""
        self._changed = threading.Condition(self.lock)
        self.endings = threading.Condition(self.lock)
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def make_signal(self) -> _LoopSignal:
        """See `Background`."""
        return _LoopSignal(self)

    def make_changes(self, lock: Any) -> threading.Condition:
        """See `Background`."""
        return threading.Condition(lock)

    def spawn(self, operation: Operation[None]) -> _Task:
        """See `Background`."""
        task = _Task(self, operation)
        with self.lock:
            self._tasks[task] = None
            self.resume(task, task.turn)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
        return task

    def start(self, call: Call, ended: Callable[[Any, Exception | None], None]) -> None:
        """See `Background`."""
        try:
            outside_operations().run(self._run_step, BeginCall(call, ended))
        except Exception as error:
            ended(None, error)

    def close_unclosed(self, client: object, close: Callable[[], object]) -> None:
        """Close a client that was garbage-collected without a close."""
        close_in_thread(client, close)

    def has(self, task: _Task) -> bool:
        """Return whether a task is still running."""
        return task in self._tasks

    def resume(self, task: _Task, turn: int, outcome: Any = None, error: BaseException | None = None) -> None:
        """Resume a task with the result of its step, unless it was resumed already. Called under the lock."""
        self._resumed.append((task, turn, outcome, error))
        self._changed.notify()

    def close(self) -> None:
        """Close the operations of the thread. Calling it again does nothing."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    def join(self, timeout: float) -> None:
        """Wait until all operations have ended, up to `timeout` seconds."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def _run(self) -> None:
        try:
            while (resumed := self._next()) is not None:
                self._advance(*resumed)
        finally:
            for task in list(self._tasks):
                self._close(task)

    def _next(self) -> tuple[_Task, Any, BaseException | None] | None:
        """Wait for a task that can be resumed. `None` means that the loop is closed."""
        with self._changed:
            while not self._is_closed:
                while self._resumed:
                    task, turn, outcome, error = self._resumed.popleft()
                    if turn == task.turn or isinstance(error, GeneratorExit):
                        task.stop_waiting()
                        return task, outcome, error
                now = time.monotonic()
                deadlines = [(task.deadline, task) for task in self._tasks if task.deadline is not None]
                if due := [task for deadline, task in deadlines if deadline <= now]:
                    for task in due:
                        self.resume(task, task.turn)
                    continue
                self._changed.wait(min((deadline for deadline, _ in deadlines), default=now + 3_600) - now)
        return None

    def _advance(self, task: _Task, outcome: Any, error: BaseException | None) -> None:
        """Run a task up to its next step, and start that step."""
        if task.call is not None:
            task.call.cancel()  # A signal came first; no effect if the call has ended.
            task.call = None
        if isinstance(error, GeneratorExit):
            self._close(task)
            return
        try:
            if error is None:
                step = task.context.run(task.operation.send, outcome)
            else:
                step = task.context.run(task.operation.throw, error)
        except (StopIteration, ClosedError):
            self._ended(task)
            return
        except Exception:
            self._ended(task)
            log.exception("%s: an operation has failed", self._name)
            return
        match step:
            case Pause():
                task.deadline = time.monotonic() + step.seconds
            case WaitSignal():
                task.deadline = time.monotonic() + step.seconds
                self._wait_for(task, step.signal)
            case LongPollCall():
                if not step.signal.is_set:
                    self._call(task, step.call)
                self._wait_for(task, step.signal)
            case Call():
                self._call(task, step)
            case _:
                with self.lock:
                    self.resume(task, task.turn, error=AssertionError(f"no such step: {step!r}"))

    def _wait_for(self, task: _Task, signal: _LoopSignal) -> None:
        with self.lock:
            task.signal, signal.waiter = signal, (task, task.turn)
            if signal.is_set:
                self.resume(task, task.turn)

    def _call(self, task: _Task, call: Call) -> None:
        turn = task.turn
        try:
            future = task.call = task.context.run(self._run_step, StartCall(call))
        except Exception as error:
            with self.lock:
                self.resume(task, turn, error=error)
        else:
            future.add_done_callback(partial(self._answered, task, turn))

    def _answered(self, task: _Task, turn: int, future: Any) -> None:
        """Process the end of a call, on gRPC's thread."""
        outcome, failure = None, None
        try:
            outcome = future.result()
        except Exception as error:
            failure = error
        with self.lock:
            self.resume(task, turn, outcome, failure)

    def _close(self, task: _Task) -> None:
        if task.call is not None:
            task.call.cancel()
        task.context.run(task.operation.close)
        self._ended(task)

    def _ended(self, task: _Task) -> None:
        with self.lock:
            self._tasks.pop(task, None)
            self.endings.notify_all()
