"""The session of a client by hand: its exchanges, its clock and the calls that wait for it are those of the test."""

from types import SimpleNamespace

import grpc
import pytest
from headrace.client.base.config import AdminConfig, build
from headrace.client.base.errors import ClosedError, ConfigError
from headrace.client.base.operations import Call, InvokeCallback
from headrace.client.net import sessions as module
from headrace.client.net.sessions import (
    OPEN_TIMEOUT_S,
    RENEW_RETRY_S,
    AuthorizedStart,
    AwaitToken,
    Sessions,
    Token,
    TokenCall,
    UnsentCallError,
    is_refusal,
)
from headrace.v1 import auth_pb2
from headrace.wire.errors import (
    InternalError,
    MetastoreUnavailableError,
    Outcome,
    TransportError,
    UnauthenticatedError,
    UnsupportedVersionError,
    from_rpc_error,
)

from tests.fakes.failed_call import FailedCallError
from tests.fakes.identity import API_KEY, JWT

A, B, C = "localhost:1", "localhost:2", "localhost:3"
LIFETIME_S = 900.0


def refused_call(typed):
    """A call that its server refused."""
    error = FailedCallError(grpc.StatusCode.UNAUTHENTICATED, typed.message)
    error.typed = typed
    return error


def opened(token, lifetime_s=LIFETIME_S):
    return auth_pb2.OpenSessionResponse(token=token, lifetime_ms=int(lifetime_s * 1000), user="ada")


class Scripted:
    """A session whose exchanges a test answers one by one."""

    def __init__(self, monkeypatch, **settings):
        self.now = 1000.0
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now))
        settings = settings or {"api_key": API_KEY}
        config = build(AdminConfig, {"bootstrap_servers": A, "client_id": "me", **settings})
        self.exchange = None
        self.step = None
        self.exchanges = 0
        self.sessions = Sessions("Admin", config, self.spawn)
        self.ready = []

    def spawn(self, exchange):
        assert self.step is None, "one exchange at a time"
        self.exchange = exchange
        self.exchanges += 1
        self._go(lambda: next(exchange))

    def _go(self, go):
        try:
            self.step = go()
        except StopIteration:
            self.step = None

    def answer(self, outcome):
        """Let the pending step have a result, or raise an error."""
        self.step, exchange = None, self.exchange
        if isinstance(outcome, Exception):
            self._go(lambda: exchange.throw(outcome))
        else:
            self._go(lambda: exchange.send(outcome))

    def wait(self, name, address=A, timeout=30.0):
        self.sessions.wait(address, timeout, lambda token, error: self.ready.append((name, token, error)))

    def open(self, token="hr1.k.1", address=A):
        self.wait("first", address)
        self.answer(opened(token))
        assert self.ready.pop() == ("first", token, None)


@pytest.fixture
def script(monkeypatch):
    return lambda **settings: Scripted(monkeypatch, **settings)


def test_the_first_call_opens_a_session_at_its_own_address(script):
    """One exchange with the credential, at the address of the call; later calls take the token at once."""
    at = script()
    assert at.sessions.current(B) is None
    at.wait("call", B, timeout=2.0)
    step = at.step
    assert (step.address, step.service, step.method, step.timeout) == (B, "session", "OpenSession", 2.0)
    assert step.request == auth_pb2.OpenSessionRequest(client_id="me", api_key=API_KEY)
    at.answer(opened("hr1.k.1"))
    assert at.ready == [("call", "hr1.k.1", None)]
    assert at.sessions.current(A) == at.sessions.current(B) == "hr1.k.1"
    assert (at.exchanges, at.step) == (1, None)


def test_an_exchange_is_limited_also_for_a_call_that_waits_longer(script):
    at = script()
    at.wait("call", timeout=60.0)
    assert at.step.timeout == OPEN_TIMEOUT_S


