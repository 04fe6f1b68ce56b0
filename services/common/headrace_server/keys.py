"""Keyspace of one cluster in etcd: builds and parses keys by `key_table.KEY_TABLE`.

All keys of brokers and coordinators are built here.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, cast

from google.protobuf import json_format
from google.protobuf.message import DecodeError, Message
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
    KeyFamily,
    MetaKey,
    ParsedKey,
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
)

ROOT = "/headrace/"
_CLUSTER_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,62}\Z")


def meta_key(cluster: str) -> str:
    """Return the key of the cluster's identity, outside any generation.

    Raises:
        InvalidConfigError: If `cluster` is not 1 to 63 letters, digits, dots, underscores and dashes.
    """
    if not _CLUSTER_NAME.match(cluster):
        raise InvalidConfigError(
            f"the cluster name {cluster!r} is not 1 to 63 letters, digits, dots, underscores and dashes that start "
            "with a letter or digit",
            action="Set another cluster name.",
        )
    return _META.pattern.format(cluster=cluster)


def cluster_prefix(cluster: str) -> str:
    """Return the prefix of every key of a cluster, with a trailing slash; raise as `meta_key`."""
    return meta_key(cluster).rpartition("/")[0] + "/"


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
        """Prefix of every key of this generation, with a trailing slash."""
        return self._scope(_GENERATION)

    @property
    def groups_prefix(self) -> str:
        """Prefix of every key of consumer groups, with a trailing slash. Brokers do not watch it."""
        return self._scope(_GROUPS)

    @property
    def directories_prefix(self) -> str:
        """Prefix of the versions of data directories, with a trailing slash. No process watches it."""
        return self._scope(_DIRECTORIES)

    @property
    def identity_prefix(self) -> str:
        """Prefix of users, grants and all else about identity, with a trailing slash. Every generation has the same."""
        return self._scope(_IDENTITY)

    @property
    def schema_registry_prefix(self) -> str:
        """Prefix of schemas and subjects, with a trailing slash. Every generation has the same."""
        return self._scope(_SCHEMA_REGISTRY)

    @property
    def write_fences_prefix(self) -> str:
        """Prefix of fences of writes, with a trailing slash. No process watches it."""
        return self._scope(_WRITE_FENCES)

    def write_fence(self, fence_id: bytes) -> str:
        """Return the key by which a write is fenced (id of 16 bytes)."""
        return self._key(WriteFenceKey, fence_id)

    def schema_registry(self) -> str:
        """Return the key of what all subjects share."""
        return self._key(SchemaRegistryKey)

    def schema(self, schema_id: int) -> str:
        """Return the key of a schema."""
        return self._key(SchemaKey, schema_id)

    def subject(self, name: str) -> str:
        """Return the key of a subject, whatever characters its name has."""
        return self._key(SubjectKey, digest_id(name))

    def user(self, name: str) -> str:
        """Return the key of a user, whatever characters its name has."""
        return self._key(UserKey, digest_id(name))

    def grant(self, principal: str, role: str, resource: str) -> str:
        """Return the key of a grant."""
        return self._key(GrantKey, digest_id(principal, role, resource))

    def role(self, name: str) -> str:
        """Return the key of a role that is not built in."""
        return self._key(RoleKey, name)

    def issuer(self, name: str) -> str:
        """Return the key of a token issuer."""
        return self._key(IssuerKey, name)

    def signing_key(self, key_id: str) -> str:
        """Return the key of a signing key of session tokens."""
        return self._key(SigningKeyKey, key_id)

    def signing_key_prefix(self) -> str:
        """Return the prefix of all signing keys."""
        return self._prefix(SigningKeyKey)

    def quota(self, user: str) -> str:
        """Return the key of a user's quota; of `*` for every user without its own."""
        return self._key(QuotaKey, digest_id(user))

    def cluster_secrets(self) -> str:
        """Return the key of the cluster's secrets after a replacement."""
        return self._key(ClusterSecretsKey)

    def posture(self) -> str:
        """Return the key of the posture."""
        return self._key(PostureKey)

    def directory(self, broker_id: int) -> str:
        """Return the key of the version of a broker's data directory."""
        return self._key(DirectoryKey, broker_id)

    def group(self, group_id: str) -> str:
        """Return the key of a group's state; the (checked) id has no slash."""
        return self._key(GroupKey, group_id)

    def group_prefix(self, group_id: str) -> str:
        """Return the prefix of all keys of one group."""
        return self.group(group_id).rpartition("/")[0] + "/"

    def group_assignment(self, group_id: str, member_id: bytes) -> str:
        """Return the key of a member's (16 bytes) assignment."""
        return self._key(GroupAssignmentKey, group_id, member_id)

    def group_member(self, group_id: str, member_id: bytes) -> str:
        """Return the key of a member's liveness, on its lease."""
        return self._key(GroupMemberKey, group_id, member_id)

    def group_offset(self, group_id: str, topic_id: bytes, partition: int) -> str:
        """Return the key of a committed offset."""
        return self._key(GroupOffsetKey, group_id, topic_id, partition)

    def broker(self, broker_id: int) -> str:
        """Return the key of a broker's registration."""
        return self._key(BrokerKey, broker_id)

    def broker_prefix(self) -> str:
        """Return the prefix of all brokers' registrations."""
        return self._prefix(BrokerKey)

    def broker_session(self, broker_id: int) -> str:
        """Return the key of a broker's last session."""
        return self._key(BrokerSessionKey, broker_id)

    def drained_broker(self, broker_id: int) -> str:
        """Return the key that drains a broker."""
        return self._key(DrainedBrokerKey, broker_id)

    def drained_broker_prefix(self) -> str:
        """Return the prefix of the keys that drain brokers."""
        return self._prefix(DrainedBrokerKey)

    def superseded(self) -> str:
        """Return the key that ends this generation."""
        return self._key(SupersededKey)

    def controller(self) -> str:
        """Return the key of the elected controller."""
        return self._key(ControllerKey)

    def coordinator(self, coordinator_id: str) -> str:
        """Return the key of a coordinator's registration; the id has no slash."""
        return self._key(CoordinatorKey, coordinator_id)

    def coordinator_prefix(self) -> str:
        """Return the prefix of all coordinators' registrations."""
        return self._prefix(CoordinatorKey)

    def clock(self, process: str) -> str:
        """Return the key of a process's wall clock; the name has no slash."""
        return self._key(ClockKey, process)

    def clock_prefix(self) -> str:
        """Return the prefix of all processes' wall clocks."""
        return self._prefix(ClockKey)

    def topic(self, name: str) -> str:
        """Return the key of a topic by its (checked) name."""
        return self._key(TopicKey, name)

    def topic_prefix(self) -> str:
        """Return the prefix of all topics by name."""
        return self._prefix(TopicKey)

    def topic_by_id(self, topic_id: bytes) -> str:
        """Return the key of a topic by its id (16 bytes)."""
        return self._key(TopicIdKey, topic_id)

    def topic_by_id_prefix(self) -> str:
        """Return the prefix of all topics by id."""
        return self._prefix(TopicIdKey)

    def deleted_topic(self, topic_id: bytes) -> str:
        """Return the key that records the deletion of a topic (id of 16 bytes)."""
        return self._key(DeletedTopicKey, topic_id)

    def deleted_topic_prefix(self) -> str:
        """Return the prefix of the keys of all deleted topics."""
        return self._prefix(DeletedTopicKey)

    def partition(self, topic_id: bytes, partition: int) -> str:
        """Return the key of a partition's state; `partition` >= 0."""
        return self._key(PartitionKey, topic_id, partition)

    def partition_prefix(self, topic_id: bytes | None = None) -> str:
        """Return the prefix of the partition states of one topic, or of all."""
        every = self._prefix(PartitionKey)
        return every if topic_id is None else f"{every}{_segment(topic_id)}/"

    def has_any(self, keys: Iterable[str], *families: Callable[..., ParsedKey]) -> bool:
        """Return whether any of `keys` is of one of `families`, such as `TopicKey`; cheaper than parsing each."""
        prefixes = tuple(map(self._prefix, families))
        return any(key.startswith(prefixes) for key in keys)

    def parse(self, key: str) -> ParsedKey | None:
        """Return a parsed key, or `None` if it is outside this generation or of a family unknown to this release."""
        found = self._find(key)
        return None if found is None else found[1]

    def family(self, key: str) -> KeyFamily | None:
        """Return the row of `KEY_TABLE` of a key, or `None` if this release does not know it."""
        if key == meta_key(self.cluster):
            return _META
        found = self._find(key)
        return None if found is None else found[0]

    def decode_value(self, key: str, value: bytes) -> Message | None:
        """Return the decoded value of a key, or `None` if the key is unknown or the value malformed."""
        family = self.family(key)
        if family is None:
            return None
        message = family.value()
        try:
            message.ParseFromString(value)
        except DecodeError:
            return None
        return message

    def _scope(self, scope: str) -> str:
        return scope.format(cluster=self.cluster, generation=self.generation)

    def _key(self, key: Callable[..., ParsedKey], *values: int | str | bytes) -> str:
        pattern = _PATTERNS[key]
        return self._scope(pattern.scope) + pattern.tail % tuple(map(_segment, values))

    def _prefix(self, key: Callable[..., ParsedKey]) -> str:
        """Return the prefix of all keys of a family, or the key itself if the family has only one."""
        pattern = _PATTERNS[key]
        return self._scope(pattern.scope) + pattern.tail.partition("%s")[0]

    def _find(self, key: str) -> tuple[KeyFamily, ParsedKey] | None:
        for scope in _SCOPES:
            prefix = self._scope(scope)
            if key.startswith(prefix):
                segments = key[len(prefix) :].split("/")
                for pattern in _BY_LENGTH.get((scope, len(segments)), ()):
                    if (parsed := pattern.parse(segments)) is not None:
                        return pattern.family, parsed
        return None


