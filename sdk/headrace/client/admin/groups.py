"""Requests and responses of `Admin` for consumer groups. Pure, shared by the blocking and the asyncio class."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

from headrace.client.admin.rpc import error_of
from headrace.client.base.errors import ConfigError
from headrace.v1 import groups_pb2
from headrace.wire.errors import HeadraceError
from headrace.wire.ids import TopicPartition

NO_OFFSET = -1
"""No offset is stored. In a reset, removes the stored offset."""
MAX_COMMIT_PARTITIONS = 1_000
"""Maximum number of partitions in one request; more are sent in several."""

GroupStateName: TypeAlias = Literal["empty", "rebalancing", "stable", "unknown"]

_STATES: dict[int, GroupStateName] = {
    groups_pb2.GROUP_STATE_EMPTY: "empty",
    groups_pb2.GROUP_STATE_REBALANCING: "rebalancing",
    groups_pb2.GROUP_STATE_STABLE: "stable",
}


@dataclass(frozen=True, slots=True)
class GroupListing:
    """Entry of a list of groups."""

    group_id: str
    state: GroupStateName
    members: int
    partitions: int
    """Number of partitions that its members share; without members, those with a committed offset."""
    assignor: str
    """Empty if it never had members."""
    empty_since_ms: int
    """Time at which its last member left, ms since 1970; 0 means that it has members."""


class CommittedOffset(NamedTuple):
    """Offset that a group has committed in one partition."""

    offset: int
    """Offset of the next record to read."""
    leader_epoch: int
    """Leader epoch of the last batch read before it; -1 means unknown."""
    metadata: str
    """Metadata of the application."""
    committed_ms: int
    """Time of the commit, by the coordinator's clock, ms since 1970."""
    topic_id: bytes
    """Id of the topic that it is an offset in, 16 bytes."""


@dataclass(frozen=True, slots=True)
class GroupMember:
    """Member of a group."""

    member_id: bytes
    """16 bytes, drawn anew each time that the member joins; the first 4 of another user's member."""
    instance_id: str
    """Static member's id; empty means dynamic membership."""
    client_id: str
    host: str
    rack: str
    member_epoch: int
    topics: tuple[str, ...]
    topic_pattern: str
    owned: Mapping[TopicPartition, int]
    """Owned partitions, each with the member epoch of its assignment: its fencing token."""
    target: tuple[TopicPartition, ...]
    """Partitions that it will own after all revoked partitions are released."""
    joined_ms: int
    """Time at which it joined, ms since 1970."""
    session_timeout_ms: int
    revoking_ms: int
    """Time for which it has not released revoked partitions; 0 means that it has none."""
    live: bool
    """Whether it sent a heartbeat within its session timeout."""
    user: str = ""
    """User that joined; empty without an identity."""

    @property
    def name(self) -> str:
        """Its instance id, or the first digits of its member id in hex."""
        return self.instance_id or self.member_id.hex()[:8]


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """Group with its members, assignments and offsets."""

    listing: GroupListing
    group_epoch: int
    """Increases with each change of members, subscriptions or topics."""
    assignment_epoch: int
    """Group epoch for which the target was computed."""
    members: tuple[GroupMember, ...]
    offsets: Mapping[TopicPartition, CommittedOffset]
    """Committed offsets; a deleted topic may be named by its id in hex, and is if there is a new one of its name."""
    unowned: tuple[TopicPartition, ...]
    """Partitions of the group without an owner."""
    topic_ids: Mapping[str, bytes]
    """Ids of the topics named above, 16 bytes each."""
    revision: int
    """Etcd revision; the description is at least as new."""

    @property
    def owners(self) -> dict[TopicPartition, GroupMember]:
        """Owner of each partition."""
        return {where: member for member in self.members for where in member.owned}

    @property
    def partitions(self) -> list[TopicPartition]:
        """Every partition that the group assigns, owns or has an offset of, ascending."""
        found = {*self.offsets, *self.unowned}
        for member in self.members:
            found.update(member.owned, member.target)
        return sorted(found)


class GroupResult(NamedTuple):
    """Result for one group of a request that changes several."""

    group_id: str
    error: HeadraceError | None
    """Reason of a refusal; `None` means success."""


class OffsetResult(NamedTuple):
    """Result for the offset of one partition."""

    topic: str
    partition: int
    offset: int
    """Requested offset; -1 means removed."""
    error: HeadraceError | None
    """Reason of a refusal; `None` means that it was stored."""


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """Lag of a group in one partition."""

    topic: str
    partition: int
    committed_offset: int
    """Offset of the next record to read; -1 means that none is stored."""
    log_start_offset: int
    """-1 means unknown."""
    end_offset: int
    """High watermark, below which records can be read; -1 means unknown."""
    records: int | None
    """Exact number of unread records; `None` if the offset or the end is unknown."""
    behind_ms: int | None
    """Age of the first unread record by this machine's clock. 0 if all are read; `None` if unknown or not requested."""
    problem: str
    """Reason why a value is unknown, or empty."""

    @property
    def missed_records(self) -> int:
        """Number of records deleted before they were read; not included in `records`."""
        if self.committed_offset < 0 or self.log_start_offset < 0:
            return 0
        return max(0, self.log_start_offset - self.committed_offset)


