"""Produce calls that wait for the session of their client."""

from types import SimpleNamespace

import pytest
from headrace.client.base.config import ProducerConfig
from headrace.client.net.native_calls import not_connected
from headrace.client.net.sessions import Sessions
from headrace.client.producer.partition_queue import Request
from headrace.client.producer.produce_calls import ProduceCalls
from headrace.wire.errors import Outcome, TimedOutError, UnauthenticatedError

CREDENTIAL = {"api_key": f"hrk_{'A' * 12}_{'b' * 43}"}


class Waiting:
    """A producer without a session yet: what is sent, what waits, and what has ended."""

    def __init__(self):
        self.sent = []
        self.waiting = []
        self.landed = []
        self.cancelled = []
        sessions = SimpleNamespace(current=lambda address: None, wait=self.wait, refused=lambda token: None)
        sessions.begin = lambda *call: Sessions.begin(sessions, *call)
        sessions.leave = self.leave
        sessions.not_open_in_time = lambda address: Sessions.not_open_in_time(SimpleNamespace(_failure=""), address)
        native = SimpleNamespace(begin=self.begin)
        self.calls = ProduceCalls(ProducerConfig(**CREDENTIAL), native, sessions, None)
        self.request = Request(1, "localhost:1", [], 1_000)
        self.calls.start(self.request, lambda *end: self.landed.append(end))

    def wait(self, address, timeout, ready):
        self.waiting.append(ready)

    def leave(self, ready):
        was_waiting = ready in self.waiting
        self.waiting = [each for each in self.waiting if each != ready]
        return was_waiting

    def begin(self, address, make_request, done, token):
        self.sent.append((token, done))
        return lambda: self.cancelled.append(token)


@pytest.fixture
def producer():
    return Waiting()


def test_a_call_is_sent_with_the_session_for_which_it_waited(producer):
    assert producer.sent == []
    producer.waiting.pop()("hr1.k.1", None)
    assert [token for token, _ in producer.sent] == ["hr1.k.1"]
    producer.calls.cancel(producer.request)
    assert producer.cancelled == ["hr1.k.1"]


@pytest.mark.parametrize("is_refused", [False, True])
def test_a_call_that_is_cancelled_while_it_waits_is_not_sent(producer, is_refused):
    """Its batches may be sent to another leader by then: the first time, and after a refusal."""
    if is_refused:
        producer.waiting.pop()("hr1.k.1", None)
        producer.sent.pop()[1](None, UnauthenticatedError("expired"))
    producer.calls.cancel(producer.request)
    assert producer.landed == []
    producer.waiting.pop()("hr1.k.2", None)
    assert producer.sent == []
    [(request, response, error)] = producer.landed
    assert (request, response) == (producer.request, None)
    assert isinstance(error, TimedOutError)
    assert error.outcome == Outcome.UNKNOWN
    assert len(producer.calls) == 0


def test_a_call_that_stops_waiting_was_not_sent(producer):
    """Its batches go back to their queue, where they may expire; once it was sent, its connection ends it."""
    producer.calls.stop_waiting(producer.request)
    [(_, _, error)] = producer.landed
    assert (type(error), error.outcome, error.retriable) == (TimedOutError, Outcome.NOT_APPLIED, True)
    assert producer.waiting == []
    assert len(producer.calls) == 0
    producer.calls.stop_waiting(producer.request)
    sent = Waiting()
    sent.waiting.pop()("hr1.k.1", None)
    sent.calls.stop_waiting(sent.request)
    assert (sent.landed, sent.cancelled) == ([], [])


def test_a_call_that_has_changed_to_grpc_at_once_can_be_cancelled():
    """The connection has failed before, so that the end of the first try comes before the return of `begin`."""
    cancelled = []

    def begin(address, make_request, done, token):
        done(None, not_connected(address, "refused"))
        return lambda: cancelled.append("native")

    def start_grpc(request, token, ended):
        return SimpleNamespace(cancel=lambda: cancelled.append("grpc"))

    native = SimpleNamespace(begin=begin, ports=SimpleNamespace(may_fall_back=True))
    calls = ProduceCalls(ProducerConfig(), native, None, start_grpc)
    request = Request(1, "localhost:1", [], 1_000)
    calls.start(request, lambda *end: None)
    calls.cancel(request)
    assert "grpc" in cancelled
