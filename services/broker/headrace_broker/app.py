"""A broker process from start to stop, in the order that PROTOCOL section 1.2 ("Startup") gives.

identity in etcd -> lock and check the data directory -> read the metadata -> recover the logs -> listen -> register ->
lead or follow what names the session ... let others lead -> refuse new calls -> finish those at work -> flush all ->
clean marker -> revoke the lease
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import structlog
from headrace.disk_probe import filesystem_of, measure_fsync
from headrace.log.directory import DataDirectory
from headrace.log.errors import storage_error
from headrace.log.settings import DiskLimits
from headrace.v1 import process_pb2
from headrace.wire.errors import HeadraceError, MetastoreUnavailableError
from headrace.wire.ids import BrokerId
from headrace.wire.releases import CAPABILITIES, RELEASE
from headrace_server.clock import read_boot_id
from headrace_server.cluster_identity import ClusterIdentity
from headrace_server.collector import CollectorPacer
from headrace_server.descriptors import DescriptorShares, raise_limit, report, share_out
from headrace_server.generations import watch_generation
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.key_table import BrokerKey
from headrace_server.lifecycle import StopRequest
from headrace_server.metadata_view import ClusterView
from headrace_server.metastore.api import MetastoreRolledBackError
from headrace_server.metastore.lease import LeaseState
from headrace_server.metastore.view import PrefixView
from headrace_server.places import PlaceLimits
from headrace_server.rpc import RpcLimits, RpcServer, split_address
from headrace_server.service_process import ServiceProcess, run_process
from headrace_server.topic_configs import CONFIGS
from prometheus_client import CollectorRegistry

from headrace_broker.core.phi_accrual import PhiAccrualFailureDetector
from headrace_broker.core.roles import Role
from headrace_broker.metrics import BrokerMetrics, partition_metrics
from headrace_broker.rpc.replica_service import ReplicaService
from headrace_broker.rpc.replica_service import register as register_replica_service
from headrace_broker.rpc.service import SERVICE_NAME, BrokerService, register
from headrace_broker.rpc.transfer import TransferServer
from headrace_broker.runtime.directory_calls import DirectoryCalls
from headrace_broker.runtime.directory_version import StoredSessions, keep_version
from headrace_broker.runtime.failure_detector import PeerFailureDetector
from headrace_broker.runtime.flusher import Flusher
from headrace_broker.runtime.inflation import Inflation
from headrace_broker.runtime.maintenance import keep_high_watermarks, maintain, retain, scrub
from headrace_broker.runtime.partition import PartitionContext
from headrace_broker.runtime.partition_samples import describe_sample
from headrace_broker.runtime.registration import Registration
from headrace_broker.runtime.replica_manager import ReplicaManager
from headrace_broker.runtime.replica_messages import HEARTBEAT_SECONDS
from headrace_broker.runtime.replica_messages import SERVICE_NAME as REPLICA_SERVICE_NAME
from headrace_broker.runtime.replication import TICK_SECONDS, Replication
from headrace_broker.runtime.uninterrupted import spawn_unless_ending
from headrace_broker.settings import BrokerSettings

log = structlog.get_logger(__name__)

STORAGE_THREADS = 4
RETRY_SECONDS = 0.5
STOP_GRACE_SECONDS = 10.0
DRAIN_POLL_SECONDS = 0.02
LAST_VERSION_SECONDS = 1.0
"""How long a stop waits for etcd to take the directory's last version."""
MAX_TOPIC_IDS = 100
"""Of unclaimed logs, in one description of a broker."""
LAST_HAND_OVERS_MS = 2_500
"""How long a stop whose time is up waits for successors, while nothing is appended any more."""


async def serve(settings: BrokerSettings, stop: StopRequest) -> None:
    """Run a broker until `stop` is requested.

    Raises:
        HeadraceError: it cannot start or continue; the message states the next step.
    """
    registry = CollectorRegistry()
    metrics = BrokerMetrics(registry)
    async with run_process(
        f"broker-{settings.broker_id}", settings, metrics.common, registry, bound={"broker_id": settings.broker_id}
    ) as process:
        executor = ThreadPoolExecutor(STORAGE_THREADS, thread_name_prefix="storage")
        try:

            async def read_storage_id(identity: ClusterIdentity) -> bytes:
                """Return the storage id of the last session, which a new generation may have taken over."""
                key = identity.keyspace.broker_session(settings.broker_id)
                found = (await process.metastore.get(key)).key_value
                return b"" if found is None else metadata_pb2.BrokerSession.FromString(found.value).storage_id

            reached = await process.reach_etcd(read_storage_id, stop)
            if reached is None:
                return
            identity, adopts = reached
            shares = _share_descriptors(settings)
            directory = await asyncio.get_running_loop().run_in_executor(
                executor, _open_directory, settings, shares, identity, adopts
            )
            broker = BrokerServer(settings, process, identity, directory, shares, metrics=metrics, executor=executor)
            await broker.run(stop)
        finally:
            executor.shutdown(wait=True)


