"""The services of a cluster in one process, on one event loop over one metastore.

They are the broker and the coordinator that also run alone. They share the process's logging, metrics and health, and
one gRPC server (`ClientFront`). Start: metastore, then both. Stop: the broker first, as in a cluster of processes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import structlog
from headrace_broker.app import serve_in as serve_broker
from headrace_broker.metrics import BrokerMetrics
from headrace_broker.settings import BrokerSettings
from headrace_coordinator.app import serve_in as serve_coordinator
from headrace_coordinator.metrics import CoordinatorMetrics
from headrace_coordinator.settings import CoordinatorSettings
from headrace_server.client_front import ClientFront
from headrace_server.cluster_identity import ClusterIdentity
from headrace_server.descriptors import raise_limit, share_out
from headrace_server.keys import Keyspace
from headrace_server.lifecycle import StopRequest
from headrace_server.metastore.local import LocalMetastore
from headrace_server.metastore.sqlite import TICK_SECONDS, open_sqlite
from headrace_server.places import PlaceLimits
from headrace_server.rpc import RpcLimits, RpcServer
from headrace_server.service_process import ServiceProcess, run_process
from prometheus_client import CollectorRegistry

log = structlog.get_logger(__name__)

CONTROLLER_POLL_SECONDS = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleSettings:
    """Settings of the process."""

    broker: BrokerSettings
    coordinator: CoordinatorSettings
    """`listen`, `metrics_listen` and `ready_file` are those of the broker."""
    metastore_file: Path


@dataclass(frozen=True)
class _Part(ServiceProcess):
    """One of the two services as it sees its process."""

    ready: asyncio.Future[Mapping[str, object]] = field(kw_only=True)
    """What its ready file would contain, once it serves."""

    def write_ready(self, content: Mapping[str, object]) -> None:
        """Leave the file to `serve`, which writes one for both."""
        self.ready.set_result(content)


async def serve(
    settings: SingleSettings, stop: StopRequest, ready: asyncio.Future[Mapping[str, object]] | None = None
) -> None:
    """Run the cluster until `stop` is requested. `ready` gets the addresses once it serves.

    Raises:
        MetastoreInUseError, MetastoreDamagedError: See `open_sqlite`.
        HeadraceError: As of the two services.
    """
    registry = CollectorRegistry()
    broker_metrics, coordinator_metrics = BrokerMetrics(registry), CoordinatorMetrics(registry)
    metastore = open_sqlite(settings.metastore_file)
    async with (
        _expiring(metastore),
        run_process(
            "single",
            settings.broker,
            broker_metrics.common,
            registry,
            bound={},
            metastore=metastore,
            others=[coordinator_metrics.common],
        ) as process,
    ):
        reached = await process.reach_etcd(_end_dead_sessions(settings, metastore), stop)
        if reached is None:
            return
        identity, _ = reached
        await _Single(settings, process, identity, broker_metrics, coordinator_metrics).run(stop, ready)


@contextlib.asynccontextmanager
async def _expiring(metastore: LocalMetastore) -> AsyncIterator[None]:
    """End leases at their time, and the process after a failed write, while the block runs."""
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(metastore.run(TICK_SECONDS), name="metastore")
        yield
        running.cancel()


class _end_dead_sessions:
    """Ends what the previous process on the same file had registered: it is dead, because this one has the lock.

    Its leases would end by themselves, but only after their whole time.
    """

    def __init__(self, settings: SingleSettings, metastore: LocalMetastore) -> None:
        self._settings = settings
        self._metastore = metastore

    async def __call__(self, identity: ClusterIdentity) -> None:
        keyspace: Keyspace = identity.keyspace
        for key in (
            keyspace.broker(self._settings.broker.broker_id),
            keyspace.coordinator(self._settings.coordinator.coordinator_id),
        ):
            found = (await self._metastore.get(key)).key_value
            if found is not None and found.lease_id:
                await self._metastore.revoke_lease(found.lease_id)
                log.info("dead_session_ended", key=key)


class _Single:
    """The two services, from the identity of the cluster to the stop."""

    def __init__(
        self,
        settings: SingleSettings,
        process: ServiceProcess,
        identity: ClusterIdentity,
        broker_metrics: BrokerMetrics,
        coordinator_metrics: CoordinatorMetrics,
    ) -> None:
        self._settings = settings
        self._process = process
        self._identity = identity
        self._broker_metrics = broker_metrics
        self._coordinator_metrics = coordinator_metrics
        loop = asyncio.get_running_loop()
        metrics = (broker_metrics.common, coordinator_metrics.common)
        self._broker, self._coordinator = (
            _Part(
                name,
                own,
                common,
                observability,
                process.tls,
                process.metastore,
                process.clock,
                ready=loop.create_future(),
            )
            for name, own, common, observability in zip(
                (f"broker-{settings.broker.broker_id}", f"coordinator-{settings.coordinator.coordinator_id}"),
                (settings.broker, settings.coordinator),
                metrics,
                process.observability.split(metrics),
                strict=True,
            )
        )
        self._front = self._make_front()

    def _make_front(self) -> ClientFront:
        source, gate = self._coordinator.make_gate(self._identity)
        broker, coordinator = self._settings.broker, self._settings.coordinator
        shares = share_out(
            raise_limit(), max_connections=broker.max_connections, native_connections=broker.max_native_connections
        )
        places = PlaceLimits(
            clients=(
                max(broker.max_concurrent_calls, coordinator.max_concurrent_calls),
                max(broker.max_calls_per_peer, coordinator.max_calls_per_peer),
            )
        )
        limits = RpcLimits(places=places, max_connections=shares.clients)
        return ClientFront(RpcServer(limits, gate=gate, health=self._process.observability.health), gate, source)

    async def run(self, stop: StopRequest, ready: asyncio.Future[Mapping[str, object]] | None) -> None:
        stop_coordinator = StopRequest()
        try:
            async with asyncio.TaskGroup() as tasks:
                coordinator = tasks.create_task(
                    serve_coordinator(
                        self._coordinator,
                        self._settings.coordinator,
                        self._coordinator_metrics,
                        stop_coordinator,
                        self._front,
                    ),
                    name="coordinator",
                )
                broker = tasks.create_task(
                    serve_broker(self._broker, self._settings.broker, self._broker_metrics, stop, self._front),
                    name="broker",
                )
                announcing = tasks.create_task(self._announce(ready), name="ready")
                await asyncio.wait([broker, coordinator], return_when=asyncio.FIRST_COMPLETED)
                announcing.cancel()
                stop_coordinator.set(stop.reason or "the broker has ended")
        finally:
            await self._front.server.stop(0)

    async def _announce(self, ready: asyncio.Future[Mapping[str, object]] | None) -> None:
        """Report readiness once both serve and the controller is elected."""
        content = {**await self._coordinator.ready, **await self._broker.ready}
        metastore, key = self._process.metastore, self._identity.keyspace.controller()
        found = await metastore.get(key)
        if found.key_value is None:
            changes = metastore.watch(key, found.revision + 1)
            while not (await anext(changes)).events:
                pass
        log.info("single_serves", address=self._front.server.address)
        self._process.write_ready(content)
        if ready is not None:
            ready.set_result(content)
