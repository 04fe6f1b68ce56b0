"""Session of a client: the token for which it exchanged its credential, and the calls that carry it.

    first call                    opens a session at its own address (`OpenSession`) and waits for it; a broker that
                                  does not take the proof names coordinators that do
    two thirds of its lifetime    the next call renews it, and does not wait
    refused (UNAUTHENTICATED)     the call had no effect: it opens a session, or takes one that another call has opened,
                                  and is made again; final for a session that was opened after the first refusal

One exchange is in progress at a time. Calls that wait for it begin in their order, as producers number their batches.
`Connections` and `AsyncConnections` own a `Sessions`, or none without a credential, and run its operations.
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable
from copy import copy
from typing import Any, NamedTuple, TypeAlias

import grpc

from headrace.client.base.config import ClientConfig
from headrace.client.base.credentials import (
    check_credential_file,
    credential_of,
    describe_credential,
    provided_token,
    provider_error,
    read_api_key,
    read_token,
    refuse_plaintext,
)
from headrace.client.base.errors import ClosedError
from headrace.client.base.operations import Call, InvokeCallback, Operation
from headrace.client.net.bootstrap_client import error_of_call, status_of
from headrace.v1 import auth_pb2
from headrace.wire.errors import (
    ErrorCode,
    HeadraceError,
    InternalError,
    Outcome,
    TimedOutError,
    UnauthenticatedError,
    UnsupportedVersionError,
)

log = logging.getLogger("headrace.client")

OPEN_TIMEOUT_S = 5.0
"""Timeout of one exchange, coordinators included: other calls may wait for it that have other servers to try."""
RENEW_RETRY_S = 10.0
"""Minimum interval of attempts to renew a session that is still valid."""
NEW_SESSION = "Open a new session."
"""Action of servers for a caller whose session has ended, which is of no use to one that has just tried it."""


class Token(str):
    """Session token with its times on the monotonic clock, in seconds. Its `repr` does not show it."""

    __slots__ = ("ends_at", "opened_at", "renew_at")
    opened_at: float
    renew_at: float
    ends_at: float

    def __new__(cls, text: str, opened_at: float, lifetime_s: float) -> "Token":
        """`opened_at` is when the exchange was sent."""
        token = super().__new__(cls, text)
        token.opened_at = opened_at
        token.renew_at = opened_at + lifetime_s * 2 / 3
        token.ends_at = opened_at + lifetime_s
        return token

    def __repr__(self) -> str:
        return "<Token>"


NO_TOKEN = Token("", 0.0, 0.0)

Ready: TypeAlias = Callable[[Token, Exception | None], None]
"""Called once with a token, or with `NO_TOKEN` and the error for which there is none."""
Ended: TypeAlias = Callable[[Any, Exception | None], None]
"""Called once with a response, or with the error of the call."""
Attempt: TypeAlias = Callable[[str, Ended], None]
"""Starts a call with a token: `(token, ended)`."""


class UnsentCallError(grpc.RpcError):
    """Failure of an exchange, as the failure of a call that waited for it and was not sent."""

    def __init__(self, typed: HeadraceError, status: str, details: str) -> None:
        """`typed` has the outcome NOT_APPLIED; `from_rpc_error` returns it. `status` is empty if it has none."""
        super().__init__(str(typed))
        self.typed = typed
        self._status = grpc.StatusCode[status or "UNKNOWN"]
        self._details = details

    def code(self) -> grpc.StatusCode:
        """Return the status of the exchange."""
        return self._status

    def details(self) -> str:
        """Return its text, from which failed TLS handshakes are recognised."""
        return self._details

    def __copy__(self) -> "UnsentCallError":
        return UnsentCallError(copy(self.typed), self._status.name, self._details)


class TokenCall(NamedTuple):
    """Step: make a call with a token."""

    call: Call
    token: str


class AwaitToken(NamedTuple):
    """Step: wait until the session is open, up to `seconds`. Its result is the token."""

    address: str
    seconds: float


class _Waiter(NamedTuple):
    address: str
    timeout: float
    ends_at: float
    ready: Ready


class Sessions:
    """Session of one client. Owned by its connections; any thread."""

    def __init__(self, what: str, config: ClientConfig, spawn: Callable[[Operation[None]], None]) -> None:
        """Read the credential's file. `spawn` runs an operation in the background, with calls that carry no token.

        Raises:
            ConfigError: If the file has no credential.
        """
        check_credential_file(config)
        self._what = what
        self._config = config
        self._spawn = spawn
        self._lock = threading.Lock()
        self._token: Token | None = None
        self._refused = ""
        """Token that a server has refused since the exchange in progress began."""
        self._waiting: list[_Waiter] = []
        self._renewal = ""
        """Address at which to renew; empty means that no renewal is due."""
        self._is_opening = False
        self._failure = ""
        """Why the last exchange failed; empty after a session was opened."""
        self._is_closed = False
        self._coordinators: tuple[str, ...] = ()
        """Coordinators that take the proof, if brokers do not."""
        self._checked: set[str] = set()
        """Addresses to which a token may be sent."""
        self._random = random.Random()

    def begin(self, address: str, timeout: float, attempt: Attempt, ended: Ended) -> Callable[[], None]:
        """Start a call with the session's token; see `AuthorizedStart`. Return what ends its wait for the session."""
        started = AuthorizedStart(self, address, timeout, attempt, ended)
        started.start()
        return started.stop_waiting

    def current(self, address: str) -> Token | None:
        """Return the token for a call to `address`; `None` means that the call must `wait` for it.

        Raises:
            ConfigError: If it would be sent in plain text.
        """
        self._check(address)
        token = self._token
        if token is None:
            return None
        now = time.monotonic()
        if now >= token.renew_at:
            if now >= token.ends_at:
                return None
            self._renew(token, address, now)
        return token

    def wait(self, address: str, timeout: float, ready: Ready) -> None:
        """Call `ready` when the session is open: on any thread, or before this returns.

        Args:
            address: where to open it, if no session is being opened.
            timeout: of the call that waits, in seconds; limits the exchange.
            ready: see `Ready`. The error is a `grpc.RpcError` if a server sent it, else a HeadraceError.
        """
        is_first = False
        with self._lock:
            token = self._valid_token()
            if not self._is_closed and token is None:
                self._waiting.append(_Waiter(address, timeout, time.monotonic() + timeout, ready))
                is_first, self._is_opening = not self._is_opening, True
        if token is not None:
            ready(token, None)
        elif self._is_closed:
            ready(NO_TOKEN, ClosedError(self._what))
        elif is_first:
            self._begin()

    def leave(self, ready: Ready) -> bool:
        """Remove a call that waits, whose `ready` is then never called; return `False` if it does not wait."""
        with self._lock:
            before, self._waiting = self._waiting, [waiter for waiter in self._waiting if waiter.ready != ready]
            return len(self._waiting) < len(before)

    def refused(self, token: str) -> None:
        """Drop the session after a server has refused its token; does nothing if there is another one by now."""
        with self._lock:
            self._refused = token
            if self._token == token:
                self._token = None

    def not_open_in_time(self, address: str) -> UnsentCallError:
        """Return the error of a call whose time was up before the session was open; not raised."""
        typed = TimedOutError(
            f"no session was opened in time for a call to {address}{self._failure and f': {self._failure}'}",
            outcome=Outcome.NOT_APPLIED,
            retriable=True,
            action="Try again or elsewhere.",
        )
        return UnsentCallError(typed, "DEADLINE_EXCEEDED", typed.message)

    def end_overdue_waits(self) -> None:
        """End the waits of calls whose time is up before the session is open; nothing was sent."""
        now = time.monotonic()
        with self._lock:
            overdue = [waiter for waiter in self._waiting if waiter.ends_at <= now]
            self._waiting = [waiter for waiter in self._waiting if waiter.ends_at > now]
        for waiter in overdue:
            _release(waiter, NO_TOKEN, self.not_open_in_time(waiter.address))

    def close(self) -> None:
        """End all waits with ClosedError. Calling it again does nothing."""
        with self._lock:
            self._is_closed = True
            self._token = None
            waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            waiter.ready(NO_TOKEN, ClosedError(self._what))

    def authorized(self, call: Call) -> Operation[Any]:
        """Make a call with the session's token, and again with another if its server refuses that."""
        refused_at: float | None = None
        while True:
            token = self.current(call.address)
            if token is None:
                started = time.monotonic()
                token = yield AwaitToken(call.address, call.timeout)
                call = call._replace(timeout=max(0.001, call.timeout - (time.monotonic() - started)))
            try:
                return (yield TokenCall(call, token))
            except (grpc.RpcError, UnauthenticatedError) as error:
                if not is_refusal(error) or is_final(token, refused_at):
                    raise
                refused_at = time.monotonic() if refused_at is None else refused_at
                self.refused(token)

    def _check(self, address: str) -> None:
        if address not in self._checked:
            refuse_plaintext(self._config, address)
            self._checked.add(address)

    # --- the exchange ---

    def _valid_token(self) -> Token | None:
        """Return the token, or `None` if a call must wait. Called under the lock."""
        token = self._token
        return token if token is not None and time.monotonic() < token.ends_at else None

    def _renew(self, token: Token, address: str, now: float) -> None:
        with self._lock:
            if self._is_opening or self._token is not token or now < token.renew_at:
                return
            token.renew_at = now + RENEW_RETRY_S
            self._renewal, self._is_opening = address, True
        self._begin()

    def _begin(self) -> None:
        try:
            self._spawn(self._exchanges())
        except RuntimeError as error:  # No thread can be started.
            self._not_opened(f"no session could be opened: {error}")

    def _not_opened(self, message: str) -> None:
        """End all waits after an exchange that did not run to its end; the next call begins another one."""
        failure = InternalError(message, outcome=Outcome.NOT_APPLIED, retriable=True)
        with self._lock:
            self._is_opening = False
            waiting, self._waiting = self._waiting, []
            self._failure = message
        for waiter in waiting:
            _release(waiter, NO_TOKEN, copy(failure))

    def _exchanges(self) -> Operation[None]:
        """Open sessions until no call waits for one."""
        while (target := self._next_target()) is not None:
            address, timeout = target
            try:
                token = yield from self._open(address, min(timeout, OPEN_TIMEOUT_S))
            except Exception as error:
                self._failed(address, error)
            except BaseException:  # A provider that is cancelled or exits ends the task or the thread of the exchange.
                self._not_opened("the exchange of the credential was cancelled, or its thread was ended")
                raise
            else:
                self._opened(token)

    def _next_target(self) -> tuple[str, float] | None:
        with self._lock:
            self._refused = ""
            renewal, self._renewal = self._renewal, ""
            if self._waiting:
                return self._waiting[0].address, self._waiting[0].timeout
            self._is_opening = bool(renewal) and not self._is_closed
            return (renewal, OPEN_TIMEOUT_S) if self._is_opening else None

    def _open(self, address: str, timeout: float) -> Operation[Token]:
        """Exchange the credential at `address`, or at a coordinator that it names.

        Raises:
            UnsentCallError: The server's error.
            HeadraceError: If there is no credential to send, or it may not be sent.
        """
        request = yield from self._request()
        deadline = time.monotonic() + timeout
        left = [*self._coordinators, address] if self._coordinators else [address]
        tried: dict[str, None] = {}
        while True:
            at = left.pop(0)
            tried[at] = None
            self._check(at)
            sent_at = time.monotonic()
            seconds = max(0.001, (deadline - sent_at) / (len(left) + 1))
            try:
                response = yield Call(at, "session", "OpenSession", request, seconds)
            except grpc.RpcError as error:
                typed = self._error_of(at, error)
                if not left or not typed.retriable or time.monotonic() >= deadline:
                    raise UnsentCallError(typed, *status_of(error)) from error
                continue
            if response.token:
                log.debug("session of user %s opened at %s", response.user, at)
                return Token(response.token, sent_at, response.lifetime_ms / 1000)
            self._coordinators = self._shuffled(response.coordinators)
            left += [coordinator for coordinator in self._coordinators if coordinator not in tried]
            if not left:
                raise InternalError(f"{at} sent neither a session nor another address", outcome=Outcome.NOT_APPLIED)

    def _request(self) -> Operation[auth_pb2.OpenSessionRequest]:
        request = auth_pb2.OpenSessionRequest(client_id=self._config.client_id)
        provider = self._config.token_provider
        if provider is not None:
            failure_before, self._failure = self._failure, "token_provider has not returned"
            try:
                provided = yield InvokeCallback(lambda _: provider(), None)
            except Exception as error:
                raise provider_error(error) from error
            self._failure = failure_before
            request.jwt = provided_token(provided)
        elif self._config.token_file:
            request.jwt = read_token(self._config)
        else:
            request.api_key = read_api_key(self._config)
        return request

    def _shuffled(self, addresses: Iterable[str]) -> tuple[str, ...]:
        """Return addresses in a random order, so that clients divide among them."""
        found = list(dict.fromkeys(addresses))
        self._random.shuffle(found)
        return tuple(found)

    def _error_of(self, address: str, error: grpc.RpcError) -> HeadraceError:
        typed = error_of_call(error)
        if status_of(error)[0] == "UNIMPLEMENTED" and typed.outcome != Outcome.NOT_APPLIED:
            typed = UnsupportedVersionError(
                f"{address} opens no sessions: it is of an older release, or no server of headrace",
                retriable=True,
                action=f"Upgrade the servers first, or remove {credential_of(self._config)}.",
            )
        elif isinstance(typed, UnauthenticatedError):
            typed.message = f"{typed.message} ({describe_credential(self._config)})"
            if typed.action == NEW_SESSION:
                typed.action = "Use another credential, or let an administrator look at its user."
        typed.outcome = Outcome.NOT_APPLIED
        return typed

    def _opened(self, token: Token) -> None:
        """Start the calls that wait, in their order, then publish the token: no later call overtakes them."""
        while True:
            with self._lock:
                if token == self._refused or self._is_closed:
                    return
                waiting, self._waiting = self._waiting, []
                if not waiting:
                    self._token, self._failure = token, ""
                    return
            for waiter in waiting:
                _release(waiter, token, None)

    def _failed(self, address: str, error: Exception) -> None:
        with self._lock:
            waiting = [waiter for waiter in self._waiting if waiter.address == address]
            self._waiting = [waiter for waiter in self._waiting if waiter.address != address]
            token, self._failure = self._token, str(error)
        if not waiting and token is not None:
            left_s = max(0.0, token.ends_at - time.monotonic())
            log.warning("the session is not renewed and ends in %.0f s: %s", left_s, error)
        for waiter in waiting:
            _release(waiter, NO_TOKEN, _own_copy(error))


