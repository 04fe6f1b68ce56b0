"""A consumer's membership in a group: what it may own, what it is to give up, what it lost. Pure: no I/O, no clock.

The shell sends the heartbeats that `request` makes and hands back what came of them; the application's thread takes
`pending_events` and says what it has done with it. One heartbeat is in flight at a time. What the member says that it
owns is all that was ever assigned to it and that the application has not given up, whether it has been told of it or
not, so that a partition is never owned here and free there (KIP-848; PROTOCOL section 1.3, I24, I25, H66). Its owner
holds a lock.
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
"""A heartbeat waits at a coordinator for at most this part of the session timeout."""
SHORTEST_GRACE_MS, LONGEST_GRACE_MS = 500, 5_000
"""How long a heartbeat may take beyond its wait before another coordinator is called."""


class Phase(Enum):
    """The state of a member."""

    JOINING = auto()
    """Not a member yet, or not any more: the next heartbeat joins."""
    MEMBER = auto()
    FAILED = auto()
    """Refused for good; see `failure`."""
    STALE = auto()
    """It has left until the application polls again."""
    LEFT = auto()


class Stage(Enum):
    """The state of an assigned partition."""

    STARTING = auto()
    """Where to start in it is looked up."""
    READY = auto()
    """The application has not been notified of its assignment."""
    OWNED = auto()
    REVOKED = auto()
    """The application has not been notified of its revocation."""
    RELEASING = auto()
    """The application gave it up; its last commit is on its way."""


class InitialPosition(NamedTuple):
    """Where to start in a partition."""

    offset: int
    leader_epoch: int = -1
    """Of the batch before `offset`; -1: not known."""
    metadata: str = ""
    """What was committed with it."""
    is_committed: bool = False
    """Whether the group has stored it; otherwise it follows from auto_offset_reset."""


@dataclass(slots=True)
class OwnedPartition:
    """A partition that this member owns as far as the group is concerned. Changed by `Membership` alone."""

    where: TopicPartition
    topic_id: bytes
    assignment_epoch: int
    """Since which member epoch it is owned: a fencing token."""
    revision: int
    """Of the answer that granted it: committed offsets are read at least as new."""
    stage: Stage = Stage.STARTING
    start: InitialPosition | None = None


class RebalanceEvents(NamedTuple):
    """What the application's thread has to process, in this order."""

    lost: tuple[TopicPartition, ...]
    revoked: tuple[OwnedPartition, ...]
    assigned: tuple[OwnedPartition, ...]

    def __bool__(self) -> bool:
        return bool(self.lost or self.revoked or self.assigned)


