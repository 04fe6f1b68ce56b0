"""Coordinator application: builds the components, starts and stops them in order.

Start: connect to etcd and load the view, serve calls, register, and finally write the ready file. Stop: reject new
calls, revoke the lease (another coordinator becomes controller at once), stop the other components.
"""

from __future__ import annotations

import asyncio

import structlog
from headrace.v1 import auth_pb2_grpc, cluster_pb2_grpc, groups_pb2_grpc
from headrace.wire.releases import CAPABILITIES, RELEASE
from headrace.wire.request_trace import TRACE_TOPIC
from headrace_server.audit.audit_writer import AUDIT_TOPIC
from headrace_server.client_front import ClientFront
from headrace_server.clock_watch import ClockExchange
from headrace_server.cluster_identity import ClusterIdentity
from headrace_server.collector import CollectorPacer
from headrace_server.descriptors import raise_limit, report, share_out
from headrace_server.generations import watch_generation
from headrace_server.health import HealthCause
from headrace_server.identity.session_service import SERVICE_NAME as SESSION_SERVICE_NAME
from headrace_server.identity.session_service import SessionServicer
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.lifecycle import StopRequest
from headrace_server.metadata_view import ClusterView
from headrace_server.metastore.api import MetastoreStatus
from headrace_server.metastore.etcd_releases import is_etcd, is_production_etcd
from headrace_server.metastore.etcd_status import effective_quota_bytes
from headrace_server.metastore.view import PrefixView
from headrace_server.places import PlaceLimits
from headrace_server.rpc import RpcLimits, RpcServer
from headrace_server.service_process import ServiceProcess, run_process
from prometheus_client import CollectorRegistry

from headrace_coordinator.metrics import CoordinatorMetrics
from headrace_coordinator.rpc.answers import Answers
from headrace_coordinator.rpc.auth_service import SERVICE_NAME as AUTH_SERVICE_NAME
from headrace_coordinator.rpc.auth_service import AuthServicer
from headrace_coordinator.rpc.broker_requests import BrokerRequests
from headrace_coordinator.rpc.cluster_service import SERVICE_NAME, ClusterServicer
from headrace_coordinator.rpc.group_service import SERVICE_NAME as GROUP_SERVICE_NAME
from headrace_coordinator.rpc.group_service import GroupServicer
from headrace_coordinator.rpc.partition_changes import PartitionChanges
from headrace_coordinator.rpc.partition_requests import PartitionRequests
from headrace_coordinator.rpc.schema_registry import RegistryServer
from headrace_coordinator.rpc.topic_requests import TopicRequests
from headrace_coordinator.runtime.ambiguous_writes import AmbiguousWriteResolver
from headrace_coordinator.runtime.broker_store import BrokerStore
from headrace_coordinator.runtime.controller import Controller
from headrace_coordinator.runtime.first_administrator import ADMIN, MONITOR, keep_api_key
from headrace_coordinator.runtime.group_lag import BrokerChannels, GroupLag
from headrace_coordinator.runtime.group_maintenance import AssignableTopics, GroupMaintenance
from headrace_coordinator.runtime.group_offsets import GroupOffsets
from headrace_coordinator.runtime.group_transactions import GroupTransactions
from headrace_coordinator.runtime.group_view import GroupView
from headrace_coordinator.runtime.identity_maintenance import IdentityMaintenance
from headrace_coordinator.runtime.identity_policies import IdentityPolicies
from headrace_coordinator.runtime.identity_store import IdentityStore
from headrace_coordinator.runtime.identity_writes import IdentityWrites
from headrace_coordinator.runtime.internal_topic import AUDIT_CONFIGS, TRACE_CONFIGS, InternalTopic
from headrace_coordinator.runtime.issuers.issuer_keys import IssuerKeys
from headrace_coordinator.runtime.issuers.key_fetch import KeyFetcher
from headrace_coordinator.runtime.issuers.token_verifier import IssuerTokens
from headrace_coordinator.runtime.metadata_limits import GroupBounds, MetadataLimits
from headrace_coordinator.runtime.partition_store import PartitionStore
from headrace_coordinator.runtime.session import CoordinatorSession
from headrace_coordinator.runtime.topic_owners import TopicOwners
from headrace_coordinator.runtime.topic_store import TopicStore
from headrace_coordinator.runtime.waiting import wait_until
from headrace_coordinator.settings import CoordinatorSettings

log = structlog.get_logger(__name__)

STOP_GRACE_SECONDS = 5.0
MAX_REQUEST_BYTES = 4 << 20
"""Maximum size of a request. No call to a coordinator carries records."""
ETCD_LOOK_SECONDS = 1.0


