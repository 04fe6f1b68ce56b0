"""What brokers on virtual loops send: unary calls of gRPC, and connections of the native protocol.

What a service registers is called as gRPC calls it, with its own serializers, so no object is shared. A connection is
bytes on a `network.Stream`: in order, cut by chance, held by blocked links, broken with notice to one side or both;
`_Socket` is its transport, and the shipped frames, streams and servers are over it. A side that does not read lets the
other one wait: the bytes under way or unread are bounded.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from headrace.client.base.request_ids import Metadata
from headrace.wire.frames import HEADER, Header, Kind
from headrace_server.identity.gate import set_access
from headrace_server.internal_v1 import replication_pb2
from headrace_server.native.server import NativeServer
from headrace_server.native.streams import ServedStream
from headrace_server.places import PlaceLimits, Places

from tests.fakes.open_gate import open_access
from tests.simulation.network import Network, Stream
from tests.simulation.virtual_loop import VirtualLoop
from tests.simulation.world import Process, World

WINDOW_BYTES = (1, 600, 2_500)
"""Bytes that may be under way on a connection before its sender is told to pause: drawn for each."""
CUT_RATE = 0.1
"""How often what is written arrives in two pieces."""
Reply = Callable[["bytes | grpc.aio.AioRpcError"], object]


class _Aborted(Exception):
    """How a servicer ends a call."""

    def __init__(self, code: grpc.StatusCode, details: str, trailers: Any) -> None:
        super().__init__(details)
        self.error = grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*trailers), details=details)


class _Context:
    """What a servicer asks of gRPC."""

    def __init__(self, loop: VirtualLoop, seconds: float | None, metadata: Metadata = ()) -> None:
        self._loop = loop
        self._metadata = metadata
        self._ends = None if seconds is None else loop.time() + seconds
        self.callbacks: list[Callable[[Any], object]] = []

    def time_remaining(self) -> float | None:
        """Seconds until the caller gives up."""
        return None if self._ends is None else self._ends - self._loop.time()

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """Call it when the call is over."""
        self.callbacks.append(callback)

    def invocation_metadata(self) -> Metadata:
        """What the caller has sent with the call."""
        return self._metadata

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
        self.places = Places(PlaceLimits(clients=(1_000, 1_000)))
        """Of the native protocol's calls."""
        self._served = open_access()
        """Everybody may do everything; of this process, since its quotas have this world's time."""

    def add(self, register: Callable[[Any, Any], None], servicer: object, _service_name: str) -> None:
        """Take a service as it registers itself."""
        register(
            servicer,
            SimpleNamespace(
                add_generic_rpc_handlers=self._handlers.extend, add_registered_method_handlers=lambda *_: None
            ),
        )

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

    def call(self, method: str, request: bytes, seconds: float, reply: Reply, metadata: Metadata = ()) -> None:
        """Answer a unary call, in the present event where nothing has to be waited for."""
        self.loop.run(lambda: self._spawn(self._answer(method, request, seconds, reply, metadata)))

    async def _answer(self, method: str, request: bytes, seconds: float, reply: Reply, metadata: Metadata) -> None:
        handler, context = self._method(method), _Context(self.loop, seconds, metadata)
        if handler is None:
            none = grpc.aio.Metadata()
            reply(grpc.aio.AioRpcError(grpc.StatusCode.UNIMPLEMENTED, none, none, details="Method not found!"))
            return
        set_access(self._served)
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


class SimulatedNativeServer(NativeServer):
    """A `NativeServer` whose connections come from the simulated network."""

    transport: Transport
    process: Process
    loop: VirtualLoop

    async def start(self, listen: str, make_context: object = None) -> str:
        """Take connections at an address."""
        self.transport.native_servers[listen] = self
        self._tasks = [self.loop.create_task(self._look())]
        return listen

    def accept(self, socket: _Socket) -> None:
        """Take a connection that has arrived."""
        socket.connect(self._connect_to(self))


