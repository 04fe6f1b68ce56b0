"""Assignors: the target assignment of a group's partitions to members. Pure and deterministic.

Called by `group_transition` when members, subscriptions or topics have changed. Every assignor assigns each partition
of a subscribed topic to exactly one subscribed member (I28). `uniform` is the default: balanced, with as few moves as
that allows (KIP-54, KIP-848). `range` is algorithm 1 of the paper (section 3.2); the remainder, which the printed
algorithm leaves unowned, is distributed one partition per consumer. `rack-aware` is `uniform` with a preference for
members in a rack of a replica (KIP-881).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

TopicPartition = tuple[bytes, int]
"""Topic id and partition number."""


@dataclass(frozen=True, slots=True)
class Subscriber:
    """Member of a group, as input of an assignor."""

    member_id: bytes
    order: str
    """Sort key: the instance id if there is one, so that a static member keeps its position, else the member id."""
    topics: frozenset[bytes]
    """Ids of the subscribed topics."""
    rack: str = ""


@dataclass(frozen=True, slots=True)
class AssignableTopic:
    """Topic with at least one subscriber."""

    topic_id: bytes
    name: str
    partitions: int
    racks: tuple[frozenset[str], ...] = ()
    """Racks of each partition's replicas; empty if unknown."""


Assignment = dict[TopicPartition, bytes]
Assignor = Callable[[Sequence[Subscriber], Sequence[AssignableTopic], Mapping[TopicPartition, bytes]], Assignment]


def assign_uniform(
    subscribers: Sequence[Subscriber], topics: Sequence[AssignableTopic], current: Mapping[TopicPartition, bytes]
) -> Assignment:
    """Balance the number of partitions per member, and keep current owners where balance allows it."""
    return _assign_balanced(subscribers, topics, current, prefer_rack=False)


def assign_rack_aware(
    subscribers: Sequence[Subscriber], topics: Sequence[AssignableTopic], current: Mapping[TopicPartition, bytes]
) -> Assignment:
    """Assign as `assign_uniform`, and prefer balanced assignments to members in the racks of the replicas."""
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
    """Keep owned partitions, assign free ones to the least loaded members, then move partitions until balanced."""
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
        pass  # Terminates: each round lowers the sum of squares of the loads.
    return {partition: member_id for member_id, owned in balance.held.items() for partition in owned}


Members = Mapping[bytes, None]
"""Ordered set of member ids."""


def _near(members: Sequence[Subscriber], topics: Sequence[AssignableTopic]) -> dict[TopicPartition, Members]:
    """Return the members in a rack of each partition's replicas, if any; equal racks share one object."""
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
    """Mutable owners and loads while an assignment is computed."""

    def __init__(
        self, members: Sequence[bytes], takers: Mapping[bytes, Members], near: Mapping[TopicPartition, Members]
    ) -> None:
        """`takers` are the subscribers of each topic, `near` the members near each partition; both are ordered."""
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
        """Return the least loaded near member, or else the least loaded subscriber; ties go to the first."""
        return self._emptiest(self._near.get(partition) or self._takers[partition[0]])

    def _emptiest(self, members: Members) -> bytes:
        return min(members, key=self._loads.__getitem__)

    def _is_near(self, partition: TopicPartition, member_id: bytes) -> bool:
        """Return whether the member is near the partition, or no member is."""
        near = self._near.get(partition)
        return near is None or member_id in near

    def trim(self, total: int) -> list[TopicPartition]:
        """Remove partitions above each share if all subscriptions are equal; the most loaded keep the larger shares."""
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
        """Move partitions to members that have at least two fewer, near members first, until there are none.

        Return whether anything was moved. It terminates because each move lowers the sum of squares of the loads.
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
        """Move partitions from one member to the least loaded subscribers; return whether anything was moved."""
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
        """Move or exchange partitions if more of them are then near their owners and the loads stay as even.

        Return whether anything was moved. It terminates because each step increases the number of near partitions.
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
