"""Keys are built and taken apart by one table."""

import base64
import json

import pytest
from headrace.wire.errors import InvalidConfigError
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.key_table import (
    KEY_TABLE,
    BrokerKey,
    BrokerSessionKey,
    ClockKey,
    ClusterSecretsKey,
    ControllerKey,
    CoordinatorKey,
    DeletedTopicKey,
    DirectoryKey,
    DrainedBrokerKey,
    GrantKey,
    GroupAssignmentKey,
    GroupKey,
    GroupMemberKey,
    GroupOffsetKey,
    IssuerKey,
    MetaKey,
    PartitionKey,
    PostureKey,
    QuotaKey,
    RoleKey,
    SchemaKey,
    SchemaRegistryKey,
    SigningKeyKey,
    SubjectKey,
    SupersededKey,
    TopicIdKey,
    TopicKey,
    UserKey,
    WriteFenceKey,
    describe_keys,
)
from headrace_server.keys import Keyspace, digest_id, meta_key, value_json

KEYS = Keyspace("test", 2)
TOPIC_ID = bytes(range(16))

BUILT = [
    (KEYS.broker(3), "brokers/3", BrokerKey(3)),
    (KEYS.broker_session(3), "broker_sessions/3", BrokerSessionKey(3)),
    (KEYS.superseded(), "superseded", SupersededKey()),
    (KEYS.controller(), "controller", ControllerKey()),
    (KEYS.coordinator("a"), "coordinators/a", CoordinatorKey("a")),
    (KEYS.clock("broker-3"), "clocks/broker-3", ClockKey("broker-3")),
    (KEYS.topic("page.views"), "topics/page.views", TopicKey("page.views")),
    (KEYS.topic_by_id(TOPIC_ID), f"topic_ids/{TOPIC_ID.hex()}", TopicIdKey(TOPIC_ID)),
    (KEYS.deleted_topic(TOPIC_ID), f"deleted_topics/{TOPIC_ID.hex()}", DeletedTopicKey(TOPIC_ID)),
    (KEYS.partition(TOPIC_ID, 7), f"partitions/{TOPIC_ID.hex()}/7", PartitionKey(TOPIC_ID, 7)),
    (KEYS.drained_broker(3), "drained_brokers/3", DrainedBrokerKey(3)),
]
MEMBER_ID = bytes(range(16, 32))
GROUP_BUILT = [
    (KEYS.group("g"), "group/g/state", GroupKey("g")),
    (
        KEYS.group_assignment("g", MEMBER_ID),
        f"group/g/assignments/{MEMBER_ID.hex()}",
        GroupAssignmentKey("g", MEMBER_ID),
    ),
    (KEYS.group_member("g", MEMBER_ID), f"group/g/members/{MEMBER_ID.hex()}", GroupMemberKey("g", MEMBER_ID)),
    (KEYS.group_offset("g", TOPIC_ID, 7), f"group/g/offsets/{TOPIC_ID.hex()}/7", GroupOffsetKey("g", TOPIC_ID, 7)),
]


IDENTITY_BUILT = [
    (KEYS.user("ada/é"), f"users/{digest_id('ada/é').hex()}", UserKey(digest_id("ada/é"))),
    (
        KEYS.grant("ada", "reader", "topic:a/b"),
        f"grants/{digest_id('ada', 'reader', 'topic:a/b').hex()}",
        GrantKey(digest_id("ada", "reader", "topic:a/b")),
    ),
    (KEYS.role("curator"), "roles/curator", RoleKey("curator")),
    (KEYS.issuer("corp"), "issuers/corp", IssuerKey("corp")),
    (KEYS.signing_key("k1"), "signing_keys/k1", SigningKeyKey("k1")),
    (KEYS.quota("*"), f"quotas/{digest_id('*').hex()}", QuotaKey(digest_id("*"))),
    (KEYS.posture(), "posture", PostureKey()),
    (KEYS.cluster_secrets(), "cluster_secrets", ClusterSecretsKey()),
]


