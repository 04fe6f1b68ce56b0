"""A broker's process, one life of it: the shipped `headrace_broker.app.BrokerServer` on a loop in virtual time.

Replaced are gRPC's servers and channels (`transport`), etcd's client, threads (`virtual_loop`), the thread that renews
the lease (`virtual_lease`), and what probes and metrics are served by. Everything else is what is shipped.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import structlog
from headrace.log import (
    CorruptLogError,
    DiskLimits,
    PartitionLog,
    compacted_writer,
    record_selection,
    segment_replacement,
)
from headrace.log.directory import LogId
from headrace.log.open_files import OpenFile, OpenFiles
from headrace.partition import producer_recovery
from headrace.partition.producers import ProducerWindows
from headrace.partition.topic_configs import TopicConfig
from headrace.wire import call_tries
from headrace.wire.errors import HeadraceError
from headrace.wire.frames import MethodCode
from headrace_broker import app
from headrace_broker.core.roles import Role
from headrace_broker.metrics import BrokerMetrics
from headrace_broker.rpc import listeners
from headrace_broker.rpc.listeners import Listeners
from headrace_broker.rpc.native import native_methods
from headrace_broker.rpc.replica_service import ReplicaService
from headrace_broker.rpc.service import BrokerService
from headrace_broker.rpc.tables import TableService
from headrace_broker.runtime import (
    log_deletion,
    maintenance,
    partition_follower,
    registration,
    restore_guard,
)
from headrace_broker.runtime.membership import BrokerMembership
from headrace_broker.runtime.replica_manager import ReplicaManager
from headrace_broker.settings import BrokerSettings
from headrace_coordinator.runtime import ambiguous_writes, topic_store
from headrace_coordinator.runtime import session as coordinator_session
from headrace_server.descriptors import DescriptorShares
from headrace_server.event_loop_watchdog import LoopLagSampler
from headrace_server.health import Health
from headrace_server.http_endpoint import DetailCollector
from headrace_server.identity.gate import IdentityGate
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.lifecycle import StopRequest
from headrace_server.metadata_view import ClusterView
from headrace_server.metastore.view import PrefixView
from headrace_server.metrics_access import MetricsAccess
from headrace_server.native import outgoing
from headrace_server.native.call import NativeCall, NativeMethod
from headrace_server.native.outgoing import OutgoingMessage
from headrace_server.observability import Observability
from headrace_server.service_process import ServiceProcess
from headrace_server.tls import ServiceTls
from prometheus_client import CollectorRegistry

from tests.simulation.client_calls import clients_in_virtual_time
from tests.simulation.exercise import FORGOTTEN
from tests.simulation.host import Host, WatchedDirectory
from tests.simulation.transport import Server, SimulatedNativeServer
from tests.simulation.virtual_lease import LoopRenewer, VirtualKeeper
from tests.simulation.virtual_loop import LoopMetastore, VirtualExecutor, VirtualLoop
from tests.simulation.world import NodeClock

if TYPE_CHECKING:
    from tests.simulation.machine import BrokerNode
    from tests.simulation.plan import Plan

LEASE_TTL_MS = 3_000
DISK_LIMITS = DiskLimits(reserve_bytes=4096, refuse_below_bytes=0, resume_above_bytes=0, max_open_files=2)
DRAIN_MS = 1_500
ORDERLY_DRAIN_MS = 120_000
"""A stop at its limit hands nothing over."""
STOP_TIMEOUT_MS = 20_000
"""An orderly stop that takes longer, apart from its wait for successors, breaks the run."""
COMPACTION_INTERVAL_MS = 300
MAX_PRODUCERS = 4
RETRY_WINDOW_MS = 2_500
EXPIRY_MS = 6_000
"""Where partitions forget producers."""
DELETE_SECONDS = 30.0
FILE_DELETE_DELAY_MS = 300
"""Also of a topic that etcd does not know."""
forget_producer = ProducerWindows._forget
METRICS = BrokerMetrics(CollectorRegistry())  # Counted and never looked at.


class Broker:
    """One life of the process."""

    def __init__(self, node: BrokerNode) -> None:
        cluster = node.cluster
        self.cluster = cluster
        self.node = node
        self.broker_id = node.broker_id
        self.process = cluster.world.start_process(node.name)
        self.loop: Any = VirtualLoop(cluster.world, self.process)
        self.loop.transport = cluster.transport
        self.clock = NodeClock(cluster.world, self.process, node.wall)
        self.metastore = LoopMetastore(cluster.etcd, self.process, self.loop)
        self.chance = cluster.world.chance(f"disk/{node.name}")
        self.logs: dict[PartitionLog, Host] = {}
        """The logs that are open, in the order of opening."""
        self.app: SimulatedBroker | None = None
        self.stop_request: StopRequest
        self._ending: Any = None
        self.rounds_offline = 0
        """So often an operator has seen a log offline."""
        self.process.after_event = self._after_event
        self.loop.run(lambda: self.loop.create_task(self._live()))

    # --- what is seen of it ---

    @property
    def address(self) -> str:
        """Where clients reach it."""
        return f"{self.node.name}:7181"

    @property
    def broker_epoch(self) -> int:
        """Its session; 0: it has none."""
        membership = None if self.app is None else self.app.membership
        return membership.broker_epoch if membership is not None and membership.registered else 0

    @property
    def registered(self) -> bool:
        """Whether it has a session, as it takes it."""
        return self.broker_epoch != 0

    @property
    def view(self) -> ClusterView | None:
        """Its metadata."""
        return None if self.app is None else self.app.view

    def host(self, key: LogId) -> Host | None:
        """The open log of a partition, with the partition over it."""
        for host in self.logs.values():
            if host.key == key and host.partition is not None:
                return host
        return None

    @property
    def has_offline_log(self) -> bool:
        """Whether a disk has failed under a log; one that is corrupt is replaced without anybody's help (H33)."""
        replica_manager = None if self.app is None else self.app.replica_manager
        return replica_manager is not None and any(
            each.replica.role is Role.OFFLINE and not isinstance(each.failure, CorruptLogError)
            for each in replica_manager.partitions
        )

    def _after_event(self) -> None:
        """Watch partitions that are open since the last event, and see that nothing failed unforeseen."""
        self.loop.check()
        if self.app is None or self.app.replica_manager is None:
            return
        for partition in self.app.replica_manager._partitions.values():
            host = self.logs.get(partition.log) if partition.log is not None else None
            if host is not None and host.partition is None:
                host.attach(partition)

    def delay_ms(self) -> int:
        """Draw how long a call in a thread takes."""
        chance = self.chance
        if chance.random() < self.cluster.slow_disk_rate:
            return 150 + chance.randrange(400)
        return chance.choice((0, 0, 1, 1, 2, 4, 6))

    # --- its life ---

    async def _live(self) -> None:
        """What `headrace_broker.app.serve` does."""
        cluster, node = self.cluster, self.node
        cluster.world.note(self.process.name, f"starts, life {self.process.number}")
        self.stop_request = StopRequest()
        executor = self._executor(app.STORAGE_THREADS)
        why = ""
        try:
            directory = self._open_directory()
            files: Any = directory._environment.files
            files.drop = partial(self._dropped, files)
            self.app = SimulatedBroker(self, directory, executor)
            await self.app.run(self.stop_request)
        except* HeadraceError as group:
            why = "; ".join(str(each) for each in group.exceptions)
        except* Exception as group:
            self.loop.fail("the broker ended", group)
        executor.shutdown()
        if self.process.alive:
            cluster.world.note(self.process.name, f"exits: {why}" if why else "has stopped in order")
            if not why:
                cluster.world.count("clean stops")
            cluster.world.after(0, cluster.operator, "", lambda: node.exited(self))

    def _dropped(self, files: OpenFiles, file: OpenFile) -> None:
        """A slice was left to the garbage collector, which may not run for long: its file is in use until then."""
        if self.process.alive:
            self.loop.fail("a read was not closed", ResourceWarning(file.path))
        OpenFiles.drop(files, file)

    def _open_directory(self) -> WatchedDirectory:
        """As `headrace_broker.app._open_directory`, on the machine's disk."""
        cluster = self.cluster
        session = cluster.etcd.store.now(cluster.keyspace.broker_session(self.broker_id))
        directory = WatchedDirectory.open(
            "/data",
            cluster_id=cluster.identity.cluster_id,
            generation=cluster.identity.generation,
            broker_id=self.broker_id,
            new_storage_id=self.chance.randbytes(16),
            boot_id=self.node.boot_id,
            adopts=b"" if session is None else metadata_pb2.BrokerSession.FromString(session.value).storage_id,
            limits=DISK_LIMITS,
            filesystem=self.node.filesystem,
        )
        assert isinstance(directory, WatchedDirectory)
        directory.broker = self
        return directory

    def _executor(self, threads: int) -> VirtualExecutor:
        return VirtualExecutor(self.cluster.world, self.process, self.loop, self.chance, self.delay_ms, threads=threads)

    @property
    def stopping(self) -> bool:
        """Whether an orderly stop was asked for."""
        return self._ending is not None

    def stop(self) -> None:
        """Ask for an orderly stop, as SIGTERM does."""
        if self._ending is None and self.app is not None:
            self.cluster.world.note(self.process.name, "begins to stop")
            limit_ms = STOP_TIMEOUT_MS + _drain_ms(self.cluster.plan)
            self._ending = self.cluster.world.after(limit_ms, self.process, "", self._give_up)
            self.loop.run(self.stop_request.set, "SIGTERM")

    def _give_up(self) -> None:
        self.loop.fail("an orderly stop does not end", TimeoutError())

    def be_slow(self, chance: random.Random) -> None:
        """Draw otherwise from now on, how long calls in threads take and when in that time they happen."""
        assert self.app is not None
        executors: Any = (self.app._executor, self.app._flusher._executor)
        self.chance = executors[0]._chance = executors[1]._chance = chance

    def do(self, work: Callable[[], Any]) -> None:
        """Run a coroutine of the process's own on its loop."""
        self.loop.run(lambda: self.loop.create_task(work()))

    def scrub(self) -> None:
        """Look for corruption everywhere now."""
        for host in list(self.logs.values()):
            if host.partition is not None and host.is_open:
                self.do(partial(maintenance._scrub_partition, host.partition))

    def delete_records(self, host: Host, before: int) -> Callable[[], bool]:
        """Raise the log start, as DeleteRecords does; what is returned says whether it was answered that it is."""
        partition = host.partition
        assert partition is not None
        answered: list[bool] = []
        self.cluster.may_remove(host.key, before)

        async def delete() -> None:
            with suppress(HeadraceError):
                await partition.log_start.delete_records(min(before, partition.replica.high_watermark), DELETE_SECONDS)
                answered.append(True)

        self.do(delete)
        return lambda: bool(answered)

    @property
    def leads_any(self) -> bool:
        """Whether it leads a partition."""
        return any(host.is_open and host.replica.role is Role.LEADING for host in self.logs.values())


