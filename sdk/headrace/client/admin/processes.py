"""State and log level of the processes of a cluster, as `Admin.describe_processes` returns them. No I/O."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.client.admin.identity import posture_name
from headrace.client.base.config import ClientConfig
from headrace.client.base.operations import Call, Operation
from headrace.client.net.bootstrap_client import BootstrapClient
from headrace.v1 import auth_pb2, cluster_pb2, process_pb2
from headrace.wire.errors import InvalidRequestError, from_rpc_error, rpc_failures


@dataclass(frozen=True, slots=True)
class DiskDescription:
    """Data directory of a broker."""

    data_dir: str
    filesystem: str
    """Type as the kernel names it: ext4, xfs, tmpfs, nfs."""
    total_bytes: int
    free_bytes: int
    refuse_below_bytes: int
    """Free bytes below which appends are refused."""
    resume_above_bytes: int
    fsync_us: int
    """Duration of a small write and fsync; 0 means not measured."""
    offline_logs: int
    unclaimed_logs: int
    """Number of logs that no key in etcd assigns, and that may not be deleted."""
    unclaimed_topic_ids: tuple[bytes, ...]
    """Ids of their topics, at most 100."""


@dataclass(frozen=True, slots=True)
class EtcdMemberDescription:
    """Endpoint of etcd, as one process sees it."""

    endpoint: str
    error: str
    """Reason why it did not respond; empty if it did."""
    version: str
    answered_us: int
    database_bytes: int
    database_used_bytes: int
    quota_bytes: int
    """0 means not reported."""
    has_leader: bool
    is_learner: bool
    alarms: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HealthCauseDescription:
    """Cause of a failing probe of a process."""

    probe: str
    """startup, liveness or readiness."""
    reason: str
    action: str
    """Next step, in one sentence."""


@dataclass(frozen=True, slots=True)
class CertificateDescription:
    """Certificate that a process uses."""

    use: str
    path: str
    subject: str
    not_after_ms: int


@dataclass(frozen=True, slots=True)
class ProcessDescription:
    """State of one broker or coordinator."""

    name: str
    """Name such as `broker-1` or `coordinator-a`."""
    address: str
    error: str = ""
    """Reason why it did not respond; then only name, address and `answered_by` are set."""
    answered_by: str = ""
    """Process that responded instead, because both have the same address, or that of a load balancer. Empty if none."""
    version: str = ""
    python_version: str = ""
    host: str = ""
    pid: int = 0
    started_ms: int = 0
    clock_ahead_ms: int = 0
    """Time by which its wall clock is ahead of this machine's, within the latency of the response."""
    log_level: str = ""
    log_level_until_ms: int = 0
    """Time at which the level is reset; 0 means never."""
    open_files: int = 0
    max_open_files: int = 0
    """-1 means unlimited."""
    health_causes: tuple[HealthCauseDescription, ...] = ()
    """Causes of failing probes; empty if all pass."""
    disk: DiskDescription | None = None
    etcd: tuple[EtcdMemberDescription, ...] = ()
    certificates: tuple[CertificateDescription, ...] = ()
    posture: str = ""
    """What it does with calls that lack an identity or a right: `open`, `observe` or `required`. Empty if unknown."""
    open_access: tuple[str, ...] = ()
    """What is open beyond loopback addresses: `clients_without_tls`, `servers_without_tls`, `etcd_without_tls`,
    `etcd_without_users`, `metrics_without_identity`, `metrics_without_tls`."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings by name, as text, without secrets; empty of an earlier release."""


@dataclass(frozen=True, slots=True)
class LogLevelResult:
    """Result for the log level of one process."""

    name: str
    previous_level: str
    error: str = ""


