"""The HTTP listener: persistent connections, and bounds on what a caller costs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from headrace_server import http_listener
from headrace_server.http_listener import HttpListener, HttpRequest, HttpResponse

MAX_BODY_BYTES = 1_000


async def _echo(request: HttpRequest) -> HttpResponse:
    return HttpResponse(200, f"{request.method} {request.target} {len(request.body)}".encode())


def _refuse(status: int, message: str) -> HttpResponse:
    return HttpResponse(status, message.encode())


@contextlib.asynccontextmanager
async def _listening() -> AsyncIterator[tuple[str, int]]:
    listener = HttpListener(_echo, _refuse, max_body_bytes=MAX_BODY_BYTES, context=None)
    host, _, port = (await listener.start("some_listen", "127.0.0.1:0")).rpartition(":")
    try:
        yield host, int(port)
    finally:
        await listener.stop()


async def _answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    length = int(head.lower().partition("content-length: ")[2].partition("\r\n")[0])
    return int(head.split(" ")[1]), await reader.readexactly(length)


async def test_requests_share_a_connection() -> None:
    """Requests on one connection are answered in order, also those that are sent ahead."""
    async with _listening() as (host, port):
        reader, writer = await asyncio.open_connection(host, port)
        for _ in range(2):
            writer.write(
                b"GET /a?b=c HTTP/1.1\r\nHost: x\r\n\r\nPOST /d HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nxy"
            )
            assert await _answer(reader) == (200, b"GET /a?b=c 0")
            assert await _answer(reader) == (200, b"POST /d 2")
        writer.close()


async def test_chunked_body_and_expectation() -> None:
    async with _listening() as (host, port):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n")
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"3\r\nabc\r\n0\r\n\r\n")
        assert await _answer(reader) == (200, b"POST / 3")
        writer.close()


@pytest.mark.parametrize(
    "request_head",
    [b"Content-Length: 1001\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n3e9\r\n" + b"x" * 1_001 + b"\r\n0\r\n\r\n"],
)
async def test_body_beyond_the_limit_is_refused(request_head: bytes) -> None:
    async with _listening() as (host, port):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\n" + request_head)
        assert (await _answer(reader))[0] == 413
        assert await reader.read() == b""
        writer.close()


@pytest.mark.parametrize("data", [b"hello\r\n\r\n", b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"x" * 40_000])
async def test_what_is_no_request_is_refused(data: bytes) -> None:
    async with _listening() as (host, port):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(data)
        status, _ = await _answer(reader)
        assert status in (400, 431)
        assert await reader.read() == b""
        writer.close()


async def test_slow_request_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller that sends part of a request, or nothing, is disconnected."""
    monkeypatch.setattr(http_listener, "ARRIVAL_SECONDS", 0.05)
    monkeypatch.setattr(http_listener, "IDLE_SECONDS", 0.05)
    async with _listening() as (host, port):
        for part in (b"", b"GET / HTTP/1.1\r\n", b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nab"):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(part)
            with contextlib.suppress(ConnectionError):
                assert await asyncio.wait_for(reader.read(), 10) == b""
            writer.close()


async def test_new_connection_replaces_the_oldest_idle_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_listener, "MAX_CONNECTIONS_OF_PEER", 2)
    async with _listening() as (host, port):
        connections = []
        for _ in range(3):
            reader, writer = await asyncio.open_connection(host, port)
            connections.append((reader, writer))
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await _answer(reader))[0] == 200
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(connections[0][0].read(), 10) == b""
        for reader, writer in connections[1:]:
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await _answer(reader))[0] == 200
        for _, writer in connections:
            writer.close()


async def test_bodies_of_a_peer_take_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bodies that do not end, by many connections, as strangers may send them: others find room when these are gone."""
    monkeypatch.setattr(http_listener, "MAX_BODIES_BYTES", 4 * 2 * 900)
    head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 901\r\n\r\n"
    async with _listening() as (host, port):
        held = []
        for _ in range(2):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 900\r\n\r\n" + b"x" * 900)
            assert (await _answer(reader))[0] == 200  # What was answered takes no room.
            writer.write(head + b"x" * 900)
            held.append(writer)
        status = 200
        async with asyncio.timeout(30):
            while status == 200:  # Until the bytes of both have arrived.
                reader, writer = await asyncio.open_connection(host, port)
                writer.write(head + b"x" * 901)
                status, _ = await _answer(reader)
                writer.close()
        assert status == 503
        for each in held:
            each.close()
        async with asyncio.timeout(30):
            while status == 503:
                reader, writer = await asyncio.open_connection(host, port)
                writer.write(head + b"x" * 901)
                status, _ = await _answer(reader)
                writer.close()
        assert status == 200
