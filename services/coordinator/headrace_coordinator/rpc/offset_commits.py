"""`CommitOffsets`: each partition of a request is checked separately, and has its own result.

Belongs to the event loop.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.groups.assignors import TopicPartition
from headrace.groups.messages import check_group_id, check_member_id, expected_epoch, reset_number
from headrace.v1 import groups_pb2, topics_pb2
from headrace.wire.errors import HeadraceError, InvalidRequestError, UnknownTopicError, UnknownTopicIdError
from headrace_server.identity.gate import access
from headrace_server.identity.rights import Operation, ResourceKind
from headrace_server.identity.topic_access import is_shown, resolve_topic
from headrace_server.metadata_view import ClusterView

from headrace_coordinator.rpc.answers import Answers
from headrace_coordinator.runtime.group_offsets import Commit, GroupOffsets
from headrace_coordinator.runtime.group_view import GroupEntry, GroupView
from headrace_coordinator.runtime.metadata_limits import MetadataLimits

MAX_REQUEST_PARTITIONS = 10_000
MAX_METADATA_BYTES = 4_096


class OffsetCommits:
    """Implementation of `CommitOffsets`, owned by the group servicer."""

    def __init__(
        self, view: ClusterView, groups: GroupView, offsets: GroupOffsets, answers: Answers, limits: MetadataLimits
    ) -> None:
        self._view = view
        self._groups = groups
        self._offsets = offsets
        self._answers = answers
        self._limits = limits

    async def commit(
        self, request: groups_pb2.CommitOffsetsRequest, deadline: float
    ) -> groups_pb2.CommitOffsetsResponse:
        """Store the offsets of a member, or of an administrator; see the proto."""
        check_group_id(request.group_id)
        if request.member_id:
            check_member_id(request.member_id)
        count = sum(len(topic.partitions) for topic in request.topics)
        if count > MAX_REQUEST_PARTITIONS:
            raise InvalidRequestError(f"{count} partitions are over the limit of {MAX_REQUEST_PARTITIONS}")
        response = groups_pb2.CommitOffsetsResponse()
        commits: dict[TopicPartition, Commit] = {}
        places: dict[TopicPartition, groups_pb2.PartitionOffset] = {}
        for topic in request.topics:
            answer = response.topics.add(topic_id=topic.topic_id, name=topic.name)
            for asked in topic.partitions:
                place = answer.partitions.add(partition=asked.partition, offset=asked.offset)
                try:
                    commit = self._read_commit(topic, asked, by_member=bool(request.member_id))
                except HeadraceError as error:
                    self._answers.put_error(place, error)
                    continue
                if commit.partition in commits:
                    raise InvalidRequestError(f"partition {asked.partition} is named twice")
                commits[commit.partition], places[commit.partition] = commit, place
        user = access().caller.identity.user
        if any(commit.offset >= 0 for commit in commits.values()):
            self._limits.check_group(request.group_id, user)
            self._refuse_growth(self._groups.entry(request.group_id), user, commits, places)
        outcome = await self._offsets.commit(
            request.group_id,
            request.member_id,
            request.member_epoch,
            list(commits.values()),
            deadline,
            user=user,
            commit_number=request.commit_number,
            expected_group_epoch=expected_epoch(request),
            reset_number=reset_number(request),
        )
        response.revision = outcome.revision
        for (topic_id, number), refusal in outcome.refused.items():
            known = self._view.topic_by_id(topic_id)
            is_unknown = known is None or not is_shown(known.name)
            self._answers.put_error(places[(topic_id, number)], _no_topic(topic_id) if is_unknown else refusal)
        return response

    def _refuse_growth(
        self,
        entry: GroupEntry,
        user: str,
        commits: dict[TopicPartition, Commit],
        places: Mapping[TopicPartition, groups_pb2.PartitionOffset],
    ) -> None:
        """Remove commits that exceed the metadata limits from `commits`, and store the error in their results."""
        for partition, commit in list(commits.items()):
            stored = entry.offsets.get(partition)
            before = None if stored is None else len(stored.message.metadata.encode())
            try:
                if commit.offset >= 0:
                    self._limits.check_growth("an offset", before, len(commit.metadata.encode()), entry.payer(user))
            except HeadraceError as error:
                self._answers.put_error(places[partition], error)
                del commits[partition]

    def _read_commit(
        self, topic: groups_pb2.TopicOffsets, asked: groups_pb2.PartitionOffset, *, by_member: bool
    ) -> Commit:
        topic_id = topic.topic_id
        if not topic_id:
            access().require(Operation.DESCRIBE, ResourceKind.TOPIC, topic.name)
            found = self._view.topics.get(topic.name)
            if found is None:
                raise UnknownTopicError(f"there is no topic named {topic.name[:249]!r}")
            topic_id = found.topic_id
        known = self._view.topic_by_id(topic_id)
        if not by_member:  # A partition owned by a member exists, even if this view does not show it yet.
            if known is None:
                raise _no_topic(topic_id)
            if topic.topic_id:
                resolve_topic(self._view, topics_pb2.TopicRef(topic_id=topic_id), Operation.DESCRIBE)
            if not 0 <= asked.partition < known.partitions:
                raise InvalidRequestError(f"topic {known.name} has no partition {asked.partition}")
        if asked.offset < (0 if by_member else -1):
            raise InvalidRequestError(f"offset {asked.offset} is negative")
        if len(asked.metadata.encode()) > MAX_METADATA_BYTES:
            raise InvalidRequestError(f"the metadata is longer than {MAX_METADATA_BYTES} bytes")
        return Commit((bytes(topic_id), asked.partition), asked.offset, asked.leader_epoch, asked.metadata)


def _no_topic(topic_id: bytes) -> UnknownTopicIdError:
    return UnknownTopicIdError(f"there is no topic with id {topic_id[:16].hex()}")
