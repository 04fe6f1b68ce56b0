"""What has to hold of a consumer group at every revision of etcd and at every record that is given (I24 to I29).

`GroupChecks` shadows the group's keys from the store's own commits, and knows what no node knows: which process a
member is, what it reads, what it has finished with and which commits it was told are stored. It decides by those.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.groups.state import Group
from headrace.wire.errors import ErrorCode, HeadraceError, MetadataLimitError
from headrace_coordinator.core.group_encoding import decode_group
from headrace_coordinator.runtime.group_view import GroupEntry
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.key_table import GroupAssignmentKey, GroupKey, GroupMemberKey, GroupOffsetKey
from headrace_server.metastore.api import PutEvent, WatchEvent

from tests.simulation.exercise import CHECKED
from tests.simulation.world import SimulationError

if TYPE_CHECKING:
    from tests.simulation.group_cluster import GroupCluster
    from tests.simulation.group_member import MemberLife, Tenure

TopicPartition = tuple[bytes, int]


@dataclass(frozen=True, slots=True)
class Assigned:
    """The value of one `assignments/*`."""

    member_epoch: int
    owned: dict[TopicPartition, int]
    """With assignment epochs."""


@dataclass(slots=True)
class _ReferenceLog:
    """The group's keys as of the last revision."""

    group: Group = field(default_factory=Group)
    assigned: dict[bytes, Assigned] = field(default_factory=dict)
    live: dict[bytes, None] = field(default_factory=dict)
    offsets: dict[TopicPartition, metadata_pb2.CommittedOffset] = field(default_factory=dict)


