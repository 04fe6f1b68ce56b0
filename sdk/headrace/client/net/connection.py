"""Channels to brokers and coordinators, one per address, and the execution of steps. Blocking; any thread."""

import queue
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import grpc

from headrace.client.base.config import MAX_MESSAGE_BYTES, ClientConfig
from headrace.client.base.credentials import credential_of
from headrace.client.base.errors import ClosedError
from headrace.client.base.operations import (
    BeginCall,
    Call,
    InvokeCallback,
    Operation,
    Pause,
    StartCall,
    WaitUntil,
    execute_loop,
)
from headrace.client.base.request_ids import operation_metadata
from headrace.client.net.call_future import CallFuture
from headrace.client.net.native import NativeConnections
from headrace.client.net.native_calls import NATIVE_METHODS, native_request
from headrace.client.net.security import ChannelSecurity, ClientCertificates, Options, credentials_of
from headrace.client.net.sessions import (
    AwaitToken,
    Ended,
    Sessions,
    Token,
    TokenCall,
)
from headrace.v1 import (
    auth_pb2_grpc,
    broker_pb2,
    broker_pb2_grpc,
    cluster_pb2_grpc,
    groups_pb2_grpc,
    process_pb2_grpc,
    tables_pb2_grpc,
)
from headrace.wire.errors import HeadraceError
from headrace.wire.frames import Frame
from headrace.wire.zero_copy import parse_fetch_response, serialize_produce

CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 15_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
)
"""gRPC itself never retries: every retry is made by the client, which considers the effect of the first try.

`min_reconnect_backoff_ms` is also the timeout of one connection attempt. Servers allow a ping every 10 s.
"""

OVERDUE_TICK_S = 0.1
"""Interval at which calls that wait for a token_provider are checked for the end of their time."""

PRODUCE = "/headrace.v1.BrokerService/Produce"
FETCH = "/headrace.v1.BrokerService/Fetch"


class Endpoint:
    """Channel and stubs of one address."""

    __slots__ = (
        "_auth",
        "_session",
        "_tables",
        "address",
        "broker",
        "certificates",
        "channel",
        "cluster",
        "groups",
        "process",
        "produce",
    )

    def __init__(self, address: str, certificates: ClientCertificates | None, options: Options) -> None:
        """`certificates` are used for TLS; `None` means plain text."""
        self.address = address
        self.certificates = certificates
        self._auth: auth_pb2_grpc.AuthServiceStub | None = None
        self._session: auth_pb2_grpc.SessionServiceStub | None = None
        self._tables: tables_pb2_grpc.TableServiceStub | None = None
        if certificates is None:
            self.channel = grpc.insecure_channel(address, options=options)
        else:
            self.channel = grpc.secure_channel(address, credentials_of(certificates), options=options)
        self.broker = cast(Any, broker_pb2_grpc.BrokerServiceStub(self.channel))
        """`FetchZeroCopy` returns a `SplicedMessage`, `ProduceZeroCopy` is called with one: batches are not copied."""
        self.broker.FetchZeroCopy = self.channel.unary_unary(
            FETCH,
            request_serializer=broker_pb2.FetchRequest.SerializeToString,
            response_deserializer=parse_fetch_response,
        )
        self.broker.ProduceZeroCopy = self.channel.unary_unary(
            PRODUCE,
            request_serializer=serialize_produce,
            response_deserializer=broker_pb2.ProduceResponse.FromString,
        )
        self.cluster = cluster_pb2_grpc.ClusterServiceStub(self.channel)
        self.groups = groups_pb2_grpc.GroupServiceStub(self.channel)
        self.process = process_pb2_grpc.ProcessServiceStub(self.channel)
        self.produce: Any = self.channel.unary_unary(
            PRODUCE, response_deserializer=broker_pb2.ProduceResponse.FromString
        )
        """Sends a request that is already serialised; see `produce_rpc`."""

    @property
    def auth(self) -> auth_pb2_grpc.AuthServiceStub:
        """Stub of users and rights, which few clients need."""
        if self._auth is None:
            self._auth = auth_pb2_grpc.AuthServiceStub(self.channel)
        return self._auth

    @property
    def session(self) -> auth_pb2_grpc.SessionServiceStub:
        """Stub of sessions, which clients with a credential need."""
        if self._session is None:
            self._session = auth_pb2_grpc.SessionServiceStub(self.channel)
        return self._session

    @property
    def tables(self) -> tables_pb2_grpc.TableServiceStub:
        """Stub of tables."""
        if self._tables is None:
            self._tables = tables_pb2_grpc.TableServiceStub(self.channel)
        return self._tables


