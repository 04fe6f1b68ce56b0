"""Handshakes that are replayed, that end half way, and that try a listener or a protocol with less protection."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from typing import Any

import grpc
import headrace
import pytest
from headrace.v1 import auth_pb2, auth_pb2_grpc
from headrace.wire.errors import HeadraceError
from headrace.wire.frames import PREFACE, FrameError, Kind
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec
from headrace_server.native.framed_connection import HELLO_SECONDS

from tests.security.test_identity_attacks import WELCOME, fetch, hello
from tests.security.test_native_attacks import connect, frames

pytestmark = pytest.mark.native
SECONDS = 60.0
TOPIC = "guarded"
SETTINGS = bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""An empty SETTINGS frame of HTTP/2, for which a client of gRPC waits before its first call."""
UNKNOWN = [(Kind.ERROR, "ERROR_CODE_UNAUTHENTICATED")]


class Guarded:
    """A cluster that requires identities, and its administrator."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.ready: dict[str, Any] = json.loads(cluster.brokers[0].ready_file.read_text())
        settings: dict[str, Any] = dict(cluster.client_settings)
        self.admin = headrace.Admin(bootstrap_servers=cluster.bootstrap_servers, **settings)
        self.admin.create_topic(TOPIC, replication_factor=1)

    def session(self, api_key: str) -> str:
        """Open a session at the broker, without TLS."""
        with grpc.insecure_channel(self.cluster.brokers[0].address) as channel:
            stub = auth_pb2_grpc.SessionServiceStub(channel)
            return str(stub.OpenSession(auth_pb2.OpenSessionRequest(api_key=api_key), timeout=SECONDS).token)


@pytest.fixture(scope="module")
def guarded() -> Iterator[Guarded]:
    with LocalCluster(LocalClusterSpec(brokers=1, coordinators=1, identity=True)) as cluster:
        found = Guarded(cluster)
        yield found
        found.admin.close()


def test_a_replayed_handshake_is_refused_once_its_session_has_ended(guarded: Guarded) -> None:
    """Captured bytes are worth as much as the token in them: nothing after the key is deleted, on any connection."""
    guarded.admin.create_user("ada")
    guarded.admin.grant("ada", "reader", f"topic:{TOPIC}")
    key = guarded.admin.create_api_key("ada")
    captured = hello(guarded.session(key.secret)) + fetch(TOPIC)
    for _ in range(2):
        with closing(connect(guarded.ready["native_address"])) as connection:
            connection.sendall(captured)
            found = frames(connection)
            assert [next(found), next(found)[0]] == [WELCOME, Kind.ANSWER]
    guarded.admin.delete_api_key(key.key_id)
    deadline = time.monotonic() + 2
    answers: list[tuple[Kind, str]] = []
    while answers != UNKNOWN:
        assert time.monotonic() < deadline, answers
        with closing(connect(guarded.ready["native_address"])) as connection:
            connection.sendall(captured)
            found = frames(connection)
            answers = [next(found)]


def test_half_a_handshake_is_no_identity_and_ends(guarded: Guarded) -> None:
    """Whatever part of a good one has arrived: nothing is answered, and the connection is closed in time."""
    with open(guarded.cluster.client_settings["api_key_file"]) as file:
        whole = hello(guarded.session(file.read().strip()))
    halves = [whole[:end] for end in (0, 3, len(PREFACE), len(PREFACE) + 10, len(whole) // 2, len(whole) - 1)]
    with ExitStack() as stack:
        opened = time.monotonic()
        connections = [stack.enter_context(closing(connect(guarded.ready["native_address"]))) for _ in halves]
        for connection, half in zip(connections, halves, strict=True):
            connection.sendall(half)
        for connection in connections:
            assert list(frames(connection)) == []
        assert HELLO_SECONDS - 1 < time.monotonic() - opened < HELLO_SECONDS + 20
    for half in halves:
        with closing(connect(guarded.ready["native_address"])) as connection:
            connection.sendall(half)
            connection.shutdown(socket.SHUT_WR)
            assert list(frames(connection)) == []


def test_no_listener_of_a_cluster_with_tls_can_be_used_without() -> None:
    """A good proof in the clear gets no answer, at the listeners for clients and at those for servers."""
    with LocalCluster(LocalClusterSpec(brokers=1, coordinators=1, identity=True, tls=True)) as cluster:
        with open(cluster.client_settings["api_key_file"]) as file:
            key = file.read().strip()
        ready = json.loads(cluster.brokers[0].ready_file.read_text())
        listeners = [value for name, value in ready.items() if name.endswith("address") and value]
        assert len(set(listeners)) >= 4, ready
        for address in {*listeners, cluster.coordinators[0].address}:
            with closing(connect(address)) as connection:
                connection.sendall(hello(key) + fetch(TOPIC))
                answers: list[tuple[Kind, str]] = []
                with suppress(FrameError):  # What comes is an alert of TLS, or nothing.
                    answers += frames(connection)
                assert answers == []
            with grpc.insecure_channel(address) as channel, pytest.raises(grpc.RpcError) as refused:
                auth_pb2_grpc.SessionServiceStub(channel).OpenSession(
                    auth_pb2.OpenSessionRequest(api_key=key), timeout=10
                )
            assert refused.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


class Impostor:
    """A listener without TLS that keeps what it receives."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.received = bytearray()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection, suppress(OSError):
                connection.settimeout(0.5)
                connection.sendall(SETTINGS)
                while data := connection.recv(1 << 16):
                    self.received += data

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(SECONDS)


@pytest.mark.parametrize("transport", ["native", "grpc"])
def test_a_client_with_tls_sends_no_credential_to_a_listener_without(guarded: Guarded, transport: Any) -> None:
    """A downgrade on the path: the client gives up, and its key has not left it."""
    key = "hrk_" + "k" * 12 + "_" + "s" * 43
    with closing(Impostor()) as impostor:
        with (
            pytest.raises(HeadraceError),
            headrace.Producer(
                bootstrap_servers=impostor.address,
                security_protocol="SSL",
                api_key=key,
                transport=transport,
                delivery_timeout_ms=6_000,
                request_timeout_ms=4_000,
                max_block_ms=6_000,
            ) as producer,
        ):
            producer.send(TOPIC, b"x").result(timeout=SECONDS)
        assert impostor.received, "the client has tried"
        assert key.encode() not in impostor.received
        assert b"s" * 43 not in impostor.received
