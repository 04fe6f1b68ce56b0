"""Lets clients in other containers use the addresses that clients are told: docker-compose.yml's service `gateway`.

Brokers and coordinators tell each client localhost and a port, which on this machine is published. In a container
localhost is the container itself; so a client there shares this one's network, where the same ports are passed on to
the services.

python gateway.py 7170=coordinator-1:7170 7181=broker-1:7181; SIGTERM ends it. Standard library only.
"""

import asyncio
import contextlib
import signal
import sys
from functools import partial

CHUNK_BYTES = 256 * 1024


async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    """Everything that comes, as fast as it is taken; then the end."""
    with contextlib.suppress(ConnectionError):
        while data := await source.read(CHUNK_BYTES):
            target.write(data)
            await target.drain()
    with contextlib.suppress(OSError):
        target.write_eof()


async def pass_on(host: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One connection, both ways; closed at once where the service does not answer."""
    with contextlib.closing(writer), contextlib.suppress(OSError):
        there_reader, there_writer = await asyncio.open_connection(host, port)
        with contextlib.closing(there_writer):
            await asyncio.gather(copy(reader, there_writer), copy(there_reader, writer))


async def serve(routes: list[str]) -> None:
    """Listen on the loopback for each PORT=HOST:PORT until a signal comes."""
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