def test_calls_that_wait_begin_in_their_order_and_none_overtakes_them(script):
    """A call made while the waiting ones begin waits behind them, as later batches must not overtake earlier ones."""
    at = script()
    started = []

    def first(token, error):
        started.append(("first", token))
        assert at.sessions.current(A) is None
        at.wait("late")

    at.sessions.wait(A, 5.0, first)
    at.wait("second", B)
    at.answer(opened("hr1.k.1"))
    assert started == [("first", "hr1.k.1")]
    assert [name for name, *_ in at.ready] == ["second", "late"]
    assert at.sessions.current(A) == "hr1.k.1"


def test_a_session_is_renewed_at_two_thirds_of_its_life_without_a_wait(script):
    """The next call starts the renewal and goes ahead with the old token; the one after has the new token."""
    at = script()
    at.open()
    at.now += LIFETIME_S * 2 / 3 - 1
    assert at.sessions.current(B) == "hr1.k.1"
    assert at.step is None
    at.now += 1
    assert at.sessions.current(B) == "hr1.k.1"
    assert at.step.address == B
    assert at.sessions.current(A) == "hr1.k.1"
    at.answer(opened("hr1.k.2"))
    assert at.sessions.current(A) == "hr1.k.2"
    assert at.exchanges == 2


def test_a_failed_renewal_leaves_the_session_until_its_end(script, caplog):
    """Calls continue with the old token, and it is renewed again after a while; once it has ended, they wait."""
    at = script()
    at.open()
    at.now += LIFETIME_S * 2 / 3
    at.sessions.current(A)
    at.answer(FailedCallError(grpc.StatusCode.UNAVAILABLE, "gone"))
    assert "not renewed and ends in 300 s" in caplog.text
    assert at.sessions.current(A) == "hr1.k.1"
    assert at.step is None
    at.now += RENEW_RETRY_S
    assert at.sessions.current(A) == "hr1.k.1"
    at.answer(FailedCallError(grpc.StatusCode.UNAVAILABLE, "gone"))
    at.now += LIFETIME_S / 3
    assert at.sessions.current(A) is None
    at.wait("call")
    at.answer(opened("hr1.k.2"))
    assert at.ready == [("call", "hr1.k.2", None)]


def test_a_broker_that_takes_no_jwt_names_coordinators(script, tmp_path):
    """The token goes to one of them; one that is away is replaced by another; the next exchange begins there."""
    path = tmp_path / "token"
    path.write_text(JWT)
    at = script(token_file=str(path))
    at.wait("call", A)
    assert at.step.request.jwt == JWT
    at.answer(auth_pb2.OpenSessionResponse(coordinators=[B, C]))
    first = at.step.address
    assert first in (B, C)
    at.answer(FailedCallError(grpc.StatusCode.UNAVAILABLE, "gone"))
    second = at.step.address
    assert {first, second} == {B, C}
    at.answer(opened("hr1.k.1"))
    assert at.ready == [("call", "hr1.k.1", None)]
    path.write_text("new.er.one")
    at.now += LIFETIME_S * 2 / 3
    at.sessions.current(A)
    assert (at.step.address, at.step.request.jwt) == (first, "new.er.one")


def test_a_coordinator_that_plain_text_would_reach_is_not_called(script, tmp_path):
    """An address learnt from a server is checked as those of the settings are."""
    path = tmp_path / "token"
    path.write_text(JWT)
    at = script(token_file=str(path))
    at.wait("call")
    at.answer(auth_pb2.OpenSessionResponse(coordinators=["coordinator.example.org:7170"]))
    assert at.step is None
    [(_, _, error)] = at.ready
    assert isinstance(error, ConfigError)
    assert "coordinator.example.org:7170 in plain text" in str(error)
    with pytest.raises(ConfigError, match="in plain text"):
        at.sessions.current("broker.example.org:7181")


