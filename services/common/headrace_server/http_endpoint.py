"""What a service answers over HTTP, from threads of its own: Prometheus' scrapes and a supervisor's questions.

`/metrics` has a fixed number of series; `/metrics/detail` one or more a partition. `/health/startup`,
`/health/liveness` and `/health/readiness` answer 200 or 503 and say why in a line of JSON, from the first moment of the
process on, also while its event loop stands still. A scrape costs the event loop only what it holds the interpreter's
lock for (docs/decisions/0160-metrics-in-two-pages.md).
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import prometheus_client
import structlog
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from headrace_server.health import HEALTH_NAMES, Health
from headrace_server.rpc import AddressInUseError, split_address

log = structlog.get_logger(__name__)

MAX_CONNECTIONS = 16
"""Answered at once; more are closed unanswered."""
CONNECTION_SECONDS = 10.0
"""A caller that sends or takes nothing for so long is left."""

WsgiApp = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class DetailCollector(Collector):
    """What `/metrics/detail` says; `source` can be put in once there is something to say. Any thread."""

    def __init__(self) -> None:
        self.source: Callable[[], Iterator[Metric]] | None = None

    def collect(self) -> Iterator[Metric]:
        """For the registry."""
        if self.source is not None:
            yield from self.source()


class _Handler(WSGIRequestHandler):
    timeout = CONNECTION_SECONDS

    def log_message(self, format: str, *args: object) -> None:
        """Scrapes and probes are not worth a line."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], family: socket.AddressFamily) -> None:
        self.address_family = family
        self._room = threading.BoundedSemaphore(MAX_CONNECTIONS)
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """As the base, without asking a name server who we are."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        """In a thread, where there are not too many."""
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Of that thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A caller that went away, as a rule."""
        log.debug("http_request_failed", exc_info=True)


@dataclass(frozen=True, slots=True)
class HttpEndpoint:
    """The endpoint while it runs."""

    address: str
    """host:port as bound."""
    _server: _Server
    _thread: threading.Thread

    def stop(self) -> None:
        """Close the port and end the thread."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def serve_http(listen: str, *, registry: CollectorRegistry, detail: Collector, health: Health) -> HttpEndpoint:
    """Answer on `host:port` (port 0: the kernel chooses), as the module says.

    Raises:
        AddressInUseError: the address is taken, not ours, or malformed.
    """
    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
    host, port = split_address(listen)
    detail_registry = CollectorRegistry()
    detail_registry.register(detail)
    routes: dict[str, WsgiApp] = {
        "/metrics": prometheus_client.make_wsgi_app(registry),
        "/metrics/detail": prometheus_client.make_wsgi_app(detail_registry),
    }
    routes |= {f"/health/{name}": _health_app(name, health) for name in HEALTH_NAMES}
    try:
        family, _, _, _, address = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
        server = _Server((str(address[0]), int(address[1])), family)
    except OSError as error:
        raise AddressInUseError(
            f"cannot serve metrics on {listen}: {error.strerror or error}",
            action="Choose another metrics_listen, or stop what holds this one.",
        ) from error
    server.set_app(lambda environ, start_response: _route(routes, environ, start_response))
    thread = threading.Thread(target=server.serve_forever, name="http", daemon=True)
    thread.start()
    return HttpEndpoint(f"{host}:{server.server_port}", server, thread)


def _route(routes: dict[str, WsgiApp], environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    app = routes.get(environ["PATH_INFO"].rstrip("/"))
    if app is not None:
        return app(environ, start_response)
    start_response("404 Not Found", [("Content-Type", "text/plain; charset=utf-8")])
    return ["".join(f"{path}\n" for path in routes).encode()]


def _health_app(name: str, health: Health) -> WsgiApp:
    def answer(_environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        reasons = health.reasons(name)
        status = "503 Service Unavailable" if reasons else "200 OK"
        start_response(status, [("Content-Type", "application/json"), ("Cache-Control", "no-store")])
        return [json.dumps({"name": name, "serving": not reasons, "reasons": reasons}).encode() + b"\n"]

    return answer
