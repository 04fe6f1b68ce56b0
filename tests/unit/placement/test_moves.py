"""The plan of `headrace partition reassign`: complete, replication factor kept, spread over racks, no copy in vain."""

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from headrace.placement.moves import (
    PlanBroker,
    PlanImpossibleError,
    PlannedMove,
    PlanPartition,
    applied,
    plan_moves,
    with_targets,
)
from headrace.placement.policy import RACK, UNAWARE, PlacementPolicy, parse_placement
from headrace.wire.ids import TopicPartition
from hypothesis import given
from hypothesis import strategies as st

RACKS = ("", "a", "b", "c")


@st.composite
def clusters(draw: Any) -> tuple[list[PlanPartition], list[PlanBroker]]:
    """Up to 24 partitions of up to 3 topics on 2 to 7 brokers, placed at random; every broker may hold replicas."""
    count = draw(st.integers(2, 7))
    racks = draw(st.lists(st.sampled_from(RACKS), min_size=count, max_size=count))
    hosts = draw(st.lists(st.sampled_from(("", "h1", "h2")), min_size=count, max_size=count))
    closed = draw(st.integers(0, count))
    brokers = [PlanBroker(n + 1, racks[n], hosts[n], receives=n + 1 != closed) for n in range(count)]
    partitions = []
    for number in range(draw(st.integers(1, 24))):
        factor = draw(st.integers(1, min(3, count)))
        replicas = draw(st.permutations(range(1, count + 1)))[:factor]
        where = TopicPartition("xyz"[number % 3], number)
        partitions.append(PlanPartition(where, tuple(replicas), draw(st.integers(0, 5))))
    return partitions, brokers


def check_sound(
    partitions: list[PlanPartition], brokers: list[PlanBroker], moves: list[PlannedMove]
) -> list[PlanPartition]:
    """What every plan keeps. Gives the partitions after it."""
    after = applied(partitions, moves)
    allowed = {each.broker_id for each in brokers}
    for old, new in zip(partitions, after, strict=True):
        assert set(new.replicas) <= allowed, "complete: no other broker holds a replica"
        assert len(set(new.replicas)) == len(new.replicas) == len(old.replicas), "the replication factor is kept"
    closed = {each.broker_id for each in brokers if not each.receives}
    assert not any(closed & set(move.adding) for move in moves), "who receives nothing gets nothing"
    assert all(move.adding and len(move.adding) == len(move.removing) for move in moves), "no move in vain"
    assert [move.where for move in moves] == sorted(move.where for move in moves)
    return after


def distinct_racks(replicas: tuple[int, ...], brokers: list[PlanBroker]) -> int:
    rack_of = {each.broker_id: each.rack for each in brokers}
    return len({rack_of[each] for each in replicas})


def replicas_by_broker(partitions: Sequence[PlanPartition]) -> Counter[int]:
    return Counter(broker_id for each in partitions for broker_id in each.replicas)


def spread(partitions: list[PlanPartition], brokers: list[PlanBroker]) -> int:
    held = replicas_by_broker(partitions)
    counts = [held[each.broker_id] for each in brokers]
    return max(counts) - min(counts)


@given(clusters(), st.data())
def test_removing_a_broker_moves_its_replicas_and_no_others(
    cluster: tuple[list[PlanPartition], list[PlanBroker]], data: Any
) -> None:
    """Minimal: as many copies as the broker had replicas. Each is on as many racks as the staying ones allow."""
    partitions, everyone = cluster
    gone = data.draw(st.sampled_from(everyone)).broker_id
    brokers = [each for each in everyone if each.broker_id != gone]
    able = {each.broker_id for each in brokers if each.receives}
    if any(gone in each.replicas and not able - set(each.replicas) for each in partitions):
        with pytest.raises(PlanImpossibleError):
            plan_moves(partitions, brokers, receivers=())
        return
    moves = plan_moves(partitions, brokers, receivers=())
    after = check_sound(partitions, brokers, moves)
    assert sum(len(move.adding) for move in moves) == replicas_by_broker(partitions)[gone]
    assert all(move.removing == (gone,) for move in moves)
    for old, new in zip(partitions, after, strict=True):
        if gone in old.replicas:
            stay = tuple(each for each in old.replicas if each != gone)
            kept = distinct_racks(stay, brokers)
            reachable = {each.rack for each in brokers if each.broker_id in able - set(stay)}
            taken = {each.rack for each in brokers if each.broker_id in stay}
            assert distinct_racks(new.replicas, brokers) == kept + bool(reachable - taken)


@given(clusters(), st.data())
def test_an_added_broker_receives_and_nobody_else_does(
    cluster: tuple[list[PlanPartition], list[PlanBroker]], data: Any
) -> None:
    """Replicas go to it alone, up to an even share, and no partition is on fewer racks than before."""
    partitions, everyone = cluster
    new = data.draw(st.sampled_from(("", "a", "d")))
    brokers = [*everyone, PlanBroker(99, new)]
    moves = plan_moves(partitions, brokers, receivers=(99,))
    after = check_sound(partitions, brokers, moves)
    assert all(move.adding == (99,) for move in moves)
    held = replicas_by_broker(after)
    assert all(held[99] <= held[move.removing[0]] for move in moves)
    for old, now in zip(partitions, after, strict=True):
        assert distinct_racks(now.replicas, brokers) >= distinct_racks(old.replicas, brokers)


