"""Sockets of the native protocol for blocking clients."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from headrace.client.net.native_sockets import MAX_PARTS, PlainSocket, TlsSocket, size_of
from headrace_devcluster.certificates import Authority

RECORD_BYTES = 16 * 1024


@pytest.fixture
def contexts(tmp_path: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Contexts of a server and of a client that trusts it."""
    paths = Authority(tmp_path, "services").issue("broker")
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(paths.cert_file, paths.key_file)
    return server_context, ssl.create_default_context(cafile=str(paths.ca_file))


@contextlib.contextmanager
def serving(serve: Callable[[socket.socket], None]) -> Iterator[socket.socket]:
    """Yield one end of a connection while a thread has the other, and closes it."""
    ours, theirs = socket.socketpair()

    def run() -> None:
        with theirs:
            serve(theirs)

    peer = threading.Thread(target=run)
    peer.start()
    try:
        with ours:
            yield ours
    finally:
        peer.join()


def test_a_large_frame_is_received_from_many_records_of_tls_in_one_call(contexts):
    """A turn of the connection costs more than a record of TLS. A small frame ends after one."""
    sent = bytes(range(256)) * (6 * RECORD_BYTES // 256)
    server_context, context = contexts
    is_sent = threading.Event()

    def serve(theirs: socket.socket) -> None:
        with server_context.wrap_socket(theirs, server_side=True) as server:
            server.sendall(sent)
            is_sent.set()

    buffer = memoryview(bytearray(len(sent)))
    with serving(serve) as ours:
        connection = TlsSocket(ours, context, "127.0.0.1", 10.0)
        assert is_sent.wait(10.0)
        assert connection.wait(10.0)
        assert connection.receive_into(buffer, False) == RECORD_BYTES
        assert connection.wait(0.0), "the next record has arrived with the first"
        assert connection.receive_into(buffer[RECORD_BYTES:], True) == len(sent) - RECORD_BYTES
        assert bytes(buffer) == sent
        while (count := connection.receive_into(memoryview(bytearray(1)), True)) < 0:
            assert connection.wait(10.0)
        assert count == 0


def test_small_frames_of_tls_leave_nothing_to_wait_for(contexts):
    """Several may be in one record, or in several that arrive together; then the thread waits for the socket."""
    server_context, context = contexts
    may_end = threading.Event()

    def serve(theirs: socket.socket) -> None:
        with server_context.wrap_socket(theirs, server_side=True) as server:
            server.sendall(b"first")
            server.sendall(b"second")
            may_end.wait(10.0)

    with serving(serve) as ours:
        connection = TlsSocket(ours, context, "127.0.0.1", 10.0)
        received, buffer = b"", memoryview(bytearray(100))
        while received != b"firstsecond":
            assert connection.wait(1.0)
            count = connection.receive_into(buffer, False)
            received += bytes(buffer[: max(count, 0)])
        assert not connection.wait(0.0)
        assert connection.receive_into(buffer, False) == -1
        may_end.set()


def test_what_the_kernel_does_not_accept_over_tls_is_sent_with_the_next_call(contexts):
    """Each byte once, in order, from parts of every size, although what is encrypted cannot be taken back."""
    server_context, context = contexts
    sent = [b"head", b"", np.arange(100_000, dtype=np.int32).data.cast("B"), b"middle", bytes(500_000), b"end"]
    may_read, received = threading.Event(), bytearray()

    def serve(theirs: socket.socket) -> None:
        with server_context.wrap_socket(theirs, server_side=True) as server:
            may_read.wait(10.0)
            while part := server.recv(1 << 20):
                received.extend(part)

    with serving(serve) as ours:
        connection = TlsSocket(ours, context, "127.0.0.1", 10.0)
        rest = connection.send(sent, wait=False)
        assert 0 < size_of(rest) < size_of(sent)
        assert connection.send(rest, wait=False) == rest, "nothing was read in between"
        may_read.set()
        while rest:
            rest = connection.send(rest, wait=True)
    assert received == b"".join(sent)


def test_a_handshake_of_tls_is_limited_in_time(contexts):
    """A broker may say nothing."""
    may_end = threading.Event()
    with serving(lambda theirs: [may_end.wait(10.0)]) as ours:
        with pytest.raises(TimeoutError):
            TlsSocket(ours, contexts[1], "127.0.0.1", 0.01)
        may_end.set()


def test_a_broker_that_hangs_up_in_a_handshake_of_tls_is_an_error(contexts):
    """It may have sent half a record."""
    with serving(lambda theirs: [theirs.recv(10_000), theirs.sendall(b"\x16\x03\x03\x00\x40")]) as ours:
        with pytest.raises(OSError, match=r"(?i)eof"):
            TlsSocket(ours, contexts[1], "127.0.0.1", 10.0)


def test_a_broker_learns_why_a_client_refuses_its_certificate(contexts):
    """By an alert, whose name it logs."""
    server_context, context = contexts
    reasons: list[str] = []

    def serve(theirs: socket.socket) -> None:
        with pytest.raises(ssl.SSLError) as failed, server_context.wrap_socket(theirs, server_side=True) as server:
            server.recv(1)
        reasons.append(failed.value.reason)

    with serving(serve) as ours:
        with pytest.raises(ssl.SSLCertVerificationError):
            TlsSocket(ours, context, "another.example", 10.0)
    assert "ALERT" in reasons[0]


def test_what_the_kernel_does_not_accept_is_returned_without_a_copy():
    """Of more parts than one system call takes; each byte once, in order."""
    numbers = np.arange(100_000, dtype=np.int32)
    data, small = numbers.data.cast("B"), [b"%d" % number for number in range(MAX_PARTS)]
    sent = [b"head", data, *small, bytes(500_000), b"", b"end"]
    ours, theirs = socket.socketpair()
    connection, received = PlainSocket(ours), bytearray()
    with ours, theirs:
        theirs.setblocking(False)
        rest = connection.send(sent, wait=False)
        assert 0 < size_of(rest) < size_of(sent)
        assert rest[0].obj is numbers
        while rest or len(received) < size_of(sent):
            received += theirs.recv(1 << 20)
            before, rest = size_of(rest), connection.send(rest, wait=False)
            assert size_of(rest) <= before
    assert received == b"".join(sent)
