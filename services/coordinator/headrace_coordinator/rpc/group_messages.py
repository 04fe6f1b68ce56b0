"""Conversion between `groups.proto` and the coordinator's group values, and validation of requests."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from headrace.groups.assignors import TopicPartition
from headrace.groups.state import Group, Member
from headrace.v1 import groups_pb2
from headrace.wire.errors import InvalidRequestError
from headrace.wire.topic_names import check_topic_name
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.metastore.api import KeyValue

from headrace_coordinator.runtime.group_view import GroupEntry

MAX_GROUP_ID_CHARACTERS = 249
MAX_TOPICS = 1_000
MAX_SUBSCRIPTION_BYTES = 64 << 10
"""Maximum size of one member's topic names."""
HIDDEN_ID_BYTES = 4
"""Part of a member id that other users see: the member's name in lists, of no use in a request."""
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


def write_heartbeat(group: Group, stored: KeyValue, interval_ms: int) -> groups_pb2.HeartbeatResponse:
    """Return the response to a member: the partitions in `stored`, its assignment, except those being revoked."""
    assignment = metadata_pb2.MemberAssignment.FromString(stored.value)
    response = groups_pb2.HeartbeatResponse(
        revision=stored.mod_revision,
        member_epoch=assignment.member_epoch,
        heartbeat_interval_ms=interval_ms,
        assignor=group.assignor,
        group_epoch=group.group_epoch,
    )
    for topic in assignment.topics:
        partitions: Sequence[int] = topic.partitions
        epochs: Sequence[int] = topic.assignment_epochs
        if topic.revoking:
            revoking = frozenset(topic.revoking)
            kept = [pair for pair in zip(partitions, epochs, strict=True) if pair[0] not in revoking]
            partitions, epochs = [number for number, _ in kept], [epoch for _, epoch in kept]
        if partitions:
            response.assigned.add(
                topic_id=topic.topic_id, name=topic.name, partitions=partitions, assignment_epochs=epochs
            )
    return response


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


def write_offsets(entry: GroupEntry, names: Mapping[bytes, str]) -> list[groups_pb2.TopicOffsets]:
    """Return all offsets of a group, by topic."""
    topics: dict[bytes, groups_pb2.TopicOffsets] = {}
    for (topic_id, number), stored in sorted(entry.offsets.items()):
        topic = topics.setdefault(topic_id, groups_pb2.TopicOffsets(topic_id=topic_id, name=names.get(topic_id, "")))
        topic.partitions.append(_partition_offset(number, stored.message))
    return list(topics.values())


def write_requested_offsets(
    entry: GroupEntry, requested: Iterable[groups_pb2.GroupTopicPartitions]
) -> list[groups_pb2.TopicOffsets]:
    """Return the offsets of the requested partitions, in that order; `-1` means that there is none."""
    topics = []
    for topic in requested:
        answer = groups_pb2.TopicOffsets(topic_id=topic.topic_id, name=topic.name)
        known = entry.group.topics.get(topic.topic_id)
        for number in topic.partitions:
            stored = entry.offsets.get((topic.topic_id, number))
            if stored is not None:
                answer.partitions.append(_partition_offset(number, stored.message))
            else:
                is_added = known is not None and number >= known.first_partitions
                answer.partitions.add(partition=number, offset=-1, leader_epoch=-1, is_added=is_added)
        topics.append(answer)
    return topics


def _partition_offset(number: int, message: metadata_pb2.CommittedOffset) -> groups_pb2.PartitionOffset:
    return groups_pb2.PartitionOffset(
        partition=number,
        offset=message.offset,
        leader_epoch=message.leader_epoch,
        metadata=message.metadata,
        committed_ms=message.committed_ms,
    )


def state_of(group: Group) -> groups_pb2.GroupState:
    """Return the state that clients see."""
    if not group.members:
        return groups_pb2.GROUP_STATE_EMPTY
    return groups_pb2.GROUP_STATE_STABLE if group.is_stable else groups_pb2.GROUP_STATE_REBALANCING


def write_listing(group_id: str, entry: GroupEntry) -> groups_pb2.GroupListing:
    """Return the summary of a group."""
    group = entry.group
    return groups_pb2.GroupListing(
        group_id=group_id,
        state=state_of(group),
        members=len(group.members),
        partitions=len(group.target if group.members else entry.offsets),
        assignor=group.assignor,
        empty_since_ms=group.empty_since_ms,
    )


def write_members(
    entry: GroupEntry, names: Mapping[bytes, str], now_ms: int, is_whole: Callable[[Member], bool]
) -> list[groups_pb2.MemberDescription]:
    """Return all members of a group, by instance id and member id; `is_whole` tells whose ids are shown whole."""
    group = entry.group
    described = []
    for member in sorted(group.members.values(), key=lambda member: (member.order, member.member_id)):
        owned = group.owned_by(member.member_id)
        target = [partition for partition, owner in group.target.items() if owner == member.member_id]
        described.append(
            groups_pb2.MemberDescription(
                member_id=member.member_id if is_whole(member) else member.member_id[:HIDDEN_ID_BYTES],
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
                live=member.member_id in entry.live,
            )
        )
    return described
