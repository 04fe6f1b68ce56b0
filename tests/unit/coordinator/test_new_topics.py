"""What a new topic gets where the request leaves it open: replicas, and how many must be in sync."""

from __future__ import annotations

import pytest
from headrace.wire.errors import (
    InvalidConfigError,
    InvalidReplicationFactorError,
    InvalidRequestError,
    NotEnoughBrokersError,
)
from headrace_coordinator.core.placement import BrokerLoad
from headrace_coordinator.core.topics import (
    Candidate,
    TopicDefaults,
    TopicSpec,
    check_new_topic,
    initial_state,
    place_new_topic,
)


def candidates(count):
    return {
        broker_id: Candidate(10 * broker_id, BrokerLoad(broker_id, host=f"h{broker_id}"))
        for broker_id in range(1, count + 1)
    }


@pytest.mark.parametrize(
    ("brokers", "replicas", "minimum", "warned"), [(1, 1, 1, True), (2, 2, 1, True), (3, 3, 2, False), (5, 3, 2, False)]
)
def test_three_replicas_where_there_are_three_brokers(brokers, replicas, minimum, warned):
    """Else as many as there are, and the answer says so; two must be in sync where three are, else one."""
    topic = check_new_topic(TopicSpec("t"), TopicDefaults(), brokers)
    assert topic.replication_factor == replicas
    assert bool(topic.warnings) is warned
    assert all("in place of 3" in warning for warning in topic.warnings)
    (assignment,) = place_new_topic(topic, candidates(brokers)).assignments
    state = initial_state(assignment, candidates(brokers), topic.min_insync_replicas, durable=True)
    assert (len(state.in_sync), state.min_insync_replicas) == (replicas, minimum)


def test_a_requested_minimum_is_not_reduced():
    """A number in the request is a demand: with too few brokers it waits for more, and nothing is warned of."""
    topic = check_new_topic(TopicSpec("t", 1, 3), TopicDefaults(), 1)
    assert (topic.replication_factor, topic.warnings) == (3, ())
    with pytest.raises(NotEnoughBrokersError, match="3 are needed"):
        place_new_topic(topic, candidates(1))


def test_without_brokers_there_is_nothing_to_place_on():
    """The error says to try again."""
    with pytest.raises(NotEnoughBrokersError, match="0 brokers") as failure:
        place_new_topic(check_new_topic(TopicSpec("t"), TopicDefaults(), 0), {})
    assert failure.value.retriable


@pytest.mark.parametrize("setting", ["1", "2", "3"])
def test_the_topics_own_minimum_counts(setting):
    """Also one in sync of three, where it is requested."""
    topic = check_new_topic(TopicSpec("t", configs={"min_insync_replicas": setting}), TopicDefaults(), 3)
    assert dict(topic.configs) == {"min_insync_replicas": setting}
    state = initial_state((1, 2, 3), candidates(3), topic.min_insync_replicas, durable=True)
    assert state.min_insync_replicas == int(setting)


def test_numbers_that_cannot_be_are_refused():
    """More replicas than make sense, more in sync than there are replicas."""
    with pytest.raises(InvalidReplicationFactorError, match="replication factor 10 is above 9"):
        check_new_topic(TopicSpec("t", 1, 10), TopicDefaults(), 20)
    with pytest.raises(InvalidConfigError, match="replication factor 2"):
        check_new_topic(TopicSpec("t", configs={"min_insync_replicas": "3"}), TopicDefaults(), 2)


CENTERS = {
    broker_id: Candidate(10 * broker_id, BrokerLoad(broker_id, data_center=center))
    for broker_id, center in enumerate("aabb", 1)
}


def test_the_placement_sets_the_replication_factor():
    """Three replicas, two of them in `a`; the default of two, and a number that differs, do not count."""
    spec = TopicSpec("t", 4, configs={"placement": "b:1,a:2"})
    topic = check_new_topic(spec, TopicDefaults(replication_factor=2), 4)
    assert (topic.replication_factor, topic.configs, topic.warnings) == (3, {"placement": "a:2,b:1"}, ())
    for assignment in place_new_topic(topic, CENTERS).assignments:
        assert sum(broker_id <= 2 for broker_id in assignment) == 2
    assert check_new_topic(TopicSpec("t", 4, 3, spec.configs), TopicDefaults(), 4) == topic
    with pytest.raises(InvalidReplicationFactorError, match="2 replicas are asked for, placement = a:2,b:1 has 3"):
        check_new_topic(TopicSpec("t", 4, 2, spec.configs), TopicDefaults(), 4)
    with pytest.raises(InvalidConfigError, match="replication factor 3"):
        check_new_topic(TopicSpec("t", configs=spec.configs | {"min_insync_replicas": "4"}), TopicDefaults(), 4)


def test_a_data_center_with_too_few_brokers_is_named():
    """With the data centers that there are; a retry may help."""
    topic = check_new_topic(TopicSpec("t", configs={"placement": "a:1,west:2"}), TopicDefaults(), 4)
    with pytest.raises(
        NotEnoughBrokersError, match=r"0 brokers of data center west .*; 2 are .* brokers: a, b"
    ) as found:
        place_new_topic(topic, CENTERS)
    assert found.value.retriable


def test_explicit_assignments_keep_the_placement():
    """As many in each data center as it says, else the request is refused."""
    for assignments, accepted in [(((1, 2, 3),), True), (((4, 2, 1),), True), (((1, 2, 3), (1, 3, 4)), False)]:
        spec = TopicSpec("t", configs={"placement": "a:2,b:1"}, assignments=assignments)
        topic = check_new_topic(spec, TopicDefaults(), 4)
        if accepted:
            assert place_new_topic(topic, CENTERS).assignments == assignments
        else:
            with pytest.raises(InvalidRequestError, match=r"\[1, 3, 4\] are a:1,b:2 by data center"):
                place_new_topic(topic, CENTERS)
    with pytest.raises(InvalidReplicationFactorError, match="3 replicas are asked for and 2 are assigned"):
        check_new_topic(TopicSpec("t", configs={"placement": "a:2,b:1"}, assignments=((1, 3),)), TopicDefaults(), 4)
