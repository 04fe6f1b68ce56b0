"""Table of all keys in etcd: writer, value and lifetime of each (PROTOCOL section 1.1).

`keys.Keyspace` builds and parses keys by this table, which has the only copy of each pattern. The administrators' dump
and docs/reference/etcd-keys.md use it, too. `python -m headrace_server.key_table` prints the table of that page.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from google.protobuf.message import Message
from headrace.v1 import auth_pb2
from headrace.wire.ids import BrokerId, TopicId

from headrace_server.internal_v1 import metadata_pb2


@dataclass(frozen=True, slots=True)
class MetaKey:
    """`/headrace/{cluster}/meta`."""


@dataclass(frozen=True, slots=True)
class BrokerKey:
    """`brokers/{broker_id}`."""

    broker_id: BrokerId


@dataclass(frozen=True, slots=True)
class BrokerSessionKey:
    """`broker_sessions/{broker_id}`."""

    broker_id: BrokerId


@dataclass(frozen=True, slots=True)
class DirectoryKey:
    """`directories/{generation}/{broker_id}`."""

    broker_id: BrokerId


@dataclass(frozen=True, slots=True)
class SupersededKey:
    """`superseded`."""


@dataclass(frozen=True, slots=True)
class ControllerKey:
    """`controller`."""


@dataclass(frozen=True, slots=True)
class CoordinatorKey:
    """`coordinators/{coordinator_id}`."""

    coordinator_id: str


@dataclass(frozen=True, slots=True)
class ClockKey:
    """`clocks/{process}`."""

    process: str


@dataclass(frozen=True, slots=True)
class TopicKey:
    """`topics/{name}`."""

    name: str


@dataclass(frozen=True, slots=True)
class TopicIdKey:
    """`topic_ids/{topic_id}`."""

    topic_id: TopicId


@dataclass(frozen=True, slots=True)
class DeletedTopicKey:
    """`deleted_topics/{topic_id}`."""

    topic_id: TopicId


@dataclass(frozen=True, slots=True)
class PartitionKey:
    """`partitions/{topic_id}/{partition}`."""

    topic_id: TopicId
    partition: int


@dataclass(frozen=True, slots=True)
class DrainedBrokerKey:
    """`drained_brokers/{broker_id}`."""

    broker_id: BrokerId


@dataclass(frozen=True, slots=True)
class GroupKey:
    """`group/{group_id}/state`."""

    group_id: str


@dataclass(frozen=True, slots=True)
class GroupAssignmentKey:
    """`group/{group_id}/assignments/{member_id}`."""

    group_id: str
    member_id: bytes


@dataclass(frozen=True, slots=True)
class GroupMemberKey:
    """`group/{group_id}/members/{member_id}`."""

    group_id: str
    member_id: bytes


@dataclass(frozen=True, slots=True)
class GroupOffsetKey:
    """`group/{group_id}/offsets/{topic_id}/{partition}`."""

    group_id: str
    topic_id: TopicId
    partition: int


@dataclass(frozen=True, slots=True)
class WriteFenceKey:
    """`write_fences/{fence_id}`."""

    fence_id: bytes


@dataclass(frozen=True, slots=True)
class UserKey:
    """`users/{user_id}`."""

    user_id: bytes


@dataclass(frozen=True, slots=True)
class GrantKey:
    """`grants/{grant_id}`."""

    grant_id: bytes


@dataclass(frozen=True, slots=True)
class RoleKey:
    """`roles/{name}`."""

    name: str


@dataclass(frozen=True, slots=True)
class IssuerKey:
    """`issuers/{name}`."""

    name: str


@dataclass(frozen=True, slots=True)
class SigningKeyKey:
    """`signing_keys/{key_id}`."""

    key_id: str


@dataclass(frozen=True, slots=True)
class QuotaKey:
    """`quotas/{quota_id}`."""

    quota_id: bytes


@dataclass(frozen=True, slots=True)
class PostureKey:
    """`posture`."""


@dataclass(frozen=True, slots=True)
class ClusterSecretsKey:
    """`cluster_secrets`."""


@dataclass(frozen=True, slots=True)
class SchemaRegistryKey:
    """`registry`."""


@dataclass(frozen=True, slots=True)
class SchemaKey:
    """`schemas/{schema_id}`."""

    schema_id: int


@dataclass(frozen=True, slots=True)
class SubjectKey:
    """`subjects/{subject_id}`."""

    subject_id: bytes


ParsedKey = (
    MetaKey
    | BrokerKey
    | BrokerSessionKey
    | DirectoryKey
    | SupersededKey
    | ControllerKey
    | CoordinatorKey
    | ClockKey
    | TopicKey
    | TopicIdKey
    | DeletedTopicKey
    | PartitionKey
    | DrainedBrokerKey
    | GroupKey
    | GroupAssignmentKey
    | GroupMemberKey
    | GroupOffsetKey
    | WriteFenceKey
    | UserKey
    | GrantKey
    | RoleKey
    | IssuerKey
    | SigningKeyKey
    | QuotaKey
    | PostureKey
    | ClusterSecretsKey
    | SchemaRegistryKey
    | SchemaKey
    | SubjectKey
)


@dataclass(frozen=True, slots=True)
class KeyFamily:
    """Row of the table: keys that share a pattern."""

    key: Callable[..., ParsedKey]
    """Class of parsed keys; its fields are those of the pattern, in that order."""
    pattern: str
    """Pattern below `/headrace/{cluster}/{generation}/`, or absolute if it starts with a slash."""
    writer: str
    value: type[Message]
    lifetime: str
    purpose: str


KEY_TABLE: tuple[KeyFamily, ...] = (
    KeyFamily(
        MetaKey,
        "/headrace/{cluster}/meta",
        "the first process of the cluster, once; `headrace-coordinator recover-metadata` raises `generation`",
        metadata_pb2.ClusterMeta,
        "persistent",
        "Cluster id, generation and format version; read before anything else.",
    ),
    KeyFamily(
        SupersededKey,
        "superseded",
        "`headrace-coordinator recover-metadata`, in the transaction that begins the next generation",
        metadata_pb2.ClusterMeta,
        "persistent",
        "This generation has ended; the value is that of the next one. Processes that still use this one exit.",
    ),
    KeyFamily(
        BrokerKey,
        "brokers/{broker_id}",
        "the broker itself",
        metadata_pb2.BrokerLive,
        "the broker's lease",
        "The registration of a broker. Its create_revision is the broker epoch.",
    ),
    KeyFamily(
        BrokerSessionKey,
        "broker_sessions/{broker_id}",
        "the broker itself, in the transaction of `brokers/{broker_id}`",
        metadata_pb2.BrokerSession,
        "persistent",
        "Process and data directory of the latest registration under this broker id.",
    ),
    KeyFamily(
        DirectoryKey,
        "/headrace/{cluster}/directories/{generation}/{broker_id}",
        "the broker itself: at its registration, and every two seconds while records are written or metadata changes",
        metadata_pb2.DirectoryVersion,
        "persistent",
        "Minimum version of the broker's data directory; a directory below it is an older copy of "
        "itself. The directory stores the revision at which etcd had this key, which is the "
        "minimum revision of etcd. No process watches the key.",
    ),
    KeyFamily(
        ControllerKey,
        "controller",
        "coordinators, created if absent",
        metadata_pb2.CoordinatorLive,
        "the controller's lease",
        "The elected controller. Its create_revision is the controller epoch, compared in every write of a controller.",
    ),
    KeyFamily(
        CoordinatorKey,
        "coordinators/{coordinator_id}",
        "the coordinator itself",
        metadata_pb2.CoordinatorLive,
        "the coordinator's lease",
        "The registration of a coordinator, with its address for clients.",
    ),
    KeyFamily(
        TopicKey,
        "topics/{name}",
        "coordinators",
        metadata_pb2.Topic,
        "persistent",
        "A topic by name. The topic is visible if and only if this key exists.",
    ),
    KeyFamily(
        TopicIdKey,
        "topic_ids/{topic_id}",
        "coordinators, in the transaction of `topics/{name}` or before it",
        metadata_pb2.Topic,
        "persistent",
        "The same topic by its id (32 hexadecimal digits). Alone, without `topics/{name}`: still being created.",
    ),
    KeyFamily(
        DeletedTopicKey,
        "deleted_topics/{topic_id}",
        "coordinators, in the transaction that deletes the topic",
        metadata_pb2.DeletedTopic,
        "`deleted_topics_retention_ms`, then removed by the controller",
        "The topic was deleted. Without this evidence no broker deletes a log of it.",
    ),
    KeyFamily(
        PartitionKey,
        "partitions/{topic_id}/{partition}",
        "the controller and the partition's leader, each write comparing mod_revision",
        metadata_pb2.PartitionState,
        "persistent",
        "Replicas, leader, leader epoch and in-sync set of a partition.",
    ),
    KeyFamily(
        DrainedBrokerKey,
        "drained_brokers/{broker_id}",
        "coordinators, at an administrator's request; `headrace-broker drain`",
        metadata_pb2.DrainedBroker,
        "persistent; by `headrace-broker drain` on the lease of the broker's registration",
        "The broker gets no leadership and no new replicas; its replicas stay in sync.",
    ),
    KeyFamily(
        ClockKey,
        "clocks/{process}",
        "every broker and coordinator, every two minutes; `trust-clock` and `recover-metadata`, as `operator`",
        metadata_pb2.ProcessClock,
        "persistent",
        "Wall clock of a process at the time of the write, by which other processes detect a wrong clock.",
    ),
    KeyFamily(
        GroupKey,
        "/headrace/{cluster}/groups/{generation}/group/{group_id}/state",
        "coordinators, by compare-and-swap",
        metadata_pb2.GroupState,
        "persistent; removed with the group",
        "Members of a consumer group, its topics, and the target and current owner of each partition.",
    ),
    KeyFamily(
        GroupAssignmentKey,
        "/headrace/{cluster}/groups/{generation}/group/{group_id}/assignments/{member_id}",
        "coordinators, in a transaction that compares the group's state",
        metadata_pb2.MemberAssignment,
        "persistent; removed with the member",
        "Partitions that a member owns: the paper's ownership registry. Commits compare it.",
    ),
    KeyFamily(
        GroupMemberKey,
        "/headrace/{cluster}/groups/{generation}/group/{group_id}/members/{member_id}",
        "coordinators, in the transaction in which the member joins",
        metadata_pb2.LiveMember,
        "the member's lease",
        "The member sent a heartbeat within its session timeout: the paper's consumer registry.",
    ),
    KeyFamily(
        GroupOffsetKey,
        "/headrace/{cluster}/groups/{generation}/group/{group_id}/offsets/{topic_id}/{partition}",
        "coordinators, for the partition's owner",
        metadata_pb2.CommittedOffset,
        "persistent; removed with the group, which expires after `offsets_retention_ms` without members",
        "The position where the group continues: the paper's offset registry.",
    ),
    KeyFamily(
        WriteFenceKey,
        "/headrace/{cluster}/write_fences/{fence_id}",
        "coordinators, before they repeat a write or a call that got no answer",
        metadata_pb2.WriteFence,
        "a lease of ten minutes",
        "The write compares that there is no such key, so that it is not applied any more. No process watches the key.",
    ),
    KeyFamily(
        UserKey,
        "/headrace/{cluster}/identity/users/{user_id}",
        "coordinators, by compare-and-swap; `headrace-coordinator bootstrap-admin`",
        metadata_pb2.StoredUser,
        "persistent",
        "A user with the hashes of its API keys. The id is the start of the SHA-256 of the name.",
    ),
    KeyFamily(
        GrantKey,
        "/headrace/{cluster}/identity/grants/{grant_id}",
        "coordinators, by compare-and-swap; `headrace-coordinator bootstrap-admin`",
        auth_pb2.Grant,
        "persistent; the controller removes it after `expires_ms`",
        "A role on a resource for a user or a group. The id is the start of the SHA-256 of the three.",
    ),
    KeyFamily(
        RoleKey,
        "/headrace/{cluster}/identity/roles/{name}",
        "coordinators, by compare-and-swap",
        auth_pb2.Role,
        "persistent",
        "A role that is not built in: a named set of operations.",
    ),
    KeyFamily(
        IssuerKey,
        "/headrace/{cluster}/identity/issuers/{name}",
        "coordinators, by compare-and-swap",
        auth_pb2.Issuer,
        "persistent",
        "An issuer whose JSON Web Tokens identify users.",
    ),
    KeyFamily(
        SigningKeyKey,
        "/headrace/{cluster}/identity/signing_keys/{key_id}",
        "the controller, which adds one a day and removes those that sign no valid session any more",
        metadata_pb2.SigningKey,
        "two days",
        "A key of session tokens. Every broker and coordinator verifies by it, and signs by the newest one.",
    ),
    KeyFamily(
        QuotaKey,
        "/headrace/{cluster}/identity/quotas/{quota_id}",
        "coordinators, by compare-and-swap",
        auth_pb2.Quota,
        "persistent",
        "Rates of one user, or of every user without its own. The id is the start of the SHA-256 of the name.",
    ),
    KeyFamily(
        PostureKey,
        "/headrace/{cluster}/identity/posture",
        "coordinators, at an administrator's request",
        metadata_pb2.StoredPosture,
        "persistent",
        "What happens to calls without an identity or a right, if it is stricter than the servers' settings.",
    ),
    KeyFamily(
        ClusterSecretsKey,
        "/headrace/{cluster}/identity/cluster_secrets",
        "`headrace-coordinator replace-secret`",
        metadata_pb2.ClusterSecrets,
        "persistent",
        "The cluster's secret after its first replacement, and during one the other secret that is accepted.",
    ),
    KeyFamily(
        SchemaRegistryKey,
        "/headrace/{cluster}/schema_registry/registry",
        "coordinators, by compare-and-swap",
        metadata_pb2.SchemaRegistryState,
        "persistent",
        "The last id of a schema, and the compatibility and mode of subjects without their own. Every registration "
        "compares it.",
    ),
    KeyFamily(
        SchemaKey,
        "/headrace/{cluster}/schema_registry/schemas/{schema_id}",
        "coordinators, in the transaction of a subject",
        metadata_pb2.StoredSchema,
        "persistent; removed with the last version that has it",
        "A schema, which may be a version of several subjects.",
    ),
    KeyFamily(
        SubjectKey,
        "/headrace/{cluster}/schema_registry/subjects/{subject_id}",
        "coordinators, by compare-and-swap",
        metadata_pb2.SchemaSubject,
        "persistent; removed with its last version",
        "A subject with its versions. The id is the start of the SHA-256 of the name.",
    ),
)


def describe_keys() -> str:
    """Return docs/reference/etcd-keys.md as markdown."""
    lines = [
        "# Keys in etcd",
        "",
        "Generated by `python -m headrace_server.key_table`. Keys that do not begin with a slash are below",
        "`/headrace/{cluster}/{generation}/`, whose generation comes from the first. Values are the protobuf",
        "messages of `proto/headrace/internal/v1/metadata.proto`; `headrace cluster dump` prints them all.",
        "",
        "| key | value | written by | lifetime | purpose |",
        "| --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| `{row.pattern}` | `{row.value.DESCRIPTOR.name}` | {row.writer} | {row.lifetime} | {row.purpose} |"
        for row in KEY_TABLE
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(describe_keys(), end="")