def test_a_failure_concerns_the_calls_to_its_address(script):
    """Calls to other addresses open the session there, so that a dead server delays only those to it."""
    at = script()
    at.wait("dead", A)
    at.wait("other", B)
    at.wait("dead too", A)
    at.answer(FailedCallError(grpc.StatusCode.UNAVAILABLE, "failed to connect to all addresses"))
    assert [name for name, *_ in at.ready] == ["dead", "dead too"]
    (_, _, error), (_, _, own) = at.ready
    assert error is not own
    assert isinstance(error, grpc.RpcError)
    assert (error.code(), error.details()) == (grpc.StatusCode.UNAVAILABLE, "failed to connect to all addresses")
    assert from_rpc_error(error).outcome == Outcome.NOT_APPLIED
    assert isinstance(from_rpc_error(error), TransportError)
    assert at.step.address == B
    at.answer(opened("hr1.k.1"))
    assert at.ready[-1] == ("other", "hr1.k.1", None)


def test_a_lost_answer_to_an_exchange_leaves_the_call_unsent(script):
    """The call that waited was never sent: its outcome is NOT_APPLIED, whatever became of the exchange."""
    at = script()
    at.wait("call")
    at.answer(FailedCallError(grpc.StatusCode.UNAVAILABLE, "Socket closed"))
    typed = from_rpc_error(at.ready[0][2])
    assert (typed.outcome, typed.retriable) == (Outcome.NOT_APPLIED, True)


def test_a_wait_that_takes_too_long_ends_with_the_last_reason(script):
    """A server that etcd does not reach says so of a key that it does not know, until the time of the call is up."""
    at = script()
    assert str(at.sessions.not_open_in_time(A)).startswith(f"no session was opened in time for a call to {A}. ")
    at.wait("call")
    failure = FailedCallError(grpc.StatusCode.UNAVAILABLE, "etcd")
    failure.typed = MetastoreUnavailableError("etcd has not been reached for 40 s", outcome=Outcome.NOT_APPLIED)
    at.answer(failure)
    said = str(at.sessions.not_open_in_time(A))
    assert "in time for a call to localhost:1: etcd has not been reached for 40 s" in said
    at.open()
    assert "etcd" not in str(at.sessions.not_open_in_time(A))


def test_a_refused_credential_is_named_and_not_tried_again(script, tmp_path):
    """The error is the server's with the setting; it is no refusal of a token, so that the call is not repeated."""
    path = tmp_path / "key"
    path.write_text(API_KEY)
    at = script(api_key_file=str(path))
    at.wait("call")
    at.answer(refused_call(UnauthenticatedError("the API key is not valid", action="Create a new one.")))
    error = at.ready[0][2]
    assert not is_refusal(error)
    assert str(from_rpc_error(error)) == f"the API key is not valid (api_key_file={path}). Create a new one."
    assert at.step is None


def test_a_user_that_gets_no_session_is_not_told_to_open_one(script):
    """Servers say so to callers whose user was disabled; the exchange was just that."""
    at = script()
    at.wait("call")
    at.answer(refused_call(UnauthenticatedError("user ada is disabled", action="Open a new session.")))
    assert str(from_rpc_error(at.ready[0][2])).startswith("user ada is disabled (api_key). Use another credential")


def test_a_server_without_sessions_is_explained(script):
    """Another server may be of this release, so that the call may go there."""
    at = script()
    at.wait("call")
    at.answer(FailedCallError(grpc.StatusCode.UNIMPLEMENTED, "unknown service"))
    typed = from_rpc_error(at.ready[0][2])
    assert isinstance(typed, UnsupportedVersionError)
    assert typed.retriable
    assert "Upgrade the servers first, or remove api_key" in str(typed)


def test_an_answer_with_neither_session_nor_coordinators_is_an_error(script):
    at = script()
    at.wait("call")
    at.answer(auth_pb2.OpenSessionResponse())
    assert isinstance(at.ready[0][2], InternalError)


