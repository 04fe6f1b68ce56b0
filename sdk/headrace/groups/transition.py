"""Next state of a consumer group: a pure function of its state, live members, topics and requests.

`transition` applies all pending heartbeats and departures of a group and returns the next state, which the runtime
writes in one transaction that compares the version it was computed from (H60, "one heartbeat round, one transaction").
A partition is granted only if it has no owner, and freed only if its owner reports the release, is gone, or exceeds
its time (I24, I25). A member's report counts only for its current assignment: a revocation raises the member's epoch,
so that a delayed heartbeat frees nothing. Source: KIP-848; PROTOCOL section 1.3.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from headrace.groups.assignors import ASSIGNORS, AssignableTopic, Subscriber, TopicPartition
from headrace.groups.heartbeats import (
    MemberDeparture,
    MemberHeartbeat,
    holder_of,
    no_member,
    released_partitions,
    taken_by_another_user,
    wants_the_same,
)
from headrace.groups.state import (
    Group,
    GroupTopic,
    Member,
    Ownership,
)
from headrace.groups.subscriptions import has_topic, matching_names, subscribed_topics, with_missing_topics
from headrace.wire.errors import (
    FencedInstanceError,
    FencedMemberEpochError,
    HeadraceError,
    InvalidRequestError,
)

MAX_OPERATIONS = 120
"""Maximum operations, and compares, of one transaction (etcd accepts 128); the rest follows in the next."""
MAX_ASSIGNMENT_BYTES = 256 << 10
"""Maximum assignments that one transaction writes with the state; the rest follows in the next. An assignment that is
larger is written alone, once the state is."""


@dataclass(frozen=True, slots=True)
class Transition:
    """Next state of a group, and the other contents of its transaction."""

    group: Group
    assignments: Mapping[bytes, bytes]
    """Assignments to write, by member."""
    absent: tuple[bytes, ...]
    """Members removed because their lease is gone, which the transaction compares."""
    ended: tuple[bytes, ...]
    """Members that left, were replaced or timed out; the transaction deletes the key on their lease."""
    errors: Mapping[bytes, HeadraceError] = field(default_factory=dict)
    """Errors of rejected heartbeats, by member. A rejected heartbeat changes nothing."""
    deferred: frozenset[bytes] = frozenset()
    """Members whose heartbeat or departure did not fit and is left for the next transaction."""
    more: bool = False
    """Work is left: run another transition at once."""

    def changes(self, before: Group) -> bool:
        """Return whether anything must be written; `before` is the input of the computation."""
        return bool(self.assignments or self.gone) or self.group != before

    @property
    def gone(self) -> tuple[bytes, ...]:
        """All members whose assignment must be deleted."""
        return tuple(sorted({*self.absent, *self.ended}))


def transition(
    group: Group,
    *,
    heartbeats: Sequence[MemberHeartbeat],
    leaving: Collection[MemberDeparture],
    live: Collection[bytes],
    topics: Mapping[str, AssignableTopic],
    deleted: Collection[bytes],
    stored: Mapping[bytes, bytes],
    encode_assignments: Callable[[Group], Mapping[bytes, bytes]],
    begun: Mapping[bytes, int],
    overdue: Collection[bytes],
    now_ms: int,
) -> Transition:
    """Compute the next state of the group. Level-triggered and deterministic; may be called without any requests.

    Args:
        group: current state.
        heartbeats: pending heartbeats and joins.
        leaving: members that leave.
        live: members whose liveness key exists.
        topics: all topics by name.
        deleted: ids of deleted topics. A topic of the group that is in neither is treated as existing.
        stored: values of the members' assignment keys.
        encode_assignments: returns the values of the assignment keys of all members; equal ones are not written.
        begun: by topic id, the number of partitions below which offsets are stored.
        overdue: members that exceeded their rebalance timeout by this coordinator's clock.
        now_ms: wall clock for informational times in the state; no decision depends on it.
    """
    builder = _TransitionBuilder(group, live, with_missing_topics(group, topics, deleted), now_ms)
    builder.expire_members(overdue)
    for departure in sorted(leaving):
        builder.leave(departure)
    for heartbeat in sorted(heartbeats, key=lambda heartbeat: heartbeat.member.member_id):
        try:
            builder.apply_heartbeat(heartbeat)
        except HeadraceError as error:
            builder.errors[heartbeat.member.member_id] = error
    builder.follow_topics(begun)
    builder.compute_target()
    builder.reconcile()
    return builder.build(stored, encode_assignments)


class _TransitionBuilder:
    """Mutable state of one `transition`."""

    def __init__(
        self, group: Group, live: Collection[bytes], topics: Mapping[str, AssignableTopic], now_ms: int
    ) -> None:
        self._before = group
        self._live = live
        self._topics = topics
        self._now_ms = now_ms
        self._epoch = group.group_epoch
        self._assignment_epoch = group.assignment_epoch
        self._assignor = group.assignor
        self._members = dict(group.members)
        self._group_topics = dict(group.topics)
        self._target = dict(group.target)
        self._owners = dict(group.owners)
        self._wanted_topics: list[AssignableTopic] = []
        self._is_stale = group.group_epoch > group.assignment_epoch
        self._absent: list[bytes] = []
        self._ended: list[bytes] = []
        self._shrunk: dict[bytes, None] = {}  # members that lost partitions, written before those that gain
        self._deferred: set[bytes] = set()
        self._operations = 1
        self._compares = 1
        self._more = False
        self.errors: dict[bytes, HeadraceError] = {}

    # --- membership ---

    def expire_members(self, overdue: Collection[bytes]) -> None:
        """Remove members whose lease is gone, and those that did not release revoked partitions in time."""
        for member_id, member in sorted(self._members.items()):
            if member_id not in self._live:
                if self._spend(1, compares=1):
                    self._absent.append(member_id)
                    self._remove(member_id)
                else:
                    self._more = True
            elif member_id in overdue and member.revoking_since_ms:
                self.end(member_id)

    def _spend(self, operations: int, compares: int = 0) -> bool:
        """Reserve operations and compares of the transaction; return False if they do not fit."""
        if self._operations + operations > MAX_OPERATIONS or self._compares + compares > MAX_OPERATIONS:
            return False
        self._operations += operations
        self._compares += compares
        return True

    def leave(self, departure: MemberDeparture) -> None:
        """Remove a member that leaves, if its own user asks for that."""
        known = self._members.get(departure.member_id)
        if known is not None and known.belongs_to(departure.user):
            self.end(departure.member_id)

    def end(self, member_id: bytes) -> None:
        """Remove a member that leaves or timed out."""
        if member_id not in self._members:
            return
        if not self._spend(2):
            self._deferred.add(member_id)
            return
        self._ended.append(member_id)
        self._remove(member_id)

    def _remove(self, member_id: bytes) -> None:
        """Remove a member, whose partitions other members get."""
        self._forget(member_id)
        self._is_stale = True

    def _forget(self, member_id: bytes) -> None:
        """Remove a member and free its partitions, without a change of the target."""
        del self._members[member_id]
        self._owners = {p: owner for p, owner in self._owners.items() if owner.member_id != member_id}
        self._shrunk.pop(member_id, None)

    def apply_heartbeat(self, heartbeat: MemberHeartbeat) -> None:
        """Apply a join or heartbeat of a member; raise the error that rejects it."""
        said = heartbeat.member
        if said.member_id in self._absent or said.member_id in self._ended:
            self._deferred.add(said.member_id)  # One transaction cannot both delete and put a key.
            return
        known = self._members.get(said.member_id)
        if heartbeat.assignor and heartbeat.assignor not in ASSIGNORS:
            raise InvalidRequestError(
                f"there is no assignor {heartbeat.assignor!r}", action=f"Use one of {', '.join(sorted(ASSIGNORS))}."
            )
        if known is None:
            if heartbeat.member_epoch != 0:
                raise no_member(self._members, said.member_id, said.instance_id)
            if taken_by_another_user(self._members, said):
                raise FencedInstanceError(
                    f"the place {said.instance_id!r} is that of another user's member",
                    action="Use another group_instance_id, or wait until that member's session has ended.",
                )
            if self._spend(4):
                self._join(heartbeat)
            else:
                self._deferred.add(said.member_id)
            return
        if not known.belongs_to(said.user):
            raise no_member({}, said.member_id, "")
        if heartbeat.member_epoch > known.member_epoch:
            raise FencedMemberEpochError(
                f"the member is at epoch {known.member_epoch}, the request has epoch {heartbeat.member_epoch}"
            )
        updated = replace(
            known,
            rack=said.rack,
            topics=said.topics,
            topic_pattern=said.topic_pattern,
            rebalance_timeout_ms=said.rebalance_timeout_ms,
        )
        if not wants_the_same(known, updated):
            self._is_stale = True
        self._members[said.member_id] = updated
        if heartbeat.owned is not None and heartbeat.member_epoch == known.member_epoch:
            self._give_up(said.member_id, heartbeat.owned)

    def _join(self, heartbeat: MemberHeartbeat) -> None:
        if not self._members and heartbeat.assignor:
            self._assignor = heartbeat.assignor
        said = replace(heartbeat.member, member_epoch=0, revoking_since_ms=0)
        holder = holder_of(self._members, said.instance_id)
        if holder is not None and not self._is_stale and wants_the_same(holder, said):
            self._replace(holder, said)
            return
        if holder is not None:
            self._ended.append(holder.member_id)
            self._remove(holder.member_id)
        self._members[said.member_id] = said
        self._is_stale = True

    def _replace(self, holder: Member, said: Member) -> None:
        """Replace a static member's previous incarnation without a rebalance (H69).

        The new one owns nothing until `reconcile`, since the target may still change if others join.
        """
        self._raise_group_epoch()
        self._ended.append(holder.member_id)
        self._forget(holder.member_id)
        self._members[said.member_id] = replace(said, member_epoch=self._assignment_epoch)
        for partition, member_id in list(self._target.items()):
            if member_id == holder.member_id:
                self._target[partition] = said.member_id

    def _give_up(self, member_id: bytes, owned: frozenset[TopicPartition]) -> None:
        """Free revoked partitions that the member no longer reports as owned."""
        given_up = [*released_partitions(self._owners, self._target, member_id, owned)]
        if not given_up:
            return
        if member_id not in self._shrunk and not self._spend(1):
            self._deferred.add(member_id)
            return
        for partition in given_up:
            del self._owners[partition]
        self._shrunk[member_id] = None
        self._raise_epoch(member_id)

    # --- assignment ---

    def follow_topics(self, begun: Mapping[bytes, int]) -> None:
        """Apply topics and partitions that were added or removed since the target was computed."""
        wanted = subscribed_topics(self._members.values(), self._topics, self._group_topics)
        now = {topic.topic_id: self._follow(topic, begun.get(topic.topic_id, 0)) for topic in wanted}
        targeted = {topic_id for topic_id, _ in self._target}
        if now != {topic_id: topic for topic_id, topic in self._group_topics.items() if topic_id in targeted}:
            self._is_stale = True
        for topic_id in dict.fromkeys(topic_id for topic_id, _ in self._owners):
            if not has_topic(self._topics, self._group_topics[topic_id]):
                self._drop_topic(topic_id)
        self._wanted_topics = wanted
        kept = {topic_id for topic_id, _ in self._owners}
        self._group_topics = {
            **{topic_id: topic for topic_id, topic in self._group_topics.items() if topic_id in kept},
            **now,
        }

    def _follow(self, topic: AssignableTopic, begun: int) -> GroupTopic:
        """Return the group's entry of a topic, keeping its number of partitions when the group began to read it."""
        known = self._group_topics.get(topic.topic_id)
        first = known.first_partitions if known is not None else begun or topic.partitions
        return GroupTopic(topic.topic_id, topic.name, topic.partitions, min(first, topic.partitions))

    def _drop_topic(self, topic_id: bytes) -> None:
        """Free the partitions of a deleted topic without their owners' confirmation."""
        for partition in [partition for partition in self._owners if partition[0] == topic_id]:
            self._raise_epoch(self._owners.pop(partition).member_id)

    def compute_target(self) -> None:
        """Recompute the target assignment if any of its inputs has changed."""
        if not self._is_stale:
            return
        self._raise_group_epoch()
        subscribers = [
            Subscriber(
                member.member_id,
                member.order,
                frozenset(self._topics[name].topic_id for name in matching_names(member, self._topics)),
                member.rack,
            )
            for member in self._members.values()
        ]
        holders = {
            **{partition: m for partition, m in self._target.items() if m in self._members},
            **{partition: owner.member_id for partition, owner in self._owners.items()},
        }
        self._target = ASSIGNORS[self._assignor](subscribers, self._wanted_topics, holders)

    def reconcile(self) -> None:
        """Grant unowned partitions to their target members (I25)."""
        for partition, member_id in self._target.items():
            if partition not in self._owners:
                self._owners[partition] = Ownership(member_id, self._assignment_epoch)
                self._raise_epoch(member_id)

    def _raise_group_epoch(self) -> None:
        """Raise the group's epoch, once per transition: each epoch uses an etcd revision (I28, `begin_epochs`)."""
        self._epoch = self._assignment_epoch = self._before.group_epoch + 1

    def _raise_epoch(self, member_id: bytes) -> None:
        """Raise the epoch of a member whose partitions have changed to at least the assignment epoch."""
        member = self._members.get(member_id)
        if member is not None:
            self._members[member_id] = replace(member, member_epoch=max(member.member_epoch, self._assignment_epoch))

    # --- the result ---

    def build(
        self, stored: Mapping[bytes, bytes], encode_assignments: Callable[[Group], Mapping[bytes, bytes]]
    ) -> Transition:
        """Build the result: first the assignments that shrank, then as many others as fit."""
        revoking = {
            partition: owner.member_id
            for partition, owner in self._owners.items()
            if self._target.get(partition) != owner.member_id
        }
        revoking_members = frozenset(revoking.values())
        asked = {member_id for partition, member_id in revoking.items() if self._is_asked_now(partition, member_id)}
        for member_id, member in self._members.items():
            since_ms = member.revoking_since_ms if member_id in revoking_members else 0
            if member_id in revoking_members and (not since_ms or member_id in self._shrunk):
                since_ms = self._now_ms  # A member that has released some has the whole time again for the others.
            epoch = member.member_epoch or self._assignment_epoch
            if member_id in asked:
                known = self._before.members.get(member_id)
                assert known is None or known.member_epoch < self._assignment_epoch
                epoch = self._assignment_epoch
            if (since_ms, epoch) != (member.revoking_since_ms, member.member_epoch):
                self._members[member_id] = replace(member, revoking_since_ms=since_ms, member_epoch=epoch)
        group = Group(
            group_epoch=self._epoch,
            assignment_epoch=self._assignment_epoch,
            assignor=self._assignor,
            members=self._members,
            topics=self._group_topics,
            target=self._target,
            owners=self._owners,
            empty_since_ms=self._empty_since_ms(),
            user=self._before.user,
            reset_number=self._before.reset_number if self._epoch == self._before.group_epoch else 0,
        )
        derived = encode_assignments(group)
        written = {member_id: derived[member_id] for member_id in self._shrunk}
        new = [member_id for member_id in sorted(self._members) if member_id not in self._before.members]
        is_same, more, size = group == self._before, False, 0
        for member_id in (*new, *sorted(derived)):
            if member_id in written or stored.get(member_id) == derived[member_id]:
                continue
            size += len(derived[member_id])
            fits = size <= MAX_ASSIGNMENT_BYTES or (is_same and not written)
            if member_id in new or (fits and self._spend(1)):
                written[member_id] = derived[member_id]
            else:
                more = True
        return Transition(
            group,
            written,
            tuple(self._absent),
            tuple(self._ended),
            self.errors,
            frozenset(self._deferred),
            more or self._more or bool(self._deferred),
        )

    def _empty_since_ms(self) -> int:
        if self._members:
            return 0
        return self._now_ms if self._before.members else self._before.empty_since_ms

    def _is_asked_now(self, partition: TopicPartition, member_id: bytes) -> bool:
        """Return whether this transaction is the first to ask the owner of a partition to release it."""
        owner = self._before.owners.get(partition)
        was_asked = (
            owner is not None and owner.member_id == member_id and self._before.target.get(partition) != member_id
        )
        return not was_asked
