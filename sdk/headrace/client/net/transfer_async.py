"""Fetches over the transfer ports of brokers, as `headrace.client.net.transfer`, for asyncio. One event loop."""

import asyncio
import socket

from headrace.client.base.config import FetchConfig
from headrace.client.net.transfer import (
    CONNECT_S,
    KEPT,
    TransferPorts,
    address_of,
    answer_buffer,
    parse_answer,
    request_frame,
)
from headrace.v1 import broker_pb2
from headrace.wire.errors import HeadraceError
from headrace.wire.transfer import ANSWER_HEAD, PREFACE
from headrace.wire.zero_copy import SplicedMessage


class AsyncTransfers:
    """The connections of one client. Owned by its fetcher, whose tasks are over when it is closed."""

    def __init__(self, _: str, config: FetchConfig) -> None:
        self._ports = TransferPorts(config)
        self._idle: dict[str, list[socket.socket]] = {}

    async def fetch(self, address: str, request: broker_pb2.FetchRequest, timeout: float) -> SplicedMessage | None:
        """Fetch from a transfer port; `None` means: fetch over gRPC.

        Raises:
            HeadraceError: the broker refused the request as a whole.
        """
        while self._ports.may_use(address):
            idle = self._idle.setdefault(address, [])
            kept = idle.pop() if idle else None
            connection = kept
            try:
                if connection is None:
                    connection = await _connect(address)
                async with asyncio.timeout(timeout):
                    answer = await _exchange(connection, request)
            except (OSError, TimeoutError):
                if connection is not None:
                    connection.close()
                if kept is None:  # One that was kept may have been closed for being idle: the next may do.
                    self._ports.avoid(address)
                continue
            except HeadraceError:
                assert connection is not None
                self._keep(address, connection)
                raise
            except BaseException:
                if connection is not None:
                    connection.close()
                raise
            self._keep(address, connection)
            return answer
        return None

    def close(self) -> None:
        """Close every connection. Again: nothing."""
        for kept in self._idle.values():
            while kept:
                kept.pop().close()

    def _keep(self, address: str, connection: socket.socket) -> None:
        idle = self._idle[address]
        if len(idle) < KEPT:
            idle.append(connection)
        else:
            connection.close()


async def _connect(address: str) -> socket.socket:
    """Connect.

    Raises:
        OSError, TimeoutError: it could not.
    """
    loop = asyncio.get_running_loop()
    host, port = address_of(address)
    async with asyncio.timeout(CONNECT_S):
        family, kind, protocol, _, target = (await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM))[0]
        connection = socket.socket(family, kind, protocol)
        try:
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.sock_connect(connection, target)
            await loop.sock_sendall(connection, PREFACE)
        except BaseException:
            connection.close()
            raise
    return connection


async def _exchange(connection: socket.socket, request: broker_pb2.FetchRequest) -> SplicedMessage:
    await asyncio.get_running_loop().sock_sendall(connection, request_frame(request))
    head = bytearray(ANSWER_HEAD.size)
    await _receive(connection, memoryview(head))
    rest = answer_buffer(head)
    await _receive(connection, rest)
    return parse_answer(head, rest.toreadonly())


async def _receive(connection: socket.socket, into: memoryview) -> None:
    """Fill a buffer.

    Raises:
        OSError: the connection ended.
    """
    loop = asyncio.get_running_loop()
    while len(into):
        count = await loop.sock_recv_into(connection, into)
        if not count:
            raise ConnectionResetError("the broker ended the connection")
        into = into[count:]
