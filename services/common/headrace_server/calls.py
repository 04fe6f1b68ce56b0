"""Context of the call that the running task serves: request id, user, logging of calls.

Clients send a request id for each operation in the call's metadata, the same one for every attempt and for lookups that
the operation needs. Reading it is not free, so a call only stores its context here; log lines and errors evaluate it.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

import grpc
import structlog
from headrace.wire.call_tries import CALL_TRY_KEY, CallTry
from headrace.wire.errors import (
    GRPC_STATUS,
    REQUEST_ID_KEY,
    STATUS_DETAILS_KEY,
    ErrorCode,
    HeadraceError,
    NotAuthorizedError,
    to_status_bytes,
)
from prometheus_client import Counter

from headrace_server.call_metadata import texts_of
from headrace_server.call_spans import current_span
from headrace_server.identity.certificate_names import in_order
from headrace_server.identity.gate import current_access

log = structlog.get_logger(__name__)

MAX_REQUEST_ID_CHARACTERS = 64
AUTHORIZATION_KEY = "authorization"

CURRENT_CALL: ContextVar[Any] = ContextVar("CURRENT_CALL", default=None)
"""Context of the call, set by `rpc.unary` and `rpc.server_streaming`; each call has its own task."""

CALLER: ContextVar[str] = ContextVar("CALLER", default="")
"""Caller of the task's call, as by `places.caller`; set together with `CURRENT_CALL`, and by the native protocol."""

_traced = False


def request_id() -> str:
    """Return the request id of the current call; empty if there is no call or it has none."""
    context = CURRENT_CALL.get()
    return "" if context is None else request_id_of(context)


def request_id_of(context: Any) -> str:
    """Return the request id of a call; empty if it has none."""
    for text in texts_of(context, REQUEST_ID_KEY):
        if len(text) <= MAX_REQUEST_ID_CHARACTERS:
            return text if text.isprintable() else ""
    return ""


def current_try() -> CallTry | None:
    """Return which try of its call the running task serves; `None` without a call, or if the caller named none."""
    context = CURRENT_CALL.get()
    text = None if context is None else next(texts_of(context, CALL_TRY_KEY), None)
    return None if text is None else CallTry.parse(text)


def user() -> str:
    """Return the name of the user whose call the task serves; empty without one."""
    found = current_access()
    return "" if found is None else found.caller.identity.user


def bearer_token(context: Any) -> str:
    """Return the token in a gRPC call's `authorization` (RFC 6750); empty if it has none."""
    for text in texts_of(context, AUTHORIZATION_KEY):
        if text[:7].lower() == "bearer ":
            return text[7:].strip()
    return ""


def certified_names(context: Any) -> list[str]:
    """Return all names in the caller's certificate, which was verified; the common name is first, empty without one."""
    if context is None:
        return []
    found = context.auth_context()
    common, alternatives = (
        [name.decode(errors="replace") for name in found.get(key, ())]
        for key in ("x509_common_name", "x509_subject_alternative_name")
    )
    return in_order(common, alternatives)


def check_certificate(context: Any, allowed: frozenset[str]) -> None:
    """Refuse a caller whose certificate has none of the allowed names; none means any caller.

    Raises:
        NotAuthorizedError: If it has none of them.
    """
    names = certified_names(context) if allowed else []
    if allowed and allowed.isdisjoint(names):
        log.warning("peer_refused", peer=context.peer(), names=names)
        raise NotAuthorizedError(
            f"the peer's certificate names {', '.join(filter(None, names)) or '(no name)'}, none of the allowed ones",
            action="Add the name to internal_tls_allowed_names, or use a broker's or coordinator's certificate.",
        )


def calls_are_traced() -> bool:
    """Return whether every call is logged."""
    return _traced


def trace_calls(traced: bool) -> None:
    """Enable or disable a log line for every call."""
    global _traced  # noqa: PLW0603
    _traced = traced


async def refuse(context: Any, method: str, error: HeadraceError, counter: Counter | None) -> None:
    """Count the error of a call of `method`, log it at level `debug`, and abort the call; never returns.

    gRPC's exception for the abort is in a reference cycle with the call and keeps the caller's frames alive. Therefore
    only the text of the error is kept, and callers drop the request before. Otherwise rejected requests would fill the
    memory until the next garbage collection.
    """
    error.__traceback__ = error.__cause__ = error.__context__ = None
    code = error.code or ErrorCode.INTERNAL
    if counter is not None:
        counter.labels(method, code.name).inc()
    if (found := current_access()) is not None:
        found.note_end(None, code.name)
    if (span := current_span()) is not None:
        span.refused(code)
    if _traced:
        log.debug("call_refused", method=method, user=user(), code=code.name, reason=error.message)
    trailers: list[tuple[str, str | bytes]] = [(STATUS_DETAILS_KEY, to_status_bytes(error))]
    if identifier := request_id():
        trailers.append((REQUEST_ID_KEY, identifier))
    status = GRPC_STATUS[error.code] if error.code else grpc.StatusCode.INTERNAL
    await context.abort(status, str(error), tuple(trailers))
