"""State of a consumer group: immutable values. `transition` computes changes.

Source: KIP-848 (member epochs, target and current assignment), PROTOCOL section 1.3. The keys correspond to the
paper's consumer and ownership registries (section 3.2).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from headrace.groups.assignors import DEFAULT_ASSIGNOR, TopicPartition

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
    """Since when it has partitions to release, or last released some, by the writer's wall clock; `0` means none.
    Timeouts do not use it: see `runtime.group_times`."""

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
    user: str = ""
    """User that created the group."""
    reset_number: int = 0
    """Number of the reset that began the group's epoch, to which all its requests belong; `0` if something else did."""

    def owned_by(self, member_id: bytes) -> dict[TopicPartition, int]:
        """Return the partitions of a member with their assignment epochs, ascending."""
        return {
            partition: owner.assignment_epoch
            for partition, owner in sorted(self.owners.items())
            if owner.member_id == member_id
        }

    def is_reset_by(self, number: int) -> bool:
        """Return whether the reset of this number began the group's epoch; `0` is the number of none."""
        return number != 0 and number == self.reset_number

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


def with_next_epoch(group: Group, reset_number: int) -> Group:
    """Return a group without members in a new epoch: a commit that expects the former one is refused.

    `reset_number` is that of the reset which begins it, or 0.
    """
    epoch = group.group_epoch + 1
    return replace(group, group_epoch=epoch, assignment_epoch=epoch, reset_number=reset_number)


def begin_epochs(group: Group, generation: int, create_revision: int) -> Group:
    """Return the group with initial epochs if it has none, above those of every earlier group of its name (I28).

    `create_revision` is that of the group's key. Each epoch of an earlier group used an etcd revision before the key
    was deleted, and a restore from a backup, after which revisions repeat, begins another generation.
    """
    first = (generation - 1) * EPOCHS_PER_GENERATION + create_revision
    return group if group.group_epoch else replace(group, group_epoch=first, assignment_epoch=first)
