"""The four ends of connections of the native protocol, as they are shipped, over bytes in memory, and what must hold.

A `World` has a listener for clients and one for followers, each with an honest peer. `meet` returns a new connection
that receives a conversation; after each piece `look` checks what must hold at any time, and `over` what must be left
of it. Behind the listener for clients are the shipped methods, and a service that answers at once, later, never, with
an error, or from a file.
"""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, cast

from headrace.client.net.native_async import AsyncNativeClientConnection
from headrace.client.net.native_calls import NATIVE_METHODS, NativeCalls, NativeRequest, parse_answer
from headrace.log import DataDirectory, DiskLimits, LogSettings
from headrace.v1 import broker_pb2, errors_pb2, tables_pb2, topics_pb2
from headrace.wire.attachments import attach_batches
from headrace.wire.batch import read_header
from headrace.wire.encoding import encode_batch
from headrace.wire.errors import HeadraceError, InternalError, NotLeaderError, Outcome
from headrace.wire.frames import (
    LEADER_KINDS,
    MAX_FRAME_BYTES,
    MAX_HELLO_BYTES,
    SERVER_KINDS,
    STAGE_BYTES,
    Frame,
    FrameError,
    FrameReader,
    Kind,
    MethodCode,
)
from headrace.wire.zero_copy import BufferVector, SplicedMessage
from headrace_broker.rpc.fetch import Located
from headrace_broker.rpc.native import native_methods
from headrace_server.methods import METHODS, Pool
from headrace_server.native.connection import MAX_REQUESTS
from headrace_server.native.framed_connection import FramedConnection
from headrace_server.native.outgoing import OutgoingMessage
from headrace_server.native.server import NativeServer, NativeService
from headrace_server.native.streams import MessageStream, ServedStream, _OpenedStream
from headrace_server.places import PlaceLimits, Places
from prometheus_client import CollectorRegistry, Counter

from tests.fakes.native_metrics import native_metrics
from tests.fakes.open_gate import open_gate
from tests.security.frame_draws import ASKED, Conversation, End
from tests.security.in_memory import Broken, InlineExecutor, MemoryLoop, MemoryTransport

LARGEST_REQUEST = max(METHODS[f"/headrace.v1.BrokerService/{name}"].max_bytes for name in ("Produce", "Fetch"))
MAX_MESSAGE_BYTES = 1 << 20
"""Of a follower that has proven itself."""
REPLICA_FETCH = MethodCode.REPLICA_FETCH
HONEST = "198.51.100.7"
TURNS = 12
"""Turns of the event loop after which everything that waits for nothing has happened."""
CONTROL_FRAMES = 4
"""Frames that no request has: WELCOME, GOODBYE, ERROR of the connection; and the one that is being sent."""


