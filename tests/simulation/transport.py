"""gRPC for brokers on virtual loops: servers with the shipped services, unary calls, streams with back-pressure.

What a service registers is called as gRPC calls it, with its own serializers, so no object is shared. Streams
lie on `network.Stream`s: in order, held by blocked links, broken with notice to one side or both. A side that does not
read lets the other one wait: the number of messages under way or unread is bounded.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from types import SimpleNamespace, TracebackType
from typing import Any, Self

import grpc
from headrace_broker.runtime import replica_fetcher
from headrace_server.tls import open_channel

from tests.simulation.network import Network, Stream
from tests.simulation.virtual_loop import VirtualLoop
from tests.simulation.world import Process, World

WINDOW_MESSAGES = (1, 2, 4)
"""The maximum of messages under way in a stream: drawn for each."""
Reply = Callable[["bytes | grpc.aio.AioRpcError"], object]


class _Aborted(Exception):
    """How a servicer ends a call."""

    def __init__(self, code: grpc.StatusCode, details: str, trailers: Any) -> None:
        super().__init__(details)
        self.error = grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*trailers), details=details)


class _Context:
    """What a servicer asks of gRPC."""

    def __init__(self, loop: VirtualLoop, seconds: float | None) -> None:
        self._loop = loop
        self._ends = None if seconds is None else loop.time() + seconds
        self.callbacks: list[Callable[[Any], object]] = []

    def time_remaining(self) -> float | None:
        """Seconds until the caller gives up."""
        return None if self._ends is None else self._ends - self._loop.time()

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """Call it when the call is over."""
        self.callbacks.append(callback)

    def invocation_metadata(self) -> tuple[()]:
        """None."""
        return ()

    def auth_context(self) -> dict[str, Any]:
        """None."""
        return {}

    def peer(self) -> str:
        """The same for all."""
        return "simulated"

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()) -> None:
        """End the call with an error."""
        raise _Aborted(code, details, trailing_metadata)


class Server:
    """Replaces `RpcServer`: the services of one process at one address."""

    def __init__(self, transport: Transport, loop: VirtualLoop, process: Process) -> None:
        self._transport = transport
        self.loop = loop
        self.process = process
        self.address = ""
        self._handlers: list[Any] = []
        self._methods: dict[str, Any] = {}
        self._calls: dict[asyncio.Task[None], None] = {}

    def add(self, register: Callable[[Any, Any], None], servicer: object, _service_name: str) -> None:
        """Take a service as it registers itself."""
        register(
            servicer,
            SimpleNamespace(
                add_generic_rpc_handlers=self._handlers.extend, add_registered_method_handlers=lambda *_: None
            ),
        )

    def refuse_internal(self, _service_name: str, _call_errors: object) -> None:
        """The simulation has no confusion of listeners."""

    async def start(self, listen: str, _credentials: object = None) -> str:
        """Take calls at an address."""
        self.address = listen
        self._transport.servers[listen] = self
        return listen

    async def stop(self, grace_seconds: float) -> None:
        """Take no more calls; those at work are cancelled when the time is over."""
        self.close()
        if self._calls and grace_seconds:
            await asyncio.wait(list(self._calls), timeout=grace_seconds)
        for task in list(self._calls):
            task.cancel()
        if self._calls:
            await asyncio.wait(list(self._calls))

    def close(self) -> None:
        """Listen no more."""
        if self._transport.servers.get(self.address) is self:
            del self._transport.servers[self.address]

    def _method(self, method: str) -> Any:
        found = self._methods.get(method)
        if found is None:
            details = SimpleNamespace(method=method, invocation_metadata=())
            answers = (handler.service(details) for handler in self._handlers)
            found = self._methods[method] = next((each for each in answers if each is not None), None)
        return found

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task = self.loop.create_task(work)
        self._calls[task] = None
        task.add_done_callback(self._calls.pop)
        return task

    def call(self, method: str, request: bytes, seconds: float, reply: Reply) -> None:
        """Answer a unary call, in the present event where nothing has to be waited for."""
        self.loop.run(lambda: self._spawn(self._answer(method, request, seconds, reply)))

    async def _answer(self, method: str, request: bytes, seconds: float, reply: Reply) -> None:
        handler, context = self._method(method), _Context(self.loop, seconds)
        if handler is None:
            none = grpc.aio.Metadata()
            reply(grpc.aio.AioRpcError(grpc.StatusCode.UNIMPLEMENTED, none, none, details="Method not found!"))
            return
        try:
            async with asyncio.timeout(seconds):
                answer = await handler.unary_unary(handler.request_deserializer(request), context)
        except _Aborted as aborted:
            reply(aborted.error)
        except TimeoutError:
            pass  # Its caller has given up.
        else:
            reply(handler.response_serializer(answer))
        finally:
            for callback in context.callbacks:
                callback(context)

    def serve_stream(self, method: str, side: _Side) -> None:
        """Serve a bidirectional stream until it ends."""
        side.task = self._spawn(self._serve_stream(self._method(method), side))

    async def _serve_stream(self, handler: Any, side: _Side) -> None:
        async def requests() -> AsyncIterator[Any]:
            while (data := await side.read()) is not None:
                yield handler.request_deserializer(data)

        context = _Context(self.loop, None)
        try:
            async with aclosing(handler.stream_stream(requests(), context)) as answers:
                async for answer in answers:
                    await side.write(handler.response_serializer(answer), _describe_answers(answer))
        except _Aborted as aborted:
            side.send_end(aborted.error)
        except grpc.aio.AioRpcError:
            pass  # The other side is gone.
        else:
            side.send_end(None)


class _Side:
    """One end of a stream."""

    def __init__(self, loop: VirtualLoop, process: Process, stream: Stream, window: int) -> None:
        self.loop = loop
        self.process = process
        self._stream = stream
        self._room = window
        self.other: _Side
        self.task: asyncio.Task[None] | None = None
        """What serves it, at a server."""
        self._inbox: deque[bytes] = deque()
        self.is_over = False
        """Whether this side knows that it is over."""
        self._error: grpc.aio.AioRpcError | None = None
        self._waiting: asyncio.Future[None] | None = None
        self._waiting_for_room: asyncio.Future[None] | None = None

    async def read(self) -> bytes | None:
        """The next message; None: the other side has ended it. Raises what broke it."""
        while not self._inbox:
            if self._error is not None:
                raise self._error
            if self.is_over:
                return None
            self._waiting = self.loop.create_future()
            await self._waiting
        self.other._give_room()
        return self._inbox.popleft()

    async def write(self, data: bytes, what: str) -> None:
        """Send a message once there is room."""
        while not self._room and not self.is_over:
            self._waiting_for_room = self.loop.create_future()
            await self._waiting_for_room
        if self.is_over:
            raise self._error or unavailable("the stream has ended")
        self._room -= 1
        other = self.other
        self._stream.send(self.process, what, lambda: other.loop.run(other._take, data))

    def _give_room(self) -> None:
        self._room += 1
        if self._waiting_for_room is not None and self.process.alive:
            self.loop.run(self._wake)

    def _take(self, data: bytes) -> None:
        if not self.is_over:
            self._inbox.append(data)
            self._wake()

    def send_end(self, error: grpc.aio.AioRpcError | None) -> None:
        """Tell the other side, behind all that was sent, that it is over."""
        other = self.other
        self._stream.send(self.process, "", lambda: other.loop.run(other.end, error))

    def end(self, error: grpc.aio.AioRpcError | None) -> None:
        """It is over on this side."""
        if self.is_over:
            return
        self.is_over, self._error = True, error
        self._stream.close(self.process)
        if self.task is not None:
            self.task.cancel()
        self._wake()

    def _wake(self) -> None:
        for waiting in (self._waiting, self._waiting_for_room):
            if waiting is not None and not waiting.done():
                waiting.set_result(None)
        self._waiting = self._waiting_for_room = None


class _Channel:
    """A client's channel to one address."""

    def __init__(self, transport: Transport, loop: VirtualLoop, process: Process, address: str) -> None:
        self._transport = transport
        self._loop = loop
        self._process = process
        self._address = address
        self._calls: list[_StreamCall] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        for call in self._calls:
            call.cancel()

    def stream_stream(
        self, method: str, request_serializer: Callable[[Any], bytes], response_deserializer: Callable[[bytes], Any]
    ) -> Callable[[], _StreamCall]:
        """See gRPC."""

        def open_call() -> _StreamCall:
            side = self._transport.open(self._loop, self._process, self._address, method)
            call = _StreamCall(side, request_serializer, response_deserializer)
            self._calls.append(call)
            return call

        return open_call


