"""Consumer groups of a directory: members in this process, offsets in files. What `GroupService` answers.

The rules are those of the coordinators (`headrace.groups.transition`); a member's session is a time here instead of a
lease in etcd. Members of an earlier process are gone with it, its offsets are not. Thread-safe.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from headrace.embedded.group_offsets import DirectoryOffset, GroupFile, GroupFiles
from headrace.groups.assignors import AssignableTopic, TopicPartition
from headrace.groups.heartbeats import MemberDeparture, MemberHeartbeat, no_member
from headrace.groups.messages import (
    check_empty,
    check_group_id,
    check_member_id,
    expected_epoch,
    read_member,
    read_owned,
    reset_number,
    write_group,
    write_listing,
    write_offsets,
    write_partitions,
    write_requested_offsets,
)
from headrace.groups.state import Group, Member, with_next_epoch
from headrace.groups.transition import transition
from headrace.v1 import groups_pb2
from headrace.wire.errors import (
    FencedMemberEpochError,
    HeadraceError,
    InvalidRequestError,
    NotOwnerError,
    UnknownGroupError,
    UnknownMemberError,
    UnknownTopicIdError,
    to_detail,
)

HEARTBEATS_A_SESSION = 4
LONGEST_INTERVAL_MS = 3_000
MAX_METADATA_BYTES = 4_096
RESERVED_EPOCHS = 1_000

_log = logging.getLogger("headrace.embedded")


@dataclass(slots=True)
class _Entry:
    """Group in memory."""

    file: GroupFile
    group: Group = field(default_factory=Group)
    seen: dict[bytes, float] = field(default_factory=dict)
    """Time of each member's last heartbeat, of the monotonic clock in seconds."""
    asked: dict[bytes, float] = field(default_factory=dict)
    """Since when members have partitions to release, or last released some of them."""
    revisions: dict[bytes, int] = field(default_factory=dict)
    """Revision at which each member's assignment last changed."""
    commits: dict[TopicPartition, tuple[bytes, int]] = field(default_factory=dict)
    """Member and number of the last commit of each partition."""


