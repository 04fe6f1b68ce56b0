"""Sessions on connections of the native protocol: in the greeting, before requests, and after refusals."""

import headrace
import headrace.aio
import pytest
from headrace.client.net.native_calls import NativeCalls, NativeRequest, NotConnectedError
from headrace.v1 import native_pb2
from headrace.wire.errors import (
    InvalidRequestError,
    Outcome,
    ThrottledError,
    TransportError,
    UnauthenticatedError,
    to_detail,
)
from headrace.wire.frames import CLIENT_KINDS, PREFACE, FrameReader, Kind, MethodCode, frame_head
from headrace.wire.releases import CAPABILITIES, RELEASE

from tests.fakes.cluster import FakeCluster
from tests.fakes.identity import API_KEY, FakeIdentity
from tests.fakes.native_broker import FakeNativeBroker

WAIT = 20.0
REQUEST = NativeRequest(MethodCode.FETCH, b"", (), 1.0, "5f-1")


def frames(*parts):
    """The frames in the bytes of a client."""
    reader = FrameReader(CLIENT_KINDS, lambda header: True)
    data = b"".join(bytes(part) for part in parts)
    reader.buffer()[: len(data)] = data
    reader.received(len(data))
    found = []
    while (frame := reader.next_frame()) is not None:
        found.append((Kind(frame.header.kind), frame.message))
    return found


def hello(calls):
    greeting = calls.greeting()
    assert greeting.startswith(PREFACE)
    [(kind, message)] = frames(greeting.removeprefix(PREFACE))
    assert kind == Kind.HELLO
    return native_pb2.Hello.FromString(message)


class Ends:
    def __init__(self):
        self.errors = []

    def __call__(self, frame, error):
        self.errors.append(error)


def receive(calls, data):
    calls.buffer()[: len(data)] = data
    for _, done, frame, error in calls.received(len(data)):
        done(frame, error)


def welcome():
    message = native_pb2.Welcome(answered_by="broker-1", max_requests=64)
    message.handshake.release = RELEASE
    message.handshake.capabilities.extend(CAPABILITIES)
    return frame_head(Kind.WELCOME, message.SerializeToString())


def connection_error(error):
    return frame_head(Kind.ERROR, to_detail(error).SerializeToString())


def test_a_greeting_carries_the_session():
    assert hello(NativeCalls("b:1", "me", "hr1.k.1")).session == "hr1.k.1"
    assert not hello(NativeCalls("b:1", "me")).session


def test_a_new_session_precedes_the_next_request_once():
    """Requests with the token that the server has are sent alone."""
    calls = NativeCalls("b:1", "me", "one")
    sent = [frames(*calls.begin(REQUEST, Ends(), 0.0, token)[1]) for token in ("one", "two", "two", "three")]
    assert [[kind for kind, _ in request] for request in sent] == [
        [Kind.REQUEST],
        [Kind.SESSION, Kind.REQUEST],
        [Kind.REQUEST],
        [Kind.SESSION, Kind.REQUEST],
    ]
    assert sent[1][0][1] == b"two"


def test_a_client_without_a_session_sends_none():
    calls = NativeCalls("b:1", "me")
    assert [kind for kind, _ in frames(*calls.begin(REQUEST, Ends(), 0.0)[1])] == [Kind.REQUEST]


def test_a_refused_greeting_is_the_error_of_the_requests_behind_it():
    """None of them had an effect."""
    calls = NativeCalls("b:1", "me", "old")
    calls.begin(REQUEST, Ends(), 0.0, "old")
    receive(calls, connection_error(UnauthenticatedError("the session has ended")))
    assert isinstance(calls.failure, UnauthenticatedError)
    assert calls.failure.outcome == Outcome.NOT_APPLIED


def test_a_connection_that_ends_for_its_session_leaves_outcomes_open():
    """The server may have applied requests before: they may be tried again, on a connection with another session."""
    calls = NativeCalls("b:1", "me", "old")
    receive(calls, welcome())
    calls.begin(REQUEST, Ends(), 0.0, "old")
    receive(calls, connection_error(UnauthenticatedError("the session has ended")))
    assert isinstance(calls.failure, TransportError)
    assert (calls.failure.outcome, calls.failure.retriable) == (Outcome.UNKNOWN, True)


def test_a_connection_that_is_too_many_was_not_made():
    """Its requests were not sent, and may use gRPC."""
    calls = NativeCalls("b:1", "me", "one")
    calls.begin(REQUEST, Ends(), 0.0, "one")
    receive(calls, connection_error(ThrottledError("ada has 2 connections, its quota")))
    assert isinstance(calls.failure, NotConnectedError)
    assert "ada has 2 connections" in calls.failure.message
    assert (calls.failure.outcome, calls.failure.retriable) == (Outcome.NOT_APPLIED, True)


