"""gRPC server of a service: limits, health, reflection, typed errors, deadlines.

A servicer decorates its methods with `unary` or `server_streaming`. These convert a `HeadraceError` to the gRPC status
and the `grpc-status-details-bin` trailer of the call, reject a call without a deadline, and log and hide unexpected
errors. Before that, `admission` has admitted the call and read its request.

The decorators also set the context of `calls.request_id`, and log each call at level `debug`. Errors are counted in
the servicer's `call_errors` (by method and code) and calls timed in `call_seconds` (a histogram per method), if it has
these attributes.

`RpcServer` is used by one event loop. Health has four names: `startup`, `liveness`, `readiness`, and the empty one,
which follows readiness.
"""

from __future__ import annotations

import asyncio
import functools
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import grpc
import structlog
from google.protobuf import descriptor_pool
from grpc_health.v1 import health as grpc_health
from grpc_health.v1 import health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc
from headrace.wire.errors import DeadlineRequiredError, HeadraceError, InternalError
from prometheus_client import Counter

from headrace_server import calls
from headrace_server.admission import Admission
from headrace_server.call_spans import current_trace_id
from headrace_server.caller_turns import next_turn, note_call
from headrace_server.calls import CALLER, CURRENT_CALL, refuse, request_id
from headrace_server.connection_shares import keep_shares
from headrace_server.health import Health, HealthCause, HealthServicer
from headrace_server.identity.gate import IdentityGate, access
from headrace_server.instruments import TRACE_ID_LABEL
from headrace_server.places import PlaceLimits, Places, peer_host
from headrace_server.settings import SettingsError, split_address

log = structlog.get_logger(__name__)

ServicerT = TypeVar("ServicerT")
RequestT = TypeVar("RequestT")
AnswerT = TypeVar("AnswerT")


ITEMS_PER_TURN = 10
"""Items that a handler processes in about a millisecond of the event loop, at 20 to 150 us each."""
LIGHT_ITEMS_PER_TURN = 50
"""The same at 5 to 20 us each: a turn takes four iterations of the event loop, which cost as much as ten items."""
LIGHTEST_ITEMS_PER_TURN = 1_000
"""The same at about 1 us each: a look at a partition with which there is nothing to do."""


@dataclass(frozen=True, slots=True)
class RpcLimits:
    """Limits of one server."""

    max_request_bytes: int = 32 << 20
    """Maximum message size of gRPC; `methods.METHODS` has lower limits for most methods."""
    max_answer_bytes: int = 32 << 20
    places: PlaceLimits = field(default_factory=PlaceLimits)
    """Maximum concurrent calls; `admission` rejects further ones with RESOURCE_EXHAUSTED."""
    max_concurrent_streams: int = 100
    """Maximum concurrent calls on one connection, the minimum that RFC 9113 (6.5.2) recommends; a client queues further
    ones. gRPC delivers calls in order of arrival: a call behind those of one connection waits about 50 ms.
    """
    max_connections: int = 0
    """Maximum connections, shared between callers (`connection_shares`); further ones are closed; `0`: no limit."""
    max_metadata_bytes: int = 8192
    """Maximum size of the headers of one call."""


class AddressInUseError(SettingsError):
    """The listen address is in use or invalid. Choose another one, or stop the process that uses it."""


def _time(servicer: object, method: Callable[..., Any], started: float) -> None:
    """Observe the duration of a call if its servicer has a timer for it."""
    timers = getattr(servicer, "call_seconds", None)
    if timers is not None and method.__name__ in timers:
        trace_id = current_trace_id()
        exemplar = {TRACE_ID_LABEL: trace_id} if trace_id else None
        timers[method.__name__].observe(time.perf_counter() - started, exemplar)


def _trace(method: Callable[..., Any], started: float, context: Any) -> None:
    log.debug(
        "call_answered",
        method=method.__name__,
        peer=context.peer(),
        user=calls.user(),
        took_ms=round((time.perf_counter() - started) * 1000, 3),
    )