class Membership:
    """See the module for who may call it."""

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
        """How long a heartbeat waits for news at the coordinator."""
        grace_ms = min(LONGEST_GRACE_MS, max(SHORTEST_GRACE_MS, session_part))
        self.grace_ms = min(grace_ms, config.request_timeout_ms)
        """How long an answer may take beyond its wait."""
        self.phase = Phase.JOINING
        self.failure: HeadraceError | None = None
        self.member_id = draw_id()
        self.member_epoch = 0
        self.revision = 0
        self.assignor = ""
        self.refused_since_ms: int | None = None
        """Since when joins are refused because a limit is reached; `None`: the last one was not."""
        self.heard_ms = now_ms
        """When the last heartbeat that was answered was sent."""

    # --- heartbeats ---

    @property
    def is_over(self) -> bool:
        """Whether no more heartbeats are sent."""
        return self.phase in (Phase.FAILED, Phase.LEFT)

    @property
    def needs_heartbeat(self) -> bool:
        """Whether a heartbeat has to be sent at once, so that one that waits is ended."""
        return self._needs_heartbeat and self.phase is Phase.MEMBER

    def request(self) -> groups_pb2.HeartbeatRequest:
        """Make the next heartbeat; its content counts as reported, unless `heartbeat_failed` follows."""
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
        """Take in a response to the heartbeat that was sent at `sent_ms`; return whether the assignment is new."""
        self.phase = Phase.MEMBER
        self.refused_since_ms = None
        self.heard_ms = max(self.heard_ms, sent_ms)
        if answer.heartbeat_interval_ms > 0:
            self.interval_ms = min(self._longest_interval_ms, answer.heartbeat_interval_ms)
        if answer.revision < self.revision or answer.member_epoch < self.member_epoch:
            return False  # A coordinator whose view is behind must not take back an assignment of another one.
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
        """How long a join is repeated while a limit refuses it: the killed predecessor of this process may hold the
        place until its session is over.
        """
        return self._config.session_timeout_ms + LONGEST_GRACE_MS

    def heartbeat_failed(self, error: HeadraceError, request: groups_pb2.HeartbeatRequest, now_ms: int) -> None:
        """Take in why a heartbeat failed: no member any more, refused for good, or no coordinator."""
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
        """Return whether a refused join is repeated: the end of another member's session may make room for it."""
        is_full = isinstance(error, GroupTooLargeError | MetadataLimitError) and not error.retriable
        if self.phase is not Phase.JOINING or not is_full:
            return False
        if self.refused_since_ms is None:
            self.refused_since_ms = now_ms
        return now_ms < self.refused_since_ms + self.join_retry_ms

    def heartbeat_ended(self, request: groups_pb2.HeartbeatRequest) -> None:
        """Take in that a heartbeat got no response: the next one must repeat its content."""
        self._needs_heartbeat |= request.HasField("owned")

    def request_heartbeat(self) -> None:
        """Heartbeat at once: it is in doubt whether this is a member."""
        self._needs_heartbeat = True

    def lose_all(self) -> None:
        """End this membership: join as a new member."""
        told = (Stage.OWNED, Stage.REVOKED)
        self._lost.update((holding.where, None) for holding in self._owned_partitions.values() if holding.stage in told)
        self._owned_partitions.clear()
        self._assigned.clear()
        self.member_id = self._draw_id()
        self.member_epoch = self.revision = 0
        self._needs_heartbeat = self._report_owned = False
        self.phase = Phase.JOINING

    def lose(self, where: TopicPartition, topic_id: bytes, member_epoch: int) -> None:
        """A commit of `member_epoch` was refused because another member owns the partition. What was granted later
        stays, and so does the partition of a topic that was made anew.
        """
        key = topic_id, where.partition
        holding = self._owned_partitions.get(key)
        if holding is not None and holding.assignment_epoch <= member_epoch:
            if holding.stage in (Stage.OWNED, Stage.REVOKED):
                self._lost[where] = None
            self._drop(key)

    def leave(self) -> None:
        """Be done with the group."""
        self._owned_partitions.clear()
        self._assigned.clear()
        self._lost.clear()
        self.phase = Phase.LEFT

    def session_ends_ms(self) -> int:
        """When the group may take this member for dead: so long after it last spoke (H66)."""
        return self.heard_ms + self._config.session_timeout_ms

    # --- partitions ---

    def pending_events(self) -> RebalanceEvents:
        """Return what the application has not acknowledged yet; a partition is not assigned before it is lost or given
        up under the same name.
        """
        holdings = sorted(self._owned_partitions.values(), key=lambda holding: holding.where)
        busy = {*self._lost, *(holding.where for holding in holdings if holding.stage not in _NEW)}
        return RebalanceEvents(
            tuple(sorted(self._lost)),
            tuple(holding for holding in holdings if holding.stage is Stage.REVOKED),
            tuple(holding for holding in holdings if holding.stage is Stage.READY and holding.where not in busy),
        )

    def acknowledge_lost(self, partitions: Iterable[TopicPartition]) -> None:
        """Note that the application has stopped reading what it lost."""
        for where in partitions:
            self._lost.pop(where, None)

    def acknowledge_assigned(self, holdings: Iterable[OwnedPartition]) -> list[OwnedPartition]:
        """Note that the application takes what was assigned; return what this member still owns of it."""
        taken = []
        for holding in holdings:
            if holding.stage is Stage.READY and self._is_held(holding):
                holding.stage = Stage.OWNED
                taken.append(holding)
        return taken

    def acknowledge_revoked(self, holdings: Iterable[OwnedPartition]) -> None:
        """Note that the application has stopped reading what it gives up, also where the group took that back
        meanwhile.
        """
        for holding in holdings:
            if holding.stage in (Stage.REVOKED, Stage.OWNED) and self._is_held(holding):
                holding.stage = Stage.RELEASING

    def release(self, is_resolved: Callable[[TopicPartition], bool]) -> None:
        """Release revoked partitions whose last commit is resolved (H64)."""
        for key, holding in list(self._owned_partitions.items()):
            if holding.stage is Stage.RELEASING and is_resolved(holding.where):
                self._drop(key)
                self._grant(key)  # It may have been assigned again meanwhile.

    def to_start(self) -> list[OwnedPartition]:
        """Return the partitions whose initial offset must be looked up."""
        return [holding for holding in self._owned_partitions.values() if holding.stage is Stage.STARTING]

    def started(self, holding: OwnedPartition, start: InitialPosition) -> None:
        """Where to start in a partition is known."""
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
        """Return a partition that the application reads, or that was given up and not released; None: neither."""
        for holding in self._owned_partitions.values():
            if holding.where == where and holding.stage not in _NEW:
                return holding
        return None

    def topic_names(self) -> set[str]:
        """Return the topics of all that is held."""
        return {holding.where.topic for holding in self._owned_partitions.values()}

    def _is_held(self, holding: OwnedPartition) -> bool:
        return self._owned_partitions.get((holding.topic_id, holding.where.partition)) is holding

    def _hold_on(self, key: tuple[bytes, int], holding: OwnedPartition) -> None:
        """See what an answer means for a partition that is held."""
        assigned = self._assigned.get(key)
        if assigned is not None and assigned[1] == holding.assignment_epoch:
            if holding.stage is Stage.REVOKED:
                holding.stage = Stage.OWNED  # The application was not notified.
            return
        if assigned is not None:  # It was free in between, without our having given it up.
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
