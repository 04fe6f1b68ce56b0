"""An asyncio event loop in virtual time, its threads, and etcd for what runs on it: shipped asyncio code simulated.

One loop a process. What is ready runs in one event of the world, in the order in which it became ready; timers are
events of their own. asyncio's tasks, events, futures and timeouts are the real ones and draw nothing from chance, so
that a seed gives one order here as well (PROTOCOL T2). A thread's call happens as a whole, at a moment that the seed
draws between its begin and its end; the loop runs meanwhile.
"""

from __future__ import annotations

import asyncio
import math
import random
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextvars import Context
from functools import partial
from typing import Any, TypeVar

from headrace.wire.errors import MetastoreUnavailableError, Outcome
from headrace_server.metastore.api import (
    CompactedError,
    Compare,
    GetResult,
    LeaseGrant,
    Operation,
    RangeResult,
    TxnResult,
    WatchEvents,
)

from tests.simulation.etcd import Etcd, EtcdClient, _Watch, describe
from tests.simulation.world import Event, Process, SimulationError, World

ResultT = TypeVar("ResultT")

HARMLESS = ("was destroyed",)
"""What asyncio says of futures whose process has died."""


class _Timer(asyncio.TimerHandle):
    __slots__ = ("event",)
    event: Event


_Loop: Any = asyncio.AbstractEventLoop
"""A duck suffices: what this has not, nothing here asks for."""


class VirtualLoop(_Loop):  # type: ignore[misc]
    """The loop of one process; it stops with it, in the middle of whatever it did."""

    keepalive_ms: int | None = None
    """Time after which the kernel ends a connection whose other side is gone."""

    def __init__(self, world: World, process: Process) -> None:
        self.world = self._world = world
        self.process = self._process = process
        self.transport: Any = None
        """Of the cluster, where it has one."""
        self._ready: deque[asyncio.Handle] = deque()
        self._is_woken = False
        self._is_running = False
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self.failures: list[str] = []
        """What nothing has handled."""
        self.failed_by = ""
        """The type of the first error among them."""

    # --- what asyncio asks of a loop ---

    def time(self) -> float:
        """Seconds of virtual time."""
        return self._world.now_ms / 1000

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> asyncio.Handle:
        """See asyncio."""
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        if not (self._is_running or self._is_woken):
            self._is_woken = True
            self._world.after(0, self._process, "", self._run_ready)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """See asyncio."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """See asyncio; to the next millisecond."""
        timer = _Timer(when, callback, args, self, context)
        timer.event = self._world.at(math.ceil(when * 1000 - 1e-6), self._process, "", lambda: self._fire(timer))
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        assert isinstance(handle, _Timer)
        handle.event.cancel()

    def create_future(self) -> asyncio.Future[Any]:
        """See asyncio."""
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Context | None = None) -> asyncio.Task[Any]:
        """See asyncio; the loop keeps its tasks."""
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name, context=context)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task

    def get_debug(self) -> bool:
        """No."""
        return False

    def is_running(self) -> bool:
        """Yes."""
        return True

    def is_closed(self) -> bool:
        """Whether the process is dead."""
        return not self._process.alive

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Keep what nothing has handled."""
        if self._process.alive and not any(each in context.get("message", "") for each in HARMLESS):
            self.fail(str(context.get("message")), context.get("exception"))

    def run_in_executor(self, executor: Any, call: Callable[..., ResultT], *args: Any) -> asyncio.Future[ResultT]:
        """See asyncio; `executor` is a `VirtualExecutor`."""
        future: asyncio.Future[ResultT] = executor.run(partial(call, *args) if args else call)
        return future

    async def create_connection(self, make_protocol: Any, host: str, port: int, **_options: Any) -> tuple[None, Any]:
        """See asyncio; the connection is on the simulated network."""
        return None, await self.transport.connect(self, self.process, f"{host}:{port}", make_protocol)

    def fail(self, what: str, error: BaseException | None) -> None:
        """Note an unforeseen error."""
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        self.failed_by = self.failed_by or type(error).__name__
        self.failures.append(f"{what}: {error!r}")

    def check(self) -> None:
        """Raise the unforeseen error, if there was one."""
        if self.failures:
            raise SimulationError(self.failed_by, f"{self.process.name}: {self.failures[0]}")

    # --- running ---

    def run(self, call: Callable[..., object], *args: Any) -> None:
        """Do something on the loop now, in the present event, and what becomes ready by it."""
        self._ready.append(asyncio.Handle(call, args, self, None))
        if not self._is_running:
            self._run_ready()

    def _fire(self, timer: _Timer) -> None:
        self._ready.append(timer)
        self._run_ready()

    def _run_ready(self) -> None:
        self._is_woken, self._is_running = False, True
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        try:
            while self._ready and self._process.alive:
                handle = self._ready.popleft()
                if not handle.cancelled():
                    handle._run()
        finally:
            asyncio._set_running_loop(before)
            self._is_running = False

    def close(self) -> None:
        """Throw away what the process had under way, whatever it would do or wait for while it ends."""
        self._process.alive = False
        before, hook = asyncio._get_running_loop(), sys.unraisablehook
        asyncio._set_running_loop(self)
        sys.unraisablehook = lambda _: None
        try:
            while self._tasks:
                coroutine: Any = self._tasks.popitem()[0].get_coro()
                try:
                    coroutine.close()
                except (KeyboardInterrupt, SystemExit):
                    raise
                except BaseException:
                    continue
                finally:
                    del coroutine
            self._ready.clear()
        finally:
            asyncio._set_running_loop(before)
            sys.unraisablehook = hook

    def await_virtually(self, coroutine: Coroutine[Any, Any, ResultT]) -> asyncio.Future[ResultT]:
        """Run a coroutine of `Wait`s, such as a call of `EtcdClient`, for a task of this loop."""
        future: asyncio.Future[ResultT] = self.create_future()

        def resume(value: Any) -> None:
            if not self._process.alive:
                coroutine.close()
                return
            try:
                wait = coroutine.send(value)
            except StopIteration as stop:
                if not future.done():
                    future.set_result(stop.value)
            except Exception as error:
                if not future.done():
                    future.set_exception(error)
            else:
                wait.start(resume)

        resume(None)
        return future


