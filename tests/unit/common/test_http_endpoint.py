"""What a service answers over HTTP: metrics in two pages, three kinds of health."""

import json
import socket
import ssl
import threading
import urllib.error
import urllib.request
from contextlib import closing, suppress

import pytest
from headrace_devcluster.certificates import Authority
from headrace_server.health import Health, HealthCause
from headrace_server.http_endpoint import MAX_HEADS_OF_PEER, MAX_PAGES_OF_PEER, DetailCollector, serve_http
from headrace_server.metrics_access import PageRefusal
from headrace_server.rpc import AddressInUseError
from headrace_server.tls import TlsIdentity
from headrace_server.tls_settings import TlsFiles
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.metrics_core import GaugeMetricFamily


class OpenAccess:
    """Serves metrics to every caller."""

    async def refusal(self, token, names, address):
        return None


@pytest.fixture
def parts():
    """A running endpoint with its health and its detail."""
    registry = CollectorRegistry()
    Counter("headrace_x_things", "Things", registry=registry).inc(3)
    health, detail = Health(), DetailCollector()
    endpoint = serve_http("127.0.0.1:0", registry=registry, detail=detail, health=health, access=OpenAccess())
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


def test_health_has_its_causes_and_their_next_steps(parts):
    """200 or 503, with the causes; an unknown path names those that there are."""
    endpoint, health, _ = parts
    assert ask(endpoint, "/health/liveness")[0] == 200
    status, body = ask(endpoint, "/health/readiness")
    described = {"reason": HealthCause.STARTING.reason, "action": HealthCause.STARTING.action}
    assert status == 503
    assert json.loads(body) == {"name": "readiness", "serving": False, "causes": [described]}
    health.release(HealthCause.STARTING)
    assert ask(endpoint, "/health/startup")[0] == ask(endpoint, "/health/readiness")[0] == 200
    health.hold(HealthCause.STOPPING)
    assert ask(endpoint, "/health/readiness")[0] == 503
    status, body = ask(endpoint, "/healthy")
    assert status == 404
    assert "/health/readiness" in body.splitlines()


def connect(endpoint):
    host, _, port = endpoint.address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=30)


def test_silent_connections_make_room_for_a_probe(parts, monkeypatch):
    """F9: callers that send no request take each other's places, and health is answered despite any number of them."""
    endpoint, _, _ = parts
    monkeypatch.setattr("headrace_server.http_endpoint.HEAD_SECONDS", 600)
    idle = [connect(endpoint) for _ in range(MAX_HEADS_OF_PEER * 4)]
    try:
        for _ in range(20):
            assert ask(endpoint, "/health/liveness")[0] == 200
        assert idle[0].recv(1) == b""
        assert ask(endpoint, "/metrics")[0] == 200
    finally:
        for each in idle:
            each.close()


def test_a_head_that_trickles_is_cut_off(parts, monkeypatch):
    """F9: the limit is on the whole head, and a byte now and then does not extend it."""
    endpoint, _, _ = parts
    monkeypatch.setattr("headrace_server.http_endpoint.HEAD_SECONDS", 0.2)
    with closing(connect(endpoint)) as slow, pytest.raises(ConnectionError):
        slow.settimeout(0.02)
        for _ in range(500):
            slow.sendall(b"x")
            with suppress(TimeoutError):
                if slow.recv(1) == b"":
                    raise ConnectionResetError


@pytest.mark.parametrize("head", [b"\r\n\r\n", b"GET /\r\n\r\n", bytes(40_000), b"\x16\x03\x01\r\n\r\n"])
def test_what_is_no_request_is_closed(parts, head):
    """Junk and heads that are too long end their connection and nothing else."""
    endpoint, _, _ = parts
    with closing(connect(endpoint)) as junk, suppress(ConnectionResetError):
        junk.sendall(head)
        assert junk.recv(1) == b""
    assert ask(endpoint, "/health/liveness")[0] == 200


