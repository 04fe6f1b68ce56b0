"""Port forwarder for clients in other containers: the service `gateway` of docker-compose.yml.

Brokers and coordinators advertise localhost and a port that is published on this machine. In a container localhost is
the container itself. A client there shares this container's network, where the same ports are forwarded to the
services.

python gateway.py 7170=coordinator-1:7170 7181=broker-1:7181; SIGTERM ends it. Standard library only.
"""

import asyncio
import contextlib
import signal
import sys
from functools import partial

CHUNK_BYTES = 256 * 1024


async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    """Copy the stream with backpressure, then close the target."""
    with contextlib.suppress(ConnectionError):
        while data := await source.read(CHUNK_BYTES):
            target.write(data)
            await target.drain()
    with contextlib.suppress(OSError):
        target.write_eof()


async def pass_on(host: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Forward one connection in both directions; close it at once if the service is unreachable."""
    with contextlib.closing(writer), contextlib.suppress(OSError):
        there_reader, there_writer = await asyncio.open_connection(host, port)
        with contextlib.closing(there_writer):
            await asyncio.gather(copy(reader, there_writer), copy(there_reader, writer))


async def serve(routes: list[str]) -> None:
    """Listen on loopback for each PORT=HOST:PORT until a signal arrives."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    for route in routes:
        port, _, target = route.partition("=")
        host, _, there = target.rpartition(":")
        await asyncio.start_server(partial(pass_on, host, int(there)), "127.0.0.1", int(port))
    await stop.wait()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1:]))
