"""Remains of topics that a dead coordinator had half created: what they are, and when they may be cleared away.

Pure; asked by the controller a few times in each grace time. How topics are written stands in `topic_writes`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headrace.wire.ids import TopicId


@dataclass(frozen=True, slots=True)
class Orphan:
    """What a dead coordinator left of a topic: `tid/{topic_id}` without a name, or partitions beyond the number."""

    topic_id: TopicId
    tid_revision: int
    """mod_revision of `tid/{topic_id}`; 0: the key is absent."""
    visible: bool
    """The topic is there under its name: only `partitions` are to go."""
    partitions: tuple[int, ...]
    """Ascending."""


def find_orphans(
    visible: Mapping[TopicId, int],
    tid_revisions: Mapping[TopicId, int],
    partitions: Iterable[tuple[TopicId, int]],
) -> list[Orphan]:
    """Find what belongs to no visible topic, ascending by topic id.

    `visible`: number of partitions by topic; `tid_revisions`: mod_revision of each `tid/` key; `partitions`: all keys.
    """
    beyond: dict[TopicId, list[int]] = {}
    for topic_id, number in partitions:
        if number >= visible.get(topic_id, 0):
            beyond.setdefault(topic_id, []).append(number)
    unnamed = [topic_id for topic_id in tid_revisions if topic_id not in visible]
    return [
        Orphan(
            topic_id,
            tid_revisions.get(topic_id, 0),
            topic_id in visible,
            tuple(sorted(beyond.get(topic_id, ()))),
        )
        for topic_id in sorted({*beyond, *unnamed})
        if topic_id not in visible or topic_id in tid_revisions
    ]


def ripe_orphans(
    found: Iterable[Orphan], first_seen_ms: dict[tuple[TopicId, int], int], now_ms: int, grace_ms: int
) -> list[Orphan]:
    """Give those that have been there unchanged for `grace_ms`; keeps `first_seen_ms` up to date.

    An attempt still under way moves `tid/{topic_id}` or ends within its deadline; a key without its `tid` belongs to
    nobody and is ripe at once.
    """
    orphans = {(orphan.topic_id, orphan.tid_revision): orphan for orphan in found}
    for key in [key for key in first_seen_ms if key not in orphans]:
        del first_seen_ms[key]
    ripe = []
    for key, orphan in orphans.items():
        since_ms = first_seen_ms.setdefault(key, now_ms)
        if orphan.tid_revision == 0 or now_ms - since_ms >= grace_ms:
            ripe.append(orphan)
    return ripe
