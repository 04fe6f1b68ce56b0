"""Orphans: keys of partially created topics that a dead coordinator left. Detection and grace time.

Pure; the controller calls it a few times per grace time. `topic_writes` describes how topics are written.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from headrace.wire.ids import TopicId


@dataclass(frozen=True, slots=True)
class Orphan:
    """Remains of a topic: `topic_ids/{topic_id}` without a name, or partitions beyond the topic's number."""

    topic_id: TopicId
    tid_revision: int
    """mod_revision of `topic_ids/{topic_id}`; `0` means that the key is absent because the topic was deleted."""
    visible: bool
    """The topic exists under its name, so that only `partitions` must be removed."""
    partitions: tuple[int, ...]
    """Numbers of the partitions to remove, ascending."""


@dataclass(frozen=True, slots=True)
class TopicIdEntry:
    """Value of `topic_ids/{topic_id}`."""

    mod_revision: int
    partitions: int
    """Number of partitions ever visible; `0` means that the topic is still being created."""


def find_orphans(
    visible: Mapping[TopicId, int],
    entries: Mapping[TopicId, TopicIdEntry],
    partitions: Iterable[tuple[TopicId, int]],
    deleted: Collection[TopicId],
) -> list[Orphan]:
    """Return all certain orphans, ascending by topic id.

    A topic without its name whose partitions were visible, and partitions of a topic that neither exists nor was
    deleted, are not orphans: keys that should exist are missing, which must not cause a deletion.
    `visible` is the number of partitions by topic, `entries` all `topic_ids/` keys, `partitions` all partition keys,
    `deleted` the deleted topics.
    """
    beyond: dict[TopicId, list[int]] = {}
    for topic_id, number in partitions:
        entry = entries.get(topic_id)
        if number >= max(visible.get(topic_id, 0), 0 if entry is None else entry.partitions):
            beyond.setdefault(topic_id, []).append(number)
    found = []
    for topic_id in sorted({*beyond, *entries}):
        entry, numbers = entries.get(topic_id), tuple(sorted(beyond.get(topic_id, ())))
        if topic_id in visible:
            if entry is not None and numbers:
                found.append(Orphan(topic_id, entry.mod_revision, True, numbers))
        elif entry is None:
            if topic_id in deleted:
                found.append(Orphan(topic_id, 0, False, numbers))
        elif entry.partitions == 0:
            found.append(Orphan(topic_id, entry.mod_revision, False, numbers))
    return found


def nameless_topics(visible: Collection[TopicId], entries: Mapping[TopicId, TopicIdEntry]) -> list[TopicId]:
    """Return topics whose partitions were visible and whose name is missing, ascending."""
    return sorted(topic_id for topic_id, entry in entries.items() if entry.partitions and topic_id not in visible)


def ripe_orphans(
    found: Iterable[Orphan], first_seen_ms: dict[tuple[TopicId, int], int], now_ms: int, grace_ms: int
) -> list[Orphan]:
    """Return the orphans whose keys have not changed for `grace_ms`; update `first_seen_ms`.

    A creation that is still in progress rewrites `topic_ids/{topic_id}` or ends within its deadline. Remains of a
    deleted topic are returned at once.
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
