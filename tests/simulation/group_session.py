"""A member's session with its group, in virtual time: the third shell of the SDK's `GroupLoops`.

As `headrace.client.group.session` runs the loops on threads, this runs them on the world's events. `Shell` performs the
steps; what it does beyond the shipped shells is nothing.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

from headrace.client.base.config import ConsumerConfig
from headrace.client.base.operations import Call, Operation, Pause
from headrace.client.base.retry import Backoff
from headrace.client.group import loops as group_loops
from headrace.client.group import member as group_member
from headrace.client.group.loops import AwaitCommit, GroupLoops, InvokeCallback, LongPollCall, WaitEvent
from headrace.client.group.membership import Membership
from headrace.client.net import bootstrap_client

from tests.simulation.group_calls import MemberCall
from tests.simulation.world import Event, Process, World

if TYPE_CHECKING:
    from tests.simulation.group_cluster import GroupCluster

STOP_TIMEOUT_MS = 5_000

Advance = Callable[..., object]


class Ended(NamedTuple):
    """A step: wait until the loops have ended, but not for ever."""


class VirtualEvent:
    """As `threading.Event`, for one waiter."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._is_set = False
        self._waiter: Callable[[], object] | None = None

    def set(self) -> None:
        """Wake who waits, soon."""
        self._is_set = True
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            self._shell.soon(waiter)

    def wait(self, seconds: float, done: Callable[[], object]) -> None:
        """Call `done` once it is set, which ends that, or in time."""
        timers: list[Event] = []
        waits = True

        def wake() -> None:
            nonlocal waits
            if not waits:
                return
            waits = False
            for timer in timers:
                timer.cancel()
            self._waiter = None
            self._is_set = False
            done()

        if self._is_set:
            self._shell.soon(wake)
            return
        self._waiter = wake
        timers.append(self._shell.after(seconds, wake))


class Shell:
    """Executes operations for one process."""

    def __init__(self, cluster: GroupCluster, process: Process) -> None:
        self.cluster = cluster
        self.world: World = cluster.world
        self.process = process
        self.session: SimulatedSession
        self._open: dict[Operation[Any], None] = {}
        cluster.shells.append(self)

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
            try:
                step = operation.send(outcome) if error is None else operation.throw(error)
            except StopIteration as stop:
                self._open.pop(operation, None)
                done(stop.value)
                return
            except Exception as raised:
                self._open.pop(operation, None)
                if failed is None:
                    raise
                failed(raised)
                return
            self.run_step(step, advance)

        self._open[operation] = None
        advance(None)

    def close(self) -> None:
        """Throw away what the process had under way."""
        for operation in self._open:
            for _ in range(2):  # The first time it may want to leave the group.
                with contextlib.suppress(RuntimeError):
                    operation.close()
        self._open.clear()

    def run_step(self, step: Any, advance: Advance) -> None:
        """Do one step and go on with what came of it."""
        session = self.session
        match step:
            case WaitEvent():
                step.event.wait(step.seconds, lambda: advance(None))
            case Pause():
                self.after(step.seconds, lambda: advance(None))
            case LongPollCall():
                session.long_poll(step.call, advance)
            case Call():
                MemberCall(self.cluster, self.process, step, advance)
            case InvokeCallback():
                nested = step.callback(step.partitions)
                if nested is None:
                    self.soon(lambda: advance(None))
                else:
                    self.execute(nested, advance, lambda error: advance(None, error))  # type: ignore[arg-type]
            case AwaitCommit():
                session.await_commit(step, advance)
            case Ended():
                session.await_end(advance)
            case _:
                raise AssertionError(f"a step that nobody knows: {step!r}")


class SimulatedSession(GroupLoops):
    """See the module."""

    def __init__(
        self,
        shell: Shell,
        chance: random.Random,
        draw_id: Callable[[], bytes],
        config: ConsumerConfig,
        topics: Iterable[str],
        **rest: Any,
    ) -> None:
        self._shell = shell
        shell.session = self
        super().__init__(config, topics, **rest)
        self._backoff = Backoff(config.retry_backoff_ms, config.retry_backoff_max_ms, chance)
        self.membership = Membership(config, topics, shell.process.name, draw_id, now_ms=group_loops.boot_ms())
        self._flying: tuple[MemberCall, Advance] | None = None
        self._waiters: list[Callable[[], object]] = []
        self._running = 0

    def start(self) -> None:
        """Begin."""
        for loop in (self.heartbeats, self.committing, self.starting):
            self._running += 1
            self._shell.execute(loop(), self._loop_ended)

    def _loop_ended(self, _: Any) -> None:
        self._running -= 1
        self._tell_waiters()

    def long_poll(self, call: Call, advance: Advance) -> None:
        """Make a call that `_interrupt` ends."""
        if self.membership.needs_heartbeat or self._ends:
            self._shell.soon(lambda: advance(None))
            return

        def done(answer: Any, error: BaseException | None) -> None:
            self._flying = None
            advance(answer, error)

        self._flying = MemberCall(self._shell.cluster, self._shell.process, call, done), advance

    def _interrupt(self) -> None:
        flying, self._flying = self._flying, None
        if flying is not None:
            call, advance = flying
            call.cancel()
            self._shell.soon(lambda: advance(None))

    def await_commit(self, step: AwaitCommit, advance: Advance) -> None:
        """Wait until a commit is resolved."""
        self._await(lambda: step.ticket.is_done or self._ends, step.timeout, advance)

    def await_end(self, advance: Advance) -> None:
        """Wait until the loops have ended."""
        self._await(lambda: not self._running, STOP_TIMEOUT_MS / 1000, advance)

    def _await(self, condition: Callable[[], bool], seconds: float, advance: Advance) -> None:
        timer = self._shell.after(seconds, lambda: look(last=True))

        def look(*, last: bool = False) -> None:
            if look not in self._waiters or not (last or condition()):
                return
            self._waiters.remove(look)
            timer.cancel()
            advance(condition())

        self._waiters.append(look)
        self._shell.soon(look)

    def _tell_waiters(self) -> None:
        for waiter in list(getattr(self, "_waiters", ())):
            self._shell.soon(waiter)

    def shutting(self, seconds: float) -> Operation[None]:
        """End the loops, then leave."""
        self._ends = True
        self._interrupt()
        self._tell_waiters()
        for event in (self._heartbeat_due, self._commit_due, self._look_up_due):
            event.set()
        yield Ended()
        yield from self.leaving(seconds)

    def _make_event(self) -> VirtualEvent:
        return VirtualEvent(self._shell)


@contextlib.contextmanager
def virtual_time(world: World) -> Iterator[None]:
    """Let the SDK's modules that read clocks read the world's."""

    def seconds() -> float:
        return world.now_ms / 1000

    def now_ms() -> int:
        return world.now_ms

    clock = SimpleNamespace(monotonic=seconds)
    with contextlib.ExitStack() as stack:
        for module in (bootstrap_client, group_loops, group_member):
            stack.enter_context(mock.patch.object(module, "time", clock))
        for module in (group_loops, group_member):
            stack.enter_context(mock.patch.object(module, "boot_ms", now_ms))
        before = random.getstate()
        random.seed(f"{world.seed}/global")  # `PrefixView` draws its back-off from it.
        try:
            yield
        finally:
            random.setstate(before)
