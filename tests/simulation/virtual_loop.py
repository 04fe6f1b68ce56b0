"""An asyncio event loop in virtual time, and etcd for what runs on it: shipped asyncio code in the simulation.

One loop a process. What is ready runs in one event of the world, in the order in which it became ready; timers are
events of their own. asyncio's tasks, events, futures and timeouts are the real ones and draw nothing from chance, so
that a seed gives one order here as well (PROTOCOL T2).
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextvars import Context
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

from tests.simulation.etcd import Etcd, EtcdClient, _Watch
from tests.simulation.world import Event, Process, World

ResultT = TypeVar("ResultT")

HARMLESS = ("never retrieved", "was destroyed")
"""What asyncio says of futures whose process has died."""


class _Timer(asyncio.TimerHandle):
    __slots__ = ("event",)
    event: Event


_Loop: Any = asyncio.AbstractEventLoop
"""A duck suffices: what this has not, nothing here asks for."""


class VirtualLoop(_Loop):  # type: ignore[misc]
    """The loop of one process; it stops with it, in the middle of whatever it did."""

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self._process = process
        self._ready: deque[asyncio.Handle] = deque()
        self._is_woken = False
        self._is_running = False
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self.failures: list[str] = []
        """What nothing has handled."""

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
            self.failures.append(f"{context.get('message')}: {context.get('exception')!r}")

    # --- running ---

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
        """Throw away what the process had under way."""
        self._process.alive = False
        tasks, self._tasks = list(self._tasks), {}
        for task in tasks:
            coroutine: Any = task.get_coro()
            try:
                coroutine.close()
            except RuntimeError:
                continue  # It awaits something while it ends: it is gone all the same.
        self._ready.clear()

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


class LoopMetastore:
    """The `Metastore` of a process on a `VirtualLoop`, as far as consumer groups use it."""

    def __init__(self, etcd: Etcd, process: Process, loop: VirtualLoop) -> None:
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
        what = describe(success)
        return await self._loop.await_virtually(self._client.txn(compares, success, failure, what=what))

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


def describe(operations: Sequence[Operation]) -> str:
    """Name the keys of a write, for the trace."""
    parts = []
    for operation in operations:
        key: str = getattr(operation, "key", "")
        parts.append(f"{type(operation).__name__.lower()} {key.partition('/group/')[2] or key}")
    return ", ".join(parts)
