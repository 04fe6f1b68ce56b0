"""Plans for an even load: the limit is reached by few moves, which keep replicas where their policies want them."""

from collections import Counter
from typing import Any

import pytest
from headrace.placement.load import (
    REQUEST_BYTES,
    LoadBalancePlan,
    PartitionLoad,
    ReplicaLoad,
    broker_loads,
    load_ratio,
    plan_load,
)
from headrace.placement.moves import PlanBroker, PlanPartition, applied
from headrace.placement.policy import RACK, UNAWARE, PlacementPolicy, parse_placement
from headrace.wire.ids import TopicPartition
from hypothesis import given
from hypothesis import strategies as st

Loads = dict[TopicPartition, PartitionLoad]


@st.composite
def clusters(draw: Any) -> tuple[list[PlanPartition], Loads, list[PlanBroker]]:
    """Up to 30 partitions with any loads and policies, at random on 2 to 7 brokers in two data centers."""
    count = draw(st.integers(2, 7))
    closed = draw(st.integers(0, count))
    brokers = [
        PlanBroker(
            n,
            draw(st.sampled_from(("", "r1", "r2"))),
            draw(st.sampled_from(("", "h1", "h2"))),
            receives=n != closed,
            data_center="ab"[n % 2],
        )
        for n in range(1, count + 1)
    ]
    partitions, loads = [], {}
    for number in range(draw(st.integers(1, 30))):
        where = TopicPartition("xyz"[number % 3], number)
        replicas = draw(st.permutations(range(1, count + 1)))[: draw(st.integers(1, min(3, count)))]
        centers = Counter("ab"[each % 2] for each in replicas)
        counted = parse_placement(",".join(f"{name}:{size}" for name, size in centers.items()))
        policy = draw(st.sampled_from((RACK, UNAWARE, counted)))
        partitions.append(PlanPartition(where, tuple(replicas), draw(st.integers(0, 9)), policy))
        leader = draw(st.floats(0, 1_000))
        loads[where] = PartitionLoad(leader, draw(st.floats(0, leader)))
    return partitions, loads, brokers


@given(clusters(), st.floats(1.01, 2))
def test_a_plan_lowers_the_highest_load_and_keeps_every_policy(
    cluster: tuple[list[PlanPartition], Loads, list[PlanBroker]], max_ratio: float
) -> None:
    """The load stays as a whole; replicas keep their number, data centers, racks and hosts; closed brokers get none."""
    partitions, loads, brokers = cluster
    plan = plan_load(partitions, loads, brokers, max_ratio)
    assert plan == plan_load(list(reversed(partitions)), loads, list(reversed(brokers)), max_ratio)
    open_brokers = [each for each in brokers if each.receives]
    assert plan.before == pytest.approx(broker_loads(partitions, loads, open_brokers))
    after = applied(partitions, plan.moves)
    assert plan.after == pytest.approx(broker_loads(after, loads, open_brokers), abs=1e-6)
    assert sum(plan.after.values()) == pytest.approx(sum(plan.before.values()), abs=1e-6)
    assert max(plan.after.values()) <= max(plan.before.values()) + 1e-6
    if load_ratio(plan.before) <= max_ratio:
        assert plan.moves == ()
    of = {each.broker_id: each for each in brokers}
    for old, new in zip(partitions, after, strict=True):
        assert len(set(new.replicas)) == len(new.replicas) == len(old.replicas)
        assert all(of[each].receives for each in set(new.replicas) - set(old.replicas))
        for domain_of in (old.policy.rack_of, old.policy.host_of):
            domains = [{domain_of(of[each]) for each in replicas} for replicas in (old.replicas, new.replicas)]
            assert len(domains[1]) >= len(domains[0]) or domain_of == old.policy.host_of
        if old.policy.counts:
            assert Counter("ab"[each % 2] for each in new.replicas) == dict(old.policy.counts)


@given(clusters())
def test_no_move_of_a_plan_is_needless(cluster: tuple[list[PlanPartition], Loads, list[PlanBroker]]) -> None:
    """Without any one of them a broker is above the limit, or above what the plan reaches."""
    partitions, loads, brokers = cluster
    plan = plan_load(partitions, loads, brokers)
    open_brokers = [each for each in brokers if each.receives]
    if not open_brokers:
        return
    limit = 1.2 * sum(plan.before.values()) / len(open_brokers)
    highest = max(limit, *plan.after.values())
    for move in plan.moves:
        others = applied(partitions, [each for each in plan.moves if each != move])
        assert max(broker_loads(others, loads, open_brokers).values()) > highest - 1e-6


