"""Every assignor, for any members, topics and former owners: complete, disjoint, balanced, sticky, deterministic."""

from __future__ import annotations

import hypothesis.strategies as st
from headrace.groups.assignors import (
    ASSIGNORS,
    AssignableTopic,
    Subscriber,
    assign_rack_aware,
    assign_range,
    assign_uniform,
)
from hypothesis import given, settings

RACKS = ("", "r1", "r2", "r3")


@st.composite
def topics_of(draw, racks=False):
    topics = []
    for index in range(draw(st.integers(1, 4))):
        count = draw(st.integers(1, 8))
        places = ()
        if racks:
            sets = st.frozensets(st.sampled_from(RACKS[1:]), min_size=1, max_size=2)
            places = tuple(draw(st.lists(sets, min_size=count, max_size=count)))
        topics.append(AssignableTopic(bytes([index]) * 16, f"t{index}", count, places))
    return topics


@st.composite
def members_of(draw, topics, *, alike=False, least=1):
    ids = [topic.topic_id for topic in topics]
    common = frozenset(draw(st.sets(st.sampled_from(ids), min_size=1)))
    members = []
    for index in range(draw(st.integers(least, 7))):
        wanted = common if alike else frozenset(draw(st.sets(st.sampled_from(ids), min_size=1)))
        members.append(Subscriber(bytes([index]) * 16, f"m{index}", wanted, draw(st.sampled_from(RACKS))))
    return members


@st.composite
def cases(draw, *, alike=False, racks=False, least=1):
    """Members, topics, and who has what: any, also who is no member and what does not exist."""
    topics = draw(topics_of(racks=racks))
    members = draw(members_of(topics, alike=alike, least=least))
    partitions = [(topic.topic_id, number) for topic in topics for number in range(topic.partitions + 1)]
    owners = st.sampled_from([member.member_id for member in members] + [b"\xff" * 16])
    return members, topics, draw(st.dictionaries(st.sampled_from(partitions), owners))


def loads(members, assignment):
    return {m.member_id: sum(owner == m.member_id for owner in assignment.values()) for m in members}


def moved(before, after):
    return {partition for partition in after if before.get(partition) != after[partition]}


@given(cases(racks=True), st.randoms(use_true_random=False))
def test_every_partition_has_one_subscriber_whatever_the_order_of_the_input(case, random):
    """Complete, disjoint, only subscribed (I28), and the same for any order of members, topics and owners."""
    members, topics, current = case
    for assign in ASSIGNORS.values():
        assignment = assign(members, topics, current)
        wanted = {topic_id for member in members for topic_id in member.topics}
        expected = {(t.topic_id, number) for t in topics if t.topic_id in wanted for number in range(t.partitions)}
        assert assignment.keys() == expected
        by_id = {member.member_id: member for member in members}
        for (topic_id, _), member_id in assignment.items():
            assert topic_id in by_id[member_id].topics
        shuffled = list(members), list(topics), list(current.items())
        for each in shuffled:
            random.shuffle(each)
        assert assign(shuffled[0], shuffled[1], dict(shuffled[2])) == assignment


@given(cases(alike=True))
def test_equal_subscriptions_give_loads_that_differ_by_one_at_most(case):
    """`uniform` and `rack-aware` balance exactly where all subscribe to the same."""
    members, topics, current = case
    for assign in (assign_uniform, assign_rack_aware):
        counts = loads(members, assign(members, topics, current)).values()
        assert max(counts) - min(counts) <= 1


@given(cases(racks=True))
def test_no_move_of_one_partition_would_balance_better(case):
    """Where subscriptions differ: no member has two more than another one that could take one of them."""
    members, topics, current = case
    for assign in (assign_uniform, assign_rack_aware):
        assignment = assign(members, topics, current)
        counts = loads(members, assignment)
        for (topic_id, _), owner in assignment.items():
            for member in members:
                assert topic_id not in member.topics or counts[owner] - counts[member.member_id] <= 1


@given(cases(racks=True))
def test_a_valid_assignment_is_kept(case):
    """Computed again with nothing changed, nothing moves: no flapping, for all assignors."""
    members, topics, current = case
    for assign in ASSIGNORS.values():
        first = assign(members, topics, current)
        assert assign(members, topics, first) == first


