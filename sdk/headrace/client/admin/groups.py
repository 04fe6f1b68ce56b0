"""What `Admin` says and hears about consumer groups. Pure, shared by the blocking and the asyncio class."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

from headrace.client.admin.rpc import error_of
from headrace.client.base.errors import ConfigError
from headrace.v1 import groups_pb2
from headrace.wire.errors import HeadraceError
from headrace.wire.ids import TopicPartition

NO_OFFSET = -1
"""No offset is stored; in a reset, removes the stored offset."""
MAX_COMMIT_PARTITIONS = 1_000
"""Partitions in one request; more go in several."""

GroupStateName: TypeAlias = Literal["empty", "rebalancing", "stable", "unknown"]

_STATES: dict[int, GroupStateName] = {
    groups_pb2.GROUP_STATE_EMPTY: "empty",
    groups_pb2.GROUP_STATE_REBALANCING: "rebalancing",
    groups_pb2.GROUP_STATE_STABLE: "stable",
}


@dataclass(frozen=True, slots=True)
class GroupListing:
    """One group in a list."""

    group_id: str
    state: GroupStateName
    members: int
    partitions: int
    """Those that its members share; without members, those with a committed offset."""
    assignor: str
    """Empty if it never had members."""
    empty_since_ms: int
    """When its last member went, ms since 1970; 0: it has members."""


class CommittedOffset(NamedTuple):
    """The offset that a group has committed in one partition."""

    offset: int
    """The next record to read."""
    leader_epoch: int
    """Of the last batch read before it; -1: not known."""
    metadata: str
    """The application's."""
    committed_ms: int
    """When it was stored, by the coordinator's clock, ms since 1970."""


@dataclass(frozen=True, slots=True)
class GroupMember:
    """One member of a group."""

    member_id: bytes
    """16 bytes, drawn anew for each life of the member."""
    instance_id: str
    """The place it takes; empty: none."""
    client_id: str
    host: str
    rack: str
    member_epoch: int
    topics: tuple[str, ...]
    topic_pattern: str
    owned: Mapping[TopicPartition, int]
    """What it owns, and since which member epoch: the fencing token of that partition."""
    target: tuple[TopicPartition, ...]
    """What it is to own when everybody has given up what they are to give up."""
    joined_ms: int
    """When it joined, ms since 1970."""
    session_timeout_ms: int
    revoking_ms: int
    """For how long it has been asked to give up partitions that it still owns; 0: it is not."""
    live: bool
    """It sent a heartbeat within its session timeout."""

    @property
    def name(self) -> str:
        """Its instance id, or the beginning of its member id in hex."""
        return self.instance_id or self.member_id.hex()[:8]


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group as a whole."""

    listing: GroupListing
    group_epoch: int
    """Rises with each change of members, subscriptions or topics."""
    assignment_epoch: int
    """The group epoch that the target was computed for."""
    members: tuple[GroupMember, ...]
    offsets: Mapping[TopicPartition, CommittedOffset]
    """A topic that is not there any more goes by its id in hex."""
    unowned: tuple[TopicPartition, ...]
    """Partitions of the group that no member owns."""
    topic_ids: Mapping[str, bytes]
    """Of the topics named above; 16 bytes each."""
    revision: int
    """Of etcd: at least as new as this is what is said here."""

    @property
    def owners(self) -> dict[TopicPartition, GroupMember]:
        """Who owns each partition."""
        return {where: member for member in self.members for where in member.owned}

    @property
    def partitions(self) -> list[TopicPartition]:
        """Every partition that the group shares out, owns or has an offset of, ascending."""
        found = {*self.offsets, *self.unowned}
        for member in self.members:
            found.update(member.owned, member.target)
        return sorted(found)


class GroupResult(NamedTuple):
    """What became of one group of a request that changes several."""

    group_id: str
    error: HeadraceError | None
    """Why it was refused; None: it was done."""


class OffsetResult(NamedTuple):
    """What became of one partition's offset."""

    topic: str
    partition: int
    offset: int
    """As it was to be stored; -1: removed."""
    error: HeadraceError | None
    """Why it was refused; None: it was stored."""


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """How far a group is behind in one partition."""

    topic: str
    partition: int
    committed_offset: int
    """The next record to read; -1: none is stored."""
    log_start_offset: int
    """-1: not known."""
    end_offset: int
    """The high watermark, below which records can be read; -1: not known."""
    records: int | None
    """How many are still to be read, exactly; None: the offset or the end is not known."""
    behind_ms: int | None
    """The age of the first record that is still to be read: this machine's clock less the record's timestamp. 0: all
    is read. None: not known, or not asked for."""
    problem: str
    """Why something is not known, or empty."""

    @property
    def missed_records(self) -> int:
        """How many were deleted before they were read; they are not among `records`."""
        if self.committed_offset < 0 or self.log_start_offset < 0:
            return 0
        return max(0, self.log_start_offset - self.committed_offset)