def commit_requests(
    group_id: str,
    offsets: Mapping[TopicPartition, int],
    expected_group_epoch: int | None = None,
    topic_ids: Mapping[str, bytes] | None = None,
    reset_number: int = 0,
) -> Iterator[tuple[groups_pb2.CommitOffsetsRequest, list[TopicPartition]]]:
    """Yield requests that store offsets without a member, each with its partitions, in order.

    Topic ids distinguish a topic from an earlier one of the same name. With a `reset_number` that no other reset has,
    the first request of those that expect an epoch begins another one, to which the others and retries belong.

    Raises:
        ConfigError: If an offset is below -1.
    """
    for where, offset in offsets.items():
        if offset < NO_OFFSET:
            raise ConfigError(f"{where}: offset {offset} is negative", action="Use -1 to remove the stored offset.")
    ordered = sorted(offsets)
    for first in range(0, len(ordered), MAX_COMMIT_PARTITIONS):
        some = ordered[first : first + MAX_COMMIT_PARTITIONS]
        request = groups_pb2.CommitOffsetsRequest(
            group_id=group_id, expected_group_epoch=expected_group_epoch, commit_number=reset_number
        )
        _add_offsets(request.topics, {where: offsets[where] for where in some})
        for topic in request.topics:
            topic.topic_id = (topic_ids or {}).get(topic.name, b"")
        yield request, some


def commit_results(
    response: groups_pb2.CommitOffsetsResponse, offsets: Mapping[TopicPartition, int]
) -> list[OffsetResult]:
    """Return the result for each partition."""
    return [
        OffsetResult(
            topic.name,
            each.partition,
            offsets[TopicPartition(topic.name, each.partition)],
            error_of(each),
        )
        for topic in response.topics
        for each in topic.partitions
    ]


def listings(response: groups_pb2.ListGroupsResponse) -> list[GroupListing]:
    """Return all groups, by id."""
    return sorted(map(_listing, response.groups), key=lambda listing: listing.group_id)


def description(response: groups_pb2.DescribeGroupResponse) -> GroupDescription:
    """Return one group."""
    topic_ids: dict[str, bytes] = {}
    offsets = _offsets(response.offsets, topic_ids)
    members = tuple(
        GroupMember(
            each.member_id,
            each.instance_id,
            each.client_id,
            each.host,
            each.rack,
            each.member_epoch,
            tuple(each.topics),
            each.topic_pattern,
            dict(_partitions(each.owned, topic_ids)),
            tuple(where for where, _ in _partitions(each.target, topic_ids)),
            each.joined_ms,
            each.session_timeout_ms,
            each.revoking_ms,
            each.live,
            each.user,
        )
        for each in response.members
    )
    unowned = tuple(where for where, _ in _partitions(response.unowned, topic_ids))
    return GroupDescription(
        _listing(response.listing),
        response.group_epoch,
        response.assignment_epoch,
        members,
        offsets,
        unowned,
        topic_ids,
        response.revision,
    )


def committed_offsets(response: groups_pb2.FetchOffsetsResponse) -> dict[TopicPartition, CommittedOffset]:
    """Return all offsets of a group, ascending."""
    return _offsets(response.topics, {})


def group_results(response: groups_pb2.DeleteGroupsResponse) -> list[GroupResult]:
    """Return the result for each group, in order."""
    return [GroupResult(each.group_id, error_of(each)) for each in response.groups]


def _add_offsets(topics: Any, offsets: Mapping[TopicPartition, int]) -> None:
    """Add offsets by topic, in their order."""
    entries: dict[str, groups_pb2.TopicOffsets] = {}
    for where, offset in offsets.items():
        entry = entries.get(where.topic)
        if entry is None:
            entry = entries[where.topic] = topics.add(name=where.topic)
        entry.partitions.add(partition=where.partition, offset=offset, leader_epoch=-1)


def _listing(message: groups_pb2.GroupListing) -> GroupListing:
    return GroupListing(
        message.group_id,
        _STATES.get(message.state, "unknown"),
        message.members,
        message.partitions,
        message.assignor,
        message.empty_since_ms,
    )


def _offsets(
    topics: Iterable[groups_pb2.TopicOffsets], topic_ids: dict[str, bytes]
) -> dict[TopicPartition, CommittedOffset]:
    found: dict[TopicPartition, CommittedOffset] = {}
    for topic in topics:
        name = _name(topic.name, topic.topic_id, topic_ids)
        for each in topic.partitions:
            found[TopicPartition(name, each.partition)] = CommittedOffset(
                each.offset, each.leader_epoch, each.metadata, each.committed_ms, topic.topic_id
            )
    return dict(sorted(found.items()))


def _partitions(
    topics: Iterable[groups_pb2.GroupTopicPartitions], topic_ids: dict[str, bytes]
) -> Iterator[tuple[TopicPartition, int]]:
    """Yield each partition with its assignment epoch, 0 if there is none."""
    for topic in topics:
        name = _name(topic.name, topic.topic_id, topic_ids)
        epochs = topic.assignment_epochs or [0] * len(topic.partitions)
        for partition, epoch in zip(topic.partitions, epochs, strict=True):
            yield TopicPartition(name, partition), epoch


def _name(name: str, topic_id: bytes, topic_ids: dict[str, bytes]) -> str:
    """Return the name of a topic, or its id if it has no name or another topic has that name."""
    if not name or topic_ids.get(name, topic_id) != topic_id:
        name = topic_id.hex()
    if topic_id:
        topic_ids[name] = topic_id
    return name
