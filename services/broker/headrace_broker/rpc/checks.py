"""Checks of fields that several requests have."""

from __future__ import annotations

from headrace.wire.errors import InvalidRequestError


def seconds_of(timeout_ms: int) -> float:
    """Return a request's timeout in seconds.

    Raises:
        InvalidRequestError: If it is not positive.
    """
    if timeout_ms <= 0:
        raise InvalidRequestError("timeout_ms must be positive", action="Set timeout_ms, for example to 30000.")
    return timeout_ms / 1000
