"""The topic store settles lost answers, races and changes of brokers (PROTOCOL C2, C3, H78, H79)."""

from __future__ import annotations

import asyncio
import secrets
import threading

import pytest
from headrace.v1 import cluster_pb2, topics_pb2
from headrace.wire.errors import (
    ConflictError,
    MetastoreUnavailableError,
    NotEnoughBrokersError,
    Outcome,
    TopicAlreadyExistsError,
    UnknownTopicError,
    from_detail,
)
from headrace_coordinator.core.topics import TopicDefaults, TopicSpec, altered_configs, check_new_topic, place_new_topic
from headrace_coordinator.rpc import topic_requests
from headrace_coordinator.rpc.answers import Answers
from headrace_coordinator.rpc.topic_requests import TopicRequests
from headrace_coordinator.runtime import topic_store
from headrace_coordinator.runtime.metadata_limits import GroupBounds, MetadataLimits
from headrace_coordinator.settings import CoordinatorSettings
from headrace_server.clock import SystemClock
from headrace_server.cluster_identity import ClusterIdentity
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.metadata_view import ClusterView
from headrace_server.metastore.api import Delete, Put
from headrace_server.metastore.view import PrefixView

from tests.fakes.lossy_metastore import LATE, LOST, NEVER


def checked(name="t", partitions=3, **fields):
    return check_new_topic(TopicSpec(name, partitions, **fields), TopicDefaults(), 1)


async def create(parts, name="t", partitions=3, **fields):
    topic = checked(name, partitions, **fields)
    placement = place_new_topic(topic, parts.store.candidates())
    return await parts.store.create(topic, placement, parts.deadline)


def requests_of(parts, view):
    return TopicRequests(
        parts.store,
        view,
        Answers(parts.prefix_view, parts.metrics, default_timeout_ms=10_000),
        CoordinatorSettings(coordinator_id="a"),
        MetadataLimits(GroupBounds(groups=1, members=1, key_bytes=1)),
    )


def by_name(name):
    return topics_pb2.TopicRef(name=name)


@pytest.mark.parametrize("faults", [[], [NEVER], [LOST], [NEVER, NEVER, LOST], [LOST, NEVER]])
async def test_a_small_topic_is_created_once_whatever_answers_are_lost(parts, faults):
    """One topic, complete, and the answer names the id in etcd."""
    await parts.register(1)
    parts.metastore.faults = list(faults)
    created = await create(parts)
    assert len(await parts.keys("topics/")) == len(await parts.keys("topic_ids/")) == 1
    assert len(await parts.keys("partitions/")) == 3
    found = await parts.store.find(by_name("t"), parts.deadline)
    assert found.message.topic_id == created.topic_id
    assert parts.metric("topics_created") == 1
    assert parts.metric("ambiguous_writes") == len(faults)


@pytest.mark.parametrize("lost_at", range(5))
@pytest.mark.parametrize("fault", [NEVER, LOST])
async def test_a_large_topic_is_created_once_whatever_answer_is_lost(parts, lost_at, fault):
    """At each of the five transactions: visible once and whole; only invisible remains of the other attempt stay."""
    await parts.register(1)
    parts.metastore.faults = [None] * lost_at + [fault]
    created = await create(parts, partitions=300)
    await parts.prefix_view.wait_for(created.revision, 10)
    assert list(parts.view.topics) == ["t"]
    assert len(parts.view.partitions(created.topic_id)) == 300
    assert parts.view.topics["t"].topic_id == created.topic_id


async def test_every_attempt_draws_its_own_id(parts):
    """A late attempt can bring back nothing that was deleted meanwhile: no id is sent twice."""
    await parts.register(1)
    parts.metastore.faults = [NEVER, "", NEVER]
    await create(parts)
    ids = [
        metadata_pb2.Topic.FromString(operation.value).topic_id
        for _, success in parts.metastore.sent
        for operation in success
        if isinstance(operation, Put) and "/topics/" in operation.key
    ]
    assert len(ids) == len(set(ids)) == 3


@pytest.mark.parametrize("of_fence", ["", NEVER, LOST, LATE])
async def test_a_creation_that_arrives_late_does_not_bring_the_topic_back(parts, of_fence):
    """It is fenced before it is sent again, whatever becomes of the fence's first write (simulator, seed 411165)."""
    await parts.register(1)
    parts.metastore.faults = [LATE, of_fence]
    created = await create(parts)
    await parts.prefix_view.wait_for(created.revision, 10)
    await parts.store.delete(by_name("t"), parts.deadline)
    await parts.metastore.arrive()
    assert await parts.keys("topics/") == await parts.keys("partitions/") == []