class ProcessSteps:
    """Process operations of one client; any thread."""

    def __init__(self, config: ClientConfig, calls: BootstrapClient) -> None:
        self._config = config
        self._calls = calls

    def describe(self, *, measure_disk: bool, timeout: float | None) -> Operation[list[ProcessDescription]]:
        """Describe every broker and coordinator, each by its own request."""
        found = []
        for name, address in (yield from self._processes(timeout)):
            request = process_pb2.DescribeProcessRequest(client_id=self._config.client_id, measure_disk=measure_disk)
            try:
                answer = yield Call(address, "process", "DescribeProcess", request, self._seconds(timeout))
            except rpc_failures() as error:
                found.append(ProcessDescription(name, address, error=from_rpc_error(error).message))
                continue
            if answer.name != name:
                problem = f"{answer.name} responds at {address}"
                found.append(ProcessDescription(name, address, problem, answered_by=answer.name))
                continue
            now_ms = time.time_ns() // 1_000_000
            found.append(_read(answer, address, now_ms, (yield from self._posture(address, timeout))))
        return found

    def _posture(self, address: str, timeout: float | None) -> Operation[str]:
        """Return the posture of a process, whose settings may demand more than the cluster's; empty if unknown."""
        request = auth_pb2.WhoAmIRequest(client_id=self._config.client_id)
        try:
            answer = yield Call(address, "session", "WhoAmI", request, self._seconds(timeout))
        except rpc_failures():
            return ""
        return posture_name(answer.posture)

    def set_log_level(
        self, level: str, servers: tuple[str, ...] | None, duration_ms: int, timeout: float | None
    ) -> Operation[list[LogLevelResult]]:
        """Set the log level of some processes, or of all."""
        processes = yield from self._processes(timeout)
        known = {name for name, _ in processes}
        unknown = [name for name in servers or () if name not in known]
        if unknown:
            raise InvalidRequestError(
                f"there is no server {', '.join(unknown)}", action=f"The servers are {', '.join(sorted(known))}."
            )
        results = []
        for name, address in processes:
            if servers is not None and name not in servers:
                continue
            request = process_pb2.SetLogLevelRequest(
                client_id=self._config.client_id, level=level, duration_ms=duration_ms, server=name
            )
            try:
                answer = yield Call(address, "process", "SetLogLevel", request, self._seconds(timeout))
            except rpc_failures() as error:
                typed = from_rpc_error(error)
                if isinstance(typed, InvalidRequestError):
                    raise typed from error
                results.append(LogLevelResult(name, "", typed.message))
            else:
                stranger = answer.name not in ("", name)  # Empty: of a release that does not report its name.
                problem = f"{answer.name} responds at its address {address}; nothing was changed" if stranger else ""
                results.append(LogLevelResult(name, answer.previous_level, problem))
        return results

    def _seconds(self, timeout: float | None) -> float:
        return self._config.request_timeout_ms / 1000 if timeout is None else timeout

    def _processes(self, timeout: float | None) -> Operation[list[tuple[str, str]]]:
        """Return name and address of every registered process, coordinators first."""
        request = cluster_pb2.DescribeClusterRequest()
        cluster = yield from self._calls.coordinator("DescribeCluster", request, self._seconds(timeout))
        found = [(f"coordinator-{each.coordinator_id}", each.address) for each in cluster.coordinators]
        return [*found, *((f"broker-{each.broker_id}", each.address) for each in cluster.brokers)]


def _read(answer: process_pb2.DescribeProcessResponse, address: str, now_ms: int, posture: str) -> ProcessDescription:
    disk = answer.disk
    return ProcessDescription(
        name=answer.name,
        address=address,
        version=answer.version,
        python_version=answer.python_version,
        host=answer.host,
        pid=answer.pid,
        started_ms=answer.started_ms,
        clock_ahead_ms=answer.now_ms - now_ms,
        log_level=answer.log_level,
        log_level_until_ms=answer.log_level_until_ms,
        open_files=answer.open_files,
        max_open_files=answer.max_open_files,
        health_causes=tuple(
            HealthCauseDescription(probe.name, cause.reason, cause.action)
            for probe in answer.health
            for cause in probe.causes
        ),
        disk=DiskDescription(
            disk.data_dir,
            disk.filesystem,
            disk.total_bytes,
            disk.free_bytes,
            disk.refuse_below_bytes,
            disk.resume_above_bytes,
            disk.fsync_us,
            disk.offline_logs,
            disk.unclaimed_logs,
            tuple(disk.unclaimed_topic_ids),
        )
        if answer.HasField("disk")
        else None,
        etcd=tuple(
            EtcdMemberDescription(
                each.endpoint,
                each.error,
                each.version,
                each.answered_us,
                each.database_bytes,
                each.database_used_bytes,
                each.quota_bytes,
                each.has_leader,
                each.is_learner,
                tuple(each.alarms),
            )
            for each in answer.etcd
        ),
        certificates=tuple(
            CertificateDescription(each.use, each.path, each.subject, each.not_after_ms) for each in answer.certificates
        ),
        posture=posture,
        open_access=tuple(
            process_pb2.OpenAccess.Name(each).removeprefix("OPEN_ACCESS_").lower()
            for each in answer.open_access
            if each in process_pb2.OpenAccess.values()  # A newer server may report more.
        ),
        settings=dict(sorted(answer.settings.items())),
    )
