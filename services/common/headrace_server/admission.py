"""Admission control of gRPC calls, before their requests are read, parsed and passed to a servicer.

`Admission` is the only handler of a server; gRPC calls it for every call at the call's headers. It checks, in this
order: the certificate if names are required (`allowed_names`), its identity and its right on the cluster
(`IdentityGate`), a free slot in its pool and in its caller's share (`Places`), that its request arrives (`Arrivals`),
the identity and right of then, the request itself (`requests`), and the right to the group that it names. Only then the
servicer's method runs, which asks `identity.gate.access()` about topics. Places are shared between addresses.

A call that ends unread counts as wasted (`wasted_calls`), and so does a call of an unknown method.

Every method is registered with a stream of bytes as its request: only then grpc.aio passes the context, and with it the
peer, before the request has arrived. A unary response is still sent by one batch of operations, so that this costs a
call 2 % (docs/decisions/0031-use-admission-at-the-headers.md). Belongs to the event loop of its server.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import structlog
from headrace.wire.errors import (
    ErrorCode,
    HeadraceError,
    InvalidRequestError,
    NotAuthorizedError,
    Outcome,
    ThrottledError,
)
from prometheus_client import Counter

from headrace_server.arrivals import Arrivals, NotArrivedError
from headrace_server.call_spans import begin_call
from headrace_server.calls import CURRENT_CALL, bearer_token, certified_names, check_certificate, refuse, request_id_of
from headrace_server.identity.gate import CANCELLED, Access, IdentityGate, access, current_access, set_access
from headrace_server.identity.quotas import Use
from headrace_server.identity.rights import Operation, ResourceKind
from headrace_server.methods import METHODS, Method, Pool
from headrace_server.places import Place, PlaceLimits, Places, Rates, peer_host
from headrace_server.requests import PENALTY_SECONDS, RequestReader
from headrace_server.wasted_calls import WastedCalls

log = structlog.get_logger(__name__)

LOG_SECONDS = 10.0
"""Minimum interval of log lines about unreadable requests of a method; the metric counts each."""

Handler = Any
"""A `grpc.RpcMethodHandler`."""


class UnlistedMethodError(Exception):
    """A servicer has a method without a row in `methods.METHODS`. Add the row."""


@dataclass(slots=True)
class _Served:
    """Method of this server."""

    path: str
    name: str
    row: Method
    reader: RequestReader
    handler: Handler
    call_errors: Counter | None
    group_operation: Operation | None
    """Required on the group that a request names in `group_id`; `None`: it names none there."""
    tell_at_seconds: float = -math.inf


class Admission(grpc.GenericRpcHandler):
    """Handler of all calls of a server, owned by `RpcServer`, which adds methods before it starts."""

    def __init__(
        self,
        limits: PlaceLimits,
        gate: IdentityGate,
        *,
        allowed_names: Sequence[str] = (),
        is_for_servers: bool = False,
        call_errors: Counter | None = None,
    ) -> None:
        """`allowed_names` are certificate names, matched exactly; empty admits any caller. `is_for_servers` admits only
        brokers and coordinators, whatever the posture. `call_errors` counts calls that either check rejects.
        """
        self._gate = gate
        self._is_for_servers = is_for_servers
        self.places = Places(limits)
        self._arrivals = Arrivals()
        self._rates = Rates()
        self.wasted = WastedCalls()
        self._allowed = frozenset(allowed_names)
        self._call_errors = call_errors
        self._handlers: dict[str, Handler] = {}
        self._unserved_handler: Handler = grpc.stream_stream_rpc_method_handler(self._unserved)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Handler:
        """For gRPC: the handler of a method, or one that refuses it."""
        return self._handlers.get(handler_call_details.method) or self._unserved_handler

    def add(self, path: str, handler: Handler, request_type: Any, call_errors: Counter | None) -> None:
        """Serve a method, by its gRPC `path` and the `handler` of the generated code.

        Raises:
            UnlistedMethodError: If it has no row in `METHODS`.
        """
        row = METHODS.get(path)
        if row is None:
            raise UnlistedMethodError(f"{path} has no row in headrace_server.methods.METHODS")
        name = path.rpartition("/")[2]
        reader = RequestReader(name, row, handler.request_deserializer, request_type)
        group_operation = None
        if row.right is not None and row.right.kind is ResourceKind.GROUP and "group_id" in request_type.fields_by_name:
            group_operation = row.right.operation
        served = _Served(path, name, row, reader, handler, call_errors, group_operation)
        self._handlers[path] = self._make_handler(served)

    def _make_handler(self, served: _Served) -> Handler:
        serializer = served.handler.response_serializer
        if served.handler.request_streaming:
            assert served.handler.response_streaming, "no service takes a stream and answers once"
            return grpc.stream_stream_rpc_method_handler(self._both_streaming(served), None, serializer)
        if served.handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(self._answer_streaming(served), None, serializer)
        return grpc.stream_unary_rpc_method_handler(self._unary(served), None, serializer)

    # --- one handler for each shape of a method ---

    def _unary(self, served: _Served) -> Callable[..., Any]:
        behaviour, is_dear = served.handler.unary_unary, bool(served.row.answer_bytes_per_second)

        async def answer(_requests: Any, context: Any) -> Any:
            span = begin_call(served.path, "grpc", context)
            if span is None:
                return await serve(context)
            with span:
                return await serve(context)

        async def serve(context: Any) -> Any:
            try:
                response = await behaviour(await self._take(served, context), context)
                if is_dear:
                    self._rates.charge(peer_host(context.peer()), served.name, response.ByteSize())
                access().note_end(response)
            finally:
                _note_cancelled(current_access())
            if served.row.uses_quota:
                await access().hold(Use.REQUEST)
            if served.row.is_change:
                await access().hold(Use.CHANGE)
            return response

        return answer

    def _answer_streaming(self, served: _Served) -> Callable[..., Any]:
        behaviour, is_dear = served.handler.unary_stream, bool(served.row.answer_bytes_per_second)

        async def answer(_requests: Any, context: Any) -> AsyncIterator[Any]:
            request, is_first = await self._take(served, context), True
            allowed = access()
            try:
                await self._hold_stream(served, allowed, context)
                async for response in behaviour(request, context):
                    if not is_first:
                        await self._admit_further(served, allowed, context)
                    is_first = False
                    if is_dear:
                        self._rates.charge(peer_host(context.peer()), served.name, response.ByteSize())
                    yield response
                allowed.note_end(None)
            finally:
                _note_cancelled(allowed)

        return answer

    def _both_streaming(self, served: _Served) -> Callable[..., Any]:
        behaviour = served.handler.stream_stream

        async def answer(_requests: Any, context: Any) -> AsyncIterator[Any]:
            first = await self._take(served, context)
            await self._hold_stream(served, access(), context)
            async for response in behaviour(self._read_all(served, first, context), context):
                yield response

        return answer

    async def _read_all(self, served: _Served, first: Any, context: Any) -> AsyncIterator[Any]:
        """Yield the requests of a stream; the servicer limits how long it may be silent after the first one.

        Each counts for the quota of requests, and the next one is read when the quota allows. The caller is checked
        again for each.
        """
        yield first
        while (data := await context.read()) is not grpc.aio.EOF:
            if served.row.uses_quota:
                access().charge(Use.REQUEST)
                await access().hold(Use.REQUEST)
            await self._admit_further(served, access(), context)
            try:
                request = served.reader.read(data, peer_host(context.peer()))
            except HeadraceError as error:
                await self._refuse(served, context, error)
                return
            yield request

    async def _unserved(self, _requests: Any, context: Any) -> None:
        self.wasted.count(context.peer(), of_connection=True)
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")

    # --- admission ---

    async def _take(self, served: _Served, context: Any) -> Any:
        """Admit a call and return its request; a call that is not admitted is aborted."""
        connection, is_read, is_without_place = context.peer(), False, False
        peer = peer_host(connection)
        try:
            check_certificate(context, self._allowed)
            allowed = self._identify(served, context)
            if served.row.answer_bytes_per_second:
                self._rates.check(peer, served.name, served.row.answer_bytes_per_second, "bytes")
            if served.row.calls_per_minute:
                self._rates.check(peer, served.name, served.row.calls_per_minute / 60, "calls")
                self._rates.charge(peer, served.name, 1)
            is_without_place = True
            place = self._take_place(served.row.pool, peer)
            is_without_place = False
            context.add_done_callback(place.release)
            data = await self._arrivals.read(context, place, served.row.pool, late_bytes=served.row.late_bytes)
            if data is grpc.aio.EOF:
                raise InvalidRequestError("the call ended without a request", action="Send one message.")
            is_read = True
            self._gate.admit_arrived(allowed, served.row)
            if allowed.is_proven(served.row):
                self.wasted.note_served(peer)
            if served.row.uses_quota:
                allowed.charge(Use.REQUEST)
            try:
                request = served.reader.read(data, peer)
                if served.group_operation is not None:
                    allowed.require(served.group_operation, ResourceKind.GROUP, request.group_id)
                if served.row.is_change:
                    allowed.charge(Use.CHANGE)
                if served.row.is_act:
                    allowed.act, allowed.request_id = request, request_id_of(context)
                return request
            except ThrottledError as refused:
                refused.__traceback__ = None  # It references the request.
                error = refused
            del data
            await asyncio.sleep(PENALTY_SECONDS)
            raise error
        except NotArrivedError as late:
            await self._refuse(served, context, _not_arrived(served.name, late))
        except HeadraceError as refused:
            await self._refuse(served, context, refused)
        finally:
            if not is_read:
                self.wasted.count(connection, of_connection=not is_without_place)
        raise AssertionError("abort returned")

    def _identify(self, served: _Served, context: Any) -> Access:
        """Return what the caller of a call may do, and make it the access of the task.

        Raises:
            UnauthenticatedError, NotAuthorizedError, ThrottledError: If the call is not served.
        """
        row = served.row
        address = peer_host(context.peer())
        token = bearer_token(context)
        names = () if token else certified_names(context)  # Reading them takes microseconds, and a token decides.
        caller = self._gate.identify(token, names, served.name, address)
        allowed = self._gate.admit(caller, served.name, row, address)
        if self._is_for_servers and row.needs_identity and not caller.is_server:
            error = NotAuthorizedError(
                "this listener is for brokers and coordinators of the cluster", action="Use the listener for clients."
            )
            allowed.note_refusal(ErrorCode.NOT_AUTHORIZED, error.message)
            raise error
        set_access(allowed)
        return allowed

    async def _hold_stream(self, served: _Served, allowed: Access, context: Any) -> None:
        """Hold a stream while its user has had more requests than its quota, and then do as `_admit_further`."""
        if served.row.uses_quota and await allowed.hold(Use.REQUEST):
            await self._admit_further(served, allowed, context)

    async def _admit_further(self, served: _Served, allowed: Access, context: Any) -> None:
        """End a stream whose caller has lost what the call needs; health, which needs nothing, never."""
        if not served.row.needs_identity:
            return
        try:
            self._gate.admit_further(allowed, served.row)
        except HeadraceError as error:
            await self._refuse(served, context, error)

    def _take_place(self, pool: Pool, peer: str) -> Place:
        try:
            return self.places.take(pool, peer)
        except ThrottledError:
            if not (self.wasted.is_shut_out(peer) and self._arrivals.end_oldest(pool, peer)):
                raise
        return self.places.take(pool, peer)

    async def _refuse(self, served: _Served, context: Any, error: HeadraceError) -> None:
        CURRENT_CALL.set(context)
        now = time.monotonic()
        if isinstance(error, InvalidRequestError) and now >= served.tell_at_seconds:
            served.tell_at_seconds = now + LOG_SECONDS
            log.warning("request_refused", method=served.name, peer=context.peer(), reason=error.message)
        if isinstance(error, NotAuthorizedError):
            await refuse(context, "internal", error, self._call_errors)
        await refuse(context, served.name, error, served.call_errors)


def _note_cancelled(allowed: Access | None) -> None:
    """Write an act to the audit log that has not ended when its call does: the caller left, or its deadline passed."""
    if allowed is not None:
        allowed.note_end(None, CANCELLED)


def _not_arrived(method: str, late: NotArrivedError) -> ThrottledError:
    return ThrottledError(
        f"the request of {method} did not arrive within {late.seconds:g} s",
        outcome=Outcome.NOT_APPLIED,
        retry_after_ms=1_000,
        action="Send it again, over a faster network or in smaller parts.",
    )
