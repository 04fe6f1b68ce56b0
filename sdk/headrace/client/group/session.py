"""A consumer's session with its group, blocking: a thread for each loop of `group_loops`."""

import threading
import time
from collections.abc import Callable
from typing import Any

import grpc

from headrace.client.base.errors import ClosedError
from headrace.client.base.operations import Call, Operation, execute_loop
from headrace.client.group.loops import AwaitCommit, GroupLoops, InvokeCallback, LongPollCall, WaitEvent

STOP_TIMEOUT_S = 5.0


class GroupSession(GroupLoops):
    """Owned by one consumer; `end` may come from any thread."""

    def __init__(self, *arguments: Any, **rest: Any) -> None:
        """As `GroupLoops`."""
        super().__init__(*arguments, **rest)
        self._resolved = threading.Condition(self.lock)
        self._threads: list[threading.Thread] = []
        self._flying: Any = None

    def start(self) -> None:
        """Begin."""
        for what in (self.heartbeats, self.committing, self.starting):
            name = f"headrace-group-{what.__name__}"
            thread = threading.Thread(target=self._run, args=(what,), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def _run(self, what: Callable[[], Operation[None]]) -> None:
        try:
            execute_loop(what(), self.run_step)
        except ClosedError:
            return
        except Exception as error:
            self._fail(error)

    def run_step(self, step: Any) -> Any:
        """Do one step, and give what came of it."""
        match step:
            case WaitEvent():
                step.event.wait(step.seconds)
                step.event.clear()
                return None
            case LongPollCall():
                return self._long_poll(step.call)
            case InvokeCallback():
                return step.callback(step.partitions)
            case AwaitCommit():
                with self.lock:
                    return self._resolved.wait_for(lambda: step.ticket.is_done or self._ends, step.timeout)
        return self._run_step(step)

    def _long_poll(self, call: Call) -> Any:
        """Make a call that `_interrupt` ends."""
        future = self._run_step(call._replace(starts=True))
        with self.lock:
            self._flying = future
            if self.membership.needs_heartbeat or self._ends:
                future.cancel()
        try:
            return future.result()
        except grpc.FutureCancelledError:
            return None
        finally:
            with self.lock:
                self._flying = None

    def _interrupt(self) -> None:
        """End a heartbeat that waits. Under the lock."""
        if self._flying is not None:
            self._flying.cancel()

    def _tell_waiters(self) -> None:
        self._resolved.notify_all()

    def shutting(self, seconds: float) -> Operation[None]:
        """End the loops, then leave."""
        self.end()
        yield from self.leaving(seconds)

    def end(self) -> None:
        """End the loops; returns within seconds. Again: nothing. Any thread."""
        with self.lock:
            self._ends = True
            self._interrupt()
            self._tell_waiters()
        for event in (self._heartbeat_due, self._commit_due, self._look_up_due):
            event.set()
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    def _make_event(self) -> Any:
        return threading.Event()