@given(clusters())
def test_without_failure_domains_the_count_becomes_even(
    cluster: tuple[list[PlanPartition], list[PlanBroker]],
) -> None:
    """No two brokers differ by more than one, with the fewest copies: those above the even share, no more."""
    partitions = [PlanPartition(each.where, each.replicas[:1], each.size_bytes) for each in cluster[0]]
    brokers = [PlanBroker(each.broker_id) for each in cluster[1]]
    moves = plan_moves(partitions, brokers)
    after = check_sound(partitions, brokers, moves)
    assert spread(after, brokers) <= 1
    held = replicas_by_broker(partitions)
    share, rest = divmod(len(partitions), len(brokers))
    counts = sorted((held[each.broker_id] for each in brokers), reverse=True)
    surplus = sum(max(0, count - share - (index < rest)) for index, count in enumerate(counts))
    assert sum(len(move.adding) for move in moves) == surplus


@given(clusters(), st.sampled_from([None, (), (1,), (1, 2)]), st.integers(0, 2))
def test_a_plan_depends_on_nothing_else_and_is_done_when_it_is_done(
    cluster: tuple[list[PlanPartition], list[PlanBroker]], receivers: tuple[int, ...] | None, dropped: int
) -> None:
    """The order of what it is given does not matter, and a second plan after the first is empty."""
    partitions, everyone = cluster
    brokers = everyone[dropped:] if sum(each.receives for each in everyone[dropped:]) >= 3 else everyone
    moves = plan_moves(partitions, brokers, receivers)
    shuffled = list(partitions), list(brokers)
    for each in shuffled:
        random.Random(1).shuffle(each)
    assert plan_moves(*shuffled, receivers) == moves
    assert plan_moves(check_sound(partitions, brokers, moves), brokers, receivers) == []


def even(partitions: int, brokers: int, size: int = 10) -> list[PlanPartition]:
    return [
        PlanPartition(TopicPartition("t", n), tuple((n + k) % brokers + 1 for k in range(3)), size)
        for n in range(partitions)
    ]


def test_a_fourth_broker_gets_its_share_of_replicas_and_leaders() -> None:
    """Twelve partitions of three replicas on three brokers: nine copies, three preferred leaders."""
    brokers = [PlanBroker(each) for each in (1, 2, 3, 4)]
    moves = plan_moves(even(12, 3), brokers, receivers=(4,))
    after = applied(even(12, 3), moves)
    assert replicas_by_broker(after) == Counter({1: 9, 2: 9, 3: 9, 4: 9})
    first = Counter(each.replicas[0] for each in after)
    assert max(first.values()) - min(first.values()) <= 1
    assert sum(move.copy_bytes for move in moves) == 90


def test_the_smaller_of_two_like_partitions_moves() -> None:
    """Least data, where the rest is equal."""
    partitions = [PlanPartition(TopicPartition("t", n), (1,), size) for n, size in enumerate((30, 10, 20))]
    moves = plan_moves(partitions, [PlanBroker(1), PlanBroker(2)])
    assert moves == [PlannedMove(TopicPartition("t", 1), (1,), (2,), 10)]


def test_a_new_rack_first_gets_partitions_that_shared_one() -> None:
    """The move that makes a partition safer comes before the one that copies less."""
    brokers = [PlanBroker(1, "a"), PlanBroker(2, "a"), PlanBroker(3, "b"), PlanBroker(4, "c")]
    partitions = [
        PlanPartition(TopicPartition("t", 0), (1, 3), 1),
        PlanPartition(TopicPartition("t", 1), (1, 2), 9),
        PlanPartition(TopicPartition("t", 2), (3, 1), 1),
    ]
    (move,) = plan_moves(partitions, brokers, receivers=(4,))
    assert (move.where.partition, set(move.after)) == (1, {2, 4})


def test_topics_are_spread_too() -> None:
    """An empty broker gets some of each topic, not all of one."""
    partitions = [PlanPartition(TopicPartition(name, n), (1,)) for name in "ab" for n in range(4)]
    moves = plan_moves(partitions, [PlanBroker(1), PlanBroker(2)])
    assert Counter(move.where.topic for move in moves) == {"a": 2, "b": 2}


def test_the_leader_stays_first_where_that_is_even() -> None:
    """A move of a follower changes who is to lead only where that evens out more than one."""
    partitions = [PlanPartition(TopicPartition("t", 0), (1, 9)), PlanPartition(TopicPartition("t", 1), (1, 9))]
    first, second = plan_moves(partitions, [PlanBroker(1), PlanBroker(2)], receivers=())
    assert (first.after, second.after) == ((1, 2), (1, 2))
    partitions += [PlanPartition(TopicPartition("t", n), (1, 2)) for n in (2, 3)]
    first, second = plan_moves(partitions, [PlanBroker(1), PlanBroker(2)], receivers=())
    assert (first.after, second.after) == ((2, 1), (1, 2))


