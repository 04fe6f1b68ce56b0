"""View of all consumer groups in etcd, decoded as they change. Like every view it may be stale (PROTOCOL I19).

Built on a `PrefixView` over `Keyspace.groups_prefix`. Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import structlog
from google.protobuf.message import DecodeError
from headrace.groups.assignors import TopicPartition
from headrace.groups.state import Group, begin_epochs
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.key_table import (
    GroupAssignmentKey,
    GroupKey,
    GroupMemberKey,
    GroupOffsetKey,
)
from headrace_server.keys import Keyspace
from headrace_server.metadata_view import KeySource
from headrace_server.metastore.api import KeyValue

from headrace_coordinator.core.group_encoding import decode_group
from headrace_coordinator.runtime.waiting import wait_for_changes

log = structlog.get_logger(__name__)

KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")


@dataclass(frozen=True, slots=True)
class StoredOffset:
    """Committed offset, and the version that the next commit compares."""

    message: metadata_pb2.CommittedOffset
    mod_revision: int


@dataclass(slots=True)
class GroupEntry:
    """Keys of one group. Only `GroupView` changes it."""

    group: Group = field(default_factory=Group)
    mod_revision: int = 0
    """mod_revision of the state's key; `0` if there is none."""
    create_revision: int = 0
    """create_revision of the state's key; `0` if there is none."""
    assignments: dict[bytes, KeyValue] = field(default_factory=dict)
    live: dict[bytes, KeyValue] = field(default_factory=dict)
    offsets: dict[TopicPartition, StoredOffset] = field(default_factory=dict)
    key_bytes: int = 0
    """Size of its keys and values."""

    @property
    def begun(self) -> dict[bytes, int]:
        """Number of partitions below which there are committed offsets, by topic id."""
        found: dict[bytes, int] = {}
        for topic_id, number in self.offsets:
            found[topic_id] = max(found.get(topic_id, 0), number + 1)
        return found

    def find_offset(self, partition: TopicPartition) -> metadata_pb2.CommittedOffset | None:
        """Return the committed offset of a partition."""
        stored = self.offsets.get(partition)
        return None if stored is None else stored.message

    def all_offsets(self) -> list[tuple[TopicPartition, metadata_pb2.CommittedOffset]]:
        """Return all committed offsets."""
        return [(partition, stored.message) for partition, stored in self.offsets.items()]

    def payer(self, user: str) -> str:
        """Return whose share of the limits a change takes: that of the user that created the group, or `user`, which
        creates it.
        """
        return self.group.user if self.mod_revision else user

    @property
    def is_gone(self) -> bool:
        """Whether the group has no keys."""
        return not (self.mod_revision or self.assignments or self.live or self.offsets)


@dataclass(slots=True)
class GroupUse:
    """What groups take of the cluster's limits."""

    groups: int = 0
    members: int = 0
    """Number of members, by their liveness keys."""
    key_bytes: int = 0
    """Size of all keys and values."""

    def add(self, entry: GroupEntry, sign: int) -> None:
        """Add a group, or subtract it."""
        self.groups += sign
        self.members += sign * len(entry.live)
        self.key_bytes += sign * entry.key_bytes