def test_a_typed_error_that_another_coordinator_may_not_have_goes_there(script, tmp_path):
    """A coordinator without a signing key is passed over; the last one's error is raised."""
    path = tmp_path / "token"
    path.write_text(JWT)
    at = script(token_file=str(path))
    at.wait("call")
    at.answer(auth_pb2.OpenSessionResponse(coordinators=[B, C]))
    for _ in range(2):
        assert at.ready == []
        at.answer(refused_call(MetastoreUnavailableError("no signing key yet", outcome=Outcome.NOT_APPLIED)))
    assert "no signing key yet" in str(from_rpc_error(at.ready[0][2]))


def test_a_provider_is_called_for_each_exchange(script):
    """Its error is chained and may be repaired by a retry; its token is checked."""
    at = script(token_provider=lambda: JWT)
    at.wait("call")
    assert isinstance(at.step, InvokeCallback)
    assert at.step.callback(at.step.argument) == JWT
    problem = OSError("the vault says s3cret")
    at.answer(problem)
    error = at.ready.pop()[2]
    assert isinstance(error, UnauthenticatedError)
    assert error.retriable
    assert error.__cause__ is problem
    assert "s3cret" not in str(error)
    at.wait("call")
    at.answer("not a token")
    assert isinstance(at.ready.pop()[2], ConfigError)
    at.wait("call")
    at.answer(JWT)
    assert at.step.request.jwt == JWT


def test_a_refused_token_is_dropped_once(script):
    """The refusal of an older token does nothing to the session that replaced it."""
    at = script()
    at.open()
    at.sessions.refused("hr1.k.1")
    assert at.sessions.current(A) is None
    at.wait("call")
    at.answer(opened("hr1.k.2"))
    at.sessions.refused("hr1.k.1")
    assert at.sessions.current(A) == "hr1.k.2"


def test_a_token_that_is_refused_while_calls_begin_is_not_for_the_rest(script):
    """The calls that still wait get the token of another exchange."""
    at = script()
    at.sessions.wait(A, 5.0, lambda token, error: (at.sessions.refused(token), at.wait("behind")))
    at.answer(opened("hr1.k.1"))
    assert at.ready == []
    at.answer(opened("hr1.k.2"))
    assert at.ready == [("behind", "hr1.k.2", None)]


def test_a_server_that_sends_the_refused_token_again_ends_the_wait(script):
    """Each exchange releases those that wait, so that a broken server causes no endless loop."""
    at = script()
    at.open()
    at.sessions.refused("hr1.k.1")
    at.wait("call")
    at.answer(opened("hr1.k.1"))
    assert at.ready == [("call", "hr1.k.1", None)]


def test_close_ends_all_waits(script):
    at = script()
    at.wait("call")
    at.sessions.close()
    assert isinstance(at.ready.pop()[2], ClosedError)
    at.answer(opened("hr1.k.1"))
    at.wait("late")
    assert isinstance(at.ready.pop()[2], ClosedError)


def test_a_wait_without_a_thread_is_an_error(script):
    """At the end of the interpreter no thread starts: the call fails instead of waiting forever."""
    at = script()

    def spawn(exchange):
        exchange.close()
        raise RuntimeError("can't start new thread")

    at.sessions._spawn = spawn
    at.wait("call")
    assert "can't start new thread" in str(at.ready.pop()[2])
    at.sessions._spawn = at.spawn
    at.wait("call")
    assert at.step is not None


def test_an_exchange_that_is_cut_off_ends_its_waits_and_the_next_call_begins_another(script):
    """So a provider does that awaits a cancelled task, or that exits: no exception reaches the exchange."""
    at = script(token_provider=lambda: JWT)
    at.wait("call", A)
    at.wait("other", B)
    at.step = None
    at.exchange.close()
    assert [name for name, *_ in at.ready] == ["call", "other"]
    for _, _, error in at.ready:
        assert isinstance(error, InternalError)
        assert (error.outcome, error.retriable) == (Outcome.NOT_APPLIED, True)
    at.wait("next")
    assert at.exchanges == 2
    at.answer(JWT)
    at.answer(opened("hr1.k.1"))
    assert at.ready[-1] == ("next", "hr1.k.1", None)


