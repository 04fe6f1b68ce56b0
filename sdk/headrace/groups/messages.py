"""Conversion between `groups.proto` and the values of groups, and validation of requests. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from typing import Protocol, TypeAlias

from headrace.groups.assignors import TopicPartition
from headrace.groups.state import Group, Member
from headrace.v1 import groups_pb2
from headrace.wire.errors import ConflictError, GroupNotEmptyError, InvalidRequestError
from headrace.wire.topic_names import check_topic_name

MAX_GROUP_ID_CHARACTERS = 249
MAX_TOPICS = 1_000
MAX_SUBSCRIPTION_BYTES = 64 << 10
"""Maximum size of one member's topic names."""
SESSION_TIMEOUT_MS = (1_000, 600_000)
REBALANCE_TIMEOUT_MS = (1_000, 86_400_000)
_GROUP_ID = re.compile(r"[a-zA-Z0-9._-]+", re.ASCII)
_PATTERN = re.compile(r"[a-zA-Z0-9._\-*?\[\]!]+", re.ASCII)


def check_group_id(group_id: str) -> None:
    """Check that a group id is 1 to 249 of a-z A-Z 0-9 . _ - as topic names are.

    Raises:
        InvalidRequestError: If it is not.
    """
    if not group_id:
        raise InvalidRequestError("the group id is empty", action="Name a group.")
    if len(group_id) > MAX_GROUP_ID_CHARACTERS:
        raise InvalidRequestError(
            f"the group id {group_id[:20]!r}... has {len(group_id)} characters, more than {MAX_GROUP_ID_CHARACTERS}",
            action="Choose a shorter group id.",
        )
    if group_id in {".", ".."} or not _GROUP_ID.fullmatch(group_id):
        raise InvalidRequestError(
            f"{group_id!r} cannot name a group", action="Use the characters a-z A-Z 0-9 . _ - and neither '.' nor '..'."
        )


def check_member_id(member_id: bytes) -> None:
    """Raise InvalidRequestError if a member id is not 16 bytes."""
    if len(member_id) != 16:
        raise InvalidRequestError(f"a member id has 16 bytes, not {len(member_id)}", action="Draw 16 random bytes.")


def read_member(request: groups_pb2.HeartbeatRequest, user: str) -> Member:
    """Return the member that a request of `user` describes.

    Raises:
        InvalidRequestError, InvalidTopicNameError: If a field is invalid.
    """
    check_group_id(request.group_id)
    check_member_id(request.member_id)
    if not request.topics and not request.topic_pattern:
        raise InvalidRequestError("the member subscribes to nothing", action="Name topics or a pattern.")
    if len(request.topics) > MAX_TOPICS:
        raise InvalidRequestError(f"{len(request.topics)} topics are over the limit of {MAX_TOPICS}")
    if (size := sum(map(len, request.topics))) > MAX_SUBSCRIPTION_BYTES:
        raise InvalidRequestError(
            f"the names of the topics have {size} characters, more than {MAX_SUBSCRIPTION_BYTES}",
            action="Subscribe by a pattern, or to fewer topics.",
        )
    for name in request.topics:
        check_topic_name(name)
    pattern = request.topic_pattern
    if pattern and (len(pattern) > MAX_GROUP_ID_CHARACTERS or not _PATTERN.fullmatch(pattern)):
        raise InvalidRequestError(
            f"{pattern[:50]!r} is no topic pattern", action="Use topic name characters, *, ? and [...]."
        )
    if request.instance_id:
        check_group_id(request.instance_id)
    for name, value, (low, high) in (
        ("session_timeout_ms", request.session_timeout_ms, SESSION_TIMEOUT_MS),
        ("rebalance_timeout_ms", request.rebalance_timeout_ms, REBALANCE_TIMEOUT_MS),
    ):
        if not low <= value <= high:
            raise InvalidRequestError(
                f"{name} = {value} is not within {low} to {high}", action=f"Set {name} within its range."
            )
    if request.member_epoch < 0 or request.known_revision < 0 or request.max_wait_ms < 0:
        raise InvalidRequestError("member_epoch, known_revision and max_wait_ms must not be negative")
    return Member(
        member_id=request.member_id,
        instance_id=request.instance_id,
        user=user,
        client_id=request.client_id[:256],
        host=request.host[:256],
        rack=request.rack[:256],
        topics=tuple(sorted(set(request.topics))),
        topic_pattern=pattern,
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
    )


