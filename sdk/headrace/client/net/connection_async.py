"""Channels of the running loop, one per address, and the execution of steps. Used on one event loop."""

import asyncio
import inspect
from functools import partial
from typing import Any, cast

import grpc

from headrace.client.base.config import ClientConfig
from headrace.client.base.credentials import credential_of
from headrace.client.base.errors import ClosedError
from headrace.client.base.operations import Call, InvokeCallback, Operation, Pause, WaitUntil, aexecute_loop
from headrace.client.base.request_ids import operation_metadata, outside_operations
from headrace.client.net.connection import CHANNEL_OPTIONS, FETCH, PRODUCE
from headrace.client.net.native_async import AsyncNativeConnections
from headrace.client.net.native_calls import NATIVE_METHODS, native_request
from headrace.client.net.security import ChannelSecurity, ClientCertificates, Options, credentials_of
from headrace.client.net.sessions import AwaitToken, Sessions, Token, TokenCall
from headrace.v1 import (
    auth_pb2_grpc,
    broker_pb2,
    broker_pb2_grpc,
    cluster_pb2_grpc,
    groups_pb2_grpc,
    process_pb2_grpc,
    tables_pb2_grpc,
)
from headrace.wire.zero_copy import parse_fetch_response, serialize_produce

EXCHANGE_CLOSE_S = 1.0
"""Time limit of `close` for an exchange of the credential."""


class AsyncEndpoint:
    """Channel and stubs of one address, as in `headrace.client.net.connection.Endpoint`."""

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
            self.channel = grpc.aio.insecure_channel(address, options=options)
        else:
            self.channel = grpc.aio.secure_channel(address, credentials_of(certificates), options=options)
        self.broker = cast(Any, broker_pb2_grpc.BrokerServiceStub(self.channel))
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

    @property
    def auth(self) -> auth_pb2_grpc.AuthServiceStub:
        """Stub of users and rights."""
        if self._auth is None:
            self._auth = auth_pb2_grpc.AuthServiceStub(self.channel)
        return self._auth

    @property
    def session(self) -> auth_pb2_grpc.SessionServiceStub:
        """Stub of sessions."""
        if self._session is None:
            self._session = auth_pb2_grpc.SessionServiceStub(self.channel)
        return self._session

    @property
    def tables(self) -> tables_pb2_grpc.TableServiceStub:
        """Stub of tables."""
        if self._tables is None:
            self._tables = tables_pb2_grpc.TableServiceStub(self.channel)
        return self._tables


