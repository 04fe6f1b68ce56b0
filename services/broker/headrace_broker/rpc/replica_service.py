"""Lets followers in and runs their streams (see `runtime.follower_fetch_session`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from google.protobuf.message import DecodeError
from headrace.wire.errors import InvalidRequestError
from headrace_server.cluster_secret import make_challenge
from headrace_server.internal_v1 import replication_pb2
from headrace_server.native.outgoing import OutgoingMessage
from headrace_server.native.streams import MessageStream

from headrace_broker.runtime.follower_fetch_session import FollowerFetchSession
from headrace_broker.runtime.replica_manager import ReplicaManager
from headrace_broker.runtime.replica_messages import MAX_REQUEST_BYTES, receive
from headrace_broker.runtime.replication import Replication
from headrace_broker.runtime.uninterrupted import cancel_and_wait


class ReplicaService:
    """Servicer of followers. Belongs to the event loop."""

    def __init__(
        self, replication: Replication, replica_manager: ReplicaManager, check_serving: Callable[[], None]
    ) -> None:
        """`check_serving` raises if no call may be accepted."""
        self._replication = replication
        self._replica_manager = replica_manager
        self._check_serving = check_serving

    async def serve(self, stream: MessageStream) -> None:
        """Serve one stream until the follower leaves, falls silent or opens another one.

        Raises:
            HeadraceError: If the follower is refused; the stream then ends with it.
        """
        self._check_serving()
        challenge = make_challenge()
        await stream.write(
            OutgoingMessage(replication_pb2.ReplicaFetchResponse(challenge=challenge).SerializeToString())
        )
        try:
            request = await _receive(stream)
        except TimeoutError as error:
            raise InvalidRequestError("nothing came on the stream") from error
        if request is None or not request.HasField("follower"):
            raise InvalidRequestError("the first message of a stream says who follows")
        session = self._replication.open_stream(request.follower, challenge, self._replica_manager.get)
        stream.admit(MAX_REQUEST_BYTES)
        reader = asyncio.create_task(_read(stream, session, request))
        try:
            async for outgoing in session.responses():
                await stream.write(outgoing)
        finally:
            self._replication.close_stream(session)
            await cancel_and_wait(reader)


async def _read(
    stream: MessageStream, session: FollowerFetchSession, first: replication_pb2.ReplicaFetchRequest
) -> None:
    request: replication_pb2.ReplicaFetchRequest | None = first
    try:
        while request is not None:
            await session.on_message(request)
            request = await _receive(stream)
    except TimeoutError:
        pass  # The follower has fallen silent; it will connect again.
    finally:
        session.close()


async def _receive(stream: MessageStream) -> replication_pb2.ReplicaFetchRequest | None:
    """Return the next request; `None` means that the stream has ended. Raises TimeoutError, HeadraceError."""
    received = await receive(stream)
    if received is None:
        return None
    try:
        return replication_pb2.ReplicaFetchRequest.FromString(received.message)
    except DecodeError as error:
        raise InvalidRequestError("a message of the stream cannot be read") from error