def unary(
    method: Callable[[ServicerT, RequestT, Any], Awaitable[AnswerT]],
) -> Callable[[ServicerT, RequestT, Any], Awaitable[AnswerT]]:
    """Decorate a unary method of a servicer; see the module."""

    @functools.wraps(method)
    async def guarded(self: ServicerT, request: RequestT, context: Any) -> AnswerT:
        _enter(context)
        started = time.perf_counter()
        try:
            require_deadline(context)
            answer = await method(self, request, context)
        except HeadraceError as error:
            del request
            await refuse(context, method.__name__, error, getattr(self, "call_errors", None))
        except (grpc.aio.AbortError, asyncio.CancelledError):
            raise
        except Exception as error:
            log.exception("rpc_failed", method=method.__qualname__)
            del request
            await refuse(context, method.__name__, _unexpected(error), getattr(self, "call_errors", None))
        else:
            if calls.calls_are_traced():
                _trace(method, started, context)
            return answer
        finally:
            _time(self, method, started)
        raise AssertionError("abort returned")

    return guarded


def server_streaming(
    method: Callable[[ServicerT, RequestT, Any], AsyncIterator[AnswerT]],
) -> Callable[[ServicerT, RequestT, Any], AsyncIterator[AnswerT]]:
    """Decorate a server-streaming method of a servicer; see the module."""

    @functools.wraps(method)
    async def guarded(self: ServicerT, request: RequestT, context: Any) -> AsyncIterator[AnswerT]:
        _enter(context)
        started = time.perf_counter()
        try:
            require_deadline(context)
            async for answer in method(self, request, context):
                yield answer
        except HeadraceError as error:
            del request
            await refuse(context, method.__name__, error, getattr(self, "call_errors", None))
        except (grpc.aio.AbortError, asyncio.CancelledError):
            raise
        except Exception as error:
            log.exception("rpc_failed", method=method.__qualname__)
            del request
            await refuse(context, method.__name__, _unexpected(error), getattr(self, "call_errors", None))
        else:
            if calls.calls_are_traced():
                _trace(method, started, context)
        finally:
            _time(self, method, started)

    return guarded


def _enter(context: Any) -> None:
    caller = access().share_key(peer_host(context.peer()))
    CURRENT_CALL.set(context)
    CALLER.set(caller)
    note_call(caller)


def require_deadline(context: Any) -> None:
    """Check that a call has a deadline.

    Raises:
        DeadlineRequiredError: If the caller set none.
    """
    if context.time_remaining() is None:
        raise DeadlineRequiredError("the call has no deadline")


async def let_others_run(index: int, every: int = ITEMS_PER_TURN) -> None:
    """Yield to other calls at each `every`th `index` of a loop over the items of a request."""
    if index % every == every - 1:
        await next_turn()


def _unexpected(error: Exception) -> InternalError:
    identifier = request_id()
    where = f"; its log has it as request {identifier}" if identifier else ""
    return InternalError(f"the server met an unexpected {type(error).__name__}{where}")