def commit_requests(
    group_id: str,
    offsets: Mapping[TopicPartition, int],
    expected_group_epoch: int | None = None,
    topic_ids: Mapping[str, bytes] | None = None,
) -> Iterator[tuple[groups_pb2.CommitOffsetsRequest, list[TopicPartition]]]:
    """Make the requests that store offsets without a member, and return which partitions each has, in its order.

    With its id a topic is told from another one of its name.

    Raises:
        ConfigError: an offset below -1.
    """
    for where, offset in offsets.items():
        if offset < NO_OFFSET:
            raise ConfigError(f"{where}: offset {offset} is negative", action="Give -1 to remove what is stored.")
    ordered = sorted(offsets)
    for first in range(0, len(ordered), MAX_COMMIT_PARTITIONS):
        some = ordered[first : first + MAX_COMMIT_PARTITIONS]
        request = groups_pb2.CommitOffsetsRequest(group_id=group_id, expected_group_epoch=expected_group_epoch)
        _add_offsets(request.topics, {where: offsets[where] for where in some})
        for topic in request.topics:
            topic.topic_id = (topic_ids or {}).get(topic.name, b"")
        yield request, some


def commit_results(
    response: groups_pb2.CommitOffsetsResponse, offsets: Mapping[TopicPartition, int]
) -> list[OffsetResult]:
    """Read what became of each partition."""
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
    """Read all groups, by id."""
    return sorted(map(_listing, response.groups), key=lambda listing: listing.group_id)


def description(response: groups_pb2.DescribeGroupResponse) -> GroupDescription:
    """Read one group."""
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
    """Read all offsets of a group, ascending."""
    return _offsets(response.topics, {})


def group_results(response: groups_pb2.DeleteGroupsResponse) -> list[GroupResult]:
    """Read what became of each group, in order."""
    return [GroupResult(each.group_id, error_of(each)) for each in response.groups]


def _add_offsets(topics: Any, offsets: Mapping[TopicPartition, int]) -> None:
    """Write offsets by topic, in their order."""
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
                each.offset, each.leader_epoch, each.metadata, each.committed_ms
            )
    return dict(sorted(found.items()))


def _partitions(
    topics: Iterable[groups_pb2.GroupTopicPartitions], topic_ids: dict[str, bytes]
) -> Iterator[tuple[TopicPartition, int]]:
    """Each partition with its assignment epoch, 0 where there is none."""
    for topic in topics:
        name = _name(topic.name, topic.topic_id, topic_ids)
        epochs = topic.assignment_epochs or [0] * len(topic.partitions)
        for partition, epoch in zip(topic.partitions, epochs, strict=True):
            yield TopicPartition(name, partition), epoch


def _name(name: str, topic_id: bytes, topic_ids: dict[str, bytes]) -> str:
    """What a topic goes by: its name, or its id where it has none or another topic goes by that."""
    if not name or topic_ids.get(name, topic_id) != topic_id:
        name = topic_id.hex()
    if topic_id:
        topic_ids[name] = topic_id
    return name