def value_json(keyspace: Keyspace, key: str, value: bytes) -> str:
    """Return a key's value as JSON for `DumpMetadata`, field names as in the .proto; hexadecimal if malformed.

    No secret is included: neither the cluster's, nor a signing key's, nor the hash of an API key.
    """
    message = keyspace.decode_value(key, value)
    if isinstance(message, metadata_pb2.ClusterMeta | metadata_pb2.SigningKey):
        message.ClearField("secret")
    if isinstance(message, metadata_pb2.ClusterSecrets):
        message.Clear()
    if isinstance(message, metadata_pb2.StoredUser):
        for api_key in message.api_keys:
            api_key.ClearField("sha256")
    if message is None and key.startswith(keyspace.identity_prefix):
        return '{"undecoded": "it may have a secret"}'
    if message is None:
        return f'{{"undecoded_hex": "{value.hex()}"}}'
    return json_format.MessageToJson(message, preserving_proto_field_name=True, indent=None)


def digest_id(*parts: str) -> bytes:
    """Return the id of a key that is named by text of any characters: 16 bytes of a SHA-256."""
    encoded = [part.encode() for part in parts]
    return hashlib.sha256(b"".join(len(part).to_bytes(4, "little") + part for part in encoded)).digest()[:16]


def _segment(value: int | str | bytes) -> str:
    """Return the text of a field's value in a key."""
    if isinstance(value, bytes):
        assert len(value) == 16, value
        return value.hex()
    if isinstance(value, int):
        assert value >= 0, value
        return str(value)
    assert value, "an empty name"
    assert "/" not in value, value
    return value


