"""What the controller has to write for the cluster as it is: one pure function, level-triggered.

It is asked again after every change. Nothing is remembered between two questions but which remains of half-created
topics were seen, and since when.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headrace.wire.ids import TopicId
from headrace_server.partition_state import PartitionState, Replica, change

from headrace_coordinator.core.election import Session, elect


@dataclass(frozen=True, slots=True)
class PartitionChange:
    """A partition's key is to be written, computed from the version at `mod_revision`."""

    topic_id: TopicId
    partition: int
    mod_revision: int
    before: PartitionState
    after: PartitionState

    @property
    def is_election(self) -> bool:
        """Whether somebody new leads."""
        return self.after.leader is not None and self.after.leader != self.before.leader

    def sessions(self) -> tuple[Replica, ...]:
        """Give the members whose registration the write must compare: all that the key did not name before (I12)."""
        known = set(self.before.in_sync)
        named = [entry for entry in self.after.in_sync if entry not in known]
        if self.after.leader is not None and self.after.leader != self.before.leader:
            named.append(self.after.leader)
        return tuple(sorted(set(named)))


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


def change_partition(
    state: PartitionState, live: Mapping[int, Session], min_insync_replicas: int
) -> PartitionState | None:
    """Say what a visible partition's key is to become: an election, else the topic's setting carried over (H30)."""
    elected = elect(state, live)
    if elected is not None or state.min_insync_replicas == min_insync_replicas:
        return elected
    return change(state, leader=state.leader, in_sync=state.in_sync, min_insync_replicas=min_insync_replicas)


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
