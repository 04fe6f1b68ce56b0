"""The keyspace in etcd: every key, who writes it, what its value is and how long it lives (PROTOCOL section 1.1).

Brokers and coordinators build keys here and nowhere else. `KEY_TABLE` is the one list: `parse`, `decode_value`, the
administrators' dump and docs/reference/etcd-keys.md come from it. `python -m headrace_server.keys` prints that page.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from google.protobuf import json_format
from google.protobuf.message import DecodeError, Message
from headrace.wire.errors import InvalidConfigError
from headrace.wire.ids import BrokerId, TopicId

from headrace_server.internal_v1 import metadata_pb2

ROOT = "/headrace/"
_CLUSTER_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,62}\Z")


@dataclass(frozen=True, slots=True)
class KeyFamily:
    """One row of the table: keys that share a pattern."""

    name: str
    """Stable name of the family, as `part`."""
    pattern: str
    """Below `/headrace/{cluster}/{generation}/`, or whole where it starts with a slash."""
    writer: str
    value: type[Message]
    lifetime: str
    purpose: str


KEY_TABLE: tuple[KeyFamily, ...] = (
    KeyFamily(
        "meta",
        "/headrace/{cluster}/meta",
        "the first process of the cluster, once; `headrace-coordinator recover-metadata` raises `generation`",
        metadata_pb2.ClusterMeta,
        "persistent",
        "Cluster id, generation and format version; read before anything else.",
    ),
    KeyFamily(
        "ended",
        "ended",
        "`headrace-coordinator recover-metadata`, in the transaction that begins the next one",
        metadata_pb2.ClusterMeta,
        "persistent",
        "This generation is over; the value is the next one's. Processes that still use it end.",
    ),
    KeyFamily(
        "live",
        "live/{broker_id}",
        "the broker itself",
        metadata_pb2.BrokerLive,
        "the broker's lease",
        "The registration of a broker. Its create_revision is the broker epoch.",
    ),
    KeyFamily(
        "sess",
        "sess/{broker_id}",
        "the broker itself, in the transaction of `live/{broker_id}`",
        metadata_pb2.BrokerSession,
        "persistent",
        "Which process and which data directory registered last under this broker id.",
    ),
    KeyFamily(
        "directory",
        "/headrace/{cluster}/directories/{generation}/{broker_id}",
        "the broker itself: at its registration, and every two seconds while records are written or metadata changes",
        metadata_pb2.DirectoryVersion,
        "persistent",
        "How new the broker's data directory is at least, or it is an older copy of itself. The directory notes when "
        "etcd had it, and so how new etcd is at least. No process watches it.",
    ),
    KeyFamily(
        "ctl",
        "ctl",
        "coordinators: made if absent",
        metadata_pb2.CoordinatorLive,
        "the controller's lease",
        "The elected controller. Its create_revision is the controller epoch, compared in every write of a controller.",
    ),
    KeyFamily(
        "coord",
        "coord/{coordinator_id}",
        "the coordinator itself",
        metadata_pb2.CoordinatorLive,
        "the coordinator's lease",
        "The registration of a coordinator: where clients reach it.",
    ),
    KeyFamily(
        "topic",
        "topic/{name}",
        "coordinators",
        metadata_pb2.Topic,
        "persistent",
        "A topic by name. The topic is visible if and only if this key is there.",
    ),
    KeyFamily(
        "tid",
        "tid/{topic_id}",
        "coordinators, in the transaction of `topic/{name}` or before it",
        metadata_pb2.Topic,
        "persistent",
        "The same topic by its id (32 hexadecimal digits). Alone, without `topic/{name}`: still being created.",
    ),
    KeyFamily(
        "deleted",
        "deleted/{topic_id}",
        "coordinators, in the transaction that deletes the topic",
        metadata_pb2.DeletedTopic,
        "`deleted_topics_retention_ms`, then removed by the controller",
        "The topic was deleted: the evidence without which no broker deletes a log of it.",
    ),
    KeyFamily(
        "part",
        "part/{topic_id}/{partition}",
        "the controller and the partition's leader, each write comparing mod_revision",
        metadata_pb2.PartitionState,
        "persistent",
        "Replicas, leader, leader epoch and in-sync set of a partition.",
    ),
    KeyFamily(
        "drain",
        "drain/{broker_id}",
        "coordinators, on an administrator's word; `headrace-broker drain`",
        metadata_pb2.DrainedBroker,
        "persistent; by `headrace-broker drain` on the lease of the broker's registration",
        "The broker gets no leadership and no new replicas; what it holds stays in sync.",
    ),
    KeyFamily(
        "clock",
        "clock/{process}",
        "every broker and coordinator, each two minutes; `trust-clock` and `recover-metadata`, as `operator`",
        metadata_pb2.ProcessClock,
        "persistent",
        "The wall clock of a process when it wrote, so that others see a clock that is wrong.",
    ),
    KeyFamily(
        "state",
        "/headrace/{cluster}/groups/{generation}/group/{group_id}/state",
        "coordinators, by compare-and-swap",
        metadata_pb2.GroupState,
        "persistent; removed with the group",
        "Members of a consumer group, its topics, who is to own each partition and who does.",
    ),
    KeyFamily(
        "assign",
        "/headrace/{cluster}/groups/{generation}/group/{group_id}/assign/{member_id}",
        "coordinators, in a transaction that compares the group's state",
        metadata_pb2.MemberAssignment,
        "persistent; removed with the member",
        "What one member owns: the paper's ownership registry. Commits compare it.",
    ),
    KeyFamily(
        "member",
        "/headrace/{cluster}/groups/{generation}/group/{group_id}/live/{member_id}",
        "coordinators, in the transaction that lets the member join",
        metadata_pb2.LiveMember,
        "the member's lease",
        "The member was heard of within its session timeout: the paper's consumer registry.",
    ),
    KeyFamily(
        "off",
        "/headrace/{cluster}/groups/{generation}/group/{group_id}/off/{topic_id}/{partition}",
        "coordinators, for the partition's owner",
        metadata_pb2.CommittedOffset,
        "persistent; removed with the group, or when it was empty for long",
        "The position where the group continues: the paper's offset registry.",
    ),
    KeyFamily(
        "position",
        "/headrace/{cluster}/groups/{generation}/position/{reader_id}",
        "coordinators, for a reader",
        metadata_pb2.ReportedPositions,
        "a lease",
        "Positions of a reader without a group, for observation only.",
    ),
)

FAMILIES: dict[str, KeyFamily] = {family.name: family for family in KEY_TABLE}


@dataclass(frozen=True, slots=True)
class LiveKey:
    """`live/{broker_id}`."""

    broker_id: BrokerId


@dataclass(frozen=True, slots=True)
class SessionKey:
    """`sess/{broker_id}`."""

    broker_id: BrokerId


@dataclass(frozen=True, slots=True)
class DirectoryKey:
    """`directories/{generation}/{broker_id}`."""

    broker_id: BrokerId


@dataclass(frozen=True, slots=True)
class EndedKey:
    """`ended`."""


@dataclass(frozen=True, slots=True)
class ControllerKey:
    """`ctl`."""


@dataclass(frozen=True, slots=True)
class CoordinatorKey:
    """`coord/{coordinator_id}`."""

    coordinator_id: str


@dataclass(frozen=True, slots=True)
class ClockKey:
    """`clock/{process}`."""

    process: str


@dataclass(frozen=True, slots=True)
class TopicKey:
    """`topic/{name}`."""

    name: str


@dataclass(frozen=True, slots=True)
class TopicIdKey:
    """`tid/{topic_id}`."""

    topic_id: TopicId


@dataclass(frozen=True, slots=True)
class DeletedTopicKey:
    """`deleted/{topic_id}`."""

    topic_id: TopicId


@dataclass(frozen=True, slots=True)
class PartitionKey:
    """`part/{topic_id}/{partition}`."""

    topic_id: TopicId
    partition: int


@dataclass(frozen=True, slots=True)
class DrainKey:
    """`drain/{broker_id}`."""

    broker_id: BrokerId


@dataclass(frozen=True, slots=True)
class GroupKey:
    """`group/{group_id}/state`."""

    group_id: str


@dataclass(frozen=True, slots=True)
class GroupAssignmentKey:
    """`group/{group_id}/assign/{member_id}`."""

    group_id: str
    member_id: bytes


@dataclass(frozen=True, slots=True)
class GroupMemberKey:
    """`group/{group_id}/live/{member_id}`."""

    group_id: str
    member_id: bytes


@dataclass(frozen=True, slots=True)
class GroupOffsetKey:
    """`group/{group_id}/off/{topic_id}/{partition}`."""

    group_id: str
    topic_id: TopicId
    partition: int


@dataclass(frozen=True, slots=True)
class PositionKey:
    """`position/{reader_id}`."""

    reader_id: str


ParsedKey = (
    LiveKey
    | SessionKey
    | DirectoryKey
    | EndedKey
    | ControllerKey
    | CoordinatorKey
    | ClockKey
    | TopicKey
    | TopicIdKey
    | DeletedTopicKey
    | PartitionKey
    | DrainKey
    | GroupKey
    | GroupAssignmentKey
    | GroupMemberKey
    | GroupOffsetKey
    | PositionKey
)


def meta_key(cluster: str) -> str:
    """The key of the cluster's identity, outside any generation.

    Raises:
        InvalidConfigError: `cluster` is not 1 to 63 of letters, digits, dot, underscore and dash.
    """
    if not _CLUSTER_NAME.match(cluster):
        raise InvalidConfigError(
            f"the cluster name {cluster!r} is not 1 to 63 letters, digits, dots, underscores and dashes that start "
            "with a letter or digit",
            action="Set another cluster name.",
        )
    return f"{ROOT}{cluster}/meta"


@dataclass(frozen=True, slots=True)
class Keyspace:
    """Builds and parses the keys of one cluster in one generation. Immutable."""

    cluster: str
    generation: int

    def __post_init__(self) -> None:
        meta_key(self.cluster)
        assert self.generation >= 1, self.generation

    @property
    def prefix(self) -> str:
        """What every key of this generation starts with; ends with a slash."""
        return f"{ROOT}{self.cluster}/{self.generation}/"

    @property
    def groups_prefix(self) -> str:
        """What every key of consumer groups starts with; ends with a slash. Brokers do not watch it."""
        return f"{ROOT}{self.cluster}/groups/{self.generation}/"

    @property
    def directories_prefix(self) -> str:
        """What every key of a data directory's version starts with; ends with a slash. No process watches it."""
        return f"{ROOT}{self.cluster}/directories/{self.generation}/"

    def directory(self, broker_id: int) -> str:
        """Key of the version of a broker's data directory."""
        return f"{self.directories_prefix}{broker_id}"

    def group(self, group_id: str) -> str:
        """Key of a group's state; the (checked) id has no slash."""
        return f"{self.group_prefix(group_id)}state"

    def group_prefix(self, group_id: str) -> str:
        """Prefix of all keys of one group."""
        assert group_id, "an empty group id"
        assert "/" not in group_id, group_id
        return f"{self.groups_prefix}group/{group_id}/"

    def group_assignment(self, group_id: str, member_id: bytes) -> str:
        """Key of what a member (16 bytes) owns."""
        assert len(member_id) == 16, member_id
        return f"{self.group_prefix(group_id)}assign/{member_id.hex()}"

    def group_member(self, group_id: str, member_id: bytes) -> str:
        """Key of a member's liveness, on its lease."""
        assert len(member_id) == 16, member_id
        return f"{self.group_prefix(group_id)}live/{member_id.hex()}"

    def group_offset(self, group_id: str, topic_id: bytes, partition: int) -> str:
        """Key of a committed offset."""
        assert len(topic_id) == 16, topic_id
        assert partition >= 0, partition
        return f"{self.group_prefix(group_id)}off/{topic_id.hex()}/{partition}"

    def position(self, reader_id: str) -> str:
        """Key of the positions that a reader reports; the (checked) id has no slash."""
        assert reader_id, "an empty reader id"
        assert "/" not in reader_id, reader_id
        return f"{self.groups_prefix}position/{reader_id}"

    def live(self, broker_id: int) -> str:
        """Key of a broker's registration."""
        return f"{self.prefix}live/{broker_id}"

    def live_prefix(self) -> str:
        """Prefix of all brokers' registrations."""
        return f"{self.prefix}live/"

    def session(self, broker_id: int) -> str:
        """Key of a broker's last session."""
        return f"{self.prefix}sess/{broker_id}"

    def drained(self, broker_id: int) -> str:
        """Key of an administrator's word that a broker is out of service."""
        return f"{self.prefix}drain/{broker_id}"

    def ended(self) -> str:
        """Key that ends this generation."""
        return f"{self.prefix}ended"

    def controller(self) -> str:
        """Key of the elected controller."""
        return f"{self.prefix}ctl"

    def coordinator(self, coordinator_id: str) -> str:
        """Key of a coordinator's registration; the id has no slash."""
        assert coordinator_id, "an empty coordinator id"
        assert "/" not in coordinator_id, coordinator_id
        return f"{self.prefix}coord/{coordinator_id}"

    def coordinator_prefix(self) -> str:
        """Prefix of all coordinators' registrations."""
        return f"{self.prefix}coord/"

    def clock(self, process: str) -> str:
        """Key of a process's wall clock; the name has no slash."""
        assert process, "an empty process name"
        assert "/" not in process, process
        return f"{self.clock_prefix()}{process}"

    def clock_prefix(self) -> str:
        """Prefix of all processes' wall clocks."""
        return f"{self.prefix}clock/"

    def topic(self, name: str) -> str:
        """Key of a topic by its (checked) name."""
        assert name, "an empty topic name"
        assert "/" not in name, name
        return f"{self.prefix}topic/{name}"

    def topic_prefix(self) -> str:
        """Prefix of all topics by name."""
        return f"{self.prefix}topic/"

    def topic_by_id(self, topic_id: bytes) -> str:
        """Key of a topic by its id (16 bytes)."""
        assert len(topic_id) == 16, topic_id
        return f"{self.prefix}tid/{topic_id.hex()}"

    def topic_by_id_prefix(self) -> str:
        """Prefix of all topics by id."""
        return f"{self.prefix}tid/"

    def deleted_topic(self, topic_id: bytes) -> str:
        """Key that says that a topic (id of 16 bytes) was deleted."""
        assert len(topic_id) == 16, topic_id
        return f"{self.deleted_topic_prefix()}{topic_id.hex()}"

    def deleted_topic_prefix(self) -> str:
        """Prefix of the keys of all deleted topics."""
        return f"{self.prefix}deleted/"

    def partition(self, topic_id: bytes, partition: int) -> str:
        """Key of a partition's state; `partition` >= 0."""
        assert len(topic_id) == 16, topic_id
        assert partition >= 0, partition
        return f"{self.prefix}part/{topic_id.hex()}/{partition}"

    def partition_prefix(self, topic_id: bytes | None = None) -> str:
        """Prefix of the partition states of one topic, or of all."""
        return f"{self.prefix}part/" if topic_id is None else f"{self.prefix}part/{topic_id.hex()}/"

    def parse(self, key: str) -> ParsedKey | None:
        """Take a key apart; None where it is outside this generation or of a family that this release does not know."""
        if key.startswith(self.groups_prefix):
            return _parse_group_key(key[len(self.groups_prefix) :].split("/"))
        if key.startswith(self.directories_prefix):
            broker = key[len(self.directories_prefix) :]
            return DirectoryKey(BrokerId(int(broker))) if _is_number(broker) else None
        if not key.startswith(self.prefix):
            return None
        match key[len(self.prefix) :].split("/"):
            case ["ended"]:
                return EndedKey()
            case ["ctl"]:
                return ControllerKey()
            case ["live", broker] if _is_number(broker):
                return LiveKey(BrokerId(int(broker)))
            case ["sess", broker] if _is_number(broker):
                return SessionKey(BrokerId(int(broker)))
            case ["drain", broker] if _is_number(broker):
                return DrainKey(BrokerId(int(broker)))
            case ["coord", coordinator_id] if coordinator_id:
                return CoordinatorKey(coordinator_id)
            case ["clock", process] if process:
                return ClockKey(process)
            case ["topic", name] if name:
                return TopicKey(name)
            case ["tid", topic_id] if _is_id(topic_id):
                return TopicIdKey(TopicId(bytes.fromhex(topic_id)))
            case ["deleted", topic_id] if _is_id(topic_id):
                return DeletedTopicKey(TopicId(bytes.fromhex(topic_id)))
            case ["part", topic_id, partition] if _is_id(topic_id) and _is_number(partition):
                return PartitionKey(TopicId(bytes.fromhex(topic_id)), int(partition))
        return None

    def family(self, key: str) -> KeyFamily | None:
        """The row of `KEY_TABLE` that a key belongs to; None where this release does not know it."""
        if key == meta_key(self.cluster):
            return FAMILIES["meta"]
        match self.parse(key):
            case None:
                return None
            case DirectoryKey():
                return FAMILIES["directory"]
            case GroupKey():
                return FAMILIES["state"]
            case GroupAssignmentKey():
                return FAMILIES["assign"]
            case GroupMemberKey():
                return FAMILIES["member"]
            case GroupOffsetKey():
                return FAMILIES["off"]
            case PositionKey():
                return FAMILIES["position"]
        return FAMILIES[key[len(self.prefix) :].split("/", 1)[0]]

    def decode_value(self, key: str, value: bytes) -> Message | None:
        """The typed value of a key; None where the key is unknown or the value is no message of its type."""
        family = self.family(key)
        if family is None:
            return None
        message = family.value()
        try:
            message.ParseFromString(value)
        except DecodeError:
            return None
        return message


