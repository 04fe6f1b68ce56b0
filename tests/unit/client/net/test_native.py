"""The native protocol by both clients, from a server that does as a test says: what falls back, what is raised."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import socket
import sys
import threading
import time
from functools import partial

import pytest
from headrace.client.base.config import ConsumerConfig
from headrace.client.base.errors import ClosedError
from headrace.client.base.operations import Call
from headrace.client.net import native_ports
from headrace.client.net.native import NativeConnections
from headrace.client.net.native_async import AsyncNativeConnections
from headrace.client.net.native_calls import NATIVE_METHODS, NativeRequest, native_request, not_connected
from headrace.client.net.native_ports import NativePorts
from headrace.client.net.native_sockets import LOOK_S, PlainSocket
from headrace.client.net.security import ChannelSecurity
from headrace.v1 import broker_pb2, cluster_pb2, native_pb2
from headrace.wire.errors import (
    InternalError,
    NotLeaderError,
    Outcome,
    ThrottledError,
    TimedOutError,
    TransportError,
    UnsupportedVersionError,
    to_detail,
)
from headrace.wire.frames import (
    CLIENT_KINDS,
    CONFIRMED,
    MAX_TIMEOUT_MS,
    PREFACE,
    FrameReader,
    Kind,
    MethodCode,
    frame_head,
)
from headrace.wire.releases import CAPABILITIES, RELEASE

SECONDS = 10.0
BROKER = "broker.example:7181"
FETCH = NATIVE_METHODS["broker", "FetchZeroCopy"]
FETCHED = NativeRequest(MethodCode.FETCH, b"", (), SECONDS, "5f-1")


def welcome(release=RELEASE):
    message = native_pb2.Welcome(answered_by="broker-1", max_requests=64)
    message.handshake.release = release
    message.handshake.capabilities.extend(CAPABILITIES)
    return frame_head(Kind.WELCOME, message.SerializeToString())


def answer(number, batches=b"batches", flags=0, size=None):
    response = broker_pb2.FetchResponse()
    response.topics.add(name="t").partitions.add(partition=3, batches_size=len(batches) if size is None else size)
    message = response.SerializeToString()
    head = frame_head(
        Kind.ANSWER, message, method=MethodCode.FETCH, flags=flags, correlation=number, attached=len(batches)
    )
    return head + batches


def error(number, what):
    return frame_head(Kind.ERROR, to_detail(what).SerializeToString(), correlation=number)


class Port:
    """Greets, then does for each request what `behave(port, connection, frame)` does."""

    def __init__(self, behave, greeting=None):
        self.behave = behave
        self.greeting = welcome() if greeting is None else greeting
        self.frames = []
        self.connections = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.threads = [threading.Thread(target=self.accept, daemon=True)]
        self.threads[0].start()

    def accept(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.connections.append(connection)
            self.threads.append(threading.Thread(target=self.serve, args=(connection,), daemon=True))
            self.threads[-1].start()

    def serve(self, connection):
        reader = FrameReader(CLIENT_KINDS, lambda header: True, PREFACE)
        with contextlib.suppress(OSError):
            while count := connection.recv_into(reader.buffer()):
                reader.received(count)
                while (frame := reader.next_frame()) is not None:
                    self.frames.append(frame)
                    if frame.header.kind == Kind.HELLO:
                        connection.sendall(self.greeting)
                    elif frame.header.kind == Kind.REQUEST:
                        self.behave(self, connection, frame)

    def requests(self):
        return [frame for frame in self.frames if frame.header.kind == Kind.REQUEST]

    def close(self):
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)  # `accept` ends; `close` alone leaves it waiting.
        self.listener.close()
        self.threads[0].join(SECONDS)
        for connection in self.connections:
            end(connection)
        for thread in self.threads:
            thread.join(SECONDS)
            assert not thread.is_alive()
        for connection in self.connections:
            connection.close()


def end(connection):
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def serve(port, connection, frame):
    connection.sendall(answer(frame.header.correlation))


def hang(port, connection, frame):
    """Answer nothing."""


class Blocking:
    def __init__(self, config):
        self.connections = NativeConnections("Consumer", config, ChannelSecurity(config))

    def fetch(self, timeout=SECONDS, begun=None):
        call = Call(BROKER, "broker", "FetchZeroCopy", broker_pb2.FetchRequest(client_id="me"), timeout, begun)
        return self.connections.call(BROKER, FETCH, partial(native_request, FETCH, call))

    def fetch_while(self, act, timeout=SECONDS):
        """Fetch, and meanwhile do something else."""
        raised = []

        def fetch():
            try:
                raised.append(self.fetch(timeout))
            except Exception as failure:
                raised.append(failure)

        thread = threading.Thread(target=fetch)
        thread.start()
        act()
        thread.join(SECONDS)
        assert not thread.is_alive()
        return raised[0]

    def begin(self, done, request=None):
        return self.connections.begin(BROKER, lambda: request or FETCHED, done)

    def until(self, condition):
        for _ in range(2_000):
            if condition():
                return
            threading.Event().wait(0.005)
        raise AssertionError("it did not happen")

    def close_now(self):
        self.connections.close()

    close = close_now


class Looping:
    def __init__(self, config):
        self.loop = asyncio.new_event_loop()
        self.connections = AsyncNativeConnections("Reader", config, ChannelSecurity(config))

    def request(self, timeout, begun=None):
        call = Call(BROKER, "broker", "FetchZeroCopy", broker_pb2.FetchRequest(client_id="me"), timeout, begun)
        return partial(native_request, FETCH, call)

    def fetch(self, timeout=SECONDS, begun=None):
        return self.loop.run_until_complete(self.connections.call(BROKER, FETCH, self.request(timeout, begun)))

    def fetch_while(self, act, timeout=SECONDS):
        async def both():
            fetching = asyncio.create_task(self.connections.call(BROKER, FETCH, self.request(timeout)))
            await asyncio.sleep(0)
            acting = asyncio.get_running_loop().run_in_executor(None, act) if act != self.close_now else None
            if acting is None:
                act()
            else:
                await acting
            return (await asyncio.gather(fetching, return_exceptions=True))[0]

        return self.loop.run_until_complete(both())

    def close_now(self):
        self.connections.close()

    def begin(self, done, request=None):
        async def begin():
            return self.connections.begin(BROKER, lambda: request or FETCHED, done)

        return self.loop.run_until_complete(begin())

    def until(self, condition):
        async def wait():
            async with asyncio.timeout(SECONDS):
                while not condition():  # noqa: ASYNC110 - what it waits for is a thread of the test
                    await asyncio.sleep(0.005)

        self.loop.run_until_complete(wait())

    def close(self):
        self.connections.close()
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.close()


def client_of(kind, port_address, transport="auto"):
    """Return a client to which metadata has named the port, in a context manager that closes it."""
    client = kind(ConsumerConfig(transport=transport))
    response = cluster_pb2.GetMetadataResponse()
    response.brokers.add(broker_id=1, address=BROKER, native_address=port_address)
    client.connections.ports.learn(response)
    return contextlib.closing(client)


@pytest.fixture(params=[Blocking, Looping])
def make_client(request):
    made = []

    def make(port_address="", transport="auto"):
        closing = client_of(request.param, port_address, transport)
        made.append(closing.thing)
        return closing.thing

    yield make
    for client in made:
        client.close()


@pytest.fixture
def make_port():
    made = []

    def make(behave=serve, **options):
        made.append(Port(behave, **options))
        return made[-1]

    yield make
    for port in made:
        port.close()


def batches(fetched):
    is_answered, spliced = fetched
    assert is_answered
    return [[bytes(each) for each in found] for found in spliced.batches]


def test_a_large_response_is_announced_once_before_its_batches(make_client, make_port):
    """Its message is there while the broker still holds the batches back, and again with them."""
    large = b"b" * 500_000
    announced = threading.Event()

    def in_two_parts(port, connection, frame):
        data = answer(frame.header.correlation, large)
        connection.sendall(data[:-400_000])
        assert announced.wait(SECONDS)
        connection.sendall(data[-400_000:-1])
        connection.sendall(data[-1:])

    found = []

    def begun(response):
        found.append(response.topics[0].partitions[0].batches_size)
        announced.set()

    client = make_client(make_port(in_two_parts).address)
    assert batches(client.fetch(begun=begun)) == [[large]]
    assert found == [len(large)]


def test_a_small_response_is_not_announced(make_client, make_port):
    found = []
    assert batches(make_client(make_port().address).fetch(begun=found.append)) == [[b"batches"]]
    assert not found


def test_calls_share_one_connection(make_client, make_port):
    """Each is answered; the request is the one that gRPC would send, with its deadline and its id."""
    port = make_port()
    client = make_client(port.address)
    for _ in range(3):
        assert batches(client.fetch()) == [[b"batches"]]
    assert len(port.connections) == 1
    (first, *_) = port.requests()
    assert broker_pb2.FetchRequest.FromString(first.message).client_id == "me"
    assert first.header.timeout_ms == SECONDS * 1000
    assert first.request_id


def test_a_large_answer_arrives_whole(make_client, make_port):
    """Some megabytes, confirmed behind."""
    data = bytes(range(256)) * 40_000

    def large(port, connection, frame):
        number = frame.header.correlation
        connection.sendall(answer(number, data, CONFIRMED) + frame_head(Kind.CONFIRM, correlation=number))

    assert batches(make_client(make_port(large).address).fetch()) == [[data]]


def test_what_the_broker_discards_is_not_used(make_client, make_port):
    """The error may be tried again."""

    def discard(port, connection, frame):
        number = frame.header.correlation
        connection.sendall(answer(number, flags=CONFIRMED) + frame_head(Kind.DISCARD, correlation=number))

    with pytest.raises(TransportError, match="the log changed") as raised:
        make_client(make_port(discard).address).fetch()
    assert raised.value.retriable


def test_an_error_of_the_broker_is_raised(make_client, make_port):
    """Typed, and the connection stays."""

    def refuse(port, connection, frame):
        number = frame.header.correlation
        connection.sendall(error(number, ThrottledError("x", retry_after_ms=7)) if number == 1 else answer(number))

    port = make_port(refuse)
    client = make_client(port.address)
    with pytest.raises(ThrottledError) as raised:
        client.fetch()
    assert raised.value.retry_after_ms == 7
    client.fetch()
    assert len(port.connections) == 1


def test_answers_may_come_in_any_order(make_client, make_port):
    """Each request gets its own."""
    waiting = []

    def reverse(port, connection, frame):
        waiting.append(frame.header.correlation)
        if len(waiting) == 3:
            connection.sendall(b"".join(answer(number, b"%d" % number) for number in reversed(waiting)))

    client, answered = make_client(make_port(reverse).address), []
    for _ in range(3):
        client.begin(lambda frame, failure: answered.append((frame.header.correlation, bytes(frame.attachments))))
    client.until(lambda: len(answered) == 3)
    assert answered == [(3, b"3"), (2, b"2"), (1, b"1")]


@pytest.mark.parametrize("goes_on", [True, False])
def test_an_end_that_raises_concerns_no_other_request(make_client, make_port, caplog, goes_on):
    """Both are answered, or lost, at once; the connection is used further if the broker has not ended it."""

    def together(port, connection, frame):
        number = frame.header.correlation
        if number == 2:
            connection.sendall(answer(1) + answer(2)) if goes_on else end(connection)
        elif number > 2 or len(port.connections) > 1:
            connection.sendall(answer(number))

    port, ended = make_port(together), []
    client = make_client(port.address)
    client.begin(lambda frame, failure: 1 // 0)
    client.begin(lambda frame, failure: ended.append(failure))
    client.until(lambda: ended)
    assert (ended == [None]) == goes_on
    assert batches(client.fetch()) == [[b"batches"]]
    assert len(port.connections) == 2 - goes_on
    assert "could not be processed" in caplog.text


def test_a_thread_that_ends_leaves_no_usable_connection(make_port):
    """Nothing would receive for it: later requests take another one, and those in flight end."""
    port = make_port(hang)
    with client_of(Blocking, port.address) as client:
        ended = []
        client.begin(lambda frame, failure: sys.exit(1))
        client.begin(lambda frame, failure: ended.append(failure))
        client.until(lambda: len(port.requests()) == 2)
        port.connections[0].sendall(answer(1))
        client.until(lambda: ended)
        assert [type(failure) for failure in ended] == [TransportError]
        port.behave = serve
        assert batches(client.fetch()) == [[b"batches"]]


def test_a_broker_without_the_protocol_is_called_over_grpc(make_client):
    """Metadata names no address; so with transport='grpc', whatever it names."""
    assert make_client("").fetch() == (False, None)
    assert make_client("127.0.0.1:1", transport="grpc").fetch() == (False, None)


def test_a_port_that_cannot_be_reached_is_avoided(make_client, make_port, monkeypatch, caplog):
    """The call goes over gRPC; the log says so once; after a while it is tried again."""
    port = make_port()
    port.close()
    client = make_client(port.address)
    with caplog.at_level(logging.WARNING, "headrace.client"):
        assert client.fetch() == (False, None)
        assert client.fetch() == (False, None)
        monkeypatch.setattr(native_ports, "AVOID_S", 0.0)
        assert client.fetch() == (False, None)
        assert client.fetch() == (False, None)
    assert len([record for record in caplog.records if "is called over gRPC" in record.message]) == 1
    assert client.connections.ports.fallbacks == 4


def test_one_call_at_a_time_tries_a_port_that_is_avoided(monkeypatch):
    """Where packets are dropped, each try takes a second, for which no other call waits."""
    ports, answer = NativePorts(ConsumerConfig(bootstrap_servers="localhost:1")), cluster_pb2.GetMetadataResponse()
    answer.brokers.add(broker_id=1, address="localhost:1", native_address="localhost:2")
    ports.learn(answer)
    ports.avoid("localhost:1", "localhost:2", not_connected("localhost:2", "it is away"))
    now = time.monotonic()
    for seconds, found in ((0, ["", ""]), (native_ports.AVOID_S + 1, ["localhost:2", ""])):
        monkeypatch.setattr(native_ports.time, "monotonic", lambda seconds=seconds: now + seconds)
        assert [ports.find("localhost:1") for _ in range(2)] == found
    ports.reached("localhost:1")
    assert [ports.find("localhost:1") for _ in range(2)] == ["localhost:2"] * 2


def test_a_port_that_is_lost_again_is_logged_again(make_client, make_port, monkeypatch, caplog):
    """A day may lie between: an outage is logged once, not the first one alone."""
    monkeypatch.setattr(native_ports, "AVOID_S", 0.0)
    port = make_port()
    client = make_client(port.address)
    with caplog.at_level(logging.WARNING, "headrace.client"):
        for greeting, expected in ((b"not a broker" * 10, 1), (welcome(), 1), (b"not a broker" * 10, 2)):
            port.greeting = greeting
            for connection in port.connections:
                end(connection)
            client.until(lambda: not any(each.is_usable for each in client.connections._connections.values()))
            is_answered, _ = client.fetch()
            assert is_answered == (greeting == welcome())
            assert len([record for record in caplog.records if "is called over gRPC" in record.message]) == expected


@pytest.mark.parametrize("address", ["broker..example:7182", "broker.example:one", "127.0.0.1:65536"])
def test_an_address_that_is_none_is_avoided(make_client, address):
    """Whatever a broker publishes, its calls go over gRPC."""
    client = make_client(address)
    assert client.fetch() == (False, None)
    assert client.connections.ports.fallbacks == 1


def test_without_a_way_back_the_error_is_raised(make_client, make_port):
    """transport='native': nothing was sent."""
    port = make_port()
    port.close()
    with pytest.raises(TransportError) as raised:
        make_client(port.address, transport="native").fetch()
    assert raised.value.outcome == Outcome.NOT_APPLIED
    assert raised.value.retriable


@pytest.mark.parametrize("greeting", [b"HTTP/1.1 400 Bad Request\r\n\r\n" + bytes(40), b""])
def test_a_port_of_something_else_is_avoided(make_client, make_port, greeting, monkeypatch):
    """Whatever answers there, or nothing does."""
    monkeypatch.setattr("headrace.client.net.native.CONNECT_S", 0.2)
    monkeypatch.setattr("headrace.client.net.native_async.CONNECT_S", 0.2)
    port = make_port(greeting=greeting)
    assert make_client(port.address).fetch() == (False, None)
    assert not port.requests()


def test_a_broker_of_another_release_is_refused(make_client, make_port):
    """As over gRPC."""
    with pytest.raises(UnsupportedVersionError):
        make_client(make_port(greeting=welcome("9.9.9")).address).fetch()


def test_a_broker_that_refuses_the_client_says_why(make_client, make_port):
    """Its error is about the connection."""
    with pytest.raises(NotLeaderError):
        make_client(make_port(greeting=error(0, NotLeaderError("no"))).address).fetch()


def test_a_connection_beyond_the_quota_uses_grpc(make_client, make_port, caplog):
    """The port is not tried again at once, and the log says why; without gRPC the call fails and may be tried again."""
    too_many = error(0, ThrottledError("ada has 2 connections, its quota", retry_after_ms=1_000))
    port = make_port(greeting=too_many)
    client = make_client(port.address)
    with caplog.at_level(logging.WARNING):
        assert client.fetch() == (False, None)
        assert client.fetch() == (False, None)
    assert len(port.connections) == 1
    assert "ada has 2 connections" in caplog.text
    with pytest.raises(TransportError, match="ada has 2 connections") as raised:
        make_client(make_port(greeting=too_many).address, transport="native").fetch()
    assert (raised.value.outcome, raised.value.retriable) == (Outcome.NOT_APPLIED, True)


@pytest.mark.parametrize("given", [b"", answer(1)[:-3]])
def test_a_lost_connection_leaves_the_outcome_unknown(make_client, make_port, given):
    """The request may have been applied; the next one opens another connection."""

    def leave(port, connection, frame):
        connection.sendall(given if len(port.connections) == 1 else answer(frame.header.correlation))
        if len(port.connections) == 1:
            end(connection)

    port = make_port(leave)
    client = make_client(port.address)
    with pytest.raises(TransportError) as raised:
        client.fetch()
    assert raised.value.outcome == Outcome.UNKNOWN
    assert raised.value.retriable
    assert batches(client.fetch()) == [[b"batches"]]


def test_each_request_of_a_lost_connection_has_an_error_of_its_own(make_client, make_port):
    """Each adds its request id and its traceback."""
    port, ended = make_port(hang), []
    client = make_client(port.address)
    for _ in range(2):
        client.begin(lambda frame, failure: ended.append(failure))
    client.until(lambda: len(port.requests()) == 2)
    end(port.connections[0])
    client.until(lambda: len(ended) == 2)
    first, second = ended
    assert first is not second
    assert (first.message, first.__cause__) == (second.message, second.__cause__)


def test_a_request_that_comes_too_late_for_a_connection_was_not_sent(make_client, make_port):
    """The connection is lost between its choice and the request, whose outcome is therefore known."""
    port, ended = make_port(hang), []
    client = make_client(port.address)
    client.begin(lambda frame, failure: ended.append(failure))
    client.until(port.requests)
    (connection,) = client.connections._connections.values()
    end(port.connections[0])
    client.until(lambda: ended)
    connection.begin(FETCHED, lambda frame, failure: ended.append(failure))
    assert [(type(failure), failure.outcome, failure.retriable) for failure in ended] == [
        (TransportError, Outcome.UNKNOWN, True),
        (TransportError, Outcome.NOT_APPLIED, True),
    ]


def test_a_broken_protocol_ends_the_connection(make_client, make_port):
    """A verdict without its answer."""

    def confuse(port, connection, frame):
        connection.sendall(frame_head(Kind.CONFIRM, correlation=frame.header.correlation))

    with pytest.raises(TransportError):
        make_client(make_port(confuse).address).fetch()


def test_sizes_that_lie_are_an_error(make_client, make_port):
    """Not batches of something else."""

    def lie(port, connection, frame):
        connection.sendall(answer(frame.header.correlation, size=3))

    with pytest.raises(InternalError, match="sent an invalid response"):
        make_client(make_port(lie).address).fetch()


def test_a_call_ends_at_its_deadline(make_client, make_port):
    """The broker is told; a late answer is ignored, and the connection is used further."""

    def late(port, connection, frame):
        if len(port.requests()) > 1:
            connection.sendall(answer(1, b"late" * 30_000) + answer(frame.header.correlation))

    port = make_port(late)
    client = make_client(port.address)
    with pytest.raises(TimedOutError) as raised:
        client.fetch(0.05)
    assert raised.value.outcome == Outcome.UNKNOWN
    assert batches(client.fetch()) == [[b"batches"]]
    client.until(lambda: [frame for frame in port.frames if frame.header.kind == Kind.CANCEL])
    assert len(port.connections) == 1


def test_a_call_ends_at_its_deadline_while_its_connection_is_opened(make_port, monkeypatch):
    """A name may take the system far longer to resolve; the connection is used by later calls."""
    port, resolved, create = make_port(), threading.Event(), socket.create_connection

    def connect(*arguments):
        assert resolved.wait(SECONDS)
        return create(*arguments)

    monkeypatch.setattr(socket, "create_connection", connect)
    with client_of(Blocking, port.address) as client:
        with pytest.raises(TimedOutError):
            client.fetch(timeout=0.05)
        assert not resolved.is_set()
        resolved.set()
        assert batches(client.fetch()) == [[b"batches"]]
        assert len(port.connections) == 1


def test_a_timeout_beyond_the_field_is_the_largest_of_it(make_client, make_port):
    """`request_timeout_ms` has no maximum, and 49 days are as good as any."""
    port = make_port()
    client = make_client(port.address)
    assert batches(client.fetch(timeout=1e12)) == [[b"batches"]]
    assert port.requests()[0].header.timeout_ms == MAX_TIMEOUT_MS


def test_an_idle_connection_looks_at_deadlines(make_port, monkeypatch):
    """Requests do not wake its thread: neither a deadline nor bytes that could not be sent may wait longer."""
    waits = []
    wait = PlainSocket.wait

    def noted(connection, seconds, **options):
        waits.append(seconds)
        return wait(connection, seconds, **options)

    monkeypatch.setattr(PlainSocket, "wait", noted)
    port = make_port()
    with client_of(Blocking, port.address) as client:
        assert batches(client.fetch()) == [[b"batches"]]
        answered = len(waits)
        client.until(lambda: len(waits) > answered)
        assert max(waits) <= LOOK_S
        port.behave = hang
        with pytest.raises(TimedOutError):
            client.fetch(0.05)


def test_a_request_can_be_cancelled(make_client, make_port):
    """It ends at once; a second time nothing happens."""
    port = make_port(hang)
    client, ended = make_client(port.address), []
    cancel = client.begin(lambda frame, failure: ended.append(failure))
    client.until(port.requests)
    cancel()
    cancel()
    assert [type(failure) for failure in ended] == [TimedOutError]
    client.until(lambda: port.frames[-1].header.kind == Kind.CANCEL)


def test_a_request_can_be_cancelled_before_the_broker_has_greeted(make_client, make_port):
    """It is sent with the others that wait for the greeting, and so is its CANCEL."""
    port = make_port(hang, greeting=b"")
    client, ended = make_client(port.address), []
    cancel = client.begin(lambda frame, failure: ended.append(failure))
    client.until(lambda: port.frames)
    cancel()
    assert [type(failure) for failure in ended] == [TimedOutError]
    port.connections[0].sendall(welcome())
    client.until(lambda: [frame.header.kind for frame in port.frames] == [Kind.HELLO, Kind.REQUEST, Kind.CANCEL])


def test_a_client_that_is_closed_ends_its_calls(make_client, make_port):
    """So that no thread or task waits for ever; later ones are refused."""
    port = make_port(hang)
    client = make_client(port.address)

    def close():
        if isinstance(client, Blocking):
            client.until(port.requests)
        client.connections.close()

    act = close if isinstance(client, Blocking) else client.close_now
    assert isinstance(client.fetch_while(act), ClosedError)
    with pytest.raises(ClosedError):
        client.fetch()


def test_after_a_goodbye_requests_take_another_connection(make_client, make_port):
    """Those before are answered on the first."""

    def retire(port, connection, frame):
        number = frame.header.correlation
        is_first = len(port.connections) == 1
        connection.sendall((frame_head(Kind.GOODBYE) if is_first else b"") + answer(number))

    port = make_port(retire)
    client = make_client(port.address)
    assert batches(client.fetch()) == [[b"batches"]]
    assert batches(client.fetch()) == [[b"batches"]]
    assert len(port.connections) == 2


def test_a_client_that_is_closed_ends_its_calls_on_a_connection_with_a_goodbye(make_client, make_port):
    """Another connection has its place, and the broker would leave it open until they are answered."""

    def retire(port, connection, frame):
        is_first = len(port.connections) == 1
        connection.sendall(frame_head(Kind.GOODBYE) if is_first else answer(frame.header.correlation))

    client, ended = make_client(make_port(retire).address), []
    client.begin(lambda frame, failure: ended.append(failure))
    (first,) = client.connections._connections.values()
    client.until(lambda: not first.is_usable)
    assert batches(client.fetch()) == [[b"batches"]]
    assert not ended
    client.close_now()
    client.until(lambda: first.has_ended)
    assert [type(failure) for failure in ended] == [ClosedError]


def test_a_new_address_is_used_at_once(make_client, make_port):
    """A broker that was restarted has another port, and metadata says so."""
    old, new = make_port(), make_port()
    old.close()
    client = make_client(old.address)
    assert client.fetch() == (False, None)
    response = cluster_pb2.GetMetadataResponse()
    response.brokers.add(broker_id=1, address=BROKER, native_address=new.address)
    client.connections.ports.learn(response)
    assert batches(client.fetch()) == [[b"batches"]]


def test_after_ctrl_c_within_a_request_another_connection_is_used(make_port, monkeypatch):
    """How much of the request was sent is unknown: what followed it would be taken for its rest."""
    port = make_port()
    with client_of(Blocking, port.address) as client:
        assert batches(client.fetch()) == [[b"batches"]]
        send = PlainSocket.send

        def interrupt(connection, parts, **options):
            send(connection, [bytes(parts[0])[:-1]], **options)
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(PlainSocket, "send", interrupt)
            with pytest.raises(KeyboardInterrupt):
                client.fetch()
        assert batches(client.fetch()) == [[b"batches"]]
        assert len(port.connections) == 2


def test_ctrl_c_cancels_the_call_that_it_interrupts(make_port, monkeypatch):
    """The broker would serve it until its deadline; the connection is used further."""
    port = make_port(hang)

    class Interrupted(queue.SimpleQueue):
        def get(self, *arguments, **options):
            monkeypatch.undo()
            raise KeyboardInterrupt

    with client_of(Blocking, port.address) as client:
        monkeypatch.setattr(queue, "SimpleQueue", Interrupted)
        with pytest.raises(KeyboardInterrupt):
            client.fetch(timeout=3_600)
        client.until(lambda: port.frames and port.frames[-1].header.kind == Kind.CANCEL)
        port.behave = serve
        assert batches(client.fetch()) == [[b"batches"]]
        assert len(port.connections) == 1


def test_a_broker_that_takes_nothing_does_not_block_its_callers(make_client, make_port):
    """A request of megabytes is left to the connection; others are answered meanwhile, and it is not lost."""
    waits = threading.Event()

    def hang(port, connection, frame):
        waits.wait(SECONDS)
        connection.sendall(answer(frame.header.correlation))

    client, ended = make_client(make_port(hang).address), []
    large = NativeRequest(MethodCode.PRODUCE, b"", [bytes(1 << 20)] * 16, SECONDS, "5f-2")
    for request in (FETCHED, large, FETCHED):
        client.begin(lambda frame, failure: ended.append((frame, failure)), request)
    other = make_client(make_port().address)
    assert batches(other.fetch()) == [[b"batches"]]
    assert not ended
    waits.set()
    client.until(lambda: len(ended) == 3)
    assert [failure for _, failure in ended] == [None] * 3


def test_a_call_ends_at_its_deadline_while_others_are_answered(make_client, make_port):
    """Deadlines are looked at while answers come, too."""

    def serve_others(port, connection, frame):
        if frame.header.correlation > 1:
            connection.sendall(answer(frame.header.correlation))

    client, ended = make_client(make_port(serve_others).address), []
    client.begin(lambda frame, failure: ended.append(failure), FETCHED._replace(timeout=0.05))

    def fetch_once():
        client.fetch()
        return ended

    if isinstance(client, Blocking):
        client.until(fetch_once)
    else:
        while not ended:
            client.fetch()
    assert [type(failure) for failure in ended] == [TimedOutError]


def test_with_the_native_protocol_alone_a_broker_without_it_is_an_error(make_client):
    """transport='native': nothing was sent, and metadata may name an address later."""
    with pytest.raises(TransportError, match="metadata has no native address") as raised:
        make_client("", transport="native").fetch()
    assert raised.value.retriable


def test_a_dead_broker_is_noticed(make_client, make_port):
    """The kernel ends a connection whose peer has left without a word, so that requests take another one."""
    client = make_client(make_port().address)
    client.fetch()
    (connection,) = client.connections._connections.values()
    if isinstance(client, Blocking):
        used = connection._socket.connection
    else:
        used = connection._transport.get_extra_info("socket")
    assert used.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) != 0
    for name, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 30_000)):
        if hasattr(socket, name):
            assert used.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) == value


def test_an_asyncio_connection_that_stops_within_a_frame_is_replaced(make_port, monkeypatch):
    """No later response could arrive on it."""
    monkeypatch.setattr("headrace.client.net.native_async.STALL_S", 0.0)
    large = b"b" * 500_000

    def stop(port, connection, frame):
        data = answer(frame.header.correlation, large)
        connection.sendall(data[:-1] if len(port.connections) == 1 else data)

    port = make_port(stop)
    with client_of(Looping, port.address) as client:
        with pytest.raises(TimedOutError):
            client.fetch(0.3)
        assert batches(client.fetch()) == [[large]]


def test_a_connection_that_stops_within_an_abandoned_response_is_replaced(make_client, make_port, monkeypatch):
    """Its request has timed out before; what is skipped blocks later responses as what is received."""
    monkeypatch.setattr("headrace.client.net.native.STALL_S", 0.1)
    monkeypatch.setattr("headrace.client.net.native_async.STALL_S", 0.1)

    def stop(port, connection, frame):
        number = frame.header.correlation
        if len(port.connections) > 1:
            connection.sendall(answer(number))
        elif number == 2:
            connection.sendall(answer(1, bytes(500_000))[:1_000])

    port = make_port(stop)
    client = make_client(port.address)
    for _ in range(2):
        with pytest.raises((TimedOutError, TransportError)):
            client.fetch(0.5)
    (connection,) = client.connections._connections.values()
    client.until(lambda: connection.has_ended)
    assert batches(client.fetch()) == [[b"batches"]]
