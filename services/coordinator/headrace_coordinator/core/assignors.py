"""The assignors: which member should own which partition of a group's topics. Pure and deterministic.

Called by `group_transition` when members, subscriptions or topics have changed. Every assignor gives each partition of
a subscribed topic exactly one subscribed member (I28). `uniform` is the default: balanced, and moving
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
    """A subscribed topic."""

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
    """Balance the number of partitions a member, keeping owners where balance allows it."""
    return _assign_balanced(subscribers, topics, current, prefer_rack=False)


def assign_rack_aware(
    subscribers: Sequence[Subscriber], topics: Sequence[AssignableTopic], current: Mapping[TopicPartition, bytes]
) -> Assignment:
    """As `assign_uniform`, and among balanced assignments one that reads from replicas in the members' racks."""
    return _assign_balanced(subscribers, topics, current, prefer_rack=True)


def assign_range(
    subscribers: Sequence[Subscriber], topics: Sequence[AssignableTopic], current: Mapping[TopicPartition, bytes]
) -> Assignment:
    """Assign a range of each topic's partitions to each subscriber; the larger ranges rotate from topic to topic."""
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
        topic.topic_id: {member.member_id: None for member in members if topic.topic_id in member.topics}
        for topic in topics
    }
    balance = _Balance([member.member_id for member in members], takers, _near(members, topics) if prefer_rack else {})
    free: list[TopicPartition] = []
    total = 0
    for topic in sorted(topics, key=lambda topic: (len(takers[topic.topic_id]), topic.name)):
        if not takers[topic.topic_id]:
            continue
        total += topic.partitions
        for number in range(topic.partitions):
            partition = (topic.topic_id, number)
            owner = current.get(partition)
            if owner in takers[topic.topic_id]:
                balance.give(partition, owner)
            else:
                free.append(partition)
    if len({member.topics for member in members}) == 1:
        free += balance.trim(total)
    for partition in free:
        balance.give(partition, balance.best_taker(partition))
    balance.level()
    while balance.bring_near() and balance.level():
        pass  # Each round lowers the sum of squares of the loads.
    return {partition: member_id for member_id, owned in balance.held.items() for partition in owned}


Members = Mapping[bytes, None]
"""Ids of members in their order, as a set."""


def _near(members: Sequence[Subscriber], topics: Sequence[AssignableTopic]) -> dict[TopicPartition, Members]:
    """The members in a rack of each partition's replicas, where there are any; the same object for the same racks."""
    near: dict[TopicPartition, Members] = {}
    for topic in topics:
        takers = [member for member in members if topic.topic_id in member.topics]
        by_racks: dict[frozenset[str], Members] = {}
        for number, racks in enumerate(topic.racks):
            if racks not in by_racks:
                by_racks[racks] = {member.member_id: None for member in takers if member.rack and member.rack in racks}
            if by_racks[racks]:
                near[(topic.topic_id, number)] = by_racks[racks]
    return near


class _Balance:
    """Owners of partitions while an assignment is computed."""

    def __init__(
        self, members: Sequence[bytes], takers: Mapping[bytes, Members], near: Mapping[TopicPartition, Members]
    ) -> None:
        """`takers`: who may have partitions of each topic; `near`: who is near to which partition; both in order."""
        self.held: dict[bytes, dict[TopicPartition, None]] = {member_id: {} for member_id in members}
        self._loads = dict.fromkeys(members, 0)
        self._takers = takers
        self._near = near

    def give(self, partition: TopicPartition, member_id: bytes) -> None:
        self.held[member_id][partition] = None
        self._loads[member_id] += 1

    def take(self, partition: TopicPartition, member_id: bytes) -> None:
        del self.held[member_id][partition]
        self._loads[member_id] -= 1

    def best_taker(self, partition: TopicPartition) -> bytes:
        """The emptiest of those near to it, or else of those that may have it; of equals the first."""
        return self._emptiest(self._near.get(partition) or self._takers[partition[0]])

    def _emptiest(self, members: Members) -> bytes:
        return min(members, key=self._loads.__getitem__)

    def _is_near(self, partition: TopicPartition, member_id: bytes) -> bool:
        """Whether a member could not be nearer to a partition."""
        near = self._near.get(partition)
        return near is None or member_id in near

    def trim(self, total: int) -> list[TopicPartition]:
        """Where all subscribe to the same: take what is beyond the shares; the fullest keep the larger shares."""
        share, larger = divmod(total, len(self.held))
        excess: list[TopicPartition] = []
        for position, member_id in enumerate(sorted(self.held, key=lambda member_id: -self._loads[member_id])):
            size = share + (position < larger)
            if self._loads[member_id] <= size:
                continue
            by_worth = sorted(self.held[member_id], key=lambda partition: not self._is_near(partition, member_id))
            for partition in reversed(by_worth[size:]):
                self.take(partition, member_id)
                excess.append(partition)
        return excess

    def level(self) -> bool:
        """Move partitions to members that have at least two fewer, the nearest first, until no member has.

        Says whether anything was moved. Each move lowers the sum of squares of the loads, so that it ends.
        """
        ever, moved = False, True
        while moved:
            moved = False
            for giver in sorted(self.held, key=lambda member_id: -self._loads[member_id]):
                if self._loads[giver] < min(self._loads.values()) + 2:
                    break
                moved |= self._relieve(giver)
            ever |= moved
        return ever

    def _relieve(self, giver: bytes) -> bool:
        """Move what levels out from one member, to the emptiest that may have it; whether anything was moved."""
        alike: dict[tuple[bytes, int], list[TopicPartition]] = {}
        for partition in self.held[giver]:
            alike.setdefault((partition[0], id(self._near.get(partition))), []).append(partition)
        moved = False
        while True:
            best: tuple[tuple[int, bool], TopicPartition, bytes] | None = None
            for kind in alike.values():
                if not kind:
                    continue
                taker = self.best_taker(kind[-1])
                if self._loads[taker] > self._loads[giver] - 2:
                    taker = self._emptiest(self._takers[kind[-1][0]])
                worth = self._loads[taker], not self._is_near(kind[-1], taker)
                if self._loads[taker] <= self._loads[giver] - 2 and (best is None or worth < best[0]):
                    best = worth, kind[-1], taker
            if best is None:
                return moved
            _, partition, taker = best
            alike[(partition[0], id(self._near.get(partition)))].pop()
            self.take(partition, giver)
            self.give(partition, taker)
            moved = True

    def bring_near(self) -> bool:
        """Move or exchange partitions where that brings more of them near and leaves the loads as even as they are.

        Says whether anything was moved. Each step brings one partition more near, so that it ends, and an assignment
        that is valid stays as it is.
        """
        ever, moved = False, bool(self._near)
        while moved:
            moved = False
            far = [(p, m) for m, owned in self.held.items() for p in owned if not self._is_near(p, m)]
            for partition, owner in sorted(far):
                if partition in self.held[owner]:
                    moved |= self._bring_one_near(partition, owner)
            ever |= moved
        return ever

    def _bring_one_near(self, partition: TopicPartition, owner: bytes) -> bool:
        near = self._near[partition]
        emptiest = self._emptiest(near)
        if self._loads[emptiest] < self._loads[owner]:
            self.take(partition, owner)
            self.give(partition, emptiest)
            return True
        for taker in near:
            for given in self.held[taker]:
                if owner in self._takers[given[0]] and (self._is_near(given, owner) or not self._is_near(given, taker)):
                    self.take(given, taker)
                    self.give(given, owner)
                    self.take(partition, owner)
                    self.give(partition, taker)
                    return True
        return False
