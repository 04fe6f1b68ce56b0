"""Generator of docs/reference/errors.md: the table of error codes, and errors raised by the client itself."""

from __future__ import annotations

import headrace.client.base.errors as client_errors
from headrace.wire.errors import ERRORS, ErrorCode, HeadraceError, TransportError

from reference_pages.markdown import summary, table

_INTRO = """# Errors

Every error that a server returns has a code. It is an `ErrorDetail`
([rpcs.md](rpcs.md#errordetail)) inside an answer, or in the trailer of a call that failed as a whole. The SDK raises
the exception of that row; every exception derives from `headrace.HeadraceError` and has the attributes below.

| attribute | meaning |
| --- | --- |
| `code` | kind of the error |
| `message` | cause, in one sentence |
| `action` | next step, in one sentence |
| `retriable` | the same request may succeed later, unchanged |
| `outcome` | whether the request took effect |
| `fatal` | the object that raised the error cannot be used any more |
| `leader` | address of the partition's leader, for the codes about leadership |
| `retry_after_ms` | minimum time to wait before the next attempt |

The outcome is `NOT_APPLIED`, `APPLIED` or `UNKNOWN`. Only `NOT_APPLIED` is a definite failure. A record whose outcome
is `UNKNOWN` may be read later; sending it again may store it twice unless the producer is idempotent. If no
server reports an outcome, as when a connection breaks during a call, it is `UNKNOWN`.

The table has each code's defaults. A server may override them in an error."""

_CLIENT = """## Raised only by the SDK

Servers never return these."""


def errors_body() -> str:
    """Return the page from its title."""
    rows = [
        (
            code.value,
            f"`{code.name}`",
            f"`{row.exception.__name__}`",
            row.grpc_status,
            "yes" if row.retriable else "no",
            row.outcome.name + (", fatal" if row.fatal else ""),
            row.action,
        )
        for code, row in ERRORS.items()
        if code is not ErrorCode.UNSPECIFIED
    ]
    head = ("number", "code", "exception", "gRPC status", "retriable", "outcome", "action")
    meanings = [
        (f"`{row.exception.__name__}`", summary(row.exception))
        for code, row in ERRORS.items()
        if code is not ErrorCode.UNSPECIFIED
    ]
    own: list[type[HeadraceError]] = [TransportError, *_client_exceptions()]
    return "\n\n".join(
        [
            _INTRO,
            table(head, rows),
            "## Exceptions",
            table(("exception", "meaning"), meanings),
            _CLIENT,
            table(("exception", "meaning"), [(f"`{error.__name__}`", summary(error)) for error in own]),
        ]
    )


def _client_exceptions() -> list[type[HeadraceError]]:
    return [getattr(client_errors, name) for name in sorted(client_errors.__all__)]