def test_a_connection_whose_next_user_has_too_many_leaves_outcomes_open():
    """The requests before the new session may have been applied."""
    calls = NativeCalls("b:1", "me", "one")
    receive(calls, welcome())
    calls.begin(REQUEST, Ends(), 0.0, "two")
    receive(calls, connection_error(ThrottledError("bob has 2 connections, its quota")))
    assert isinstance(calls.failure, TransportError)
    assert not isinstance(calls.failure, NotConnectedError)
    assert (calls.failure.outcome, calls.failure.retriable) == (Outcome.UNKNOWN, True)


def test_another_error_of_the_connection_leaves_outcomes_open():
    calls = NativeCalls("b:1", "me")
    receive(calls, welcome())
    receive(calls, connection_error(InvalidRequestError("a frame of kind 77")))
    assert isinstance(calls.failure, InvalidRequestError)
    assert calls.failure.outcome == Outcome.UNKNOWN


# --- whole clients ---


@pytest.fixture
def identity():
    return FakeIdentity()


@pytest.fixture
def broker(identity):
    cluster = FakeCluster(identity=identity)
    cluster.create_topic("t")
    broker = FakeNativeBroker(cluster, identity)
    yield broker
    broker.stop()
    cluster.stop()


def settings(broker, **changed):
    servers = broker.cluster.address
    timing = {"retry_backoff_ms": 1, "retry_backoff_max_ms": 5}
    return {"bootstrap_servers": servers, "api_key": API_KEY, "transport": "native", **timing, **changed}


def numbers(first, last):
    return [b"%d" % number for number in range(first, last)]


@pytest.mark.parametrize("checks_hello", [True, False])
def test_a_producer_and_a_reader_continue_after_a_revocation(broker, identity, checks_hello):
    """Connections begin with the session; after a refusal the new one precedes the next request, and none is lost."""
    broker.checks_hello = checks_hello
    with headrace.Producer(**settings(broker, linger_ms=0, batch_records=1)) as producer:
        for number in range(40):
            future = producer.send("t", b"%d" % number)
            if number % 10 == 5:
                future.result(WAIT)
                identity.revoke()
    with headrace.Reader("t", **settings(broker)) as reader:
        assert [record.value for record in reader] == numbers(0, 40)
    assert all(hello in {f"hr1.k.{n}" for n in range(1, 10)} for hello in broker.hellos)
    assert broker.sessions
    assert {method for method, _ in broker.requests} == {MethodCode.PRODUCE, MethodCode.FETCH, MethodCode.LIST_OFFSETS}


@pytest.mark.parametrize("checks_hello", [True, False])
async def test_asyncio_clients_continue_after_a_revocation(broker, identity, checks_hello):
    broker.checks_hello = checks_hello
    async with headrace.aio.Producer(**settings(broker, linger_ms=0, batch_records=1)) as producer:
        for number in range(40):
            future = await producer.send("t", b"%d" % number)
            if number % 10 == 5:
                await future
                identity.revoke()
    async with headrace.aio.Reader("t", **settings(broker)) as reader:
        assert [record.value async for record in reader] == numbers(0, 40)
    assert broker.sessions


def test_a_refused_greeting_opens_another_session(broker, identity):
    """The session ends between metadata and the first connection: the next one greets with a new session."""
    with headrace.Producer(**settings(broker, linger_ms=0, enable_idempotence=False)) as producer:
        producer.partitions_for("t")
        identity.revoke()
        producer.send("t", b"v").result(WAIT)
    assert broker.hellos[0] == "hr1.k.1"
    assert broker.hellos[-1] != "hr1.k.1"
    assert broker.cluster.topics["t"].partitions[0].values() == [b"v"]


def test_a_native_address_gets_no_token_in_plain_text(broker):
    """It is refused before a connection is opened, although the address for gRPC is on this machine."""
    broker.cluster.native_addresses[1] = "broker.example.org:7182"
    with pytest.raises(headrace.DeliveryError), headrace.Producer(**settings(broker, linger_ms=0)) as producer:
        with pytest.raises(headrace.ConfigError, match=r"broker\.example\.org:7182 in plain text"):
            producer.send("t", b"v").result(WAIT)


def test_a_client_without_a_credential_sends_no_session(broker):
    """The broker refuses its Hello, and the error says what to set."""
    broker.identity.tokens[""] = "anonymous"
    made = headrace.Producer(**settings(broker, api_key="", linger_ms=0))
    with pytest.raises(headrace.DeliveryError), made as producer:
        producer.send("t", b"v").result(WAIT)
        del broker.identity.tokens[""]
        with pytest.raises(UnauthenticatedError, match="Set api_key_file"):
            producer.send("t", b"v").result(WAIT)
    assert (broker.hellos, broker.sessions) == ([""], [])