class SimulatedBroker(app.BrokerServer):
    """The shipped broker between simulated servers."""

    def __init__(self, life: Broker, directory: WatchedDirectory, executor: VirtualExecutor) -> None:
        cluster, node = life.cluster, life.node
        self.life = life
        self.replica_manager: ReplicaManager | None = None
        self.view: ClusterView | None = None
        self.membership: BrokerMembership | None = None
        observability = Observability(
            Health(), DetailCollector(), LoopLagSampler([METRICS.common]), MetricsAccess(is_closed=False), ""
        )
        metastore: Any = life.metastore
        threads: Any = executor
        settings = _settings(node)
        process = SimulatedProcess(
            f"broker-{node.broker_id}",
            settings,
            METRICS.common,
            observability,
            ServiceTls(),
            metastore,
            life.clock,
            relist_ms=cluster.relist_ms,
        )
        identity_source, gate = process.make_gate(cluster.identity)
        super().__init__(
            settings,
            process,
            cluster.identity,
            directory,
            SimulatedListeners(life, settings, process, gate, threads),
            identity_source=identity_source,
            gate=gate,
            metrics=METRICS,
            executor=threads,
        )
        for owner, size in ((self._flusher, 8), (self._inflation, 2), (self._records, 2)):
            threads_of: Any = owner
            threads_of._executor = life._executor(size)

    def _describe(self) -> metadata_pb2.BrokerLive:
        live = super()._describe()
        live.boot_id = self.life.chance.randbytes(16)
        return live

    async def _wire(self, tasks: asyncio.TaskGroup, stop: StopRequest) -> Any:
        parts = await super()._wire(tasks, stop)
        if parts is None:
            return None
        self.replica_manager, self.view, self.membership = parts.replica_manager, parts.view, parts.membership
        registration: Any = parts.membership.registration
        registration._storage._draw_storage_id = self.life.chance.randbytes
        registration._make_renewer = lambda: LoopRenewer(self.life.metastore)
        return parts