def subscribed_bytes(member: Member) -> int:
    """Return the size of a member's topic names and pattern in characters."""
    return sum(map(len, member.topics)) + len(member.topic_pattern)


def read_owned(request: groups_pb2.HeartbeatRequest) -> frozenset[TopicPartition] | None:
    """Return the partitions that a member reports as owned; `None` means as last reported."""
    if not request.HasField("owned"):
        return None
    return frozenset((topic.topic_id, number) for topic in request.owned.topics for number in topic.partitions)


def write_partitions(
    partitions: Iterable[TopicPartition], names: Mapping[bytes, str], epochs: Mapping[TopicPartition, int] | None = None
) -> list[groups_pb2.GroupTopicPartitions]:
    """Group partitions by topic, ascending."""
    topics: dict[bytes, groups_pb2.GroupTopicPartitions] = {}
    for topic_id, number in sorted(partitions):
        topic = topics.get(topic_id)
        if topic is None:
            topic = topics[topic_id] = groups_pb2.GroupTopicPartitions(topic_id=topic_id, name=names.get(topic_id, ""))
        topic.partitions.append(number)
        if epochs is not None:
            topic.assignment_epochs.append(epochs[(topic_id, number)])
    return list(topics.values())


def state_of(group: Group) -> groups_pb2.GroupState:
    """Return the state that clients see."""
    if not group.members:
        return groups_pb2.GROUP_STATE_EMPTY
    return groups_pb2.GROUP_STATE_STABLE if group.is_stable else groups_pb2.GROUP_STATE_REBALANCING


class OffsetFields(Protocol):
    """Offset of a partition as it is stored."""

    @property
    def offset(self) -> int:
        """Offset of the next record."""

    @property
    def leader_epoch(self) -> int:
        """Epoch of the record before it; -1 if it is not known."""

    @property
    def metadata(self) -> str:
        """Text of the application."""

    @property
    def committed_ms(self) -> int:
        """Time of the commit."""


StoredOffsets: TypeAlias = Collection[tuple[TopicPartition, OffsetFields]]


def write_offset(number: int, stored: OffsetFields) -> groups_pb2.PartitionOffset:
    """Return the offset of a partition."""
    return groups_pb2.PartitionOffset(
        partition=number,
        offset=stored.offset,
        leader_epoch=stored.leader_epoch,
        metadata=stored.metadata,
        committed_ms=stored.committed_ms,
    )


def write_offsets(offsets: StoredOffsets, names: Mapping[bytes, str]) -> list[groups_pb2.TopicOffsets]:
    """Return all offsets of a group, by topic."""
    topics: dict[bytes, groups_pb2.TopicOffsets] = {}
    for (topic_id, number), stored in sorted(offsets, key=lambda item: item[0]):
        topic = topics.setdefault(topic_id, groups_pb2.TopicOffsets(topic_id=topic_id, name=names.get(topic_id, "")))
        topic.partitions.append(write_offset(number, stored))
    return list(topics.values())


def write_requested_offsets(
    find: Callable[[TopicPartition], OffsetFields | None],
    requested: Iterable[groups_pb2.GroupTopicPartitions],
    first_partitions: Mapping[bytes, int],
) -> list[groups_pb2.TopicOffsets]:
    """Return the offsets of the requested partitions, in that order; `-1` means that there is none.

    `first_partitions` has by topic id the number of partitions when the group began to read it.
    """
    topics = []
    for topic in requested:
        answer = groups_pb2.TopicOffsets(topic_id=topic.topic_id, name=topic.name)
        first = first_partitions.get(topic.topic_id)
        for number in topic.partitions:
            stored = find((topic.topic_id, number))
            if stored is not None:
                answer.partitions.append(write_offset(number, stored))
            else:
                is_added = first is not None and number >= first
                answer.partitions.add(partition=number, offset=-1, leader_epoch=-1, is_added=is_added)
        topics.append(answer)
    return topics


