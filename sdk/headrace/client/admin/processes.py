"""How each process of a cluster is, and the level of its log: what `Admin.describe_processes` gives. No I/O."""

import time
from dataclasses import dataclass

import grpc

from headrace.client.base.config import ClientConfig
from headrace.client.base.operations import Call, Operation
from headrace.client.net.bootstrap_client import BootstrapClient
from headrace.v1 import cluster_pb2, process_pb2
from headrace.wire.errors import InvalidRequestError, from_rpc_error


@dataclass(frozen=True, slots=True)
class DiskDescription:
    """A broker's data directory."""

    data_dir: str
    filesystem: str
    """As the kernel calls it: ext4, xfs, tmpfs, nfs."""
    total_bytes: int
    free_bytes: int
    refuse_below_bytes: int
    """Appends are refused below."""
    resume_above_bytes: int
    fsync_us: int
    """How long a small write and fsync took; 0: not measured."""
    offline_logs: int
    unclaimed_logs: int
    """Logs that no key in etcd claims, and that nothing allows to delete."""
    unclaimed_topic_ids: tuple[bytes, ...]
    """Ids of their topics, at most 100."""


@dataclass(frozen=True, slots=True)
class EtcdMemberDescription:
    """One endpoint of etcd, as one process sees it."""

    endpoint: str
    error: str
    """Why it gave no answer; empty: it did."""
    version: str
    answered_us: int
    database_bytes: int
    database_used_bytes: int
    quota_bytes: int
    """0: it does not say."""
    has_leader: bool
    is_learner: bool
    alarms: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HealthCauseDescription:
    """One cause for which a probe of a process fails."""

    probe: str
    """startup, liveness or readiness."""
    reason: str
    action: str
    """The next step, in one sentence."""


@dataclass(frozen=True, slots=True)
class CertificateDescription:
    """One certificate that a process uses."""

    use: str
    path: str
    subject: str
    not_after_ms: int


@dataclass(frozen=True, slots=True)
class ProcessDescription:
    """One broker or coordinator."""

    name: str
    """As `broker-1` or `coordinator-a`."""
    address: str
    error: str = ""
    """Why it gave no answer; then only name, address and `answered_by` say something."""
    answered_by: str = ""
    """The process that answered in its place: the two are reached by one address, or a balancer's. Empty: none."""
    version: str = ""
    python_version: str = ""
    host: str = ""
    pid: int = 0
    started_ms: int = 0
    clock_ahead_ms: int = 0
    """How far its wall clock is ahead of this machine's, give or take the way of the answer."""
    log_level: str = ""
    log_level_until_ms: int = 0
    """When the level falls back; 0: it stays."""
    open_files: int = 0
    max_open_files: int = 0
    """-1: no limit."""
    health_causes: tuple[HealthCauseDescription, ...] = ()
    """Why probes fail; empty if all pass."""
    disk: DiskDescription | None = None
    etcd: tuple[EtcdMemberDescription, ...] = ()
    certificates: tuple[CertificateDescription, ...] = ()


@dataclass(frozen=True, slots=True)
class LogLevelResult:
    """What became of one process's log level."""

    name: str
    previous_level: str
    error: str = ""


class ProcessSteps:
    """Owned by one client; any thread."""

    def __init__(self, config: ClientConfig, calls: BootstrapClient) -> None:
        self._config = config
        self._calls = calls

    def describe(self, *, measure_disk: bool, timeout: float | None) -> Operation[list[ProcessDescription]]:
        """Ask every broker and coordinator, each by itself."""
        found = []
        for name, address in (yield from self._processes(timeout)):
            request = process_pb2.DescribeProcessRequest(client_id=self._config.client_id, measure_disk=measure_disk)
            try:
                answer = yield Call(address, "process", "DescribeProcess", request, self._seconds(timeout))
            except grpc.RpcError as error:
                found.append(ProcessDescription(name, address, error=from_rpc_error(error).message))
                continue
            if answer.name != name:
                problem = f"{answer.name} answers at {address}"
                found.append(ProcessDescription(name, address, problem, answered_by=answer.name))
                continue
            found.append(_read(answer, address, time.time_ns() // 1_000_000))
        return found

    def set_log_level(
        self, level: str, servers: tuple[str, ...] | None, duration_ms: int, timeout: float | None
    ) -> Operation[list[LogLevelResult]]:
        """Set the level of some processes, or of all."""
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
            except grpc.RpcError as error:
                typed = from_rpc_error(error)
                if isinstance(typed, InvalidRequestError):
                    raise typed from error
                results.append(LogLevelResult(name, "", typed.message))
            else:
                stranger = answer.name not in ("", name)  # Empty: of a release that does not say.
                problem = f"{answer.name} answers at its address {address}; nothing was changed" if stranger else ""
                results.append(LogLevelResult(name, answer.previous_level, problem))
        return results

    def _seconds(self, timeout: float | None) -> float:
        return self._config.request_timeout_ms / 1000 if timeout is None else timeout

    def _processes(self, timeout: float | None) -> Operation[list[tuple[str, str]]]:
        """Name and address of every registered process, coordinators first."""
        request = cluster_pb2.DescribeClusterRequest()
        cluster = yield from self._calls.coordinator("DescribeCluster", request, self._seconds(timeout))
        found = [(f"coordinator-{each.coordinator_id}", each.address) for each in cluster.coordinators]
        return [*found, *((f"broker-{each.broker_id}", each.address) for each in cluster.brokers)]


def _read(answer: process_pb2.DescribeProcessResponse, address: str, now_ms: int) -> ProcessDescription:
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
    )
