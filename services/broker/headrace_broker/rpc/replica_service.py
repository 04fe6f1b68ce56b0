"""`ReplicaService`: authenticates followers and runs their streams (see `runtime.follower_fetch_session`)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
from headrace.wire.errors import HeadraceError, InvalidRequestError
from headrace.wire.zero_copy import SplicedMessage
from headrace_server.calls import abort
from headrace_server.cluster_secret import make_challenge
from headrace_server.internal_v1 import replication_pb2

from headrace_broker.runtime.follower_fetch_session import FollowerFetchSession
from headrace_broker.runtime.replica_manager import ReplicaManager
from headrace_broker.runtime.replica_messages import RESPONSES, SERVICE_NAME, SILENCE_SECONDS
from headrace_broker.runtime.replication import Replication
from headrace_broker.runtime.uninterrupted import cancel_and_wait


class ReplicaService:
    """Servicer of followers. Belongs to the event loop."""

    def __init__(
        self, replication: Replication, replica_manager: ReplicaManager, check_serving: Callable[[], None]
    ) -> None:
        """`check_serving` raises if no calls are accepted."""
        self._replication = replication
        self._replica_manager = replica_manager
        self._check_serving = check_serving

    async def ReplicaFetch(
        self, requests: AsyncIterator[replication_pb2.ReplicaFetchRequest], context: Any
    ) -> AsyncIterator[SplicedMessage]:
        """See the proto. Ends when the follower disconnects, falls silent or opens another stream."""
        try:
            self._check_serving()
            await anext(requests, None)
            challenge = make_challenge()
            yield SplicedMessage(replication_pb2.ReplicaFetchResponse(challenge=challenge), [])
            async with asyncio.timeout(SILENCE_SECONDS):
                request = await anext(requests, None)
            if request is None or not request.HasField("follower"):
                raise InvalidRequestError("the second request of a stream says who follows")
            stream = self._replication.open_stream(request.follower, challenge, self._replica_manager.get)
        except (HeadraceError, TimeoutError) as error:
            refused = error if isinstance(error, HeadraceError) else InvalidRequestError("nothing came on the stream")
            await abort(context, refused)
            return
        reader = asyncio.create_task(_read(requests, stream))
        try:
            stream.on_message(request)
            async for spliced in stream.responses():
                yield spliced
        finally:
            self._replication.close_stream(stream)
            await cancel_and_wait(reader)


async def _read(requests: AsyncIterator[replication_pb2.ReplicaFetchRequest], stream: FollowerFetchSession) -> None:
    try:
        while True:
            async with asyncio.timeout(SILENCE_SECONDS):
                request = await anext(requests, None)
            if request is None:
                return
            stream.on_message(request)
    except (TimeoutError, grpc.aio.AioRpcError):
        pass  # The follower has fallen silent, or the stream broke; the follower will reconnect.
    finally:
        stream.close()


def register(service: ReplicaService, server: grpc.aio.Server) -> None:
    """Add the service to a server."""
    handlers: dict[str, Any] = {
        "ReplicaFetch": grpc.stream_stream_rpc_method_handler(
            service.ReplicaFetch,
            request_deserializer=replication_pb2.ReplicaFetchRequest.FromString,
            response_serializer=RESPONSES.write,
        )
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE_NAME, handlers),))
