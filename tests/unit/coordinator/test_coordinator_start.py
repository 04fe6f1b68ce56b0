"""A stop of a coordinator before it serves."""

import asyncio
from types import SimpleNamespace

import pytest
from headrace.wire.errors import MetastoreUnavailableError
from headrace_coordinator.app import serve_in
from headrace_coordinator.metrics import CoordinatorMetrics
from headrace_coordinator.settings import CoordinatorSettings
from headrace_server.client_front import ClientFront
from headrace_server.cluster_identity import read_or_create
from headrace_server.health import Health
from headrace_server.lifecycle import StopRequest
from headrace_server.rpc import RpcServer
from headrace_server.service_process import ServiceProcess
from prometheus_client import CollectorRegistry

from tests.fakes.memory_metastore import MemoryMetastore

SECONDS = 10


@pytest.fixture
def settings():
    return CoordinatorSettings(coordinator_id="a", listen="127.0.0.1:0", insecure=True)


def make_process(settings, metastore):
    observability = SimpleNamespace(
        health=Health(), access=SimpleNamespace(), sampler=SimpleNamespace(), detail=SimpleNamespace()
    )
    metrics = CoordinatorMetrics(CollectorRegistry())
    tls = SimpleNamespace(clients=None, internal=None)
    return ServiceProcess("coordinator-a", settings, metrics.common, observability, tls, metastore), metrics


async def test_a_stop_while_the_metadata_is_read_ends_the_wait_for_etcd(settings):
    stop = StopRequest()

    class Away(MemoryMetastore):
        async def range(self, prefix):
            stop.set("SIGTERM")
            raise MetastoreUnavailableError("no answer")

    process, metrics = make_process(settings, Away())
    async with asyncio.timeout(SECONDS):
        await serve_in(process, settings, metrics, stop)


async def test_a_coordinator_does_not_wait_for_the_listener_of_a_broker_that_has_ended(settings):
    """In a cluster in one process, the broker of which was stopped before it listened."""
    stop = StopRequest()

    class NeverStarted(RpcServer):
        async def listening(self):
            stop.set("SIGTERM")
            return await super().listening()

    metastore = MemoryMetastore()
    process, metrics = make_process(settings, metastore)
    source, gate = process.make_gate(await read_or_create(metastore, settings.cluster, "id"))
    front = ClientFront(NeverStarted(gate=gate), gate, source)
    async with asyncio.timeout(SECONDS):
        await serve_in(process, settings, metrics, stop, front)
    await front.server.stop(0)
