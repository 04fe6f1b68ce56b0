"""The creator of a topic owns it until it is deleted, whatever answers are lost."""

from __future__ import annotations

import pytest
from headrace.v1 import auth_pb2, topics_pb2
from headrace.wire.errors import MetadataLimitError
from headrace_coordinator.core.topics import place_new_topic
from headrace_coordinator.runtime import topic_owners
from headrace_coordinator.runtime.topic_owners import TopicOwners
from headrace_server.identity.callers import ANONYMOUS
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.metastore.api import Delete, Put

from tests.fakes.lossy_metastore import LOST, NEVER
from tests.unit.common.identity.test_gate import KEYS, Known
from tests.unit.coordinator.parts import SECONDS
from tests.unit.coordinator.test_topic_store import checked


async def put_user(parts, name):
    """Write a user, as if created now."""
    user = metadata_pb2.StoredUser(name=name).SerializeToString()
    result = await parts.memory.txn([], [Put(parts.keyspace.user(name), user)])
    await parts.identity_source.wait_for(result.revision, SECONDS)


async def create(parts, owner, partitions=3):
    topic = checked("t", partitions)
    placement = place_new_topic(topic, parts.store.candidates())
    created = await parts.store.create(topic, placement, parts.deadline, owner)
    await parts.prefix_view.wait_for(created.revision, SECONDS)
    return created


async def delete(parts):
    _, revision = await parts.store.delete(topics_pb2.TopicRef(name="t"), parts.deadline)
    await parts.prefix_view.wait_for(revision, SECONDS)


async def grants(parts):
    """Return (principal, role, resource) of all grants in etcd."""
    found = (await parts.memory.range(parts.keyspace.identity_prefix + "grants/")).key_values
    read = [auth_pb2.Grant.FromString(each.value) for each in found]
    return sorted((grant.principal, grant.role, grant.resource) for grant in read)


@pytest.mark.parametrize("partitions", [3, 300])
@pytest.mark.parametrize("faults", [[], [NEVER], [LOST], [LOST, NEVER]])
async def test_a_topic_has_an_owner_from_its_creation_to_its_deletion(parts, partitions, faults):
    """One grant, also of a topic that takes several transactions; the next topic of the name has another owner."""
    await parts.register(1)
    for user in ("ada", "bob"):
        await put_user(parts, user)
    parts.metastore.faults = list(faults)
    await create(parts, "ada", partitions)
    assert await grants(parts) == [("ada", "owner", "topic:t")]
    parts.metastore.faults = list(faults)
    await delete(parts)
    assert await grants(parts) == []
    await create(parts, "bob", partitions)
    assert await grants(parts) == [("bob", "owner", "topic:t")]


async def test_settings_and_growth_keep_the_owner(parts):
    """What rewrites the topic does not lose the name by which its grant is deleted."""
    await parts.register(1)
    await put_user(parts, "ada")
    await create(parts, "ada")
    reference = topics_pb2.TopicRef(name="t")
    await parts.store.configure(reference, lambda _: {"retention_ms": "1000"}, parts.deadline)
    await delete(parts)
    assert await grants(parts) == []


async def test_a_user_that_was_deleted_owns_nothing(parts):
    """The view still shows it when the topic is written: the topic is created, and a later user has no right to it."""
    await parts.register(1)
    await put_user(parts, "ada")
    await parts.memory.txn([], [Delete(parts.keyspace.user("ada"))])
    created = await create(parts, "ada")
    assert created.topic_id
    assert await grants(parts) == []


@pytest.mark.parametrize(
    ("granted", "owner"),
    [
        ([("create", "topic:*")], "ada"),
        ([("create", "topic:t"), ("writer", "topic:t")], "ada"),
        ([("developer", "topic:t*")], ""),
        ([("admin", "cluster")], ""),
        ([("writer", "topic:t")], ""),
        ([], ""),
    ],
)
def test_who_may_create_and_nothing_more_becomes_the_owner(granted, owner):
    """Not administrators, whose grants cover the topic, nor callers that only the posture lets create it."""
    known = Known()
    caller = known.gate.identification.caller(known.user("ada"))
    for role, resource in granted:
        known.grant("ada", role, resource)
    caller.refresh(known.clock.now_ms())
    owners = TopicOwners(known.gate.view, KEYS, known.clock)
    assert owners.new_owner(caller, "t") == owner
    assert owners.new_owner(ANONYMOUS, "t") == ""


def test_owners_leave_room_for_the_grants_of_administrators(monkeypatch):
    """A user that creates topics without end is refused when half of all grants are used."""
    monkeypatch.setattr(topic_owners, "MAX_OWNED", 2)
    known = Known()
    caller = known.gate.identification.caller(known.user("ada"))
    owners = TopicOwners(known.gate.view, KEYS, known.clock)
    known.grant("ada", "create", "topic:*")
    caller.refresh(known.clock.now_ms())
    assert owners.new_owner(caller, "t") == "ada"
    known.grant("bob", "reader", "topic:x")
    with pytest.raises(MetadataLimitError, match="2 grants"):
        owners.new_owner(caller, "t")
