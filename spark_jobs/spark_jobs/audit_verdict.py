"""What producers claim against what arrived, by topic and window: the decision of the audit. Pure.

`headrace.client.interceptors.audit` says what a claim is. Of a window's claims, at least `acknowledged` and at most
`sent - failed` records must have arrived; the difference was never answered for. Counts alone cannot tell a missing
record from a duplicated one where both happened in one window: `distinct` can, where something identifies a record.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Claimed:
    """What all producers together claim about one topic and window."""

    topic: str
    start_ms: int
    window_ms: int
    sent: int
    acknowledged: int
    failed: int
    producers: int
    open_producers: tuple[str, ...] = ()
    """`application@host` of those whose counts are not final: they write still, were killed, or a claim is lost."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """What was found of one topic and window."""

    records: int = 0
    distinct: int | None = None
    """Different ones among them; None: nothing tells them apart."""
    late: int = 0
    """Records behind which the log had moved on by more than is allowed when they arrived."""


class State(enum.StrEnum):
    """What can be said of a window."""

    COMPLETE = "complete"
    INCOMPLETE = "incomplete"
    """Something is missing or doubled."""
    UNCONFIRMED = "unconfirmed"
    """A producer's counts are not final, and its window has been over for longer than it takes to say so."""
    UNCLAIMED = "unclaimed"
    """Records arrived that no producer speaks of."""
    OPEN = "open"
    """Not over yet."""
    REMOVED = "removed"
    """Retention may have removed some of its records: it cannot be counted any more."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One topic and window."""

    topic: str
    start_ms: int
    window_ms: int
    state: State
    sent: int
    acknowledged: int
    failed: int
    arrived: int
    missing: int
    doubled: int
    late: int
    producers: int
    open_producers: tuple[str, ...]


class WindowSizeError(Exception):
    """Producers of one topic count in windows that do not fit into each other."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What is judged, and what is too early or too late for it."""

    now_ms: int
    grace_ms: int = 60_000
    """How long after its end a window's last claims may take."""
    removed_before_ms: Mapping[str, int] = field(default_factory=dict)
    """Topic -> retention may have removed records with timestamps up to here."""


def window_sizes(claimed: Iterable[Claimed]) -> dict[str, int]:
    """Return the windows in which each topic is judged, in ms: the largest in which its producers count.

    Raises:
        WindowSizeError: another one does not divide it.
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
    """Compare claims with what arrived.

    Args:
        claimed: windows of any size that `sizes` has; several may be parts of one.
        arrived: by topic and start of window, in windows of `sizes`.
        sizes: the windows of each topic, in ms.
        limits: what is too early or too late to be judged.

    Returns:
        One verdict a topic and window, ascending. What arrived before a topic's first claim is left out: no
        producer counted then.
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
    # Who has not said the last word may have sent more than was claimed.
    excess = 0 if found.open_producers or claimed is None else max(0, distinct - (found.sent - found.failed))
    doubled = arrived.records - distinct + excess
    if start_ms <= limits.removed_before_ms.get(topic, -1):
        state, missing = State.REMOVED, 0
    elif claimed is None:
        state = State.UNCLAIMED
    elif found.open_producers and limits.now_ms < start_ms + size + limits.grace_ms:
        state, missing = State.OPEN, 0
    elif missing or doubled:
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
        doubled,
        arrived.late,
        found.producers,
        found.open_producers,
    )


def overall(verdicts: Iterable[Verdict]) -> State:
    """Return the worst that was found: incomplete, or else what could not be decided, or else complete."""
    states = {verdict.state for verdict in verdicts}
    for state in (State.INCOMPLETE, State.UNCLAIMED, State.UNCONFIRMED):
        if state in states:
            return state
    return State.COMPLETE
