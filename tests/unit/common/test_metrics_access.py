"""Who may read metrics: the right `describe` on the cluster, as the posture says; what happens before the cluster is
known, and while the event loop that decides is blocked."""

import asyncio
import threading
import time

import pytest
from headrace.v1 import auth_pb2
from headrace_server import metrics_access
from headrace_server.identity.api_keys import make_api_key, parse_api_key
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.keys import Keyspace
from headrace_server.metrics_access import MetricsAccess
from prometheus_client import CollectorRegistry

from tests.fakes.manual_clock import ManualClock
from tests.fakes.open_gate import gate_over
from tests.fakes.written_keys import WrittenKeys

KEYS = Keyspace("c", 1)


class Endpoint:
    """The endpoint's thread with its loop, which asks."""

    def __init__(self):
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()

    async def ask(self, access, token="", names=()):
        asked = asyncio.run_coroutine_threadsafe(access.refusal(token, names, "10.0.0.9"), self.loop)
        refused = await asyncio.wrap_future(asked)
        return None if refused is None else refused.status[:3]

    def close(self):
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


@pytest.fixture
def endpoint():
    found = Endpoint()
    yield found
    found.close()


class Users:
    """A gate with users."""

    def __init__(self, posture):
        self.keys = WrittenKeys()
        self.registry = CollectorRegistry()
        self.gate = gate_over(self.keys, ManualClock(), posture, self.registry)

    def user(self, name, role=None, resource="cluster"):
        text = make_api_key()
        parsed = parse_api_key(text)
        user = metadata_pb2.StoredUser(name=name)
        user.api_keys.add(key_id=parsed.key_id, sha256=parsed.sha256)
        self.keys.write({KEYS.user(name): user.SerializeToString()})
        if role:
            grant = auth_pb2.Grant(principal=name, role=role, resource=resource)
            self.keys.write({KEYS.grant(name, role, resource): grant.SerializeToString()})
        return text


async def test_metrics_need_describe_on_the_cluster(endpoint):
    """`monitor`, and what includes it; no other right. A deleted user counts at the next page."""
    users = Users(auth_pb2.POSTURE_REQUIRED)
    access = MetricsAccess(is_closed=True)
    access.gate = users.gate
    monitor = users.user("prometheus", "monitor")
    assert await endpoint.ask(access, monitor) is None
    assert await endpoint.ask(access, users.user("root", "admin")) is None
    assert await endpoint.ask(access, users.user("ada", "developer", "topic:orders")) == "403"
    assert await endpoint.ask(access, users.user("bob")) == "403"
    assert await endpoint.ask(access) == "401"
    assert await endpoint.ask(access, make_api_key()) == "401"
    labels = {"user": "anonymous", "method": metrics_access.METHOD}
    assert users.registry.get_sample_value("x_refused_calls_total", labels) > 0
    users.keys.write({KEYS.user("prometheus"): None})
    assert await endpoint.ask(access, monitor) == "401"


@pytest.mark.parametrize("posture", [auth_pb2.POSTURE_OPEN, auth_pb2.POSTURE_OBSERVE])
async def test_open_and_observe_serve_metrics(endpoint, posture):
    """`observe` counts what `required` would refuse."""
    users = Users(posture)
    access = MetricsAccess(is_closed=False)
    access.gate = users.gate
    assert await endpoint.ask(access) is None
    labels = {"user": "anonymous", "method": metrics_access.METHOD, "right": "identity"}
    observed = users.registry.get_sample_value("x_observed_refusals_total", labels)
    assert bool(observed) == (posture == auth_pb2.POSTURE_OBSERVE)


@pytest.mark.parametrize(("is_closed", "expected"), [(True, "503"), (False, None)])
async def test_before_the_cluster_is_known_the_setting_decides(endpoint, is_closed, expected):
    """With `posture = required` in the settings no page is served to callers that cannot be known yet."""
    assert await endpoint.ask(MetricsAccess(is_closed=is_closed)) == expected


async def test_a_reader_keeps_its_page_while_the_event_loop_is_blocked(endpoint, monkeypatch):
    """A stall is when metrics are needed: who was admitted before is served, others wait for the loop."""
    monkeypatch.setattr(metrics_access, "DECISION_SECONDS", 0.05)
    users = Users(auth_pb2.POSTURE_REQUIRED)
    access = MetricsAccess(is_closed=True)
    access.gate = users.gate
    monitor, other = users.user("prometheus", "monitor"), users.user("grafana", "monitor")
    while await endpoint.ask(access, monitor) is not None:  # 50 ms may be too short on a busy machine.
        pass
    asked = [
        asyncio.run_coroutine_threadsafe(access.refusal(token, (), "10.0.0.9"), endpoint.loop)
        for token in (monitor, other)
    ]
    deadline = time.monotonic() + 30
    while not all(each.done() for each in asked) and time.monotonic() < deadline:
        threading.Event().wait(0.01)  # The loop of this test is blocked.
    assert [each.result() for each in asked] == [None, metrics_access._BLOCKED]