def test_pages_of_metrics_are_bounded_and_health_does_not_wait_for_them(parts):
    """F9: while one caller's pages are made, its next ones are refused, and health is answered."""
    endpoint, _, detail = parts
    gate, making = threading.Event(), threading.Event()

    def stuck():
        making.set()
        gate.wait(60)
        return iter(())

    detail.source = stuck
    slow = [connect(endpoint) for _ in range(MAX_PAGES_OF_PEER)]
    try:
        for each in slow:
            each.sendall(b"GET /metrics/detail HTTP/1.1\r\n\r\n")
        assert making.wait(60)
        while ask(endpoint, "/health/liveness")[0] == 200 and ask(endpoint, "/metrics/nothing")[0] == 404:
            with closing(connect(endpoint)) as more:
                more.sendall(b"GET /metrics/detail HTTP/1.1\r\n\r\n")
                more.settimeout(0.1)
                with suppress(TimeoutError):
                    assert more.recv(12) == b"HTTP/1.1 503"
                    break
        assert ask(endpoint, "/health/liveness")[0] == 200
    finally:
        gate.set()
        for each in slow:
            each.close()


def test_a_taken_address_is_one_clear_error(parts):
    """It names the setting."""
    endpoint, health, detail = parts
    with pytest.raises(AddressInUseError, match="metrics_listen"):
        serve_http(endpoint.address, registry=CollectorRegistry(), detail=detail, health=health, access=OpenAccess())


class SecretAccess:
    """Serves metrics to who has a token or a certificate; notes what it was asked."""

    def __init__(self):
        self.asked = []

    async def refusal(self, token, names, address):
        self.asked.append((token, list(names), address))
        return None if token == "right" or "monitor" in names else PageRefusal("401 Unauthorized", "no identity")


@pytest.mark.parametrize("path", ["/metrics", "/metrics/detail"])
def test_pages_of_metrics_need_an_identity_and_health_does_not(path):
    """The token of `Authorization` decides; a refusal says how to authenticate (RFC 6750) and has no metrics."""
    registry, access = CollectorRegistry(), SecretAccess()
    Counter("headrace_x_things", "Things", registry=registry)
    endpoint = serve_http("127.0.0.1:0", registry=registry, detail=DetailCollector(), health=Health(), access=access)
    try:
        for header, status in (
            (None, 401),
            ("Bearer wrong", 401),
            ("Basic right", 401),
            ("Bearer", 401),
            ("bearer  right", 200),
            ("Bearer right", 200),
        ):
            request = urllib.request.Request(f"http://{endpoint.address}{path}")
            if header is not None:
                request.add_header("Authorization", header)
            if status == 200:
                with urllib.request.urlopen(request, timeout=10) as answer:
                    assert answer.status == status
            else:
                with pytest.raises(urllib.error.HTTPError) as refused:
                    urllib.request.urlopen(request, timeout=10)
                with refused.value as answer:
                    assert answer.code == status, header
                    assert answer.headers["WWW-Authenticate"] == 'Bearer realm="headrace"'
                    assert "headrace_x" not in answer.read().decode()
        assert ask(endpoint, "/health/liveness")[0] == 200
        assert len(access.asked) == 6
    finally:
        endpoint.stop()


def test_metrics_are_served_over_tls_by_the_certificate_in_force(tmp_path):
    """A renewed certificate counts for the next connection, a client's one identifies it, and plain text ends."""
    authority = Authority(tmp_path, "services")
    own = authority.issue("broker")
    identity = TlsIdentity("clients", TlsFiles(str(own.cert_file), str(own.key_file), str(own.ca_file)))
    endpoint = serve_http(
        "127.0.0.1:0",
        registry=CollectorRegistry(),
        detail=DetailCollector(),
        health=Health(),
        access=SecretAccess(),
        context=lambda: identity.server_context("none"),
    )
    client = ssl.create_default_context(cafile=str(own.ca_file))

    def ask_tls(path):
        with urllib.request.urlopen(f"https://{endpoint.address}{path}", timeout=10, context=client) as answer:
            return answer.status

    def serial():
        host, _, port = endpoint.address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=10) as plain:
            with client.wrap_socket(plain, server_hostname="127.0.0.1") as wrapped:
                return wrapped.getpeercert()["serialNumber"]

    try:
        assert ask_tls("/health/liveness") == 200
        with pytest.raises(urllib.error.HTTPError, match="401") as refused:
            ask_tls("/metrics")
        refused.value.close()
        before = serial()
        authority.issue("broker")
        identity.look()
        assert serial() != before
        monitor = authority.issue("monitor")
        client.load_cert_chain(monitor.cert_file, monitor.key_file)
        assert ask_tls("/metrics") == 200
        with closing(connect(endpoint)) as plain, suppress(ConnectionResetError):
            plain.sendall(b"GET /health/liveness HTTP/1.1\r\n\r\n")
            assert b"HTTP" not in plain.recv(100)
    finally:
        endpoint.stop()
