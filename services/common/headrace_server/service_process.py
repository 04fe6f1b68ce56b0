"""Common components of a service process, and the order in which they start and stop.

Start: logging, TLS, observability, the client of etcd, then the service's own components. Stop: the reverse. Probes
are answered and certificates reloaded from before etcd is reached until the last component has stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

import grpc
import structlog
from headrace.v1 import auth_pb2, process_pb2
from headrace.wire.errors import InvalidConfigError, MetastoreUnavailableError
from headrace.wire.releases import RELEASE
from prometheus_client import CollectorRegistry

from headrace_server.audit.audit_writer import AUDIT_TOPIC, CLIENT_ID, AuditWriter
from headrace_server.clock import Clock, SystemClock
from headrace_server.clock_watch import ClockExchange, ClockWatch
from headrace_server.cluster_identity import ClusterIdentity, read_or_create
from headrace_server.handshakes import check_registered
from headrace_server.identity.decision_counts import DecisionCounts
from headrace_server.identity.gate import IdentityGate
from headrace_server.identity.identity_view import IdentityView
from headrace_server.identity.posture import least_posture
from headrace_server.instruments import CommonMetrics
from headrace_server.internal_topic_writer import InternalTopicWriter
from headrace_server.lifecycle import StopRequest, write_ready_file
from headrace_server.metadata_view import ClusterView
from headrace_server.metastore.api import LeaseRenewer, Metastore, MetastoreRolledBackError
from headrace_server.metastore.etcd import EtcdMetastore
from headrace_server.metastore.etcd_login import EtcdRefusedError
from headrace_server.metastore.etcd_releases import check_etcd
from headrace_server.metastore.view import PrefixView
from headrace_server.metrics_access import MetricsAccess
from headrace_server.observability import Observability, serve_observability
from headrace_server.open_access import open_access
from headrace_server.process_service import ProcessParts, add_process_service
from headrace_server.rpc import RpcServer
from headrace_server.service_settings import ServiceSettings
from headrace_server.settings import settings_as_text
from headrace_server.span_export import exported_spans
from headrace_server.telemetry import LogInterval, configure_logging
from headrace_server.tls import ServiceTls, watched_tls

log = structlog.get_logger(__name__)

RETRY_SECONDS = 0.5

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class ServiceProcess:
    """Components that every service has. Belongs to the event loop."""

    name: str
    """Name of the process, such as `broker-1`."""
    settings: ServiceSettings
    metrics: CommonMetrics
    observability: Observability
    tls: ServiceTls
    metastore: Metastore
    clock: Clock = field(default_factory=SystemClock)

    async def reach_etcd(
        self, read: Callable[[ClusterIdentity], Awaitable[ResultT]], stop: StopRequest
    ) -> tuple[ClusterIdentity, ResultT] | None:
        """Return the identity of the cluster and the result of `read`; wait for etcd without a limit.

        `None` means that `stop` was requested first. Raises as `check_etcd`, `read_or_create` and `read`, including
        MetastoreRolledBackError; InvalidConfigError if etcd refuses this process. Other MetastoreUnavailableErrors are
        retried.
        """
        return await stop.unless_requested(self._reach_etcd(read))

    async def _reach_etcd(
        self, read: Callable[[ClusterIdentity], Awaitable[ResultT]]
    ) -> tuple[ClusterIdentity, ResultT]:
        waiting = LogInterval(self.clock.monotonic_ms)
        while True:
            try:
                check_etcd((await self.metastore.status()).version)  # Before anything is written.
                identity = await read_or_create(
                    self.metastore, self.settings.cluster, str(uuid.uuid4()), lambda: self._least_posture(is_new=True)
                )
                return identity, await read(identity)
            except MetastoreRolledBackError:
                raise
            except EtcdRefusedError as error:
                raise InvalidConfigError(error.message, action=error.action) from error
            except MetastoreUnavailableError as error:
                if waiting.is_due():
                    log.warning(
                        "etcd_not_reached",
                        endpoints=list(self.settings.etcd_endpoints),
                        cause=str(error),
                        for_seconds=waiting.for_seconds,
                    )
                await asyncio.sleep(RETRY_SECONDS)

    async def load(self, *sources: PrefixView, stop: StopRequest) -> bool:
        """Load the views; wait for etcd without a limit. `False` means that `stop` was requested first.

        Raises:
            MetastoreRolledBackError: As `PrefixView.load`.
        """
        return await stop.unless_requested(self._load(sources)) or False

    async def _load(self, sources: Sequence[PrefixView]) -> bool:
        while True:
            try:
                for source in sources:
                    await source.load()
                return True
            except MetastoreRolledBackError:
                raise
            except MetastoreUnavailableError as error:
                log.warning("metadata_not_read", cause=str(error))
                await asyncio.sleep(RETRY_SECONDS)

    def open_view(self, identity: ClusterIdentity, source: PrefixView) -> ClusterView:
        """Return the view over a loaded `source`; raise as `check_registered`."""
        view = ClusterView(identity, source)
        check_registered(view, self.name)
        return view

    def _least_posture(self, *, is_new: bool) -> auth_pb2.Posture:
        settings = self.settings
        return least_posture(
            settings.posture, insecure=settings.insecure, listens=settings.client_listens, is_new=is_new
        )

    def make_gate(self, identity: ClusterIdentity) -> tuple[PrefixView, IdentityGate]:
        """Return the gate of the process's listeners, with its source, which the caller loads and runs.

        Raises:
            SettingsError: As `least_posture`.
        """
        source = PrefixView(self.metastore, identity.keyspace.identity_prefix, self.clock)
        metrics = self.metrics
        gate = self.observability.access.gate = IdentityGate(
            IdentityView(identity.keyspace, source),
            identity,
            self.clock,
            DecisionCounts(metrics.refused_calls, metrics.observed_refusals, metrics.quota_held_seconds),
            self.name,
            metrics.audit_events_lost,
            least_posture=self._least_posture(is_new=False),
            rights_max_age_ms=self.settings.rights_max_age_ms,
        )
        return source, gate

    def make_audit_writer(self, gate: IdentityGate, view: ClusterView) -> AuditWriter:
        """Return the writer of the audit log. The caller runs it."""
        return AuditWriter(gate.audit_log, self.make_topic_writer(AUDIT_TOPIC, CLIENT_ID, gate, view))

    def make_topic_writer(
        self, topic: str, client_id: str, gate: IdentityGate, view: ClusterView
    ) -> InternalTopicWriter:
        """Return a writer of a topic that servers write."""
        return InternalTopicWriter(
            topic, client_id, view, self.name, gate.identification.server_token, self.tls.internal
        )

    def make_clock_exchange(self, view: ClusterView) -> ClockExchange:
        """Return the clock exchange with the other processes. The caller runs it."""
        watch = ClockWatch(self.clock)
        return ClockExchange(watch, self.name, view, self.metastore, self.clock, self.metrics.clock_in_doubt)

    def make_renewer(self) -> LeaseRenewer:
        """Return a new lease renewer with its own connection."""
        return self.metastore.make_renewer()

    def add_process_service(
        self,
        server: RpcServer,
        describe_disk: Callable[[bool], Awaitable[process_pb2.DiskDescription]] | None = None,
    ) -> None:
        """Add `ProcessService` to a server; `describe_disk` is as in `ProcessParts`."""
        add_process_service(
            server,
            ProcessParts(
                name=self.name,
                version=RELEASE,
                clock=self.clock,
                health=self.observability.health,
                call_errors=self.metrics.call_errors,
                describe_etcd=self.metastore.describe_members,
                describe_disk=describe_disk,
                describe_open_access=self._describe_open_access,
                tls=self.tls,
                settings=settings_as_text(self.settings),
            ),
        )

    def _describe_open_access(self) -> Iterator[process_pb2.OpenAccess]:
        gate = self.observability.access.gate
        posture = self._least_posture(is_new=False) if gate is None else gate.posture
        return open_access(self.settings, posture, etcd_requires_user=self.metastore.has_user)

    def client_credentials(self) -> grpc.ServerCredentials | None:
        """Return the credentials of the client listener; `None` means plain text."""
        clients = self.tls.clients
        return None if clients is None else clients.server_credentials(self.settings.tls_client_auth)

    def sample(self, view: ClusterView) -> None:
        """Publish the age and the health of the metadata."""
        self.metrics.metadata_age_seconds.set(view.source.age_ms() / 1000)
        self.metrics.metadata_undecodable.set(len(view.undecodable))

    def write_ready(self, content: Mapping[str, object]) -> None:
        """Write `content` and the metrics address to the ready file, if the settings name one."""
        if self.settings.ready_file:
            ready = {**content, "metrics_address": self.observability.metrics_address}
            write_ready_file(Path(self.settings.ready_file), ready)


@contextlib.asynccontextmanager
async def run_process(
    name: str,
    settings: ServiceSettings,
    metrics: CommonMetrics,
    registry: CollectorRegistry,
    *,
    bound: Mapping[str, object],
    observe_etcd: Callable[[str, float, bool], None] | None = None,
    metastore: Metastore | None = None,
    others: Sequence[CommonMetrics] = (),
) -> AsyncIterator[ServiceProcess]:
    """Start the components that every service has, and stop them when the block ends.

    Args:
        bound: keys and values that are added to every log line.
        observe_etcd: `observe` of `EtcdMetastore`.
        metastore: replaces etcd; ownership is transferred. `None` means etcd, as in the settings.
        others: metrics of further services of the process, which also say what concerns the whole process.

    Raises:
        AddressInUseError: See `serve_observability`.
        InvalidConfigError: See `exported_spans`.
        TlsFilesError: See `watched_tls`.
    """
    all_metrics = (metrics, *others)
    for each in all_metrics:
        each.info.labels(RELEASE, settings.cluster).set(1)

    def count(level: str) -> None:
        for each in all_metrics:
            each.log_lines.labels(level).inc()

    configure_logging(
        settings.log_level,
        settings.log_format,
        bound=bound,
        count=count,
    )
    async with (
        exported_spans(settings.otlp_endpoint, name=name, cluster=settings.cluster),
        watched_tls(settings, metrics) as tls,
        serve_observability(
            all_metrics,
            registry,
            listen=settings.metrics_listen,
            loop_stall_ms=settings.loop_stall_ms,
            access=MetricsAccess(is_closed=settings.posture == "required"),
            context=partial(tls.clients.server_context, "none") if settings.metrics_tls and tls.clients else None,
        ) as observability,
    ):
        store = metastore or EtcdMetastore(
            settings.etcd_endpoints, observe=observe_etcd, identity=tls.etcd, login=settings.etcd_login
        )
        try:
            yield ServiceProcess(name, settings, metrics, observability, tls, store)
        finally:
            await store.close()