async def test_the_name_of_another_is_a_definite_refusal(parts):
    """TOPIC_ALREADY_EXISTS: nothing was written."""
    await parts.register(1)
    await create(parts)
    with pytest.raises(TopicAlreadyExistsError) as failure:
        await create(parts)
    assert failure.value.outcome is Outcome.NOT_APPLIED


@pytest.mark.parametrize("fault", [NEVER, LOST])
async def test_the_name_of_another_is_no_definite_refusal_after_an_attempt_without_an_answer(parts, fault):
    """The topic of that attempt may have been created, and deleted since (seed 17 of the simulator)."""
    await parts.register(1)
    parts.metastore.faults = [fault]
    creating = asyncio.create_task(create(parts))
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(parts.metastore.sent) == 1
    await parts.memory.txn([], [Delete(parts.keyspace.topic("t"))])
    other = metadata_pb2.Topic(name="t", topic_id=secrets.token_bytes(16), partitions=1, replication_factor=1)
    await parts.memory.txn([], [Put(parts.keyspace.topic("t"), other.SerializeToString())])
    with pytest.raises(TopicAlreadyExistsError) as failure:
        await creating
    assert failure.value.outcome is Outcome.UNKNOWN


async def test_no_transaction_exceeds_what_etcd_takes(parts):
    """At most 128 compares and 128 operations, with as many brokers as partitions."""
    for broker_id in range(140):
        await parts.register(broker_id)
    parts.metastore.sent.clear()
    await create(parts, partitions=140)
    await create(parts, "u", partitions=126)
    assert len(parts.metastore.sent) > 3
    assert max(max(len(compares), len(success)) for compares, success in parts.metastore.sent) <= 128


@pytest.mark.parametrize(("partitions", "before"), [(3, 1), (300, 1), (300, 2), (300, 3)])
async def test_a_broker_that_restarts_meanwhile_is_named_in_its_new_session(parts, partitions, before):
    """The compare on the registration fails, and the next attempt names the session of the fresh view (I12)."""
    await parts.register(1)
    epochs = []

    async def bounce(compares, success):
        if len(parts.metastore.sent) == before:
            epochs.append(await parts.register(1))

    parts.metastore.before_txn = bounce
    created = await create(parts, partitions=partitions)
    await parts.prefix_view.wait_for(created.revision, 10)
    leaders = {partition.state.leader for partition in parts.view.partitions(created.topic_id)}
    assert {leader.broker_epoch for leader in leaders} == {epochs[0]}


async def test_a_broker_that_is_gone_meanwhile_is_replaced(parts):
    """Placed again on those that live; NOT_ENOUGH_BROKERS where none does."""
    await parts.register(1)
    await parts.register(2)
    gone = []

    async def leave(compares, success):
        if not gone:
            gone.append(1)
            await parts.unregister(1)

    parts.metastore.before_txn = leave
    created = await create(parts)
    assert created.placement.assignments == ((2,), (2,), (2,))
    await parts.unregister(2)
    with pytest.raises(NotEnoughBrokersError):
        await create(parts, "u")


async def test_an_outage_ends_at_the_deadline_with_the_outcome_unknown(parts):
    """Every answer lost until the deadline: METASTORE_UNAVAILABLE and UNKNOWN, never NOT_APPLIED."""
    await parts.register(1)
    parts.metastore.faults = [NEVER] * 1_000
    topic = checked()
    placement = place_new_topic(topic, parts.store.candidates())
    with pytest.raises(MetastoreUnavailableError) as failure:
        await parts.store.create(topic, placement, asyncio.get_running_loop().time() + 0.3)
    assert failure.value.outcome is Outcome.UNKNOWN


@pytest.mark.parametrize("faults", [[], [NEVER], [LOST], [LOST, NEVER]])
@pytest.mark.parametrize("total", [5, 400])
async def test_growing_settles_lost_answers(parts, faults, total):
    """The new number once, all partitions there, the old ones untouched."""
    await parts.register(1)
    created = await create(parts)
    before = {key: (await parts.memory.get(key)).key_value for key in await parts.keys("partitions/")}
    found = await parts.store.find(by_name("t"), parts.deadline)
    placement = place_new_topic(checked(partitions=total - 3), parts.store.candidates())
    parts.metastore.faults = list(faults)
    revision, _ = await parts.store.grow(found, total, [], placement, parts.deadline)
    await parts.prefix_view.wait_for(revision, 10)
    assert len(parts.view.partitions(created.topic_id)) == total
    for key, value in before.items():
        assert (await parts.memory.get(key)).key_value == value


