"""Fetches over a transfer port by both clients, from one that answers as a test says: what falls back, what is told."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading

import pytest
from headrace.client.base.config import ConsumerConfig
from headrace.client.base.errors import ClosedError
from headrace.client.net import transfer
from headrace.client.net.transfer import Transfers
from headrace.client.net.transfer_async import AsyncTransfers
from headrace.v1 import broker_pb2
from headrace.wire.errors import ThrottledError, to_detail
from headrace.wire.transfer import ANSWER, ANSWER_HEAD, DISCARD, PREFACE, REFUSAL, REQUEST_HEAD, WHOLE

SECONDS = 10.0
REQUEST = broker_pb2.FetchRequest(client_id="me")


def answer(batches=b"", verdict=WHOLE, kind=ANSWER):
    response = broker_pb2.FetchResponse()
    response.topics.add(name="t").partitions.add(partition=3, batches=batches)
    body = response.SerializeToString()
    return ANSWER_HEAD.pack(kind, len(body)) + body + verdict


def refusal():
    body = to_detail(ThrottledError("too much", retry_after_ms=7)).SerializeToString()
    return ANSWER_HEAD.pack(REFUSAL, len(body)) + body + WHOLE


class Last(bytes):
    """After it the connection ends."""


class Port:
    """Returns one answer of `answers` a request, in turn, whatever the connection."""

    def __init__(self, answers):
        self.answers = list(answers)
        self.requests = []
        self.connections = 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.open = []
        self.threads = [threading.Thread(target=self.accept, daemon=True)]
        self.threads[0].start()

    def accept(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.connections += 1
            self.open.append(connection)
            self.threads.append(threading.Thread(target=self.serve, args=(connection,), daemon=True))
            self.threads[-1].start()

    def serve(self, connection):
        with contextlib.suppress(ConnectionError), connection, connection.makefile("rb") as reading:
            preface = reading.read(len(PREFACE))
            assert preface in (PREFACE, b"")  # Nothing: a client that closed before it asked.
            while head := reading.read(REQUEST_HEAD.size):
                self.requests.append(broker_pb2.FetchRequest.FromString(reading.read(REQUEST_HEAD.unpack(head)[0])))
                if not self.answers:
                    return
                given = self.answers.pop(0)
                connection.sendall(given)
                if isinstance(given, Last):
                    return

    def close(self):
        """End the threads before their sockets: one that is accepted just now may not have begun to read."""
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)  # `accept` ends; `close` alone leaves it waiting.
        self.listener.close()
        self.threads[0].join(SECONDS)
        for connection in self.open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self.threads:
            thread.join(SECONDS)
            assert not thread.is_alive()
        for connection in self.open:
            connection.close()


class Blocking:
    def __init__(self, config):
        self.transfers = Transfers("Consumer", config)

    def fetch(self, address, timeout=SECONDS):
        return self.transfers.fetch(address, REQUEST, timeout)

    def close(self):
        self.transfers.close()


class Looping:
    def __init__(self, config):
        self.loop = asyncio.new_event_loop()
        self.transfers = AsyncTransfers("Reader", config)

    def fetch(self, address, timeout=SECONDS):
        return self.loop.run_until_complete(self.transfers.fetch(address, REQUEST, timeout))

    def close(self):
        self.transfers.close()
        self.loop.close()


@pytest.fixture(params=[Blocking, Looping])
def client(request):
    made = request.param(ConsumerConfig())
    yield made
    made.close()


@pytest.fixture
def port():
    made = []

    def start(*answers):
        made.append(Port(answers))
        return made[-1]

    yield start
    for each in made:
        each.close()


@pytest.mark.parametrize("size", [10, 100_000])
def test_answers_come_over_one_connection_and_cannot_be_written_to(client, port, size):
    """A batch is a view of what came; small answers are protobuf's own copies."""
    there = port(answer(b"a" * size), answer(b"b" * size))
    first, second = client.fetch(there.address), client.fetch(there.address)
    assert bytes(first.batches[0][0]) == b"a" * size
    assert bytes(second.batches[0][0]) == b"b" * size
    assert memoryview(first.batches[0][0]).readonly
    assert (there.connections, [each.client_id for each in there.requests]) == (1, ["me", "me"])