class GroupView:
    """Groups by id, kept up to date from a key source."""

    def __init__(self, keyspace: Keyspace, source: KeySource) -> None:
        self.keyspace = keyspace
        self.source = source
        self.groups: dict[str, GroupEntry] = {}
        self.used = GroupUse()
        """What all groups take."""
        self.used_by: dict[str, GroupUse] = {}
        """What the groups take that a user created; the name is empty for those without an identity."""
        self._key_bytes: dict[str, int] = {}
        self._watchers: dict[str, dict[asyncio.Event, bytes | None]] = {}
        self._callbacks: list[Callable[[str], None]] = []
        for key_value in source.items(keyspace.groups_prefix):
            self._apply(key_value.key, key_value)
        self._unsubscribe = source.subscribe(self._on_change)

    def close(self) -> None:
        """Unsubscribe from the source."""
        self._unsubscribe()

    def entry(self, group_id: str) -> GroupEntry:
        """Return the keys of a group; an empty entry if it has none."""
        return self.groups.get(group_id) or GroupEntry()

    def with_epochs(self, entry: GroupEntry) -> Group:
        """Return the group of an entry with initial epochs if its key exists and has none yet."""
        if not entry.mod_revision:
            return entry.group
        return begin_epochs(entry.group, self.keyspace.generation, entry.create_revision)

    def on_members(self, callback: Callable[[str], None]) -> None:
        """Call `callback(group_id)` when a state, an assignment or a member's liveness has changed."""
        self._callbacks.append(callback)

    def end_on_members(self, callback: Callable[[str], None]) -> None:
        """Remove a callback of `on_members`."""
        self._callbacks.remove(callback)

    async def wait_until(
        self, group_id: str, shows: Callable[[], bool], deadline: float | None, member_id: bytes | None = None
    ) -> bool:
        """Wait until `shows()` holds; return False at `deadline` in loop time. `None` disables the deadline.

        `shows` is called after changes of the group's membership or assignments, or only of `member_id`'s assignment.
        """
        changed = asyncio.Event()
        watchers = self._watchers.setdefault(group_id, {})
        watchers[changed] = member_id
        try:
            return await wait_for_changes(changed, shows, deadline)
        finally:
            del watchers[changed]
            if not watchers:
                del self._watchers[group_id]

    def _on_change(self, revision: int, keys: Sequence[str]) -> None:
        changed: dict[str, set[bytes | None]] = {}
        for key in keys:
            group_id, member_id = self._apply(key, self.source.get(key))
            if group_id:
                changed.setdefault(group_id, {None}).add(member_id)
        for group_id, members in changed.items():
            for event, member_id in self._watchers.get(group_id, {}).items():
                if member_id in members:
                    event.set()
            for callback in self._callbacks:
                callback(group_id)

    def _apply(self, key: str, key_value: KeyValue | None) -> tuple[str, bytes | None]:
        """Apply one key; return the group if its membership changed, else "", and the member of an assignment key."""
        parsed = self.keyspace.parse(key)
        if not isinstance(parsed, GroupKey | GroupAssignmentKey | GroupMemberKey | GroupOffsetKey):
            return "", None
        known = self.groups.get(parsed.group_id)
        if known is not None:
            self._count(known, -1)
        entry = self.groups.setdefault(parsed.group_id, GroupEntry())
        after = None if key_value is None else len(key) + len(key_value.value)
        entry.key_bytes += (after or 0) - self._key_bytes.pop(key, 0)
        if after is not None:
            self._key_bytes[key] = after
        try:
            match parsed:
                case GroupKey():
                    entry.group = Group() if key_value is None else decode_group(key_value.value)
                    entry.mod_revision = 0 if key_value is None else key_value.mod_revision
                    entry.create_revision = 0 if key_value is None else key_value.create_revision
                case GroupAssignmentKey(_, member_id):
                    _set(entry.assignments, member_id, key_value)
                case GroupMemberKey(_, member_id):
                    _set(entry.live, member_id, key_value)
                case GroupOffsetKey(_, topic_id, partition):
                    offset = None if key_value is None else _offset(key_value)
                    _set(entry.offsets, (bytes(topic_id), partition), offset)
        except DecodeError as error:
            log.error("group_key_unreadable", key=key, cause=str(error))
        if entry.is_gone:
            del self.groups[parsed.group_id]
        else:
            self._count(entry, 1)
        if isinstance(parsed, GroupOffsetKey):
            return "", None
        return parsed.group_id, parsed.member_id if isinstance(parsed, GroupAssignmentKey) else None

    def _count(self, entry: GroupEntry, sign: int) -> None:
        user = entry.group.user
        of_user = self.used_by.setdefault(user, GroupUse())
        for used in (self.used, of_user):
            used.add(entry, sign)
        if not of_user.groups:
            del self.used_by[user]


def _offset(key_value: KeyValue) -> StoredOffset:
    return StoredOffset(metadata_pb2.CommittedOffset.FromString(key_value.value), key_value.mod_revision)


def _set(target: dict[KeyT, ValueT], key: KeyT, value: ValueT | None) -> None:
    if value is None:
        target.pop(key, None)
    else:
        target[key] = value
