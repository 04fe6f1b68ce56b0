"""Who may call what, before a servicer sees the call. Users, tokens and rights of users will stand here, too.

Two rules so far. Internal calls are refused where clients are served: `refuse_internal_calls`. And where TLS is on,
the internal listener serves those peers alone whose certificate bears an allowed name: `PeerInterceptor`. It is in the
way of internal calls only, of which there are few; clients' calls pay nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import grpc
import structlog
from headrace.wire.errors import NotAuthorizedError
from prometheus_client import Counter

from headrace_server.calls import certified_names
from headrace_server.rpc import RpcServer, abort

log = structlog.get_logger(__name__)

Handler = Any
"""A `grpc.RpcMethodHandler`."""


def refuse_internal_calls(server: RpcServer, service_name: str, call_errors: Counter) -> None:
    """Answer every call of an internal service, on a server for clients, with what to do instead."""
    server.add_handler(_Refusal(service_name, call_errors))


class _Refusal(grpc.GenericRpcHandler):
    def __init__(self, service_name: str, call_errors: Counter) -> None:
        self._prefix = f"/{service_name}/"
        self._call_errors = call_errors

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Handler | None:
        """For gRPC: the handler of a method, None where it is another service's."""
        path = handler_call_details.method
        if not path.startswith(self._prefix):
            return None
        method = path.removeprefix(self._prefix)

        async def refuse(_requests: AsyncIterator[bytes], context: Any) -> None:
            self._call_errors.labels("internal", NotAuthorizedError.default_code.name).inc()
            await abort(
                context,
                NotAuthorizedError(
                    f"{method} is a call among brokers, and this is the listener for clients",
                    action="Let internal_advertised_address of this broker name the port of its internal_listen.",
                ),
            )

        return grpc.stream_stream_rpc_method_handler(refuse)


class PeerInterceptor(grpc.aio.ServerInterceptor):
    """Serves callers whose certificate bears one of the names, exactly as it stands there."""

    def __init__(self, allowed_names: Sequence[str], call_errors: Counter) -> None:
        self._allowed = frozenset(allowed_names)
        self._call_errors = call_errors

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Handler | None]], handler_call_details: Any
    ) -> Handler | None:
        """For gRPC: the handler of a call, with the check before it."""
        handler = await continuation(handler_call_details)
        return None if handler is None else self._guard(handler)

    async def _admit(self, context: Any) -> None:
        names = certified_names(context)
        if self._allowed.isdisjoint(names):
            self._call_errors.labels("internal", NotAuthorizedError.default_code.name).inc()
            log.warning("peer_refused", peer=context.peer(), names=names)
            await abort(
                context,
                NotAuthorizedError(
                    f"the certificate of {', '.join(names) or 'nobody'} is not one of a broker or coordinator",
                    action="Add one of its names to internal_tls_allowed_names, or show another certificate.",
                ),
            )

    def _guard(self, handler: Handler) -> Handler:
        if handler.response_streaming:
            stream = handler.stream_stream if handler.request_streaming else handler.unary_stream

            async def guarded_stream(requests: Any, context: Any) -> AsyncIterator[Any]:
                await self._admit(context)
                async for response in stream(requests, context):
                    yield response

            make = (
                grpc.stream_stream_rpc_method_handler
                if handler.request_streaming
                else grpc.unary_stream_rpc_method_handler
            )
            return make(guarded_stream, handler.request_deserializer, handler.response_serializer)
        assert not handler.request_streaming, "no service takes a stream and answers once"
        answer = handler.unary_unary

        async def guarded(request: Any, context: Any) -> Any:
            await self._admit(context)
            return await answer(request, context)

        return grpc.unary_unary_rpc_method_handler(guarded, handler.request_deserializer, handler.response_serializer)
