"""Placement of replicas of new partitions: by the topic's policy, spread over racks, hosts and brokers, and balanced.

Called when a topic is created or gets more partitions. Deterministic: the same brokers, loads and numbers give the same
placement on every coordinator, so that a dry run shows what the real one would do. The paper leaves placement open;
spreading over failure domains first is the rule of KIP-36.

1. Replica sets, partition by partition: each replica goes to a broker, of the data center that the policy names, whose
   rack, then whose host, has the fewest replicas of this partition; among those to the one with the fewest replicas of
   this topic, then with the fewest replicas in total, then to the rack with the fewest replicas of this topic.
2. Leaders: each partition is led by the member with the fewest leaders of this topic; then leadership moves along
   chains of partitions from a broker with too many to one with too few, until no two differ by more than one, if the
   sets allow it.

The topic counts before the total, because the partitions of one topic are busy at the same time: a new, empty broker
must not get all partitions of the next topic.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.placement.policy import RACK, UNAWARE, PlacementPolicy


@dataclass(frozen=True, slots=True)
class BrokerLoad:
    """Broker that accepts replicas, with its current load."""

    broker_id: int
    rack: str = ""
    """Failure domain; empty if none is configured."""
    host: str = ""
    """Failure domain below the rack; empty means that the broker counts as a host of its own."""
    replicas: int = 0
    """Number of its replicas of all topics."""
    leaders: int = 0
    """Number of partitions that it leads, of all topics."""
    topic_replicas: int = 0
    """Number of its replicas of the topic that gets partitions; `0` for a new topic."""
    topic_leaders: int = 0
    """Number of partitions that it leads of the topic that gets partitions; `0` for a new topic."""
    data_center: str = ""
    """Failure domain above the rack; empty if none is configured."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Assignment of the new partitions."""

    assignments: tuple[tuple[int, ...], ...]
    """Broker ids per partition, in order of preference; the first leads."""
    warnings: tuple[str, ...]
    """Sentences about replicas that could not be spread, for the operator."""


def place(
    brokers: Sequence[BrokerLoad], *, partitions: int, replication_factor: int, policy: PlacementPolicy = RACK
) -> Placement:
    """Place `partitions` >= 1 new partitions of one topic on `replication_factor` >= 1 distinct brokers each.

    The order of `brokers` does not matter; their ids are distinct, and there are as many as the policy needs, in each
    data center too (`lacking_brokers`).
    """
    ranked = sorted(brokers, key=lambda broker: broker.broker_id)
    assert len({broker.broker_id for broker in ranked}) == len(ranked), "broker ids are distinct"
    assert replication_factor >= 1, "the caller checks the number of replicas"
    assert not lacking_brokers(ranked, replication_factor, policy), "the caller checks that there are enough brokers"
    assert partitions >= 1, "the caller checks the number of partitions"
    replica_sets = _choose_replica_sets(ranked, partitions, replication_factor, policy)
    leaders = _choose_leaders(ranked, replica_sets)
    assignments = _order_followers(replica_sets, leaders)
    return Placement(assignments, spread_warnings(ranked, assignments, policy))


def lacking_brokers(brokers: Sequence[BrokerLoad], replication_factor: int, policy: PlacementPolicy) -> str:
    """Return a clause about the brokers that `place` lacks; empty if there are enough."""
    found = Counter(broker.data_center for broker in brokers)
    needs = [(f" of data center {name}", found[name], count) for name, count in policy.counts]
    return ", ".join(
        f"{present} brokers{of} live, are not draining and take replicas; {needed} are needed"
        for of, present, needed in needs or [("", len(brokers), replication_factor)]
        if present < needed
    )


def spread_warnings(
    brokers: Sequence[BrokerLoad], assignments: Sequence[Sequence[int]], policy: PlacementPolicy = RACK
) -> tuple[str, ...]:
    """Return sentences about failure domains that `assignments` share; empty if partitions have one replica."""
    if not assignments or max(len(replicas) for replicas in assignments) == 1:
        return ()
    if policy.counts:
        used = {broker_id for replicas in assignments for broker_id in replicas}
        brokers = [broker for broker in brokers if broker.broker_id in used]
    warnings: list[str] = []
    without_rack = [broker.broker_id for broker in brokers if not broker.rack]
    racks_are_named = len(without_rack) < len(brokers) and policy != UNAWARE
    if racks_are_named and without_rack:
        named = ", ".join(map(str, sorted(without_rack)))
        warnings.append(f"brokers {named} name no rack, others do: those without count as one rack")
    domains: list[tuple[str, dict[int, tuple[str, ...]]]] = []
    if racks_are_named:
        domains.append(("rack", {broker.broker_id: policy.rack_of(broker) for broker in brokers}))
    domains.append(("host", {broker.broker_id: policy.host_of(broker) for broker in brokers}))
    for domain, domain_of in domains:
        shared = sum(len({domain_of[broker_id] for broker_id in replicas}) < len(replicas) for replicas in assignments)
        if shared:
            warnings.append(f"{shared} of {len(assignments)} partitions have replicas that share a {domain}")
    return tuple(warnings)


