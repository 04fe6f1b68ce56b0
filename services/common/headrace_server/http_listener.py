"""HTTP/1.1 listener with bodies and persistent connections, on the event loop of the process; llhttp parses.

The connections of strangers cost a bounded amount: a head and a body must arrive whole within `ARRIVAL_SECONDS`, an
idle connection is closed after `IDLE_SECONDS`, and the number of connections, and of bytes of bodies, is limited per
peer and in total. A new connection replaces the oldest that waits for a request; one whose request is served is never
replaced.

Metrics and health have an endpoint of their own (`http_endpoint`), which answers while this event loop is blocked.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Any

import httptools
import structlog

from headrace_server.http_endpoint import bind_http, certified_names
from headrace_server.places import caller
from headrace_server.settings import split_address

log = structlog.get_logger(__name__)

HEAD_BYTES = 32 << 10
ARRIVAL_SECONDS = 10.0
"""Timeout of a TLS handshake, and of a whole request."""
IDLE_SECONDS = 75.0
"""Time for which a connection may be idle between two requests."""
SEND_SECONDS = 10.0
"""Timeout of a whole response."""
DISCARD_SECONDS = 2.0
DISCARD_BYTES = 16 << 20
"""Time and bytes for which the rest of a refused body is read."""
MAX_CONNECTIONS = 512
MAX_CONNECTIONS_OF_PEER = 128
MAX_BODIES_BYTES = 32 << 20
"""Bodies of all requests that arrive or are served; those of one peer have a quarter."""
_READ_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """Whole request."""

    method: str
    target: str
    """Path and query, as sent."""
    headers: Mapping[str, str]
    """By name in lower case; of repeated ones the last."""
    body: bytes
    peer: str
    """See `places.caller`."""
    certificate_names: Sequence[str]
    """Names in the verified certificate of the connection; the common name is first."""

    def invocation_metadata(self) -> Iterable[tuple[str, str]]:
        """Return the headers, as gRPC's context of a call has its metadata."""
        return self.headers.items()


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """Whole response."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    delay_seconds: float = 0.0
    """Time before it is sent; meanwhile the connection counts as one that waits for a request."""


Handler = Callable[[HttpRequest], Awaitable[HttpResponse]]


class _BadRequestError(Exception):
    """Request that is not handled, by its status and a sentence."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class _Bodies:
    """Bytes of bodies in memory, by peer."""

    def __init__(self) -> None:
        self._bytes_of: Counter[str] = Counter()

    def take(self, peer: str, size: int) -> None:
        """Count a part of a body.

        Raises:
            _BadRequestError: If there is no room for it now.
        """
        of_peer, total = self._bytes_of[peer] + size, self._bytes_of.total() + size
        if of_peer > MAX_BODIES_BYTES // 4 or total > MAX_BODIES_BYTES:
            raise _BadRequestError(HTTPStatus.SERVICE_UNAVAILABLE, "Too many bodies arrive at once. Send it again.")
        self._bytes_of[peer] = of_peer

    def give_back(self, peer: str, size: int) -> None:
        """Count what is not kept any more."""
        self._bytes_of[peer] -= size
        if not self._bytes_of[peer]:
            del self._bytes_of[peer]


