"""What a member of a group does in the background, in virtual time: the third `Background` of the SDK.

As `BackgroundLoop` runs operations on a thread, this runs them on the world's events. `Shell` performs the steps; what
it does beyond the shipped backgrounds is nothing.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

from headrace.client.base.background import LongPollCall, WaitSignal
from headrace.client.base.operations import Call, InvokeCallback, Operation, Pause, WaitUntil
from headrace.client.group import coordinator_calls
from headrace.client.group import member as group_member
from headrace.client.group import session as group_session
from headrace.client.net import bootstrap_client

from tests.simulation.group_calls import MemberCall
from tests.simulation.world import Event, Process, World

if TYPE_CHECKING:
    from tests.simulation.group_cluster import GroupCluster

Advance = Callable[..., object]


class VirtualSignal:
    """As `threading.Event`, for one operation that waits."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._waiter: Callable[[], object] | None = None
        self.is_set = False

    def set(self) -> None:
        """Wake who waits, soon."""
        self.is_set = True
        if self._waiter is not None:
            self._shell.soon(self._waiter)

    def clear(self) -> None:
        """Forget it."""
        self.is_set = False

    def wait(self, done: Callable[[], object], seconds: float | None = None) -> Callable[[], None]:
        """Call `done` when it is set, or when the time is up; return what ends the wait."""
        timers: list[Event] = []

        def end() -> None:
            for timer in timers:
                timer.cancel()
            if self._waiter is wake:
                self._waiter = None

        def wake() -> None:
            if self._waiter is wake:
                end()
                done()

        self._waiter = wake
        if self.is_set:
            self._shell.soon(wake)
        elif seconds is not None:
            timers.append(self._shell.after(seconds, wake))
        return end


class VirtualChanges:
    """As `threading.Condition`."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._waiters: list[Callable[[], object]] = []

    def notify_all(self) -> None:
        """Let everyone look at their condition, soon."""
        for waiter in list(self._waiters):
            self._shell.soon(waiter)

    def wait_for(self, condition: Callable[[], bool], seconds: float, done: Callable[[bool], object]) -> None:
        """Call `done` with whether the condition holds, once it does or the time is up."""

        def look(*, last: bool = False) -> None:
            if look not in self._waiters or not (last or condition()):
                return
            self._waiters.remove(look)
            timer.cancel()
            done(condition())

        timer = self._shell.after(seconds, lambda: look(last=True))
        self._waiters.append(look)
        self._shell.soon(look)


class Spawned(NamedTuple):
    """An operation in the background."""

    shell: Shell
    operation: Operation[Any]

    def cancel(self) -> None:
        """Close it where it waits."""
        self.shell.cancel(self.operation)

    def done(self) -> bool:
        """Return whether it has ended."""
        return not self.shell.has(self.operation)


class Shell:
    """Executes operations for one process."""

    def __init__(self, cluster: GroupCluster, process: Process) -> None:
        self.cluster = cluster
        self.world: World = cluster.world
        self.process = process
        self._open: dict[Operation[Any], MemberCall | None] = {}
        """Each with the call that it waits for."""
        self.endings = VirtualChanges(self)
        cluster.shells.append(self)

    def make_signal(self) -> VirtualSignal:
        """See `Background`."""
        return VirtualSignal(self)

    def make_changes(self, _lock: Any) -> VirtualChanges:
        """See `Background`."""
        return VirtualChanges(self)

    def spawn(self, operation: Operation[None]) -> Spawned:
        """See `Background`."""
        self.execute(operation)
        return Spawned(self, operation)

    def cancel(self, operation: Operation[Any]) -> None:
        """Close an operation, and end its call; nothing where it has ended."""
        if operation in self._open:
            call = self._open[operation]
            if call is not None:
                call.cancel()
            operation.close()
            self._ended(operation)

    def has(self, operation: Operation[Any]) -> bool:
        """Return whether an operation has not ended."""
        return operation in self._open

    def _ended(self, operation: Operation[Any]) -> None:
        self._open.pop(operation, None)
        self.endings.notify_all()

    def soon(self, call: Callable[[], object]) -> None:
        """Do it next."""
        self.world.after(0, self.process, "", call)

    def after(self, seconds: float, call: Callable[[], object]) -> Event:
        """Do it then."""
        return self.world.after(max(0, round(seconds * 1000)), self.process, "", call)

    def execute(
        self,
        operation: Operation[Any],
        done: Callable[[Any], object] = lambda result: None,
        failed: Callable[[Exception], object] | None = None,
    ) -> None:
        """Run an operation to its end; `failed` takes what it raises."""

        def advance(outcome: Any, error: BaseException | None = None) -> None:
            if operation not in self._open:
                return  # It was cancelled.
            self._open[operation] = None
            try:
                step = operation.send(outcome) if error is None else operation.throw(error)
            except StopIteration as stop:
                self._ended(operation)
                done(stop.value)
                return
            except Exception as raised:
                self._ended(operation)
                if failed is None:
                    raise
                failed(raised)
                return
            self._begin(operation, step, advance)

        self._open[operation] = None
        advance(None)

    def close(self) -> None:
        """Throw away what the process had under way."""
        for operation in list(self._open):
            for _ in range(2):  # The first time it may want to leave the group.
                with contextlib.suppress(RuntimeError):
                    operation.close()
        self._open.clear()

    def _begin(self, operation: Operation[Any], step: Any, advance: Advance) -> None:
        """Do one step and continue with its result."""
        match step:
            case WaitSignal():
                step.signal.wait(lambda: advance(None), step.seconds)
            case Pause():
                self.after(step.seconds, lambda: advance(None))
            case LongPollCall():
                self._long_poll(operation, step, advance)
            case Call():
                self._open[operation] = MemberCall(self.cluster, self.process, step, advance)
            case InvokeCallback():
                nested = step.callback(step.argument)
                if nested is None:
                    self.soon(lambda: advance(None))
                else:
                    self.execute(nested, advance, lambda error: advance(None, error))
            case WaitUntil():
                step.changes.wait_for(step.condition, step.seconds, advance)
            case _:
                raise AssertionError(f"an unknown step: {step!r}")

    def _long_poll(self, operation: Operation[Any], step: LongPollCall, advance: Advance) -> None:
        """Make a call that a signal ends."""
        if step.signal.is_set:
            self.soon(lambda: advance(None))
            return

        def done(answer: Any, error: BaseException | None) -> None:
            end_wait()
            advance(answer, error)

        def signalled() -> None:
            call.cancel()
            advance(None)

        call = self._open[operation] = MemberCall(self.cluster, self.process, step.call, done)
        end_wait = step.signal.wait(signalled)


@contextlib.contextmanager
def virtual_time(world: World) -> Iterator[None]:
    """Let the SDK's modules that read clocks read the world's."""

    def seconds() -> float:
        return world.now_ms / 1000

    def now_ms() -> int:
        return world.now_ms

    clock = SimpleNamespace(monotonic=seconds)
    with contextlib.ExitStack() as stack:
        for module in (bootstrap_client, coordinator_calls, group_session, group_member):
            stack.enter_context(mock.patch.object(module, "time", clock))
        for module in (group_session, group_member):
            stack.enter_context(mock.patch.object(module, "boot_ms", now_ms))
        before = random.getstate()
        random.seed(f"{world.seed}/global")  # `PrefixView` draws its back-off from it.
        try:
            yield
        finally:
            random.setstate(before)
