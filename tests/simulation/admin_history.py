"""Whether what administrators were answered agrees with what etcd has stored of a topic and of its partitions.

Each request that changes settings, creates a topic or moves replicas has a mark of its own, which is stored with the
change, so that each write is of one request. A request that was acknowledged has been applied between its begin and its
end, one that was refused never, one in doubt at any time or never. A write of settings differs from the version before
it by the settings of one request. This module imports nothing of headrace.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

OK = "ok"
REFUSED = "refused"
"""It had certainly no effect."""
UNKNOWN = "unknown"
CREATE, DELETE, CONFIGURE, GROW, MOVE = "create", "delete", "configure", "grow", "move"
EXISTS, MISSING = "TOPIC_ALREADY_EXISTS", "UNKNOWN_TOPIC"
"""Errors that say what there was."""


class Change(NamedTuple):
    """One request; begin and end are places in the order of all events."""

    client: str
    kind: str
    begin: int
    end: int
    outcome: str
    error: str = ""
    """Code of the error."""
    topic: str = ""
    """Its name."""
    mark: str = ""
    """Value of the setting, or rate of the move, that no other request has."""
    settings: Mapping[str, str | None] = {}
    """What is set; `None`: to the default, which is not stored."""
    free: tuple[str, ...] = ()
    """What is set, too, to a value that is computed from the one before."""
    partitions: int = 0
    topic_id: bytes = b""
    """That was answered."""
    partition: int = 0
    replicas: frozenset[int] = frozenset()
    """Where the partition is moved to."""

    def may_apply(self, order: int) -> bool:
        """Return whether a write at that place may be of this request."""
        return self.begin < order and (self.outcome == UNKNOWN or (self.outcome == OK and order < self.end))

    def __str__(self) -> str:
        ended = f"{self.begin} to {self.end}: {self.outcome} {self.error}"
        return f"{self.client} {self.kind} {self.topic} {self.mark} ({ended})"


class TopicVersion(NamedTuple):
    """What is stored of the topic from one place in the order on."""

    order: int
    topic_id: bytes = b""
    """Empty: there is no topic."""
    partitions: int = 0
    settings: Mapping[str, str] = {}


class Replicas(NamedTuple):
    """Target of a partition from one place in the order on; the rate is the mark of the move, if it has one."""

    order: int
    partition: int
    """In any life of the topic: a move names it, and may meet the next one."""
    target: frozenset[int]
    rate: str


def check_topic(
    changes: Sequence[Change], versions: Sequence[TopicVersion], mark_name: str, *, has_stale_reads: bool = False
) -> list[str]:
    """Return what contradicts the topic's versions; the first one was there before, and `mark_name` is a setting."""
    problems = []
    for before, after in pairwise(versions):
        found = [each for each in changes if _explains(each, before, after, mark_name)]
        if not any(each.may_apply(after.order) for each in found):
            asked = ", ".join(map(str, found)) or "no request"
            problems.append(f"{after} was stored after {before}, and asked for by {asked}")
    for each in changes:
        if each.outcome == OK and not _is_applied(each, versions, mark_name):
            problems.append(f"{each} was acknowledged and not applied")
        if not (has_stale_reads or each.outcome == OK or _is_refused_rightly(each, versions, mark_name)):
            problems.append(f"{each} was refused without a reason")
    return problems


def check_moves(changes: Iterable[Change], stored: Sequence[Replicas]) -> list[str]:
    """Return what contradicts the places of partitions; the first of each partition was there before."""
    problems = []
    moves = [each for each in changes if each.kind == MOVE]
    begun: set[tuple[int, str]] = set()
    for each in stored:
        if not each.rate or (each.partition, each.rate) in begun:
            continue  # The controller and the leader write the same move again.
        begun.add((each.partition, each.rate))
        if not any(move.mark == each.rate and move.may_apply(each.order) for move in moves):
            asked = ", ".join(str(move) for move in moves if move.mark == each.rate)
            problems.append(f"{each} was stored, and asked for by {asked or 'no request'}")
    for move in moves:
        if move.outcome == OK and move.replicas not in _targets_during(move, stored):
            problems.append(f"{move} was acknowledged and not applied")
    return problems


def _targets_during(move: Change, stored: Iterable[Replicas]) -> list[frozenset[int]]:
    """Return where the partition of a move was to be during its call; what was so before is not written again."""
    before: list[frozenset[int]] = []
    during: list[frozenset[int]] = []
    for each in stored:
        if each.partition == move.partition and each.order < move.end:
            (during if each.order > move.begin else before).append(each.target)
    return [*before[-1:], *during]


def _explains(change: Change, before: TopicVersion, after: TopicVersion, mark_name: str) -> bool:
    """Return whether a request asked for this write, whatever became of the request."""
    has_mark = after.settings.get(mark_name) == change.mark
    if not before.topic_id or not after.topic_id:
        kind = CREATE if after.topic_id else DELETE
        return change.kind == kind and (kind == DELETE or (has_mark and _has(after, change.settings)))
    if change.kind == GROW:
        same = before.topic_id == after.topic_id and dict(before.settings) == dict(after.settings)
        return same and before.partitions < after.partitions == change.partitions
    if change.kind != CONFIGURE or not has_mark or (before.topic_id, before.partitions) != after[1:3]:
        return False
    others = {*before.settings, *after.settings} - {*change.settings, *change.free}
    is_kept = all(before.settings.get(name) == after.settings.get(name) for name in others)
    return is_kept and _has(after, change.settings)


def _has(version: TopicVersion, settings: Mapping[str, str | None]) -> bool:
    return all(version.settings.get(name) == value for name, value in settings.items())


def _is_applied(change: Change, versions: Sequence[TopicVersion], mark_name: str) -> bool:
    """Return whether a request has had its effect before its end."""
    for before, after in pairwise(versions):
        if change.begin < after.order < change.end:
            if change.kind == CREATE and after.topic_id == change.topic_id != before.topic_id:
                return True
            if change.kind == DELETE and not after.topic_id:
                return True
            if change.kind == CONFIGURE and after.settings.get(mark_name) == change.mark:
                return True
            if change.kind == GROW and after.partitions >= change.partitions:
                return True
    return change.kind not in (CREATE, DELETE, CONFIGURE, GROW)


def _is_refused_rightly(change: Change, versions: Sequence[TopicVersion], mark_name: str) -> bool:
    """Return whether what an error says about the topic was so at a moment between the request's begin and its end.

    A topic that exists by the request's own success is no reason, and one that is missing by it is.
    """
    said = {(CREATE, EXISTS): True, (DELETE, MISSING): False, (CONFIGURE, MISSING): False, (GROW, MISSING): False}
    is_there = said.get((change.kind, change.error))
    if is_there is None:
        return True
    own = {each.topic_id for each in versions if change.kind == CREATE and each.settings.get(mark_name) == change.mark}
    later = [each.order for each in versions[1:]] + [change.end]
    return any(
        bool(each.topic_id) == is_there
        and each.topic_id not in own
        and each.order < change.end
        and change.begin < until
        for each, until in zip(versions, later, strict=True)
    )
