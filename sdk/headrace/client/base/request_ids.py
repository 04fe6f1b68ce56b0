"""Request ids of operations: one id in the logs of clients, coordinators and brokers and in error messages.

An operation is one run of `execute` (with all its tries and metadata requests), one Produce or one Fetch; an id per try
would end the trail at the first retry. Its calls carry the id as metadata (40 bytes, 2 us). Servers read it only when
they log a line or refuse a call. Replica streams have none: they belong to no operation. Any thread.

The id of a call that belongs to a sampled trace begins with the trace's context (`headrace.wire.trace_context`): so the
native protocol carries it without a field of its own, and log lines have the trace id. gRPC's metadata has it as
`traceparent` in addition, as other clients send it.
"""

import contextlib
import itertools
import os
import secrets
from collections.abc import Iterator
from contextvars import Context, ContextVar, copy_context

from headrace.client.base.open_telemetry import ambient_traceparent
from headrace.wire.call_tries import CALL_TRY_KEY, CallTry
from headrace.wire.errors import REQUEST_ID_KEY, HeadraceError
from headrace.wire.trace_context import TRACEPARENT, traced_request_id, traceparent_of

Metadata = tuple[tuple[str, str], ...]
AUTHORIZATION_KEY = "authorization"
"""Metadata key of a call's token (RFC 6750)."""


class _Names:
    """Ids of one process: a random prefix and a counter."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Draw another prefix; called in a forked child, so that it reuses no id of its parent."""
        self.prefix = secrets.token_hex(4)
        self.numbers = itertools.count(1)


class _Operation:
    """Operation of a thread or task; its first call draws the id."""

    __slots__ = ("request_id",)

    def __init__(self) -> None:
        self.request_id = ""


_names = _Names()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_names.renew)
_operation: ContextVar[_Operation | None] = ContextVar("headrace_operation", default=None)


_in_background: ContextVar[bool] = ContextVar("headrace_in_background", default=False)


def new_request_id(traceparent: str = "") -> str:
    """Return a unique id, such as `5f0c93ab-2f`, or that of a call of a trace."""
    number = next(_names.numbers)
    return traced_request_id(traceparent, number) if traceparent else f"{_names.prefix}-{number:x}"


@contextlib.contextmanager
def request_id_scope() -> Iterator[None]:
    """Run the block as one operation; within another operation it is part of that one.

    A `HeadraceError` that leaves the block after a call was sent is given the operation's id.
    """
    outer = _operation.get()
    found = _Operation() if outer is None else outer
    token = _operation.set(found)
    try:
        yield
    except HeadraceError as error:
        error.request_id = error.request_id or found.request_id
        raise
    finally:
        _operation.reset(token)


def outside_operations() -> Context:
    """Return a copy of the context without its operation, for calls that an operation starts and does not wait for.

    They belong to no trace of the application.
    """
    context = copy_context()
    context.run(_operation.set, None)
    context.run(_in_background.set, True)
    return context


def metadata_of(request_id: str, token: str = "") -> Metadata:
    """Return the metadata of a call with this id, and with the token of its client's session, if any."""
    metadata: Metadata = ((REQUEST_ID_KEY, request_id),)
    if token:
        metadata += ((AUTHORIZATION_KEY, f"Bearer {token}"),)
    if traceparent := traceparent_of(request_id):
        metadata += ((TRACEPARENT, traceparent),)
    return metadata


def operation_request_id(*, is_traced: bool = False) -> str:
    """Return the id of the current operation; a call outside of an operation has its own.

    With `is_traced` an operation within a sampled span of the application has an id of its trace.
    """
    found = _operation.get()
    if found is None:
        return new_request_id()
    if not found.request_id:
        found.request_id = new_request_id(ambient_traceparent() if is_traced and not _in_background.get() else "")
    return found.request_id


def operation_metadata(token: str = "", *, is_traced: bool = False, call_try: CallTry | None = None) -> Metadata:
    """Return the metadata of a call of the current operation; see `metadata_of` and `operation_request_id`."""
    metadata = metadata_of(operation_request_id(is_traced=is_traced), token)
    return metadata if call_try is None else (*metadata, (CALL_TRY_KEY, str(call_try)))
