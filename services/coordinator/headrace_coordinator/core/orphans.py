"""Remains of topics that a dead coordinator had half created: what they are, and when they may be cleared away.

Pure; asked by the controller a few times in each grace time. `topic_writes` describes how topics are written.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from headrace.wire.ids import TopicId


@dataclass(frozen=True, slots=True)
class Orphan:
    """What a dead coordinator left of a topic: `topic_ids/{topic_id}` without a name, or partitions beyond the
    number.
    """

    topic_id: TopicId
    tid_revision: int
    """mod_revision of `topic_ids/{topic_id}`; 0: the key is absent, and the topic was deleted."""
    visible: bool
    """The topic is there under its name: only `partitions` are to go."""
    partitions: tuple[int, ...]
    """Ascending."""


@dataclass(frozen=True, slots=True)
class TopicIdEntry:
    """What `topic_ids/{topic_id}` says."""

    mod_revision: int
    partitions: int
    """How many have ever been visible; 0: the topic is still being created."""


def find_orphans(
    visible: Mapping[TopicId, int],
    entries: Mapping[TopicId, TopicIdEntry],
    partitions: Iterable[tuple[TopicId, int]],
    deleted: Collection[TopicId],
) -> list[Orphan]:
    """Find what is known to be a remainder, ascending by topic id.

    A topic that lacks its name although its partitions were visible, and partitions of a topic that neither exists nor
    was deleted, are no remainders: something that should be there is missing, and nothing is made of that.
    `visible`: number of partitions by topic; `entries`: all `topic_ids/` keys; `partitions`: all keys; `deleted`:
    topics.
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
    """Find topics whose partitions were visible and whose name is missing, ascending."""
    return sorted(topic_id for topic_id, entry in entries.items() if entry.partitions and topic_id not in visible)


def ripe_orphans(
    found: Iterable[Orphan], first_seen_ms: dict[tuple[TopicId, int], int], now_ms: int, grace_ms: int
) -> list[Orphan]:
    """Return the keys that have not changed for `grace_ms`; update `first_seen_ms`.

    An attempt still under way moves `topic_ids/{topic_id}` or ends within its deadline. What is left of a topic that
    was deleted is ripe at once.
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