class Service:
    """What the shipped methods call in place of a broker's; its answers depend on the request alone."""

    def __init__(self, path: Path) -> None:
        limits = DiskLimits(reserve_bytes=4096, refuse_below_bytes=0, resume_above_bytes=0)
        self.directory = DataDirectory.open(
            str(path), cluster_id="c", generation=1, broker_id=1, new_storage_id=bytes(16), boot_id="b", limits=limits
        )
        self.log = self.directory.open_log(bytes(16), 0, LogSettings())
        for number in range(20):
            batch = encode_batch([bytes([number]) * 9_000], base_timestamp_ms=number)
            self.log.append([(batch, read_header(batch))], leader_epoch=0, append_timestamp_ms=number)
        with self.log.reader.read(0, 1 << 30, self.log.log_end_offset) as found:
            self.bytes = found.read()

    def check_lease(self, _outcome: Outcome) -> None:
        """It holds."""

    async def _behave(self, data: bytes) -> None:
        match zlib.crc32(data) % 8:
            case 0 | 1:
                await asyncio.sleep(0)
            case 2:
                raise NotLeaderError("elsewhere")
            case 3:
                await asyncio.Event().wait()
            case 4:
                await asyncio.sleep(3)

    async def produce(self, request: SplicedMessage, _peer: str) -> Any:
        """The checksum of the batches, where one request has them."""
        if request.message.client_id != "honest":
            await self._behave(request.message.SerializeToString())
        response = broker_pb2.ProduceResponse()
        data = b"".join(bytes(batch) for found in request.batches for batch in found)
        response.topics.add(name=request.message.client_id).partitions.add(base_offsets=[zlib.crc32(data)])
        return response

    async def list_offsets(self, request: Any) -> Any:
        """The name that it asked with."""
        if request.client_id != "honest":
            await self._behave(request.SerializeToString())
        response = broker_pb2.ListOffsetsResponse()
        response.topics.add(name=request.client_id)
        return response

    async def get_rows(self, request: Any, _when_done: Any) -> Any:
        """One row of the table's name."""
        await self._behave(request.SerializeToString())
        response = tables_pb2.GetRowsResponse()
        response.rows.add(key=request.read.table.topic_id)
        return response

    async def write_row(self, request: Any) -> Any:
        """The size of what it was sent."""
        await self._behave(request.SerializeToString())
        return tables_pb2.WriteRowResponse(applied=True, version=request.ByteSize())

    async def locate(self, request: Any) -> Located:
        """Nothing, a little or all of the log."""
        size = 1 << 30
        if request.client_id != "honest":
            data = request.SerializeToString()
            await self._behave(data)
            size = (0, 10_000, 1 << 30)[zlib.crc32(data[::-1]) % 3]
        response, slices = broker_pb2.FetchResponse(), []
        if size:
            slices = [self.log.reader.read(0, size, self.log.log_end_offset)]
        response.topics.add(name=request.client_id).partitions.add(batches_size=sum(map(len, slices)))
        return Located(response, [slices], [[]], [None], lambda: None)


class Meeting:
    """A connection that receives a conversation."""

    def __init__(self, loop: MemoryLoop, connection: asyncio.BufferedProtocol, told: Conversation) -> None:
        self.told = told
        self.transport = MemoryTransport(loop, connection, told.host, is_read=told.is_read)
        self._frames = FrameReader(SERVER_KINDS if told.end is End.SERVER else LEADER_KINDS, lambda _: True)
        self._read = 0

    def answers(self) -> list[Frame]:
        """The frames that came since the last call; a server's bytes are frames, whatever it received."""
        data, found = memoryview(self.transport.sent)[self._read :], list[Frame]()
        self._read += len(data)
        position = 0
        while position < len(data):
            buffer = self._frames.buffer()
            count = min(len(buffer), len(data) - position)
            buffer[:count] = data[position : position + count]
            self._frames.received(count)
            position += count
            try:
                while (frame := self._frames.next_frame()) is not None:
                    found.append(frame)
            except FrameError as error:
                raise Broken(f"it sent what is no frame: {error}") from error
        return found

    def look(self) -> None:
        """What holds at any time."""
        raise NotImplementedError

    def over(self) -> None:
        """What holds when everything has happened."""


class _OfServer(Meeting):
    """What clients send a broker."""

    def __init__(self, loop: MemoryLoop, connection: FramedConnection, told: Conversation) -> None:
        super().__init__(loop, connection, told)
        self.connection: Any = connection

    def look(self) -> None:
        """Bytes and requests in memory are bounded."""
        reader, limit = self.connection._reader, LARGEST_REQUEST if self.connection._is_welcome else MAX_HELLO_BYTES
        held = 0 if reader._body is None else len(reader._body)
        if held > limit or len(reader._stage) > STAGE_BYTES:
            raise Broken(f"{held} bytes are held for a frame of at most {limit}")
        if len(self.connection._calls) > MAX_REQUESTS:
            raise Broken(f"{len(self.connection._calls)} requests are unanswered")
        waiting = len(self.connection._outgoing._waiting)
        if waiting > MAX_REQUESTS + CONTROL_FRAMES:
            raise Broken(f"{waiting} answers wait for a client that does not read")

    def over(self) -> None:
        """Answers are typed, the first frame greets, and an error of the connection is the last one."""
        is_first, is_over = True, False
        for frame in self.answers():
            kind, number = frame.header.kind, frame.header.correlation
            if is_over:
                raise Broken(f"a {Kind(kind).name} follows the last frame")
            if is_first and kind not in (Kind.WELCOME, Kind.ERROR):
                raise Broken(f"the first frame of the server is a {Kind(kind).name}")
            if kind == Kind.ERROR:
                _check_typed(frame)
                is_over = number == 0
            is_first = False


