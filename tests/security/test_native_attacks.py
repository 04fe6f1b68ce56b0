"""What a stranger does at a real broker's port of the native protocol, while an honest client's calls are answered.

`test_native_server.py` has the limits one by one, `test_frame_fuzz.py` the frames.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest
from headrace.client.net.native_calls import NativeCalls
from headrace.v1 import broker_pb2, errors_pb2, topics_pb2
from headrace.wire.frames import SERVER_KINDS, FrameReader, Kind, MethodCode, frame_head
from headrace_devcluster.cluster import LocalCluster
from headrace_server.native.framed_connection import HELLO_SECONDS, STALL_SECONDS

from tests.security.conftest import Witness
from tests.security.frame_draws import OTHER_PROTOCOLS
from tests.security.test_attacks import MIB, bounded, is_healthy

pytestmark = pytest.mark.native
STRANGER = "127.0.0.2"
SECONDS = 60.0
GREETING = NativeCalls("", "stranger").greeting()
REFUSED = frame_head(Kind.REQUEST, b"", method=MethodCode.FETCH, correlation=1)
"""It has no deadline."""


def connect(address: str, *, receive_bytes: int = 0, source: str = STRANGER) -> socket.socket:
    """A connection of the stranger's; with a receive buffer of about this size."""
    host, _, port = address.rpartition(":")
    connection = socket.socket()
    if receive_bytes:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    connection.bind((source, 0))
    connection.settimeout(SECONDS)
    connection.connect((host, int(port)))
    return connection


def frames(connection: socket.socket) -> Iterator[tuple[Kind, str]]:
    """Kind and error code of each frame until the connection ends."""
    reader = FrameReader(SERVER_KINDS, lambda _: True)
    while True:
        try:
            count = connection.recv_into(reader.buffer())
        except ConnectionResetError:
            return
        if not count:
            return
        reader.received(count)
        while (frame := reader.next_frame()) is not None:
            kind, code = Kind(frame.header.kind), ""
            if kind is Kind.ERROR:
                code = errors_pb2.ErrorCode.Name(errors_pb2.ErrorDetail.FromString(frame.message).code)
            yield kind, code


def long_poll(topic: str, offset: int) -> bytes:
    """A Fetch that is not answered for a minute."""
    fetch = broker_pb2.FetchRequest(max_wait_ms=60_000, min_bytes=1)
    fetch.topics.add(topic=topics_pb2.TopicRef(name=topic)).partitions.add(partition=0, offset=offset)
    message = fetch.SerializeToString()
    return frame_head(Kind.REQUEST, message, method=MethodCode.FETCH, correlation=1, timeout_ms=90_000)


@pytest.mark.parametrize("data", OTHER_PROTOCOLS, ids=("http", "grpc", "tls", "kafka", "zeros", "ones"))
def test_other_protocols_get_an_error_and_the_end(witness: Witness, data: bytes) -> None:
    """HTTP, TLS, gRPC and Kafka at the plain port: the sender can read the reason."""
    with bounded(witness, cpu_seconds=5.0), closing(connect(witness.address("native"))) as connection:
        connection.sendall(data)
        assert list(frames(connection)) == [(Kind.ERROR, "ERROR_CODE_INVALID_REQUEST")]


def test_a_client_that_says_nothing_is_closed(witness: Witness) -> None:
    """After the time that the reference names; fifty of them cost nothing."""
    with bounded(witness, cpu_seconds=5.0), ExitStack() as stack:
        opened = time.monotonic()
        silent = [stack.enter_context(closing(connect(witness.address("native")))) for _ in range(50)]
        silent[0].sendall(GREETING[:5])
        for connection in silent:
            assert list(frames(connection)) == []
        assert time.monotonic() - opened > HELLO_SECONDS - 1


def flood_unread(connection: socket.socket, data: bytes, most_bytes: int) -> int:
    """Send until the other side has read nothing for a second; return the number of bytes."""
    connection.setblocking(False)
    sent = 0
    while sent < most_bytes and select.select([], [connection], [], 1.0)[1]:
        sent += connection.send(data)
    return sent


def test_a_client_that_reads_nothing_is_not_read(witness: Witness) -> None:
    """Of what would fill the broker's memory with refusals little is taken, and others are served."""
    with bounded(witness, cpu_seconds=10.0), closing(connect(witness.address("native"), receive_bytes=4_096)) as deaf:
        deaf.sendall(GREETING)
        assert flood_unread(deaf, REFUSED * 2_000, 64 * MIB) < 32 * MIB


@pytest.mark.slow
def test_a_client_that_reads_nothing_is_cut_off(witness: Witness) -> None:
    """Half a minute later."""
    with closing(connect(witness.address("native"), receive_bytes=4_096)) as deaf:
        deaf.sendall(GREETING)
        flood_unread(deaf, REFUSED * 2_000, 64 * MIB)
        poll = select.poll()
        poll.register(deaf, select.POLLHUP)
        assert poll.poll((STALL_SECONDS + 30) * 1_000)
    witness.work()


def test_connections_beyond_the_limit_are_closed(own_cluster: Callable[..., LocalCluster]) -> None:
    """A stranger whose connections all wait has no more than its share; health and others are not affected."""
    witness = Witness(own_cluster(brokers=1, coordinators=1, broker_settings={"max_native_connections": 8}))
    witness.work()
    address, before = witness.address("native"), witness.processes()
    with ExitStack() as stack:
        held = [stack.enter_context(closing(connect(address))) for _ in range(2)]
        for connection in held:
            connection.sendall(GREETING + long_poll(witness.topic, witness.sent))
            assert next(frames(connection)) == (Kind.WELCOME, "")
        for _ in range(20):
            connection = stack.enter_context(closing(connect(address)))
            assert list(frames(connection)) == []
        assert is_healthy(witness)
        witness.work()
    assert witness.processes() == before
    witness.producer.close()
