"""What a topic may become: more partitions, other settings, brokers that the request names (all before any write)."""

from __future__ import annotations

import re

import pytest
from headrace.wire.errors import (
    HeadraceError,
    InvalidConfigError,
    InvalidPartitionsError,
    InvalidReplicationFactorError,
    InvalidRequestError,
    NotEnoughBrokersError,
    UnknownBrokerError,
)
from headrace_coordinator.core.placement import BrokerLoad
from headrace_coordinator.core.topics import (
    MAX_CONFIGS,
    Candidate,
    TopicDefaults,
    TopicSpec,
    add_load,
    altered_configs,
    check_more_partitions,
    check_new_topic,
    initial_state,
    place_more_partitions,
    place_new_topic,
)
from headrace_server.internal_v1 import metadata_pb2

TOPIC = metadata_pb2.Topic(name="t", partitions=2, replication_factor=2)
CANDIDATES = {each: Candidate(10 * each, BrokerLoad(each, host=f"h{each}")) for each in (1, 2, 3)}


@pytest.mark.parametrize(
    ("spec", "error", "reason"),
    [
        (TopicSpec("t", partitions=11), InvalidPartitionsError, "11 partitions are outside 1 .. 10"),
        (TopicSpec("t", replication_factor=-1), InvalidReplicationFactorError, "replication factor -1 is below 1"),
        (TopicSpec("t", replication_factor=10), InvalidReplicationFactorError, "replication factor 10 is above 9"),
        (TopicSpec("t", 3, assignments=((1,), (2,))), InvalidRequestError, "3 partitions are asked for and 2"),
        (TopicSpec("t", 0, 2, assignments=((1,),)), InvalidReplicationFactorError, "2 replicas are asked for and 1"),
        (TopicSpec("t", assignments=((1, 2), (1,))), InvalidRequestError, r"assignment 1 names the brokers \[1\]"),
        (TopicSpec("t", assignments=((1, 1),)), InvalidRequestError, r"assignment 0 names the brokers \[1, 1\]"),
        (TopicSpec("t", assignments=((),)), InvalidRequestError, r"assignment 0 names the brokers \[\]"),
        (TopicSpec("t", 0, 1, {"min_insync_replicas": "2"}), InvalidConfigError, "could ever be acknowledged"),
        (TopicSpec("t", configs={str(n): "" for n in range(MAX_CONFIGS + 1)}), InvalidConfigError, "101 settings"),
    ],
)
def test_a_topic_that_can_never_be_is_refused(spec: TopicSpec, error: type[HeadraceError], reason: str) -> None:
    """Whatever the brokers: the message has the number and the limit."""
    with pytest.raises(error, match=reason):
        check_new_topic(spec, TopicDefaults(max_partitions=10), 3)


def test_named_brokers_are_taken_as_named_or_refused() -> None:
    """A broker that is not there is named in the error."""
    topic = check_new_topic(TopicSpec("t", assignments=((2, 1), (2, 3))), TopicDefaults(), 3)
    assert (topic.partitions, topic.replication_factor) == (2, 2)
    assert place_new_topic(topic, CANDIDATES).assignments == ((2, 1), (2, 3))
    with pytest.raises(UnknownBrokerError, match=r"broker 3 is not registered.*brokers that live: 1, 2"):
        place_new_topic(topic, {each: CANDIDATES[each] for each in (1, 2)})


def test_a_topic_grows_and_never_shrinks() -> None:
    """What is asked for is the total; assignments are those of the partitions that are added."""
    assert check_more_partitions(TOPIC, 5, (), 10) == 3
    assert check_more_partitions(TOPIC, 3, ((3, 1),), 10) == 1
    for total, assignments, error, reason in [
        (2, (), InvalidPartitionsError, "2 is not more"),
        (1, (), InvalidPartitionsError, "1 is not more"),
        (11, (), InvalidPartitionsError, "outside 1 .. 10"),
        (4, ((1, 2),), InvalidRequestError, "2 partitions are asked for and 1 are assigned"),
        (3, ((1, 2, 3),), InvalidReplicationFactorError, "2 replicas are asked for and 3"),
    ]:
        with pytest.raises(error, match=reason):
            check_more_partitions(TOPIC, total, assignments, 10)