SCHEMA_BUILT = [
    (KEYS.schema_registry(), "registry", SchemaRegistryKey()),
    (KEYS.schema(7), "schemas/7", SchemaKey(7)),
    (KEYS.subject("a/b"), f"subjects/{digest_id('a/b').hex()}", SubjectKey(digest_id("a/b"))),
]


@pytest.mark.parametrize(("key", "tail", "parsed"), BUILT)
def test_keys_go_there_and_back(key, tail, parsed):
    """Every key of the table is built, parsed and found in the table."""
    assert key == "/headrace/test/2/" + tail
    assert KEYS.parse(key) == parsed
    assert KEYS.family(key).key is type(parsed)


def test_the_version_of_a_directory_has_a_key_of_its_own():
    """It is written every few seconds, and no view sees it."""
    key = KEYS.directory(3)
    assert key == "/headrace/test/directories/2/3"
    assert not key.startswith((KEYS.prefix, KEYS.groups_prefix))
    assert (KEYS.parse(key), KEYS.family(key).key) == (DirectoryKey(3), DirectoryKey)
    assert KEYS.parse(KEYS.directories_prefix + "x") is None


def test_fences_of_writes_have_a_prefix_of_their_own():
    """They are of every generation, and no view sees them."""
    key = KEYS.write_fence(TOPIC_ID)
    assert key == KEYS.write_fences_prefix + TOPIC_ID.hex() == f"/headrace/test/write_fences/{TOPIC_ID.hex()}"
    assert not key.startswith((KEYS.prefix, KEYS.groups_prefix, KEYS.identity_prefix, KEYS.schema_registry_prefix))
    assert (KEYS.parse(key), KEYS.family(key).key) == (WriteFenceKey(TOPIC_ID), WriteFenceKey)


@pytest.mark.parametrize(("key", "tail", "parsed"), GROUP_BUILT)
def test_keys_of_groups_have_a_prefix_of_their_own(key, tail, parsed):
    """No view of the brokers' prefix sees them."""
    assert key == "/headrace/test/groups/2/" + tail
    assert not key.startswith(KEYS.prefix)
    assert KEYS.parse(key) == parsed
    assert KEYS.family(key).key is type(parsed)


@pytest.mark.parametrize(("key", "tail", "parsed"), IDENTITY_BUILT)
def test_keys_of_identity_are_those_of_every_generation(key, tail, parsed):
    """A name of any characters has a key, and the parts of one are told apart."""
    assert key == "/headrace/test/identity/" + tail
    assert not key.startswith((KEYS.prefix, KEYS.groups_prefix))
    assert KEYS.parse(key) == parsed
    assert KEYS.family(key).key is type(parsed)
    assert digest_id("ab", "c") != digest_id("a", "bc")


@pytest.mark.parametrize(("key", "tail", "parsed"), SCHEMA_BUILT)
def test_keys_of_schemas_are_those_of_every_generation(key, tail, parsed):
    """No view of brokers or of identity sees them."""
    assert key == KEYS.schema_registry_prefix + tail == "/headrace/test/schema_registry/" + tail
    assert not key.startswith((KEYS.prefix, KEYS.groups_prefix, KEYS.identity_prefix))
    assert KEYS.parse(key) == parsed
    assert KEYS.family(key).key is type(parsed)


