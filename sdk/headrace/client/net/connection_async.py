"""Channels of the running loop, one per address, and the execution of steps. Used on one event loop."""

import asyncio
import inspect
from functools import partial
from typing import Any, cast

import grpc

from headrace.client.base.config import ClientConfig
from headrace.client.base.errors import ClosedError
from headrace.client.base.operations import Call, InvokeCallback, Pause, WaitUntil
from headrace.client.base.request_ids import operation_metadata
from headrace.client.net.connection import CHANNEL_OPTIONS, FETCH, PRODUCE
from headrace.client.net.native_async import AsyncNativeConnections
from headrace.client.net.native_calls import NATIVE_METHODS, native_request
from headrace.client.net.security import ChannelSecurity, ClientCertificates, Options, credentials_of
from headrace.v1 import broker_pb2, broker_pb2_grpc, cluster_pb2_grpc, groups_pb2_grpc, process_pb2_grpc
from headrace.wire.zero_copy import parse_fetch_response


class AsyncEndpoint:
    """Channel and stubs of one address, as in `headrace.client.net.connection.Endpoint`."""

    __slots__ = ("address", "broker", "certificates", "channel", "cluster", "groups", "process", "produce")

    def __init__(self, address: str, certificates: ClientCertificates | None, options: Options) -> None:
        """`certificates` are used for TLS; `None` means plain text."""
        self.address = address
        self.certificates = certificates
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
        self.cluster = cluster_pb2_grpc.ClusterServiceStub(self.channel)
        self.groups = groups_pb2_grpc.GroupServiceStub(self.channel)
        self.process = process_pb2_grpc.ProcessServiceStub(self.channel)
        self.produce: Any = self.channel.unary_unary(
            PRODUCE, response_deserializer=broker_pb2.ProduceResponse.FromString
        )


class AsyncConnections:
    """Channels of one client. Owned by the client and closed with it."""

    def __init__(self, what: str, config: ClientConfig) -> None:
        """Read the certificates that `config` names.

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
        self.native = AsyncNativeConnections(what, config, self._security)
        """Connections preferred for calls to brokers."""

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
                if (native := NATIVE_METHODS.get((step.service, step.method))) is not None:
                    request = partial(native_request, native, step)
                    is_answered, answer = await self.native.call(step.address, native, request)
                    if is_answered:
                        return answer
                stub = getattr(self.endpoint(step.address), step.service)
                call = getattr(stub, step.method)(step.request, timeout=step.timeout, metadata=operation_metadata())
                if isinstance(call, grpc.aio.UnaryStreamCall):
                    return call
                answer = await self.answer(call)
                if step.method == "GetMetadata":
                    self.native.ports.learn(answer)
                return answer
            case Pause():
                await self.pause(step.seconds)
                return None
            case InvokeCallback():
                result = step.callback(step.argument)
                return await result if inspect.isawaitable(result) else result
            case WaitUntil():
                return await step.changes.wait_for(step.condition, step.seconds)
        raise AssertionError(f"no such step: {step!r}")

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
        self.native.close()
        endpoints = [*self._endpoints.values(), *self._retired.values()]
        self._endpoints.clear()
        self._retired.clear()
        for endpoint in endpoints:
            await endpoint.channel.close()
        await asyncio.gather(*self._closing)