@dataclass(frozen=True)
class SimulatedProcess(ServiceProcess):
    """Reads the metadata anew at the cluster's times, and serves no descriptions of itself."""

    relist_ms: int = 0

    async def load(self, *sources: PrefixView, stop: StopRequest) -> bool:
        """Load them with the cluster's interval of relists."""
        for source in sources:
            source._relist_interval_ms = self.relist_ms
        return await super().load(*sources, stop=stop)

    def add_process_service(self, server: Any, describe_disk: Any = None) -> None:
        """Serve nothing of it: no simulated client asks."""


class SimulatedListeners(Listeners):
    """Listens in the simulation."""

    def __init__(
        self, life: Broker, settings: BrokerSettings, process: ServiceProcess, gate: IdentityGate, executor: Any
    ) -> None:
        self.life = life
        shares = DescriptorShares(clients=1_000, natives=1_000, peers=1_000, followers=1_000, segment_files=256)
        super().__init__(settings, process, shares, METRICS, gate, executor)

    def _make_server(self, max_connections: int, **checks: Any) -> Any:
        return Server(self.life.cluster.transport, self.life.loop, self.life.process)

    def _make_native_server(self, metrics: Any, connect: Any, max_connections: int) -> SimulatedNativeServer:
        server = SimulatedNativeServer(
            self._process.name, metrics, connect, executor=self._executor, max_connections=max_connections
        )
        server.transport, server.process, server.loop = self.life.cluster.transport, self.life.process, self.life.loop
        return server

    def serve(self, service: BrokerService, tables: TableService, replica_service: ReplicaService) -> None:
        """As the shipped one; `PromiseChecks` sees what is answered to producers."""
        with mock.patch.object(listeners, "native_methods", self._watched_methods):
            super().serve(service, tables, replica_service)

    def _watched_methods(self, service: BrokerService, tables: TableService) -> dict[int, NativeMethod]:
        methods, promises = native_methods(service, tables), self.life.cluster.promises
        produce = methods[MethodCode.PRODUCE]

        async def handle(request: Any, call: NativeCall) -> OutgoingMessage:
            with promises.served_natively(call.request_id, call.peer()):
                answer = await produce.handle(request, call)
                promises.answers_natively(call.request_id, answer.message)
            return answer

        return {**methods, MethodCode.PRODUCE: replace(produce, handle=handle)}


