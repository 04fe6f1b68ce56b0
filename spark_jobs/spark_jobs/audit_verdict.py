"""Verdicts of the audit: producers' claims compared with the records that arrived, by topic and window. Pure.

`headrace.client.interceptors.audit` defines claims. Of a window's claims, at least `acknowledged` and at most
`sent - failed` records must have arrived; the outcome of the others is unknown. If records are missing and duplicated
in the same window, counts alone do not show it; `distinct` does, if records can be identified.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Claimed:
    """Sum of all producers' claims about one topic and window."""

    topic: str
    start_ms: int
    window_ms: int
    sent: int
    acknowledged: int
    failed: int
    producers: int
    open_producers: tuple[str, ...] = ()
    """`application@host` of producers without final counts: running, killed, or with a lost claim."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """Records that arrived of one topic and window."""

    records: int = 0
    distinct: int | None = None
    """Number of distinct records; `None` if records cannot be identified."""
    late: int = 0
    """Records that arrived after records from more than the allowance past their window."""


class State(enum.StrEnum):
    """State of a window."""

    COMPLETE = "complete"
    INCOMPLETE = "incomplete"
    """Records are missing or duplicated."""
    UNCONFIRMED = "unconfirmed"
    """A producer's counts are not final although the window ended longer ago than the grace time."""
    UNCLAIMED = "unclaimed"
    """Records arrived that no producer claims."""
    OPEN = "open"
    """The window has not ended."""
    REMOVED = "removed"
    """Retention may have deleted some of its records, so that they cannot be counted."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Verdict on one topic and window."""

    topic: str
    start_ms: int
    window_ms: int
    state: State
    sent: int
    acknowledged: int
    failed: int
    arrived: int
    missing: int
    duplicates: int
    late: int
    producers: int
    open_producers: tuple[str, ...]


class WindowSizeError(Exception):
    """Producers of one topic use window sizes that do not divide each other."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the windows that can be judged."""

    now_ms: int
    grace_ms: int = 60_000
    """Maximum delay of a window's last claims after its end."""
    removed_before_ms: Mapping[str, int] = field(default_factory=dict)
    """Timestamp by topic up to which retention may have deleted records."""


def window_sizes(claimed: Iterable[Claimed]) -> dict[str, int]:
    """Return the window size of each topic in ms: the largest that its producers use.

    Raises:
        WindowSizeError: If another size does not divide it.
    """
    sizes: dict[str, set[int]] = {}
    for window in claimed:
        sizes.setdefault(window.topic, set()).add(window.window_ms)
    for topic, found in sizes.items():
        if any(max(found) % size for size in found):
            listed = ", ".join(f"{size} ms" for size in sorted(found))
            raise WindowSizeError(
                f"producers of {topic} count in windows of {listed}; give all the same audit_window_ms"
            )
    return {topic: max(found) for topic, found in sizes.items()}


def judge(
    claimed: Iterable[Claimed], arrived: Mapping[tuple[str, int], Arrived], sizes: Mapping[str, int], limits: Limits
) -> list[Verdict]:
    """Compare claims with the records that arrived.

    Args:
        claimed: claims with window sizes that divide `sizes`; several may be parts of one window.
        arrived: by topic and start of window, in windows of `sizes`.
        sizes: window size of each topic in ms.
        limits: limits of the windows that can be judged.

    Returns:
        One verdict per topic and window, ascending, without windows before a topic's first claim, when no producer
        counted.
    """
    claims: dict[tuple[str, int], Claimed] = {}
    for window in claimed:
        size = sizes[window.topic]
        key = window.topic, window.start_ms // size * size
        claims[key] = _together(claims[key], window) if key in claims else window
    first = {topic: min(start for name, start in claims if name == topic) for topic, _ in claims}
    keys = claims.keys() | {key for key in arrived if key[0] in first and key[1] >= first[key[0]]}
    return [_verdict(key, sizes[key[0]], claims.get(key), arrived.get(key, Arrived()), limits) for key in sorted(keys)]


def _together(one: Claimed, other: Claimed) -> Claimed:
    return Claimed(
        one.topic,
        one.start_ms,
        one.window_ms,
        one.sent + other.sent,
        one.acknowledged + other.acknowledged,
        one.failed + other.failed,
        max(one.producers, other.producers),
        tuple(dict.fromkeys([*one.open_producers, *other.open_producers])),
    )


def _verdict(key: tuple[str, int], size: int, claimed: Claimed | None, arrived: Arrived, limits: Limits) -> Verdict:
    topic, start_ms = key
    found = claimed or Claimed(topic, start_ms, size, 0, 0, 0, 0)
    distinct = arrived.records if arrived.distinct is None else arrived.distinct
    missing = max(0, found.acknowledged - distinct)
    # A producer without final counts may have sent more than it claimed.
    excess = 0 if found.open_producers or claimed is None else max(0, distinct - (found.sent - found.failed))
    duplicates = arrived.records - distinct + excess
    if start_ms <= limits.removed_before_ms.get(topic, -1):
        state, missing = State.REMOVED, 0
    elif claimed is None:
        state = State.UNCLAIMED
    elif found.open_producers and limits.now_ms < start_ms + size + limits.grace_ms:
        state, missing = State.OPEN, 0
    elif missing or duplicates:
        state = State.INCOMPLETE
    else:
        state = State.UNCONFIRMED if found.open_producers else State.COMPLETE
    return Verdict(
        topic,
        start_ms,
        size,
        state,
        found.sent,
        found.acknowledged,
        found.failed,
        arrived.records,
        missing,
        duplicates,
        arrived.late,
        found.producers,
        found.open_producers,
    )


def overall(verdicts: Iterable[Verdict]) -> State:
    """Return the worst state: incomplete, or else one that could not be decided, or else complete."""
    states = {verdict.state for verdict in verdicts}
    for state in (State.INCOMPLETE, State.UNCLAIMED, State.UNCONFIRMED):
        if state in states:
            return state
    return State.COMPLETE
