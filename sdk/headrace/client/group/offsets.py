"""Queue of commits, with one in flight. Pure: no I/O, no clock; its owner holds a lock.

Commits queued while one is in flight are merged into the newest offset of each partition. A commit with an unknown
outcome is sent again unchanged until resolved, so it cannot take effect after a later one (PROTOCOL H64, I26).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.v1 import groups_pb2
from headrace.wire.errors import (
    HeadraceError,
    NotOwnerError,
    UnknownMemberError,
    UnknownPartitionError,
    UnknownTopicError,
    UnknownTopicIdError,
    from_detail,
)
from headrace.wire.ids import TopicPartition

MAX_COMMIT_PARTITIONS = 1_000
"""Maximum number of partitions in one commit; the next one contains the rest."""


class OffsetAndMetadata(NamedTuple):
    """Offset that was or will be committed."""

    offset: int
    """Offset of the next record to read."""
    leader_epoch: int = -1
    """Leader epoch of the batch before `offset`; -1 means unknown."""
    metadata: str = ""
    """Metadata of the application, at most 4 KiB."""


Commits = Mapping[TopicPartition, OffsetAndMetadata]
CommitCallback = Callable[[Commits, HeadraceError | None], object]
"""Called with the offsets of the commit, and the first error or `None`."""


class CommitTicket:
    """Commit that a caller waits for, until its offsets or later ones are stored or refused; see `CommitQueue`."""

    __slots__ = ("callback", "errors", "offsets", "pending")

    def __init__(self, offsets: Commits, callback: CommitCallback | None = None) -> None:
        self.offsets = dict(offsets)
        self.callback = callback
        self.pending = set(offsets)
        self.errors: dict[TopicPartition, HeadraceError] = {}

    @property
    def is_done(self) -> bool:
        """Whether everything is resolved."""
        return not self.pending

    @property
    def error(self) -> HeadraceError | None:
        """Error of the lowest partition that was refused, or `None`."""
        return self.errors[min(self.errors)] if self.errors else None


@dataclass(slots=True)
class _Wanted:
    value: OffsetAndMetadata
    topic_id: bytes
    tickets: list[CommitTicket] = field(default_factory=list)


class CommitQueue:
    """Commits of one session. The module's docstring states who may call it."""

    def __init__(self, client_id: str, group_id: str) -> None:
        self._client_id = client_id
        self._group_id = group_id
        self._wanted: dict[TopicPartition, _Wanted] = {}
        self._flying: dict[TopicPartition, _Wanted] = {}
        self._request: groups_pb2.CommitOffsetsRequest | None = None
        self._number = 0
        self._done: list[CommitTicket] = []  # with a callback
        self.committed: dict[TopicPartition, OffsetAndMetadata] = {}
        """Offsets known to be stored, of owned partitions."""
        self.last_error: HeadraceError | None = None
        self.revision = 0
        """Revision at which a coordinator's view includes every offset known to be stored."""

    def put(self, ticket: CommitTicket, topic_ids: Mapping[TopicPartition, bytes]) -> None:
        """Queue the offsets of a ticket; `topic_ids` names the incarnations of the topics."""
        for where, value in ticket.offsets.items():
            before = self._wanted.get(where)
            tickets = [] if before is None else before.tickets
            self._wanted[where] = _Wanted(value, topic_ids[where], [*tickets, ticket])
        if ticket.is_done and ticket.callback is not None:
            self._done.append(ticket)

    def latest(self, where: TopicPartition) -> OffsetAndMetadata | None:
        """Return the offset stored once all commits are resolved; `None` if it is unknown."""
        for queue in (self._wanted, self._flying):
            if where in queue:
                return queue[where].value
        return self.committed.get(where)

    def is_resolved(self, where: TopicPartition) -> bool:
        """Return whether a partition has no commit queued or in flight."""
        return where not in self._wanted and where not in self._flying

    def is_flying(self, request: groups_pb2.CommitOffsetsRequest) -> bool:
        """Return whether this commit is the one in flight."""
        return self._request is request

    def has_done(self) -> bool:
        """Return whether `take_done` would return a ticket."""
        return bool(self._done)

    def last_ticket(self) -> CommitTicket | None:
        """Return a ticket that is done when everything queued or in flight is resolved; `None` if there is nothing."""
        waiting = {**self._flying, **self._wanted}
        if not waiting:
            return None
        ticket = CommitTicket({where: wanted.value for where, wanted in waiting.items()})
        for where in ticket.offsets:
            (self._wanted.get(where) or self._flying[where]).tickets.append(ticket)
        return ticket

    def request(self, member_id: bytes, member_epoch: int) -> groups_pb2.CommitOffsetsRequest | None:
        """Return the unresolved commit again, else the next one; `None` if there is nothing to commit."""
        if self._request is not None:
            return self._request
        if not self._wanted:
            return None
        self._number += 1
        request = groups_pb2.CommitOffsetsRequest(
            client_id=self._client_id,
            group_id=self._group_id,
            member_id=member_id,
            member_epoch=member_epoch,
            commit_number=self._number,
        )
        topics: dict[bytes, groups_pb2.TopicOffsets] = {}
        for where in sorted(self._wanted)[:MAX_COMMIT_PARTITIONS]:
            wanted = self._flying[where] = self._wanted.pop(where)
            if wanted.topic_id not in topics:
                topics[wanted.topic_id] = request.topics.add(topic_id=wanted.topic_id, name=where.topic)
            topics[wanted.topic_id].partitions.add(
                partition=where.partition,
                offset=wanted.value.offset,
                leader_epoch=wanted.value.leader_epoch,
                metadata=wanted.value.metadata,
            )
        self._request = request
        return request

    def answered(self, answer: groups_pb2.CommitOffsetsResponse) -> list[tuple[TopicPartition, bytes]]:
        """Process the response to the commit in flight; return the partitions that another member owns, with topic ids.

        An offset with a retriable error is queued again, unless a newer offset of its partition is queued.
        """
        assert self._request is not None
        errors = {
            TopicPartition(asked.name, given.partition): from_detail(given.error) if given.HasField("error") else None
            for asked, topic in zip(self._request.topics, answer.topics, strict=True)
            for given in topic.partitions
        }
        flying, self._flying, self._request = self._flying, {}, None
        self.last_error = None
        self.revision = max(self.revision, answer.revision)
        lost = []
        for where, wanted in flying.items():
            error = errors.get(where)
            if error is None:
                self.committed[where] = wanted.value
            elif error.retriable and not isinstance(error, _GONE):
                self.last_error = error
                newer = self._wanted.get(where)
                if newer is None:
                    self._wanted[where] = wanted
                else:
                    newer.tickets[:0] = wanted.tickets
                continue
            elif isinstance(error, NotOwnerError):
                lost.append((where, wanted.topic_id))
            self._resolve(where, wanted, error)
        return lost

    def failed(self, error: HeadraceError) -> None:
        """Process a permanent refusal of the whole commit in flight."""
        flying, self._flying, self._request = self._flying, {}, None
        self.last_error = error
        for where, wanted in flying.items():
            self._resolve(where, wanted, error)

    def drop(self, where: TopicPartition) -> None:
        """Forget the known and queued offsets of a partition that is not owned any more."""
        self.committed.pop(where, None)
        wanted = self._wanted.pop(where, None)
        if wanted is not None:
            self._resolve(where, wanted, NotOwnerError(f"{where} belongs to another member of the group"))

    def drop_all(self) -> None:
        """Forget everything after a loss of membership; the response to a commit in flight is ignored."""
        self.committed.clear()
        lost = UnknownMemberError("the member's session was over before the commit was stored")
        for where, wanted in [*self._flying.items(), *self._wanted.items()]:
            self._resolve(where, wanted, lost)
        self._flying, self._wanted, self._request = {}, {}, None

    def take_done(self) -> Sequence[CommitTicket]:
        """Return the tickets that were resolved since the last call and have a callback."""
        done, self._done = self._done, []
        return done

    def give_back_done(self, tickets: Sequence[CommitTicket]) -> None:
        """Return tickets whose callbacks were not called, to be taken again."""
        self._done = [*tickets, *self._done]

    def _resolve(self, where: TopicPartition, wanted: _Wanted, error: HeadraceError | None) -> None:
        for ticket in wanted.tickets:
            if where not in ticket.pending:
                continue
            ticket.pending.discard(where)
            if error is not None:
                ticket.errors[where] = error
            if ticket.is_done and ticket.callback is not None:
                self._done.append(ticket)


_GONE = (UnknownTopicError, UnknownTopicIdError, UnknownPartitionError)
"""Errors for a deleted topic: there is nothing left to commit, so a retry is useless."""