class _StreamCall:
    """A bidirectional call at its client."""

    def __init__(
        self, side: _Side | None, serialize: Callable[[Any], bytes], deserialize: Callable[[bytes], Any]
    ) -> None:
        self._side = side
        self._serialize = serialize
        self._deserialize = deserialize

    async def write(self, message: Any) -> None:
        """See gRPC."""
        if self._side is None:
            await asyncio.sleep(0.002)
            raise unavailable("failed to connect to all addresses")
        await self._side.write(self._serialize(message), _describe_fetches(message))

    async def read(self) -> Any:
        """See gRPC."""
        assert self._side is not None, "it writes first"
        data = await self._side.read()
        return grpc.aio.EOF if data is None else self._deserialize(data)

    def done(self) -> bool:
        """See gRPC."""
        return self._side is None or self._side.is_over

    def cancel(self) -> None:
        """See gRPC."""
        if self._side is not None:
            self._side.end(unavailable("cancelled"))


class Transport:
    """All servers and streams of a cluster."""

    def __init__(self, world: World, network: Network) -> None:
        self.world = world
        self.network = network
        self._chance = world.chance("windows")
        self.servers: dict[str, Server] = {}
        """By address; gRPC refuses a connection to any other."""
        self.under_way: dict[Any, None] = {}
        """The unary calls of clients without an answer yet."""

    def open(self, loop: VirtualLoop, process: Process, address: str, method: str) -> _Side | None:
        """Open a stream to an address; return `None` if it has no listener."""
        server = self.servers.get(address)
        if server is None or not server.process.alive:
            return None
        sides: dict[Process, _Side] = {}

        def broke(side: Process) -> None:
            end = sides[side]
            end.loop.run(end.end, unavailable("the connection was reset"))

        stream = self.network.open_stream(process, server.process, broke)
        window = self._chance.choice(WINDOW_MESSAGES)
        client = sides[process] = _Side(loop, process, stream, window)
        served = sides[server.process] = _Side(server.loop, server.process, stream, window)
        client.other, served.other = served, client
        stream.send(process, "", lambda: server.loop.run(server.serve_stream, method, served))
        return client

    def process_died(self, process: Process) -> None:
        """Tell most of those whose calls it had."""
        for call in [call for call in self.under_way if call.server is process]:
            call.server_died()


