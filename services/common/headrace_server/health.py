"""Health of a process for three probes, each failure with its cause and the next step.

- `startup`: the process has started and recovered its logs; until then every other probe is meaningless.
- `liveness`: its event loop runs. Nothing else, because killing the process repairs neither etcd nor a dead peer.
- `readiness`: the process serves: it is recovered, registered, and neither stopping nor draining.

`Health` has the causes; the gRPC health service (`HealthServicer`), the HTTP endpoint and `DescribeProcess` read it.
Any thread may read and change it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from enum import Enum
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

HEALTH_NAMES = ("startup", "liveness", "readiness")


class HealthCause(Enum):
    """Why probes fail: the probes, the reason, and the next step in one sentence."""

    STARTING = (
        ("startup", "readiness"),
        "it is starting",
        "Wait until it has read the metadata from etcd and recovered its logs; its log shows the progress.",
    )
    UNREGISTERED = (
        ("readiness",),
        "it is not registered in etcd yet",
        "Wait; if it stays, follow docs/runbooks/HeadraceBrokerUnregistered.md.",
    )
    REGISTRATION_LOST = (
        ("readiness",),
        "its registration in etcd was lost",
        "Wait until it has registered again; if it does not, follow docs/runbooks/HeadraceBrokerUnregistered.md.",
    )
    DRAINED = (
        ("readiness",),
        "an administrator has drained it",
        "Run `headrace broker undrain` with its id when it may serve again.",
    )
    STOPPING = (("readiness",), "it is shutting down", "Wait until it has exited; restart it if it should run.")
    EVENT_LOOP_BLOCKED = (
        ("liveness",),
        "the event loop is blocked",
        "Restart it if this lasts; docs/runbooks/HeadraceEventLoopStalled.md describes how to find the cause.",
    )

    def __init__(self, probes: tuple[str, ...], reason: str, action: str) -> None:
        self.probes = probes
        self.reason = reason
        self.action = action


class Health:
    """Causes of failing probes. Initially the process is alive, and neither started nor ready."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._causes = {HealthCause.STARTING: None}  # by age
        self._callbacks: dict[Callable[[], None], None] = {}
        self._parts: list[Health] = []

    def include(self, part: Health) -> None:
        """Fail the probes that `part` fails, too: it is that of one of several services of the process.

        Call it before this one is served.
        """
        with self._lock:
            self._parts.append(part)
        part.subscribe(self._tell)

    def hold(self, cause: HealthCause) -> None:
        """Fail the probes of `cause` until `release`."""
        with self._lock:
            if cause in self._causes:
                return
            self._causes[cause] = None
        self._tell()

    def release(self, *causes: HealthCause) -> None:
        """Remove these causes."""
        with self._lock:
            held = [cause for cause in causes if cause in self._causes]
            for cause in held:
                del self._causes[cause]
        if held:
            self._tell()

    def causes(self, name: str) -> tuple[HealthCause, ...]:
        """Return the causes of a failing probe, the oldest first; empty if it passes."""
        with self._lock:
            own = {cause: None for cause in self._causes if name in cause.probes}
            parts = list(self._parts)
        for part in parts:
            own.update(dict.fromkeys(part.causes(name)))
        return tuple(own)

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` after every change, on the thread that made it; return a function that unsubscribes."""
        with self._lock:
            self._callbacks[callback] = None
        return lambda: self._unsubscribe(callback)

    def _unsubscribe(self, callback: Callable[[], None]) -> None:
        with self._lock:
            self._callbacks.pop(callback, None)

    def _tell(self) -> None:
        with self._lock:
            callbacks = list(self._callbacks)
        for callback in callbacks:
            callback()


class HealthServicer(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # has no types
    """`grpc.health.v1.Health` over a `Health`; the empty name follows readiness. Belongs to the event loop.

    The library's servicer has its own state, which would have to be updated from other threads.
    """

    def __init__(self, health: Health) -> None:
        self._health = health
        self._closed = False
        self._watches: dict[asyncio.Event, None] = {}

    def close(self) -> None:
        """End all watches after a last message with the current status."""
        self._closed = True
        for changed in self._watches:
            changed.set()

    async def Check(self, request: health_pb2.HealthCheckRequest, context: Any) -> health_pb2.HealthCheckResponse:
        """Return the status of the named probe."""
        status = self._status(request.service)
        if status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"the names are {', '.join(HEALTH_NAMES)}")
        return health_pb2.HealthCheckResponse(status=status)

    async def List(self, request: health_pb2.HealthListRequest, context: Any) -> health_pb2.HealthListResponse:
        """Return the status of every probe."""
        statuses = {name: health_pb2.HealthCheckResponse(status=self._status(name)) for name in ("", *HEALTH_NAMES)}
        return health_pb2.HealthListResponse(statuses=statuses)

    async def Watch(
        self, request: health_pb2.HealthCheckRequest, context: Any
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        """Send the status now and after every change."""
        loop, changed = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            loop.call_soon_threadsafe(changed.set)

        unsubscribe = self._health.subscribe(wake)
        self._watches[changed] = None
        said = None
        try:
            while True:
                status = self._status(request.service)
                if status != said:
                    said = status
                    yield health_pb2.HealthCheckResponse(status=status)
                if self._closed:
                    return
                await changed.wait()
                changed.clear()
        finally:
            del self._watches[changed]
            unsubscribe()

    def _status(self, name: str) -> int:
        response = health_pb2.HealthCheckResponse
        if name and name not in HEALTH_NAMES:
            return int(response.SERVICE_UNKNOWN)
        return int(response.NOT_SERVING if self._health.causes(name or "readiness") else response.SERVING)
