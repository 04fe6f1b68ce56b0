"""Broker application: start and stop of a broker process, in the order of PROTOCOL section 1.2 ("Startup").

identity in etcd -> lock and check the data directory -> read the metadata -> recover the logs -> listen -> register ->
lead or follow partitions ... hand leaderships over -> reject new calls -> complete calls in progress -> flush all ->
clean marker -> revoke the lease
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import structlog
from headrace.log.boot_note import read_boot_id
from headrace.log.directory import DataDirectory
from headrace.log.settings import DiskLimits
from headrace.partition.batch_cache import BatchCache
from headrace.partition.topic_configs import TopicConfig
from headrace.v1 import auth_pb2_grpc
from headrace.wire.errors import HeadraceError
from headrace.wire.ids import BrokerId
from headrace.wire.releases import CAPABILITIES, RELEASE
from headrace.wire.request_trace import TRACE_TOPIC
from headrace_server.client_front import ClientFront
from headrace_server.clock_watch import ClockExchange
from headrace_server.cluster_identity import ClusterIdentity
from headrace_server.collector import CollectorPacer
from headrace_server.descriptors import DescriptorShares, raise_limit, report, share_out
from headrace_server.generations import watch_generation
from headrace_server.health import HealthCause
from headrace_server.identity.gate import IdentityGate
from headrace_server.identity.session_service import SERVICE_NAME as SESSION_SERVICE_NAME
from headrace_server.identity.session_service import SessionServicer
from headrace_server.internal_topic_writer import InternalTopicWriter
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.lifecycle import StopRequest
from headrace_server.metadata_view import ClusterView
from headrace_server.metastore.view import PrefixView
from headrace_server.service_process import ServiceProcess, run_process
from prometheus_client import CollectorRegistry

from headrace_broker.core.phi_accrual import PhiAccrualFailureDetector
from headrace_broker.metrics import BrokerMetrics, partition_metrics
from headrace_broker.rpc.disk import describe_disk
from headrace_broker.rpc.listeners import Listeners
from headrace_broker.rpc.replica_service import ReplicaService
from headrace_broker.rpc.service import BrokerService
from headrace_broker.rpc.tables import TableService
from headrace_broker.runtime.directory_version import keep_version
from headrace_broker.runtime.failure_detector import PeerFailureDetector
from headrace_broker.runtime.flusher import Flusher
from headrace_broker.runtime.inflation import Inflation
from headrace_broker.runtime.maintenance import (
    check_space,
    compact,
    keep_high_watermarks,
    keep_tables_up,
    maintain,
    measure_loads,
    retain,
    scrub,
)
from headrace_broker.runtime.membership import BrokerMembership
from headrace_broker.runtime.partition import PartitionContext
from headrace_broker.runtime.partition_samples import describe_sample
from headrace_broker.runtime.replica_manager import ReplicaManager
from headrace_broker.runtime.replica_messages import HEARTBEAT_SECONDS
from headrace_broker.runtime.replication import TICK_SECONDS, Replication
from headrace_broker.runtime.table_trace import CLIENT_ID, TableTraces
from headrace_broker.runtime.uninterrupted import spawn_unless_ending
from headrace_broker.settings import BrokerSettings

log = structlog.get_logger(__name__)

STORAGE_THREADS = 4
LOADING_THREADS = 4
"""Threads that load what listeners send: a reader of old data does not keep the others from their disk."""
LAST_VERSION_SECONDS = 1.0
"""Maximum wait at shutdown for etcd to store the directory's last version."""


async def serve(settings: BrokerSettings, stop: StopRequest) -> None:
    """Run a broker until `stop` is requested.

    Raises:
        HeadraceError: If it cannot start or continue; the message states the next step.
    """
    registry = CollectorRegistry()
    metrics = BrokerMetrics(registry)
    async with run_process(
        f"broker-{settings.broker_id}", settings, metrics.common, registry, bound={"broker_id": settings.broker_id}
    ) as process:
        await serve_in(process, settings, metrics, stop)


