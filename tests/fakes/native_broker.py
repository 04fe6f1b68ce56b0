"""The native protocol of a fake cluster's broker, which serves no request without a session."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import cast

import grpc
from headrace.v1 import broker_pb2, native_pb2
from headrace.wire.attachments import splice_produce
from headrace.wire.errors import HeadraceError, UnauthenticatedError, to_detail
from headrace.wire.frames import CLIENT_KINDS, PREFACE, Frame, FrameReader, Kind, MethodCode, frame_head
from headrace.wire.releases import CAPABILITIES, RELEASE

from tests.fakes.cluster import FakeCluster
from tests.fakes.identity import FakeIdentity

JOIN_SECONDS = 10.0


class FakeNativeBroker:
    """Broker 1 of a cluster, on a port of the kernel's choice. Metadata names it until `stop`."""

    def __init__(self, cluster: FakeCluster, identity: FakeIdentity) -> None:
        self.cluster = cluster
        self.identity = identity
        self.checks_hello = True
        """Whether a Hello without a valid session ends the connection, and not each request."""
        self.hellos: list[str] = []
        """Session of each Hello."""
        self.sessions: list[str] = []
        """Tokens that came in frames of their own."""
        self.requests: list[tuple[MethodCode, str]] = []
        """Method of each request, and the session in force."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._connections: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        cluster.native_addresses[1] = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads[0].start()

    def stop(self) -> None:
        """End all connections."""
        self.cluster.native_addresses.clear()
        for connection in (self._listener, *self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        for thread in self._threads:
            thread.join(JOIN_SECONDS)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._connections.append(connection)
            self._threads.append(threading.Thread(target=self._serve, args=(connection,), daemon=True))
            self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        reader = FrameReader(CLIENT_KINDS, lambda header: True, PREFACE)
        session = ""
        with contextlib.suppress(OSError):
            while count := connection.recv_into(reader.buffer()):
                reader.received(count)
                while (frame := reader.next_frame()) is not None:
                    match frame.header.kind:
                        case Kind.HELLO:
                            session = native_pb2.Hello.FromString(frame.message).session
                            self.hellos.append(session)
                            if self.checks_hello and session not in self.identity.tokens:
                                connection.sendall(_error(0, UnauthenticatedError("no session")))
                                connection.shutdown(socket.SHUT_RDWR)
                                return
                            connection.sendall(_welcome())
                        case Kind.SESSION:
                            session = frame.message.decode()
                            self.sessions.append(session)
                        case Kind.REQUEST:
                            connection.sendall(self._answer(frame, session))

    def _answer(self, frame: Frame, session: str) -> bytes:
        method, number = MethodCode(frame.header.method), frame.header.correlation
        self.requests.append((method, session))
        if session not in self.identity.tokens:
            return _error(number, UnauthenticatedError("the session has ended"))
        attached = b""
        if method == MethodCode.PRODUCE:
            produce = broker_pb2.ProduceRequest.FromString(frame.message)
            spliced = iter(splice_produce(produce, frame.attachments).batches)
            for topic in produce.topics:
                for part in topic.partitions:
                    part.batches.extend(map(bytes, next(spliced)))
            with self.cluster.lock:
                answer = self.cluster.produce(produce).SerializeToString()
            with self.cluster.appended:
                self.cluster.appended.notify_all()
        elif method == MethodCode.FETCH:
            fetch = broker_pb2.FetchRequest.FromString(frame.message)
            response = self.cluster.Fetch(fetch, _ACTIVE)
            for entry in response.topics:
                for result in entry.partitions:
                    attached += result.batches
                    result.batches_size = len(result.batches)
                    result.ClearField("batches")
            answer = response.SerializeToString()
        else:
            offsets = broker_pb2.ListOffsetsRequest.FromString(frame.message)
            answer = self.cluster.ListOffsets(offsets, _ACTIVE).SerializeToString()
        head = frame_head(Kind.ANSWER, answer, method=method, correlation=number, attached=len(attached))
        return head + attached


class _AlwaysActive:
    """Context of a call whose client does not go away."""

    def is_active(self) -> bool:
        return True


_ACTIVE = cast("grpc.ServicerContext", _AlwaysActive())


def _welcome() -> bytes:
    message = native_pb2.Welcome(answered_by="broker-1", max_requests=64)
    message.handshake.release = RELEASE
    message.handshake.capabilities.extend(CAPABILITIES)
    return frame_head(Kind.WELCOME, message.SerializeToString())


def _error(number: int, error: HeadraceError) -> bytes:
    return frame_head(Kind.ERROR, to_detail(error).SerializeToString(), correlation=number)
