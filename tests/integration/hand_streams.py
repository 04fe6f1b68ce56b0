"""Both ends of a replication stream for tests that write its messages by hand, from any thread."""

from __future__ import annotations

import asyncio
import queue
import ssl
import threading
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from headrace.wire.attachments import splice_fetch
from headrace.wire.errors import HeadraceError
from headrace.wire.frames import MethodCode
from headrace_server.internal_v1 import replication_pb2 as internal
from headrace_server.native.outgoing import OutgoingMessage
from headrace_server.native.server import NativeServer
from headrace_server.native.streams import MessageStream, ServedStream, open_stream
from prometheus_client import CollectorRegistry

from tests.fakes.native_metrics import native_metrics

SECONDS = 40.0
ResultT = TypeVar("ResultT")


class HandLoop:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def begin(self, work: Coroutine[Any, Any, ResultT]) -> Future[ResultT]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        return self.begin(work).result(SECONDS)

    def close(self) -> None:
        async def cancel() -> None:
            left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

        self.run(cancel())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(SECONDS)
        self._loop.close()


class HandResult:
    """The result of one partition, with its batches."""

    def __init__(self, result: internal.PartitionReplicaFetchResult, batches: bytes) -> None:
        self._result = result
        self.batches = batches

    def __getattr__(self, name: str) -> Any:
        return getattr(self._result, name)


class HandStream:
    """A follower's end: `answers` has the leader's messages, then what ended the stream; `None` means no error."""

    def __init__(self, address: str, context: ssl.SSLContext | None = None) -> None:
        self._loop = HandLoop()
        self.answers: queue.SimpleQueue[list[HandResult] | bytes | HeadraceError | None] = queue.SimpleQueue()
        try:
            self._stream = self._loop.run(open_stream(address, MethodCode.REPLICA_FETCH, "by hand", context))
        except BaseException:
            self._loop.close()
            raise
        self._loop.begin(self._read())

    async def _read(self) -> None:
        try:
            while (received := await self._stream.read()) is not None:
                response = internal.ReplicaFetchResponse.FromString(received.message)
                batches = iter(splice_fetch(response, received.attachments).batches)
                results = [
                    HandResult(part, bytes(next(batches)[0])) for at in response.topics for part in at.partitions
                ]
                self.answers.put(response.challenge or results)
            self.answers.put(None)
        except HeadraceError as error:
            self.answers.put(error)

    def send(self, request: internal.ReplicaFetchRequest) -> None:
        """Send one message, unless the stream has ended."""
        self._loop.begin(self._stream.write(OutgoingMessage(request.SerializeToString())))

    def close(self) -> None:
        async def abort() -> None:
            self._stream.abort()

        self._loop.run(abort())
        self._loop.close()


class HandServer:
    """A leader's end: `requests` has what the followers send; `answer` goes to the one that connected last."""

    def __init__(self) -> None:
        self._loop = HandLoop()
        self.requests: queue.SimpleQueue[internal.ReplicaFetchRequest] = queue.SimpleQueue()
        self.silent = False
        """Whether requests are answered without a heartbeat."""
        self._stream: MessageStream | None = None
        self.address = self._loop.run(self._start())

    async def _start(self) -> str:
        registry = CollectorRegistry()
        metrics = native_metrics(registry)

        def connect(server: NativeServer) -> ServedStream:
            return ServedStream(server, MethodCode.REPLICA_FETCH, self._serve)

        self._server = NativeServer("hand", metrics, connect, executor=None, max_connections=10)
        return await self._server.start("127.0.0.1:0")

    async def _serve(self, stream: MessageStream) -> None:
        stream.admit(1 << 20)
        self._stream = stream
        await stream.write(_outgoing(internal.ReplicaFetchResponse(challenge=b"challenge")))
        while (received := await stream.read()) is not None:
            self.requests.put(internal.ReplicaFetchRequest.FromString(received.message))
            if not self.silent:
                await stream.write(_outgoing(internal.ReplicaFetchResponse()))

    def answer(self, response: internal.ReplicaFetchResponse, batches: Sequence[bytes] = ()) -> None:
        """Send one message to the follower."""
        assert self._stream is not None, "a follower has connected"
        self._loop.begin(self._stream.write(_outgoing(response, batches)))

    def end(self) -> None:
        """End the present stream."""

        async def abort() -> None:
            if self._stream is not None:
                self._stream.abort()

        self._loop.run(abort())

    def close(self) -> None:
        self._loop.run(self._server.stop(0))
        self._loop.close()


def _outgoing(response: internal.ReplicaFetchResponse, batches: Sequence[bytes] = ()) -> OutgoingMessage:
    return OutgoingMessage(response.SerializeToString(), batches)
