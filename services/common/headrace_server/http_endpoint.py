"""HTTP endpoint of a service for metrics and health probes, on its own thread and event loop.

`/metrics` has a bounded number of series, `/metrics/detail` one or more per partition. `/health/startup`,
`/health/liveness` and `/health/readiness` return 200 or 503 with the reason in a line of JSON, from the start of the
process on, also while the service's event loop is blocked. A scrape costs the service only the time for which it holds
the GIL (docs/decisions/0043-use-own-threads-for-health-and-metrics.md).

Metrics are served as `MetricsAccess` decides, over TLS if there is a context. Health needs no identity, and
supervisors restart the process by it. Therefore a connection must send its whole request head within `HEAD_SECONDS`;
the number of connections without a complete head is limited per peer and in total, and a new one replaces the oldest.
Health is answered on the loop, pages of metrics by a few threads, so that health never waits for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import prometheus_client
import structlog
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from headrace_server.health import HEALTH_NAMES, Health, HealthCause
from headrace_server.identity.certificate_names import in_order, names_of
from headrace_server.metrics_access import MetricsAccess, PageRefusal
from headrace_server.places import caller
from headrace_server.rpc import AddressInUseError
from headrace_server.settings import split_address

log = structlog.get_logger(__name__)

HEAD_SECONDS = 5.0
"""Timeout of a whole request head."""
HEAD_BYTES = 16 << 10
MAX_HEADS = 256
"""Maximum connections with an incomplete head; a new one replaces the oldest."""
MAX_HEADS_OF_PEER = 16
MAX_PAGES = 16
"""Maximum pages of metrics that are rendered or sent at once; further requests get 503."""
MAX_PAGES_OF_PEER = 4
PAGE_THREADS = 2
SEND_SECONDS = 10.0
"""Timeout of a whole response."""

MakeContext = Callable[[], ssl.SSLContext] | None
WsgiApp = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class DetailCollector(Collector):
    """Families of `/metrics/detail`, from `source`, which may be set later. Thread-safe."""

    def __init__(self) -> None:
        self.source: Callable[[], Iterator[Metric]] | None = None

    def collect(self) -> Iterator[Metric]:
        """Yield the families, for the registry."""
        if self.source is not None:
            yield from self.source()


@dataclass(slots=True)
class _Answer:
    """HTTP response."""

    status: str
    headers: list[tuple[str, str]]
    body: bytes

    def head(self) -> bytes:
        lines = [f"HTTP/1.1 {self.status}", *(f"{name}: {value}" for name, value in self.headers)]
        lines += [f"Content-Length: {len(self.body)}", "Connection: close", "", ""]
        return "\r\n".join(lines).encode("latin-1")


class _BadHeadError(Exception):
    """The head is not a supported HTTP request."""


def _read_head(head: bytes) -> dict[str, Any]:
    """Return the WSGI environment of a request head, with the keys that the pages use."""
    request, *lines = head.decode("latin-1").split("\r\n")
    try:
        method, target, _ = request.split(" ")
    except ValueError:
        raise _BadHeadError from None
    path, _, query = target.partition("?")
    environ: dict[str, Any] = {"REQUEST_METHOD": method, "PATH_INFO": path, "QUERY_STRING": query}
    for line in lines:
        name, colon, value = line.partition(":")
        if colon and name.lower() in ("accept", "accept-encoding", "authorization"):
            environ["HTTP_" + name.upper().replace("-", "_")] = value.strip()
    return environ


class _Server:
    """Connections of the endpoint. Belongs to the endpoint's event loop."""

    def __init__(self, pages: dict[str, WsgiApp], health: Health, access: MetricsAccess, context: MakeContext) -> None:
        self._pages = pages
        self._access = access
        self._context = context
        self._health = {f"/health/{name}": name for name in HEALTH_NAMES}
        self._causes = health.causes
        self._heads: dict[asyncio.StreamWriter, str] = {}  # by age
        self._heads_of: Counter[str] = Counter()
        self._pages_of: Counter[str] = Counter()
        self._threads = ThreadPoolExecutor(PAGE_THREADS, thread_name_prefix="http-page")
        self._tasks: set[asyncio.Task[None]] = set()

    def connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection; callback of `asyncio.start_server`."""
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Close all connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = caller(str((writer.get_extra_info("peername") or ("",))[0]))
        try:
            environ = await self._read(reader, writer, peer)
            async with asyncio.timeout(SEND_SECONDS):
                answer = await self._answer(environ, peer, certified_names(writer))
                writer.write(answer.head())
                if environ["REQUEST_METHOD"] != "HEAD":
                    writer.write(answer.body)
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError, EOFError, asyncio.LimitOverrunError, _BadHeadError):
            pass  # The caller disconnected, is too slow, or does not send HTTP.
        except Exception:
            log.exception("http_request_failed")
        finally:
            writer.transport.abort()

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: str) -> dict[str, Any]:
        """Read a request head; the number of connections that do so is limited."""
        if self._heads_of[peer] >= MAX_HEADS_OF_PEER:
            self._end_oldest(peer)
        elif len(self._heads) >= MAX_HEADS:
            self._end_oldest(None)
        self._heads[writer] = peer
        self._heads_of[peer] += 1
        try:
            async with asyncio.timeout(HEAD_SECONDS):
                if self._context is not None:
                    await writer.start_tls(self._context())
                return _read_head(await reader.readuntil(b"\r\n\r\n"))
        finally:
            self._forget_head(writer)

    def _end_oldest(self, peer: str | None) -> None:
        oldest = next(writer for writer, of_peer in self._heads.items() if peer in (None, of_peer))
        self._forget_head(oldest)
        oldest.transport.abort()

    def _forget_head(self, writer: asyncio.StreamWriter) -> None:
        peer = self._heads.pop(writer, None)
        if peer is not None:
            self._heads_of[peer] -= 1
            if not self._heads_of[peer]:
                del self._heads_of[peer]

    async def _answer(self, environ: dict[str, Any], peer: str, names: Sequence[str]) -> _Answer:
        path = environ["PATH_INFO"].rstrip("/")
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            return _text("405 Method Not Allowed", "GET or HEAD\n")
        if path in self._health:
            return _describe_health(self._health[path], self._causes(self._health[path]))
        app = self._pages.get(path)
        if app is None:
            return _text("404 Not Found", "".join(f"{known}\n" for known in (*self._pages, *self._health)))
        if self._pages_of.total() >= MAX_PAGES or self._pages_of[peer] >= MAX_PAGES_OF_PEER:
            return _text("503 Service Unavailable", "too many pages of metrics are asked for at once\n")
        self._pages_of[peer] += 1
        try:
            refused = await self._access.refusal(_bearer_token(environ), names, peer)
            if refused is not None:
                return _refuse(refused)
            return await asyncio.get_running_loop().run_in_executor(self._threads, _run, app, environ)
        finally:
            self._pages_of[peer] -= 1
            if not self._pages_of[peer]:
                del self._pages_of[peer]


@dataclass(frozen=True, slots=True)
class HttpEndpoint:
    """Running endpoint."""

    address: str
    """Bound host:port."""
    _loop: asyncio.AbstractEventLoop
    _stopping: asyncio.Event
    _thread: threading.Thread

    def stop(self) -> None:
        """Close the port and end the thread."""
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()


def serve_http(
    listen: str,
    *,
    registry: CollectorRegistry,
    detail: Collector,
    health: Health,
    access: MetricsAccess,
    context: MakeContext = None,
) -> HttpEndpoint:
    """Serve HTTP on `host:port` (port 0: the kernel chooses); see the module.

    Args:
        access: decides about each page of metrics.
        context: returns the TLS context of a new connection, from the endpoint's thread; `None` means plain text.

    Raises:
        AddressInUseError: If the address is in use, not local, or malformed.
    """
    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
    detail_registry = CollectorRegistry()
    detail_registry.register(detail)
    pages: dict[str, WsgiApp] = {
        "/metrics": prometheus_client.make_wsgi_app(registry),
        "/metrics/detail": prometheus_client.make_wsgi_app(detail_registry),
    }
    listener = bind_http("metrics_listen", listen)
    bound = listener.getsockname()[1]
    loop, stopping = asyncio.new_event_loop(), asyncio.Event()
    thread = threading.Thread(
        target=_run_loop,
        args=(loop, stopping, listener, lambda: _Server(pages, health, access, context)),
        name="http",
        daemon=True,
    )
    thread.start()
    return HttpEndpoint(f"{split_address(listen)[0]}:{bound}", loop, stopping, thread)


def bind_http(setting: str, listen: str) -> socket.socket:
    """Return a socket that listens on the `host:port` of a setting.

    Raises:
        AddressInUseError: If the address is in use, not local, or malformed.
    """
    host, port = split_address(listen)
    try:
        family, _, _, _, address = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
        return socket.create_server((str(address[0]), int(address[1])), family=family, backlog=128)
    except OSError as error:
        raise AddressInUseError(
            f"cannot listen on {listen}, which is {setting}: {error.strerror or error}",
            action=f"Choose another {setting}, or stop what holds this one.",
        ) from error


def _run_loop(
    loop: asyncio.AbstractEventLoop,
    stopping: asyncio.Event,
    listener: socket.socket,
    make_server: Callable[[], _Server],
) -> None:
    async def run() -> None:
        endpoint = make_server()
        server = await asyncio.start_server(endpoint.connect, sock=listener, limit=HEAD_BYTES)
        await stopping.wait()
        server.close()
        await endpoint.close()

    with contextlib.closing(loop):
        loop.run_until_complete(run())


def _run(app: WsgiApp, environ: dict[str, Any]) -> _Answer:
    answer = _Answer("500 Internal Server Error", [], b"")

    def start_response(status: str, headers: list[tuple[str, str]], _error: object = None) -> None:
        answer.status, answer.headers = status, headers

    answer.body = b"".join(app(environ, start_response))
    return answer


def _bearer_token(environ: dict[str, Any]) -> str:
    """Return the token in a request's `Authorization` (RFC 6750); empty if it has none."""
    scheme, _, token = str(environ.get("HTTP_AUTHORIZATION", "")).partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def certified_names(writer: asyncio.StreamWriter) -> list[str]:
    """Return the names in the verified certificate of a connection, as `calls.certified_names`."""
    return in_order(*names_of(writer.get_extra_info("peercert")))


def _refuse(refused: PageRefusal) -> _Answer:
    answer = _text(refused.status, f"{refused.reason}\n")
    if refused.status.startswith("401"):
        answer.headers.append(("WWW-Authenticate", 'Bearer realm="headrace"'))
    return answer


def _text(status: str, text: str) -> _Answer:
    return _Answer(status, [("Content-Type", "text/plain; charset=utf-8")], text.encode())


def _describe_health(name: str, causes: tuple[HealthCause, ...]) -> _Answer:
    described = [{"reason": cause.reason, "action": cause.action} for cause in causes]
    body = json.dumps({"name": name, "serving": not causes, "causes": described}).encode() + b"\n"
    status = "503 Service Unavailable" if causes else "200 OK"
    return _Answer(status, [("Content-Type", "application/json"), ("Cache-Control", "no-store")], body)
