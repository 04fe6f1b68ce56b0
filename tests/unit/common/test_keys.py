"""Keys are built and taken apart by one table."""

import json

import pytest
from headrace.wire.errors import InvalidConfigError
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.keys import (
    KEY_TABLE,
    ClockKey,
    ControllerKey,
    CoordinatorKey,
    DeletedTopicKey,
    DirectoryKey,
    DrainKey,
    EndedKey,
    GroupAssignmentKey,
    GroupKey,
    GroupMemberKey,
    GroupOffsetKey,
    Keyspace,
    LiveKey,
    PartitionKey,
    PositionKey,
    SessionKey,
    TopicIdKey,
    TopicKey,
    describe_keys,
    meta_key,
    value_json,
)

KEYS = Keyspace("test", 2)
TOPIC_ID = bytes(range(16))

BUILT = [
    (KEYS.live(3), "live/3", LiveKey(3), "live"),
    (KEYS.session(3), "sess/3", SessionKey(3), "sess"),
    (KEYS.ended(), "ended", EndedKey(), "ended"),
    (KEYS.controller(), "ctl", ControllerKey(), "ctl"),
    (KEYS.coordinator("a"), "coord/a", CoordinatorKey("a"), "coord"),
    (KEYS.clock("broker-3"), "clock/broker-3", ClockKey("broker-3"), "clock"),
    (KEYS.topic("page.views"), "topic/page.views", TopicKey("page.views"), "topic"),
    (KEYS.topic_by_id(TOPIC_ID), f"tid/{TOPIC_ID.hex()}", TopicIdKey(TOPIC_ID), "tid"),
    (KEYS.deleted_topic(TOPIC_ID), f"deleted/{TOPIC_ID.hex()}", DeletedTopicKey(TOPIC_ID), "deleted"),
    (KEYS.partition(TOPIC_ID, 7), f"part/{TOPIC_ID.hex()}/7", PartitionKey(TOPIC_ID, 7), "part"),
    (KEYS.drained(3), "drain/3", DrainKey(3), "drain"),
]
MEMBER_ID = bytes(range(16, 32))
GROUP_BUILT = [
    (KEYS.group("g"), "group/g/state", GroupKey("g"), "state"),
    (
        KEYS.group_assignment("g", MEMBER_ID),
        f"group/g/assign/{MEMBER_ID.hex()}",
        GroupAssignmentKey("g", MEMBER_ID),
        "assign",
    ),
    (KEYS.group_member("g", MEMBER_ID), f"group/g/live/{MEMBER_ID.hex()}", GroupMemberKey("g", MEMBER_ID), "member"),
    (KEYS.group_offset("g", TOPIC_ID, 7), f"group/g/off/{TOPIC_ID.hex()}/7", GroupOffsetKey("g", TOPIC_ID, 7), "off"),
    (KEYS.position("r"), "position/r", PositionKey("r"), "position"),
]


@pytest.mark.parametrize(("key", "tail", "parsed", "family"), BUILT)
def test_keys_go_there_and_back(key, tail, parsed, family):
    """Every key of the table is built, parsed and found in the table."""
    assert key == "/headrace/test/2/" + tail
    assert KEYS.parse(key) == parsed
    assert KEYS.family(key).name == family


def test_the_version_of_a_directory_stands_apart():
    """It is written every few seconds, and no view sees it."""
    key = KEYS.directory(3)
    assert key == "/headrace/test/directories/2/3"
    assert not key.startswith((KEYS.prefix, KEYS.groups_prefix))
    assert (KEYS.parse(key), KEYS.family(key).name) == (DirectoryKey(3), "directory")
    assert KEYS.parse(KEYS.directories_prefix + "x") is None


@pytest.mark.parametrize(("key", "tail", "parsed", "family"), GROUP_BUILT)
def test_keys_of_groups_stand_apart(key, tail, parsed, family):
    """No view of the brokers' prefix sees them."""
    assert key == "/headrace/test/groups/2/" + tail
    assert not key.startswith(KEYS.prefix)
    assert KEYS.parse(key) == parsed
    assert KEYS.family(key).name == family


def test_every_family_is_built_here():
    """No row of the table lacks a builder."""
    assert {family for *_, family in (*BUILT, *GROUP_BUILT)} | {"meta", "directory"} == {row.name for row in KEY_TABLE}
    assert KEYS.family(meta_key("test")).name == "meta"


@pytest.mark.parametrize(
    "key",
    [
        "/headrace/test/1/ctl",
        "/headrace/test/2/live/x",
        "/headrace/test/2/live/01",
        "/headrace/test/2/live/-1",
        "/headrace/test/2/live/",
        "/headrace/test/2/tid/00",
        f"/headrace/test/2/tid/{TOPIC_ID.hex().upper()}",
        f"/headrace/test/2/part/{TOPIC_ID.hex()}",
        "/headrace/test/2/future/key",
        "/headrace/test/2/",
        "/other",
    ],
)
def test_strange_keys_are_not_ours(key):
    """A key of another generation, shape or family is None, never an exception."""
    assert KEYS.parse(key) is None
    assert KEYS.decode_value(key, b"") is None


def test_prefixes_hold_their_keys_only():
    """A prefix ends with a slash, so that broker 1 is not a part of broker 10."""
    assert KEYS.live(1).startswith(KEYS.live_prefix())
    assert KEYS.topic("t").startswith(KEYS.topic_prefix())
    assert KEYS.coordinator("a").startswith(KEYS.coordinator_prefix())
    assert KEYS.topic_by_id(TOPIC_ID).startswith(KEYS.topic_by_id_prefix())
    assert KEYS.partition(TOPIC_ID, 1).startswith(KEYS.partition_prefix(TOPIC_ID))
    assert KEYS.partition_prefix(TOPIC_ID).startswith(KEYS.partition_prefix())
    for prefix in (KEYS.prefix, KEYS.live_prefix(), KEYS.partition_prefix(), KEYS.partition_prefix(TOPIC_ID)):
        assert prefix.endswith("/")


@pytest.mark.parametrize("cluster", ["", "a/b", "-a", "a" * 64, "a b", "a\n"])
def test_a_bad_cluster_name_is_refused(cluster):
    """The cluster's name is part of every key; what would tear keys apart is refused."""
    with pytest.raises(InvalidConfigError):
        meta_key(cluster)


def test_values_are_shown_decoded():
    """The dump shows a value's fields by their names, and an unreadable value as what it is."""
    value = metadata_pb2.BrokerLive(broker_id=3, address="localhost:7181").SerializeToString()
    assert json.loads(value_json(KEYS, KEYS.live(3), value)) == {"broker_id": 3, "address": "localhost:7181"}
    assert json.loads(value_json(KEYS, KEYS.live(3), b"\xff")) == {"undecoded_hex": "ff"}
    assert json.loads(value_json(KEYS, "/headrace/test/2/future", b"\x01")) == {"undecoded_hex": "01"}


def test_the_reference_page_has_every_key():
    """docs/reference/etcd-keys.md has one row a family."""
    page = describe_keys()
    assert all(f"| `{row.pattern}` | `{row.value.DESCRIPTOR.name}` |" in page for row in KEY_TABLE)