class _Job:
    """One call in a thread."""

    __slots__ = ("_call", "_error", "_is_done", "_result", "event", "future")

    def __init__(self, call: Callable[[], Any], future: asyncio.Future[Any]) -> None:
        self._call = call
        self._is_done = False
        self._result: Any = None
        self._error: Exception | None = None
        self.future = future
        self.event: Event | None = None

    def perform(self) -> None:
        """Do it, if it is not done yet."""
        if self._is_done:
            return
        self._is_done = True
        try:
            self._result = self._call()
        except Exception as error:
            self._error = error

    def deliver(self) -> None:
        """Tell the loop how it ended."""
        if self.future.cancelled():
            return
        if self._error is not None:
            self.future.set_exception(self._error)
        else:
            self.future.set_result(self._result)


class VirtualExecutor:
    """The threads of one process: a bounded number of calls at once, each as long as `delay_ms` draws."""

    def __init__(
        self,
        world: World,
        process: Process,
        loop: VirtualLoop,
        chance: random.Random,
        delay_ms: Callable[[], int],
        *,
        threads: int,
    ) -> None:
        self._world = world
        self._process = process
        self._loop = loop
        self._chance = chance
        self._delay_ms = delay_ms
        self._threads = threads
        self._jobs: dict[_Job, None] = {}
        self._queue: deque[_Job] = deque()

    def run(self, call: Callable[[], Any]) -> asyncio.Future[Any]:
        """Call it in a thread."""
        job = _Job(call, self._loop.create_future())
        if self._process.alive:
            self._queue.append(job)
            self._start()
        return job.future

    def _start(self) -> None:
        while self._queue and len(self._jobs) < self._threads:
            job = self._queue.popleft()
            self._jobs[job] = None
            delay_ms, moment = self._delay_ms(), self._chance.random()
            job.event = self._world.after(delay_ms, self._process, "", partial(self._end, job))
            if moment < 0.4:
                job.perform()
            elif moment < 0.6 and delay_ms > 1:
                self._world.after(self._chance.randrange(1, delay_ms), self._process, "", job.perform)

    def _end(self, job: _Job) -> None:
        job.perform()
        del self._jobs[job]
        self._start()
        self._loop.run(job.deliver)

    def shutdown(self, wait: bool = True) -> None:
        """See `concurrent.futures.Executor`: returns when all calls are over."""
        while self._process.alive and (self._jobs or self._queue):
            for job in self._jobs:
                job.perform()
                assert job.event is not None, "it was started"
                job.event.cancel()
                self._loop.call_soon(job.deliver)
            self._jobs.clear()
            self._start()


