"""`headrace.v1.ProcessService`: description and log level of a server process.

Served by brokers and coordinators. Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import os
import platform
import resource
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog
from headrace.v1 import process_pb2, process_pb2_grpc
from headrace.wire.errors import InvalidRequestError
from prometheus_client import Counter

from headrace_server.clock import Clock
from headrace_server.health import HEALTH_NAMES, Health
from headrace_server.metastore.api import MemberStatus
from headrace_server.rpc import RpcServer, unary
from headrace_server.telemetry import LOG_LEVELS, log_level, set_log_level
from headrace_server.tls import CertificateInForce, ServiceTls

log = structlog.get_logger(__name__)

SERVICE_NAME = "headrace.v1.ProcessService"
MAX_LEVEL_MS = 7 * 86_400_000
MEASURE_MS = 5_000


@dataclass(frozen=True, slots=True)
class ProcessParts:
    """Parts of a process that the service describes."""

    name: str
    """Name of the process, such as `broker-1`."""
    version: str
    clock: Clock
    health: Health
    call_errors: Counter
    describe_etcd: Callable[[], Awaitable[Sequence[MemberStatus]]]
    describe_disk: Callable[[bool], Awaitable[process_pb2.DiskDescription]] | None = None
    """Describes the disk of a process that has one; the argument requests a measurement."""
    describe_open_access: Callable[[], Iterable[process_pb2.OpenAccess]] = tuple
    """Describes what the process leaves open."""
    tls: ServiceTls = field(default_factory=ServiceTls)
    """Identities whose certificates are described."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings as text, without secrets."""


class ProcessServicer(process_pb2_grpc.ProcessServiceServicer):
    """Servicer of one process."""

    def __init__(self, parts: ProcessParts) -> None:
        self._parts = parts
        self.call_errors = parts.call_errors
        self._started_ms = parts.clock.now_ms()
        self._configured = log_level()
        self._level_until_ms = 0
        self._fall_back: asyncio.TimerHandle | None = None
        self._measuring = asyncio.Lock()
        self._measured_ms: int | None = None
        self._fsync_us = 0

    @unary
    async def DescribeProcess(
        self, request: process_pb2.DescribeProcessRequest, context: Any
    ) -> process_pb2.DescribeProcessResponse:
        """See the proto."""
        parts = self._parts
        response = process_pb2.DescribeProcessResponse(
            name=parts.name,
            version=parts.version,
            python_version=platform.python_version(),
            host=socket.gethostname(),
            pid=os.getpid(),
            started_ms=self._started_ms,
            log_level=log_level(),
            log_level_until_ms=self._level_until_ms,
            open_files=_open_files(),
            max_open_files=_max_open_files(),
            health=[_health(name, parts.health) for name in HEALTH_NAMES],
            etcd=[_etcd_member(found) for found in await parts.describe_etcd()],
            certificates=[_certificate(found) for found in parts.tls.describe()],
            open_access=parts.describe_open_access(),
            settings=parts.settings,
        )
        if parts.describe_disk is not None:
            response.disk.CopyFrom(await self._describe_disk(parts.describe_disk, request.measure_disk))
        # Last, so that the caller can compare clocks.
        response.now_ms = parts.clock.now_ms()
        return response

    async def _describe_disk(
        self, describe: Callable[[bool], Awaitable[process_pb2.DiskDescription]], measure: bool
    ) -> process_pb2.DiskDescription:
        """Describe the disk. A measurement is a write and an fsync; its result is cached for a while."""
        if not measure:
            return await describe(False)
        async with self._measuring:
            now_ms = self._parts.clock.monotonic_ms()
            is_due = self._measured_ms is None or now_ms - self._measured_ms >= MEASURE_MS
            disk = await describe(is_due)
            if is_due:
                self._measured_ms, self._fsync_us = now_ms, disk.fsync_us
            disk.fsync_us = self._fsync_us
            return disk

    @unary
    async def SetLogLevel(
        self, request: process_pb2.SetLogLevelRequest, context: Any
    ) -> process_pb2.SetLogLevelResponse:
        """See the proto."""
        level = next((known for known in LOG_LEVELS if known == request.level), None)
        if level is None:
            raise InvalidRequestError(
                f"{request.level[:32]!r} is no log level", action=f"Name one of {', '.join(LOG_LEVELS)}."
            )
        if not 0 <= request.duration_ms <= MAX_LEVEL_MS:
            raise InvalidRequestError(f"duration_ms is not between 0 and {MAX_LEVEL_MS}")
        name = self._parts.name
        if request.server not in ("", name):
            return process_pb2.SetLogLevelResponse(name=name)
        before = log_level()
        if self._fall_back is not None:
            self._fall_back.cancel()
        self._fall_back, self._level_until_ms = None, 0
        set_log_level(level)
        if request.duration_ms:
            self._level_until_ms = self._parts.clock.now_ms() + request.duration_ms
            self._fall_back = asyncio.get_running_loop().call_later(request.duration_ms / 1000, self._end_level)
        log.warning("log_level_changed", log_level=level, before=before, duration_ms=request.duration_ms)
        return process_pb2.SetLogLevelResponse(previous_level=before, name=name)

    def _end_level(self) -> None:
        """Restore the log level of the settings after the requested time."""
        before = log_level()
        self._fall_back, self._level_until_ms = None, 0
        set_log_level(self._configured)
        log.warning("log_level_changed", log_level=self._configured, before=before, duration_ms=0)


def add_process_service(server: RpcServer, parts: ProcessParts) -> None:
    """Add the service to a server."""
    server.add(process_pb2_grpc.add_ProcessServiceServicer_to_server, ProcessServicer(parts), SERVICE_NAME)


def _health(name: str, health: Health) -> process_pb2.HealthDescription:
    causes = [process_pb2.HealthCauseDescription(reason=c.reason, action=c.action) for c in health.causes(name)]
    return process_pb2.HealthDescription(name=name, causes=causes)


def _etcd_member(found: MemberStatus) -> process_pb2.EtcdMemberDescription:
    return process_pb2.EtcdMemberDescription(
        endpoint=found.endpoint,
        error=found.error,
        version=found.version,
        answered_us=round(found.answered_seconds * 1_000_000),
        database_bytes=found.database_bytes,
        database_used_bytes=found.used_bytes,
        quota_bytes=found.quota_bytes,
        has_leader=found.has_leader,
        is_learner=found.is_learner,
        alarms=found.alarms,
    )


def _certificate(found: CertificateInForce) -> process_pb2.CertificateDescription:
    return process_pb2.CertificateDescription(
        use=found.setting,
        path=found.path,
        subject=found.subject,
        not_after_ms=round(found.not_after.timestamp() * 1000),
    )


def _open_files() -> int:
    """Return the number of open files; `-1` means unknown."""
    try:
        return sum(1 for _ in Path("/proc/self/fd").iterdir())
    except OSError:
        return -1


def _max_open_files() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return -1 if soft == resource.RLIM_INFINITY else soft
