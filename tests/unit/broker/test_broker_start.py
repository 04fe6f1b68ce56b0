"""When a broker takes calls at all: its logs are recovered, it does not stop, its lease may be trusted."""

from types import SimpleNamespace

import pytest
from headrace.log.directory import DataDirectory
from headrace.wire.errors import FencedBrokerError, MetastoreUnavailableError, Outcome, ShuttingDownError
from headrace_broker.app import serve_in
from headrace_broker.metrics import BrokerMetrics
from headrace_broker.rpc.service import BrokerService
from headrace_broker.settings import BrokerSettings
from headrace_server.cluster_identity import read_or_create
from headrace_server.health import Health
from headrace_server.lifecycle import StopRequest
from headrace_server.service_process import ServiceProcess
from prometheus_client import CollectorRegistry

from tests.fakes.memory_metastore import MemoryMetastore


def service_of(session, *, fences):
    settings = SimpleNamespace(max_waiting_fetches=1, max_inflight_bytes=1, fence_on_lease_loss=fences)
    context = SimpleNamespace(settings=settings, metrics=BrokerMetrics(CollectorRegistry()))
    registration = SimpleNamespace(session=session)
    return BrokerService(None, None, None, registration, failure_detector=None, partition_context=context, tasks=None)


def test_calls_are_refused_until_the_logs_are_recovered():
    """Definitely not done, and worth another try: clients that come early wait and lose nothing."""
    service = service_of(None, fences=False)
    with pytest.raises(FencedBrokerError, match="recovers its logs") as early:
        service.check_serving()
    assert (early.value.outcome, early.value.retriable) == (Outcome.NOT_APPLIED, True)
    service.begin_serving()
    service.check_serving()
    service.begin_stop()
    with pytest.raises(ShuttingDownError):
        service.check_serving()


def test_a_broker_that_may_be_deposed_answers_nobody_where_it_is_asked_to():
    """H28: with fence_on_lease_loss; a produce that was appended before is unknown."""
    keeper = SimpleNamespace(alive_now=lambda: False)
    service = service_of(SimpleNamespace(keeper=keeper), fences=True)
    service.begin_serving()
    with pytest.raises(FencedBrokerError) as fenced:
        service.check_serving()
    assert fenced.value.outcome is Outcome.NOT_APPLIED
    with pytest.raises(FencedBrokerError) as appended:
        service.check_lease(Outcome.UNKNOWN)
    assert appended.value.outcome is Outcome.UNKNOWN
    keeper.alive_now = lambda: True
    service.check_serving()


async def test_a_stop_while_a_broker_reads_the_metadata_is_a_clean_one(tmp_path):
    """It does not take the metadata that it has not read for that of a restored etcd (H81)."""
    stop = StopRequest()

    class Away(MemoryMetastore):
        async def range(self, prefix):
            stop.set("SIGTERM")
            raise MetastoreUnavailableError("no answer")

    metastore, metrics = Away(), BrokerMetrics(CollectorRegistry())
    settings = BrokerSettings(broker_id=1, data_dir=str(tmp_path), listen="127.0.0.1:0", insecure=True)
    identity = await read_or_create(metastore, settings.cluster, "id")
    directory = DataDirectory.open(
        str(tmp_path), cluster_id="id", generation=identity.generation, broker_id=1, new_storage_id=bytes(16)
    )
    directory.seen.note(7, {})
    directory.close(clean=True)
    observability = SimpleNamespace(
        health=Health(), access=SimpleNamespace(), sampler=SimpleNamespace(), detail=SimpleNamespace()
    )
    tls = SimpleNamespace(clients=None, internal=None)
    process = ServiceProcess("broker-1", settings, metrics.common, observability, tls, metastore)
    await serve_in(process, settings, metrics, stop)
    assert stop.is_set()
