"""A member's heartbeat, and what it means to the group's state before any transition: who it is, what it changes.

`group_transition` applies it. The rpc and runtime layers ask here whether it needs a transaction, and what it may add.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from headrace.wire.errors import FencedInstanceError, HeadraceError, UnknownMemberError

from headrace_coordinator.core.assignors import TopicPartition
from headrace_coordinator.core.group_state import Group, Member, Ownership


@dataclass(frozen=True, slots=True)
class MemberHeartbeat:
    """A member's report about itself."""

    member: Member
    """Its requested metadata; of its epochs and times only `lease_id`, the timeouts and `joined_ms` are taken."""
    member_epoch: int
    """The member epoch that it has; 0: it joins."""
    assignor: str = ""
    """Empty: the group's."""
    owned: frozenset[TopicPartition] | None = None
    """What it owns; `None`: as last reported."""


def needs_transaction(group: Group, known: Member, heartbeat: MemberHeartbeat) -> bool:
    """Return whether the heartbeat of a `known` member changes the group, or is refused."""
    owned = heartbeat.owned
    if heartbeat.member_epoch > known.member_epoch or not wants_the_same(known, heartbeat.member):
        return True
    if owned is None or heartbeat.member_epoch != known.member_epoch or not known.revoking_since_ms:
        return False
    return any(released_partitions(group.owners, group.target, known.member_id, owned))


def wants_the_same(known: Member, said: Member) -> bool:
    """Return whether two descriptions of a member lead to the same assignment."""
    return (known.topics, known.topic_pattern, known.rack) == (said.topics, said.topic_pattern, said.rack)


def released_partitions(
    owners: Mapping[TopicPartition, Ownership],
    target: Mapping[TopicPartition, bytes],
    member_id: bytes,
    owned: Collection[TopicPartition],
) -> Iterator[TopicPartition]:
    """Yield the revoked partitions of a member that are not in `owned`, which it reports."""
    for partition, owner in owners.items():
        if owner.member_id == member_id and target.get(partition) != member_id and partition not in owned:
            yield partition


def no_member(members: Mapping[bytes, Member], member_id: bytes, instance_id: str) -> HeadraceError:
    """Return the error of one that is no member: its session is over, or its instance was replaced (H69)."""
    if holder_of(members, instance_id) is not None:
        return FencedInstanceError(f"another member has taken the place {instance_id!r}")
    return UnknownMemberError(f"the group has no member {member_id.hex()}: its session is over")


def holder_of(members: Mapping[bytes, Member], instance_id: str) -> Member | None:
    """Return the member that has a static member's place; `None`: there is none, or the member is dynamic."""
    if not instance_id:
        return None
    return next((member for member in members.values() if member.instance_id == instance_id), None)


def replaced_member(group: Group, live: Collection[bytes], joining: Member) -> Member | None:
    """Return the live member whose place a join takes (H69); `None`: the group gets one more member.

    Limits of members do not count the join of a replacement: it adds no session.
    """
    holder = holder_of(group.members, joining.instance_id)
    return holder if holder is not None and holder.member_id in live else None


def may_enlarge(group: Group, heartbeat: MemberHeartbeat) -> bool:
    """Return whether a heartbeat may make the state larger: a new member, or another subscription.

    The join of a static member counts as a heartbeat of the member that it replaces.
    """
    said = heartbeat.member
    known = group.members.get(said.member_id) or holder_of(group.members, said.instance_id)
    return known is None or (said.topics, said.topic_pattern) != (known.topics, known.topic_pattern)