class DirectoryGroups:
    """Groups of one directory."""

    def __init__(self, files: GroupFiles, topics: Callable[[], Mapping[str, AssignableTopic]]) -> None:
        """Read the files; raises as `GroupFiles.read_all`. `topics` returns all topics by name."""
        self._files = files
        self._topics = topics
        self._lock = threading.RLock()
        self._revision = 1
        self._deleted_epoch = files.read_epoch()
        self._groups = {group_id: self._entry(file) for group_id, file in files.read_all()}

    def _entry(self, file: GroupFile) -> _Entry:
        epoch = max(1, file.epoch)
        return _Entry(file, Group(group_epoch=epoch, assignment_epoch=epoch, empty_since_ms=file.empty_ms))

    def _entry_of(self, group_id: str) -> _Entry:
        """Return a group, or a new one that is not kept yet, above the epochs of those that were deleted."""
        return self._groups.get(group_id) or self._entry(GroupFile(epoch=self._deleted_epoch + 1))

    # --- membership ---

    def heartbeat(
        self, request: groups_pb2.HeartbeatRequest
    ) -> tuple[Callable[[bool], groups_pb2.HeartbeatResponse | None], float]:
        """Apply a heartbeat; return the attempts to answer it, and the deadline of the last one. Raises as the RPC."""
        member = read_member(request, "")
        started = time.monotonic()
        with self._lock:
            entry = self._entry_of(request.group_id)
            self._expire(request.group_id, entry, started)
            if request.member_epoch and member.member_id not in entry.group.members:
                raise no_member(entry.group.members, member.member_id, member.instance_id)
            entry.seen[member.member_id] = started
            joining = replace(member, joined_ms=_now_ms())
            beat = MemberHeartbeat(joining, request.member_epoch, request.assignor, read_owned(request))
            try:
                self._apply(request.group_id, entry, [beat])
            finally:
                if entry.group.members:
                    self._groups[request.group_id] = entry
        interval_ms = min(LONGEST_INTERVAL_MS, request.session_timeout_ms // HEARTBEATS_A_SESSION)
        wait_ms = min(request.max_wait_ms, interval_ms) if request.known_revision else 0

        def attempt(is_last: bool) -> groups_pb2.HeartbeatResponse | None:
            return self._answer(request, interval_ms, is_last=is_last)

        return attempt, started + wait_ms / 1000

    def _answer(
        self, request: groups_pb2.HeartbeatRequest, interval_ms: int, *, is_last: bool
    ) -> groups_pb2.HeartbeatResponse | None:
        with self._lock:
            entry = self._groups.get(request.group_id)
            group = Group() if entry is None else entry.group
            member = group.members.get(request.member_id)
            if entry is None or member is None:
                raise no_member(group.members, request.member_id, request.instance_id)
            revision = entry.revisions[request.member_id]
            if revision == request.known_revision and not is_last:
                return None
            owned = group.owned_by(request.member_id)
            kept = [each for each in owned if group.target.get(each) == request.member_id]
            names = {topic_id: topic.name for topic_id, topic in group.topics.items()}
            return groups_pb2.HeartbeatResponse(
                revision=revision,
                member_epoch=member.member_epoch,
                heartbeat_interval_ms=interval_ms,
                assignor=group.assignor,
                group_epoch=group.group_epoch,
                assigned=write_partitions(kept, names, owned),
            )

    def _expire(self, group_id: str, entry: _Entry, now: float) -> None:
        """Remove members whose session has ended, or that did not release partitions in time."""
        ended = [
            member_id
            for member_id, member in entry.group.members.items()
            if now - entry.seen.get(member_id, 0.0) > member.session_timeout_ms / 1000
        ]
        for member_id in ended:
            entry.seen.pop(member_id, None)
        late = frozenset(
            member_id
            for member_id, since in entry.asked.items()
            if member_id in entry.group.members
            and now - since > entry.group.members[member_id].rebalance_timeout_ms / 1000
        )
        if ended or late:
            self._apply(group_id, entry, [], overdue=late)

    def _apply(
        self,
        group_id: str,
        entry: _Entry,
        beats: list[MemberHeartbeat],
        leaving: Iterable[MemberDeparture] = (),
        overdue: frozenset[bytes] = frozenset(),
    ) -> None:
        """Compute the next state until nothing is left, and note whose assignments have changed.

        Raises:
            StorageFullError, StorageOfflineError: If the group's epoch cannot be stored; nothing has changed.
        """
        before, now = entry.group, time.monotonic()
        left = list(leaving)
        refused: HeadraceError | None = None
        while refused is None:
            result = transition(
                entry.group,
                heartbeats=beats,
                leaving=left,
                live=frozenset(entry.seen),
                topics=self._topics(),
                deleted=self._deleted(entry.group),
                stored={},
                encode_assignments=lambda group: dict.fromkeys(group.members, b""),
                begun=entry.file.begun,
                overdue=overdue,
                now_ms=_now_ms(),
            )
            entry.group = result.group
            for beat in beats:
                if (error := result.errors.get(beat.member.member_id)) is not None:
                    if beat.member.member_id not in entry.group.members:
                        entry.seen.pop(beat.member.member_id, None)
                    refused = error
            beats = [beat for beat in beats if beat.member.member_id in result.deferred]
            left = [each for each in left if each.member_id in result.deferred]
            if not beats and not left:
                break
        try:
            self._store_epoch(group_id, entry)
        except HeadraceError:
            entry.group = before
            raise
        self._note_changes(entry, before, now)
        if refused is not None:
            raise refused

    def _store_epoch(self, group_id: str, entry: _Entry) -> None:
        """Store the epoch and the topics of a group if they are new; epochs are reserved, so that few changes write."""
        epoch, known = entry.group.group_epoch, entry.file
        begun = {topic.topic_id: topic.first_partitions for topic in entry.group.topics.values()}
        if epoch > known.epoch or not begun.items() <= known.begun.items():
            reserved = known.epoch if epoch <= known.epoch else epoch + RESERVED_EPOCHS
            file = replace(known, epoch=reserved, begun={**known.begun, **begun})
            self._files.write(group_id, file)
            entry.file = file

    def _note_changes(self, entry: _Entry, before: Group, now: float) -> None:
        after = entry.group
        changed = False
        for member_id, member in after.members.items():
            known = before.members.get(member_id)
            if known is None or _assignment(before, member_id) != _assignment(after, member_id):
                self._revision += 1
                entry.revisions[member_id] = self._revision
                changed = True
            if not member.revoking_since_ms:
                entry.asked.pop(member_id, None)
            elif known is None or known.revoking_since_ms != member.revoking_since_ms:
                entry.asked[member_id] = now
        for member_id in before.members.keys() - after.members.keys():
            entry.revisions.pop(member_id, None)
            entry.seen.pop(member_id, None)
            entry.asked.pop(member_id, None)
            changed = True
        if changed:
            self.changed()

    def changed(self) -> None:
        """Called after a change of an assignment; replaced by the owner."""

    def _deleted(self, group: Group) -> frozenset[bytes]:
        present = {topic.topic_id for topic in self._topics().values()}
        return frozenset(topic_id for topic_id in group.topics if topic_id not in present)

    def leave(self, request: groups_pb2.LeaveGroupRequest) -> groups_pb2.LeaveGroupResponse:
        """Answer a LeaveGroup."""
        check_group_id(request.group_id)
        check_member_id(request.member_id)
        with self._lock:
            entry = self._groups.get(request.group_id)
            if entry is not None and request.member_id in entry.group.members:
                self._apply(request.group_id, entry, [], [MemberDeparture(request.member_id)])
        return groups_pb2.LeaveGroupResponse()

    def look(self) -> None:
        """End sessions that are over, and follow topics that were created, grown or deleted.

        A group whose next state cannot be stored, on a full disk, stays as it is until the next look.
        """
        with self._lock:
            for group_id, entry in self._groups.items():
                if entry.group.members:
                    try:
                        self._expire(group_id, entry, time.monotonic())
                        self._apply(group_id, entry, [])
                    except HeadraceError as error:
                        _log.debug("group %s: %s", group_id, error)

    def forget_deleted_topics(self) -> None:
        """Forget the offsets of topics that do not exist any more. Raises as a commit."""
        with self._lock:  # As for a commit: one to a topic that is created meanwhile comes before or after.
            topic_ids = {topic.topic_id for topic in self._topics().values()}
            for group_id, entry in self._groups.items():
                offsets = {where: each for where, each in entry.file.offsets.items() if where[0] in topic_ids}
                begun = {topic_id: first for topic_id, first in entry.file.begun.items() if topic_id in topic_ids}
                if len(offsets) < len(entry.file.offsets) or len(begun) < len(entry.file.begun):
                    file = replace(entry.file, offsets=offsets, begun=begun)
                    self._files.write(group_id, file)
                    entry.file = file

    # --- offsets ---

    def commit(self, request: groups_pb2.CommitOffsetsRequest) -> groups_pb2.CommitOffsetsResponse:
        """Answer a CommitOffsets: all partitions without an error are stored together."""
        check_group_id(request.group_id)
        response = groups_pb2.CommitOffsetsResponse()
        with self._lock:
            entry = self._entry_of(request.group_id)
            member = self._check_committer(request, entry)
            granted = None if member is None else entry.group.owned_by(member.member_id)
            offsets = dict(entry.file.offsets)
            stored: list[TopicPartition] = []
            for topic in request.topics:
                answer = response.topics.add(topic_id=topic.topic_id, name=topic.name)
                for asked in topic.partitions:
                    place = answer.partitions.add(partition=asked.partition, offset=asked.offset)
                    try:
                        partition = self._check_commit(topic, asked, request.member_epoch, granted)
                    except HeadraceError as error:
                        place.error.CopyFrom(to_detail(error))
                        continue
                    number = (request.member_id, request.commit_number)
                    last = entry.commits.get(partition)
                    if member is not None and last is not None and last[0] == number[0] and last[1] >= number[1] > 0:
                        continue  # A later commit of the same member was stored before.
                    if asked.offset < 0 and partition not in offsets and request.group_id not in self._groups:
                        continue  # A removal creates no group.
                    stored.append(partition)
                    if asked.offset < 0:
                        offsets.pop(partition, None)
                    else:
                        offsets[partition] = DirectoryOffset(
                            asked.offset, asked.leader_epoch, asked.metadata, _now_ms()
                        )
            if stored:
                file, group = replace(entry.file, offsets=offsets), entry.group
                if member is None:
                    group = replace(group, empty_since_ms=_now_ms())
                    if not group.is_reset_by(reset_number(request)):
                        group = with_next_epoch(group, reset_number(request))
                    file = replace(file, empty_ms=group.empty_since_ms, epoch=max(file.epoch, group.group_epoch))
                self._files.write(request.group_id, file)
                entry.file, entry.group = file, group
                entry.commits |= dict.fromkeys(stored, (request.member_id, request.commit_number))
                self._groups[request.group_id] = entry
                self._revision += 1
                response.revision = self._revision
        return response

    def _check_committer(self, request: groups_pb2.CommitOffsetsRequest, entry: _Entry) -> Member | None:
        """Return the member that commits, or `None` for an administrator; raise if it may not."""
        if not request.member_id:
            group = entry.group if request.group_id in self._groups else Group()
            check_empty(request.group_id, group, expected_epoch(request), reset_number(request))
            return None
        check_member_id(request.member_id)
        member = entry.group.members.get(request.member_id)
        if member is None:
            raise UnknownMemberError(f"the group has no member {request.member_id.hex()}: its session is over")
        if request.member_epoch > member.member_epoch:
            raise FencedMemberEpochError(
                f"the member is at epoch {member.member_epoch}, the request has epoch {request.member_epoch}"
            )
        return member

    def _check_commit(
        self,
        topic: groups_pb2.TopicOffsets,
        asked: groups_pb2.PartitionOffset,
        member_epoch: int,
        granted: Mapping[TopicPartition, int] | None,
    ) -> TopicPartition:
        found = next(
            (
                each
                for each in self._topics().values()
                if each.topic_id == topic.topic_id or (not topic.topic_id and each.name == topic.name)
            ),
            None,
        )
        if found is None:
            raise UnknownTopicIdError(f"there is no topic {topic.name or topic.topic_id.hex()}")
        if not 0 <= asked.partition < found.partitions:
            raise InvalidRequestError(f"topic {found.name} has no partition {asked.partition}")
        if asked.offset < (-1 if granted is None else 0):
            raise InvalidRequestError(f"offset {asked.offset} is negative")
        if len(asked.metadata.encode()) > MAX_METADATA_BYTES:
            raise InvalidRequestError(f"the metadata is longer than {MAX_METADATA_BYTES} bytes")
        partition = (found.topic_id, asked.partition)
        if granted is not None and not 0 <= granted.get(partition, -1) <= member_epoch:
            raise NotOwnerError(f"the member does not own partition {asked.partition} of {found.name}")
        return partition

    def fetch_offsets(self, request: groups_pb2.FetchOffsetsRequest) -> groups_pb2.FetchOffsetsResponse:
        """Answer a FetchOffsets."""
        check_group_id(request.group_id)
        with self._lock:
            entry = self._entry_of(request.group_id)
            response = groups_pb2.FetchOffsetsResponse(revision=self._revision)
            if not request.topics:
                response.topics.extend(write_offsets(entry.file.offsets.items(), self._names()))
            else:
                offsets, begun = entry.file.offsets, entry.file.begun
                response.topics.extend(write_requested_offsets(offsets.get, request.topics, begun))
            return response

    def _names(self) -> dict[bytes, str]:
        return {topic.topic_id: topic.name for topic in self._topics().values()}

    # --- administration ---

    def list(self, request: groups_pb2.ListGroupsRequest) -> groups_pb2.ListGroupsResponse:
        """Answer a ListGroups."""
        with self._lock:
            return groups_pb2.ListGroupsResponse(
                groups=[
                    write_listing(group_id, entry.group, len(entry.file.offsets))
                    for group_id, entry in sorted(self._groups.items())
                ]
            )

    def describe(self, request: groups_pb2.DescribeGroupRequest) -> groups_pb2.DescribeGroupResponse:
        """Answer a DescribeGroup."""
        check_group_id(request.group_id)
        with self._lock:
            entry = self._groups.get(request.group_id)
            if entry is None:
                raise UnknownGroupError(f"there is no group {request.group_id!r}")
            group, offsets = entry.group, entry.file.offsets.items()
            return write_group(
                request.group_id, group, group.members, offsets, self._names(), _now_ms(), self._revision
            )

    def delete(self, request: groups_pb2.DeleteGroupsRequest) -> groups_pb2.DeleteGroupsResponse:
        """Answer a DeleteGroups."""
        response = groups_pb2.DeleteGroupsResponse()
        for group_id in request.group_ids:
            answer = response.groups.add(group_id=group_id)
            try:
                self._delete(group_id, request.expected_group_epochs.get(group_id))
            except HeadraceError as error:
                answer.error.CopyFrom(to_detail(error))
        response.revision = self._revision
        return response

    def _delete(self, group_id: str, expected: int | None) -> None:
        check_group_id(group_id)
        with self._lock:
            entry = self._groups.get(group_id)
            if entry is None:
                raise UnknownGroupError(f"there is no group {group_id!r}")
            check_empty(group_id, entry.group, expected)
            if entry.group.group_epoch > self._deleted_epoch:
                self._files.write_epoch(entry.group.group_epoch)
                self._deleted_epoch = entry.group.group_epoch
            self._files.remove(group_id)
            del self._groups[group_id]
            self._revision += 1


def _assignment(group: Group, member_id: bytes) -> tuple[int, dict[TopicPartition, int], list[TopicPartition]]:
    owned = group.owned_by(member_id)
    return group.members[member_id].member_epoch, owned, [each for each in owned if group.target.get(each) != member_id]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