def value_json(keyspace: Keyspace, key: str, value: bytes) -> str:
    """A key's value as JSON for `DumpMetadata`, field names as in the .proto; unreadable ones as hexadecimal.

    The cluster's secret is never included.
    """
    message = keyspace.decode_value(key, value)
    if isinstance(message, metadata_pb2.ClusterMeta):
        message.ClearField("secret")
    if message is None:
        return f'{{"undecoded_hex": "{value.hex()}"}}'
    return json_format.MessageToJson(message, preserving_proto_field_name=True, indent=None)


def describe_keys() -> str:
    """docs/reference/etcd-keys.md as markdown."""
    lines = [
        "# Keys in etcd",
        "",
        "Generated by `python -m headrace_server.keys`. Keys that do not begin with a slash are below",
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


def _parse_group_key(parts: list[str]) -> ParsedKey | None:
    match parts:
        case ["group", group_id, "state"] if group_id:
            return GroupKey(group_id)
        case ["group", group_id, "assign", member_id] if group_id and _is_id(member_id):
            return GroupAssignmentKey(group_id, bytes.fromhex(member_id))
        case ["group", group_id, "live", member_id] if group_id and _is_id(member_id):
            return GroupMemberKey(group_id, bytes.fromhex(member_id))
        case ["group", group_id, "off", topic_id, partition] if group_id and _is_id(topic_id) and _is_number(partition):
            return GroupOffsetKey(group_id, TopicId(bytes.fromhex(topic_id)), int(partition))
        case ["position", reader_id] if reader_id:
            return PositionKey(reader_id)
    return None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and text == str(int(text))


def _is_id(text: str) -> bool:
    return len(text) == 32 and all(character in "0123456789abcdef" for character in text)


if __name__ == "__main__":
    print(describe_keys(), end="")
