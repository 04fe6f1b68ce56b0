"""What a broker answers before its logs are recovered."""

from types import SimpleNamespace

import pytest
from headrace.wire.errors import FencedBrokerError, Outcome, ShuttingDownError
from headrace_broker.metrics import BrokerMetrics
from headrace_broker.rpc.service import BrokerService
from prometheus_client import CollectorRegistry


def test_calls_are_refused_until_the_logs_are_recovered():
    """Definitely not done, and worth another try: clients that come early wait and lose nothing."""
    settings = SimpleNamespace(max_waiting_fetches=1, max_inflight_bytes=1, fence_on_lease_loss=False)
    services = SimpleNamespace(settings=settings, metrics=BrokerMetrics(CollectorRegistry()))
    registration = SimpleNamespace(session=None)
    service = BrokerService(None, None, None, registration, suspicions=None, services=services, tasks=None)
    with pytest.raises(FencedBrokerError, match="recovers its logs") as early:
        service.check_serving()
    assert (early.value.outcome, early.value.retriable) == (Outcome.NOT_APPLIED, True)
    service.begin_serving()
    service.check_serving()
    service.begin_stop()
    with pytest.raises(ShuttingDownError):
        service.check_serving()