class _OfLeader(_OfServer):
    """What followers send a leader."""

    def look(self) -> None:
        """Bytes and messages in memory are bounded."""
        _look_at_stream(self.connection)


class _OfFollower(Meeting):
    """What a leader sends a follower, which reads all of it."""

    def __init__(self, loop: MemoryLoop, connection: MessageStream, told: Conversation) -> None:
        super().__init__(loop, connection, told)
        self.connection: Any = connection
        self.reading = loop.create_task(_read_all(connection))

    def look(self) -> None:
        """Bytes and messages in memory are bounded."""
        _look_at_stream(self.connection)


class _OfClient(Meeting):
    """What a broker sends a client that has asked `ASKED` times."""

    def __init__(self, loop: MemoryLoop, connection: AsyncNativeClientConnection, told: Conversation) -> None:
        super().__init__(loop, connection, told)
        self._calls: Any = connection._calls
        self.results: dict[int, int] = {}
        fetch = NativeRequest(MethodCode.FETCH, b"", (), 30.0, "5f-1")
        for number in range(1, ASKED + 1):
            self.results[number] = 0
            connection.begin(fetch, partial(self._done, number))

    def _done(self, number: int, frame: Frame | None, error: HeadraceError | None) -> None:
        self.results[number] += 1
        if frame is None:
            if not isinstance(error, HeadraceError):
                raise Broken(f"request {number} ends with {error!r}")
            return
        with contextlib.suppress(InternalError):  # It is called so where the answer is none.
            parse_answer(NATIVE_METHODS["broker", "FetchZeroCopy"].parse, frame, "broker-1")

    def look(self) -> None:
        """Bytes in memory are bounded; nothing is answered twice."""
        body = self._calls._reader._body
        if body is not None and len(body) > MAX_FRAME_BYTES:
            raise Broken(f"{len(body)} bytes are held for a frame")
        if max(self.results.values()) > 1:
            raise Broken("a request has ended twice")

    def over(self) -> None:
        """Each request has ended once."""
        if set(self.results.values()) != {1}:
            raise Broken(f"requests ended so often: {self.results}")


