"""Encoding of a group's state in etcd. Pure; equal groups have equal encodings."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.groups.assignors import TopicPartition
from headrace.groups.state import Group, GroupTopic, Member, Ownership
from headrace.wire.errors import GroupTooLargeError
from headrace_server.internal_v1 import metadata_pb2

MAX_STATE_BYTES = 1 << 20
MAX_TRANSACTION_BYTES = 1_400_000
"""Maximum state and assignments of one transaction: etcd takes 1.5 MiB, of which the keys need the rest."""


def encode_group(group: Group) -> bytes:
    """Return the value of `group/{group_id}/state`; equal groups have equal encodings."""
    member_ids = sorted(group.members)
    index = {member_id: position for position, member_id in enumerate(member_ids)}
    message = metadata_pb2.GroupState(
        group_epoch=group.group_epoch,
        assignment_epoch=group.assignment_epoch,
        assignor=group.assignor,
        empty_since_ms=group.empty_since_ms,
        user=group.user,
        reset_number=group.reset_number,
    )
    for member_id in member_ids:
        member = group.members[member_id]
        message.members.add(
            member_id=member.member_id,
            instance_id=member.instance_id,
            user=member.user,
            client_id=member.client_id,
            host=member.host,
            rack=member.rack,
            topics=member.topics,
            topic_pattern=member.topic_pattern,
            member_epoch=member.member_epoch,
            lease_id=member.lease_id,
            session_timeout_ms=member.session_timeout_ms,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            joined_ms=member.joined_ms,
            revoking_since_ms=member.revoking_since_ms,
        )
    for topic in sorted(group.topics.values(), key=lambda topic: (topic.name, topic.topic_id)):
        numbers = range(topic.partitions)
        owners = [group.owners.get((topic.topic_id, number)) for number in numbers]
        message.topics.add(
            topic_id=topic.topic_id,
            name=topic.name,
            target=[index.get(group.target.get((topic.topic_id, number), b""), -1) for number in numbers],
            owner=[-1 if owner is None else index[owner.member_id] for owner in owners],
            assignment_epochs=[0 if owner is None else owner.assignment_epoch for owner in owners],
            first_partitions=topic.first_partitions,
        )
    return message.SerializeToString()


def decode_group(value: bytes) -> Group:
    """Decode `group/{group_id}/state`; raise `google.protobuf.message.DecodeError` if `value` is malformed."""
    message = metadata_pb2.GroupState.FromString(value)
    member_ids = [member.member_id for member in message.members]
    target: dict[TopicPartition, bytes] = {}
    owners: dict[TopicPartition, Ownership] = {}
    topics: dict[bytes, GroupTopic] = {}
    for topic in message.topics:
        partitions = len(topic.target)
        topics[topic.topic_id] = GroupTopic(
            topic.topic_id, topic.name, partitions, topic.first_partitions or partitions
        )
        for number, (wanted, owner, epoch) in enumerate(
            zip(topic.target, topic.owner, topic.assignment_epochs, strict=True)
        ):
            if wanted >= 0:
                target[(topic.topic_id, number)] = member_ids[wanted]
            if owner >= 0:
                owners[(topic.topic_id, number)] = Ownership(member_ids[owner], epoch)
    return Group(
        group_epoch=message.group_epoch,
        assignment_epoch=message.assignment_epoch,
        assignor=message.assignor,
        members={
            member.member_id: Member(
                member_id=member.member_id,
                instance_id=member.instance_id,
                user=member.user,
                client_id=member.client_id,
                host=member.host,
                rack=member.rack,
                topics=tuple(member.topics),
                topic_pattern=member.topic_pattern,
                member_epoch=member.member_epoch,
                lease_id=member.lease_id,
                session_timeout_ms=member.session_timeout_ms,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                joined_ms=member.joined_ms,
                revoking_since_ms=member.revoking_since_ms,
            )
            for member in message.members
        },
        topics=topics,
        target=target,
        owners=owners,
        empty_since_ms=message.empty_since_ms,
        user=message.user,
        reset_number=message.reset_number,
    )


def assignments_of(group: Group) -> dict[bytes, metadata_pb2.MemberAssignment]:
    """Return the values of `group/{group_id}/assignments/{member_id}`, which depend only on the group's state."""
    messages = {
        member_id: metadata_pb2.MemberAssignment(member_epoch=member.member_epoch)
        for member_id, member in group.members.items()
    }
    for (topic_id, number), owner in sorted(group.owners.items()):
        topics = messages[owner.member_id].topics
        if not topics or topics[-1].topic_id != topic_id:
            topics.add(topic_id=topic_id, name=group.topics[topic_id].name)
        topics[-1].partitions.append(number)
        topics[-1].assignment_epochs.append(owner.assignment_epoch)
        if group.target.get((topic_id, number)) != owner.member_id:
            topics[-1].revoking.append(number)
    return messages


def encode_assignments(group: Group) -> dict[bytes, bytes]:
    """Return `assignments_of`, serialised."""
    return {member_id: message.SerializeToString() for member_id, message in assignments_of(group).items()}


def check_size(group: Group, assignments: Mapping[bytes, bytes]) -> None:
    """Raise GroupTooLargeError if the state does not fit into a key, or with `assignments` into a transaction (H71)."""
    size = len(encode_group(group))
    written = size + sum(map(len, assignments.values()))
    if size > MAX_STATE_BYTES or written > MAX_TRANSACTION_BYTES:
        raise GroupTooLargeError(
            f"{len(group.members)} members and {len(group.target)} partitions take {size} bytes, with assignments "
            f"{written}, more than {MAX_STATE_BYTES} or {MAX_TRANSACTION_BYTES}"
        )
