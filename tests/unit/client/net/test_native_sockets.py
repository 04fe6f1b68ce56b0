"""Sockets of the native protocol for blocking clients."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading

import numpy as np
from headrace.client.net.native_sockets import MAX_PARTS, PlainSocket, TlsSocket, size_of
from headrace_devcluster.certificates import Authority

RECORD_BYTES = 16 * 1024


def test_a_large_frame_is_received_from_many_records_of_tls_in_one_call(tmp_path):
    """A turn of the connection costs more than a record of TLS. A small frame ends after one."""
    sent = bytes(range(256)) * (6 * RECORD_BYTES // 256)
    paths = Authority(tmp_path, "services").issue("broker")
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(paths.cert_file, paths.key_file)
    ours, theirs = socket.socketpair()

    def serve() -> None:
        with server_context.wrap_socket(theirs, server_side=True) as server:
            server.sendall(sent)

    peer = threading.Thread(target=serve)
    peer.start()
    context = ssl.create_default_context(cafile=str(paths.ca_file))
    connection = TlsSocket(context.wrap_socket(ours, server_hostname="127.0.0.1"))
    buffer = memoryview(bytearray(len(sent)))
    try:
        peer.join()
        assert connection.wait(10.0)
        assert connection.receive_into(buffer, False) == RECORD_BYTES
        assert connection.receive_into(buffer[RECORD_BYTES:], True) == len(sent) - RECORD_BYTES
        assert bytes(buffer) == sent
        assert connection.wait(10.0)
        with contextlib.suppress(OSError):  # Newer releases of OpenSSL report an end without a notice.
            assert connection.receive_into(memoryview(bytearray(1)), True) == 0
    finally:
        connection.connection.close()
        peer.join()


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