def _drain_ms(plan: Plan) -> int:
    return ORDERLY_DRAIN_MS if plan.is_orderly else DRAIN_MS


def _settings(node: BrokerNode) -> BrokerSettings:
    """Times and sizes in proportion to a run."""
    plan = node.cluster.plan
    settings = BrokerSettings(
        broker_id=node.broker_id,
        data_dir="/data",
        listen=f"{node.name}:7181",
        insecure=True,
        internal_listen=f"{node.name}:7381",
        native_listen=f"{node.name}:7281",
        replication_listen=f"{node.name}:7383",
        rack=f"rack {node.broker_id}",
        lease_ttl_ms=LEASE_TTL_MS,
        fence_on_lease_loss=plan.fences,
        replica_lag_max_ms=1_500,
        drain_timeout_ms=_drain_ms(plan),
        maintenance_interval_ms=400,
        retention_interval_ms=plan.retention_interval_ms,
        compaction_interval_ms=COMPACTION_INTERVAL_MS,
        scrub_interval_ms=0,
        max_replica_fetch_bytes=700,
        slow_append_ms=plan.slow_append_ms,
        max_producers=MAX_PRODUCERS if plan.forgets else 100,
        producer_retry_window_ms=RETRY_WINDOW_MS if plan.forgets else 900_000,
        disk_reserve_bytes=DISK_LIMITS.reserve_bytes,
        disk_refuse_below_bytes=0,
        disk_resume_above_bytes=0,
    )
    if plan.forgets:
        object.__setattr__(settings, "producer_expiry_ms", EXPIRY_MS)  # No run lasts for the shortest that is allowed.
    return settings