class World:
    """Two listeners in one event loop. Close it."""

    def __init__(self, path: Path) -> None:
        self.loop = MemoryLoop()
        self.service = Service(path)
        self.places = Places(PlaceLimits())
        asyncio.set_event_loop(self.loop)
        self._errors = Counter("call_errors", "-", ["method", "code"], registry=None)
        self.native_service = NativeService(
            native_methods(cast("Any", self.service), cast("Any", self.service)), self._errors, self.places, open_gate()
        )
        self.server = self._listener(self.native_service.connect)
        self.leader = self._listener(lambda of: ServedStream(of, REPLICA_FETCH, _follow))
        self.run(self._start())

    def _listener(self, connect: Callable[[NativeServer], FramedConnection]) -> NativeServer:
        return NativeServer(
            "broker-1", native_metrics(CollectorRegistry()), connect,
            executor=cast("ThreadPoolExecutor", InlineExecutor()), max_connections=1_000,
        )  # fmt: skip

    async def _start(self) -> None:
        self._looking = [self.loop.create_task(of._look()) for of in (self.server, self.leader)]
        self.honest = HonestClient(self)
        self.honest_follower = HonestFollower(self)

    def run(self, work: Any) -> Any:
        """Run a coroutine."""
        return self.loop.run_until_complete(work)

    def close(self) -> None:
        """End it, whatever still runs."""
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.run(self.settle())
        self.loop.close()
        asyncio.set_event_loop(None)
        self.service.directory.close(clean=False, broker_epoch=1)

    async def settle(self, turns: int = TURNS) -> None:
        """Let everything happen that waits for no time."""
        for _ in range(turns):
            await asyncio.sleep(0)

    async def pass_time(self, seconds: float) -> None:
        """Let so much time pass, and connections be looked at."""
        self.loop.now += seconds
        await self.settle()
        self.loop.now += 1.0
        await self.settle()

    def meet(self, told: Conversation) -> Meeting:
        """A new connection that will receive a conversation. In the event loop."""
        match told.end:
            case End.SERVER:
                return _OfServer(self.loop, self.server._connect_to(self.server), told)
            case End.LEADER:
                return _OfLeader(self.loop, self.leader._connect_to(self.leader), told)
            case End.FOLLOWER:
                return _OfFollower(self.loop, _OpenedStream(REPLICA_FETCH, "broker-2"), told)
            case End.CLIENT:
                return _OfClient(self.loop, AsyncNativeClientConnection("broker-1", "fuzz"), told)

    def look(self) -> None:
        """Nothing has reached the event loop, and each listener's clock runs."""
        if self.loop.reported:
            raise Broken(self.loop.reported[0])
        for task in self._looking:
            if task.done():
                raise Broken(f"connections are looked at no more: {task.exception()!r}")

    def look_behind(self) -> None:
        """After all conversations: places, memory and tasks are free again."""
        left = [each.name for of in (self.server, self.leader) for each in of._connections if HONEST not in each.name]
        if left:
            raise Broken(f"connections are left: {left}")
        open_calls = self.places._pools[Pool.CLIENTS]._calls
        if open_calls:
            raise Broken(f"{open_calls} places belong to no call")
        if self.native_service.arriving._connections:
            raise Broken("a request arrives on a connection that is lost")
        left_files = [path for path, file in self._pins().items() if file]
        if left_files:
            raise Broken(f"files belong to no message: {left_files}")

    def _pins(self) -> dict[str, int]:
        files = self.service.log.reader.read(0, 1, self.service.log.log_end_offset)
        file: Any = files._file
        path, pins = files.path, file.pins
        files.close()
        return {path: pins - 1}


