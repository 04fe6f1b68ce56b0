"""The layer between the shipped asyncio clients and the simulated network: channels, clocks and chance.

A client's stubs, deserializers and retries are its own. Replaced are the channel below them, the clocks that its
modules read, and the chance from which they draw. `PromiseChecks` sees each call and
each answer, in the moment the client does.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import Context
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import grpc
from headrace.client.base import request_ids
from headrace.client.base.clock import monotonic_ms
from headrace.client.base.request_ids import Metadata
from headrace.client.net import connection_async as connection
from headrace.client.net.native_async import AsyncNativeConnections
from headrace.client.net.native_calls import NATIVE_METHODS, Done, MakeRequest, NativeRequest
from headrace.wire.errors import HeadraceError
from headrace.wire.frames import Frame

from tests.simulation.promises import Exchange, PromiseChecks
from tests.simulation.transport import Transport
from tests.simulation.virtual_loop import VirtualLoop
from tests.simulation.world import Process, World

_PARSE = {each.method: each.parse for each in NATIVE_METHODS.values()}
"""What a client makes of an answer, by method."""
FIRST_MS = 1_700_000_000_000
"""Wall time of clients at the begin of a run."""
REFUSED_SECONDS = 0.002
HEARS_OF_RESET = 0.7
"""How often a client gets an error when the server of a call dies; otherwise it gets no answer."""


class ClientLoop(VirtualLoop):
    """The loop of a client's process, from which its channels lead into the simulated network."""

    keepalive_ms = 3_000
    """In proportion to a run: it is half a minute."""

    def __init__(self, world: World, process: Process, transport: Transport, promises: PromiseChecks) -> None:
        super().__init__(world, process)
        self.transport = transport
        self.promises = promises

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """See asyncio; what is not due yet is due after the present millisecond, however little is left."""
        if when > self.time():
            when = max(when, self.time() + 0.001)
        return super().call_at(when, callback, *args, context=context)


class WatchedConnections(AsyncNativeConnections):
    """Native connections of a client, whose requests and answers `PromiseChecks` sees."""

    def begin(
        self, address: str, make_request: MakeRequest, done: Done, session: str = ""
    ) -> Callable[[], None] | None:
        """See `NativeCaller`."""
        loop = asyncio.get_running_loop()
        if not isinstance(loop, ClientLoop):
            return super().begin(address, make_request, done, session)
        asked: list[tuple[NativeRequest, Exchange]] = []

        def make() -> NativeRequest:
            request = make_request()
            asked.append((request, loop.promises.asks_natively(loop.process.name, address, request)))
            return request

        def ended(frame: Frame | None, error: HeadraceError | None) -> None:
            for request, exchange in asked:
                if frame is not None:
                    exchange.arrived(_PARSE[request.method](frame))
            done(frame, error)

        return super().begin(address, make, ended, session)


class ClientChannel:
    """A channel as the asyncio clients use it: unary calls to one address, and its end."""

    def __init__(self, loop: ClientLoop, address: str) -> None:
        self._loop = loop
        self._address = address

    def unary_unary(
        self,
        method: str,
        request_serializer: Callable[[Any], bytes] | None = None,
        response_deserializer: Callable[[bytes], Any] = bytes,
        **_: Any,
    ) -> Callable[..., asyncio.Future[Any]]:
        """See gRPC."""

        def call(request: Any, *, timeout: float, metadata: Metadata = ()) -> asyncio.Future[Any]:
            data = request if request_serializer is None else request_serializer(request)
            return _Call(self._loop, self._address, method, data, timeout, response_deserializer, metadata).future

        return call

    def unary_stream(self, *_: Any, **__: Any) -> None:
        """No simulated client makes such a call."""

    stream_stream = stream_unary = unary_stream

    async def close(self) -> None:
        """See gRPC."""