class LoopMetastore:
    """The `Metastore` of a process on a `VirtualLoop`."""

    def __init__(
        self,
        etcd: Etcd,
        process: Process,
        loop: VirtualLoop,
        controller_epoch: Callable[[Sequence[Operation]], int] = lambda _: 0,
    ) -> None:
        """`controller_epoch`: of the controller that writes this, 0: none does (I14)."""
        self._controller_epoch = controller_epoch
        self._etcd = etcd
        self._process = process
        self._client = EtcdClient(etcd, process)
        self._loop = loop

    async def get(self, key: str) -> GetResult:
        """See `Metastore.get`."""
        return await self._loop.await_virtually(self._client.get(key))

    async def range(self, prefix: str) -> RangeResult:
        """See `Metastore.range`."""
        return await self._loop.await_virtually(self._client.range(prefix))

    async def txn(
        self, compares: Sequence[Compare], success: Sequence[Operation], failure: Sequence[Operation] = ()
    ) -> TxnResult:
        """See `Metastore.txn`."""
        epoch = self._controller_epoch(success)
        what = describe_write(success)
        call = self._client.txn(compares, success, failure, what=what, controller_epoch=epoch)
        return await self._loop.await_virtually(call)

    async def grant_lease(self, ttl_ms: int) -> LeaseGrant:
        """See `Metastore.grant_lease`."""
        return await self._loop.await_virtually(self._client.grant_lease(ttl_ms))

    async def revoke_lease(self, lease_id: int) -> bool:
        """See `Metastore.revoke_lease`."""
        return await self._loop.await_virtually(self._client.revoke_lease(lease_id))

    async def renew_lease(self, lease_id: int) -> int:
        """See `Metastore.renew_lease`."""
        return await self._loop.await_virtually(self._client.renew_lease(lease_id))

    async def watch(
        self, prefix: str, start_revision: int, *, progress_interval_s: float = 5.0
    ) -> AsyncIterator[WatchEvents]:
        """See `Metastore.watch`; a stream that has broken silently brings no progress any more."""
        etcd, world = self._etcd, self._etcd.world
        items: deque[WatchEvents] = deque()
        changed = asyncio.Event()
        broken: list[MetastoreUnavailableError] = []

        def take(item: WatchEvents) -> None:
            items.append(item)
            changed.set()

        def end() -> None:
            broken.append(MetastoreUnavailableError("the watch broke", outcome=Outcome.NOT_APPLIED))
            changed.set()

        def refuse() -> None:
            broken.append(CompactedError("its history is gone", compact_revision=etcd.store.compacted))
            changed.set()

        watch = _Watch(etcd, self._process, prefix, start_revision, take, end, refuse)
        stream = watch._stream

        def progress() -> None:
            if stream.ended:
                return
            if world.now_ms >= etcd.away_until_ms:
                item = WatchEvents(etcd.store.revision, (), etcd.store._cluster_id)
                stream.send(etcd.process, "", lambda: take(item))
            world.after(round(progress_interval_s * 1000), etcd.process, "", progress)

        watch.open()
        progress()
        try:
            while True:
                while items:
                    yield items.popleft()
                if broken:
                    raise broken[0]
                changed.clear()
                await changed.wait()
        finally:
            etcd.forget(watch)
            stream.end(heard_by=[])


def describe_write(operations: Sequence[Operation]) -> str:
    """Name the keys of a write, for the trace; say what becomes of a partition."""
    said = describe(operations)
    if said:
        return said
    parts = []
    for operation in operations:
        key: str = getattr(operation, "key", "")
        parts.append(f"{type(operation).__name__.lower()} {key.partition('/group/')[2] or key}")
    return ", ".join(parts)