def test_a_started_call_that_stops_waiting_ends_unsent_and_once(script):
    """Others still wait; once the session is open it is too late."""
    at = script()
    started, ended = [], []
    stop = at.sessions.begin(A, 5.0, lambda token, _: started.append(token), lambda *end: ended.append(end))
    other = at.sessions.begin(A, 5.0, lambda token, _: started.append(token), lambda *end: ended.append(end))
    stop()
    stop()
    [(answer, error)] = ended
    assert answer is None
    assert from_rpc_error(error).outcome == Outcome.NOT_APPLIED
    at.answer(opened("hr1.k.1"))
    other()
    assert started == ["hr1.k.1"]
    assert len(ended) == 1


def test_no_repr_has_the_token(script):
    at = script()
    at.open("hr1.k.secret")
    assert "secret" not in repr(at.sessions)
    assert "secret" not in repr(at.sessions._token)


# --- one call ---

CALL = Call(A, "cluster", "GetMetadata", None, 10.0)


def steps(operation, *outcomes):
    """Run an operation with these outcomes of its steps; return the steps, and the result or the error."""
    taken = []
    try:
        step = next(operation)
        for outcome in outcomes:
            taken.append(step)
            step = operation.throw(outcome) if isinstance(outcome, Exception) else operation.send(outcome)
    except StopIteration as done:
        return taken, done.value
    except Exception as error:
        return taken, error
    raise AssertionError(f"another step: {step}")


REFUSED = refused_call(UnauthenticatedError("expired"))


def test_a_call_with_a_session_carries_its_token(script):
    at = script()
    at.open()
    assert steps(at.sessions.authorized(CALL), "answer") == ([TokenCall(CALL, "hr1.k.1")], "answer")


def test_a_refused_call_is_made_once_more_with_a_new_session(script):
    """The second refusal is raised; other errors are raised at once."""
    at = script()
    at.open()
    taken, result = steps(at.sessions.authorized(CALL), REFUSED, Token("hr1.k.2", at.now, 900), "answer")
    assert taken == [TokenCall(CALL, "hr1.k.1"), AwaitToken(A, 10.0), TokenCall(CALL, "hr1.k.2")]
    assert result == "answer"
    at = script()
    at.open()
    taken, result = steps(at.sessions.authorized(CALL), REFUSED, Token("hr1.k.2", at.now, 900), REFUSED)
    assert (len(taken), result) == (3, REFUSED)
    other = FailedCallError(grpc.StatusCode.UNAVAILABLE, "gone")
    at = script()
    at.open()
    assert steps(at.sessions.authorized(CALL), other) == ([TokenCall(CALL, "hr1.k.1")], other)


def test_a_call_is_made_again_until_a_session_opened_after_its_refusal_is_refused(script):
    """Two keys are removed: the session that another call opened after the first is as invalid when the first refusal
    of a long poll arrives. The attempt after it has a session of its own time.
    """
    at = script()
    at.open()
    operation = at.sessions.authorized(CALL)
    assert next(operation) == TokenCall(CALL, "hr1.k.1")
    at.sessions.refused("hr1.k.1")
    at.now += 1
    at.wait("another call")
    at.answer(opened("hr1.k.2"))
    at.now += 1
    assert operation.throw(REFUSED) == TokenCall(CALL, "hr1.k.2")
    at.now += 1
    assert operation.throw(REFUSED) == AwaitToken(A, 10.0)
    assert operation.send(Token("hr1.k.3", at.now, 900)) == TokenCall(CALL, "hr1.k.3")
    with pytest.raises(type(REFUSED)):
        operation.throw(REFUSED)