async def test_growing_against_another_growth_is_a_conflict(parts):
    """Another coordinator added partitions in between: CONFLICT, definite."""
    await parts.register(1)
    await create(parts)
    found = await parts.store.find(by_name("t"), parts.deadline)
    one = place_new_topic(checked(partitions=1), parts.store.candidates())
    await parts.store.grow(found, 4, [], one, parts.deadline)
    with pytest.raises(ConflictError) as failure:
        await parts.store.grow(found, 6, [], place_new_topic(checked(), parts.store.candidates()), parts.deadline)
    assert failure.value.outcome is Outcome.NOT_APPLIED


@pytest.mark.parametrize("faults", [[], [NEVER], [LOST], [LOST, NEVER]])
async def test_deleting_settles_lost_answers(parts, faults):
    """Nothing is left, and the caller is told that it is deleted."""
    await parts.register(1)
    created = await create(parts)
    parts.metastore.faults = list(faults)
    message, _ = await parts.store.delete(by_name("t"), parts.deadline)
    assert message.topic_id == created.topic_id
    assert await parts.keys("topics/") == await parts.keys("topic_ids/") == await parts.keys("partitions/") == []
    with pytest.raises(UnknownTopicError):
        await parts.store.delete(by_name("t"), parts.deadline)


async def test_a_deletion_on_its_way_does_not_hit_a_successor(parts):
    """Another caller deletes the topic and creates one of that name while the transaction is sent (H26)."""
    await parts.register(1)
    await create(parts)

    async def overtake(compares, success):
        parts.metastore.before_txn = None
        await parts.store.delete(by_name("t"), parts.deadline)
        await create(parts)

    parts.metastore.before_txn = overtake
    await parts.store.delete(by_name("t"), parts.deadline)
    assert len(await parts.keys("topics/")) == 1


async def test_deleting_by_name_does_not_hit_a_successor(parts):
    """The answer of the deletion is lost, another topic takes the name: it stays (H26)."""
    await parts.register(1)
    created = await create(parts)
    await parts.prefix_view.wait_for(created.revision, 10)
    parts.metastore.faults = [LOST]
    successor = metadata_pb2.Topic(name="t", topic_id=secrets.token_bytes(16), partitions=1, replication_factor=1)
    deleting = asyncio.create_task(parts.store.delete(by_name("t"), parts.deadline))
    await parts.shows(lambda: not parts.view.topics)
    value = successor.SerializeToString()
    await parts.memory.txn(
        [], [Put(parts.keyspace.topic("t"), value), Put(parts.keyspace.topic_by_id(successor.topic_id), value)]
    )
    message, _ = await deleting
    assert message.topic_id != successor.topic_id
    assert (await parts.store.find(by_name("t"), parts.deadline)).message == successor


@pytest.mark.parametrize("faults", [[], [NEVER], [LOST]])
async def test_two_changes_of_settings_do_not_undo_each_other(parts, faults):
    """Each is merged into the present value when it is written."""
    await parts.register(1)
    await create(parts, configs={"retention_ms": "5"})
    parts.metastore.faults = list(faults)
    async with asyncio.TaskGroup() as tasks:
        for changes in ({"retention_bytes": "7"}, {"segment_ms": "9000"}):
            tasks.create_task(
                parts.store.configure(
                    by_name("t"), lambda topic, changes=changes: altered_configs(topic, changes, [], {}), parts.deadline
                )
            )
    found = await parts.store.find(by_name("t"), parts.deadline)
    assert dict(found.message.configs) == {"retention_ms": "5", "retention_bytes": "7", "segment_ms": "9000"}


async def test_a_topic_in_creation_has_no_partition(parts):
    """`topic_ids/` begins with 0 partitions, so that a clean-up can recognise it; it ends with all."""
    await parts.register(1)
    created = await create(parts, partitions=300)
    (reserved,) = parts.metastore.sent[0][1]
    assert reserved.key == parts.keyspace.topic_by_id(created.topic_id)
    assert metadata_pb2.Topic.FromString(reserved.value).partitions == 0
    found = await parts.store.find(by_name("t"), parts.deadline)
    assert found.message.partitions == 300


