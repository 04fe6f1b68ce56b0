"""A topic that servers write is created when it is wanted, with as many replicas as it can have."""

from __future__ import annotations

import asyncio

import pytest
from headrace.partition.topic_configs import parse_topic_config
from headrace.v1 import topics_pb2
from headrace_coordinator.runtime import internal_topic
from headrace_coordinator.runtime.internal_topic import AUDIT_CONFIGS, InternalTopic
from headrace_server.audit.audit_writer import AUDIT_TOPIC


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    """Look at once, and take a cluster as settled when nothing has changed at one look."""
    monkeypatch.setattr(internal_topic, "LOOK_SECONDS", 0.0)


def audit_topic(parts, replicas, is_wanted):
    return InternalTopic(AUDIT_TOPIC, AUDIT_CONFIGS, parts.view, parts.store, replicas, is_wanted)


async def created(parts, topic):
    """Run until the topic is there; return its number of replicas."""
    task = asyncio.create_task(topic.run())
    try:
        await parts.shows(lambda: AUDIT_TOPIC in parts.view.topics)
    finally:
        task.cancel()
        await asyncio.wait([task])
    found = await parts.store.find(topics_pb2.TopicRef(name=AUDIT_TOPIC), parts.deadline)
    return found.message.replication_factor


async def test_it_has_as_many_replicas_as_wanted_once_the_brokers_are_there(parts, monkeypatch):
    """A cluster that starts has fewer brokers for a while: nothing is created before they have come."""
    monkeypatch.setattr(internal_topic, "SETTLED_SECONDS", 1_000.0)
    await parts.register(1)
    creating = asyncio.create_task(created(parts, audit_topic(parts, 3, lambda: True)))
    await parts.register(2)
    assert AUDIT_TOPIC not in parts.view.topics
    await parts.register(3)
    assert await creating == 3


async def test_a_cluster_of_one_has_it_when_no_broker_comes(parts, monkeypatch):
    """One replica, a moment after the last broker registered."""
    monkeypatch.setattr(internal_topic, "SETTLED_SECONDS", 0.0)
    await parts.register(1)
    assert await created(parts, audit_topic(parts, 3, lambda: True)) == 1


async def test_only_the_controller_of_a_cluster_that_writes_events_creates_it(parts):
    """And not before it is the controller."""
    await parts.register(1)
    is_wanted = False
    creating = asyncio.create_task(created(parts, audit_topic(parts, 1, lambda: is_wanted)))
    await parts.register(2)
    assert AUDIT_TOPIC not in parts.view.topics
    is_wanted = True
    assert await creating == 1


def test_the_audit_log_takes_events_of_a_server_whose_clock_is_ahead():
    """By a year: else all its events would be refused, and lost in the end."""
    assert parse_topic_config(AUDIT_CONFIGS).timestamp_after_max_ms > 365 * 86_400_000
