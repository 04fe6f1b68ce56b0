"""Placement: distinct brokers, spread over racks and hosts, balanced, the same everywhere."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from headrace.placement.policy import UNAWARE, parse_placement
from headrace_coordinator.core.placement import BrokerLoad, lacking_brokers, place
from hypothesis import given
from hypothesis import strategies as st


def brokers(count, racks=0, hosts_per_rack=0):
    return [
        BrokerLoad(
            number,
            rack=f"r{number % racks}" if racks else "",
            host=f"h{(number // racks) % hosts_per_rack}" if racks and hosts_per_rack else "",
        )
        for number in range(1, count + 1)
    ]


def leader_counts(placement, cluster):
    counts = Counter({broker.broker_id: 0 for broker in cluster})
    counts.update(replicas[0] for replicas in placement.assignments)
    return counts


def replica_counts(placement, cluster):
    counts = Counter({broker.broker_id: 0 for broker in cluster})
    counts.update(broker_id for replicas in placement.assignments for broker_id in replicas)
    return counts


def spread(counts):
    return max(counts.values()) - min(counts.values())


loads = st.builds(
    BrokerLoad,
    broker_id=st.just(0),
    rack=st.sampled_from(["", "a", "b", "c"]),
    host=st.sampled_from(["", "x", "y"]),
    replicas=st.integers(0, 50),
    leaders=st.integers(0, 20),
)
clusters = st.lists(loads, min_size=1, max_size=9).map(
    lambda found: [replace(load, broker_id=number * 7 % 31) for number, load in enumerate(found)]
)


@given(clusters, st.integers(1, 40), st.data())
def test_each_partition_has_distinct_brokers_of_the_cluster(cluster, partitions, data):
    """Whatever the cluster: as many partitions as asked for, each with n distinct brokers that are there."""
    n = data.draw(st.integers(1, len(cluster)))
    placement = place(cluster, partitions=partitions, replication_factor=n)
    ids = {broker.broker_id for broker in cluster}
    assert len(placement.assignments) == partitions
    for replicas in placement.assignments:
        assert len(replicas) == len(set(replicas)) == n
        assert set(replicas) <= ids


@given(clusters, st.integers(1, 40), st.data())
def test_racks_are_spread_wherever_there_are_enough(cluster, partitions, data):
    """No rack holds more replicas of a partition than it must."""
    n = data.draw(st.integers(1, len(cluster)))
    rack_of = {broker.broker_id: broker.rack for broker in cluster}
    sizes = Counter(rack_of.values())
    per_rack = 0
    while sum(min(size, per_rack) for size in sizes.values()) < n:
        per_rack += 1
    for replicas in place(cluster, partitions=partitions, replication_factor=n).assignments:
        assert max(Counter(rack_of[broker_id] for broker_id in replicas).values()) <= per_rack


@given(st.lists(st.sampled_from(["x", "y", "z"]), min_size=1, max_size=9), st.integers(1, 40), st.data())
def test_hosts_are_spread_wherever_there_are_enough(hosts, partitions, data):
    """Without racks no two replicas of a partition share a host while another host is free."""
    cluster = [BrokerLoad(number, host=host) for number, host in enumerate(hosts)]
    n = data.draw(st.integers(1, len(set(hosts))))
    placement = place(cluster, partitions=partitions, replication_factor=n)
    assert all(len({hosts[broker_id] for broker_id in replicas}) == n for replicas in placement.assignments)
    assert placement.warnings == ()


@given(clusters, st.integers(1, 60))
def test_single_replicas_are_balanced_within_one_whatever_the_load_was(cluster, partitions):
    """With one replica a partition no broker leads more than one partition of the topic more than another."""
    placement = place(cluster, partitions=partitions, replication_factor=1)
    assert spread(leader_counts(placement, cluster)) <= 1


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 60), st.data())
def test_equal_racks_are_balanced_within_one(racks, per_rack, partitions, data):
    """With racks of equal size replicas and leaders of the topic are balanced within one, however they are numbered."""
    ids = data.draw(st.permutations(range(racks * per_rack)))
    cluster = [BrokerLoad(broker_id, rack=f"r{index % racks}") for index, broker_id in enumerate(ids)]
    n = data.draw(st.integers(1, racks * per_rack))
    placement = place(cluster, partitions=partitions, replication_factor=n)
    assert spread(replica_counts(placement, cluster)) <= 1
    assert spread(leader_counts(placement, cluster)) <= 1


@given(st.integers(1, 8), st.integers(1, 40), st.data())
def test_without_racks_balanced_within_one(count, partitions, data):
    """Without racks replicas and leaders of the topic are balanced within one."""
    cluster = brokers(count)
    n = data.draw(st.integers(1, count))
    placement = place(cluster, partitions=partitions, replication_factor=n)
    assert spread(replica_counts(placement, cluster)) <= 1
    assert spread(leader_counts(placement, cluster)) <= 1


@given(clusters, st.integers(1, 30), st.integers(0, 2**32), st.data())
def test_the_order_of_the_brokers_does_not_matter(cluster, partitions, seed, data):
    """Every coordinator computes the same placement, in whatever order it learnt of the brokers."""
    n = data.draw(st.integers(1, len(cluster)))
    shuffled = list(cluster)
    random.Random(seed).shuffle(shuffled)
    assert place(cluster, partitions=partitions, replication_factor=n) == place(
        shuffled, partitions=partitions, replication_factor=n
    )


@given(st.integers(1, 6), st.lists(st.integers(1, 9), min_size=1, max_size=12))
def test_many_small_topics_are_balanced_in_all(count, sizes):
    """Topics placed one after the other, each by the load of those before it, leave brokers within one."""
    cluster = brokers(count)
    for partitions in sizes:
        counts = replica_counts(place(cluster, partitions=partitions, replication_factor=1), cluster)
        cluster = [
            replace(
                broker,
                replicas=broker.replicas + counts[broker.broker_id],
                leaders=broker.leaders + counts[broker.broker_id],
            )
            for broker in cluster
        ]
    held = [broker.replicas for broker in cluster]
    assert max(held) - min(held) <= 1


def test_the_rack_with_fewer_replicas_comes_first():
    """Brokers numbered rack by rack: without a look at the racks' loads the last broker would stay empty."""
    cluster = [BrokerLoad(number, rack="abc"[number // 2]) for number in range(6)]
    placement = place(cluster, partitions=3, replication_factor=2)
    assert set(replica_counts(placement, cluster).values()) == {1}


def test_an_empty_broker_does_not_get_the_whole_next_topic():
    """The topic counts before the total: a new broker takes its share of a topic, and the remainder."""
    cluster = [BrokerLoad(1, replicas=90, leaders=90), BrokerLoad(2, replicas=90, leaders=90), BrokerLoad(3)]
    placement = place(cluster, partitions=7, replication_factor=1)
    assert leader_counts(placement, cluster) == {1: 2, 2: 2, 3: 3}


def test_growing_fills_up_what_the_topic_lacks():
    """Further partitions go where the topic has fewest."""
    cluster = [
        BrokerLoad(1, topic_replicas=2, topic_leaders=2),
        BrokerLoad(2, topic_replicas=1, topic_leaders=1),
        BrokerLoad(3),
    ]
    assert place(cluster, partitions=3, replication_factor=1).assignments == ((3,), (2,), (3,))


def test_leaders_are_balanced_although_one_rack_has_one_broker():
    """Replica sets bound to one broker do not bind the leaders: chains of moves balance them."""
    cluster = [BrokerLoad(1, rack="a"), *(BrokerLoad(number, rack="b") for number in (2, 3, 4))]
    placement = place(cluster, partitions=12, replication_factor=2)
    assert all(1 in replicas for replicas in placement.assignments)
    assert leader_counts(placement, cluster) == {1: 3, 2: 3, 3: 3, 4: 3}


def test_second_replicas_are_spread_too():
    """When a broker fails, its partitions go to different brokers."""
    placement = place(brokers(4), partitions=12, replication_factor=3)
    seconds = Counter(replicas[1] for replicas in placement.assignments if replicas[0] == 1)
    assert len(seconds) > 1


@pytest.mark.parametrize(
    ("cluster", "n", "warnings"),
    [
        (brokers(3), 1, []),
        (brokers(3, racks=3), 3, []),
        (brokers(4, racks=2), 3, ["2 of 2 partitions have replicas that share a rack"]),
        (
            [BrokerLoad(1, rack="a"), BrokerLoad(2), BrokerLoad(3)],
            2,
            ["brokers 2, 3 name no rack, others do: those without count as one rack"],
        ),
        ([BrokerLoad(1, host="m"), BrokerLoad(2, host="m")], 2, ["2 of 2 partitions have replicas that share a host"]),
        ([BrokerLoad(1, host="m"), BrokerLoad(2, host="n"), BrokerLoad(3, host="n")], 2, []),
    ],
)
def test_it_reports_what_it_cannot_spread(cluster, n, warnings):
    """A warning for each kind of failure domain that replicas share, none where they share none."""
    assert list(place(cluster, partitions=2, replication_factor=n).warnings) == warnings


located = st.lists(
    st.tuples(st.sampled_from("ab"), st.sampled_from(["", "r1", "r2", "r3"]), st.sampled_from(["", "h1", "h2"])),
    min_size=2,
    max_size=10,
)


@given(located, st.integers(1, 30), st.data())
def test_each_data_center_has_its_number_over_its_racks_and_hosts(places, partitions, data):
    """No rack of a data center holds more replicas of a partition than it must; the first replicas differ in it."""
    cluster = [BrokerLoad(n, rack, host, data_center=center) for n, (center, rack, host) in enumerate(places)]
    sizes = Counter(center for center, _, _ in places)
    counts = {center: data.draw(st.integers(1, min(size, 3))) for center, size in sizes.items()}
    policy = parse_placement(",".join(f"{center}:{count}" for center, count in counts.items()))
    placed = place(cluster, partitions=partitions, replication_factor=policy.replication_factor, policy=policy)
    for replicas in placed.assignments:
        assert Counter(places[broker_id][0] for broker_id in replicas) == counts
        for center, count in counts.items():
            racks = Counter(rack for name, rack, _ in places if name == center)
            per_rack = next(n for n in range(1, 11) if sum(min(size, n) for size in racks.values()) >= count)
            held = Counter(places[each][1] for each in replicas if places[each][0] == center)
            assert max(held.values()) <= per_rack


@given(st.integers(1, 4), st.integers(1, 60), st.sampled_from(["a:2,b:1", "a:1,b:1", "a:2,b:2"]))
def test_leaders_are_balanced_over_data_centers(per_center, partitions, text):
    """With data centers of equal size preferred leaders differ by at most one, although one has more replicas."""
    policy = parse_placement(text)
    cluster = [BrokerLoad(n, data_center="ab"[n % 2]) for n in range(2 * max(2, per_center))]
    placed = place(cluster, partitions=partitions, replication_factor=policy.replication_factor, policy=policy)
    assert spread(leader_counts(placed, cluster)) <= 1


def test_unaware_ignores_racks_and_spreads_over_hosts():
    """Two racks of one broker and one of three: all brokers get equally many; with `rack` the single ones get more."""
    cluster = [BrokerLoad(1, rack="a"), *(BrokerLoad(number, rack="b") for number in (2, 3, 4))]
    unaware = place(cluster, partitions=8, replication_factor=2, policy=UNAWARE)
    assert spread(replica_counts(unaware, cluster)) == 0
    assert unaware.warnings == ()
    assert replica_counts(place(cluster, partitions=8, replication_factor=2), cluster)[1] == 8
    shared = [BrokerLoad(1, host="h"), BrokerLoad(2, host="h"), BrokerLoad(3, host="i")]
    assert all(3 in each for each in place(shared, partitions=9, replication_factor=2, policy=UNAWARE).assignments)


def test_what_is_lacking_is_said_of_each_data_center():
    """Also that nothing is."""
    cluster = [BrokerLoad(1, data_center="a"), BrokerLoad(2, data_center="a"), BrokerLoad(3)]
    words = "live, are not draining and take replicas"
    policy = parse_placement("a:3,b:1,c:2")
    assert lacking_brokers(cluster, 6, policy) == (
        f"2 brokers of data center a {words}; 3 are needed, 0 brokers of data center b {words}; 1 are needed, "
        f"0 brokers of data center c {words}; 2 are needed"
    )
    assert lacking_brokers(cluster, 2, parse_placement("a:2")) == ""
    assert lacking_brokers(cluster, 4, UNAWARE) == f"3 brokers {words}; 4 are needed"


def test_racks_of_the_used_data_centers_alone_are_warned_of():
    """A broker without a rack elsewhere does not count."""
    cluster = [
        BrokerLoad(1, "r1", data_center="a"),
        BrokerLoad(2, "r2", data_center="a"),
        BrokerLoad(3, data_center="b"),
    ]
    assert place(cluster, partitions=2, replication_factor=2, policy=parse_placement("a:2")).warnings == ()
    assert place(cluster, partitions=2, replication_factor=3, policy=parse_placement("a:2,b:1")).warnings != ()