def zipf_cluster(replicas: int, policy: PlacementPolicy = RACK) -> tuple[LoadBalancePlan, list[PlanPartition], Loads]:
    """Return the plan for 240 partitions, loads by Zipf's law (exponent 1), half of them, the busiest, on two brokers.

    Six brokers on three racks; the cluster had two when the first topic was created. A record is sent once and read
    once; each follower copies it.
    """
    weights = [1 / rank for rank in range(1, 241)]
    partitions, loads = [], {}
    for number, weight in enumerate(weights):
        first = number % 2 if number < 120 else number % 6
        others = [(first + step) % (2 if number < 120 and replicas == 2 else 6) for step in (1, 2)][: replicas - 1]
        where = TopicPartition("busy" if number < 120 else "calm", number)
        bytes_in = weight * 1e6
        partitions.append(PlanPartition(where, (first, *others), int(weight * 1e9), policy))
        loads[where] = PartitionLoad(
            ReplicaLoad(bytes_in, bytes_in * replicas, weight * 20).cost, ReplicaLoad(bytes_in, 0, weight * 10).cost
        )
    brokers = [PlanBroker(n, f"r{n % 3}", data_center="ab"[n % 2]) for n in range(6)]
    return plan_load(partitions, loads, brokers), partitions, loads


@pytest.mark.parametrize(("replicas", "most_moves"), [(1, 14), (2, 20)])
def test_one_plan_evens_a_skewed_cluster(replicas: int, most_moves: int) -> None:
    """From at least 2.5 times the mean load to at most 1.2 times, by moves of less than a tenth of the partitions."""
    plan, partitions, _ = zipf_cluster(replicas)
    before, after, copies = (
        load_ratio(plan.before),
        load_ratio(plan.after),
        sum(len(each.adding) for each in plan.moves),
    )
    print(f"{replicas} replicas: {before:.2f} -> {after:.2f} by {len(plan.moves)} moves, {copies} copies")
    assert before >= 2.5
    assert after <= 1.2
    assert len(plan.moves) <= most_moves < len(partitions) / 10


def test_another_leader_is_enough_where_only_leaders_are_uneven() -> None:
    """Nothing is copied; the plan of the result is empty."""
    partitions = [PlanPartition(TopicPartition("t", n), (1, 2, 3), 1) for n in range(30)]
    loads = {each.where: PartitionLoad(4.0, 1.0) for each in partitions}
    brokers = [PlanBroker(n) for n in (1, 2, 3)]
    plan = plan_load(partitions, loads, brokers)
    assert (load_ratio(plan.before), load_ratio(plan.after) <= 1.2) == (2.0, True)
    assert [move.adding for move in plan.moves] == [()] * 16
    assert plan_load(applied(partitions, plan.moves), loads, brokers).moves == ()


def test_a_move_that_later_ones_made_needless_is_taken_back() -> None:
    """Greedy steps move three partitions, of which one alone comes as near to the limit."""
    replicas, loads = [(4, 0, 1), (0,), (2, 0, 1)], [(6.0, 5.33), (10.0, 9.81), (11.87, 7.44)]
    partitions = [PlanPartition(TopicPartition("t", n), each, 1) for n, each in enumerate(replicas)]
    measured = {TopicPartition("t", n): PartitionLoad(*each) for n, each in enumerate(loads)}
    plan = plan_load(partitions, measured, [PlanBroker(n) for n in range(6)])
    assert [move.where.partition for move in plan.moves] == [1]


def test_a_partition_that_is_too_large_for_the_limit_stays_alone() -> None:
    """The plan comes as near as it can, by one move: the others are no longer on its broker."""
    partitions = [PlanPartition(TopicPartition("t", n), (1,), 1) for n in range(5)]
    loads = {each.where: PartitionLoad(100.0 if each.where.partition == 0 else 1.0) for each in partitions}
    plan = plan_load(partitions, loads, [PlanBroker(1), PlanBroker(2)])
    assert plan.after == {1: 4.0, 2: 100.0}
    assert len(plan.moves) == 1


def test_loads_that_are_missing_or_zero_move_nothing() -> None:
    """Also a cluster without an open broker."""
    partitions = [PlanPartition(TopicPartition("t", n), (1, 2), 1) for n in range(5)]
    assert plan_load(partitions, {}, [PlanBroker(1), PlanBroker(2)]).moves == ()
    assert plan_load(partitions, {}, [PlanBroker(1, receives=False)]) == LoadBalancePlan((), {}, {})
    assert load_ratio({1: 0.0, 2: 0.0}) == 1.0


def test_a_request_costs_as_much_as_its_bytes_in_the_same_time() -> None:
    """Both rates are one number."""
    assert ReplicaLoad(10, 20, 2).cost == 30 + 2 * REQUEST_BYTES