class Connections:
    """Channels of one client. Owned by the client and closed with it; any thread."""

    def __init__(self, what: str, config: ClientConfig) -> None:
        """Read the certificates and the credential that `config` names.

        Raises:
            ConfigError: If they cannot be used.
        """
        self._what = what
        self._lock = threading.Lock()
        self._security = ChannelSecurity(config)
        self._options = self._security.options(CHANNEL_OPTIONS)
        self._endpoints: dict[str, Endpoint] = {}
        self._retired: dict[str, Endpoint] = {}
        self._closed = False
        self._is_traced = config.tracing != "off"
        self.native = NativeConnections(what, config, self._security)
        """Connections preferred for calls to brokers."""
        self.sessions = Sessions(what, config, self._spawn) if credential_of(config) else None
        """Session that calls carry; `None` without a credential."""

    def endpoint(self, address: str) -> Endpoint:
        """Return the endpoint of an address, created on first use.

        Raises:
            ClosedError: After `close`.
        """
        with self._lock:
            if self._closed:
                raise ClosedError(self._what)
            found, certificates = self._endpoints.get(address), self._security.certificates()
            if found is None or found.certificates is not certificates:
                if found is not None:
                    self._retire(found)
                found = self._endpoints[address] = Endpoint(address, certificates, self._options)
            return found

    def _retire(self, endpoint: Endpoint) -> None:
        """Keep an endpoint open for its calls in flight; close the one retired before, which has none left."""
        before = self._retired.get(endpoint.address)
        if before is not None:
            before.channel.close()
        self._retired[endpoint.address] = endpoint

    @property
    def is_open(self) -> bool:
        """Whether there is a channel to close."""
        return bool(self._endpoints)

    def close(self) -> None:
        """Close every channel; calls in flight are cancelled."""
        with self._lock:
            self._closed = True
            endpoints = [*self._endpoints.values(), *self._retired.values()]
            self._endpoints.clear()
            self._retired.clear()
        if self.sessions is not None:
            self.sessions.close()
        for endpoint in endpoints:
            endpoint.channel.close()
        self.native.close()

    def run_step(self, step: Any) -> Any:
        """Run one step of `headrace.client.base.operations`; return its result.

        Raises:
            grpc.RpcError, HeadraceError: If the call failed.
            ClosedError: If the client was closed before or during the step.
        """
        match step:
            case Call():
                if self.sessions is None:
                    return self._call(step, "")
                return execute_loop(self.sessions.authorized(step), self._run_authorized)
            case StartCall():
                return self._start(step.call, "") if self.sessions is None else self._start_authorized(step.call)
            case BeginCall():
                call = step.call
                if self.sessions is None:
                    self._begin(call, "", step.ended)
                else:
                    attempt = partial(self._begin, call)
                    self.sessions.begin(call.address, call.timeout, attempt, step.ended)
                return None
            case Pause():
                time.sleep(step.seconds)
                return None
            case InvokeCallback():
                return step.callback(step.argument)
            case WaitUntil():
                with step.changes:
                    return step.changes.wait_for(step.condition, step.seconds)
        raise AssertionError(f"no such step: {step!r}")

    # --- calls with a token; an empty one is not sent ---

    def _call(self, call: Call, token: str) -> Any:
        native = NATIVE_METHODS.get((call.service, call.method))
        if native is not None:
            request = partial(native_request, native, call, is_traced=self._is_traced)
            is_answered, answer = self.native.call(call.address, native, request, token)
            if is_answered:
                return answer
        method = getattr(getattr(self.endpoint(call.address), call.service), call.method)
        try:
            metadata = operation_metadata(token, is_traced=self._is_traced, call_try=call.call_try)
            answer = method(call.request, timeout=call.timeout, metadata=metadata)
        except ValueError as error:  # grpc raises it for a channel that was closed in the meantime
            raise ClosedError(self._what) from error
        if call.method == "GetMetadata":
            self.native.ports.learn(answer)
        return answer

    def _start(self, call: Call, token: str) -> Any:
        method = getattr(getattr(self.endpoint(call.address), call.service), call.method)
        try:
            return method.future(call.request, timeout=call.timeout, metadata=operation_metadata(token))
        except ValueError as error:
            raise ClosedError(self._what) from error

    def _begin(self, call: Call, token: str, ended: Ended) -> None:
        def over_grpc() -> None:
            self._start(call, token).add_done_callback(partial(_future_ended, ended))

        native = NATIVE_METHODS.get((call.service, call.method))
        if native is None:
            over_grpc()
            return

        def done(frame: Frame | None, error: HeadraceError | None) -> None:
            try:
                is_answered, answer = self.native.outcome(call.address, native, frame, error)
                if not is_answered:
                    over_grpc()
                    return
            except Exception as failure:
                ended(None, failure)
            else:
                ended(answer, None)

        if self.native.begin(call.address, partial(native_request, native, call), done, token) is None:
            over_grpc()

    # --- the session ---

    def _run_authorized(self, step: Any) -> Any:
        """Run one step of `Sessions.authorized`."""
        match step:
            case TokenCall():
                return self._call(step.call, step.token)
            case AwaitToken():
                return self._await_token(step.address, step.seconds)
        raise AssertionError(f"no such step: {step!r}")

    def _await_token(self, address: str, seconds: float) -> Token:
        assert self.sessions is not None
        opened: queue.SimpleQueue[tuple[Token, Exception | None]] = queue.SimpleQueue()

        def ready(token: Token, error: Exception | None) -> None:
            opened.put((token, error))

        self.sessions.wait(address, seconds, ready)
        try:
            token, error = opened.get(timeout=seconds)
        except queue.Empty:
            self.sessions.leave(ready)
            raise self.sessions.not_open_in_time(address) from None
        if error is not None:
            raise error
        return token

    def _start_authorized(self, call: Call) -> CallFuture:
        assert self.sessions is not None
        future = CallFuture()

        def attempt(token: str, ended: Ended) -> None:
            if future.cancelled():
                ended(None, ClosedError(self._what))
                return
            started = self._start(call, token)
            future.begun(started.cancel)
            started.add_done_callback(partial(_future_ended, ended))

        self.sessions.begin(call.address, call.timeout, attempt, future.ended)
        return future

    def _spawn(self, exchange: Operation[None]) -> None:
        """Run an exchange of `Sessions`: on a thread, as no caller can wait for it."""
        threading.Thread(
            target=execute_loop, args=(exchange, self._run_exchange), name="headrace-session", daemon=True
        ).start()

    def _run_exchange(self, step: Any) -> Any:
        """Run one step of an exchange; its calls carry no token."""
        return self._call(step, "") if isinstance(step, Call) else self._call_provider(step)

    def _call_provider(self, step: InvokeCallback) -> Any:
        """Call the token_provider on a thread of its own, because it may hang; meanwhile end waits whose time is up."""
        assert self.sessions is not None
        results: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        threading.Thread(target=_invoke, args=(step, results), name="headrace-token", daemon=True).start()
        while not self._closed:
            try:
                provided, error = results.get(timeout=OVERDUE_TICK_S)
            except queue.Empty:
                self.sessions.end_overdue_waits()
                continue
            if error is not None:
                raise error
            return provided
        raise ClosedError(self._what)


def _invoke(step: InvokeCallback, results: queue.SimpleQueue[tuple[Any, BaseException | None]]) -> None:
    try:
        results.put((step.callback(step.argument), None))
    except BaseException as error:
        results.put((None, error))


def _future_ended(ended: Callable[[Any, Exception | None], None], future: "grpc.Future[Any]") -> None:
    try:
        answer = future.result()
    except grpc.FutureCancelledError:
        ended(None, ClosedError("client"))
    except Exception as error:
        ended(None, error)
    else:
        ended(answer, None)