def _choose_replica_sets(
    brokers: Sequence[BrokerLoad], partitions: int, replication_factor: int, policy: PlacementPolicy
) -> list[list[int]]:
    """Return the replicas of each partition, in the order in which they were chosen."""
    rack_of = {broker.broker_id: policy.rack_of(broker) for broker in brokers}
    host_of = {broker.broker_id: policy.host_of(broker) for broker in brokers}
    allowed: dict[str | None, list[int]] = {None: [broker.broker_id for broker in brokers]}
    for broker in brokers:
        allowed.setdefault(broker.data_center, []).append(broker.broker_id)
    total = {broker.broker_id: broker.replicas for broker in brokers}
    of_topic = {broker.broker_id: broker.topic_replicas for broker in brokers}
    rack_of_topic: Counter[tuple[str, str]] = Counter()
    for broker in brokers:
        rack_of_topic[rack_of[broker.broker_id]] += broker.topic_replicas
    sets: list[list[int]] = []
    for _ in range(partitions):
        chosen: list[int] = []
        racks: Counter[tuple[str, str]] = Counter()
        hosts: Counter[tuple[str, str, str]] = Counter()
        for data_center in policy.slots(replication_factor):
            best = min(
                (broker_id for broker_id in allowed[data_center] if broker_id not in chosen),
                key=lambda b: (
                    racks[rack_of[b]],
                    hosts[host_of[b]],
                    of_topic[b],
                    total[b],
                    rack_of_topic[rack_of[b]],
                    b,
                ),
            )
            chosen.append(best)
            racks[rack_of[best]] += 1
            hosts[host_of[best]] += 1
            of_topic[best] += 1
            total[best] += 1
            rack_of_topic[rack_of[best]] += 1
        sets.append(chosen)
    return sets


def _choose_leaders(brokers: Sequence[BrokerLoad], replica_sets: Sequence[Sequence[int]]) -> list[int]:
    """Return one member of each set, so that leaders of the topic are balanced as well as the sets allow."""
    of_topic = {broker.broker_id: broker.topic_leaders for broker in brokers}
    total = {broker.broker_id: broker.leaders for broker in brokers}
    leaders: list[int] = []
    for members in replica_sets:
        leader = min(members, key=lambda b: (of_topic[b], total[b], b))
        of_topic[leader] += 1
        total[leader] += 1
        leaders.append(leader)
    while chain := _find_chain(of_topic, replica_sets, leaders):
        for partition, broker_id in chain:
            of_topic[leaders[partition]] -= 1
            of_topic[broker_id] += 1
            leaders[partition] = broker_id
    return leaders


def _find_chain(
    leader_counts: dict[int, int], replica_sets: Sequence[Sequence[int]], leaders: Sequence[int]
) -> list[tuple[int, int]]:
    """Return moves (partition, new leader) that shift one leader from a broker to one with at least two fewer.

    Breadth first from the busiest broker down; each step moves a partition to another of its members. Empty if there
    is no such chain.
    """
    if max(leader_counts.values()) - min(leader_counts.values()) < 2 or len(replica_sets[0]) == 1:
        return []
    led_by: dict[int, list[int]] = {broker_id: [] for broker_id in leader_counts}
    for partition, leader in enumerate(leaders):
        led_by[leader].append(partition)
    for start in sorted(leader_counts, key=lambda b: (-leader_counts[b], b)):
        came_by: dict[int, tuple[int, int]] = {}
        waiting = deque([start])
        while waiting:
            at = waiting.popleft()
            if leader_counts[at] <= leader_counts[start] - 2:
                return _trace(came_by, start, at)
            for partition in led_by[at]:
                for member in replica_sets[partition]:
                    if member != start and member not in came_by:
                        came_by[member] = (partition, at)
                        waiting.append(member)
    return []


def _trace(came_by: dict[int, tuple[int, int]], start: int, end: int) -> list[tuple[int, int]]:
    moves: list[tuple[int, int]] = []
    at = end
    while at != start:
        partition, previous = came_by[at]
        moves.append((partition, at))
        at = previous
    return moves


def _order_followers(replica_sets: Sequence[Sequence[int]], leaders: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Put the leader first, and order the others so that the partitions of one leader have different second replicas.

    The second replica leads after a failure, so that the load of a failed broker spreads over the others.
    """
    at_position: Counter[tuple[int, int, int]] = Counter()
    ordered: list[tuple[int, ...]] = []
    for members, leader in zip(replica_sets, leaders, strict=True):
        replicas = [leader]
        rest = sorted(member for member in members if member != leader)
        while rest:
            position = len(replicas)
            following = min(rest, key=lambda b: (at_position[leader, position, b], b))
            at_position[leader, position, following] += 1
            rest.remove(following)
            replicas.append(following)
        ordered.append(tuple(replicas))
    return tuple(ordered)
