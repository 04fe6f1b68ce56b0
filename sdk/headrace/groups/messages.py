"""Conversion between `groups.proto` and the values of groups, and validation of requests. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from headrace.groups.assignors import TopicPartition
from headrace.groups.state import Group, Member
from headrace.v1 import groups_pb2
from headrace.wire.errors import InvalidRequestError
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