def _forget(windows: ProducerWindows, producer_id: int) -> None:
    """Count who is forgotten, by age or for another."""
    loop = asyncio._get_running_loop()
    if isinstance(loop, VirtualLoop):
        loop.world.count(FORGOTTEN)
    forget_producer(windows, producer_id)


def _to_trace(_logger: Any, method: str, event: dict[str, Any]) -> Any:
    """Put shipped code's log lines into the trace, in the place of the console."""
    loop: Any = asyncio._get_running_loop()
    name = event.pop("event")
    event.pop("topic_id", None)
    if isinstance(loop, VirtualLoop) and method != "debug":
        loop.world.note(loop.process.name, f"log: {name} {event}")
        loop.world.count(f"log: {name}")
        if event.get("exc_info"):  # Shipped code continued after an unforeseen error.
            loop.fail(name, sys.exc_info()[1])
    raise structlog.DropEvent


_DRAWN = SimpleNamespace(token_bytes=random.randbytes, token_hex=lambda size: random.randbytes(size).hex())
"""Replaces `secrets`, by the seed."""


@contextmanager
def simulated(seed: int = 0, *, small: bool = False) -> Iterator[None]:
    """Let shipped modules keep leases on virtual loops, draw from the seed, and log into the trace.

    `small`: thresholds of bytes and times are in proportion to a run, so that what lies behind them happens.
    """
    with ExitStack() as stack:
        stack.enter_context(clients_in_virtual_time())
        for module in (registration, coordinator_session):
            stack.enter_context(mock.patch.object(module, "LeaseKeeper", VirtualKeeper))
        for module in (topic_store, ambiguous_writes, call_tries):
            stack.enter_context(mock.patch.object(module, "secrets", _DRAWN))
        if small:
            stack.enter_context(mock.patch.object(restore_guard, "NOTE_SECONDS", 0.5))
            soon = partial(TopicConfig, file_delete_delay_ms=FILE_DELETE_DELAY_MS)
            stack.enter_context(mock.patch.object(log_deletion, "TopicConfig", soon))
            stack.enter_context(mock.patch.object(partition_follower, "_INLINE_BYTES", 300))
            stack.enter_context(mock.patch.object(outgoing, "COPIED_BYTES", 300))
            stack.enter_context(mock.patch.object(outgoing, "CHUNK_BYTES", 200))
            stack.enter_context(mock.patch.object(producer_recovery, "SNAPSHOT_MS", 2_500))
            stack.enter_context(mock.patch.object(maintenance, "SCRUB_BYTES", 1_000))
            stack.enter_context(mock.patch.object(segment_replacement, "MANY_SEGMENTS", 3))
            stack.enter_context(mock.patch.object(record_selection, "KEY_MEMORY_BYTES", 5_000))
            stack.enter_context(mock.patch.object(compacted_writer, "BATCH_BYTES", 500))
            stack.enter_context(mock.patch.object(compacted_writer, "PERIOD_MS", 1_000))
            stack.enter_context(mock.patch.object(ProducerWindows, "_forget", _forget))
        before, processors = random.getstate(), structlog.get_config()["processors"]
        kept = processors.copy()
        random.seed(f"{seed}/global")  # Shipped code draws pauses from it.
        processors[:] = [_to_trace]
        structlog.configure(processors=processors)
        try:
            yield
        finally:
            random.setstate(before)
            processors[:] = kept
            structlog.configure(processors=processors)