def unavailable(details: str) -> grpc.aio.AioRpcError:
    """gRPC's error for an address without a listener."""
    return grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), details=details)


def _describe_fetches(request: Any) -> str:
    return "; ".join(
        f"p{each.partition} fetch {each.token} at {each.offset}/{each.durable_offset} last epoch {each.last_epoch} "
        f"in epoch {each.leader_epoch}"
        for topic in request.topics
        for each in topic.partitions
    )


def _describe_answers(spliced: Any) -> str:
    said = []
    batches = iter(spliced.batches)
    for topic in spliced.message.topics:
        for each in topic.partitions:
            data = next(batches)
            if each.HasField("error"):
                what = f"error {each.error.code}: {each.error.message}"
            elif each.HasField("diverged"):
                what = f"diverged at {each.diverged.end_offset} of epoch {each.diverged.leader_epoch}"
            elif each.HasField("restart"):
                what = f"restart at {each.restart.offset}"
            else:
                what = f"{sum(map(len, data))} bytes, high watermark {each.high_watermark}"
            said.append(f"p{each.partition} answer {each.token}: {what}")
    return "; ".join(said)


def _open_channel(address: str, options: Any, identity: Any) -> Any:
    """Open a channel on the network that the running loop belongs to."""
    loop: Any = asyncio.get_running_loop()
    transport: Transport | None = getattr(loop, "transport", None)
    if transport is None:
        return open_channel(address, options, identity)
    return _Channel(transport, loop, loop.process, address)


# Followers on a virtual loop meet their leaders here.
followers: Any = replica_fetcher
followers.open_channel = _open_channel
