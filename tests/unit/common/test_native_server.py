"""The server of the native protocol by bare sockets: what it answers, what it refuses, whom it leaves."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import ssl
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from headrace.log import CorruptLogError
from headrace.v1 import auth_pb2, broker_pb2, errors_pb2, native_pb2
from headrace.wire.attachments import splice_produce
from headrace.wire.errors import (
    DeadlineRequiredError,
    InvalidRequestError,
    MetastoreUnavailableError,
    NotLeaderError,
    Outcome,
    ShuttingDownError,
    StorageOfflineError,
    ThrottledError,
    TimedOutError,
    UnauthenticatedError,
    UnsupportedVersionError,
    from_detail,
)
from headrace.wire.frames import CONFIRMED, HEADER, PREFACE, STAGE_BYTES, Header, Kind, MethodCode, frame_head
from headrace_devcluster.certificates import Authority
from headrace_server import wasted_calls
from headrace_server.calls import CALLER, request_id
from headrace_server.instruments import CommonMetrics
from headrace_server.methods import METHODS
from headrace_server.native import connection as connections
from headrace_server.native import framed_connection as framed
from headrace_server.native import outgoing
from headrace_server.native import server as servers
from headrace_server.native.begun_tasks import begin
from headrace_server.native.call import NativeMethod, OutgoingMessage
from headrace_server.native.connection import MAX_REQUESTS
from headrace_server.native.server import NativeServer, NativeService
from headrace_server.places import PlaceLimits, Places
from headrace_server.requests import RequestReader
from prometheus_client import CollectorRegistry

from tests.fakes.manual_clock import ManualClock
from tests.fakes.native_metrics import native_metrics
from tests.fakes.open_gate import gate_over, open_gate
from tests.fakes.written_keys import WrittenKeys

SECONDS = 20.0
TOPIC_ID = bytes(range(16))


class Service:
    """Methods that a test makes answer as it likes."""

    def __init__(self):
        self.requests = []
        self.callers = []
        self.cancelled = 0
        self.handle = self.echo

    async def __call__(self, message, call):
        self.requests.append(message)
        self.callers.append((CALLER.get(), request_id()))
        return await self.handle(message)

    async def echo(self, message):
        if isinstance(message, broker_pb2.FetchRequest):
            return OutgoingMessage(message.client_id.encode())
        batches = [bytes(each) for found in message.batches for each in found]
        return OutgoingMessage(message.message.client_id.encode(), [b"".join(batches)])

    async def never(self, message):
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled += 1


class Client:
    """A connection of a client, over asyncio."""

    def __init__(self, streams):
        self.receiving, self.sending = streams

    def send(self, kind, message=b"", **fields):
        attached = fields.pop("attached", b"")
        self.sending.write(frame_head(kind, message, attached=len(attached), **fields) + attached)

    def ask(self, number=1, client_id="me", method=MethodCode.FETCH, timeout_ms=20_000, **fields):
        message = broker_pb2.FetchRequest(client_id=client_id).SerializeToString()
        self.send(Kind.REQUEST, message, method=method, correlation=number, timeout_ms=timeout_ms, **fields)

    def produce(self, number=1, batches=(b"batch",), attached=None, **fields):
        message = broker_pb2.ProduceRequest(client_id="me")
        message.topics.add().partitions.add(batch_sizes=[len(batch) for batch in batches])
        attached = b"".join(batches) if attached is None else attached
        self.send(
            Kind.REQUEST, message.SerializeToString(), method=MethodCode.PRODUCE, correlation=number, timeout_ms=20_000,
            attached=attached, **fields,
        )  # fmt: skip

    async def receive(self):
        """A frame: header, message, attachments."""
        async with asyncio.timeout(SECONDS):
            header = Header._make(HEADER.unpack(await self.receiving.readexactly(HEADER.size)))
            body = await self.receiving.readexactly(header.size)
        return header, body[: header.message_size], body[header.message_size :]

    async def error(self, number=1):
        header, message, _ = await self.receive()
        assert (header.kind, header.correlation) == (Kind.ERROR, number)
        return from_detail(errors_pb2.ErrorDetail.FromString(message))

    async def ended(self):
        """Whether the server closed the connection, after whatever it still sent."""
        try:
            async with asyncio.timeout(SECONDS):
                while await self.receiving.read(1 << 16):
                    continue
        except ConnectionResetError:
            return True
        return True

    async def close(self):
        self.sending.close()
        with contextlib.suppress(ConnectionError):
            await self.sending.wait_closed()


class Bench:
    def __init__(self, *, max_connections=50, places=None, gate=None):
        self.service = Service()
        self.registry = CollectorRegistry()
        self.common = CommonMetrics("x", self.registry)
        self.metrics = native_metrics(self.registry)
        self.executor = ThreadPoolExecutor(4)
        methods = {
            MethodCode.FETCH: self.method("Fetch", broker_pb2.FetchRequest),
            MethodCode.PRODUCE: self.method("Produce", broker_pb2.ProduceRequest, splice_produce),
        }
        self.server = NativeServer(
            "broker-1",
            self.metrics,
            NativeService(
                methods,
                self.common.call_errors,
                Places(PlaceLimits(clients=places or (1_000, 500))),
                gate or open_gate(),
            ).connect,
            executor=self.executor,
            max_connections=max_connections,
        )
        self.clients = []

    def method(self, name, request_type, splice=None):
        row = METHODS[f"/headrace.v1.BrokerService/{name}"]
        reader = RequestReader(name, row, request_type.FromString, request_type.DESCRIPTOR)
        return NativeMethod(f"/headrace.v1.BrokerService/{name}", name, row, reader, splice, self.service)

    def answer_later(self):
        """Let each call wait for the event that is returned."""
        waits = asyncio.Event()

        async def handle(message):
            await waits.wait()
            return OutgoingMessage(b"late")

        self.service.handle = handle
        return waits

    def metric(self, name, **labels):
        return self.registry.get_sample_value(name, labels)

    async def open(self, from_address="127.0.0.1"):
        self.clients.append(Client(await asyncio.open_connection(self.host, self.port, local_addr=(from_address, 0))))
        return self.clients[-1]

    async def connect(self, from_address="127.0.0.1"):
        client = await self.open(from_address)
        client.sending.write(PREFACE)
        client.send(Kind.HELLO, native_pb2.Hello(client_id="me").SerializeToString())
        header, message, _ = await client.receive()
        assert header.kind == Kind.WELCOME
        client.welcome = native_pb2.Welcome.FromString(message)
        return client

    async def until(self, condition):
        deadline = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < deadline
            await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def serving(*, make_context=None, **options):
    bench = Bench(**options)
    host, _, port = (await bench.server.start("127.0.0.1:0", make_context)).rpartition(":")
    bench.host, bench.port = host, int(port)
    try:
        yield bench
    finally:
        for client in bench.clients:
            await client.close()
        await bench.server.stop(0)
        bench.executor.shutdown()


async def test_a_connection_begins_with_a_greeting():
    """Who answers, of which release, and how many requests may be unanswered."""
    async with serving() as bench:
        client = await bench.connect()
        assert client.welcome.answered_by == "broker-1"
        assert client.welcome.handshake.release
        assert client.welcome.max_requests == MAX_REQUESTS
        assert bench.metric("connections") == 1


async def test_a_connection_that_cannot_be_served_does_not_keep_out_the_next(monkeypatch):
    """For example because its context of TLS cannot be made for want of a descriptor."""
    monkeypatch.setattr(servers, "LOOK_SECONDS", 0.01)
    made = iter([OSError(errno.EMFILE, "too many open files"), TypeError("cadata should be an ASCII string")])

    def make_context():
        error = next(made, None)
        if error is not None:
            raise error

    async with serving(make_context=make_context) as bench:
        assert await (await bench.open()).ended()
        assert await (await bench.open()).ended()
        await bench.connect()


async def test_handshakes_that_say_nothing_do_not_keep_out_others(monkeypatch, tmp_path):
    """One address could have all of them, each for as long as a handshake may take, and again."""
    monkeypatch.setattr(servers, "MAX_HANDSHAKES", 4)
    monkeypatch.setattr(servers, "HURRIED_SECONDS", 0.1)
    monkeypatch.setattr(servers, "HANDSHAKE_SECONDS", 3_600.0)
    paths = Authority(tmp_path, "services").issue("broker")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(paths.cert_file, paths.key_file)
    trusting = ssl.create_default_context(cafile=str(paths.ca_file))
    async with serving(make_context=lambda: context) as bench:
        silent = [await bench.open("127.0.0.2") for _ in range(8)]
        async with asyncio.timeout(SECONDS):
            streams = await asyncio.open_connection(bench.host, bench.port, ssl=trusting, server_hostname="localhost")
        bench.clients.append(Client(streams))
        assert await silent[0].ended()
        assert bench.metric("broken_total") > 0


async def test_requests_and_batches_arrive_as_they_were_sent():
    """Small ones together in one packet, and one of megabytes."""
    async with serving() as bench:
        client = await bench.connect()
        large = [os.urandom(1_000_000), os.urandom(2_000_000)]
        client.produce(1, request_id=b"5f-1")
        client.produce(2, large)
        client.ask(3, "other")
        answers = {}
        for _ in range(3):
            header, message, attached = await client.receive()
            assert (header.kind, header.flags) == (Kind.ANSWER, 0)
            answers[header.correlation] = message, attached
        assert answers == {1: (b"me", b"batch"), 2: (b"me", b"".join(large)), 3: (b"other", b"")}
        assert bench.service.callers[0] == ("127.0.0.1", "5f-1")


async def test_a_request_that_waits_holds_up_no_other_one():
    """Answers leave as they come; the one that waited last."""
    async with serving() as bench:
        client, waits = await bench.connect(), asyncio.Event()

        async def handle(message):
            if message.client_id == "slow":
                await waits.wait()
            return OutgoingMessage(message.client_id.encode())

        bench.service.handle = handle
        client.ask(1, "slow")
        client.ask(2, "fast")
        assert (await client.receive())[0].correlation == 2
        waits.set()
        assert (await client.receive())[0].correlation == 1


async def test_an_error_is_answered_in_its_place():
    """Typed, counted, and the connection remains open."""
    async with serving() as bench:
        client = await bench.connect()

        async def refuse(message):
            raise NotLeaderError("elsewhere")

        bench.service.handle = refuse
        client.ask(5)
        assert isinstance(await client.error(5), NotLeaderError)
        bench.service.handle = bench.service.echo
        client.ask(6)
        assert (await client.receive())[0].correlation == 6
        assert bench.metric("x_call_errors_total", method="Fetch", code="NOT_LEADER") == 1


async def test_an_unexpected_error_is_hidden():
    """The client reads that there was one, and where the log has it."""
    async with serving() as bench:
        client = await bench.connect()

        async def fail(message):
            raise ZeroDivisionError("secret")

        bench.service.handle = fail
        client.ask(1, request_id=b"5f-9")
        error = await client.error()
        assert "5f-9" in str(error)
        assert "secret" not in str(error)


@pytest.mark.parametrize(
    ("ask", "error"),
    [
        (lambda client: client.ask(method=99), InvalidRequestError),
        (lambda client: client.ask(timeout_ms=0), DeadlineRequiredError),
        (lambda client: client.ask(attached=b"bytes"), InvalidRequestError),
        (lambda client: client.ask(client_id="x" * (1 << 20)), InvalidRequestError),
        (lambda client: client.produce(attached=b"short"[:3]), InvalidRequestError),
        (lambda client: client.produce(attached=b"too long"), InvalidRequestError),
        (lambda client: client.produce(batches=[bytes(33 << 20)]), InvalidRequestError),
    ],
)
async def test_what_is_refused_leaves_the_connection_as_it_was(ask, error):
    """Nothing of it reaches the service, and the next request is answered."""
    async with serving() as bench:
        client = await bench.connect()
        ask(client)
        assert isinstance(await client.error(), error)
        assert not bench.service.requests
        client.ask(2)
        assert (await client.receive())[0].correlation == 2


async def test_a_message_that_is_none_is_refused():
    """As over gRPC: the request, not the connection."""
    async with serving() as bench:
        client = await bench.connect()
        client.send(Kind.REQUEST, b"\xff\xff", method=MethodCode.FETCH, correlation=1, timeout_ms=1_000)
        assert isinstance(await client.error(), InvalidRequestError)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),
        PREFACE + frame_head(Kind.REQUEST, b"", method=1, correlation=1, timeout_ms=1),
        PREFACE + frame_head(Kind.HELLO, bytes(5_000)),
        PREFACE + frame_head(Kind.HELLO, b"\xff\xff"),
        PREFACE + frame_head(Kind.HELLO) * 2,
        PREFACE + frame_head(Kind.HELLO) + frame_head(Kind.WELCOME),
        PREFACE + frame_head(Kind.HELLO) + bytes(HEADER.size),
        PREFACE + frame_head(Kind.HELLO) + HEADER.pack(1 << 31, Kind.REQUEST, 1, 0, 1, 0, 1, 0, 0),
    ],
)
async def test_a_client_that_breaks_the_protocol_is_cut_off(data):
    """Other protocols, lengths that lie, frames out of place: counted, and no other client notices."""
    async with serving() as bench:
        other, client = await bench.connect(), await bench.open()
        client.sending.write(data)
        assert await client.ended()
        assert bench.metric("broken_total") == 1
        other.ask()
        assert (await other.receive())[0].kind == Kind.ANSWER


async def test_a_client_that_breaks_the_protocol_receives_what_was_being_sent():
    """Then why it is cut off, and nothing else; what it sends meanwhile is dropped."""
    async with serving() as bench:
        client, reported = await bench.connect(), []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))

        async def much(message):
            return OutgoingMessage(b"", [bytes(16 << 20), bytes(16 << 20)])

        async def late(message):
            await waits.wait()
            return OutgoingMessage(b"late")

        waits, bench.service.handle = asyncio.Event(), late
        client.ask(3)
        await bench.until(lambda: bench.service.requests)
        bench.service.handle = much
        (connection,) = bench.server._connections
        client.ask(1)
        client.ask(2)
        await bench.until(lambda: connection._outgoing._sending is not None)
        client.send(Kind.WELCOME)
        client.sending.write(bytes(4 * STAGE_BYTES))
        await bench.until(lambda: bench.metric("broken_total") == 1)
        waits.set()
        assert len((await client.receive())[2]) == 32 << 20
        assert len((await client.receive())[2]) == 32 << 20
        assert isinstance(await client.error(0), InvalidRequestError)
        assert await client.receiving.read() == b""
        assert not reported


async def test_a_client_of_another_release_learns_why_it_is_refused():
    """Before its connection is closed."""
    async with serving() as bench:
        client = await bench.open()
        hello = native_pb2.Hello(client_id="old")
        hello.handshake.release = "9.9.9"
        client.sending.write(PREFACE)
        client.send(Kind.HELLO, hello.SerializeToString())
        assert isinstance(await client.error(0), UnsupportedVersionError)
        assert await client.ended()


async def test_one_number_for_two_requests_is_a_broken_protocol():
    """While the first is not answered; afterwards it may be used again."""
    async with serving() as bench:
        client = await bench.connect()
        client.ask(1)
        await client.receive()
        client.ask(1)
        await client.receive()
        bench.service.handle = bench.service.never
        client.ask(1)
        client.ask(1)
        assert isinstance(await client.error(0), InvalidRequestError)
        assert await client.ended()
        await bench.until(lambda: bench.service.cancelled == 1)


async def test_a_request_can_be_cancelled():
    """Its handler ends, and nothing is answered; of one that is not there, too."""
    async with serving() as bench:
        client = await bench.connect()
        bench.service.handle = bench.service.never
        client.ask(1)
        await bench.until(lambda: bench.service.requests)
        client.send(Kind.CANCEL, correlation=1)
        client.send(Kind.CANCEL, correlation=2)
        await bench.until(lambda: bench.service.cancelled)
        bench.service.handle = bench.service.echo
        client.ask(1)
        assert (await client.receive())[0].kind == Kind.ANSWER


async def test_requests_that_are_cancelled_as_they_come_leave_their_places():
    """Both frames come at once: each has begun, and its task has not. They hold all places of the caller."""
    async with serving(places=(10, 5)) as bench:
        client = await bench.connect()
        bench.service.handle = bench.service.never
        for number in range(1, 6):
            client.ask(number)
            client.send(Kind.CANCEL, correlation=number)
        client.ask(6, method=99)
        assert isinstance(await client.error(6), InvalidRequestError)
        bench.service.handle = bench.service.echo
        client.ask(7)
        header, *_ = await client.receive()
        assert (header.kind, header.correlation) == (Kind.ANSWER, 7)
        assert bench.service.cancelled == 5


async def test_a_request_that_waits_for_nothing_needs_no_task(monkeypatch):
    """Requests that came together are answered in order, in the turn of the event loop in which they arrived."""
    tasks = []
    monkeypatch.setattr(connections, "begin", lambda *arguments: tasks.append(begin(*arguments)))
    async with serving() as bench:
        client = await bench.connect()
        for number in range(1, 4):
            client.ask(number)
        assert [(await client.receive())[0].correlation for _ in range(3)] == [1, 2, 3]
        assert tasks == [None, None, None]


async def test_requests_that_begin_in_one_turn_have_contexts_of_their_own():
    """The caller and the id of a request that waits stay its own while others begin behind it."""
    async with serving() as bench:
        client = await bench.connect()
        gate, ids = asyncio.Event(), []

        async def waits(message):
            if len(bench.service.requests) == 3:
                gate.set()
            await gate.wait()
            ids.append(request_id())
            return OutgoingMessage(b"")

        bench.service.handle = waits
        for number in range(1, 4):
            client.ask(number, request_id=b"request-%d" % number)
        for _ in range(3):
            await client.receive()
        assert sorted(ids) == ["request-1", "request-2", "request-3"]


async def test_a_request_whose_time_is_up_ends(monkeypatch):
    """Though its client waits on."""
    monkeypatch.setattr(servers, "LOOK_SECONDS", 0.01)
    async with serving() as bench:
        client = await bench.connect()
        bench.service.handle = bench.service.never
        client.ask(1, timeout_ms=1)
        assert isinstance(await client.error(), TimedOutError)
        assert bench.service.cancelled == 1


async def test_a_client_that_leaves_takes_its_requests_along():
    """Its handlers are cancelled, its places free again."""
    async with serving(places=(3, 3)) as bench:
        client = await bench.connect()
        bench.service.handle = bench.service.never
        for number in (1, 2, 3):
            client.ask(number)
        await bench.until(lambda: len(bench.service.requests) == 3)
        await client.close()
        await bench.until(lambda: bench.service.cancelled == 3)
        other = await bench.connect()
        for number in (1, 2, 3):
            other.ask(number)
        await bench.until(lambda: len(bench.service.requests) == 6)


async def test_a_lost_connection_holds_no_buffer():
    """The connection itself may wait for the garbage collector for minutes."""
    async with serving() as bench:
        client = await bench.connect()
        (connection,) = bench.server._connections
        await client.close()
        await bench.until(lambda: bench.metric("connections") == 0)
        assert not connection._reader.buffer()


async def test_no_request_begins_after_its_connection_is_lost():
    """Those that were received and waited for their turn are dropped."""
    async with serving() as bench:
        client = await bench.connect()
        bench.service.handle = bench.service.never
        for number in range(1, 3 * MAX_REQUESTS + 1):
            client.ask(number)
        await bench.until(lambda: len(bench.service.requests) == MAX_REQUESTS)
        next(iter(bench.server._connections)).end("a test")
        await bench.until(lambda: bench.service.cancelled == MAX_REQUESTS)
        other = await bench.connect()
        bench.service.handle = bench.service.echo
        other.ask()
        await other.receive()
        assert len(bench.service.requests) == MAX_REQUESTS + 1


async def test_a_caller_has_so_many_places():
    """Beyond them it is told to wait; health and others have their own."""
    async with serving(places=(10, 2)) as bench:
        client = await bench.connect()
        bench.service.handle = bench.service.never
        for number in (1, 2, 3):
            client.ask(number)
        error = await client.error(3)
        assert isinstance(error, ThrottledError)
        assert error.retry_after_ms


def answers_after(waits):
    """A handler that answers once the event is set."""

    async def handle(message):
        await waits.wait()
        return OutgoingMessage(b"")

    return handle


async def test_too_many_unanswered_requests_are_not_read():
    """The client is held back, not refused; all of them are answered in the end."""
    async with serving() as bench:
        client, waits = await bench.connect(), asyncio.Event()
        bench.service.handle = answers_after(waits)
        for number in range(1, 3 * MAX_REQUESTS + 1):
            client.ask(number)
        await bench.until(lambda: len(bench.service.requests) == MAX_REQUESTS)
        await asyncio.sleep(0.05)
        assert len(bench.service.requests) == MAX_REQUESTS
        waits.set()
        answered = {(await client.receive())[0].correlation for _ in range(3 * MAX_REQUESTS)}
        assert answered == set(range(1, 3 * MAX_REQUESTS + 1))


async def test_refusals_that_are_not_read_are_bounded():
    """They cost no more than requests: a client that reads nothing is not read either, and all are answered."""
    async with serving() as bench:
        client, count = await bench.connect(), 2_000
        (connection,) = bench.server._connections
        connection.pause_writing()  # As if its socket were full.
        for number in range(1, count + 1):
            client.ask(number, timeout_ms=0)
        await bench.until(lambda: connection._is_paused)
        assert len(connection._outgoing._waiting) < MAX_REQUESTS
        connection.resume_writing()
        for number in range(1, count + 1):
            assert isinstance(await client.error(number), DeadlineRequiredError)


async def test_a_request_can_be_cancelled_though_too_many_are_unanswered():
    """Where there is a request in between that waits, too; the waiting one is then served."""
    async with serving() as bench:
        client = await bench.connect()
        bench.service.handle = bench.service.never
        for number in range(1, MAX_REQUESTS + 2):
            client.ask(number)
        await bench.until(lambda: len(bench.service.requests) == MAX_REQUESTS)
        bench.service.handle = bench.service.echo
        client.send(Kind.CANCEL, correlation=5)
        header, *_ = await client.receive()
        assert (header.kind, header.correlation) == (Kind.ANSWER, MAX_REQUESTS + 1)
        assert bench.service.cancelled == 1


@pytest.mark.parametrize("waiting_bytes", [0, 2 * STAGE_BYTES])
async def test_a_client_that_leaves_is_noticed_though_too_many_requests_are_unanswered(monkeypatch, waiting_bytes):
    """Also where more has arrived behind them than is read."""
    monkeypatch.setattr(servers, "LOOK_SECONDS", 0.01)
    async with serving() as bench:
        client = await bench.connect()
        bench.service.handle = bench.service.never
        for number in range(1, MAX_REQUESTS + 1):
            client.ask(number, timeout_ms=600_000)
        for number in range(waiting_bytes // 1_000):
            client.ask(1_000 + number, "x" * 1_000)
        await bench.until(lambda: len(bench.service.requests) == MAX_REQUESTS)
        await client.close()
        await bench.until(lambda: bench.service.cancelled == MAX_REQUESTS)
        await bench.until(lambda: bench.metric("connections") == 0)


async def test_requests_that_wait_for_others_are_not_half_a_frame(monkeypatch):
    """However long that takes."""
    monkeypatch.setattr(servers, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(framed, "FRAME_SECONDS", 0.05)
    async with serving() as bench:
        client, waits = await bench.connect(), asyncio.Event()
        bench.service.handle = answers_after(waits)
        for number in range(1, MAX_REQUESTS + 3):
            client.ask(number)
        await bench.until(lambda: len(bench.service.requests) == MAX_REQUESTS)
        await asyncio.sleep(0.2)
        waits.set()
        answered = {(await client.receive())[0].correlation for _ in range(MAX_REQUESTS + 2)}
        assert answered == set(range(1, MAX_REQUESTS + 3))


async def test_who_says_nothing_or_half_of_it_is_cut_off(monkeypatch):
    """A connection without a Hello, and one that stops within a frame; the others stay."""
    monkeypatch.setattr(servers, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(framed, "HELLO_SECONDS", 0.05)
    monkeypatch.setattr(framed, "FRAME_SECONDS", 0.05)
    async with serving() as bench:
        fine, silent, half = await bench.connect(), await bench.open(), await bench.connect()
        half.sending.write(frame_head(Kind.REQUEST, b"", method=1, correlation=1, timeout_ms=1, attached=1_000_000))
        assert await silent.ended()
        assert await half.ended()
        fine.ask()
        assert (await fine.receive())[0].kind == Kind.ANSWER


async def test_a_client_that_does_not_read_is_cut_off(monkeypatch):
    """Its answers are dropped, with what they hold."""
    monkeypatch.setattr(servers, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(framed, "STALL_SECONDS", 0.05)
    async with serving() as bench:
        client, closed = await bench.connect(), []

        async def much(message):
            return OutgoingMessage(b"", [bytes(64 << 20)], close=lambda: closed.append(1))

        bench.service.handle = much
        client.ask(1)
        client.ask(2)
        await bench.until(lambda: len(closed) == 2)
        await bench.until(lambda: bench.metric("connections") == 0)


async def test_an_idle_connection_is_closed(monkeypatch):
    """It is told before; one with a request stays."""
    monkeypatch.setattr(servers, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(servers, "IDLE_SECONDS", 0.05)
    async with serving() as bench:
        bench.service.handle = bench.service.never
        busy = await bench.connect()
        busy.ask()
        await bench.until(lambda: bench.service.requests)
        idle = await bench.connect()
        assert (await idle.receive())[0].kind == Kind.GOODBYE
        assert await idle.ended()
        assert bench.metric("connections") == 1


async def test_a_request_that_was_on_its_way_at_a_goodbye_is_refused(monkeypatch):
    """So that its client knows that it was not applied."""
    monkeypatch.setattr(servers, "LOOK_SECONDS", 3_600)
    async with serving() as bench:
        client = await bench.connect()
        next(iter(bench.server._connections)).say_goodbye()
        client.ask()
        assert (await client.receive())[0].kind == Kind.GOODBYE
        error = await client.error()
        assert isinstance(error, ShuttingDownError)
        assert error.outcome == Outcome.NOT_APPLIED
        assert not bench.service.requests


async def test_a_stop_refuses_requests_that_were_on_their_way_to_an_idle_connection(monkeypatch):
    """It waits for them for a while, or until the client ends the connection."""
    monkeypatch.setattr(servers, "LOOK_SECONDS", 3_600)
    async with serving() as bench, asyncio.timeout(SECONDS):
        client = await bench.connect()
        stopping = asyncio.create_task(bench.server.stop(3_600))
        assert (await client.receive())[0].kind == Kind.GOODBYE
        client.ask()
        error = await client.error()
        assert isinstance(error, ShuttingDownError)
        assert error.outcome == Outcome.NOT_APPLIED
        await client.close()
        await stopping
        monkeypatch.setattr(servers, "LOOK_SECONDS", 0.01)
    async with serving() as bench, asyncio.timeout(SECONDS):
        silent = await bench.connect()
        await bench.server.stop(3_600)
        assert await silent.ended()


async def test_a_stop_does_not_wait_for_overdue_requests(monkeypatch):
    """They are cancelled at their deadline, as before."""
    monkeypatch.setattr(servers, "LOOK_SECONDS", 0.01)
    async with serving() as bench:
        bench.service.handle = bench.service.never
        client = await bench.connect()
        client.ask(timeout_ms=50)
        await bench.until(lambda: bench.service.requests)
        async with asyncio.timeout(SECONDS):
            await bench.server.stop(3_600)
        assert (await client.receive())[0].kind == Kind.GOODBYE
        assert isinstance(await client.error(), TimedOutError)


async def test_a_stop_lets_requests_end(monkeypatch):
    """New ones are refused, and no connection is taken."""
    monkeypatch.setattr(servers, "LOOK_SECONDS", 0.01)
    async with serving() as bench:
        client, waits = await bench.connect(), bench.answer_later()
        client.ask(1)
        await bench.until(lambda: bench.service.requests)
        stopping = asyncio.create_task(bench.server.stop(SECONDS))
        assert (await client.receive())[0].kind == Kind.GOODBYE
        client.ask(2)
        assert isinstance(await client.error(2), ShuttingDownError)
        with pytest.raises(ConnectionRefusedError):
            await bench.open()
        waits.set()
        assert (await client.receive())[1] == b"late"
        assert await client.ended()
        await stopping


async def test_the_longest_idle_connection_makes_room():
    """An address has at most its share; one that comes anew finds a place, one without a request goes."""
    async with serving(max_connections=4) as bench:
        first = await bench.connect()
        await bench.connect()
        await bench.connect()
        assert (await first.receive())[0].kind == Kind.GOODBYE
        assert await first.ended()
        assert bench.metric("connections") == 2
        await bench.connect("127.0.0.2")
        assert bench.metric("connections") == 3


async def test_a_connection_without_room_is_closed():
    """Where all that are there have requests: counted, for their clients use gRPC then."""
    async with serving(max_connections=2) as bench:
        bench.service.handle = bench.service.never
        busy = await bench.connect()
        busy.ask()
        await bench.until(lambda: bench.service.requests)
        refused = await bench.open()
        assert await refused.ended()
        assert bench.metric("refused_total") == 1


async def fill(bench, client):
    """Let a client without a request not read what it was sent."""
    client.sending.transport.pause_reading()
    client.ask()
    await bench.until(lambda: any(not each._outgoing.is_empty for each in bench.server._connections))
    await bench.until(lambda: all(each.idle_since is not None for each in bench.server._connections))


async def much(message):
    return OutgoingMessage(b"", [bytes(32 << 20)])


async def test_a_connection_with_an_unread_answer_makes_no_room():
    """It would stay open, and be counted no more: the new one is closed, until the time of the other is up."""
    async with serving(max_connections=2) as bench:
        bench.service.handle = much
        await fill(bench, await bench.connect())
        refused = await bench.open()
        assert await refused.ended()
        assert bench.metric("connections") == 1
        assert bench.metric("refused_total") == 1


async def test_a_connection_that_made_room_and_reads_nothing_is_cut_off(monkeypatch):
    """Its goodbye waits in vain: it leaves no open file behind."""
    monkeypatch.setattr(servers, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(framed, "STALL_SECONDS", 0.05)
    monkeypatch.setattr(framed.FramedConnection, "is_idle", property(lambda self: self.idle_since is not None))
    async with serving(max_connections=2) as bench:
        bench.service.handle = much
        await fill(bench, await bench.connect())
        evicted = next(iter(bench.server._connections))
        await bench.connect()
        await bench.until(lambda: evicted not in bench.server._connections)
        await bench.until(lambda: evicted not in bench.server._evicted)
        assert evicted._transport.get_extra_info("socket").fileno() == -1


async def test_large_requests_that_arrive_are_bounded(monkeypatch):
    """Who has half of a large request on its way is told to wait before there is memory for the next one."""
    monkeypatch.setattr(servers, "MAX_ARRIVING_BYTES", 4 << 20)
    async with serving() as bench:
        half, client = await bench.connect(), await bench.connect()
        head = frame_head(
            Kind.REQUEST, b"", method=MethodCode.PRODUCE, correlation=1, attached=3 << 20, timeout_ms=1_000
        )
        half.sending.write(head + bytes(STAGE_BYTES))
        await bench.until(lambda: any(each.arriving_bytes for each in bench.server._connections))
        client.produce(7, [bytes(1 << 20)])
        assert isinstance(await client.error(7), ThrottledError)
        await half.close()
        await bench.until(lambda: bench.metric("connections") == 1)
        client.produce(8, [bytes(1 << 20)])
        assert (await client.receive())[0].kind == Kind.ANSWER


async def test_a_large_request_is_counted_until_its_last_byte(monkeypatch):
    """One that lacks a byte holds its memory as one that lacks all."""
    monkeypatch.setattr(servers, "MAX_ARRIVING_BYTES", 4 << 20)
    async with serving() as bench:
        almost, client = await bench.connect(), await bench.connect()
        head = frame_head(
            Kind.REQUEST, b"", method=MethodCode.PRODUCE, correlation=1, attached=3 << 20, timeout_ms=1_000
        )
        almost.sending.write(head + bytes((3 << 20) - 1))
        await bench.until(lambda: any(each._reader.missing == 1 for each in bench.server._connections))
        client.produce(7, [bytes(1 << 20)])
        assert isinstance(await client.error(7), ThrottledError)


@pytest.mark.parametrize("is_cached", [True, False])
async def test_a_file_leaves_by_the_kernel(log, monkeypatch, is_cached):
    """Its bytes, a verdict behind them, and its pin is released; what is not in the page cache is loaded before."""
    if not is_cached:
        monkeypatch.setattr("headrace.log.slices.Slice.is_cached", lambda self: False)
    async with serving() as bench:
        client = await bench.connect()
        found = log.reader.read(0, 1 << 30, log.log_end_offset)
        expected, closed = found.read(), []

        async def send(message):
            return OutgoingMessage(b"m", [found], lambda: True, lambda: closed.append(found.close()))

        bench.service.handle = send
        client.ask(1)
        header, message, attached = await client.receive()
        assert (header.kind, header.flags, message) == (Kind.ANSWER, CONFIRMED, b"m")
        assert attached == expected
        header, *_ = await client.receive()
        assert (header.kind, header.correlation) == (Kind.CONFIRM, 1)
        await bench.until(lambda: closed)
        assert bench.metric("sent_bytes_total") == len(expected)


@pytest.mark.parametrize("begins", [False, True])
async def test_a_file_leaves_where_sendfile_does_not_work(log, monkeypatch, begins):
    """A system or a file system without it: the same bytes leave by the process, also behind what had left before."""
    true_sendfile, calls = os.sendfile, []

    def refuse(target, source, position, size_bytes):
        calls.append(position)
        if begins and len(calls) == 1:
            return true_sendfile(target, source, position, 1_000)
        raise OSError(errno.EINVAL, "not from this file")

    monkeypatch.setattr(os, "sendfile", refuse)
    async with serving() as bench:
        client = await bench.connect()
        found = log.reader.read(0, 1 << 30, log.log_end_offset)
        expected = found.read()

        async def send(message):
            return OutgoingMessage(b"m", [found], lambda: True, found.close)

        bench.service.handle = send
        client.ask(1)
        header, message, attached = await client.receive()
        assert (header.kind, message) == (Kind.ANSWER, b"m")
        assert attached == expected
        assert len(calls) == 1 + begins


async def test_a_log_that_was_cut_meanwhile_is_discarded(log):
    """The client hears it after the bytes."""
    async with serving() as bench:
        client = await bench.connect()
        found = log.reader.read(0, 1 << 30, log.log_end_offset)

        async def send(message):
            return OutgoingMessage(b"m", [found], lambda: False, found.close)

        bench.service.handle = send
        client.ask(1)
        assert (await client.receive())[0].flags == CONFIRMED
        header, *_ = await client.receive()
        assert (header.kind, header.correlation) == (Kind.DISCARD, 1)


async def test_a_file_that_ends_too_early_ends_the_connection(log):
    """Half an answer is there: nothing else can follow it; whose file it is learns that it is corrupt."""
    async with serving() as bench:
        client, closed, failed = await bench.connect(), [], []
        found = log.reader.read(0, 1 << 30, log.log_end_offset)
        found.size_bytes += 1_000

        async def send(message):
            close = lambda: closed.append(found.close())  # noqa: E731
            return OutgoingMessage(b"m", [found], lambda: True, close, lambda *met: failed.append(met))

        bench.service.handle = send
        client.ask(1)
        assert await client.ended()
        await bench.until(lambda: closed)
        ((piece, error),) = failed
        assert piece is found
        assert type(error) is CorruptLogError


async def test_a_disk_that_fails_sendfile_fails_the_log(log, monkeypatch):
    """Not all pages of a range are looked at before: without it, each reader would be cut off there for ever."""

    def fail(*_):
        raise OSError(errno.EIO, "a bad sector")

    monkeypatch.setattr(os, "sendfile", fail)
    async with serving() as bench:
        client, failed = await bench.connect(), []
        found = log.reader.read(0, 1 << 30, log.log_end_offset)

        async def send(message):
            return OutgoingMessage(b"m", [found], lambda: True, found.close, lambda *met: failed.append(met))

        bench.service.handle = send
        monkeypatch.setattr(found._files.filesystem, "pread", fail, raising=False)
        client.ask(1)
        assert await client.ended()
        ((piece, error),) = failed
        assert piece is found
        assert type(error) is StorageOfflineError


async def test_a_file_is_released_where_the_connection_is_lost_before_it_is_sent(log):
    """In the same turn of the event loop in which the answer was made."""
    async with serving() as bench:
        await bench.connect()
        (connection,) = bench.server._connections
        found, closed = log.reader.read(0, 1 << 30, log.log_end_offset), []
        connection._outgoing.put([found], lambda: closed.append(found.close()))
        connection._outgoing.close()
        await bench.until(lambda: closed)


class Loads:
    """Slices that are not in the page cache until a thread of the test lets them be loaded."""

    def __init__(self, monkeypatch):
        self.begun, self.gate = [], threading.Event()
        monkeypatch.setattr("headrace.log.slices.Slice.is_cached", lambda found: False)

        def load(found):
            self.begun.append(found)
            assert self.gate.wait(SECONDS)

        monkeypatch.setattr("headrace.log.slices.Slice.load", load)


@pytest.mark.parametrize("is_begun", [True, False])
async def test_a_file_is_released_once_no_thread_reads_it(log, monkeypatch, is_begun):
    """The connection is lost while a thread loads what is sent, or what is sent next."""
    loads = Loads(monkeypatch)
    async with serving() as bench:
        await bench.connect()
        (connection,) = bench.server._connections
        closed = []
        for number in range(2):
            found = log.reader.read(0, 1 << 30, log.log_end_offset)
            connection._outgoing.put([found], lambda found=found, number=number: closed.append((number, found.close())))
            if is_begun:
                await bench.until(lambda number=number: len(loads.begun) > number)
        connection._outgoing.close()
        if is_begun:
            await bench.until(lambda: connection._outgoing._sending is None)
            assert not closed
        loads.gate.set()
        await bench.until(lambda: len(closed) == 2)


async def test_what_is_sent_next_is_loaded_before_its_turn(log, monkeypatch):
    """While the message in front of it is loaded; of those behind, not all at once."""
    loads = Loads(monkeypatch)
    async with serving() as bench:
        client, slices = await bench.connect(), []

        async def send(message):
            slices.append(log.reader.read(0, 1 << 30, log.log_end_offset))
            return OutgoingMessage(b"m", [slices[-1]], close=slices[-1].close)

        bench.service.handle = send
        for number in range(1, 6):
            client.ask(number)
        await bench.until(lambda: len(slices) == 5 and len(loads.begun) == 1 + outgoing.LOADED_AHEAD)
        assert loads.begun == slices[: 1 + outgoing.LOADED_AHEAD]
        loads.gate.set()
        for number in range(1, 6):
            assert (await client.receive())[0].correlation == number
        assert len(loads.begun) >= 5


async def test_a_client_is_not_cut_off_while_the_disk_is_slow(log, monkeypatch):
    """It would read the answer: neither its connection nor its address pays for the disk."""
    monkeypatch.setattr(servers, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(framed, "STALL_SECONDS", 0.1)
    loads = Loads(monkeypatch)
    async with serving() as bench:
        client, slices = await bench.connect(), []

        async def send(message):
            slices.append(log.reader.read(0, 1 << 30, log.log_end_offset))
            return OutgoingMessage(b"m", [slices[-1]], close=slices[-1].close)

        bench.service.handle = send
        client.ask(1)
        client.ask(2)
        await bench.until(lambda: len(loads.begun) == 2)
        (connection,) = bench.server._connections
        looked, look = [], connection.look

        def look_and_note(now):
            looked.append(now)
            look(now)

        connection.look = look_and_note
        await bench.until(lambda: not bench.server._connections or (looked and looked[-1] - looked[0] > 0.3))
        loads.gate.set()
        for number in (1, 2):
            assert (await client.receive())[0].correlation == number
        assert bench.metric("broken_total") == 0


async def test_answers_behind_a_file_keep_their_order(log):
    """Small ones that come while the kernel sends wait for their place; a slow client gets all of them."""
    async with serving() as bench:
        client = await bench.connect()

        async def send(message):
            if message.client_id == "file":
                found = log.reader.read(0, 1 << 30, log.log_end_offset)
                return OutgoingMessage(b"m", [found], lambda: True, found.close)
            return OutgoingMessage(message.client_id.encode())

        bench.service.handle = send
        for number in range(1, 61):
            client.ask(number, "file" if number % 3 == 0 else str(number))
        answered, last = [], None
        while len(answered) < 60:
            header, *_ = await client.receive()
            if header.kind == Kind.CONFIRM:
                assert header.correlation == last
            else:
                answered.append(header.correlation)
                last = header.correlation
        assert sorted(answered) == list(range(1, 61))


async def test_others_have_a_turn_between_connections_that_wait():
    """A flood of connections in the kernel's queue is not accepted in one turn of the event loop."""
    count, at_once = 100, 0
    async with serving(max_connections=4 * count) as bench:
        with contextlib.ExitStack() as stack:
            for _ in range(count):
                stack.enter_context(socket.create_connection((bench.host, bench.port), SECONDS))
            before = 0
            async with asyncio.timeout(SECONDS):
                while before < count:
                    await asyncio.sleep(0)
                    accepted = len(bench.server._connections)
                    at_once, before = max(at_once, accepted - before), accepted
    assert at_once <= 2