def crash(tasks: asyncio.TaskGroup, error: BaseException) -> None:
    """End the broker, whose tasks these are: a call or another task met a bug."""

    async def fail() -> None:
        raise error

    spawn_unless_ending(tasks, fail())


def _share_descriptors(settings: BrokerSettings) -> DescriptorShares:
    limit = raise_limit()
    transfers = settings.max_transfer_connections if settings.transfer_listen else 0
    shares = share_out(limit, max_connections=settings.max_connections, transfers=transfers)
    report(limit, shares)
    return shares


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


class BrokerServer:
    """The parts of one broker and their order. Belongs to the event loop."""

    def __init__(
        self,
        settings: BrokerSettings,
        process: ServiceProcess,
        identity: ClusterIdentity,
        directory: DataDirectory,
        shares: DescriptorShares,
        *,
        metrics: BrokerMetrics,
        executor: ThreadPoolExecutor,
    ) -> None:
        """Take over an opened data directory: `run` closes it."""
        self._settings = settings
        self._process = process
        self._metastore = process.metastore
        self._identity = identity
        self._directory = directory
        self._clock = process.clock
        self._metrics = metrics
        self._executor = executor
        self._health = process.observability.health
        self._flusher = Flusher(metrics)
        self._inflation = Inflation()
        self._records = Inflation()
        self._tls = process.tls
        self._shares = shares
        self._server = self._make_server(shares.clients)
        self._internal_server = self._make_server(
            shares.peers, allowed_names=settings.internal_tls_allowed_names, call_errors=metrics.common.call_errors
        )
        self._transfer: TransferServer | None = None
        self._transfer_address = ""
        self._lease_lost = asyncio.Event()
        self._clean = False
        self._closed = False
        # False from the loss of a session until the next one is established: events of the old one are ignored.
        self._registered = False
        self._broker_epoch = 0

    async def run(self, stop: StopRequest) -> None:
        """Serve until `stop`; the data directory is closed whatever happens."""
        try:
            async with asyncio.TaskGroup() as tasks:
                await self._run(tasks, stop)
        except BaseException:
            await asyncio.gather(self._server.stop(0), self._internal_server.stop(0), self._stop_transfer())
            raise
        finally:
            self._inflation.close()
            self._records.close()
            await self._close_directory()

    async def _run(self, tasks: asyncio.TaskGroup, stop: StopRequest) -> None:
        settings = self._settings
        source = PrefixView(self._metastore, self._identity.keyspace.prefix, self._clock)
        await self._load(source, stop)
        view = self._process.open_view(self._identity, source)
        clocks = self._process.make_clock_exchange(view)
        context = PartitionContext(
            BrokerId(settings.broker_id),
            settings,
            self._clock,
            self._metrics,
            self._flusher,
            self._executor,
            self._inflation,
            self._records,
            clocks.look,
            clocks.watch.now_ms,
            crash=partial(crash, tasks),
        )
        live = self._describe()
        if live.takes_no_replicas:
            log.error(
                "volume_too_small",
                reason=live.takes_no_replicas,
                advice="give it a larger volume, or lower disk_refuse_below_bytes; it gets no new replicas until then",
            )
        self._health.hold("readiness", "registration", "it is not registered in etcd yet")
        registration = self._make_registration(live)
        failure_detector = self._make_failure_detector(registration)
        replication = Replication(view, self._metastore, context, failure_detector, tasks, self._tls.internal)
        replica_manager = ReplicaManager(view, self._metastore, self._directory, context, replication)
        service = BrokerService(
            view,
            replica_manager,
            self._directory,
            registration,
            failure_detector=failure_detector,
            partition_context=context,
            tasks=tasks,
        )
        replica_service = ReplicaService(replication, replica_manager, service.check_serving)
        self._internal_server.add(register_replica_service, replica_service, REPLICA_SERVICE_NAME)
        self._internal_server.add(register, service, SERVICE_NAME)
        self._server.add(register, service, SERVICE_NAME)
        self._transfer = TransferServer(service, self._metrics, max_connections=settings.max_transfer_connections)
        self._server.refuse_internal(REPLICA_SERVICE_NAME, self._metrics.common.call_errors)
        self._add_process_service(replica_manager)
        await self._listen(live)
        self._process.observability.sampler.on_sample = lambda: self._on_sample(view)
        self._process.observability.detail.source = lambda: partition_metrics(
            [describe_sample(partition) for partition in replica_manager.partitions]
        )
        await self._recover(replica_manager)
        clocks.note_newest_record(await self._newest_append_ms(replica_manager))
        clocks.look()  # Before the first record is stamped.
        service.begin_serving()
        background: list[asyncio.Task[None]] = []
        starting = tasks.create_task(self._start_session(registration, replica_manager))
        stopping = tasks.create_task(stop.requested())
        await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            view.subscribe(lambda _revision, keys: self._watch_own_key(view, keys))
            background += [
                tasks.create_task(source.run()),
                tasks.create_task(watch_generation(view)),
                tasks.create_task(clocks.run()),
                tasks.create_task(replica_manager.run()),
                tasks.create_task(self._keep_registered(registration, replica_manager)),
                tasks.create_task(replication.tick(lambda: replica_manager.partitions)),
                tasks.create_task(failure_detector.run()),
                tasks.create_task(keep_version(replica_manager, source, registration)),
                tasks.create_task(maintain(replica_manager, self._directory, context)),
                tasks.create_task(keep_high_watermarks(context)),
                tasks.create_task(retain(replica_manager, context)),
                tasks.create_task(scrub(replica_manager, context)),
            ]
            self._health.release("readiness", "registration")
            self._announce()
            await stopping
        else:
            starting.cancel()
        await self._stop(service, replica_manager, replication, registration, background)

    def _make_server(self, max_connections: int, **checks: Any) -> RpcServer:
        settings = self._settings
        limits = RpcLimits(
            places=PlaceLimits(clients=(settings.max_concurrent_calls, settings.max_calls_per_peer)),
            max_connections=max_connections,
        )
        return RpcServer(limits, health=self._health, **checks)

    async def _listen(self, live: metadata_pb2.BrokerLive) -> None:
        """Open both listeners and say in the registration where they are."""
        settings, tls = self._settings, self._tls
        internal_credentials = None if tls.internal is None else tls.internal.server_credentials("required")
        host, _ = split_address(settings.listen)
        internal = await self._internal_server.start(settings.internal_listen or f"{host}:0", internal_credentials)
        address = await self._server.start(settings.listen, self._process.client_credentials())
        live.address = settings.advertised_address or address
        told_host, _ = split_address(live.address)
        live.internal_address = settings.internal_advertised_address or f"{told_host}:{split_address(internal)[1]}"
        if self._transfer is not None and settings.transfer_listen:
            bound = self._transfer_address = await self._transfer.start(settings.transfer_listen)
            live.transfer_address = settings.transfer_advertised_address or f"{told_host}:{split_address(bound)[1]}"

    def _add_process_service(self, replica_manager: ReplicaManager) -> None:
        self._process.add_process_service(self._server, partial(self._describe_disk, replica_manager))

    async def _describe_disk(self, replica_manager: ReplicaManager, measure: bool) -> process_pb2.DiskDescription:
        path, settings = self._directory.path, self._settings
        offline = sum(partition.replica.role is Role.OFFLINE for partition in replica_manager.partitions)
        unclaimed = replica_manager.unclaimed
        topic_ids = sorted({log_id.topic_id for log_id in unclaimed})

        def look() -> process_pb2.DiskDescription:
            usage = self._directory.check_space()
            return process_pb2.DiskDescription(
                data_dir=path,
                total_bytes=usage.total_bytes,
                free_bytes=usage.free_bytes,
                refuse_below_bytes=settings.disk_refuse_below_bytes,
                resume_above_bytes=settings.disk_resume_above_bytes,
                fsync_us=round(measure_fsync(path) * 1_000_000) if measure else 0,
                filesystem=filesystem_of(path),
                offline_logs=offline,
                unclaimed_logs=len(unclaimed),
                unclaimed_topic_ids=topic_ids[:MAX_TOPIC_IDS],
            )

        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, look)
        except OSError as error:
            raise storage_error(path, error) from error

    async def _load(self, source: PrefixView, stop: StopRequest) -> None:
        while not stop.is_set():
            try:
                return await source.load()
            except MetastoreRolledBackError:
                raise
            except MetastoreUnavailableError as error:
                log.warning("metadata_not_read", cause=str(error))
                await asyncio.sleep(RETRY_SECONDS)
        return None

    def _describe(self) -> metadata_pb2.BrokerLive:
        settings = self._settings
        default = CONFIGS["max_batch_bytes"].default
        assert isinstance(default, int)
        return metadata_pb2.BrokerLive(
            broker_id=settings.broker_id,
            rack=settings.rack,
            host=settings.host,
            instance=settings.instance,
            boot_id=secrets.token_bytes(16),
            version=RELEASE,
            capabilities=CAPABILITIES,
            max_batch_bytes=default,
            takes_no_replicas=self._directory.lacks_room(),
        )

    def _make_registration(self, live: metadata_pb2.BrokerLive) -> Registration:
        directory = self._directory
        return Registration(
            self._metastore,
            self._identity.keyspace,
            live,
            StoredSessions(directory, DirectoryCalls(self._executor)),
            lease_ttl_ms=self._settings.lease_ttl_ms,
            clock=self._clock,
            make_renewer=self._process.make_renewer,
            on_lease_change=self._on_lease_change,
        )

    def _make_failure_detector(self, registration: Registration) -> PeerFailureDetector:
        table = PhiAccrualFailureDetector(
            threshold=self._settings.phi_threshold,
            promised_ms=round(HEARTBEAT_SECONDS * 1000),
            tick_ms=round(TICK_SECONDS * 1000),
        )
        return PeerFailureDetector(table, registration, self._metrics)

    async def _start_session(self, registration: Registration, replica_manager: ReplicaManager) -> None:
        self._broker_epoch = await registration.register()
        self._registered = True
        self._metrics.registered.set(1)
        replica_manager.start_session(self._broker_epoch)

    def _on_lease_change(self, state: LeaseState) -> None:
        """Silence does not fence (PROTOCOL, decisions); a lease that etcd calls ended does."""
        log.warning("lease_changed", state=state.value)
        if state is LeaseState.LOST and self._registered:
            self._lease_lost.set()

    def _watch_own_key(self, view: ClusterView, keys: Sequence[str]) -> None:
        """The own key gone, or another session's: fenced, also where renewals are still answered (H76)."""
        own = self._settings.broker_id
        if not any(view.keyspace.parse(key) == BrokerKey(BrokerId(own)) for key in keys):
            return
        broker = view.brokers.get(BrokerId(own))
        behind = view.source.revision < self._broker_epoch
        if self._registered and not behind and (broker is None or broker.broker_epoch != self._broker_epoch):
            self._lease_lost.set()

    async def _keep_registered(self, registration: Registration, replica_manager: ReplicaManager) -> None:
        """Lead nothing after a lost lease, and register anew: the process lived on, so its data is whole."""
        while True:
            await self._lease_lost.wait()
            log.error("registration_lost", broker_epoch=self._broker_epoch)
            self._registered = False
            self._metrics.registered.set(0)
            replica_manager.lose_session()
            self._health.hold("readiness", "registration", "its registration in etcd was lost")
            await registration.end(revoke=False)
            self._lease_lost.clear()
            await self._start_session(registration, replica_manager)
            self._health.release("readiness", "registration")

    def _on_sample(self, view: ClusterView) -> None:
        self._process.sample(view)
        if view.is_draining(self._settings.broker_id):
            self._health.hold("readiness", "draining", "it is drained: an administrator took it out of service")
        else:
            self._health.release("readiness", "draining")

    async def _recover(self, replica_manager: ReplicaManager) -> None:
        """Open what is on disk."""
        metrics, started = self._metrics, time.monotonic()
        metrics.recovery_seconds.set_function(lambda: time.monotonic() - started)
        metrics.recovering.set(1)
        await replica_manager.open_existing()
        metrics.recovering.set(0)
        took_seconds = time.monotonic() - started
        metrics.recovery_seconds.set_function(lambda: took_seconds)
        CollectorPacer().install()
        self._health.start_is_over()

    async def _newest_append_ms(self, replica_manager: ReplicaManager) -> int:
        """When the newest record on the disk was appended; 0: there is none, or it cannot be read."""

        def look() -> int:
            newest_ms = 0
            for partition in replica_manager.partitions:
                with suppress(HeadraceError):  # What cannot be read has been reported, or will be when it is asked for.
                    newest_ms = max(newest_ms, 0 if partition.log is None else partition.log.reader.newest_append_ms())
            return newest_ms

        return await asyncio.get_running_loop().run_in_executor(self._executor, look)

    def _announce(self) -> None:
        address, internal_address = self._server.address, self._internal_server.address
        log.info(
            "serving",
            address=address,
            internal_address=internal_address,
            transfer_address=self._transfer_address,
            metrics_address=self._process.observability.metrics_address,
            tls=self._tls.clients is not None,
            internal_tls=self._tls.internal is not None,
        )
        self._process.write_ready(
            {
                "broker_id": self._settings.broker_id,
                "address": address,
                "internal_address": internal_address,
                "transfer_address": self._transfer_address,
            }
        )

    async def _stop(
        self,
        service: BrokerService,
        replica_manager: ReplicaManager,
        replication: Replication,
        registration: Registration,
        background: list[asyncio.Task[None]],
    ) -> None:
        """Stop cleanly: leaderships move first, the clean marker is written last, then the lease goes (H40)."""
        self._health.hold("readiness", "stopping", "it stops")
        given_away = await self._give_leaderships_away(replica_manager, registration)
        service.begin_stop()
        if not given_away:
            await self._give_the_last_away(replica_manager)
        replication.close()
        await asyncio.gather(
            self._server.stop(STOP_GRACE_SECONDS), self._internal_server.stop(STOP_GRACE_SECONDS), self._stop_transfer()
        )
        for task in background:
            task.cancel()
        if background:
            await asyncio.wait(background)
        self._clean = await replica_manager.close()
        await self._outdate_copies(registration)
        await self._close_directory()
        await registration.end(revoke=True)
        log.info("stopped", clean=self._clean)

    async def _outdate_copies(self, registration: Registration) -> None:
        """Raise the directory's version: every copy of it that was made before is known to be one (H16)."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_VERSION_SECONDS):
                await registration.announce_version()

    async def _stop_transfer(self) -> None:
        if self._transfer is not None:
            await self._transfer.stop()

    async def _give_leaderships_away(self, replica_manager: ReplicaManager, registration: Registration) -> bool:
        """Announce the stop, and keep serving until other brokers lead all partitions that they can lead (KIP-841).

        False: they do not yet, and the time is up.
        """
        timeout_ms = self._settings.drain_timeout_ms
        if not self._registered or not timeout_ms or not replica_manager.movable_leaderships():
            return True
        started_ms = self._clock.monotonic_ms()
        replica_manager.begin_stop()
        if not await registration.announce_draining():
            return True
        while left := replica_manager.movable_leaderships():
            if self._clock.monotonic_ms() - started_ms >= timeout_ms or not self._registered:
                log.warning("leaderships_not_moved", partitions=left, waited_ms=timeout_ms)
                return not self._registered
            await asyncio.sleep(DRAIN_POLL_SECONDS)
        log.info("leaderships_moved", took_ms=self._clock.monotonic_ms() - started_ms)
        return True

    async def _give_the_last_away(self, replica_manager: ReplicaManager) -> None:
        """Nothing is appended any more: give successors that lagged a moment to reach the log ends (H24)."""
        deadline_ms = self._clock.monotonic_ms() + LAST_HAND_OVERS_MS
        while left := replica_manager.movable_leaderships():
            if self._clock.monotonic_ms() >= deadline_ms:
                log.warning("leaderships_not_handed_over", partitions=left, waited_ms=LAST_HAND_OVERS_MS)
                return
            await asyncio.sleep(DRAIN_POLL_SECONDS)

    async def _close_directory(self) -> None:
        """Close what is on disk, once: after a clean stop, or after any other end of the broker."""
        if self._closed:
            return
        self._closed = True
        self._flusher.close()
        await asyncio.get_running_loop().run_in_executor(
            self._executor, lambda: self._directory.close(clean=self._clean, broker_epoch=self._broker_epoch)
        )