async def serve(settings: CoordinatorSettings, stop: StopRequest) -> None:
    """Run a coordinator until `stop` is requested.

    Raises:
        AddressInUseError: See `RpcServer.start`.
        ForeignMetadataError: If etcd holds metadata of another format.
        InvalidConfigError: If etcd is too old, or a registered process has an incompatible release.
        MetastoreRolledBackError: If etcd was restored or replaced under the running cluster; an operator must act.
    """
    registry = CollectorRegistry()
    metrics = CoordinatorMetrics(registry)
    async with run_process(
        f"coordinator-{settings.coordinator_id}",
        settings,
        metrics.common,
        registry,
        bound={"coordinator_id": settings.coordinator_id},
        observe_etcd=metrics.observe_etcd,
    ) as process:
        await serve_in(process, settings, metrics, stop)


async def serve_in(
    process: ServiceProcess,
    settings: CoordinatorSettings,
    metrics: CoordinatorMetrics,
    stop: StopRequest,
    front: ClientFront | None = None,
) -> None:
    """Run a coordinator in a process that may run other services, too; raises as `serve`.

    With a `front` the only broker of the cluster runs in the same process.
    """
    reached = await process.reach_etcd(lambda _identity: process.metastore.status(), stop)
    if reached is None:
        return
    identity, status = reached
    coordinator = _Coordinator(settings, process, front, identity=identity, status=status, metrics=metrics)
    await coordinator.run(stop)