def test_a_refusal_is_the_brokers_error_and_the_connection_is_kept(client, port):
    there = port(refusal(), answer(b"a"))
    with pytest.raises(ThrottledError) as caught:
        client.fetch(there.address)
    assert caught.value.retry_after_ms == 7
    assert client.fetch(there.address) is not None
    assert there.connections == 1


@pytest.mark.parametrize(
    "given",
    [
        Last(b""),
        Last(answer(b"x" * 100)[:50]),
        answer(b"x", DISCARD),
        answer(b"x", kind=9),
        ANSWER_HEAD.pack(ANSWER, 2**32 - 1),
    ],
    ids=["ended", "ended in the middle", "thrown away", "unknown kind", "too long"],
)
def test_what_goes_wrong_goes_over_grpc_and_the_port_is_left_alone(client, port, given, monkeypatch):
    """For a while: then it is tried again."""
    there = port(given, answer(b"a"))
    assert client.fetch(there.address) is None
    assert client.fetch(there.address) is None
    assert there.connections == 1
    monkeypatch.setattr(transfer.time, "monotonic", lambda now=transfer.time.monotonic: now() + transfer.AVOID_S)
    assert client.fetch(there.address) is not None


def test_without_a_listener_the_call_goes_over_grpc(client, port):
    there = port()
    there.close()
    assert client.fetch(there.address) is None
    assert client.fetch("") is None


def test_a_port_that_does_not_answer_in_time_goes_over_grpc(client):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert client.fetch(f"127.0.0.1:{listener.getsockname()[1]}", timeout=0.05) is None


def test_a_connection_that_was_closed_while_idle_is_made_anew(client, port):
    """The broker closes those that idle, or was restarted: no reason to leave its port alone."""
    there = port(Last(answer(b"a")), answer(b"b"))
    assert client.fetch(there.address) is not None
    assert client.fetch(there.address) is not None
    assert there.connections == 2


@pytest.mark.parametrize("settings", [{"use_transfer_port": False}, {"security_protocol": "SSL"}])
def test_it_is_used_neither_where_it_is_not_wanted_nor_with_tls(port, settings):
    there = port(answer(b"a"))
    client = Blocking(ConsumerConfig(**settings))
    assert client.fetch(there.address) is None
    assert there.connections == 0


def test_close_ends_a_fetch_that_waits(port):
    """With ClosedError, at once: the port is not left alone for it."""
    there = port()
    there.serve = there.open.append
    client = Blocking(ConsumerConfig())
    caught = []

    def fetch():
        try:
            client.fetch(there.address, timeout=60.0)
        except ClosedError as error:
            caught.append(error)

    thread = threading.Thread(target=fetch)
    thread.start()
    while not client.transfers._open:
        thread.join(0.005)
    client.close()
    thread.join(SECONDS)
    assert not thread.is_alive()
    assert len(caught) == 1


def test_a_connection_that_failed_in_the_middle_is_not_kept(client, port, monkeypatch):
    """Whatever it was: what is left of the answer would be taken for the next one."""
    there = port(answer(b"a"), answer(b"b"))

    def fail(*_):
        raise MemoryError

    for module in ("headrace.client.net.transfer", "headrace.client.net.transfer_async"):
        monkeypatch.setattr(f"{module}.answer_buffer", fail)
    with pytest.raises(MemoryError):
        client.fetch(there.address)
    monkeypatch.undo()
    assert client.fetch(there.address) is not None
    assert there.connections == 2


def test_a_client_that_is_closed_while_it_connects_says_so(port):
    client = Blocking(ConsumerConfig())
    client.close()
    with pytest.raises(ClosedError):
        client.fetch(port(answer(b"a")).address)