class GroupChecks:
    """See the module; raises `SimulationError`."""

    def __init__(self, cluster: GroupCluster) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.lives: dict[bytes, MemberLife] = {}
        """Whose each member id is."""
        self.left: dict[bytes, None] = {}
        """Members that have asked to leave."""
        self.now = _ReferenceLog()
        self.acknowledged: dict[TopicPartition, int] = {}
        """The largest offset that a member was told is stored."""
        self._finished: dict[TopicPartition, int] = {}
        self._given: dict[TopicPartition, int] = {}
        self.deletes_group = False
        """Whether an administrator deletes the group as soon as it has no members."""
        self.open_deletions = 0
        """Requests to delete it that may still do so: a coordinator that was paused serves them late."""
        self._last_epoch = 0
        """The group's epoch when it was deleted last; 0: it never was."""
        self._granted: dict[TopicPartition, int] = {}
        """The last assignment epoch of each partition, deletions of the group notwithstanding."""
        self._stored_in: dict[TopicPartition, tuple[int, int, int]] = {}
        """Assignment epoch, commit number and offset of the last commit."""
        self._deleted_in: dict[TopicPartition, int] = {}
        """The revision in which an offset was deleted: a member that was paused hears later that it was stored."""
        self._owners: dict[TopicPartition, tuple[bytes, int]] = {}
        self._asked_ms: dict[bytes, int] = {}
        """When each member that is to give up something was asked."""
        self._valid_commits: dict[object, tuple[Any, set[TopicPartition]]] = {}
        """What each request at a coordinator may commit in every revision since it arrived."""
        self._expired: dict[bytes, None] = {}
        """Members whose lease has ended while they were members."""
        self._empty_ms: int | None = None
        """Since when the group has no members."""
        self.failure: SimulationError | None = None
        """What was found in the middle of something that catches errors."""
        cluster.etcd.store.on_commit.append(self._on_commit)

    def _fail(self, name: str, message: str) -> None:
        self.failure = SimulationError(name, message)
        raise self.failure

    def _checked(self, name: str, has_compared: bool = True) -> None:
        """Count a comparison that could have broken a promise."""
        if has_compared:
            self.world.count(CHECKED + name)

    # --- etcd ---

    def _on_commit(self, revision: int, events: Sequence[WatchEvent]) -> None:
        keyspace = self.cluster.keyspace
        prefix = keyspace.groups_prefix
        before, lived = self.now.group, dict(self.now.live)
        was = dict(self.now.assigned)
        offsets: list[tuple[TopicPartition, Any]] = []
        changed = False
        for event in events:
            key = event.key_value.key if isinstance(event, PutEvent) else event.key
            if not key.startswith(prefix):
                continue
            value = event.key_value.value if isinstance(event, PutEvent) else None
            match keyspace.parse(key):
                case GroupKey():
                    self.now.group = Group() if value is None else decode_group(value)
                    self._check_epochs(before, deleted=value is None)
                case GroupAssignmentKey(_, member_id):
                    changed = True
                    if value is None:
                        self.now.assigned.pop(member_id, None)
                    else:
                        self.now.assigned[member_id] = _read(value)
                case GroupMemberKey(_, member_id):
                    if value is None:
                        self.now.live.pop(member_id, None)
                    else:
                        self.now.live[member_id] = None
                case GroupOffsetKey(_, topic_id, number):
                    offsets.append(((bytes(topic_id), number), value))
        if self.now.group is before:
            over = [member_id for member_id in before.members if member_id in lived and member_id not in self.now.live]
            self._expired.update(dict.fromkeys(over))
        else:
            self._check_members(before, lived)
            self._note_times()
            self._check_target()
        if changed:
            self._check_owners(revision, was, lived)
        for request, valid in self._valid_commits.values():
            valid &= self._committable(request)
        for partition, value in offsets:
            self._check_offset(revision, partition, value, before)

    def _check_epochs(self, before: Group, *, deleted: bool) -> None:
        """I28: epochs never fall, and do not begin again with a group that was deleted and made anew."""
        after = self.now.group
        if deleted:
            if before.members:
                self._fail("I28", "a group with members was deleted")
            self._last_epoch = max(self._last_epoch, before.group_epoch)
            self._stored_in.clear()
            return
        if not before.group_epoch and after.group_epoch:
            self._checked("I28 beyond a deletion", self._last_epoch > 0)
            if after.group_epoch <= self._last_epoch:
                self._fail(
                    "I28", f"a new life of the group begins at epoch {after.group_epoch} after {self._last_epoch}"
                )
        self._checked("I28", before.group_epoch > 0)
        if after.group_epoch < before.group_epoch or after.assignment_epoch < before.assignment_epoch:
            self._fail("I28", f"epochs fell from {before.group_epoch} to {after.group_epoch}")
        for member_id, member in after.members.items():
            known = before.members.get(member_id)
            if known is not None and member.member_epoch < known.member_epoch:
                self._fail("I28", f"the epoch of {_short(member_id)} fell to {member.member_epoch}")
            if member.instance_id:
                self._checked("H69", len(after.members) > 1)
                same = [m for m, other in after.members.items() if other.instance_id == member.instance_id]
                if len(same) > 1:
                    self._fail("H69", f"{len(same)} members are {member.instance_id}")

    def _check_members(self, before: Group, lived: dict[bytes, None]) -> None:
        """A removed member was dead, left, was replaced, or had its time (I25)."""
        after = self.now.group
        places = {member.instance_id for member in after.members.values() if member.instance_id}
        for member_id, member in before.members.items():
            if member_id in after.members or member_id not in lived or member_id in self.left:
                continue
            self._checked("I25 of members")
            if member.instance_id in places:
                self.world.count("static members replaced")
            elif member.revoking_since_ms:
                waited_ms = self.world.now_ms - self._asked_ms[member_id]
                if waited_ms < member.rebalance_timeout_ms:
                    self._fail("I25", f"{_short(member_id)} was removed {waited_ms} ms after it was asked to give up")
                self.world.count("members that did not give up in time")
            else:
                self._fail("I25", f"{_short(member_id)} was removed though its session lives")

    def _note_times(self) -> None:
        """By the world's clock, which no coordinator has."""
        now_ms, group = self.world.now_ms, self.now.group
        self._asked_ms = {
            member_id: self._asked_ms.get(member_id, now_ms)
            for member_id, member in group.members.items()
            if member.revoking_since_ms
        }
        if group.members:
            self._empty_ms = None
        elif self._empty_ms is None:
            self._empty_ms = now_ms

    def _check_target(self) -> None:
        """I28: the target assigns every subscribed partition to a subscriber."""
        group = self.now.group
        names = {topic.name for topic in group.topics.values()}
        taking = {
            member_id: {*member.topics, *(n for n in names if member.topic_pattern and n.startswith("t"))}
            for member_id, member in group.members.items()
        }
        self._checked("I28 of targets", bool(group.target))
        for partition, member_id in group.target.items():
            if member_id not in group.members:
                self._fail("I28", f"{partition[1]} is for {_short(member_id)}, who is no member")
            if group.topics[partition[0]].name not in taking[member_id]:
                self._fail("I28", f"{partition[1]} is for {_short(member_id)}, who does not subscribe to it")
        targeted = {topic_id for topic_id, _ in group.target}
        for topic_id in targeted:
            missing = [n for n in range(group.topics[topic_id].partitions) if (topic_id, n) not in group.target]
            if missing:
                self._fail("I28", f"no target owner of {missing} of {group.topics[topic_id].name}")

    def _check_owners(self, revision: int, was: dict[bytes, Assigned], lived: dict[bytes, None]) -> None:
        """I24, I25: one owner a partition, epochs that rise, and nothing taken from who reads it."""
        owners: dict[TopicPartition, tuple[bytes, int]] = {}
        for member_id, assigned in self.now.assigned.items():
            for partition, epoch in assigned.owned.items():
                other = owners.get(partition)
                self._checked("I24", len(self.now.assigned) > 1)
                if other is not None:
                    self._fail("I24", f"{_short(other[0])} and {_short(member_id)} own {partition[1]} at {revision}")
                owners[partition] = member_id, epoch
                if epoch > assigned.member_epoch:
                    self._fail("I28", f"{_short(member_id)} owns {partition[1]} since a later epoch than its own")
                if self._owners.get(partition) == (member_id, epoch):
                    continue
                if epoch <= self._granted.get(partition, 0):
                    self._fail("I24", f"{partition[1]} was granted with epoch {epoch} again")
                self._checked("I24 of epochs", partition in self._granted)
                self._granted[partition] = epoch
                self.world.count("partitions granted")
        for partition, (member_id, epoch) in self._owners.items():
            if owners.get(partition) != (member_id, epoch) and member_id in self.now.assigned:
                self._check_given_up(partition, member_id, epoch, lived)
        for member_id, assigned in self.now.assigned.items():
            known = was.get(member_id)
            if known is not None and assigned.member_epoch < known.member_epoch:
                self._fail("I28", f"the epoch of {_short(member_id)} fell to {assigned.member_epoch}")
        self._owners = owners

    def _check_given_up(
        self, partition: TopicPartition, member_id: bytes, epoch: int, lived: dict[bytes, None]
    ) -> None:
        """A member that stays gave it up: its process does not read it any more; or the topic is gone."""
        life = self.lives[member_id]
        if not self.cluster.exists(partition[0]) or member_id not in lived:
            return
        self._checked("I25 of owners")
        for tenure in life.positions.values():
            if (tenure.member_id, tenure.topic_id, tenure.number, tenure.assignment_epoch) == (
                member_id,
                *partition,
                epoch,
            ):
                self._fail("I25", f"{life.place.name} still reads {partition[1]} of epoch {epoch}, which was taken")

    def _check_offset(self, revision: int, partition: TopicPartition, value: bytes | None, before: Group) -> None:
        """I26, I29: only owners commit, in order, and what they have finished with."""
        stored = self.now.offsets.get(partition)
        if value is None:
            self.now.offsets.pop(partition, None)
            if self.cluster.exists(partition[0]):
                self._checked("H70")
                if before.members:
                    self._fail("H70", f"the offset of {partition[1]} was deleted while the group has members")
                empty_ms = self.world.now_ms - (self.world.now_ms if self._empty_ms is None else self._empty_ms)
                asked = self.deletes_group or self.open_deletions
                if empty_ms < self.cluster.plan.offsets_retention_ms and not asked:
                    self._fail("H70", f"the offset of {partition[1]} was deleted after {empty_ms} ms without members")
                self.world.count("offsets expired")
                self.acknowledged.pop(partition, None)
                self._stored_in.pop(partition, None)
                self._deleted_in[partition] = revision
            return
        commit = metadata_pb2.CommittedOffset.FromString(value)
        self.now.offsets[partition] = commit
        self.world.count("offsets stored")
        self._checked("I26")
        self._checked("I29 of commits")
        assigned = self.now.assigned.get(commit.member_id)
        epoch = -1 if assigned is None else assigned.owned.get(partition, -1)
        if assigned is None or epoch < 0:
            self._fail("I26", f"{_short(commit.member_id)} commits {partition[1]} at {revision} and does not own it")
            return
        if not epoch <= commit.member_epoch <= assigned.member_epoch:
            self._fail("I26", f"a commit of epoch {commit.member_epoch} not in {epoch}..{assigned.member_epoch}")
        of_epoch, number, offset = self._stored_in.get(partition, (-1, 0, 0))
        self._checked("I26 of order", of_epoch == epoch)
        if of_epoch == epoch and (commit.commit_number < number or commit.offset < offset):
            self._fail(
                "I26",
                f"commit {commit.commit_number} of {partition[1]} takes {offset} of commit {number} "
                f"back to {commit.offset}",
            )
        self._stored_in[partition] = epoch, commit.commit_number, commit.offset
        if commit.offset > self._finished.get(partition, 0):
            self._fail("I29", f"{commit.offset} of {partition[1]} was committed before it was finished")
        self._checked("I27 of commits", stored is not None)
        if stored is not None and commit.offset < stored.offset and not self.cluster.plan.buggy_etcd:
            self._fail("I27", f"{stored.offset} of {partition[1]} went back to {commit.offset}")

    # --- members ---

    def finished(self, partition: TopicPartition, position: int) -> None:
        """An application is done with all records below `position`."""
        self._finished[partition] = max(position, self._finished.get(partition, 0))

    def taken(self, life: MemberLife, tenure: Tenure) -> None:
        """A member begins to read a partition."""
        partition = tenure.topic_id, tenure.number
        self.world.count("partitions taken")
        assigned = self.now.assigned.get(tenure.member_id)
        if tenure.member_id in self.now.live and assigned is not None and self.cluster.exists(tenure.topic_id):
            epoch = assigned.owned.get(partition)
            self._checked("I25 of tenures")
            if epoch != tenure.assignment_epoch:
                self._fail("I25", f"{life.place.name} takes {partition[1]} of epoch {tenure.assignment_epoch}")
            if self.cluster.plan.buggy_etcd:
                return
            acknowledged = self.acknowledged.get(partition, 0)
            self._checked("I27", acknowledged > 0)
            if tenure.position < acknowledged:
                self._fail("I27", f"{life.place.name} begins at {tenure.position}, {acknowledged} was acknowledged")
        self._checked("I29", tenure.position > 0)
        if tenure.position > self._finished.get(partition, 0):
            self._fail("I29", f"{life.place.name} begins at {tenure.position} and skips records")

    def given(self, life: MemberLife, tenure: Tenure, position: int) -> None:
        """A member gives its application the records up to `position`."""
        partition = tenure.topic_id, tenure.number
        plan = self.cluster.plan
        is_over = tenure.member_id in self._expired and tenure.member_id not in self.now.live
        self._checked("H66", plan.stop_on_session_loss and not plan.ends_leases_early)
        if plan.stop_on_session_loss and not plan.ends_leases_early and is_over:
            self._fail("H66", f"{life.place.name} is given records of {partition[1]} after its session was over")
        known = self._given.get(partition, 0)
        if tenure.position < known:
            self.world.count("records given again", min(position, known) - tenure.position)
        self._given[partition] = max(known, position)

    def _committable(self, request: Any) -> set[TopicPartition]:
        """Return the partitions whose commit in a request is valid now (H63)."""
        assigned, member = self.now.assigned.get(request.member_id), self.now.group.members.get(request.member_id)
        epoch = request.member_epoch
        if assigned is None or member is None or epoch > min(assigned.member_epoch, member.member_epoch):
            return set()
        return {partition for partition, granted in assigned.owned.items() if granted <= epoch}

    def commit_arrived(self, call: object, request: Any) -> None:
        """A coordinator begins to decide about a commit."""
        self._valid_commits.setdefault(call, (request, self._committable(request)))

    def commit_answered(self, call: object, answer: Any) -> None:
        """A coordinator has decided; what was valid all the time is not refused as another member's (H63)."""
        request, valid = self._valid_commits.pop(call, (None, set()))
        if answer is None or request is None:
            return
        for asked, topic in zip(request.topics, answer.topics, strict=True):
            for given in topic.partitions:
                partition = bytes(asked.topic_id), given.partition
                self._checked("H63", partition in valid)
                is_refused = given.HasField("error") and given.error.code == ErrorCode.NOT_OWNER
                if is_refused and partition in valid and not self.cluster.plan.buggy_etcd:
                    self._fail("H63", f"{_short(request.member_id)} may not commit to {partition[1]}, which it owns")

    def told_stored(self, request: Any, answer: Any) -> None:
        """A member was told that its commit is stored."""
        for asked, topic in zip(request.topics, answer.topics, strict=True):
            for wanted, given in zip(asked.partitions, topic.partitions, strict=True):
                partition = bytes(asked.topic_id), given.partition
                if given.HasField("error"):
                    self.world.count("commits refused")
                elif self.cluster.exists(partition[0]) and answer.revision > self._deleted_in.get(partition, 0):
                    self.acknowledged[partition] = max(wanted.offset, self.acknowledged.get(partition, 0))

    def told_unknown(self, request: Any) -> None:
        """A member was told that it is none: so it is not, or was not for a while (H63, H73).

        An id comes back if its request to join was sent twice, and one of them is late.
        """
        member_id = request.member_id
        self._checked("H63")
        known = member_id in self.now.group.members and member_id in self.now.live and member_id not in self._expired
        if known and request.member_epoch and not self.cluster.plan.buggy_etcd:
            self._fail("H63", f"{_short(member_id)} was told that it is no member, and is")

    def refused_for_limit(self, request: Any, entry: GroupEntry) -> None:
        """A coordinator refuses a join at the limit of members: not one that takes a place which it knows (H69)."""
        self.world.count("joins refused at the limit of members")
        self._checked("H71")  # By `refused`: the process repeats the join.
        places = [member.instance_id for member in entry.group.members.values() if member.member_id in entry.live]
        if request.instance_id and request.instance_id in places:
            self._fail("H69", f"{request.instance_id} is refused, and its former life has the place")

    def refused(self, life: MemberLife, error: HeadraceError) -> None:
        """A group refuses a process for good: for the limit of members not before a dead one's session is over."""
        waited_ms = self.world.now_ms - life.started_ms
        if isinstance(error, MetadataLimitError) and waited_ms < self.cluster.plan.session_timeout_ms:
            self._fail("H71", f"{life.place.name} has given up after {waited_ms} ms")

    # --- views ---

    def check_views(self) -> None:
        """I19: what a coordinator holds in memory is what stood in etcd at its revision."""
        if self.cluster.plan.buggy_etcd:
            return
        store = self.cluster.etcd.store
        for node in self.cluster.coordinators:
            coordinator = node.coordinator
            if coordinator is None or not coordinator.groups_source.revision:
                continue
            source = coordinator.groups_source
            self._checked("I19")
            stood = store.range_at(self.cluster.keyspace.groups_prefix, source.revision)
            if list(stood.key_values) != source.items(self.cluster.keyspace.groups_prefix):
                self._fail("I19", f"{node.name} has a wrong view at {source.revision}")


def _read(value: bytes) -> Assigned:
    message = metadata_pb2.MemberAssignment.FromString(value)
    owned = {
        (bytes(topic.topic_id), number): epoch
        for topic in message.topics
        for number, epoch in zip(topic.partitions, topic.assignment_epochs, strict=True)
    }
    return Assigned(message.member_epoch, owned)


def _short(member_id: bytes) -> str:
    return member_id.hex()[:6]
