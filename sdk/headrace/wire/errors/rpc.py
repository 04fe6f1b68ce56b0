"""Errors on the wire: as an `ErrorDetail` inside a response, or in the trailer of a failed call; and back.

protobuf and grpc are imported when a function is called, so that code below the RPC layer can import the errors alone.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from headrace.wire.errors.base import ERRORS, ErrorCode, HeadraceError, LeaderHint, Outcome
from headrace.wire.errors.catalogue import BatchTooLargeError, TransportError
from headrace.wire.handshakes import explain_handshake

if TYPE_CHECKING:
    import grpc

    from headrace.v1 import errors_pb2

    GRPC_STATUS: Mapping[ErrorCode, grpc.StatusCode]

STATUS_DETAILS_KEY = "grpc-status-details-bin"
"""Trailer with a serialised `headrace.v1.Status`, which has the layout of google.rpc.Status."""
REQUEST_ID_KEY = "headrace-request-id"
"""Metadata key of a client's operation, the same for all its calls; a failed call's trailers repeat it."""
_UNTYPED: Mapping[str, ErrorCode] = {
    "CANCELLED": ErrorCode.TIMED_OUT,
    "DEADLINE_EXCEEDED": ErrorCode.TIMED_OUT,
    "INVALID_ARGUMENT": ErrorCode.INVALID_REQUEST,
    "FAILED_PRECONDITION": ErrorCode.INVALID_REQUEST,
    "OUT_OF_RANGE": ErrorCode.INVALID_REQUEST,
    "UNAUTHENTICATED": ErrorCode.UNAUTHENTICATED,
    "PERMISSION_DENIED": ErrorCode.NOT_AUTHORIZED,
    "UNIMPLEMENTED": ErrorCode.UNSUPPORTED_VERSION,
    "RESOURCE_EXHAUSTED": ErrorCode.THROTTLED,
    "ABORTED": ErrorCode.CONFLICT,
}
"""Code for a gRPC status without a typed detail; UNAVAILABLE becomes TransportError, others INTERNAL."""


def __getattr__(name: str) -> Mapping[ErrorCode, grpc.StatusCode]:
    """Build `GRPC_STATUS` on first use, so that importing this module does not import grpc."""
    if name != "GRPC_STATUS":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import grpc

    statuses = {code: grpc.StatusCode[row.grpc_status] for code, row in ERRORS.items()}
    globals()[name] = statuses
    return statuses


def to_detail(error: HeadraceError) -> errors_pb2.ErrorDetail:
    """Return the message that carries `error` inside a response. An error without its own code is sent as INTERNAL."""
    from headrace.v1 import errors_pb2

    detail = errors_pb2.ErrorDetail(
        code=int(error.code or ErrorCode.INTERNAL),  # type: ignore[arg-type]
        retriable=error.retriable,
        outcome=int(error.outcome),  # type: ignore[arg-type]
        message=error.message,
        action=error.action,
        retry_after_ms=error.retry_after_ms,
    )
    if error.leader is not None:
        detail.leader.leader_id = error.leader.leader_id
        detail.leader.leader_epoch = error.leader.leader_epoch
        detail.leader.address = error.leader.address
    return detail


def from_detail(detail: errors_pb2.ErrorDetail) -> HeadraceError:
    """Return the exception that `detail` carries; not raised.

    A code unknown to this version becomes `InternalError` with the sender's retriable, outcome and action; a missing
    outcome is UNKNOWN.
    """
    number = int(detail.code)
    known = number in ErrorCode.__members__.values() and number != ErrorCode.UNSPECIFIED
    code = ErrorCode(number) if known else ErrorCode.INTERNAL
    outcome = int(detail.outcome)
    leader = detail.leader
    return ERRORS[code].exception(
        detail.message if known else f"{detail.message or 'an error'} (code {number}, unknown to this version)",
        code=code,
        outcome=Outcome(outcome) if outcome in {Outcome.NOT_APPLIED, Outcome.APPLIED} else Outcome.UNKNOWN,
        retriable=detail.retriable,
        action=detail.action or None,
        leader=LeaderHint(leader.leader_id, leader.leader_epoch, leader.address) if detail.HasField("leader") else None,
        retry_after_ms=max(0, detail.retry_after_ms),
    )


def to_status_bytes(error: HeadraceError) -> bytes:
    """Return the serialised `headrace.v1.Status` for the `grpc-status-details-bin` trailer of a failed call."""
    import grpc

    from headrace.v1 import errors_pb2

    number, _ = grpc.StatusCode[ERRORS[error.code].grpc_status].value
    status = errors_pb2.Status(code=number, message=str(error))
    status.details.add().Pack(to_detail(error))
    return status.SerializeToString()


class _NoCallError(Exception):
    """Raised by nothing."""


def rpc_failures() -> type[grpc.RpcError]:
    """Return `grpc.RpcError` for an `except` clause, without importing grpc: without it, no call over gRPC can fail."""
    found: Any = sys.modules.get("grpc")
    return cast("type[grpc.RpcError]", _NoCallError) if found is None else found.RpcError


def from_rpc_error(error: grpc.RpcError) -> HeadraceError:
    """Return the exception for a failed call, sync or aio; not raised.

    The typed detail if the server sent one, or the error that the client attached as `typed`. Otherwise the exception
    depends on the gRPC status, and the outcome is UNKNOWN, because a broken call may have been executed.
    """
    typed: Any = getattr(error, "typed", None)
    if isinstance(typed, HeadraceError):
        return typed
    detail = _typed_detail(error)
    if detail is not None:
        return from_detail(detail)
    status: Any = error.code() if hasattr(error, "code") else None
    name = "UNKNOWN" if status is None else status.name
    said = (error.details() if hasattr(error, "details") else "") or "no details"
    message = f"the call failed with gRPC status {name}: {said}"
    if name == "UNAVAILABLE":
        explained = explain_handshake(said)
        if explained is not None:
            return TransportError(
                explained.message, outcome=Outcome.NOT_APPLIED, retriable=True, action=explained.action
            )
        return TransportError(message, outcome=Outcome.UNKNOWN, retriable=True, action="Try again or elsewhere.")
    if name == "RESOURCE_EXHAUSTED" and "message larger than max" in said:
        return BatchTooLargeError(message, outcome=Outcome.UNKNOWN)
    code = _UNTYPED.get(name, ErrorCode.INTERNAL)
    retriable = ERRORS[code].retriable and name != "CANCELLED"
    return ERRORS[code].exception(message, code=code, outcome=Outcome.UNKNOWN, retriable=retriable)


def _typed_detail(error: grpc.RpcError) -> errors_pb2.ErrorDetail | None:
    """Return the `ErrorDetail` in the trailers of a failed call; `None` if there is none that can be read."""
    from google.protobuf.message import DecodeError

    from headrace.v1 import errors_pb2

    trailers: Any = error.trailing_metadata() if hasattr(error, "trailing_metadata") else None
    for key, value in trailers or ():
        if key != STATUS_DETAILS_KEY:
            continue
        detail = errors_pb2.ErrorDetail()
        try:
            status = errors_pb2.Status.FromString(value)
            if any(packed.Unpack(detail) for packed in status.details):
                return detail
        except DecodeError:
            return None  # A proxy's own trailer: the gRPC status still has the reason.
    return None