async def test_a_connection_that_only_sends_requests_without_identity_is_ended(monkeypatch):
    """Each refusal costs as much as a wrong session; another connection from the address stays."""
    monkeypatch.setattr(wasted_calls, "CALLS_AT_ONCE", 20)
    async with serving(gate=gate_over(WrittenKeys(), ManualClock(), auth_pb2.POSTURE_REQUIRED)) as bench:
        silent = await bench.connect("127.0.0.5")
        client = await bench.connect("127.0.0.5")
        for number in range(1, 61):
            client.ask(number)
        assert isinstance(await client.error(1), UnauthenticatedError)
        assert await client.ended()
        assert not silent.receiving.at_eof()


async def test_a_new_session_that_cannot_be_checked_yet_refuses_later_requests_only(monkeypatch):
    """Without etcd a broker may lack the key of its token. Earlier requests are answered; it is checked again later."""
    gate, unavailable = open_gate(), ["new"]
    identify = gate.identify

    def identify_later(token, *arguments):
        if token in unavailable:
            raise MetastoreUnavailableError("no such key yet", outcome=Outcome.NOT_APPLIED)
        return identify("", *arguments)

    monkeypatch.setattr(gate, "identify", identify_later)
    async with serving(gate=gate) as bench:
        client, waits = await bench.connect(), bench.answer_later()
        client.ask(1)
        client.send(Kind.SESSION, b"new")
        client.ask(2)
        error = await client.error(2)
        assert isinstance(error, MetastoreUnavailableError)
        assert error.outcome == Outcome.NOT_APPLIED
        waits.set()
        assert (await client.receive())[1] == b"late"
        unavailable.clear()
        client.ask(3)
        assert (await client.receive())[0].correlation == 3


