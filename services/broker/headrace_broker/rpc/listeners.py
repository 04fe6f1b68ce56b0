"""Where a broker listens: gRPC and the native protocol for clients, gRPC and replication for brokers and coordinators.

Created by the broker's app before its services, because the servers have the probes and limits. Belongs to the event
loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import Any

from headrace.v1 import tables_pb2_grpc
from headrace.wire.frames import MethodCode
from headrace_server.calls import check_certificate
from headrace_server.client_front import ClientFront
from headrace_server.descriptors import DescriptorShares
from headrace_server.identity.gate import IdentityGate
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.native.framed_connection import FramedConnection
from headrace_server.native.server import NativeMetrics, NativeServer, NativeService
from headrace_server.native.streams import MessageStream, ServedStream
from headrace_server.places import PlaceLimits
from headrace_server.rpc import RpcLimits, RpcServer
from headrace_server.service_process import ServiceProcess
from headrace_server.settings import split_address

from headrace_broker.metrics import BrokerMetrics
from headrace_broker.rpc.native import native_methods
from headrace_broker.rpc.replica_service import ReplicaService
from headrace_broker.rpc.service import SERVICE_NAME, BrokerService, register
from headrace_broker.rpc.tables import SERVICE_NAME as TABLE_SERVICE_NAME
from headrace_broker.rpc.tables import TableService
from headrace_broker.settings import BrokerSettings

STOP_GRACE_SECONDS = 10.0
NATIVE_OFF = "off"


class Listeners:
    """Servers of one broker."""

    def __init__(
        self,
        settings: BrokerSettings,
        process: ServiceProcess,
        shares: DescriptorShares,
        metrics: BrokerMetrics,
        gate: IdentityGate,
        executor: Executor,
        front: ClientFront | None = None,
    ) -> None:
        """`executor` loads file ranges before they are sent. With a `front` this is the only broker: clients and the
        coordinator call it there, and it has no followers.
        """
        self._settings = settings
        self._gate = gate
        self._process = process
        self._metrics = metrics
        self._is_alone = front is not None
        self.clients = self._make_server(shares.clients) if front is None else front.server
        self._internal = (
            self._make_server(
                shares.peers,
                allowed_names=settings.internal_tls_allowed_names,
                is_for_servers=True,
                call_errors=metrics.common.call_errors,
            )
            if front is None
            else front.server
        )
        self._executor = executor
        self._max_native_connections = shares.natives
        self._max_followers = shares.followers
        self._native: NativeServer | None = None
        self._replication: NativeServer | None = None
        self.native_address = ""
        self.replication_address = ""

    def _make_server(self, max_connections: int, **checks: Any) -> RpcServer:
        settings = self._settings
        limits = RpcLimits(places=_places(settings), max_connections=max_connections)
        return RpcServer(limits, gate=self._gate, health=self._process.observability.health, **checks)

    @property
    def internal_address(self) -> str:
        """Address for other brokers and coordinators."""
        return self._internal.address

    def serve(self, service: BrokerService, tables: TableService, replica_service: ReplicaService) -> None:
        """Register the services, before `start`."""
        if not self._is_alone:
            self._internal.add(register, service, SERVICE_NAME)
        self.clients.add(register, service, SERVICE_NAME)
        self.clients.add(tables_pb2_grpc.add_TableServiceServicer_to_server, tables, TABLE_SERVICE_NAME)
        metrics = self._metrics
        if self._settings.native_listen != NATIVE_OFF:
            calls = NativeService(
                native_methods(service, tables), metrics.common.call_errors, self.clients.places, self._gate
            )
            self._native = self._make_native_server(metrics.native, calls.connect, self._max_native_connections)
        if self._is_alone:
            return
        allowed = frozenset(self._settings.internal_tls_allowed_names)

        async def serve(stream: MessageStream) -> None:
            check_certificate(stream, allowed)
            await replica_service.serve(stream)

        self._replication = self._make_native_server(
            metrics.replication_listener,
            lambda server: ServedStream(server, MethodCode.REPLICA_FETCH, serve),
            self._max_followers,
        )

    def _make_native_server(
        self, metrics: NativeMetrics, connect: Callable[[NativeServer], FramedConnection], max_connections: int
    ) -> NativeServer:
        return NativeServer(
            self._process.name, metrics, connect, executor=self._executor, max_connections=max_connections
        )

    async def start(self, live: metadata_pb2.BrokerLive) -> None:
        """Listen, and set the addresses in the registration."""
        settings, tls = self._settings, self._process.tls
        host, _ = split_address(settings.listen)
        internal = "" if self._is_alone else await self._start_internal(host)
        address = await self.clients.start(settings.listen, self._process.client_credentials())
        live.address = settings.advertised_address or address
        if self._is_alone:
            live.internal_address = live.address
        else:
            live.internal_address = settings.internal_advertised_address or _at_host_of(live.address, internal)
        if self._native is not None:
            make_context = (
                None if tls.clients is None else partial(tls.clients.server_context, settings.tls_client_auth)
            )
            bound = self.native_address = await self._native.start(settings.native_listen or f"{host}:0", make_context)
            live.native_address = settings.native_advertised_address or _at_host_of(live.address, bound)
        if self._replication is None:
            return
        make_peer_context = None if tls.internal is None else partial(tls.internal.server_context, "required")
        internal_host, _ = split_address(internal)
        bound = await self._replication.start(settings.replication_listen or f"{internal_host}:0", make_peer_context)
        self.replication_address = bound
        live.replication_address = settings.replication_advertised_address or _at_host_of(live.internal_address, bound)

    async def _start_internal(self, host: str) -> str:
        """Listen for brokers and coordinators; return the bound address."""
        settings, tls = self._settings, self._process.tls
        credentials = None if tls.internal is None else tls.internal.server_credentials("required")
        return await self._internal.start(settings.internal_listen or f"{host}:0", credentials)

    async def stop(self, grace_seconds: float = STOP_GRACE_SECONDS) -> None:
        """Accept no new calls, and wait at most `grace_seconds` for calls in progress."""
        stopping = [self.clients.stop(grace_seconds)]
        if not self._is_alone:
            stopping.append(self._internal.stop(grace_seconds))
        if self._replication is not None:
            stopping.append(self._replication.stop(grace_seconds))
        if self._native is not None:
            stopping.append(self._native.stop(grace_seconds))
        await asyncio.gather(*stopping)


def _at_host_of(published: str, bound: str) -> str:
    """Return the port of `bound` at the host of a published address."""
    return f"{split_address(published)[0]}:{split_address(bound)[1]}"


def _places(settings: BrokerSettings) -> PlaceLimits:
    return PlaceLimits(clients=(settings.max_concurrent_calls, settings.max_calls_per_peer))
