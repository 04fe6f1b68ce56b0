"""Which errors clients may get: each of these only in a run that may cause it."""

from __future__ import annotations

from headrace.wire.errors import ErrorCode

from tests.simulation.plan import Plan

GONE = ("topic made anew", "etcd put back")
"""Without its topic, a client's requests fail; so they do where a cache lacks it."""
CAUSES: dict[ErrorCode, tuple[str, ...]] = {
    ErrorCode.CORRUPT_BATCH: ("corruption",),
    ErrorCode.UNKNOWN_TOPIC: (*GONE, "buggy etcd"),
    ErrorCode.UNKNOWN_TOPIC_ID: (*GONE, "buggy etcd"),
    ErrorCode.READ_ONLY_TOPIC: ("mirror",),
}
"""The faults and kinds of topics that let clients get an error."""
NEVER = frozenset(
    (
        ErrorCode.INTERNAL,
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.UNSUPPORTED_CODEC,
        ErrorCode.DEADLINE_REQUIRED,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.BATCH_TOO_LARGE,
        ErrorCode.DIVERGED_LOG,
        ErrorCode.NOT_AUTHORIZED,
        ErrorCode.UNAUTHENTICATED,
    )
)
"""What no fault causes."""


def why_not(code: ErrorCode, plan: Plan) -> str:
    """Return why no client can have got an error in a run of a plan; empty: it can."""
    if code in NEVER:
        return "no fault causes it"
    causes = CAUSES.get(code)
    there = {*plan.faults, *(("buggy etcd",) if plan.buggy_etcd else ()), *(("mirror",) if plan.mirrors else ())}
    return "" if causes is None or there & {*causes} else f"only {', '.join(causes)} causes it"