async def test_an_address_whose_connections_end_without_a_greeting_is_kept_out(monkeypatch):
    """They cost the event loop as much as those with a wrong session."""
    monkeypatch.setattr(wasted_calls, "CALLS_AT_ONCE", 20)
    monkeypatch.setattr(wasted_calls, "CALLS_PER_SECOND", 1)  # A slow machine makes few connections in one.
    async with serving() as bench:
        for _ in range(30):
            await (await bench.open("127.0.0.6")).close()
        await bench.until(lambda: bench.server._wasted.is_shut_out("127.0.0.6"))


async def test_an_address_whose_connections_are_reset_before_they_are_accepted_is_kept_out(monkeypatch):
    """Such a socket does not say whose it was, but its acceptance did."""
    monkeypatch.setattr(wasted_calls, "CALLS_AT_ONCE", 20)
    monkeypatch.setattr(wasted_calls, "CALLS_PER_SECOND", 1)  # A slow machine makes few connections in one.
    async with serving() as bench:
        for _ in range(30):
            with socket.create_connection((bench.host, bench.port), SECONDS, ("127.0.0.7", 0)) as reset:
                reset.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("@ii", 1, 0))
        await bench.until(lambda: bench.server._wasted.is_shut_out("127.0.0.7"))


async def test_a_connection_that_ends_for_one_of_another_address_is_not_its_clients_waste():
    """It is waste of all, which limits floods from many addresses; for one of its own address it is its client's."""
    async with serving(max_connections=3) as bench:
        charged = bench.server._wasted._rates._paid_at
        for address in ("127.0.0.2", "127.0.0.3", "127.0.0.4"):
            await bench.open(address)
            await bench.until(lambda known=address: known in bench.server._hosts)
        await bench.open("127.0.0.5")
        assert await bench.clients[0].ended()
        assert list(charged) == [("", "all")]
        await bench.open("127.0.0.5")
        assert await bench.clients[3].ended()
        assert set(charged) == {("", "all"), ("127.0.0.5", "calls")}


@pytest.mark.parametrize(("posture", "noted"), [(auth_pb2.POSTURE_OPEN, ["127.0.0.1"]), (auth_pb2.POSTURE_OBSERVE, [])])
async def test_requests_of_callers_without_an_identity_are_not_noted(posture, noted):
    """Unless no caller needs one: they would push honest callers out of the list of those that were served."""
    async with serving(gate=gate_over(WrittenKeys(), ManualClock(), posture)) as bench:
        client = await bench.connect()
        client.ask()
        assert (await client.receive())[0].kind == Kind.ANSWER
        assert list(bench.server._wasted._served) == noted
