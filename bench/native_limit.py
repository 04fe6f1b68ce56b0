"""Limit of the native protocol: its frames on a socket with the minimum work of any log server.

`python -m bench.native_limit DIRECTORY` receives Produce requests, checks the CRC of their batches, writes these behind
one another into a file of new pages, and responds. Results of headrace are reported as a share of this limit.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from pathlib import Path

from headrace.v1 import broker_pb2
from headrace.wire.crc import crc32c
from headrace.wire.frames import CLIENT_KINDS, HEADER, FrameReader, Kind, MethodCode, frame_head

from bench.limit import CALLS_IN_FLIGHT, own_process
from bench.processor import processor_seconds

SCRATCH = "native-scratch"


class BareConnection(asyncio.BufferedProtocol):
    """Connection without Hello and limits."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._position = 0
        self._reader = FrameReader(CLIENT_KINDS, lambda _: True)
        self._answer = broker_pb2.ProduceResponse().SerializeToString()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        """See asyncio."""
        return self._reader.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """See asyncio."""
        self._reader.received(nbytes)
        while (frame := self._reader.next_frame()) is not None:
            crc32c(frame.attachments)
            self._position += os.pwrite(self._descriptor, frame.attachments, self._position)
            self._transport.write(
                frame_head(Kind.ANSWER, self._answer, method=MethodCode.PRODUCE, correlation=frame.header.correlation)
            )


async def serve(directory: Path) -> None:
    """Serve until the parent closes our standard input; print the port first."""
    path = directory / SCRATCH
    descriptor = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
    try:
        server = await asyncio.get_running_loop().create_server(lambda: BareConnection(descriptor), "127.0.0.1", 0)
        print(server.sockets[0].getsockname()[1], flush=True)
        await asyncio.to_thread(sys.stdin.read)
    finally:
        os.close(descriptor)
        path.unlink()


def measure(directory: Path, batch: bytes, calls: int) -> tuple[float, float]:
    """Return the seconds that `calls` produces of `batch` take, `CALLS_IN_FLIGHT` at once, and the processor seconds of
    the server."""
    message = broker_pb2.ProduceRequest(acks=broker_pb2.ACKS_LEADER, timeout_ms=10_000)
    message.topics.add().partitions.add(batch_sizes=[len(batch)])
    data = message.SerializeToString()
    with own_process("bench.native_limit", str(directory)) as (port, pid):
        with socket.create_connection(("127.0.0.1", port)) as connection, connection.makefile("rb") as answers:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            before, started = processor_seconds(pid), time.perf_counter()
            for number in range(calls + CALLS_IN_FLIGHT):
                if number < calls:
                    head = frame_head(
                        Kind.REQUEST, data, method=MethodCode.PRODUCE, correlation=number + 1, attached=len(batch),
                        timeout_ms=10_000,
                    )  # fmt: skip
                    sent = connection.sendmsg([head, batch])
                    if sent < len(head) + len(batch):
                        connection.sendall(memoryview(head + batch)[sent:])
                if number >= CALLS_IN_FLIGHT:
                    answers.read(HEADER.unpack(answers.read(HEADER.size))[0])
            return time.perf_counter() - started, processor_seconds(pid) - before


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
