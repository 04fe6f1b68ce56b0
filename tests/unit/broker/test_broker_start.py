"""When a broker takes calls at all: its logs are recovered, it does not stop, its lease may be trusted."""

from types import SimpleNamespace

import pytest
from headrace.log.space import DiskUsage
from headrace.wire.errors import FencedBrokerError, Outcome, ShuttingDownError
from headrace_broker.app import BrokerServer
from headrace_broker.metrics import BrokerMetrics
from headrace_broker.rpc.service import BrokerService
from prometheus_client import CollectorRegistry


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


class Opened(Exception):
    """The first log is opened."""


async def test_the_space_is_measured_before_the_logs_are_recovered():
    """Which may take hours, in which nothing else looks at the disk."""
    metrics, usage = BrokerMetrics(CollectorRegistry()), DiskUsage(total_bytes=10, free_bytes=1, refusing=False)
    seen = []

    async def open_existing():
        seen.append(metrics.disk_space.usage)
        raise Opened

    server = BrokerServer(
        SimpleNamespace(),
        SimpleNamespace(observability=SimpleNamespace(health=None)),
        None,
        SimpleNamespace(check_space=lambda: usage),
        None,
        identity_source=None,
        gate=None,
        metrics=metrics,
        executor=None,
    )
    context = SimpleNamespace(executor=None, metrics=metrics)
    with pytest.raises(Opened):
        await server._recover(
            SimpleNamespace(context=context, replica_manager=SimpleNamespace(open_existing=open_existing))
        )
    server._flusher.close()
    server._inflation.close()
    server._records.close()
    assert seen == [usage]
