"""Errors of headrace: each has a code, a gRPC status, retriable, fatal, outcome, and the next step.

Servers raise these exceptions and return them as an `ErrorDetail` inside a response (`to_detail`) or in the
`grpc-status-details-bin` trailer of a failed call (`to_status_bytes`); clients convert both into the same exceptions
(`from_detail`, `from_rpc_error`). `base` has the common parts, `catalogue` a class per code, `rpc` the conversions.
"""

from typing import TYPE_CHECKING, Any

from headrace.wire.errors.base import ERRORS, ErrorCode, ErrorRow, HeadraceError, LeaderHint, Outcome
from headrace.wire.errors.catalogue import *
from headrace.wire.errors.rpc import (
    REQUEST_ID_KEY,
    STATUS_DETAILS_KEY,
    from_detail,
    from_rpc_error,
    rpc_failures,
    to_detail,
    to_status_bytes,
)

if TYPE_CHECKING:
    from headrace.wire.errors.rpc import GRPC_STATUS


def __getattr__(name: str) -> Any:
    """Return `GRPC_STATUS`, which imports grpc, on first use."""
    if name == "GRPC_STATUS":
        from headrace.wire.errors import rpc

        return rpc.GRPC_STATUS
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