def _own_copy(error: Exception) -> Exception:
    return copy(error) if isinstance(error, HeadraceError | UnsentCallError) else error


def _release(waiter: _Waiter, token: Token, error: Exception | None) -> None:
    try:
        waiter.ready(token, error)
    except Exception:
        log.exception("a call could not be started")


class AuthorizedStart:
    """Start of a call without a wait: with the session's token, and again with another if its server refuses that."""

    __slots__ = ("_address", "_attempt", "_ended", "_refused_at", "_sessions", "_timeout", "_token")

    def __init__(self, sessions: Sessions, address: str, timeout: float, attempt: Attempt, ended: Ended) -> None:
        """`timeout` of the call is in seconds."""
        self._sessions = sessions
        self._address = address
        self._timeout = timeout
        self._attempt = attempt
        self._ended = ended
        self._token = NO_TOKEN
        self._refused_at: float | None = None

    def start(self) -> None:
        """Start the call, now or when the session is open; raise as `Sessions.current` and the attempt."""
        token = self._sessions.current(self._address)
        if token is None:
            self._sessions.wait(self._address, self._timeout, self._ready)
        else:
            self._begin(token)

    def _begin(self, token: Token) -> None:
        self._token = token
        self._attempt(token, self._answered)

    def stop_waiting(self) -> None:
        """End the call if it waits for the session; nothing was sent, and it is not begun any more."""
        if self._sessions.leave(self._ready):
            self._ended(None, self._sessions.not_open_in_time(self._address))

    def _ready(self, token: Token, error: Exception | None) -> None:
        if error is None:
            try:
                self._begin(token)
                return
            except Exception as failure:
                error = failure
        self._ended(None, error)

    def _answered(self, answer: Any, error: Exception | None) -> None:
        if error is None or not is_refusal(error) or is_final(self._token, self._refused_at):
            self._ended(answer, error)
            return
        if self._refused_at is None:
            self._refused_at = time.monotonic()
        self._sessions.refused(self._token)
        self._sessions.wait(self._address, self._timeout, self._ready)


def is_refusal(error: BaseException) -> bool:
    """Return whether a server did not accept the token of a call, which then had no effect."""
    if isinstance(error, HeadraceError):
        return error.code == ErrorCode.UNAUTHENTICATED and error.outcome == Outcome.NOT_APPLIED
    return not isinstance(error, UnsentCallError) and status_of(error)[0] == "UNAUTHENTICATED"


def is_final(token: Token, refused_at: float | None) -> bool:
    """Return whether a refusal of `token` ends a call that was first refused at `refused_at`, in monotonic seconds.

    A session that another call had opened before may be as invalid as the one that was refused first.
    """
    return refused_at is not None and token.opened_at >= refused_at