def _read_number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and text == str(int(text)) else None


def _read_id(text: str) -> bytes | None:
    whole = len(text) == 32 and all(character in "0123456789abcdef" for character in text)
    return bytes.fromhex(text) if whole else None


def _read_name(text: str) -> str | None:
    return text or None


_READ: dict[str, Callable[[str], int | str | bytes | None]] = {
    "broker_id": _read_number,
    "partition": _read_number,
    "topic_id": _read_id,
    "member_id": _read_id,
    "user_id": _read_id,
    "grant_id": _read_id,
    "quota_id": _read_id,
    "schema_id": _read_number,
    "subject_id": _read_id,
    "fence_id": _read_id,
}
"""Parsers of fields; other fields are names."""


class _Pattern:
    """Compiled row of the table."""

    def __init__(self, family: KeyFamily, scope: str, tail: str) -> None:
        self.family, self.scope = family, scope
        self.segments = tail.split("/")
        names = [segment[1:-1] for segment in self.segments if segment.startswith("{")]
        assert names == [field.name for field in fields(cast(Any, family.key))], tail
        self.tail = re.sub(r"{\w+}", "%s", tail)
        self._readers = [
            _READ.get(segment[1:-1], _read_name) if segment.startswith("{") else None for segment in self.segments
        ]

    def parse(self, segments: Sequence[str]) -> ParsedKey | None:
        """Return the key with these segments, or `None` if it is not of this family."""
        values = []
        for read, expected, segment in zip(self._readers, self.segments, segments, strict=True):
            if read is not None:
                value = read(segment)
                if value is None:
                    return None
                values.append(value)
            elif segment != expected:
                return None
        return self.family.key(*values)


_GENERATION = ROOT + "{cluster}/{generation}/"
_GROUPS = ROOT + "{cluster}/groups/{generation}/"
_DIRECTORIES = ROOT + "{cluster}/directories/{generation}/"
_IDENTITY = ROOT + "{cluster}/identity/"
_SCHEMA_REGISTRY = ROOT + "{cluster}/schema_registry/"
_WRITE_FENCES = ROOT + "{cluster}/write_fences/"
_SCOPES = (_GENERATION, _GROUPS, _DIRECTORIES, _IDENTITY, _SCHEMA_REGISTRY, _WRITE_FENCES)
_META = next(family for family in KEY_TABLE if family.key is MetaKey)


def _compile() -> dict[Callable[..., ParsedKey], _Pattern]:
    compiled = {}
    for family in KEY_TABLE:
        absolute = family.pattern if family.pattern.startswith("/") else _GENERATION + family.pattern
        for scope in _SCOPES:
            if absolute.startswith(scope):
                compiled[family.key] = _Pattern(family, scope, absolute.removeprefix(scope))
    assert len(compiled) == len(KEY_TABLE) - 1, "a family is outside of every scope"
    return compiled


_PATTERNS = _compile()
_BY_LENGTH: dict[tuple[str, int], list[_Pattern]] = {}
for _pattern in _PATTERNS.values():
    _BY_LENGTH.setdefault((_pattern.scope, len(_pattern.segments)), []).append(_pattern)