@given(cases(alike=True, least=2), st.data())
def test_what_a_leaver_had_is_all_that_moves(case, data):
    """`uniform`, equal subscriptions: the partitions of those who stay, stay."""
    members, topics, current = case
    before = assign_uniform(members, topics, current)
    gone = data.draw(st.sampled_from(members))
    after = assign_uniform([member for member in members if member is not gone], topics, before)
    assert moved(before, after) == {partition for partition, owner in before.items() if owner == gone.member_id}


@given(cases(alike=True))
def test_a_joiner_takes_its_share_and_nothing_else_moves(case):
    """`uniform`, equal subscriptions: as many partitions move as the new member gets."""
    members, topics, current = case
    before = assign_uniform(members, topics, current)
    joiner = Subscriber(b"\xaa" * 16, "new", members[0].topics)
    after = assign_uniform([*members, joiner], topics, before)
    assert moved(before, after) == {partition for partition, owner in after.items() if owner == joiner.member_id}


@given(cases(alike=True))
def test_no_more_moves_than_the_balance_needs(case):
    """`uniform`, equal subscriptions: what may be kept within the loads that balance allows is kept."""
    members, topics, current = case
    after = assign_uniform(members, topics, current)
    alive = {member.member_id for member in members}
    held = {m: sum(current.get(p) == m for p in after) for m in alive}
    share, larger = divmod(len(after), len(members))
    most_kept = sum(
        min(count, share + (position < larger)) for position, count in enumerate(sorted(held.values(), reverse=True))
    )
    assert sum(current.get(partition) == owner for partition, owner in after.items()) == most_kept


@given(cases())
def test_range_is_algorithm_1_of_the_paper_with_the_remainder_spread(case):
    """Section 3.2: members in order get consecutive ranges of each topic; sizes differ by one at most."""
    members, topics, current = case
    assignment = assign_range(members, topics, current)
    assert assignment == assign_range(members, topics, {})
    total_of_alike = {}
    for topic in topics:
        takers = [member for member in members if topic.topic_id in member.topics]
        ranges = [
            [n for n in range(topic.partitions) if assignment[(topic.topic_id, n)] == member.member_id]
            for member in takers
        ]
        assert [number for numbers in ranges for number in numbers] == list(range(topic.partitions if takers else 0))
        sizes = [len(numbers) for numbers in ranges]
        assert not sizes or max(sizes) - min(sizes) <= 1
        for member, size in zip(takers, sizes, strict=True):
            total_of_alike[member.member_id] = total_of_alike.get(member.member_id, 0) + size
    if len({member.topics for member in members}) == 1:
        assert max(total_of_alike.values()) - min(total_of_alike.values()) <= 1


@given(cases(alike=True, racks=True))
def test_racks_are_preferred_but_never_at_the_cost_of_balance(case):
    """`rack-aware`: as balanced as `uniform`, and no exchange of two partitions would bring both, or one, nearer."""
    members, topics, current = case
    assignment = assign_rack_aware(members, topics, current)
    assert sorted(loads(members, assignment).values()) == sorted(
        loads(members, assign_uniform(members, topics, current)).values()
    )


@settings(max_examples=30)
@given(st.integers(1, 6), st.integers(1, 4))
def test_with_members_in_every_rack_all_read_near(each, partitions_each):
    """One replica a partition, racks filled evenly, as many members in each rack: all is read within its rack."""
    racks = RACKS[1:]
    members = [
        Subscriber(bytes([index]) * 16, f"m{index}", frozenset({b"t" * 16}), racks[index % 3])
        for index in range(3 * each)
    ]
    count = 3 * each * partitions_each
    topic = AssignableTopic(b"t" * 16, "t", count, tuple(frozenset({racks[n % 3]}) for n in range(count)))
    rack_of = {member.member_id: member.rack for member in members}
    assignment = assign_rack_aware(members, [topic], {})
    assert all(rack_of[owner] in topic.racks[number] for (_, number), owner in assignment.items())
    assert set(loads(members, assignment).values()) == {partitions_each}