class AsyncConnections:
    """Channels of one client. Owned by the client and closed with it."""

    def __init__(self, what: str, config: ClientConfig) -> None:
        """Read the certificates and the credential that `config` names.

        Raises:
            ConfigError: If they cannot be used.
        """
        self._what = what
        self._security = ChannelSecurity(config)
        self._options = self._security.options(CHANNEL_OPTIONS)
        self._endpoints: dict[str, AsyncEndpoint] = {}
        self._retired: dict[str, AsyncEndpoint] = {}
        self._closing: dict[asyncio.Task[None], None] = {}
        self._closed = asyncio.Event()
        self._is_traced = config.tracing != "off"
        self.native = AsyncNativeConnections(what, config, self._security)
        """Connections preferred for calls to brokers."""
        self.sessions = Sessions(what, config, self._spawn) if credential_of(config) else None
        """Session that calls carry; `None` without a credential."""
        self._exchange: asyncio.Task[None] | None = None

    def endpoint(self, address: str) -> AsyncEndpoint:
        """Return the endpoint of an address, created on first use.

        Raises:
            ClosedError: After `close`.
        """
        if self._closed.is_set():
            raise ClosedError(self._what)
        found, certificates = self._endpoints.get(address), self._security.certificates()
        if found is None or found.certificates is not certificates:
            if found is not None:
                self._retire(found)
            found = self._endpoints[address] = AsyncEndpoint(address, certificates, self._options)
        return found

    def _retire(self, endpoint: AsyncEndpoint) -> None:
        """Keep an endpoint open for its calls in flight; close the one retired before, which has none left."""
        before = self._retired.get(endpoint.address)
        if before is not None:
            closing = asyncio.create_task(before.channel.close())
            self._closing[closing] = None
            closing.add_done_callback(lambda done: self._closing.pop(done, None))
        self._retired[endpoint.address] = endpoint

    async def run_step(self, step: Any) -> Any:
        """Run one step of `headrace.client.base.operations`; return its result.

        Raises:
            grpc.RpcError, HeadraceError: If the call failed.
            ClosedError: If the client was closed before or during the step.
        """
        match step:
            case Call():
                if self.sessions is None:
                    return await self._call(step, "")
                return await aexecute_loop(self.sessions.authorized(step), self._run_authorized)
            case Pause():
                await self.pause(step.seconds)
                return None
            case InvokeCallback():
                result = step.callback(step.argument)
                return await result if inspect.isawaitable(result) else result
            case WaitUntil():
                return await step.changes.wait_for(step.condition, step.seconds)
        raise AssertionError(f"no such step: {step!r}")

    async def _call(self, call: Call, token: str) -> Any:
        """Make a call with a token; an empty one is not sent."""
        if (native := NATIVE_METHODS.get((call.service, call.method))) is not None:
            request = partial(native_request, native, call, is_traced=self._is_traced)
            is_answered, answer = await self.native.call(call.address, native, request, token)
            if is_answered:
                return answer
        stub = getattr(self.endpoint(call.address), call.service)
        metadata = operation_metadata(token, is_traced=self._is_traced, call_try=call.call_try)
        started = getattr(stub, call.method)(call.request, timeout=call.timeout, metadata=metadata)
        if isinstance(started, grpc.aio.UnaryStreamCall):
            return started
        answer = await self.answer(started)
        if call.method == "GetMetadata":
            self.native.ports.learn(answer)
        return answer

    async def _run_authorized(self, step: Any) -> Any:
        """Run one step of `Sessions.authorized`."""
        match step:
            case TokenCall():
                return await self._call(step.call, step.token)
            case AwaitToken():
                return await self._await_token(step.address, step.seconds)
        raise AssertionError(f"no such step: {step!r}")

    async def _await_token(self, address: str, seconds: float) -> Token:
        assert self.sessions is not None
        opened: asyncio.Future[Token] = asyncio.get_running_loop().create_future()

        def ready(token: Token, error: Exception | None) -> None:
            if opened.done():  # Cancelled.
                return
            if error is None:
                opened.set_result(token)
            else:
                opened.set_exception(error)

        self.sessions.wait(address, seconds, ready)
        try:
            async with asyncio.timeout(seconds):
                return await opened
        except TimeoutError:
            raise self.sessions.not_open_in_time(address) from None
        finally:
            self.sessions.leave(ready)  # After its time was up or a cancellation.

    def _spawn(self, exchange: Operation[None]) -> None:
        """Run an exchange of `Sessions`, for all calls that wait for it."""
        self._exchange = asyncio.get_running_loop().create_task(
            aexecute_loop(exchange, self._run_exchange), name="headrace-session", context=outside_operations()
        )

    async def _run_exchange(self, step: Any) -> Any:
        """Run one step of an exchange; its calls carry no token."""
        return await self._call(step, "") if isinstance(step, Call) else await self.run_step(step)

    async def answer(self, call: Any) -> Any:
        """Await a call of one of these channels; a close of the channel ends it with ClosedError, not as cancelled."""
        task = asyncio.current_task()
        try:
            return await call
        except asyncio.CancelledError:
            if self._closed.is_set() and not (task is not None and task.cancelling()):
                raise ClosedError(self._what) from None
            raise
        except grpc.aio.UsageError as error:  # grpc raises it for a channel that was closed in the meantime
            raise ClosedError(self._what) from error

    async def pause(self, seconds: float) -> None:
        """Wait, but not beyond `close`.

        Raises:
            ClosedError: If the client was closed in the meantime.
        """
        try:
            async with asyncio.timeout(seconds):
                await self._closed.wait()
        except TimeoutError:
            return
        raise ClosedError(self._what)

    @property
    def is_open(self) -> bool:
        """Whether there is a channel to close."""
        return bool(self._endpoints)

    async def close(self) -> None:
        """Close every channel; calls in flight are cancelled. Calling it again does nothing."""
        self._closed.set()
        if self.sessions is not None:
            self.sessions.close()
        if self._exchange is not None:
            self._exchange.cancel()
        self.native.close()
        endpoints = [*self._endpoints.values(), *self._retired.values()]
        self._endpoints.clear()
        self._retired.clear()
        for endpoint in endpoints:
            await endpoint.channel.close()
        if self._exchange is not None:  # A token_provider may not end.
            await asyncio.wait({self._exchange}, timeout=EXCHANGE_CLOSE_S)
        await asyncio.gather(*self._closing)