class HonestClient:
    """A client on a connection of its own, whose answers are known to the byte."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._calls = NativeCalls("broker-1", "honest")
        told = Conversation(End.SERVER, (), HONEST)
        self._transport = MemoryTransport(world.loop, world.server._connect_to(world.server), told.host)
        self._feed(self._calls.greeting())

    def _feed(self, data: bytes) -> None:
        taken = self._transport.feed(memoryview(data))
        if taken != len(data):
            raise Broken(f"an honest client is not read: {taken} of {len(data)} bytes")

    async def work(self) -> None:
        """Make each of the calls, and compare the answers."""
        produce = broker_pb2.ProduceRequest(client_id="honest")
        produce.topics.add(topic=topics_pb2.TopicRef(name="t")).partitions.add(partition=0)
        batch = b"batch" * 3_000
        attached = attach_batches(produce, [[BufferVector([batch])]])
        fetch, offsets = broker_pb2.FetchRequest(client_id="honest"), broker_pb2.ListOffsetsRequest(client_id="honest")
        found: dict[MethodCode, Frame] = {}
        for method, message, parts in (
            (MethodCode.PRODUCE, produce, attached),
            (MethodCode.FETCH, fetch, []),
            (MethodCode.LIST_OFFSETS, offsets, []),
        ):
            request = NativeRequest(method, message.SerializeToString(), parts, 30.0, "5f-1")
            _, data = self._calls.begin(request, partial(self._done, method, found), 0.0)
            self._feed(b"".join(data))
        for _ in range(10 * TURNS):
            if len(found) == 3:
                break
            await asyncio.sleep(0)
            self._take()
        else:
            raise Broken(f"an honest client got {len(found)} of 3 answers")
        produced = broker_pb2.ProduceResponse.FromString(found[MethodCode.PRODUCE].message)
        listed = broker_pb2.ListOffsetsResponse.FromString(found[MethodCode.LIST_OFFSETS].message)
        if produced.topics[0].partitions[0].base_offsets[0] != zlib.crc32(batch) or listed.topics[0].name != "honest":
            raise Broken("an honest client got another answer")
        if found[MethodCode.FETCH].attachments != self._world.service.bytes:
            raise Broken("an honest client got other bytes")

    def _take(self) -> None:
        data, self._transport.sent = memoryview(self._transport.sent), bytearray()
        while data:
            buffer = self._calls.buffer()
            count = min(len(buffer), len(data))
            buffer[:count] = data[:count]
            data = data[count:]
            for _, done, frame, error in self._calls.received(count):
                done(frame, error)
        if self._calls.failure is not None:
            raise Broken(f"an honest client is told {self._calls.failure}")

    def _done(
        self, method: MethodCode, found: dict[MethodCode, Frame], frame: Frame | None, error: HeadraceError | None
    ) -> None:
        if frame is None:
            raise Broken(f"an honest client is refused: {error!r}")
        found[method] = frame


class HonestFollower:
    """Both ends of a stream between them: what one sends the other one has read."""

    def __init__(self, world: World) -> None:
        self._served = world.leader._connect_to(world.leader)
        self._opened = _OpenedStream(REPLICA_FETCH, "broker-2")
        self._ends = (
            MemoryTransport(world.loop, self._served, HONEST),
            MemoryTransport(world.loop, self._opened, HONEST),
        )

    def _move(self) -> None:
        served, opened = self._ends
        for of, to in ((served, opened), (opened, served)):
            data, of.sent = of.sent, bytearray()
            rest = to.feed(memoryview(data))
            of.sent[:0] = data[rest:]

    async def work(self) -> None:
        """Send a message and read the one that answers it."""
        for _ in range(2):
            self._move()
        sending = asyncio.ensure_future(self._opened.write(OutgoingMessage(b"honest", [b"bytes" * 500])))
        reading = asyncio.ensure_future(self._opened.read())
        for _ in range(4 * TURNS):
            if reading.done():
                break
            await asyncio.sleep(0)
            self._move()
        else:
            reading.cancel()
            raise Broken("an honest follower got no message")
        await sending
        received = reading.result()
        if received is None or (received.message, received.attachments) != (b"honest", b"bytes" * 500):
            raise Broken("an honest follower got another message")


async def _follow(stream: MessageStream) -> None:
    """Send every message back, after the first of which more may come."""
    while (received := await stream.read()) is not None:
        stream.admit(MAX_MESSAGE_BYTES)
        await stream.write(OutgoingMessage(received.message, [received.attachments]))


async def _read_all(stream: MessageStream) -> None:
    with contextlib.suppress(HeadraceError):
        while await stream.read() is not None:
            pass


def _look_at_stream(stream: Any) -> None:
    limit = max(stream.max_message_bytes, MAX_HELLO_BYTES)
    held = 0 if stream._reader._body is None else len(stream._reader._body)
    if held > limit or len(stream._inbox) > 1:
        raise Broken(f"{held} bytes are held for a message of at most {limit}, and {len(stream._inbox)} messages")


def _check_typed(frame: Frame) -> None:
    detail = errors_pb2.ErrorDetail.FromString(frame.message)
    if detail.code in (errors_pb2.ERROR_CODE_UNSPECIFIED, errors_pb2.ERROR_CODE_INTERNAL) or not detail.message:
        raise Broken(f"the error is not typed: {detail}")
