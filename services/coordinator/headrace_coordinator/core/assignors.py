"""Who is to own which partition of a group's topics: the assignors, pure and deterministic.

Called by `group_transition` when members, subscriptions or topics have changed. Every assignor gives each partition of
a topic that somebody subscribes to exactly one subscribed member (I28). `uniform` is the default: balanced, and moving
as little as that allows (KIP-54, KIP-848). `range` is algorithm 1 of the paper (section 3.2), whose remainder, which as
printed stays unowned, goes to one consumer each. `rack-aware` is `uniform` that prefers members in a rack of a replica
(KIP-881).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

TopicPartition = tuple[bytes, int]
"""Topic id and number."""


@dataclass(frozen=True, slots=True)
class Subscriber:
    """A member as an assignor sees it."""

    member_id: bytes
    order: str
    """What members are ordered by: the instance id, or the member id, so that a static member keeps its place."""
    topics: frozenset[bytes]
    """Ids of the topics it subscribes to."""
    rack: str = ""


@dataclass(frozen=True, slots=True)
class AssignableTopic:
    """A topic that somebody subscribes to."""

    topic_id: bytes
    name: str
    partitions: int
    racks: tuple[frozenset[str], ...] = ()
    """The racks of each partition's replicas; empty: not known."""


Assignment = dict[TopicPartition, bytes]
Assignor = Callable[[Sequence[Subscriber], Sequence[AssignableTopic], Mapping[TopicPartition, bytes]], Assignment]


def assign_uniform(
    subscribers: Sequence[Subscriber], topics: Sequence[AssignableTopic], current: Mapping[TopicPartition, bytes]
) -> Assignment:
    """Balance the number of partitions a member, keeping who owns what where that does not stand in the way."""
    return _assign_balanced(subscribers, topics, current, prefer_rack=False)


def assign_rack_aware(
    subscribers: Sequence[Subscriber], topics: Sequence[AssignableTopic], current: Mapping[TopicPartition, bytes]
) -> Assignment:
    """As `assign_uniform`, and among balanced assignments one that reads from replicas in the members' racks."""
    return _assign_balanced(subscribers, topics, current, prefer_rack=True)


def assign_range(
    subscribers: Sequence[Subscriber], topics: Sequence[AssignableTopic], current: Mapping[TopicPartition, bytes]
) -> Assignment:
    """Give each subscriber a range of each topic's partitions, the larger ranges to others from topic to topic."""
    assignment: Assignment = {}
    first = 0
    for topic in sorted(topics, key=lambda topic: topic.name):
        takers = [member for member in _ordered(subscribers) if topic.topic_id in member.topics]
        if not takers:
            continue
        share, remainder = divmod(topic.partitions, len(takers))
        number = 0
        for index, member in enumerate(takers):
            size = share + ((index - first) % len(takers) < remainder)
            for _ in range(size):
                assignment[(topic.topic_id, number)] = member.member_id
                number += 1
        first += remainder
    return assignment


ASSIGNORS: Mapping[str, Assignor] = {
    "uniform": assign_uniform,
    "range": assign_range,
    "rack-aware": assign_rack_aware,
}
DEFAULT_ASSIGNOR = "uniform"


def _ordered(subscribers: Iterable[Subscriber]) -> list[Subscriber]:
    return sorted(subscribers, key=lambda member: (member.order, member.member_id))


def _assign_balanced(
    subscribers: Sequence[Subscriber],
    topics: Sequence[AssignableTopic],
    current: Mapping[TopicPartition, bytes],
    *,
    prefer_rack: bool,
) -> Assignment:
    """Keep what is owned, give what is free to who has least, then level out between the fullest and the emptiest."""
    members = _ordered(subscribers)
    takers = {
        topic.topic_id: [member.member_id for member in members if topic.topic_id in member.topics] for topic in topics
    }
    partitions = [
        (topic.topic_id, number)
        for topic in sorted(topics, key=lambda topic: (len(takers[topic.topic_id]), topic.name))
        for number in range(topic.partitions)
        if takers[topic.topic_id]
    ]
    near = _near(members, topics) if prefer_rack else {}
    held: dict[bytes, dict[TopicPartition, None]] = {member.member_id: {} for member in members}
    allowed = {topic_id: frozenset(ids) for topic_id, ids in takers.items()}
    free: list[TopicPartition] = []
    for partition in partitions:
        owner = current.get(partition)
        if owner is not None and owner in allowed[partition[0]] and _is_near_enough(partition, owner, near):
            held[owner][partition] = None
        else:
            free.append(partition)
    if len({member.topics for member in members}) == 1:
        free += _trim(held, len(partitions))
    rank = {member.member_id: index for index, member in enumerate(members)}

    def load(member_id: bytes) -> tuple[int, int]:
        return len(held[member_id]), rank[member_id]

    for partition in free:
        among = takers[partition[0]]
        closest = [member_id for member_id in among if member_id in near.get(partition, ())]
        held[min(closest or among, key=load)][partition] = None
    _level(held, takers, rank, near)
    return {partition: member_id for member_id, owned in held.items() for partition in owned}