def test_the_wait_for_a_session_counts_against_the_time_of_the_call(script):
    at = script()
    operation = at.sessions.authorized(CALL)
    assert next(operation) == AwaitToken(A, 10.0)
    at.now += 3
    assert operation.send("hr1.k.1") == TokenCall(CALL._replace(timeout=7.0), "hr1.k.1")


def test_a_failed_wait_is_the_error_of_the_call(script):
    at = script()
    failure = UnsentCallError(UnauthenticatedError("no"), "UNAUTHENTICATED", "no")
    assert steps(at.sessions.authorized(CALL), failure) == ([AwaitToken(A, 10.0)], failure)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (UnauthenticatedError("expired"), True),
        (UnauthenticatedError("expired", outcome=Outcome.UNKNOWN), False),
        (TransportError("gone"), False),
        (FailedCallError(grpc.StatusCode.UNAUTHENTICATED, "a proxy"), True),
        (FailedCallError(grpc.StatusCode.PERMISSION_DENIED, "no"), False),
        (UnsentCallError(UnauthenticatedError("no"), "UNAUTHENTICATED", "no"), False),
    ],
)
def test_refusals_are_told_from_other_errors(error, expected):
    assert is_refusal(error) is expected


class Started:
    """A call that is started without a wait, with its attempts and its end."""

    def __init__(self, at):
        self.attempts = []
        self.ends = []
        self.start = AuthorizedStart(at.sessions, A, 10.0, self.attempt, self.end).start

    def attempt(self, token, ended):
        self.attempts.append((token, ended))

    def end(self, answer, error):
        self.ends.append((answer, error))


def test_a_started_call_waits_for_the_session_and_is_repeated_once(script):
    """It ends once: with the answer of the second attempt, or its error."""
    for last in (("answer", None), (None, UnauthenticatedError("expired"))):
        at = script()
        call = Started(at)
        call.start()
        assert call.attempts == []
        at.answer(opened("hr1.k.1"))
        [(token, ended)] = call.attempts
        assert token == "hr1.k.1"
        ended(None, UnauthenticatedError("expired"))
        at.answer(opened("hr1.k.2"))
        token, ended = call.attempts[-1]
        assert token == "hr1.k.2"
        ended(*last)
        assert (call.ends, len(call.attempts)) == ([last], 2)


def test_a_started_call_is_made_again_until_a_session_opened_after_its_refusal_is_refused(script):
    at = script()
    at.open()
    call = Started(at)
    call.start()
    at.sessions.refused("hr1.k.1")
    at.now += 1
    at.wait("another call")
    at.answer(opened("hr1.k.2"))
    at.now += 1
    for _ in range(3):
        call.attempts[-1][1](None, UnauthenticatedError("expired"))
        if at.step is not None:
            at.answer(opened("hr1.k.3"))
    assert [token for token, _ in call.attempts] == ["hr1.k.1", "hr1.k.2", "hr1.k.3"]
    [(_, error)] = call.ends
    assert isinstance(error, UnauthenticatedError)


def test_a_started_call_ends_with_the_error_of_its_session(script):
    at = script()
    call = Started(at)
    call.start()
    at.answer(FailedCallError(grpc.StatusCode.UNAVAILABLE, "gone"))
    [(_, error)] = call.ends
    assert isinstance(error, UnsentCallError)
    assert call.attempts == []


def test_an_attempt_that_cannot_begin_ends_the_call(script):
    """Before `start` returns it is raised, later it is the error of the call."""
    at = script()
    ends = []

    def fails(token, ended):
        raise ClosedError("Producer")

    def start():
        AuthorizedStart(at.sessions, A, 10.0, fails, lambda answer, error: ends.append(error)).start()

    start()
    at.answer(opened("hr1.k.1"))
    assert isinstance(ends.pop(), ClosedError)
    with pytest.raises(ClosedError):
        start()
    assert ends == []
