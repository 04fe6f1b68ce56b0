"""Metrics and health of a worker of mirrors over HTTP, in a thread of its own; extra `metrics`.

| path | answer |
| --- | --- |
| `/health/liveness`, `/health/readiness` | 200, or 503 while the event loop is blocked |
| any other | the metrics, in Prometheus' text format |

Health asks neither cluster: a restart would repair none of them, and no caller is routed to a worker.
"""

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

from headrace.client.mirror.metrics import MirrorCollector

HEALTH_PATHS = ("/health/liveness", "/health/readiness")
BEAT_SECONDS = 1.0
STALL_SECONDS = 30.0
"""Time without a beat of the event loop after which health answers 503."""


class MirrorEndpoint:
    """Endpoint of one process. Made and left on its event loop; requests are served by other threads."""

    def __init__(self, collector: MirrorCollector, monotonic: Callable[[], float] = time.monotonic) -> None:
        registry = CollectorRegistry()
        registry.register(collector)
        self._metrics = make_wsgi_app(registry)
        self._monotonic = monotonic
        self._beaten_at = monotonic()

    def beat(self) -> None:
        """Note that the event loop runs."""
        self._beaten_at = self._monotonic()

    def answer(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Answer one request (WSGI)."""
        if environ["PATH_INFO"] not in HEALTH_PATHS:
            answered: Iterable[bytes] = self._metrics(environ, start_response)
            return answered
        is_well = self._monotonic() - self._beaten_at < STALL_SECONDS
        start_response("200 OK" if is_well else "503 Service Unavailable", [("Content-Type", "text/plain")])
        return [b"ok\n" if is_well else b"the event loop is blocked\n"]

    @contextlib.asynccontextmanager
    async def serving(self, host: str, port: int) -> AsyncIterator[int]:
        """Serve while the block runs; `port` 0 means any. Yields the port.

        Raises:
            OSError: If the address cannot be bound.
        """
        server = _listening(host, port, self.answer)
        thread = threading.Thread(target=server.serve_forever, name="headrace-mirror-metrics", daemon=True)
        thread.start()
        beating = asyncio.create_task(self._beats())
        try:
            yield server.server_port
        finally:
            beating.cancel()
            await asyncio.to_thread(server.shutdown)
            server.server_close()

    async def _beats(self) -> None:
        while True:
            self.beat()
            await asyncio.sleep(BEAT_SECONDS)


def _listening(host: str, port: int, answer: Any) -> WSGIServer:
    (family, _, _, _, address), *_ = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)

    class Server(ThreadingMixIn, WSGIServer):
        address_family = family
        daemon_threads = True

    return make_server(str(address[0]), port, answer, Server, handler_class=_SilentHandler)


class _SilentHandler(WSGIRequestHandler):
    def log_message(self, format: str, *arguments: Any) -> None:
        """Write nothing: a scrape is no event."""