def test_a_table_keeps_its_number_of_partitions() -> None:
    """A row's partition follows from the number; a mirror's table has what its source has."""
    table = metadata_pb2.Topic(name="t", partitions=2, configs={"cleanup_policy": "compact", "table": "yes"})
    with pytest.raises(InvalidPartitionsError, match="a row's partition follows from it"):
        check_more_partitions(table, 3, (), 10)
    table.configs["mirror"] = "west"
    assert check_more_partitions(table, 3, (), 10) == 1


def test_further_partitions_go_where_the_topic_has_fewest() -> None:
    """Replicas and leaders that the topic has already count: the third partition is led by the third broker."""
    states = [initial_state(replicas, CANDIDATES, 0, durable=True) for replicas in ((1, 2), (2, 1))]
    ((leader, _),) = place_more_partitions(TOPIC, 1, (), CANDIDATES, states).assignments
    assert leader == 3
    named = place_more_partitions(TOPIC, 1, ((1, 2),), CANDIDATES, states)
    assert named.assignments == ((1, 2),)


def test_what_was_placed_counts_for_the_next_topic_of_a_request() -> None:
    """Replicas for each broker of an assignment, leaders for its first; the given loads are left as they are."""
    counted = add_load(CANDIDATES, [(1, 2), (1, 3)])
    assert {each: (counted[each].load.replicas, counted[each].load.leaders) for each in counted} == {
        1: (2, 2),
        2: (1, 0),
        3: (1, 0),
    }
    assert CANDIDATES[1].load.replicas == 0


def test_settings_change_by_name_and_as_a_whole_stay_sound() -> None:
    """What is set and what is unset are applied together; a request for nothing, or for too much, is refused."""
    topic = metadata_pb2.Topic(name="t", replication_factor=2, configs={"min_insync_replicas": "2"})
    assert altered_configs(topic, {"retention_ms": "5000"}, ["min_insync_replicas"], {}) == {"retention_ms": "5000"}
    for changes, unset, error, reason in [
        ({}, [], InvalidRequestError, "changes no setting"),
        ({"min_insync_replicas": "3"}, [], InvalidConfigError, "more than the replication factor 2"),
        ({}, ["retention_ms"] * (MAX_CONFIGS + 1), InvalidConfigError, "101 settings in one request"),
    ]:
        with pytest.raises(error, match=re.escape(reason)):
            altered_configs(topic, changes, unset, {})


def test_a_placement_is_altered_where_its_data_centers_have_brokers() -> None:
    """Its numbers count for min_insync_replicas and for further partitions; one that stays is not checked again."""
    centers = {n: Candidate(n, BrokerLoad(n, data_center="ab"[n % 2])) for n in range(4)}
    topic = metadata_pb2.Topic(name="t", replication_factor=2, partitions=1)
    assert altered_configs(topic, {"placement": "b:1,a:2"}, [], centers) == {"placement": "a:2,b:1"}
    changes = {"placement": "a:2,b:1", "min_insync_replicas": "3"}
    assert altered_configs(topic, changes, [], centers) == changes
    with pytest.raises(NotEnoughBrokersError, match=r"2 brokers of data center a .* 3 are needed"):
        altered_configs(topic, {"placement": "a:3"}, [], centers)
    topic.configs["placement"] = "a:3,b:2"
    assert altered_configs(topic, {"retention_ms": "5"}, [], centers)["placement"] == "a:3,b:2"
    assert altered_configs(topic, {}, ["placement"], centers) == {}
    topic.configs["placement"] = "a:2,b:1"
    assert check_more_partitions(topic, 2, ((0, 2, 1),), 10) == 1
    (assignment,) = place_more_partitions(topic, 1, (), centers, []).assignments
    assert sorted(broker_id % 2 for broker_id in assignment) == [0, 0, 1]
