"""Membership of a consumer in a group: owned, revoked and lost partitions. Pure: no I/O, no clock.

The I/O layer sends the heartbeats that `request` returns and passes the results back. The application's thread
processes `pending_events` and acknowledges them. One heartbeat is in flight at a time. A member reports as owned every
partition that was assigned to it and that the application has not released, even before the application is notified, so
that a partition is never owned here and free at the coordinator (KIP-848; PROTOCOL section 1.3, I24, I25, H66). The
owner holds a lock around every call.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

from headrace.client.base.config import ConsumerConfig
from headrace.client.net.bootstrap_client import own_handshake
from headrace.v1 import groups_pb2
from headrace.wire.errors import (
    FencedMemberEpochError,
    GroupTooLargeError,
    HeadraceError,
    MetadataLimitError,
    UnknownMemberError,
)
from headrace.wire.ids import TopicPartition

SESSION_PARTS = 4
"""A heartbeat waits at a coordinator for at most the session timeout divided by this."""
SHORTEST_GRACE_MS, LONGEST_GRACE_MS = 500, 5_000
"""Bounds on the time that a heartbeat may take beyond its wait before another coordinator is called."""


class Phase(Enum):
    """State of a member."""

    JOINING = auto()
    """Not a member: the next heartbeat joins."""
    MEMBER = auto()
    FAILED = auto()
    """Refused permanently; see `failure`."""
    STALE = auto()
    """The member has left until the application polls again."""
    LEFT = auto()


class Stage(Enum):
    """State of an assigned partition."""

    STARTING = auto()
    """Its initial offset is being looked up."""
    READY = auto()
    """The application has not been notified of its assignment."""
    OWNED = auto()
    REVOKED = auto()
    """The application has not been notified of its revocation."""
    RELEASING = auto()
    """The application released it; its last commit is not resolved."""


class InitialPosition(NamedTuple):
    """Initial position in a partition."""

    offset: int
    leader_epoch: int = -1
    """Leader epoch of the batch before `offset`; -1 means unknown."""
    metadata: str = ""
    """Metadata committed with the offset."""
    is_committed: bool = False
    """Whether the offset is committed; otherwise it follows from auto_offset_reset."""


@dataclass(slots=True)
class OwnedPartition:
    """Partition that this member owns according to the group. Only `Membership` changes it."""

    where: TopicPartition
    topic_id: bytes
    assignment_epoch: int
    """Member epoch of the assignment: a fencing token."""
    revision: int
    """Revision of the response that granted it: committed offsets are read at this revision or later."""
    stage: Stage = Stage.STARTING
    start: InitialPosition | None = None


class RebalanceEvents(NamedTuple):
    """Events for the application's thread, to be processed in field order."""

    lost: tuple[TopicPartition, ...]
    revoked: tuple[OwnedPartition, ...]
    assigned: tuple[OwnedPartition, ...]

    def __bool__(self) -> bool:
        return bool(self.lost or self.revoked or self.assigned)