class _Call:
    """One unary call."""

    def __init__(
        self,
        loop: ClientLoop,
        address: str,
        method: str,
        data: bytes,
        seconds: float,
        deserialize: Callable[[bytes], Any],
        metadata: Metadata,
    ) -> None:
        self.future: asyncio.Future[Any] = loop.create_future()
        self._loop = loop
        self._deserialize = deserialize
        self._transport = loop.transport
        self._exchange = loop.promises.asks(loop.process.name, address, method, data)
        self._timer = loop.call_later(seconds, self._fail, grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
        self.future.add_done_callback(self._end)
        server = self._transport.servers.get(address)
        self.server: Process | None = None if server is None else server.process
        if server is None or not server.process.alive:
            loop.call_later(
                REFUSED_SECONDS, self._fail, grpc.StatusCode.UNAVAILABLE, "failed to connect to all addresses"
            )
            return
        self._transport.under_way[self] = None
        ask = partial(server.call, method, data, seconds, self._answered, metadata)
        network = self._transport.network
        send = network.send_produce if method.endswith("/Produce") else partial(network.send, once=True)
        send(loop.process.name, server.process, self._exchange.what, ask)

    def _answered(self, answer: bytes | grpc.aio.AioRpcError) -> None:
        """The server has answered: send its messages."""
        assert self.server is not None, "it was sent"
        exchange = self._exchange
        if isinstance(answer, bytes):
            what = exchange.answered(exchange.parse_answer(answer))
        else:
            what = exchange.refused(answer)
        take = partial(self._loop.run, self._take, answer)
        self._transport.network.send(self.server.name, self._loop.process, what, take, once=True)

    def _take(self, answer: bytes | grpc.aio.AioRpcError) -> None:
        if self.future.done():
            return
        if isinstance(answer, bytes):
            self._exchange.arrived(self._exchange.parse_answer(answer))
            self.future.set_result(self._deserialize(answer))
        else:
            self.future.set_exception(answer)

    def server_died(self) -> None:
        """Hear, mostly, that the connection is gone."""
        if self._loop.world.chance("resets").random() < HEARS_OF_RESET:
            fail = partial(self._loop.run, self._fail, grpc.StatusCode.UNAVAILABLE, "the connection was reset")
            self._loop.world.after(self._transport.network.delay_ms(), self._loop.process, "", fail)

    def _fail(self, status: grpc.StatusCode, details: str) -> None:
        if not self.future.done():
            none = grpc.aio.Metadata()
            self.future.set_exception(grpc.aio.AioRpcError(status, none, none, details=details))

    def _end(self, _: object) -> None:
        self._timer.cancel()
        self._transport.under_way.pop(self, None)


class _Failures(logging.Handler):
    """An error that a client logs and survives is unforeseen; it breaks the run."""

    def emit(self, record: logging.LogRecord) -> None:
        loop = asyncio._get_running_loop()
        if not isinstance(loop, ClientLoop):
            return
        loop.world.count(f"client log: {record.msg}")
        if record.levelno >= logging.ERROR:
            loop.fail(str(record.msg), record.exc_info[1] if record.exc_info else None)


def _open_channel(address: str, **options: Any) -> Any:
    loop = asyncio.get_running_loop()
    if isinstance(loop, ClientLoop):
        return ClientChannel(loop, address)
    return grpc.aio.insecure_channel(address, **options)


def _seconds() -> float:
    loop = asyncio._get_running_loop()
    return loop.time() if isinstance(loop, ClientLoop) else time.monotonic()


def _milliseconds() -> int:
    loop = asyncio._get_running_loop()
    return loop.world.now_ms if isinstance(loop, ClientLoop) else time.monotonic_ns() // 1_000_000


def _wall_ns() -> int:
    loop = asyncio._get_running_loop()
    return (FIRST_MS + loop.world.now_ms) * 1_000_000 if isinstance(loop, ClientLoop) else time.time_ns()


def _clocks_and_chance() -> Iterator[tuple[ModuleType, str]]:
    """Yield where the modules of the SDK's clients have a clock or chance, and by which name."""
    real: dict[str, object] = {
        "time": time,
        "monotonic": time.monotonic,
        "monotonic_ms": monotonic_ms,
        "random": random,
    }
    for module_name, module in list(sys.modules.items()):
        if module_name.startswith("headrace.client."):
            yield from ((module, name) for name, value in real.items() if getattr(module, name, None) is value)


@contextmanager
def clients_in_virtual_time() -> Iterator[None]:
    """Let the SDK's asyncio clients on a `ClientLoop` meet the simulated network, clocks and chance."""
    clock = SimpleNamespace(
        monotonic=_seconds, monotonic_ns=lambda: _milliseconds() * 1_000_000, time_ns=_wall_ns, sleep=time.sleep
    )
    chance = SimpleNamespace(Random=lambda: random.Random(random.getrandbits(64)))
    channels = SimpleNamespace(
        **{name: getattr(grpc.aio, name) for name in ("UnaryStreamCall", "UsageError")}, insecure_channel=_open_channel
    )
    replacements: dict[str, Any] = {
        "time": clock, "monotonic": _seconds, "monotonic_ms": _milliseconds, "random": chance
    }  # fmt: skip
    logger, handler = logging.getLogger("headrace"), _Failures(logging.WARNING)
    with ExitStack() as stack:
        for module, name in _clocks_and_chance():
            stack.enter_context(mock.patch.object(module, name, replacements[name]))
        stack.enter_context(mock.patch.object(connection, "grpc", SimpleNamespace(aio=channels)))
        stack.enter_context(mock.patch.object(connection, "AsyncNativeConnections", WatchedConnections))
        names = SimpleNamespace(prefix="0" * 8, numbers=itertools.count(1 << 24))  # All of one length, in each run.
        stack.enter_context(mock.patch.object(request_ids, "_names", names))
        before = logger.propagate
        logger.addHandler(handler)
        logger.propagate = False
        try:
            yield
        finally:
            logger.removeHandler(handler)
            logger.propagate = before