class RpcServer:
    """A grpc.aio server with health and reflection on one address.

    Lifecycle: construct, `add` servicers, `start`, `stop`. It serves `health`, and updates it when it stops.
    """

    def __init__(
        self,
        limits: RpcLimits | None = None,
        *,
        gate: IdentityGate,
        health: Health | None = None,
        allowed_names: Sequence[str] = (),
        is_for_servers: bool = False,
        call_errors: Counter | None = None,
    ) -> None:
        """`allowed_names`, `is_for_servers` and `call_errors`: see `Admission`."""
        limits = limits or RpcLimits()
        self.health = health or Health()
        self._admission = Admission(
            limits.places, gate, allowed_names=allowed_names, is_for_servers=is_for_servers, call_errors=call_errors
        )
        self._server = grpc.aio.server(options=_channel_options(limits))
        self._server.add_generic_rpc_handlers((self._admission,))
        self._service_names: list[str] = []
        self._health_servicer = HealthServicer(self.health)
        self.add(health_pb2_grpc.add_HealthServicer_to_server, self._health_servicer, grpc_health.SERVICE_NAME)
        self._max_connections = limits.max_connections
        self._sharing: asyncio.Task[None] | None = None
        self.address = ""
        self._listening = asyncio.Event()

    @property
    def places(self) -> Places:
        """The places of its calls, for a listener that shares them."""
        return self._admission.places

    def add(self, register: Callable[[Any, Any], None], servicer: object, service_name: str) -> None:
        """Register `servicer` by the generated `add_..._to_server`; `service_name` is its full protobuf name.

        Raises:
            UnlistedMethodError: If one of its methods has no row in `methods.METHODS`.
        """
        registered = _Registered()
        register(servicer, registered)
        service = descriptor_pool.Default().FindServiceByName(service_name)
        for method in service.methods:
            path = f"/{service_name}/{method.name}"
            handler = registered.find(path)
            if handler is not None:
                counter = getattr(servicer, "call_errors", None)
                self._admission.add(path, handler, method.input_type, counter)
        self._service_names.append(service_name)

    async def start(self, listen: str, credentials: grpc.ServerCredentials | None = None) -> str:
        """Listen on `host:port` (port 0: the kernel chooses), serve, and return the bound address.

        With `credentials` it accepts only TLS, without them only plain text.

        Raises:
            AddressInUseError: If the address is in use, not local, or malformed.
        """
        servicer = reflection.aio.ReflectionServicer([*self._service_names, reflection.SERVICE_NAME])
        self.add(reflection_pb2_grpc.add_ServerReflectionServicer_to_server, servicer, reflection.SERVICE_NAME)
        check_free(listen)
        host, _ = split_address(listen)
        try:
            if credentials is None:
                bound = self._server.add_insecure_port(listen)
            else:
                bound = self._server.add_secure_port(listen, credentials)
        except RuntimeError as error:
            raise AddressInUseError(
                f"cannot listen on {listen}: {error}", action="Choose another address, or stop what holds this one."
            ) from error
        await self._server.start()
        self._admission.wasted.start(bound)
        if self._max_connections:
            self._sharing = asyncio.create_task(keep_shares(bound, self._max_connections))
        self.address = f"{host}:{bound}"
        self._listening.set()
        return self.address

    async def listening(self) -> str:
        """Wait until another component has started it; return the bound address."""
        await self._listening.wait()
        return self.address

    async def stop(self, grace_seconds: float) -> None:
        """Accept no new calls, wait at most `grace_seconds` for calls in progress, then cancel them."""
        self.health.hold(HealthCause.STOPPING)
        self._health_servicer.close()
        self._admission.wasted.stop()
        if self._sharing is not None:
            self._sharing.cancel()
        await self._server.stop(grace_seconds)


class _Registered:
    """Stand-in for the server that collects the handlers which generated code registers."""

    def __init__(self) -> None:
        self._handlers: list[grpc.GenericRpcHandler] = []

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        self._handlers.extend(handlers)

    def add_registered_method_handlers(self, service_name: str, handlers: Any) -> None:
        """Ignore the same handlers in the form that gRPC would look up first."""

    def find(self, path: str) -> Any:
        details = _Details(path)
        return next((found for handler in self._handlers if (found := handler.service(details)) is not None), None)


@dataclass(frozen=True, slots=True)
class _Details(grpc.HandlerCallDetails):
    method: str
    invocation_metadata: tuple[()] = ()


def check_free(listen: str) -> None:
    """Bind the address briefly, because gRPC does not report why it cannot.

    Raises:
        AddressInUseError: If the address is in use, not local, or malformed.
    """
    host, port = split_address(listen)
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(target)
    except OSError as error:
        raise AddressInUseError(
            f"cannot listen on {listen}: {error.strerror or error}",
            action="Choose another address, or stop what holds this one.",
        ) from error


def _channel_options(limits: RpcLimits) -> Sequence[tuple[str, int]]:
    connections = (("grpc.max_allowed_incoming_connections", limits.max_connections),) if limits.max_connections else ()
    return (
        *connections,
        ("grpc.max_send_message_length", limits.max_answer_bytes),
        ("grpc.max_receive_message_length", limits.max_request_bytes),
        # Batches have their own compression, and gRPC's would allow messages a thousand times the size sent.
        ("grpc.compression_enabled_algorithms_bitset", 1),
        ("grpc.max_concurrent_streams", limits.max_concurrent_streams),
        # Calls not yet seen by `admission`; above the default of 1,000 gRPC drops some at random.
        ("grpc.server.max_pending_requests", 6_144),
        ("grpc.server.max_pending_requests_hard_limit", 8_192),
        ("grpc.max_metadata_size", limits.max_metadata_bytes),
        # For `connections.Diversion`. `check_free` binds without it, so that no second process listens here.
        ("grpc.so_reuseport", 1),
        # Timeout of the handshake of a new connection.
        ("grpc.server_handshake_timeout_ms", 10_000),
        # Clients ping every 20 s or less often, also between calls, which a server would reject by default.
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
    )