async def serve_in(
    process: ServiceProcess,
    settings: BrokerSettings,
    metrics: BrokerMetrics,
    stop: StopRequest,
    front: ClientFront | None = None,
) -> None:
    """Run a broker in a process that may run other services, too; raises as `serve`.

    With a `front` it is the only broker of its cluster, and the coordinator runs in the same process.
    """
    executor = ThreadPoolExecutor(STORAGE_THREADS, thread_name_prefix="storage")
    loading = ThreadPoolExecutor(LOADING_THREADS, thread_name_prefix="load")
    try:

        async def read_storage_id(identity: ClusterIdentity) -> bytes:
            """Return the storage id of the last session, which a new generation may have copied."""
            key = identity.keyspace.broker_session(settings.broker_id)
            found = (await process.metastore.get(key)).key_value
            return b"" if found is None else metadata_pb2.BrokerSession.FromString(found.value).storage_id

        reached = await process.reach_etcd(read_storage_id, stop)
        if reached is None:
            return
        identity, adopts = reached
        limit = raise_limit()
        shares = share_out(
            limit, max_connections=settings.max_connections, native_connections=settings.max_native_connections
        )
        report(limit, shares)
        directory = await asyncio.get_running_loop().run_in_executor(
            executor, _open_directory, settings, shares, identity, adopts
        )
        identity_source, gate = process.make_gate(identity) if front is None else (None, front.gate)
        listeners = Listeners(settings, process, shares, metrics, gate, loading, front)
        broker = BrokerServer(
            settings,
            process,
            identity,
            directory,
            listeners,
            identity_source=identity_source,
            gate=gate,
            metrics=metrics,
            executor=executor,
        )
        await broker.run(stop)
    finally:
        loading.shutdown(wait=True)
        executor.shutdown(wait=True)


def crash(tasks: asyncio.TaskGroup, error: BaseException) -> None:
    """Stop the broker that owns `tasks` because of a bug in a call or another task."""

    async def fail() -> None:
        raise error

    spawn_unless_ending(tasks, fail())


def _open_directory(
    settings: BrokerSettings, shares: DescriptorShares, identity: ClusterIdentity, adopts: bytes
) -> DataDirectory:
    return DataDirectory.open(
        settings.data_dir,
        cluster_id=identity.cluster_id,
        generation=identity.generation,
        broker_id=settings.broker_id,
        new_storage_id=secrets.token_bytes(16),
        boot_id=read_boot_id(),
        adopts=adopts,
        limits=DiskLimits(
            reserve_bytes=settings.disk_reserve_bytes,
            refuse_below_bytes=settings.disk_refuse_below_bytes,
            resume_above_bytes=settings.disk_resume_above_bytes,
            max_open_files=shares.segment_files,
        ),
    )


@dataclass(frozen=True, slots=True)
class _Parts:
    """Components of a broker, once the metadata is read."""

    source: PrefixView
    view: ClusterView
    clocks: ClockExchange
    context: PartitionContext
    live: metadata_pb2.BrokerLive
    membership: BrokerMembership
    failure_detector: PeerFailureDetector
    replication: Replication
    replica_manager: ReplicaManager
    service: BrokerService
    traces: TableTraces
    trace_writer: InternalTopicWriter