async def test_a_reserved_topic_is_not_found(parts):
    """`topic_ids/` alone is no topic: neither by name nor by id."""
    half = metadata_pb2.Topic(name="half", topic_id=bytes(16))
    await parts.memory.txn([], [Put(parts.keyspace.topic_by_id(half.topic_id), half.SerializeToString())])
    for reference in (by_name("half"), topics_pb2.TopicRef(topic_id=half.topic_id)):
        with pytest.raises((UnknownTopicError, Exception), match="there is no topic"):
            await parts.store.find(reference, parts.deadline)
    await parts.memory.txn([], [Delete(parts.keyspace.topic_by_id(half.topic_id))])


def change_between_reads(parts, retention_ms):
    """Change a setting of topic `t` after the next `find` has read its name key, before it reads the other one."""
    read = []

    async def get(key):
        read.append(key)
        if parts.keyspace.topic("t") in read[:-1] and key != parts.keyspace.topic("t"):
            del parts.metastore.get
            changes = {"retention_ms": retention_ms}
            await parts.store.configure(
                by_name("t"), lambda topic: altered_configs(topic, changes, [], {}), parts.deadline
            )
        return await parts.memory.get(key)

    parts.metastore.get = get


async def test_a_topic_that_changes_between_the_reads_is_found(parts):
    """By name and by id: an existing topic is never reported as missing."""
    await parts.register(1)
    created = await create(parts)
    for reference, value in ((by_name("t"), "5"), (topics_pb2.TopicRef(topic_id=created.topic_id), "6")):
        change_between_reads(parts, value)
        found = await parts.store.find(reference, parts.deadline)
        assert found.message.configs["retention_ms"] == value


async def test_a_deletion_is_reported_only_once_the_topic_is_gone(parts):
    """Also where the topic changes between the reads of its second attempt."""
    await parts.register(1)
    await create(parts)

    async def fail(compares, operations):
        parts.metastore.before_txn = None
        change_between_reads(parts, "5")

    parts.metastore.before_txn, parts.metastore.faults = fail, [NEVER]
    await parts.store.delete(by_name("t"), parts.deadline)
    assert await parts.keys("topics/") == []


async def test_a_name_that_only_an_old_view_shows_is_free(parts):
    """The topic was deleted at another coordinator; a name that etcd has is taken."""
    await parts.register(1)
    await create(parts)
    old = PrefixView(parts.metastore, parts.keyspace.prefix, SystemClock())
    await old.load()
    requests = requests_of(parts, ClusterView(ClusterIdentity("test", "cluster-id", 3, b"s" * 32), old))
    request = cluster_pb2.CreateTopicsRequest(topics=[{"name": "t", "partitions": 1, "replication_factor": 1}])
    (taken,) = (await requests.create(request, 10)).topics
    assert isinstance(from_detail(taken.error), TopicAlreadyExistsError)
    await parts.store.delete(by_name("t"), parts.deadline)
    (created,) = (await requests.create(request, 10)).topics
    assert not created.HasField("error")
    assert (await parts.store.find(by_name("t"), parts.deadline)).message.topic_id == created.topic_id


async def test_a_large_topic_is_placed_and_written_without_keeping_the_event_loop(parts, monkeypatch):
    """Ten thousand partitions over a hundred brokers take two seconds; a small topic needs no thread."""
    threads = []

    def noted(call):
        def run(*arguments, **fields):
            threads.append((call.__name__, threading.get_ident() == own))
            return call(*arguments, **fields)

        return run

    own = threading.get_ident()
    for module, name in (
        (topic_requests, "place_new_topic"),
        (topic_requests, "place_more_partitions"),
        (topic_store.topic_writes, "create"),
        (topic_store.topic_writes, "grow"),
        (topic_store, "initial_state"),
    ):
        monkeypatch.setattr(module, name, noted(getattr(module, name)))
    await parts.register(1)
    requests, few = requests_of(parts, parts.view), 100
    for name, partitions in (("small", few), ("large", few + 1)):
        topics = [{"name": name, "partitions": partitions, "replication_factor": 1}]
        (created,) = (await requests.create(cluster_pb2.CreateTopicsRequest(topics=topics), 10)).topics
        assert not created.HasField("error")
    request = cluster_pb2.CreatePartitionsRequest(topic=by_name("large"), total_partitions=2 * few + 2)
    assert not (await requests.grow(request, 10)).result.HasField("error")
    assert set(threads) == {
        ("place_new_topic", True),
        ("create", True),
        ("initial_state", True),
        ("place_new_topic", False),
        ("create", False),
        ("initial_state", False),
        ("place_more_partitions", False),
        ("grow", False),
    }
