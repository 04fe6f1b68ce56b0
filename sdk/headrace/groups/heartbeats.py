"""Heartbeats of group members, and checks of them against the group's state that need no transition.

`group_transition` applies heartbeats. The rpc and runtime layers use this module to find out whether a heartbeat needs
a transaction, and whether it adds to the state.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from headrace.groups.assignors import TopicPartition
from headrace.groups.state import Group, Member, Ownership
from headrace.wire.errors import FencedInstanceError, HeadraceError, UnknownMemberError


@dataclass(frozen=True, slots=True)
class MemberHeartbeat:
    """Join or heartbeat of a member."""

    member: Member
    """Requested metadata; of its epochs and times only `lease_id`, the timeouts and `joined_ms` are used."""
    member_epoch: int
    """Current member epoch; `0` means a join."""
    assignor: str = ""
    """Requested assignor; empty means the group's."""
    owned: frozenset[TopicPartition] | None = None
    """Owned partitions; `None` means as last reported."""


class MemberDeparture(NamedTuple):
    """Request of a member to leave."""

    member_id: bytes
    user: str = ""
    """User of the call."""


def needs_transaction(group: Group, known: Member, heartbeat: MemberHeartbeat) -> bool:
    """Return whether the heartbeat of a `known` member changes the group or is rejected."""
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
    """Yield the revoked partitions of a member that are not in `owned`, its report."""
    for partition, owner in owners.items():
        if owner.member_id == member_id and target.get(partition) != member_id and partition not in owned:
            yield partition


def no_member(members: Mapping[bytes, Member], member_id: bytes, instance_id: str) -> HeadraceError:
    """Return the error for a caller that is not a member: its session ended, or its instance was replaced (H69)."""
    if holder_of(members, instance_id) is not None:
        return FencedInstanceError(f"another member has taken the place {instance_id!r}")
    return UnknownMemberError(f"the group has no member {member_id.hex()}: its session is over")


def holder_of(members: Mapping[bytes, Member], instance_id: str) -> Member | None:
    """Return the member with `instance_id`, or `None` if there is none or `instance_id` is empty."""
    if not instance_id:
        return None
    return next((member for member in members.values() if member.instance_id == instance_id), None)


def taken_by_another_user(members: Mapping[bytes, Member], joining: Member) -> bool:
    """Return whether the instance id of a join is that of a member that its user may not replace."""
    holder = holder_of(members, joining.instance_id)
    return holder is not None and not holder.belongs_to(joining.user)


def replaced_member(group: Group, live: Collection[bytes], joining: Member) -> Member | None:
    """Return the live member that a join replaces (H69), or `None` if the group gets one more member.

    Member limits do not count a replacement, because it adds no session.
    """
    holder = holder_of(group.members, joining.instance_id)
    return holder if holder is not None and holder.member_id in live else None


def may_enlarge(group: Group, heartbeat: MemberHeartbeat) -> bool:
    """Return whether a heartbeat may enlarge the state: a new member, or another subscription.

    The join of a static member counts as a heartbeat of the member that it replaces.
    """
    said = heartbeat.member
    known = group.members.get(said.member_id) or holder_of(group.members, said.instance_id)
    return known is None or (said.topics, said.topic_pattern) != (known.topics, known.topic_pattern)