def test_replicas_of_a_removed_broker_go_where_few_are() -> None:
    """The emptiest of the brokers that are as good for spread gets each."""
    partitions = [PlanPartition(TopicPartition("s", n), (1,)) for n in range(3)]
    partitions += [PlanPartition(TopicPartition("t", n), (9,)) for n in range(3, 8)]
    after = applied(partitions, plan_moves(partitions, [PlanBroker(1), PlanBroker(2)], receivers=()))
    assert replicas_by_broker(after) == Counter({1: 4, 2: 4})


def test_targets_that_a_person_named() -> None:
    """What is as it shall be is no move; a new order alone is one that copies nothing."""
    partitions = even(3, 3)
    targets = {TopicPartition("t", 0): (3, 2, 1), TopicPartition("t", 1): partitions[1].replicas}
    (move,) = with_targets(partitions, targets)
    assert (move.where.partition, move.adding, move.removing, move.copy_bytes) == (0, (), (), 0)


def test_too_few_brokers_are_named() -> None:
    """The message has partition and numbers."""
    with pytest.raises(PlanImpossibleError, match="t-0 has 3 replicas and no other broker that could take one"):
        plan_moves(even(1, 3), [PlanBroker(1), PlanBroker(2)])


POLICIES = ("a:1", "a:2", "a:1,b:1", "a:2,b:1", "a:1,b:1,c:1")


@st.composite
def data_centers(draw: Any) -> tuple[list[PlanPartition], list[PlanBroker]]:
    """Up to 12 partitions with policies by data center, placed at random, against the policies too."""
    count = draw(st.integers(3, 9))
    brokers = [
        PlanBroker(n, draw(st.sampled_from(("", "r1", "r2"))), data_center=draw(st.sampled_from("abc")))
        for n in range(1, count + 1)
    ]
    partitions = []
    for number in range(draw(st.integers(1, 12))):
        replicas = draw(st.permutations(range(1, count + 1)))[: draw(st.integers(1, 3))]
        policy = parse_placement(draw(st.sampled_from(POLICIES)))
        partitions.append(PlanPartition(TopicPartition("xyz"[number % 3], number), tuple(replicas), 1, policy))
    return partitions, brokers


@given(data_centers())
def test_a_plan_gives_each_data_center_its_number(cluster: tuple[list[PlanPartition], list[PlanBroker]]) -> None:
    """By the fewest copies, unless one is too small; racks are shared only if there are too few; then it is stable."""
    partitions, brokers = cluster
    center_of = {each.broker_id: each.data_center for each in brokers}
    sizes = Counter(center_of.values())
    if any(sizes[name] < count for each in partitions for name, count in each.policy.counts):
        with pytest.raises(PlanImpossibleError, match=r"no other broker of data center [abc] that could take one"):
            plan_moves(partitions, brokers)
        return
    settled = applied(partitions, plan_moves(partitions, brokers, receivers=()))
    even = applied(partitions, plan_moves(partitions, brokers))
    for old, first, last in zip(partitions, settled, even, strict=True):
        assert Counter(center_of[each] for each in first.replicas) == dict(old.policy.counts)
        assert Counter(center_of[each] for each in last.replicas) == dict(old.policy.counts)
        missing = old.policy.missing(center_of, old.replicas)
        assert len(set(first.replicas) - set(old.replicas)) == sum(count for count in missing.values() if count > 0)
    assert plan_moves(even, brokers) == []


@given(st.integers(1, 12), st.sampled_from(("a:1,b:1", "a:2,b:1")))
def test_a_removed_broker_is_replaced_in_its_data_center(count: int, text: str) -> None:
    """Of two racks in the data center the one that is free takes the replica."""
    brokers = [PlanBroker(n, f"r{n % 2}", data_center="a" if n <= 4 else "b") for n in range(1, 7)]
    start = [PlanPartition(TopicPartition("t", n), (1,), 1, parse_placement(text)) for n in range(count)]
    placed = applied(start, plan_moves(start, brokers, receivers=()))
    moves = plan_moves(placed, [each for each in brokers if each.broker_id != 1], receivers=())
    assert all(move.removing == (1,) and set(move.adding) <= {2, 3, 4} for move in moves)
    for each in applied(placed, moves):
        racks = [n % 2 for n in each.replicas if n <= 4]
        assert len(racks) == dict(each.policy.counts)["a"] == len(set(racks))


def test_unaware_replicas_move_without_a_look_at_racks() -> None:
    """With `rack` the replica on the second rack stays."""
    brokers = [PlanBroker(1, "r1"), PlanBroker(2, "r1"), PlanBroker(3, "r2")]

    def moved(policy: PlacementPolicy) -> int:
        partitions = [PlanPartition(TopicPartition("t", n), (1, 3), 1, policy) for n in range(4)]
        return sum(2 in move.adding and 3 in move.removing for move in plan_moves(partitions, brokers, receivers=(2,)))

    assert (moved(RACK), moved(UNAWARE)) == (0, 1)