def write_listing(group_id: str, group: Group, offsets: int) -> groups_pb2.GroupListing:
    """Return the summary of a group; `offsets` is the number of its committed offsets."""
    return groups_pb2.GroupListing(
        group_id=group_id,
        state=state_of(group),
        members=len(group.members),
        partitions=len(group.target) if group.members else offsets,
        assignor=group.assignor,
        empty_since_ms=group.empty_since_ms,
    )


def write_group(
    group_id: str,
    group: Group,
    live: Container[bytes],
    offsets: StoredOffsets,
    names: Mapping[bytes, str],
    now_ms: int,
    revision: int,
) -> groups_pb2.DescribeGroupResponse:
    """Return the description of a group at a revision, its members by instance id and member id.

    Args:
        live: ids of the members whose session has not ended.
        offsets: its committed offsets.
        names: of topics, by id.
    """
    members = sorted(group.members.values(), key=lambda member: (member.order, member.member_id))
    return groups_pb2.DescribeGroupResponse(
        listing=write_listing(group_id, group, len(offsets)),
        group_epoch=group.group_epoch,
        assignment_epoch=group.assignment_epoch,
        members=[_write_member(group, member, member.member_id in live, names, now_ms) for member in members],
        offsets=write_offsets(offsets, names),
        unowned=write_partitions([each for each in group.target if each not in group.owners], names),
        revision=revision,
    )


def _write_member(
    group: Group, member: Member, is_live: bool, names: Mapping[bytes, str], now_ms: int
) -> groups_pb2.MemberDescription:
    owned = group.owned_by(member.member_id)
    target = [partition for partition, owner in group.target.items() if owner == member.member_id]
    return groups_pb2.MemberDescription(
        member_id=member.member_id,
        instance_id=member.instance_id,
        user=member.user,
        client_id=member.client_id,
        host=member.host,
        rack=member.rack,
        member_epoch=member.member_epoch,
        topics=member.topics,
        topic_pattern=member.topic_pattern,
        owned=write_partitions(owned, names, owned),
        target=write_partitions(target, names),
        joined_ms=member.joined_ms,
        session_timeout_ms=member.session_timeout_ms,
        revoking_ms=max(1, now_ms - member.revoking_since_ms) if member.revoking_since_ms else 0,
        live=is_live,
    )


def expected_epoch(request: groups_pb2.CommitOffsetsRequest) -> int | None:
    """Return the group's epoch on which an administrator's commit depends, if it does."""
    return request.expected_group_epoch if request.HasField("expected_group_epoch") else None


def reset_number(request: groups_pb2.CommitOffsetsRequest) -> int:
    """Return the number of an administrator's reset that expects an epoch; `0` if it is none, or has no number."""
    return 0 if request.member_id or expected_epoch(request) is None else request.commit_number


def check_empty(group_id: str, group: Group, expected_group_epoch: int | None, reset_number: int = 0) -> None:
    """Check that an administrator may change a group's offsets: it has no members, and is at the expected epoch.

    `reset_number` is that of a reset which may have begun the group's epoch; `0` means no such reset.

    Raises:
        GroupNotEmptyError: If it has members.
        ConflictError: If it is at another epoch, which that reset did not begin.
    """
    if group.members:
        raise GroupNotEmptyError(f"group {group_id} has {len(group.members)} members")
    if expected_group_epoch not in (None, group.group_epoch) and not group.is_reset_by(reset_number):
        raise ConflictError(
            f"the members or the offsets of group {group_id} changed: it is at epoch {group.group_epoch}, "
            f"not at {expected_group_epoch} as when it was looked at",
            retriable=False,
            action="Look at the group again, then decide.",
        )
