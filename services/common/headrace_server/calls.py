"""The call that the running task answers: whose it is, and whether calls are written to the log.

Clients name each operation by a request id in the call's metadata, the same one for every try and for what they look up
on the way. Finding it costs something, so a call only leaves its context here; it is evaluated for a log line or an
error.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

import grpc
import structlog
from headrace.wire.errors import (
    GRPC_STATUS,
    REQUEST_ID_KEY,
    STATUS_DETAILS_KEY,
    ErrorCode,
    HeadraceError,
    to_status_bytes,
)
from prometheus_client import Counter

log = structlog.get_logger(__name__)

MAX_REQUEST_ID_CHARACTERS = 64

CURRENT_CALL: ContextVar[Any] = ContextVar("CURRENT_CALL", default=None)
"""The context of the call; set by `rpc.unary` and `rpc.server_streaming`, whose calls have a task each."""

CALLER: ContextVar[str] = ContextVar("CALLER", default="")
"""Whose call the task serves, as `places.caller` has it; set where `CURRENT_CALL` is, and by the native protocol."""

_traced = False


def request_id() -> str:
    """What the caller named the operation that is being served; empty: none is, or it has no name."""
    context = CURRENT_CALL.get()
    if context is None:
        return ""
    for key, value in context.invocation_metadata() or ():
        if key == REQUEST_ID_KEY and isinstance(value, str) and len(value) <= MAX_REQUEST_ID_CHARACTERS:
            return value if value.isprintable() else ""
    return ""


def principal(context: Any = None) -> str:
    """Who calls, by the certificate that was shown: its common name, or its first subject alternative name.

    Of the call that is being served, where no other one is given; empty: there is no certificate.
    """
    names = certified_names(CURRENT_CALL.get() if context is None else context)
    return names[0] if names else ""


def certified_names(context: Any) -> list[str]:
    """Every name that the caller's certificate bears, the common name first. gRPC has checked the certificate."""
    if context is None:
        return []
    found = context.auth_context()
    names = [*found.get("x509_common_name", ()), *found.get("x509_subject_alternative_name", ())]
    return [name.decode(errors="replace") for name in names]


def calls_are_traced() -> bool:
    """Whether every call is logged."""
    return _traced


def trace_calls(traced: bool) -> None:
    """Make every call a line of the log, or none."""
    global _traced  # noqa: PLW0603
    _traced = traced


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: HeadraceError) -> None:
    """End the call with the status and the typed detail of `error`; never returns."""
    trailers: list[tuple[str, str | bytes]] = [(STATUS_DETAILS_KEY, to_status_bytes(error))]
    if identifier := request_id():
        trailers.append((REQUEST_ID_KEY, identifier))
    await context.abort(
        GRPC_STATUS[error.code] if error.code else grpc.StatusCode.INTERNAL, str(error), tuple(trailers)
    )


async def refuse(context: Any, method: str, error: HeadraceError, counter: Counter | None) -> None:
    """Count what a call of `method` failed with, write a line at log level `debug`, and abort; never returns.

    gRPC's exception for the abort is in a cycle with the call, and holds what its caller's frames hold: of the error
    nothing but its text is left, and callers drop the request before. Else refused requests fill the memory until
    Python looks for cycles.
    """
    error.__traceback__ = error.__cause__ = error.__context__ = None
    code = error.code or ErrorCode.INTERNAL
    if counter is not None:
        counter.labels(method, code.name).inc()
    if _traced:
        log.debug("call_refused", method=method, principal=principal(), code=code.name, reason=error.message)
    await abort(context, error)
