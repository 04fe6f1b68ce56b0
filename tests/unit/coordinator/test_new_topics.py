"""What a new topic gets where the request leaves it open: replicas, and how many must be in sync."""

from __future__ import annotations

import pytest
from headrace.wire.errors import InvalidConfigError, InvalidReplicationFactorError, NotEnoughBrokersError
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