class _Coordinator:
    """Running components of one coordinator, from loading the metadata to the stop."""

    def __init__(
        self,
        settings: CoordinatorSettings,
        process: ServiceProcess,
        front: ClientFront | None,
        *,
        identity: ClusterIdentity,
        status: MetastoreStatus,
        metrics: CoordinatorMetrics,
    ) -> None:
        self._process = process
        self._settings = settings
        self._metastore = metastore = process.metastore
        self._identity = identity
        self._status = status
        self._metrics = metrics
        self._clock = process.clock
        self._prefix_view = PrefixView(metastore, identity.keyspace.prefix, self._clock)
        self._groups_view = PrefixView(metastore, identity.keyspace.groups_prefix, self._clock)
        if front is None:
            self._identity_source, self._gate = process.make_gate(identity)
        else:
            self._identity_source, self._gate = front.identity_source, front.gate
        self._has_own_server = front is None
        self._registry = RegistryServer(process, identity.keyspace, settings, metrics)
        self._limits = MetadataLimits(
            GroupBounds(settings.max_groups, settings.max_group_members, settings.max_group_bytes)
        )
        self._server = self._make_server() if front is None else front.server

    def _make_server(self) -> RpcServer:
        settings, limit = self._settings, raise_limit()
        shares = share_out(limit, max_connections=settings.max_connections)
        report(limit, shares)
        return RpcServer(
            RpcLimits(
                max_request_bytes=MAX_REQUEST_BYTES,
                max_connections=shares.clients,
                places=PlaceLimits(clients=(settings.max_concurrent_calls, settings.max_calls_per_peer)),
            ),
            gate=self._gate,
            health=self._process.observability.health,
        )

    async def run(self, stop: StopRequest) -> None:
        self._log_start()
        sources = self._prefix_view, self._groups_view, self._identity_source, *self._registry.sources
        if not await self._process.load(*sources, stop=stop):
            return
        view = self._process.open_view(self._identity, self._prefix_view)
        writes = AmbiguousWriteResolver(
            self._metastore, view.keyspace, self._metrics, max_inflight=self._settings.max_inflight_writes
        )
        store = TopicStore(
            writes,
            view,
            self._metrics,
            self._clock,
            TopicOwners(self._gate.view, view.keyspace, self._clock),
        )
        self._serve_calls(view, store, writes)
        clocks = self._process.make_clock_exchange(view)
        transactions, maintenance = self._serve_groups(view, clocks)
        issuer_keys = IssuerKeys(self._gate.view, KeyFetcher(), self._clock)
        tokens = IssuerTokens(self._gate.view, issuer_keys, self._clock)
        await self._serve_identity(view, writes, tokens)
        address = await self._listen(stop)
        if address is None:
            return
        registry_address = await self._registry.start(self._gate, tokens, writes, self._limits)
        session = self._make_session(self._settings.advertised_address or address)
        channels = BrokerChannels(self._gate.identification.server_token, self._process.tls.internal)
        controller = self._make_controller(view, session, clocks)
        lag = GroupLag(
            view,
            self._group_view,
            self._metrics,
            self._clock,
            interval_ms=self._settings.lag_interval_ms,
            is_controller=lambda: controller.epoch != 0,
            ask=channels.list_offsets,
        )
        self._process.observability.detail.source = self._metrics.lags.detail
        self._process.observability.sampler.on_sample = lambda: self._on_sample(view)
        try:
            async with asyncio.TaskGroup() as tasks:
                background = [
                    tasks.create_task(coroutine, name=name)
                    for name, coroutine in (
                        ("view", self._prefix_view.run()),
                        ("generation", watch_generation(view)),
                        ("clocks", clocks.run()),
                        ("groups_view", self._groups_view.run()),
                        ("identity", self._identity_source.run()),
                        ("issuer_keys", issuer_keys.run()),
                        ("groups", maintenance.run()),
                        ("group_transactions", transactions.run()),
                        ("session", session.run()),
                        ("controller", controller.run()),
                        ("lag", lag.run()),
                        ("audit_topic", self._make_audit_topic(view, store, controller).run()),
                        ("trace_topic", self._make_trace_topic(view, store, controller).run()),
                        ("audit", self._process.make_audit_writer(self._gate, view).run()),
                        ("etcd", self._watch_etcd()),
                        *(("schemas", source.run()) for source in self._registry.sources),
                        ("ready", self._announce(view, session, address, registry_address)),
                    )
                ]
                await stop.requested()
                log.info("coordinator_stops", reason=stop.reason)
                await self._stop_listening(STOP_GRACE_SECONDS)
                for task in background:
                    task.cancel()
        finally:
            await self._stop_listening(0)
            await channels.close()
            await session.end()
            view.close()

    async def _listen(self, stop: StopRequest) -> str | None:
        """Serve calls, or wait until the broker in the same process does; return the bound address.

        `None` means that the broker has ended before.
        """
        if not self._has_own_server:
            return await stop.unless_requested(self._server.listening())
        self._process.add_process_service(self._server)
        return await self._server.start(self._settings.listen, self._process.client_credentials())

    async def _stop_listening(self, grace_seconds: float) -> None:
        stopping = [self._registry.stop(grace_seconds)]
        if self._has_own_server:
            stopping.append(self._server.stop(grace_seconds))
        await asyncio.gather(*stopping)

    def _log_start(self) -> None:
        log.info(
            "coordinator_starts",
            cluster=self._identity.cluster,
            cluster_id=self._identity.cluster_id,
            generation=self._identity.generation,
            etcd_version=self._status.version,
        )
        if is_etcd(self._status.version) and not is_production_etcd(self._status.version):
            log.warning(
                "etcd_below_production",
                etcd_version=self._status.version,
                advice="good for one machine; production needs at least 3.5.28 or 3.6.9",
            )

    def _make_controller(self, view: ClusterView, session: CoordinatorSession, clocks: ClockExchange) -> Controller:
        return Controller(
            self._metastore,
            view,
            session,
            self._metrics,
            self._clock,
            max_inflight=self._settings.max_inflight_writes,
            orphan_grace_ms=self._settings.orphan_grace_ms,
            deleted_topics_retention_ms=self._settings.deleted_topics_retention_ms,
            leader_rebalance_interval_ms=self._settings.leader_rebalance_interval_ms,
            fill_bytes_per_second=self._settings.fill_bytes_per_second,
            identity=IdentityMaintenance(
                self._metastore,
                self._identity_source,
                self._gate.view,
                view.keyspace,
                self._clock,
                clock_doubt=clocks.look,
                note_command=self._gate.note_command,
            ),
        )

    def _serve_calls(self, view: ClusterView, store: TopicStore, writes: AmbiguousWriteResolver) -> None:
        answers = Answers(self._prefix_view, self._metrics, default_timeout_ms=self._settings.default_timeout_ms)
        servicer = ClusterServicer(
            self._metastore,
            view,
            topics=TopicRequests(store, view, answers, self._settings, self._limits),
            partitions=PartitionRequests(
                PartitionChanges(PartitionStore(writes, view), store, view, answers),
                store,
                view,
                answers,
                self._settings,
                self._metrics,
            ),
            brokers=BrokerRequests(BrokerStore(writes, view.keyspace, self._clock), view, answers),
            settings=self._settings,
            metrics=self._metrics,
            etcd_version=self._status.version,
        )
        self._server.add(cluster_pb2_grpc.add_ClusterServiceServicer_to_server, servicer, SERVICE_NAME)

    def _serve_groups(self, view: ClusterView, clocks: ClockExchange) -> tuple[GroupTransactions, GroupMaintenance]:
        """Serve consumer groups. The caller runs both results as tasks."""
        source, metrics, clock = self._groups_view, self._metrics, self._clock
        groups = self._group_view = GroupView(view.keyspace, source)
        topics = AssignableTopics(view)
        self._limits.follow(groups)
        transactions = GroupTransactions(self._metastore, source, groups, topics, metrics, clock)
        offsets = GroupOffsets(self._metastore, source, groups, metrics, clock)
        servicer = GroupServicer(
            self._metastore,
            view,
            groups,
            transactions=transactions,
            offsets=offsets,
            answers=Answers(source, metrics, default_timeout_ms=self._settings.default_timeout_ms),
            metrics=metrics,
            clock=clock,
            limits=self._limits,
        )
        self._server.add(groups_pb2_grpc.add_GroupServiceServicer_to_server, servicer, GROUP_SERVICE_NAME)
        return transactions, GroupMaintenance(
            view,
            groups,
            transactions,
            offsets,
            topics,
            metrics,
            clock,
            coordinator_id=self._settings.coordinator_id,
            offsets_retention_ms=self._settings.offsets_retention_ms,
            clock_doubt=clocks.look,
        )

    def _make_audit_topic(self, view: ClusterView, store: TopicStore, controller: Controller) -> InternalTopic:
        def is_wanted() -> bool:
            return controller.epoch != 0 and self._gate.writes_audit

        replicas = self._settings.default_replication_factor
        return InternalTopic(AUDIT_TOPIC, AUDIT_CONFIGS, view, store, replicas, is_wanted)

    def _make_trace_topic(self, view: ClusterView, store: TopicStore, controller: Controller) -> InternalTopic:
        def is_wanted() -> bool:
            return controller.epoch != 0 and any(topic.config.trace_sample for topic in view.topics.values())

        replicas = self._settings.default_replication_factor
        return InternalTopic(TRACE_TOPIC, TRACE_CONFIGS, view, store, replicas, is_wanted)

    async def _serve_identity(self, view: ClusterView, resolver: AmbiguousWriteResolver, tokens: IssuerTokens) -> None:
        """Serve sessions and administrators."""
        settings, metrics, gate = self._settings, self._metrics, self._gate
        writes = IdentityWrites(
            resolver,
            self._identity_source,
            gate.view,
            view.keyspace,
            self._clock,
            accepts_certificates=settings.tls_client_auth == "required",
        )
        for path, user in ((settings.admin_api_key_file, ADMIN), (settings.monitor_api_key_file, MONITOR)):
            if path:
                await keep_api_key(writes, path, user)
        servicer = AuthServicer(
            gate,
            store=IdentityStore(writes, self._limits),
            policies=IdentityPolicies(writes, self._limits),
            answers=Answers(self._identity_source, metrics, default_timeout_ms=settings.default_timeout_ms),
            metrics=metrics,
            clock=self._clock,
        )
        self._server.add(auth_pb2_grpc.add_AuthServiceServicer_to_server, servicer, AUTH_SERVICE_NAME)
        sessions = SessionServicer(gate, view, self._clock, metrics.common.call_errors, tokens)
        self._server.add(auth_pb2_grpc.add_SessionServiceServicer_to_server, sessions, SESSION_SERVICE_NAME)

    def _make_session(self, address: str) -> CoordinatorSession:
        live = metadata_pb2.CoordinatorLive(
            coordinator_id=self._settings.coordinator_id,
            address=address,
            version=RELEASE,
            capabilities=CAPABILITIES,
        )
        return CoordinatorSession(
            self._metastore,
            self._identity.keyspace,
            live,
            self._metrics,
            lease_ttl_ms=self._settings.lease_ttl_ms,
            clock=self._clock,
            make_renewer=self._process.make_renewer,
        )

    async def _announce(
        self, view: ClusterView, session: CoordinatorSession, address: str, registry_address: str
    ) -> None:
        """Report readiness once the view is loaded, and write the ready file once the view shows the registration."""
        CollectorPacer().install()
        self._process.observability.health.release(HealthCause.STARTING)
        log.info("coordinator_serves", address=address, revision=view.source.revision)
        own = self._settings.coordinator_id

        def is_registered() -> bool:
            return own in view.coordinators and view.coordinators[own].live == session.live

        await wait_until(view, is_registered, None)
        ready = {"coordinator_id": own, "address": address, "schema_registry_address": registry_address}
        self._process.write_ready(ready)

    async def _watch_etcd(self) -> None:
        """Publish the state of etcd, until cancelled."""
        metrics = self._metrics
        while True:
            reached = [found for found in await self._metastore.describe_members() if not found.error]
            was_reserve = self._limits.is_reserve
            self._limits.look_at(reached)
            if self._limits.is_reserve != was_reserve:
                log.warning("etcd_reserve", is_reached=self._limits.is_reserve)
            metrics.etcd_members_reached.set(len(reached))
            metrics.etcd_has_leader.set(any(found.has_leader for found in reached))
            if reached:
                metrics.etcd_db_bytes.set(max(found.database_bytes for found in reached))
                metrics.etcd_db_quota_bytes.set(effective_quota_bytes(reached))
                metrics.etcd_alarms.set(len({alarm for found in reached for alarm in found.alarms}))
            await asyncio.sleep(ETCD_LOOK_SECONDS)

    def _on_sample(self, view: ClusterView) -> None:
        self._process.sample(view)
        self._metrics.topics.set(len(view.topics))