def _trim(held: dict[bytes, dict[TopicPartition, None]], total: int) -> list[TopicPartition]:
    """Where all subscribe to the same: take what is beyond each member's share; the fullest keep the larger shares."""
    share, larger = divmod(total, len(held))
    excess: list[TopicPartition] = []
    for position, member_id in enumerate(sorted(held, key=lambda member_id: -len(held[member_id]))):
        size = share + (position < larger)
        while len(held[member_id]) > size:
            excess.append(held[member_id].popitem()[0])
    return excess


def _near(members: Sequence[Subscriber], topics: Sequence[AssignableTopic]) -> dict[TopicPartition, frozenset[bytes]]:
    """The members in a rack of each partition's replicas, where there are any."""
    by_rack: dict[str, list[Subscriber]] = {}
    for member in members:
        if member.rack:
            by_rack.setdefault(member.rack, []).append(member)
    near: dict[TopicPartition, frozenset[bytes]] = {}
    for topic in topics:
        for number, racks in enumerate(topic.racks):
            found = frozenset(
                member.member_id
                for rack in racks
                for member in by_rack.get(rack, ())
                if topic.topic_id in member.topics
            )
            if found:
                near[(topic.topic_id, number)] = found
    return near


def _is_near_enough(partition: TopicPartition, owner: bytes, near: Mapping[TopicPartition, frozenset[bytes]]) -> bool:
    return partition not in near or owner in near[partition]


def _level(
    held: dict[bytes, dict[TopicPartition, None]],
    takers: Mapping[bytes, Sequence[bytes]],
    rank: Mapping[bytes, int],
    near: Mapping[TopicPartition, frozenset[bytes]],
) -> None:
    """Move partitions to members that have at least two fewer, the nearest first, until nobody has.

    Each move lowers the sum of squares of the loads, so that it ends.
    """
    moved = True
    while moved:
        moved = False
        for giver in sorted(held, key=lambda member_id: (-len(held[member_id]), rank[member_id])):
            while (best := _best_move(giver, held, takers, rank, near)) is not None:
                partition, taker = best
                del held[giver][partition]
                held[taker][partition] = None
                moved = True


def _best_move(
    giver: bytes,
    held: Mapping[bytes, Mapping[TopicPartition, None]],
    takers: Mapping[bytes, Sequence[bytes]],
    rank: Mapping[bytes, int],
    near: Mapping[TopicPartition, frozenset[bytes]],
) -> tuple[TopicPartition, bytes] | None:
    """The emptiest member that may take something of `giver`, and what it takes; None: that would balance nothing."""
    size = len(held[giver])
    if size < 2:
        return None
    emptiest: dict[bytes, bytes] = {}
    best: tuple[tuple[int, int, int], TopicPartition, bytes] | None = None
    for position, partition in enumerate(reversed(list(held[giver]))):
        topic_id = partition[0]
        if partition not in near and topic_id in emptiest:
            continue  # Another partition of this topic stands for it already.
        among = takers[topic_id]
        closest = [member_id for member_id in among if member_id in near.get(partition, ())] or among
        taker = min(closest, key=lambda member_id: (len(held[member_id]), rank[member_id]))
        if len(held[taker]) > size - 2 and closest is not among:
            taker = min(among, key=lambda member_id: (len(held[member_id]), rank[member_id]))
        emptiest[topic_id] = taker
        if len(held[taker]) > size - 2:
            continue
        key = (len(held[taker]), partition in near and taker not in near[partition], position)
        if best is None or key < best[0]:
            best = key, partition, taker
    return None if best is None else (best[1], best[2])