@pytest.mark.parametrize(
    ("key", "message", "secret"),
    [
        (KEYS.signing_key("k"), metadata_pb2.SigningKey(key_id="k", secret=b"secret" * 6), b"secret"),
        (
            KEYS.cluster_secrets(),
            metadata_pb2.ClusterSecrets(used=b"secret" * 6, next=b"secret" * 6, previous=b"secret" * 6),
            b"secret",
        ),
        (
            KEYS.user("ada"),
            metadata_pb2.StoredUser(name="ada", api_keys=[metadata_pb2.StoredApiKey(key_id="k", sha256=b"secret" * 5)]),
            b"secret",
        ),
    ],
)
def test_a_dump_has_no_secret_of_identity(key, message, secret):
    """Nor one in a value that this release cannot decode."""
    encoded = (base64.b64encode(secret * 2).decode()[:8], secret.hex())
    for value in (message.SerializeToString(), b"\xff" + secret):
        text = value_json(KEYS, key, value)
        assert not any(each in text for each in encoded), text


def test_every_family_is_built_here():
    """No row of the table lacks a builder."""
    built = {type(parsed) for *_, parsed in (*BUILT, *GROUP_BUILT, *IDENTITY_BUILT, *SCHEMA_BUILT)}
    assert built | {MetaKey, DirectoryKey, WriteFenceKey} == {row.key for row in KEY_TABLE}
    assert KEYS.family(meta_key("test")).key is MetaKey


@pytest.mark.parametrize(
    "key",
    [
        "/headrace/test/1/controller",
        "/headrace/test/2/brokers/x",
        "/headrace/test/2/brokers/01",
        "/headrace/test/2/brokers/-1",
        "/headrace/test/2/brokers/",
        "/headrace/test/2/topic_ids/00",
        f"/headrace/test/2/topic_ids/{TOPIC_ID.hex().upper()}",
        f"/headrace/test/2/partitions/{TOPIC_ID.hex()}",
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
    assert KEYS.broker(1).startswith(KEYS.broker_prefix())
    assert KEYS.topic("t").startswith(KEYS.topic_prefix())
    assert KEYS.coordinator("a").startswith(KEYS.coordinator_prefix())
    assert KEYS.topic_by_id(TOPIC_ID).startswith(KEYS.topic_by_id_prefix())
    assert KEYS.partition(TOPIC_ID, 1).startswith(KEYS.partition_prefix(TOPIC_ID))
    assert KEYS.partition_prefix(TOPIC_ID).startswith(KEYS.partition_prefix())
    for prefix in (KEYS.prefix, KEYS.broker_prefix(), KEYS.partition_prefix(), KEYS.partition_prefix(TOPIC_ID)):
        assert prefix.endswith("/")


def test_changes_are_sorted_by_family():
    """Who waits for some families is not woken by others, also where one name begins with another's."""
    assert KEYS.has_any([KEYS.clock("x"), KEYS.controller()], ControllerKey, TopicKey)
    assert not KEYS.has_any([KEYS.coordinator("a"), KEYS.topic_by_id(TOPIC_ID)], ControllerKey, TopicKey)
    assert not KEYS.has_any([], ControllerKey)


@pytest.mark.parametrize("cluster", ["", "a/b", "-a", "a" * 64, "a b", "a\n"])
def test_a_bad_cluster_name_is_refused(cluster):
    """The cluster's name is part of every key; what would tear keys apart is refused."""
    with pytest.raises(InvalidConfigError):
        meta_key(cluster)


def test_values_are_shown_decoded():
    """The dump shows a value's fields by their names, and an unreadable value as what it is."""
    value = metadata_pb2.BrokerLive(broker_id=3, address="localhost:7181").SerializeToString()
    assert json.loads(value_json(KEYS, KEYS.broker(3), value)) == {"broker_id": 3, "address": "localhost:7181"}
    assert json.loads(value_json(KEYS, KEYS.broker(3), b"\xff")) == {"undecoded_hex": "ff"}
    assert json.loads(value_json(KEYS, "/headrace/test/2/future", b"\x01")) == {"undecoded_hex": "01"}


def test_the_reference_page_has_every_key():
    """docs/reference/etcd-keys.md has one row a family."""
    page = describe_keys()
    assert all(f"| `{row.pattern}` | `{row.value.DESCRIPTOR.name}` |" in page for row in KEY_TABLE)
