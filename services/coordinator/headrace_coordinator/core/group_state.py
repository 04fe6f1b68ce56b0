"""State of a consumer group in etcd: immutable values and their encoding. `group_transition` computes changes.

Source: KIP-848 (member epochs, target and current assignment), PROTOCOL section 1.3. The keys correspond to the
paper's consumer and ownership registries (section 3.2).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from headrace_server.internal_v1 import metadata_pb2

from headrace_coordinator.core.assignors import DEFAULT_ASSIGNOR, TopicPartition

EPOCHS_PER_GENERATION = 2**40


@dataclass(frozen=True, slots=True)
class Member:
    """Member of a group. A restarted consumer is a new member."""

    member_id: bytes
    """16 random bytes that the member chose."""
    instance_id: str = ""
    """Instance id of a static member; empty for a dynamic member."""
    user: str = ""
    """User that joined; empty without an identity."""
    client_id: str = ""
    host: str = ""
    rack: str = ""
    topics: tuple[str, ...] = ()
    """Names of subscribed topics, ascending."""
    topic_pattern: str = ""
    member_epoch: int = 0
    """The group's assignment epoch when the member's partitions last changed."""
    lease_id: int = 0
    session_timeout_ms: int = 0
    rebalance_timeout_ms: int = 0
    joined_ms: int = 0
    revoking_since_ms: int = 0
    """Since when it has partitions to release, by the writer's wall clock; `0` means none. Timeouts do not use it: see
    `runtime.group_times`."""

    @property
    def order(self) -> str:
        """Sort key of the member for assignors."""
        return self.instance_id or self.member_id.hex()

    def belongs_to(self, user: str) -> bool:
        """Return whether a call of `user` may act for the member: only its own user may.

        The posture does not matter. A member that joined without an identity, such as before the cluster was closed,
        belongs to every caller with the right to its group.
        """
        return self.user in ("", user)


@dataclass(frozen=True, slots=True)
class Ownership:
    """Current owner of a partition."""

    member_id: bytes
    assignment_epoch: int
    """Member epoch of the grant; strictly increases from grant to grant of a partition (I24)."""


@dataclass(frozen=True, slots=True)
class GroupTopic:
    """Topic of the group when the target was computed."""

    topic_id: bytes
    name: str
    partitions: int
    first_partitions: int
    """Number of partitions when the group began to read it; the others were added later.

    A member with `auto_offset_reset="latest"` reads an added partition from its first record. Otherwise it would skip
    the records from before its assignment.
    """


@dataclass(frozen=True, slots=True)
class Group:
    """Value of `group/{group_id}/state`."""

    group_epoch: int = 0
    assignment_epoch: int = 0
    assignor: str = DEFAULT_ASSIGNOR
    members: Mapping[bytes, Member] = field(default_factory=dict)
    topics: Mapping[bytes, GroupTopic] = field(default_factory=dict)
    """Topics by topic id."""
    target: Mapping[TopicPartition, bytes] = field(default_factory=dict)
    """Target owner of each partition."""
    owners: Mapping[TopicPartition, Ownership] = field(default_factory=dict)
    """Current owner of each partition; absent if there is none."""
    empty_since_ms: int = 0

    def owned_by(self, member_id: bytes) -> dict[TopicPartition, int]:
        """Return the partitions of a member with their assignment epochs, ascending."""
        return {
            partition: owner.assignment_epoch
            for partition, owner in sorted(self.owners.items())
            if owner.member_id == member_id
        }

    @property
    def is_stable(self) -> bool:
        """Whether every partition is owned by its target member."""
        return (
            self.group_epoch == self.assignment_epoch
            and len(self.owners) == len(self.target)
            and all(
                partition in self.owners and self.owners[partition].member_id == member_id
                for partition, member_id in self.target.items()
            )
        )


def begin_epochs(group: Group, generation: int, create_revision: int) -> Group:
    """Return the group with initial epochs if it has none, above those of every earlier group of its name (I28).

    `create_revision` is that of the group's key. Each epoch of an earlier group used an etcd revision before the key
    was deleted, and a restore from a backup, after which revisions repeat, begins another generation.
    """
    first = (generation - 1) * EPOCHS_PER_GENERATION + create_revision
    return group if group.group_epoch else replace(group, group_epoch=first, assignment_epoch=first)


def encode_group(group: Group) -> bytes:
    """Return the value of `group/{group_id}/state`; equal groups have equal encodings."""
    member_ids = sorted(group.members)
    index = {member_id: position for position, member_id in enumerate(member_ids)}
    message = metadata_pb2.GroupState(
        group_epoch=group.group_epoch,
        assignment_epoch=group.assignment_epoch,
        assignor=group.assignor,
        empty_since_ms=group.empty_since_ms,
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
