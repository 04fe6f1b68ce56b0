"""Conversion between `groups.proto` and the coordinator's group values, and validation of requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from headrace.groups.messages import state_of, write_partitions
from headrace.groups.state import Group, Member
from headrace.v1 import groups_pb2
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.metastore.api import KeyValue

from headrace_coordinator.runtime.group_view import GroupEntry

HIDDEN_ID_BYTES = 4
"""Part of a member id that other users see: the member's name in lists, of no use in a request."""


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
