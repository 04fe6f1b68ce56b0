"""What a service answers over HTTP: metrics in two pages, three kinds of health."""

import json
import socket
import urllib.error
import urllib.request
from contextlib import closing

import pytest
from headrace_server.health import Health
from headrace_server.http_endpoint import MAX_CONNECTIONS, DetailCollector, serve_http
from headrace_server.rpc import AddressInUseError
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.metrics_core import GaugeMetricFamily


@pytest.fixture
def parts():
    """A running endpoint with its health and its detail."""
    registry = CollectorRegistry()
    Counter("headrace_x_things", "Things", registry=registry).inc(3)
    health, detail = Health(), DetailCollector()
    endpoint = serve_http("127.0.0.1:0", registry=registry, detail=detail, health=health)
    yield endpoint, health, detail
    endpoint.stop()


def ask(endpoint, path):
    """Status and body."""
    try:
        with urllib.request.urlopen(f"http://{endpoint.address}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_metrics_and_detail_are_two_pages(parts):
    """The detail is asked for at each scrape, and is empty before there is any."""
    endpoint, _, detail = parts
    status, body = ask(endpoint, "/metrics")
    assert (status, "headrace_x_things_total 3.0" in body, "_created" in body) == (200, True, False)
    assert ask(endpoint, "/metrics/detail") == (200, "")
    detail.source = lambda: iter([GaugeMetricFamily("headrace_x_part", "Part", value=4)])
    status, body = ask(endpoint, "/metrics/detail")
    assert (status, "headrace_x_part 4.0" in body, "things" in body) == (200, True, False)


def test_health_says_why(parts):
    """200 or 503, with the reasons; an unknown path names those that there are."""
    endpoint, health, _ = parts
    assert ask(endpoint, "/health/liveness")[0] == 200
    status, body = ask(endpoint, "/health/readiness")
    assert status == 503
    assert json.loads(body) == {"name": "readiness", "serving": False, "reasons": ["it is starting"]}
    health.start_is_over()
    assert ask(endpoint, "/health/startup")[0] == ask(endpoint, "/health/readiness")[0] == 200
    health.hold("readiness", "stopping", "it stops")
    assert ask(endpoint, "/health/readiness")[0] == 503
    status, body = ask(endpoint, "/healthy")
    assert status == 404
    assert "/health/readiness" in body.splitlines()


def test_connections_are_bounded(parts):
    """Callers that say nothing fill the room; one more is closed at once and not queued."""
    endpoint, _, _ = parts
    host, _, port = endpoint.address.rpartition(":")
    idle = [socket.create_connection((host, int(port)), timeout=10) for _ in range(MAX_CONNECTIONS)]
    try:
        with closing(socket.create_connection((host, int(port)), timeout=10)) as late:
            assert late.recv(1) == b""
    finally:
        for each in idle:
            each.close()


def test_a_taken_address_is_one_clear_error(parts):
    """It names the setting."""
    endpoint, health, detail = parts
    with pytest.raises(AddressInUseError, match="metrics_listen"):
        serve_http(endpoint.address, registry=CollectorRegistry(), detail=detail, health=health)
