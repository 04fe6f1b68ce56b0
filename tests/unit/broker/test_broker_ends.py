"""How a broker ends: by a stop while it starts, and by a failure while a thread hangs."""

import asyncio
import threading

import pytest
from headrace.log.directory import DataDirectory
from headrace.wire.errors import MetastoreUnavailableError
from headrace_broker import app
from headrace_broker.metrics import BrokerMetrics
from headrace_broker.runtime.directory_calls import DirectoryCalls
from headrace_broker.settings import BrokerSettings
from headrace_server.cluster_identity import read_or_create
from headrace_server.event_loop_watchdog import LoopLagSampler
from headrace_server.health import Health, HealthCause
from headrace_server.http_endpoint import DetailCollector
from headrace_server.lifecycle import StopRequest
from headrace_server.metrics_access import MetricsAccess
from headrace_server.observability import Observability
from headrace_server.service_process import ServiceProcess
from headrace_server.tls import ServiceTls
from prometheus_client import CollectorRegistry

from tests.fakes.memory_metastore import MemoryLeaseRenewer, MemoryMetastore

SECONDS = 20


def make_broker(metastore, path):
    """Return the arguments of `app.serve_in` but for the stop."""
    metrics = BrokerMetrics(CollectorRegistry())
    settings = BrokerSettings(broker_id=1, data_dir=str(path), listen="127.0.0.1:0", insecure=True)
    observability = Observability(
        Health(), DetailCollector(), LoopLagSampler([metrics.common]), MetricsAccess(is_closed=False), ""
    )
    process = ServiceProcess("broker-1", settings, metrics.common, observability, ServiceTls(), metastore)
    return process, settings, metrics


async def test_a_stop_while_a_broker_reads_the_metadata_is_a_clean_one(tmp_path):
    """It does not take the metadata that it has not read for that of a restored etcd (H81)."""
    stop = StopRequest()

    class Away(MemoryMetastore):
        async def range(self, prefix):
            stop.set("SIGTERM")
            raise MetastoreUnavailableError("no answer")

    metastore = Away()
    process, settings, metrics = make_broker(metastore, tmp_path)
    identity = await read_or_create(metastore, settings.cluster, "id")
    directory = DataDirectory.open(
        str(tmp_path), cluster_id="id", generation=identity.generation, broker_id=1, new_storage_id=bytes(16)
    )
    directory.seen.note(7, {})
    directory.close(clean=True)
    await app.serve_in(process, settings, metrics, stop)
    assert stop.is_set()


@pytest.mark.parametrize("hangs", ["a task", "the close"])
async def test_a_broker_that_fails_leaves_the_cluster_though_a_thread_hangs(monkeypatch, tmp_path, hangs):
    """It renews its lease no more and accepts no calls, so that others lead; its process has a deadline."""
    stop, abandoned, hung, opened = StopRequest(), asyncio.Event(), asyncio.Event(), threading.Event()
    loop, close = asyncio.get_running_loop(), DataDirectory.close

    class Renewer(MemoryLeaseRenewer):
        def close(self):
            super().close()
            abandoned.set()

    class Metastore(MemoryMetastore):
        def make_renewer(self):
            return Renewer(self, asyncio.get_running_loop())

    def hang():
        loop.call_soon_threadsafe(hung.set)
        assert opened.wait(SECONDS)

    def close_late(directory, **state):
        hang()
        close(directory, **state)

    async def hang_in_a_thread(_replica_manager, context):
        await DirectoryCalls(context.executor).run(hang)

    async def fail(_view):
        if hangs == "a task":
            await hung.wait()
        raise ZeroDivisionError

    monkeypatch.setattr(app, "watch_generation", fail)
    if hangs == "a task":
        monkeypatch.setattr(app, "scrub", hang_in_a_thread)
    else:
        monkeypatch.setattr(DataDirectory, "close", close_late)
    process, settings, metrics = make_broker(Metastore(), tmp_path)
    health, closed = process.observability.health, asyncio.Event()
    health.subscribe(lambda: HealthCause.STOPPING in health.causes("readiness") and closed.set())
    serving = asyncio.create_task(app.serve_in(process, settings, metrics, stop))
    try:
        async with asyncio.timeout(SECONDS / 4):
            await hung.wait()
            await abandoned.wait()
            await stop.requested()
            await closed.wait()
        assert not serving.done()
    finally:
        opened.set()
        with pytest.raises(ExceptionGroup):
            await serving