class _Socket:
    """One end of a connection, as a transport of asyncio: bytes arrive in order, in pieces that chance cuts."""

    def __init__(self, transport: Transport, loop: VirtualLoop, process: Process, stream: Stream, window: int) -> None:
        self._chance = transport.chance
        self.loop = loop
        self.process = process
        self._stream = stream
        self._window = window
        self.other: _Socket
        self._protocol: asyncio.BufferedProtocol | None = None
        self._under_way = 0
        """Bytes sent that the other side has not read."""
        self._is_full = False
        self._is_paused = False
        self._unread: deque[memoryview] = deque()
        self._is_over = False

    def connect(self, protocol: asyncio.BufferedProtocol) -> None:
        """Begin to deliver to `protocol`."""
        self._protocol = protocol
        protocol.connection_made(self)  # type: ignore[arg-type]
        self._deliver()

    # --- asyncio.Transport ---

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """See asyncio. The kernel sends nothing here, as it does not with TLS."""
        return {"peername": (self.other.process.name, 1), "ssl_object": "none"}.get(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """See asyncio: the limits are the window's."""

    def is_closing(self) -> bool:
        """See asyncio."""
        return self._is_over

    def pause_reading(self) -> None:
        """See asyncio."""
        self._is_paused = True

    def resume_reading(self) -> None:
        """See asyncio."""
        self._is_paused = False
        self.loop.call_soon(self._deliver)

    def write(self, data: bytes) -> None:
        """See asyncio."""
        if self._is_over or not data:
            return
        what, other = self._describe(data), self.other
        self._under_way += len(data)
        cuts = {0, len(data)}
        if self._chance.random() < CUT_RATE:
            cuts.add(self._chance.randrange(len(data)))
        places = sorted(cuts)
        for start, end in pairwise(places):
            piece = memoryview(bytes(data[start:end]))
            self._stream.send(self.process, what, partial(other.loop.run, other._arrived, piece))
            what = ""
        if self._under_way > self._window and not self._is_full:
            self._is_full = True
            assert self._protocol is not None
            self._protocol.pause_writing()

    def close(self) -> None:
        """See asyncio: the other side receives what was sent before."""
        if not self._is_over:
            self._stream.send(self.process, "", partial(self.other.loop.run, self.other.lose, None))
            self.lose(None, is_told=True)

    def abort(self) -> None:
        """See asyncio."""
        if not self._is_over:
            self.lose(None)

    # --- the network ---

    def lose(self, error: OSError | None, *, is_told: bool = False) -> None:
        """End it at this side; `is_told`: the other side will hear of it."""
        if self._is_over:
            return
        self._is_over = True
        if not is_told:
            self._stream.close(self.process)
        if self._protocol is not None:
            self.loop.call_soon(self._protocol.connection_lost, error)

    def _arrived(self, piece: memoryview) -> None:
        if not self._is_over:
            self._unread.append(piece)
            self._deliver()

    def _deliver(self) -> None:
        protocol: Any = self._protocol
        while protocol is not None and self._unread and not self._is_paused and not self._is_over:
            piece = self._unread.popleft()
            buffer = protocol.get_buffer(len(piece))
            size = min(len(buffer), len(piece))
            buffer[:size] = piece[:size]
            if size < len(piece):
                self._unread.appendleft(piece[size:])
            if self.other.process.alive:
                self.other.loop.run(self.other._was_read, size)
            protocol.buffer_updated(size)

    def _was_read(self, size: int) -> None:
        self._under_way -= size
        if self._is_full and self._under_way <= self._window and not self._is_over:
            self._is_full = False
            assert self._protocol is not None
            self._protocol.resume_writing()

    def _describe(self, data: bytes) -> str:
        """What the trace has of a frame that begins here."""
        if len(data) < HEADER.size:
            return ""
        header = Header._make(HEADER.unpack_from(data))
        message = bytes(data[HEADER.size : HEADER.size + header.message_size])
        if header.kind != Kind.MESSAGE or len(message) != header.message_size:
            return ""
        try:
            if type(self._protocol) is ServedStream:
                return _describe_answers(replication_pb2.ReplicaFetchResponse.FromString(message))
            return _describe_fetches(replication_pb2.ReplicaFetchRequest.FromString(message))
        except DecodeError:
            return ""  # Batches that look like a header.


class Transport:
    """All servers and streams of a cluster."""

    def __init__(self, world: World, network: Network) -> None:
        self.world = world
        self.network = network
        self.chance = world.chance("windows")
        self.native_servers: dict[str, SimulatedNativeServer] = {}
        """By address."""
        self.servers: dict[str, Server] = {}
        """By address; gRPC refuses a connection to any other."""
        self.under_way: dict[Any, None] = {}
        """The unary calls of clients without an answer yet."""

    async def connect(
        self, loop: VirtualLoop, process: Process, address: str, make_protocol: Callable[[], asyncio.BufferedProtocol]
    ) -> asyncio.BufferedProtocol:
        """Connect a process to an address. Raises ConnectionRefusedError where nothing listens."""
        server = self.native_servers.get(address)
        if server is None or not server.process.alive:
            await asyncio.sleep(0.002)
            raise ConnectionRefusedError(f"nothing listens at {address}")
        ends: dict[Process, _Socket] = {}

        def broke(side: Process) -> None:
            end = ends[side]
            end.loop.run(end.lose, ConnectionResetError("the connection was reset"))

        stream = self.network.open_stream(process, server.process, broke, loop.keepalive_ms)
        window = self.chance.choice(WINDOW_BYTES)
        client = ends[process] = _Socket(self, loop, process, stream, window)
        served = ends[server.process] = _Socket(self, server.loop, server.process, stream, window)
        client.other, served.other = served, client
        stream.send(process, "", partial(server.loop.run, server.accept, served))
        protocol = make_protocol()
        client.connect(protocol)
        return protocol

    def process_died(self, process: Process) -> None:
        """Tell most of those whose calls it had."""
        for call in [call for call in self.under_way if call.server is process]:
            call.server_died()


def _describe_fetches(request: Any) -> str:
    return "; ".join(
        f"p{each.partition} fetch {each.token} at {each.offset}/{each.durable_offset} last epoch {each.last_epoch} "
        f"in epoch {each.leader_epoch}"
        for topic in request.topics
        for each in topic.partitions
    )


def _describe_answers(response: replication_pb2.ReplicaFetchResponse) -> str:
    said = []
    for topic in response.topics:
        for each in topic.partitions:
            if each.HasField("error"):
                what = f"error {each.error.code}: {each.error.message}"
            elif each.HasField("diverged"):
                what = f"diverged at {each.diverged.end_offset} of epoch {each.diverged.leader_epoch}"
            elif each.HasField("restart"):
                what = f"restart at {each.restart.offset}"
            else:
                what = f"{each.batches_size} bytes, high watermark {each.high_watermark}"
            said.append(f"p{each.partition} answer {each.token}: {what}")
    return "; ".join(said)