class BrokerServer:
    """Components of one broker and their order. Belongs to the event loop."""

    def __init__(
        self,
        settings: BrokerSettings,
        process: ServiceProcess,
        identity: ClusterIdentity,
        directory: DataDirectory,
        listeners: Listeners,
        *,
        identity_source: PrefixView | None,
        gate: IdentityGate,
        metrics: BrokerMetrics,
        executor: ThreadPoolExecutor,
    ) -> None:
        """Take ownership of an opened data directory, which `run` closes. `identity_source` is that of the gate; `None`
        means that the coordinator in the same process follows it, and does what `ClientFront` says.
        """
        self._identity_source = identity_source
        self._gate = gate
        self._settings = settings
        self._process = process
        self._identity = identity
        self._directory = directory
        self._metrics = metrics
        self._executor = executor
        self._health = process.observability.health
        self._flusher = Flusher(metrics)
        self._inflation = Inflation()
        self._records = Inflation()
        self._listeners = listeners
        self._parts: _Parts | None = None
        self._clean = False
        self._closed = False

    async def run(self, stop: StopRequest) -> None:
        """Serve until `stop`; the data directory is closed in any case."""
        try:
            async with asyncio.TaskGroup() as tasks:
                try:
                    await self._serve_until(stop, tasks)
                except BaseException:
                    await self._abandon(stop)
                    raise
        finally:
            self._inflation.close()
            self._records.close()
            await self._close_directory()

    async def _serve_until(self, stop: StopRequest, tasks: asyncio.TaskGroup) -> None:
        parts = self._parts = await self._wire(tasks, stop)
        if parts is None:
            return
        await self._listeners.start(parts.live)
        self._observe(parts)
        await self._recover(parts)
        background = await self._serve(tasks, stop, parts)
        await self._stop(parts, background)

    # --- construction ---

    async def _wire(self, tasks: asyncio.TaskGroup, stop: StopRequest) -> _Parts | None:
        """Read the metadata and connect the components, none of which runs yet; `None` if `stop` is requested first."""
        process, metastore, directory = self._process, self._process.metastore, self._directory
        source = PrefixView(metastore, self._identity.keyspace.prefix, process.clock)
        if not await process.load(source, *filter(None, [self._identity_source]), stop=stop):
            return None
        view = process.open_view(self._identity, source)
        clocks = process.make_clock_exchange(view)
        context = self._make_context(clocks, tasks)
        live = self._describe()
        membership = BrokerMembership(
            metastore,
            self._identity.keyspace,
            live,
            directory,
            context,
            health=self._health,
            make_renewer=process.make_renewer,
        )
        phi = PhiAccrualFailureDetector(
            threshold=self._settings.phi_threshold,
            promised_ms=round(HEARTBEAT_SECONDS * 1000),
            tick_ms=round(TICK_SECONDS * 1000),
        )
        failure_detector = PeerFailureDetector(phi, membership.registration, self._metrics)
        replication = Replication(
            view,
            metastore,
            context,
            failure_detector,
            tasks,
            process.tls.internal,
            lambda: self._gate.identification.cluster_secrets,
        )
        replica_manager = ReplicaManager(view, metastore, directory, context, replication)
        service = BrokerService(
            view,
            replica_manager,
            directory,
            membership.registration,
            failure_detector=failure_detector,
            partition_context=context,
            tasks=tasks,
        )
        self._listeners.serve(
            service,
            TableService(service, view, replica_manager, context),
            ReplicaService(replication, replica_manager, service.check_serving),
        )
        if self._identity_source is not None:
            sessions = SessionServicer(self._gate, view, process.clock, self._metrics.common.call_errors)
            add_sessions = auth_pb2_grpc.add_SessionServiceServicer_to_server
            self._listeners.clients.add(add_sessions, sessions, SESSION_SERVICE_NAME)
        process.add_process_service(
            self._listeners.clients, partial(describe_disk, replica_manager, directory, context)
        )
        assert context.traces is not None
        return _Parts(
            *(source, view, clocks, context, live, membership, failure_detector, replication, replica_manager, service),
            context.traces,
            process.make_topic_writer(TRACE_TOPIC, CLIENT_ID, self._gate, view),
        )

    def _make_context(self, clocks: ClockExchange, tasks: asyncio.TaskGroup) -> PartitionContext:
        context = PartitionContext(
            BrokerId(self._settings.broker_id),
            self._settings,
            self._process.clock,
            self._metrics,
            self._flusher,
            self._executor,
            self._inflation,
            self._records,
            BatchCache(self._settings.table_cache_bytes),
            clocks.look,
            clocks.watch.now_ms,
            crash=partial(crash, tasks),
            traces=TableTraces(
                hmac.digest(self._identity.secret, b"headrace table trace v1", "sha256"),
                BrokerId(self._settings.broker_id),
                self._metrics.tables,
                lambda: time.time_ns() // 1_000,
            ),
        )
        self._metrics.tables.observe(context.tables)
        return context

    def _describe(self) -> metadata_pb2.BrokerLive:
        settings = self._settings
        live = metadata_pb2.BrokerLive(
            broker_id=settings.broker_id,
            data_center=settings.data_center,
            rack=settings.rack,
            host=settings.host,
            instance=settings.instance,
            boot_id=secrets.token_bytes(16),
            version=RELEASE,
            capabilities=CAPABILITIES,
            max_batch_bytes=TopicConfig().max_batch_bytes,
            takes_no_replicas=self._directory.lacks_room(),
        )
        if live.takes_no_replicas:
            log.error(
                "volume_too_small",
                reason=live.takes_no_replicas,
                advice="give it a larger volume, or lower disk_refuse_below_bytes; it gets no new replicas until then",
            )
        return live

    def _observe(self, parts: _Parts) -> None:
        """Start to publish the state of the metadata and the partitions as metrics."""

        def sample() -> None:
            self._process.sample(parts.view)
            if parts.view.is_draining(self._settings.broker_id):
                self._health.hold(HealthCause.DRAINED)
            else:
                self._health.release(HealthCause.DRAINED)

        self._process.observability.sampler.on_sample = sample
        self._process.observability.detail.source = lambda: partition_metrics(
            [describe_sample(partition) for partition in parts.replica_manager.partitions]
        )

    # --- serving ---

    async def _recover(self, parts: _Parts) -> None:
        """Open the logs on disk, and compare the clock with them before the first record is stamped."""
        await check_space(self._directory, parts.context)
        metrics, started = self._metrics, time.monotonic()
        metrics.recovery_seconds.set_function(lambda: time.monotonic() - started)
        metrics.recovering.set(1)
        await parts.replica_manager.open_existing()
        metrics.recovering.set(0)
        took_seconds = time.monotonic() - started
        metrics.recovery_seconds.set_function(lambda: took_seconds)
        CollectorPacer().install()
        self._health.release(HealthCause.STARTING)
        parts.clocks.note_newest_record(await self._newest_append_ms(parts.replica_manager))
        parts.clocks.look()

    async def _newest_append_ms(self, replica_manager: ReplicaManager) -> int:
        """Return the append time of the newest record on the disk; `0` if there is none or it cannot be read."""

        def look() -> int:
            newest_ms = 0
            for partition in replica_manager.partitions:
                with suppress(HeadraceError):  # Unreadable data has been reported, or will be when it is read.
                    newest_ms = max(newest_ms, 0 if partition.log is None else partition.log.reader.newest_append_ms())
            return newest_ms

        return await asyncio.get_running_loop().run_in_executor(self._executor, look)

    async def _serve(self, tasks: asyncio.TaskGroup, stop: StopRequest, parts: _Parts) -> list[asyncio.Task[None]]:
        """Register and serve until `stop`; return the tasks that still run, none if `stop` came first."""
        replica_manager, membership = parts.replica_manager, parts.membership
        parts.service.begin_serving()
        starting = tasks.create_task(membership.start_session(replica_manager))
        stopping = tasks.create_task(stop.requested())
        await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            return []
        membership.watch_own_key(parts.view)
        follows_identity = (
            ()
            if self._identity_source is None
            else (
                self._identity_source.run(),
                self._process.make_audit_writer(self._gate, parts.view).run(),
            )
        )
        background = [
            tasks.create_task(run)
            for run in (
                *follows_identity,
                parts.source.run(),
                watch_generation(parts.view),
                parts.clocks.run(),
                replica_manager.run(),
                membership.run(replica_manager),
                parts.replication.tick(lambda: replica_manager.partitions),
                parts.failure_detector.run(),
                keep_version(replica_manager, parts.source, membership.registration),
                maintain(replica_manager, self._directory, parts.context),
                keep_high_watermarks(parts.context),
                retain(replica_manager, parts.context),
                measure_loads(replica_manager, parts.context),
                compact(replica_manager, parts.context),
                keep_tables_up(parts.context),
                scrub(replica_manager, parts.context),
                parts.traces.run(parts.trace_writer),
            )
        ]
        self._announce()
        await stopping
        return background

    def _announce(self) -> None:
        addresses = {
            "address": self._listeners.clients.address,
            "internal_address": self._listeners.internal_address,
            "native_address": self._listeners.native_address,
            "replication_address": self._listeners.replication_address,
        }
        log.info(
            "serving",
            **addresses,
            metrics_address=self._process.observability.metrics_address,
            tls=self._process.tls.clients is not None,
            internal_tls=self._process.tls.internal is not None,
        )
        self._process.write_ready({"broker_id": self._settings.broker_id, **addresses})

    # --- stopping ---

    async def _stop(self, parts: _Parts, background: list[asyncio.Task[None]]) -> None:
        """Stop cleanly: hand over leaderships first, write the clean marker last, then revoke the lease (H40)."""
        self._health.hold(HealthCause.STOPPING)
        replica_manager, membership = parts.replica_manager, parts.membership
        given_away = await membership.give_leaderships_away(replica_manager)
        await parts.traces.flush_at_stop(parts.trace_writer)
        parts.service.begin_stop()
        if not given_away:
            await membership.give_the_last_away(replica_manager)
        parts.replication.close()
        await self._listeners.stop()
        for task in background:
            task.cancel()
        if background:
            await asyncio.wait(background)
        self._clean = await replica_manager.close()
        parts.traces.end()
        with suppress(TimeoutError):  # Makes every earlier copy of the directory recognizable (H16).
            async with asyncio.timeout(LAST_VERSION_SECONDS):
                await membership.registration.announce_version()
        await self._close_directory()
        await membership.registration.end(revoke=True)
        log.info("stopped", clean=self._clean)

    async def _abandon(self, stop: StopRequest) -> None:
        """Leave the cluster after a failure, before tasks and threads have ended: one that hangs may never end.

        The lease is not revoked, so that threads which still write do so before others lead.
        """
        stop.set("failure")  # The process has a deadline from now on.
        if self._parts is not None:
            await self._parts.membership.registration.end(revoke=False)
        await self._listeners.stop(0)

    async def _close_directory(self) -> None:
        """Close the data directory once, after a clean stop or any other end of the broker."""
        if self._closed:
            return
        self._closed = True
        self._flusher.close()
        broker_epoch = 0 if self._parts is None else self._parts.membership.broker_epoch
        await asyncio.get_running_loop().run_in_executor(
            self._executor, lambda: self._directory.close(clean=self._clean, broker_epoch=broker_epoch)
        )
