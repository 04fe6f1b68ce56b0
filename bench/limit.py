"""Limit of gRPC: plain calls with the same bytes, in the same run.

A bare server (`python -m bench.limit`) serves the public RPCs without a log: a produce is parsed and thrown
away, a fetch returns prepared bytes. Results of headrace are reported as a share of those of the same calls to this
server, so that a slow minute of the machine affects both.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
from headrace.v1 import broker_pb2, broker_pb2_grpc
from headrace.wire.batch import iter_batches
from headrace_devcluster.certificates import TlsPaths

from bench.processor import processor_seconds

CHANNEL_OPTIONS = [
    ("grpc.max_send_message_length", 32 << 20),
    ("grpc.max_receive_message_length", 32 << 20),
]
CALLS_IN_FLIGHT = 5
CALL_TIMEOUT_SECONDS = 60.0
SENDFILE_BYTES = 1 << 20
SCRATCH = "scratch"


class BareBroker(broker_pb2_grpc.BrokerServiceServicer):
    """Servicer of Produce and Fetch with the minimum work that gRPC allows."""

    def __init__(self) -> None:
        self._stored = b""

    async def Produce(self, request: broker_pb2.ProduceRequest, context: object) -> broker_pb2.ProduceResponse:
        """Keep the last batches of the request, so that a fetch can return the same bytes."""
        partition = request.topics[0].partitions[0]
        self._stored = partition.batches[0]
        return broker_pb2.ProduceResponse()

    async def Fetch(self, request: broker_pb2.FetchRequest, context: object) -> broker_pb2.FetchResponse:
        """Return the bytes that were produced last."""
        result = broker_pb2.PartitionFetchResult(partition=0, batches=self._stored)
        return broker_pb2.FetchResponse(topics=[broker_pb2.TopicFetchResult(partitions=[result])])


async def serve() -> None:
    """Serve until the parent closes our standard input; print the port first."""
    server = grpc.aio.server(options=CHANNEL_OPTIONS)
    broker_pb2_grpc.add_BrokerServiceServicer_to_server(BareBroker(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(None)


@dataclass(frozen=True, slots=True)
class BareServer:
    """Bare server in a separate process."""

    stub: broker_pb2_grpc.BrokerServiceStub
    pid: int


@contextmanager
def bare_server() -> Iterator[BareServer]:
    """Start a bare server, and stop it at exit."""
    with (
        own_process("bench.limit") as (port, pid),
        grpc.insecure_channel(f"127.0.0.1:{port}", options=CHANNEL_OPTIONS) as channel,
    ):
        yield BareServer(broker_pb2_grpc.BrokerServiceStub(channel), pid)


@contextmanager
def own_process(module: str, *arguments: str) -> Iterator[tuple[int, int]]:
    """Run a module as a program; yield the port that it printed, and its process id."""
    command = [sys.executable, "-m", module, *arguments]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline()), process.pid
    finally:
        process.kill()
        process.wait()


def produce_request(batch: bytes) -> broker_pb2.ProduceRequest:
    """Return the request that carries one batch for one partition."""
    partition = broker_pb2.PartitionProduce(partition=0, batches=[batch])
    return broker_pb2.ProduceRequest(
        acks=broker_pb2.ACKS_LEADER,
        timeout_ms=10_000,
        topics=[broker_pb2.TopicProduce(partitions=[partition])],
    )


def measure_in(stub: broker_pb2_grpc.BrokerServiceStub, batch: bytes, calls: int) -> float:
    """Return the seconds that `calls` produces of `batch` take, `CALLS_IN_FLIGHT` at once, each built anew."""
    free = threading.Semaphore(CALLS_IN_FLIGHT)
    started = time.perf_counter()
    pending = []
    for _ in range(calls):
        free.acquire()
        call = stub.Produce.future(produce_request(batch), timeout=CALL_TIMEOUT_SECONDS)
        call.add_done_callback(lambda _: free.release())
        pending.append(call)
    for call in pending:
        call.result()
    return time.perf_counter() - started


def measure_out(stub: broker_pb2_grpc.BrokerServiceStub, calls: int) -> float:
    """Return the seconds that `calls` fetches take, two at once, their bytes taken out and their headers read."""
    request = broker_pb2.FetchRequest(max_bytes=1 << 20)
    started = time.perf_counter()
    following = stub.Fetch.future(request, timeout=CALL_TIMEOUT_SECONDS)
    for _ in range(calls):
        call, following = following, stub.Fetch.future(request, timeout=CALL_TIMEOUT_SECONDS)
        data = call.result().topics[0].partitions[0].batches
        for _header, _batch in iter_batches(data):
            pass
    following.result()
    return time.perf_counter() - started


def measure_page_cache(directory: Path, batch: bytes, calls: int) -> float:
    """Return the seconds that `calls` plain writes of `batch` to a file take, which is removed."""
    with _scratch(directory) as descriptor:
        started = time.perf_counter()
        for number in range(calls):
            os.pwrite(descriptor, batch, number * len(batch))
        return time.perf_counter() - started


def measure_disk(directory: Path, batch: bytes, calls: int) -> float:
    """Return the same as `measure_page_cache` with an fsync after each write."""
    with _scratch(directory) as descriptor:
        started = time.perf_counter()
        for number in range(calls):
            os.pwrite(descriptor, batch, number * len(batch))
            os.fsync(descriptor)
        return time.perf_counter() - started


def measure_sendfile(directory: Path, batch: bytes, calls: int) -> tuple[float, float]:
    """Return the seconds that `sendfile` takes for `calls` batches, from the page cache over loopback to a reader, and
    the CPU seconds of the sender, which is a separate process, as a broker is."""
    with _scratch(directory) as descriptor:
        for number in range(calls):
            os.pwrite(descriptor, batch, number * len(batch))
        with own_process("bench.limit", "sendfile", str(directory / SCRATCH)) as (port, pid):
            room, received, before = bytearray(1 << 20), 0, processor_seconds(pid)
            with socket.create_connection(("127.0.0.1", port)) as receiver:
                started = time.perf_counter()
                while received < len(batch) * calls:
                    count = receiver.recv_into(room)
                    assert count, "the sender ended"
                    received += count
                return time.perf_counter() - started, processor_seconds(pid) - before


def measure_tls(certificate: TlsPaths, batch: bytes, calls: int) -> tuple[float, float]:
    """Return the seconds that `calls` batches take over a TLS connection to a process which looks at nothing, and the
    CPU seconds of that process."""
    arguments = ["tls", str(certificate.cert_file), str(certificate.key_file)]
    context = ssl.create_default_context(cafile=certificate.ca_file)
    with own_process("bench.limit", *arguments) as (port, pid), socket.create_connection(("127.0.0.1", port)) as plain:
        with context.wrap_socket(plain, server_hostname="localhost") as connection:
            before, started = processor_seconds(pid), time.perf_counter()
            for _ in range(calls):
                connection.sendall(batch)
            connection.unwrap()
            return time.perf_counter() - started, processor_seconds(pid) - before


def send_file(path: str) -> None:
    """Send a file by `sendfile` to the first connection; print the port before, and stay until the parent leaves."""
    with open(path, "rb") as file, socket.create_server(("127.0.0.1", 0)) as server:
        print(server.getsockname()[1], flush=True)
        connection, _ = server.accept()
        with connection:
            sent, total = 0, os.fstat(file.fileno()).st_size
            while sent < total:
                sent += os.sendfile(connection.fileno(), file.fileno(), sent, SENDFILE_BYTES)
        sys.stdin.read()


def receive_tls(cert_file: str, key_file: str) -> None:
    """Receive to the end of the first TLS connection; print the port before, and stay until the parent leaves."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert_file, key_file)
    with socket.create_server(("127.0.0.1", 0)) as server:
        print(server.getsockname()[1], flush=True)
        with context.wrap_socket(server.accept()[0], server_side=True) as connection:
            room = bytearray(1 << 20)
            while connection.recv_into(room):
                pass
            connection.unwrap()
        sys.stdin.read()


@contextmanager
def _scratch(directory: Path) -> Iterator[int]:
    """Yield the descriptor of a new file, removed at the end."""
    path = directory / SCRATCH
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
        path.unlink()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["sendfile", path]:
            send_file(path)
        case ["tls", cert_file, key_file]:
            receive_tls(cert_file, key_file)
        case _:
            asyncio.run(serve())