class _Parser:
    """Parser of one connection, with the callbacks of httptools."""

    def __init__(self, max_body_bytes: int, take: Callable[[int], None]) -> None:
        """`take` counts the bytes of bodies, and raises if there is no room for more."""
        self._max_body_bytes = max_body_bytes
        self._take = take
        self.body_bytes = 0
        """What it has taken; its owner gives that back."""
        self._parser: Any = httptools.HttpRequestParser(self)
        self.complete: deque[tuple[str, str, dict[str, str], bytes, bool]] = deque()
        """Method, target, headers, body and whether the connection may stay, of each whole request."""
        self.is_expecting = False
        """Whether the caller waits for `100 Continue` before it sends the body."""
        self._head_bytes = 0
        self._begin()

    def feed(self, data: bytes) -> None:
        """Parse data.

        Raises:
            _BadRequestError: If it is no request, or one that is too large.
        """
        if not self._has_head:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            if isinstance(error.__context__, _BadRequestError):
                raise error.__context__ from None
            raise
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            raise _BadRequestError(HTTPStatus.BAD_REQUEST, "The request is not valid HTTP.") from None
        if not self._has_head and self._head_bytes > HEAD_BYTES:
            text = f"The head has more than {HEAD_BYTES} bytes."
            raise _BadRequestError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, text)

    def _begin(self) -> None:
        self._target = b""
        self._headers: dict[str, str] = {}
        self._body = bytearray()
        self._has_head = False

    def on_url(self, url: bytes) -> None:
        """Take a part of the target."""
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header."""
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """Check the size that the head names."""
        self._has_head = True
        self._head_bytes = 0
        self._check_size(int(self._headers.get("content-length", "0")))
        self.is_expecting = self._headers.get("expect", "").lower() == "100-continue"

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        self._take(len(body))
        self.body_bytes += len(body)
        self._body += body
        self._check_size(len(self._body))

    def on_message_complete(self) -> None:
        """Add the request to the whole ones."""
        method, keeps = self._parser.get_method().decode(), self._parser.should_keep_alive()
        self.complete.append((method, self._target.decode("latin-1"), self._headers, bytes(self._body), keeps))
        self.is_expecting = False
        self._begin()

    def _check_size(self, size: int) -> None:
        if size > self._max_body_bytes:
            text = f"The body has more than {self._max_body_bytes} bytes."
            raise _BadRequestError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, text)


class HttpListener:
    """See the module. `refuse` makes the response to a request that is not handled, from a status and a sentence."""

    def __init__(
        self,
        handle: Handler,
        refuse: Callable[[int, str], HttpResponse],
        *,
        max_body_bytes: int,
        context: Callable[[], ssl.SSLContext] | None,
    ) -> None:
        """`context` returns the TLS context of a new connection; `None` means plain text."""
        self._handle = handle
        self._refuse = refuse
        self._max_body_bytes = max_body_bytes
        self._context = context
        self._waiting: dict[asyncio.StreamWriter, str] = {}  # by age
        self._connections_of: Counter[str] = Counter()
        self._bodies = _Bodies()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self, setting: str, listen: str) -> str:
        """Listen on the `host:port` of a setting (port 0: the kernel chooses) and return the bound address.

        Raises:
            AddressInUseError: If the address is in use, not local, or malformed.
        """
        listener = bind_http(setting, listen)
        self._server = await asyncio.start_server(self._connect, sock=listener)
        return f"{split_address(listen)[0]}:{listener.getsockname()[1]}"

    async def stop(self, grace_seconds: float = 0.0) -> None:
        """Close the port and idle connections at once, others after `grace_seconds` at the latest."""
        if self._server is not None:
            self._server.close()
        for writer in list(self._waiting):
            writer.transport.abort()
        if self._tasks and grace_seconds:
            await asyncio.wait(self._tasks, timeout=grace_seconds)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = caller(str((writer.get_extra_info("peername") or ("",))[0]))
        if not self._take_place(peer):
            writer.transport.abort()
            return
        self._connections_of[peer] += 1
        parser = _Parser(self._max_body_bytes, partial(self._bodies.take, peer))
        try:
            self._waiting[writer] = peer
            if self._context is not None:
                async with asyncio.timeout(ARRIVAL_SECONDS):
                    await writer.start_tls(self._context())
            while await self._serve_one(parser, reader, writer, peer):
                pass
        except (OSError, TimeoutError):
            pass  # The caller disconnected, is too slow, or does not send HTTP.
        except Exception:
            log.exception("http_connection_failed")
        finally:
            self._waiting.pop(writer, None)
            self._bodies.give_back(peer, parser.body_bytes)
            self._connections_of[peer] -= 1
            if not self._connections_of[peer]:
                del self._connections_of[peer]
            writer.transport.abort()

    def _take_place(self, peer: str) -> bool:
        """Return whether a connection may be served; if there are too many, end the oldest waiting one."""
        if self._connections_of[peer] >= MAX_CONNECTIONS_OF_PEER:
            candidates = [writer for writer, of_peer in self._waiting.items() if of_peer == peer]
        elif self._connections_of.total() >= MAX_CONNECTIONS:
            candidates = list(self._waiting)
        else:
            return True
        if not candidates:
            return False
        self._waiting.pop(candidates[0])
        candidates[0].transport.abort()
        return True

    async def _serve_one(
        self, parser: _Parser, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: str
    ) -> bool:
        """Serve one request; return whether another one may follow on the connection."""
        self._waiting[writer] = peer
        try:
            if not await self._arrive(parser, reader, writer):
                return False
        except _BadRequestError as error:
            await _send(writer, self._refuse(error.status, error.message), keeps=False)
            await _discard(reader)
            return False
        self._waiting.pop(writer, None)
        method, target, headers, body, keeps = parser.complete.popleft()
        request = HttpRequest(method, target, headers, body, peer, certified_names(writer))
        response = await self._handle(request)
        if response.delay_seconds:
            self._waiting[writer] = peer
            await asyncio.sleep(response.delay_seconds)
        await _send(writer, response, keeps=keeps, has_body=method != "HEAD")
        self._bodies.give_back(peer, len(body))
        parser.body_bytes -= len(body)
        return keeps

    async def _arrive(self, parser: _Parser, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Wait until a request is whole; return False if the connection is closed instead."""
        if parser.complete:
            return True
        async with asyncio.timeout(IDLE_SECONDS):
            data = await reader.read(_READ_BYTES)
        async with asyncio.timeout(ARRIVAL_SECONDS):
            while data:
                parser.feed(data)
                if parser.complete:
                    return True
                if parser.is_expecting:
                    parser.is_expecting = False
                    writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                data = await reader.read(_READ_BYTES)
        return False


async def _send(writer: asyncio.StreamWriter, response: HttpResponse, *, keeps: bool, has_body: bool = True) -> None:
    lines = [f"HTTP/1.1 {response.status} {HTTPStatus(response.status).phrase}"]
    lines += [f"{name}: {value}" for name, value in response.headers.items()]
    lines += [f"Content-Length: {len(response.body)}", *([] if keeps else ["Connection: close"]), "", ""]
    writer.write("\r\n".join(lines).encode("latin-1") + (response.body if has_body else b""))
    async with asyncio.timeout(SEND_SECONDS):
        await writer.drain()


async def _discard(reader: asyncio.StreamReader) -> None:
    """Read the rest of a refused body for a while: to close at once may destroy the answer on its way."""
    async with asyncio.timeout(DISCARD_SECONDS):
        for _ in range(DISCARD_BYTES // _READ_BYTES):
            if not await reader.read(_READ_BYTES):
                return
