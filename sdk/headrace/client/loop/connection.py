"""Channels of the running loop, one an address, and what performs steps over them. One event loop."""

import asyncio
from typing import Any

import grpc

from headrace.client.connection import CHANNEL_OPTIONS, FETCH, PRODUCE
from headrace.client.errors import ClosedError
from headrace.client.request_ids import operation_metadata
from headrace.client.steps import Call, Pause
from headrace.v1 import broker_pb2, broker_pb2_grpc, cluster_pb2_grpc, groups_pb2_grpc, process_pb2_grpc
from headrace.wire.envelopes import parse_fetch_response


class LoopEndpoint:
    """One address: its channel and its stubs, as `headrace.client.connection.Endpoint` has them."""

    __slots__ = ("address", "broker", "channel", "cluster", "fetch", "groups", "process", "produce")

    def __init__(self, address: str) -> None:
        self.address = address
        self.channel = grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
        self.broker = broker_pb2_grpc.BrokerServiceStub(self.channel)
        self.cluster = cluster_pb2_grpc.ClusterServiceStub(self.channel)
        self.groups = groups_pb2_grpc.GroupServiceStub(self.channel)
        self.process = process_pb2_grpc.ProcessServiceStub(self.channel)
        self.produce: Any = self.channel.unary_unary(
            PRODUCE, response_deserializer=broker_pb2.ProduceResponse.FromString
        )
        self.fetch: Any = self.channel.unary_unary(
            FETCH,
            request_serializer=broker_pb2.FetchRequest.SerializeToString,
            response_deserializer=parse_fetch_response,
        )


class LoopConnections:
    """The channels of one client. Owned by the client, closed with it."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._endpoints: dict[str, LoopEndpoint] = {}
        self._closed = asyncio.Event()

    def endpoint(self, address: str) -> LoopEndpoint:
        """Give the endpoint of an address, made when first asked for.

        Raises:
            ClosedError: after `close`.
        """
        if self._closed.is_set():
            raise ClosedError(self._what)
        found = self._endpoints.get(address)
        if found is None:
            found = self._endpoints[address] = LoopEndpoint(address)
        return found

    async def perform(self, step: Any) -> Any:
        """Do one step of `headrace.client.steps` and give what came of it.

        Raises:
            grpc.RpcError: the call failed.
            ClosedError: the client was closed before or meanwhile.
        """
        match step:
            case Call():
                stub = getattr(self.endpoint(step.address), step.service)
                call = getattr(stub, step.method)(step.request, timeout=step.timeout, metadata=operation_metadata())
                is_started = step.starts or isinstance(call, grpc.aio.UnaryStreamCall)
                return call if is_started else await self.answer(call)
            case Pause():
                await self.pause(step.seconds)
                return None
        raise AssertionError(f"no such step: {step!r}")

    async def answer(self, call: Any) -> Any:
        """Await a call of one of these channels; closing the channel ends it with ClosedError, not as cancelled."""
        task = asyncio.current_task()
        try:
            return await call
        except asyncio.CancelledError:
            if self._closed.is_set() and not (task is not None and task.cancelling()):
                raise ClosedError(self._what) from None
            raise
        except grpc.aio.UsageError as error:  # grpc says it of a channel that was closed meanwhile
            raise ClosedError(self._what) from error

    async def pause(self, seconds: float) -> None:
        """Wait, but not past `close`.

        Raises:
            ClosedError: the client was closed meanwhile.
        """
        try:
            async with asyncio.timeout(seconds):
                await self._closed.wait()
        except TimeoutError:
            return
        raise ClosedError(self._what)

    async def close(self) -> None:
        """Close every channel; calls in flight are cancelled. Again: nothing."""
        self._closed.set()
        endpoints = list(self._endpoints.values())
        self._endpoints.clear()
        for endpoint in endpoints:
            await endpoint.channel.close()