class Membership:
    """State of one member. The module's docstring states who may call it."""

    def __init__(
        self, config: ConsumerConfig, topics: Iterable[str], host: str, draw_id: Callable[[], bytes], now_ms: int
    ) -> None:
        """`draw_id` returns 16 random bytes; `now_ms` and all times are milliseconds of the boot-time clock."""
        self._config = config
        self._topics = sorted(topics)
        self._host = host
        self._draw_id = draw_id
        self._owned_partitions: dict[tuple[bytes, int], OwnedPartition] = {}
        self._assigned: dict[tuple[bytes, int], tuple[str, int]] = {}
        self._lost: dict[TopicPartition, None] = {}
        self._needs_heartbeat = False
        self._report_owned = False
        session_part = config.session_timeout_ms // SESSION_PARTS
        self._longest_interval_ms = max(1, min(config.heartbeat_interval_ms, session_part))
        self.interval_ms = self._longest_interval_ms
        """Time for which a heartbeat waits at the coordinator for a change."""
        grace_ms = min(LONGEST_GRACE_MS, max(SHORTEST_GRACE_MS, session_part))
        self.grace_ms = min(grace_ms, config.request_timeout_ms)
        """Time that a response may take beyond the wait."""
        self.phase = Phase.JOINING
        self.failure: HeadraceError | None = None
        self.member_id = draw_id()
        self.member_epoch = 0
        self.revision = 0
        self.assignor = ""
        self.refused_since_ms: int | None = None
        """Time since which joins are refused because of a limit; `None` if the last join was not."""
        self.heard_ms = now_ms
        """Send time of the last heartbeat that got a response."""

    # --- heartbeats ---

    @property
    def is_over(self) -> bool:
        """Whether no more heartbeats are sent."""
        return self.phase in (Phase.FAILED, Phase.LEFT)

    @property
    def needs_heartbeat(self) -> bool:
        """Whether a heartbeat must be sent at once, which ends a waiting one."""
        return self._needs_heartbeat and self.phase is Phase.MEMBER

    def request(self) -> groups_pb2.HeartbeatRequest:
        """Return the next heartbeat; its content counts as reported, unless `heartbeat_failed` follows."""
        assert self.phase in (Phase.JOINING, Phase.MEMBER)
        config = self._config
        waits = self.phase is Phase.MEMBER and not self._needs_heartbeat
        request = groups_pb2.HeartbeatRequest(
            client_id=config.client_id,
            group_id=config.group_id,
            member_id=self.member_id,
            member_epoch=self.member_epoch,
            instance_id=config.group_instance_id,
            rack=config.client_rack,
            topics=self._topics,
            topic_pattern=config.topic_pattern,
            assignor=config.assignor,
            session_timeout_ms=config.session_timeout_ms,
            rebalance_timeout_ms=config.rebalance_timeout_ms,
            known_revision=self.revision,
            max_wait_ms=self.interval_ms if waits else 0,
            host=self._host,
        )
        if self.member_epoch == 0:
            request.handshake.CopyFrom(own_handshake())
        if self._needs_heartbeat or self._report_owned:
            request.owned.SetInParent()
            by_topic: dict[bytes, groups_pb2.GroupTopicPartitions] = {}
            for (topic_id, number), holding in sorted(self._owned_partitions.items()):
                if topic_id not in by_topic:
                    by_topic[topic_id] = request.owned.topics.add(topic_id=topic_id, name=holding.where.topic)
                by_topic[topic_id].partitions.append(number)
        self._needs_heartbeat = self._report_owned = False
        return request

    def heartbeat_answered(self, answer: groups_pb2.HeartbeatResponse, sent_ms: int) -> bool:
        """Process the response to the heartbeat sent at `sent_ms`; return whether the assignment changed."""
        self.phase = Phase.MEMBER
        self.refused_since_ms = None
        self.heard_ms = max(self.heard_ms, sent_ms)
        if answer.heartbeat_interval_ms > 0:
            self.interval_ms = min(self._longest_interval_ms, answer.heartbeat_interval_ms)
        if answer.revision < self.revision or answer.member_epoch < self.member_epoch:
            return False  # A coordinator whose view is behind must not revoke an assignment of another one.
        self.assignor = answer.assignor
        if answer.revision == self.revision and answer.member_epoch == self.member_epoch:
            return False
        self.revision = answer.revision
        self.member_epoch = answer.member_epoch
        self._report_owned = True  # The group may revoke what it granted in a response that was lost.
        self._assigned = {
            (topic.topic_id, number): (topic.name, epoch)
            for topic in answer.assigned
            for number, epoch in zip(topic.partitions, topic.assignment_epochs, strict=True)
        }
        for key, holding in list(self._owned_partitions.items()):
            self._hold_on(key, holding)
        for key in self._assigned:
            self._grant(key)
        return True

    @property
    def join_retry_ms(self) -> int:
        """Time for which a join refused by a limit is repeated: the killed predecessor of this process may occupy the
        place until its session expires.
        """
        return self._config.session_timeout_ms + LONGEST_GRACE_MS

    def heartbeat_failed(self, error: HeadraceError, request: groups_pb2.HeartbeatRequest, now_ms: int) -> None:
        """Process a failed heartbeat: end the membership, fail permanently, or try the next coordinator."""
        if isinstance(error, UnknownMemberError | FencedMemberEpochError):
            self.lose_all()
        elif self._may_join_later(error, now_ms):
            self.heartbeat_ended(request)
        elif not error.retriable:
            self.lose_all()
            self.failure = error
            self.phase = Phase.FAILED
        else:
            self.heartbeat_ended(request)

    def _may_join_later(self, error: HeadraceError, now_ms: int) -> bool:
        """Return whether a refused join is repeated because the expiry of another session may make room for it."""
        is_full = isinstance(error, GroupTooLargeError | MetadataLimitError) and not error.retriable
        if self.phase is not Phase.JOINING or not is_full:
            return False
        if self.refused_since_ms is None:
            self.refused_since_ms = now_ms
        return now_ms < self.refused_since_ms + self.join_retry_ms

    def heartbeat_ended(self, request: groups_pb2.HeartbeatRequest) -> None:
        """Process a heartbeat without a response: the next one must repeat its content."""
        self._needs_heartbeat |= request.HasField("owned")

    def request_heartbeat(self) -> None:
        """Send a heartbeat at once because the membership is in doubt."""
        self._needs_heartbeat = True

    def lose_all(self) -> None:
        """End this membership; the next heartbeat joins as a new member."""
        told = (Stage.OWNED, Stage.REVOKED)
        self._lost.update((holding.where, None) for holding in self._owned_partitions.values() if holding.stage in told)
        self._owned_partitions.clear()
        self._assigned.clear()
        self.member_id = self._draw_id()
        self.member_epoch = self.revision = 0
        self._needs_heartbeat = self._report_owned = False
        self.phase = Phase.JOINING

    def lose(self, where: TopicPartition, topic_id: bytes, member_epoch: int) -> None:
        """Lose a partition after a commit of `member_epoch` was refused because another member owns it. A newer grant
        stays, and so does a partition of a re-created topic.
        """
        key = topic_id, where.partition
        holding = self._owned_partitions.get(key)
        if holding is not None and holding.assignment_epoch <= member_epoch:
            if holding.stage in (Stage.OWNED, Stage.REVOKED):
                self._lost[where] = None
            self._drop(key)

    def leave(self) -> None:
        """Leave the group for good."""
        self._owned_partitions.clear()
        self._assigned.clear()
        self._lost.clear()
        self.phase = Phase.LEFT

    def session_ends_ms(self) -> int:
        """Return the time at which the group may expire this member, a session timeout after its heartbeat (H66)."""
        return self.heard_ms + self._config.session_timeout_ms

    # --- partitions ---

    def pending_events(self) -> RebalanceEvents:
        """Return unacknowledged events. A partition is not assigned while an older event of the same name is pending:
        its loss or revocation comes first.
        """
        holdings = sorted(self._owned_partitions.values(), key=lambda holding: holding.where)
        busy = {*self._lost, *(holding.where for holding in holdings if holding.stage not in _NEW)}
        return RebalanceEvents(
            tuple(sorted(self._lost)),
            tuple(holding for holding in holdings if holding.stage is Stage.REVOKED),
            tuple(holding for holding in holdings if holding.stage is Stage.READY and holding.where not in busy),
        )

    def acknowledge_lost(self, partitions: Iterable[TopicPartition]) -> None:
        """Record that the application has stopped reading lost partitions."""
        for where in partitions:
            self._lost.pop(where, None)

    def acknowledge_assigned(self, holdings: Iterable[OwnedPartition]) -> list[OwnedPartition]:
        """Record that the application accepts assigned partitions; return those that this member still owns."""
        taken = []
        for holding in holdings:
            if holding.stage is Stage.READY and self._is_held(holding):
                holding.stage = Stage.OWNED
                taken.append(holding)
        return taken

    def acknowledge_revoked(self, holdings: Iterable[OwnedPartition]) -> None:
        """Record that the application has stopped reading revoked partitions, including any whose revocation the group
        has withdrawn since.
        """
        for holding in holdings:
            if holding.stage in (Stage.REVOKED, Stage.OWNED) and self._is_held(holding):
                holding.stage = Stage.RELEASING

    def release(self, is_resolved: Callable[[TopicPartition], bool]) -> None:
        """Release revoked partitions whose last commit is resolved (H64)."""
        for key, holding in list(self._owned_partitions.items()):
            if holding.stage is Stage.RELEASING and is_resolved(holding.where):
                self._drop(key)
                self._grant(key)  # It may have been assigned again in the meantime.

    def to_start(self) -> list[OwnedPartition]:
        """Return the partitions whose initial offset must be looked up."""
        return [holding for holding in self._owned_partitions.values() if holding.stage is Stage.STARTING]

    def started(self, holding: OwnedPartition, start: InitialPosition) -> None:
        """Set the initial position of a partition."""
        if holding.stage is Stage.STARTING and self._is_held(holding):
            holding.start = start
            holding.stage = Stage.READY

    def owned(self) -> Sequence[OwnedPartition]:
        """Return the partitions that the application reads, ascending."""
        owned = (
            holding for holding in self._owned_partitions.values() if holding.stage in (Stage.OWNED, Stage.REVOKED)
        )
        return sorted(owned, key=lambda holding: holding.where)

    def owned_partition(self, where: TopicPartition) -> OwnedPartition | None:
        """Return a partition that the application reads or that is being released; `None` if neither."""
        for holding in self._owned_partitions.values():
            if holding.where == where and holding.stage not in _NEW:
                return holding
        return None

    def topic_names(self) -> set[str]:
        """Return the topics of all owned partitions."""
        return {holding.where.topic for holding in self._owned_partitions.values()}

    def _is_held(self, holding: OwnedPartition) -> bool:
        return self._owned_partitions.get((holding.topic_id, holding.where.partition)) is holding

    def _hold_on(self, key: tuple[bytes, int], holding: OwnedPartition) -> None:
        """Apply a new assignment to an owned partition."""
        assigned = self._assigned.get(key)
        if assigned is not None and assigned[1] == holding.assignment_epoch:
            if holding.stage is Stage.REVOKED:
                holding.stage = Stage.OWNED  # The application was not notified.
            return
        if assigned is not None:  # It was free in between, although it was not released here.
            if holding.stage in (Stage.OWNED, Stage.REVOKED):
                self._lost[holding.where] = None
            self._drop(key)
        elif holding.stage in _NEW:
            self._drop(key)
        elif holding.stage is Stage.OWNED:
            holding.stage = Stage.REVOKED

    def _grant(self, key: tuple[bytes, int]) -> None:
        assigned = self._assigned.get(key)
        if assigned is not None and key not in self._owned_partitions:
            name, epoch = assigned
            self._owned_partitions[key] = OwnedPartition(TopicPartition(name, key[1]), key[0], epoch, self.revision)

    def _drop(self, key: tuple[bytes, int]) -> None:
        del self._owned_partitions[key]
        self._needs_heartbeat = True


_NEW = (Stage.STARTING, Stage.READY)
