"""A consumer of a group, one life of it: the SDK's `ConsumerMember` and its loops, under a modelled application.

The application asks for records, handles a few at a time for a while, is told of what comes and goes, and commits where
it has to. Records are modelled by their offsets: a partition is as long as `GroupCluster` says.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from headrace.client.base.config import ConsumerConfig, build
from headrace.client.base.operations import Operation, Pause
from headrace.client.base.retry import Backoff
from headrace.client.group.member import ConsumerMember
from headrace.client.group.membership import Membership
from headrace.wire.errors import HeadraceError, UnknownTopicError, UnknownTopicIdError
from headrace.wire.ids import TopicPartition

from tests.simulation.group_session import Shell

if TYPE_CHECKING:
    from tests.simulation.group_cluster import GroupCluster

GROUP = "g"
IDLE_MS = 150
CLOSE_TIMEOUT_S = 10.0
SLOW_MS = (1_000, 4_000, 15_000)


@dataclass(slots=True)
class Tenure:
    """A partition that the application reads."""

    member_id: bytes
    topic_id: bytes
    number: int
    assignment_epoch: int
    position: int
    """The next record to be given."""


@dataclass(frozen=True, slots=True)
class Place:
    """What a process is started with again and again."""

    name: str
    instance_id: str
    topics: tuple[str, ...]
    pattern: str
    auto_commit: bool
    rack: str


class MemberLife:
    """One process. `alive` until it was killed, has left, or its group has refused it."""

    def __init__(self, cluster: GroupCluster, place: Place) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.place = place
        self.process = cluster.world.start_process(place.name)
        self.chance = cluster.world.chance(f"{place.name}.{self.process.number}")
        self.positions: dict[TopicPartition, Tenure] = {}
        self.started_ms = cluster.world.now_ms
        self.slow_until_ms = 0
        """Until then a handler takes long."""
        self.is_closing = False
        self._is_idle = False
        self._given: dict[tuple[bytes, int], int] = {}
        """What was given since the application last asked."""
        self._is_uncommitted = False
        plan = cluster.plan
        self.shell = Shell(cluster, self.process)
        config = build(
            ConsumerConfig,
            {
                "bootstrap_servers": tuple(node.address for node in cluster.coordinators),
                "group_id": GROUP,
                "client_id": place.name,
                "client_rack": place.rack,
                "group_instance_id": place.instance_id,
                "topic_pattern": place.pattern,
                "assignor": plan.assignor,
                "auto_offset_reset": "earliest",
                "enable_auto_commit": place.auto_commit,
                "auto_commit_interval_ms": 500,
                "session_timeout_ms": plan.session_timeout_ms,
                "rebalance_timeout_ms": plan.rebalance_timeout_ms,
                "processing_timeout_ms": 8_000,
                "leave_on_processing_timeout": cluster.world.seed % 3 == 0,
                "stop_on_session_loss": plan.stop_on_session_loss,
                "on_revoked": self._on_revoked,
            },
        )
        fetcher: Any = _Fetcher(self)
        nothing_open: Any = SimpleNamespace(forget=lambda where: None)
        self.member = ConsumerMember(config, place.topics, fetcher, nothing_open)
        session = self.member.session
        session._backoff = Backoff(config.retry_backoff_ms, config.retry_backoff_max_ms, self.chance)
        session.membership = Membership(
            config, place.topics, self.process.name, self._draw_id, now_ms=cluster.world.now_ms
        )
        session.start()
        self._poll_in(1)

    def _draw_id(self) -> bytes:
        member_id = self.chance.randbytes(16)
        self.cluster.checks.lives[member_id] = self
        self.world.note(self.process.name, f"is {member_id.hex()[:6]}")
        return member_id

    # --- the application ---

    def _poll_in(self, delay_ms: int) -> None:
        self.world.after(delay_ms, self.process, "", self._poll)

    def wake(self) -> None:
        """There may be something for the application."""
        if self._is_idle:
            self._is_idle = False
            self._poll_in(0)

    def _idle_over(self) -> None:
        if self._is_idle:
            self._is_idle = False
            self._poll()

    def _poll(self) -> None:
        self._is_idle = False
        self._finish()
        if self.is_closing:
            self._leave()
            return
        self.member.on_poll_begin()
        self.shell.execute(self.member.follow(), lambda _: self._read(), self._follow_failed)

    def _finish(self) -> None:
        """What was given is handled: the application asks for more."""
        for partition, position in self._given.items():
            self.cluster.checks.finished(partition, position)
        self._given.clear()

    def _follow_failed(self, error: Exception) -> None:
        assert isinstance(error, HeadraceError), f"follow raised {error!r}"
        if self.member.membership.failure is error:
            self.world.note(self.process.name, f"is refused: {type(error).__name__}")
            self.cluster.checks.refused(self, error)
            self.world.count(f"members refused: {type(error).__name__}")
            self.die()
            return
        self.world.count(f"errors of the application: {type(error).__name__}")
        self._poll_in(IDLE_MS)

    def _read(self) -> None:
        """Read a few records of one partition, and handle them for a while."""
        ready = [
            (where, tenure)
            for where, tenure in sorted(self.positions.items())
            if tenure.position < self.cluster.end((tenure.topic_id, tenure.number))
        ]
        if self.member.delivery_paused() or not ready:
            self._is_idle = True
            if self._is_uncommitted:
                self._commit()
            self.member.on_poll_end()
            self.member.on_poll_begin()
            self.world.after(IDLE_MS, self.process, "", self._idle_over)
            return
        where, tenure = ready[self.chance.randrange(len(ready))]
        end = self.cluster.end((tenure.topic_id, tenure.number))
        position = min(end, tenure.position + 1 + self.chance.randrange(4))
        self.cluster.checks.given(self, tenure, position)
        self.world.count("records given", position - tenure.position)
        tenure.position = position
        self._given[tenure.topic_id, tenure.number] = position
        self.member.mark_consumed(where, position, 0)
        self.member.on_poll_end()
        self._is_uncommitted = not self.place.auto_commit
        delay_ms = 1 + int(self.chance.expovariate(1 / self.cluster.plan.handling_ms))
        if self.world.now_ms < self.slow_until_ms:
            delay_ms += self.chance.choice(SLOW_MS)
        self.world.after(delay_ms, self.process, "", self._handled)

    def _handled(self) -> None:
        if not self.place.auto_commit and self.chance.random() < 0.2 and not self.is_closing:
            self._finish()  # The application commits all that it was given, and so says that it is done with it.
            self._commit()
        self._poll()

    def _commit(self) -> None:
        self._is_uncommitted = False
        with contextlib.suppress(HeadraceError):
            self.member.queue(None, None)

    def _on_revoked(self, partitions: list[TopicPartition]) -> Any:
        """An application that commits itself does so before it gives up."""
        if self.place.auto_commit or not self.chance.random() < 0.8:
            return None
        return self._commit_before()

    def _commit_before(self) -> Operation[None]:
        with contextlib.suppress(HeadraceError):
            yield from self.member.commit(None, 2.0)

    def assign(self, where: TopicPartition, offset: int, topic_id: bytes) -> None:
        """Read a partition from `offset` on."""
        holding = self.member.membership.owned_partition(where)
        assert holding is not None, where
        member_id = self.member.membership.member_id
        tenure = Tenure(member_id, topic_id, where.partition, holding.assignment_epoch, offset)
        self.positions[where] = tenure
        self.world.note(self.process.name, f"reads {where} from {offset} (epoch {tenure.assignment_epoch})")
        self.cluster.checks.taken(self, tenure)

    def drop(self, where: TopicPartition) -> None:
        """Read it no more."""
        if self.positions.pop(where, None) is not None:
            self.world.note(self.process.name, f"reads {where} no more")

    # --- its end ---

    def close(self) -> None:
        """Finish, commit, leave, and end the process, as `Consumer.close` does, once a handler has ended."""
        self.is_closing = True
        self.wake()

    def _leave(self) -> None:
        self.world.note(self.process.name, "closes")
        self.shell.execute(
            self.member.closing(CLOSE_TIMEOUT_S, finish=True), lambda _: self.die(), lambda error: self.die()
        )

    def die(self) -> None:
        """End the process at once."""
        if self.process.alive:
            self.process.alive = False
            self.positions.clear()
            self.cluster.life_ended(self)


class _Positions:
    """Where the application reads: what of `headrace.client.fetch.subscription_state` a `ConsumerMember` uses."""

    def __init__(self, life: MemberLife) -> None:
        self._life = life

    def assign(self, where: TopicPartition, offset: int, *, topic_id: bytes, leader_epoch: int) -> None:
        """Read a partition from `offset` on."""
        self._life.assign(where, offset, topic_id)

    def drop(self, where: TopicPartition) -> None:
        """Read it no more."""
        self._life.drop(where)


class _Admin:
    """Look-ups of where logs begin: everything from 0."""

    def __init__(self, life: MemberLife) -> None:
        self._life = life

    def find_offsets(
        self, topic: str, reset: str, *, partitions: list[int], timeout: float, topic_id: bytes
    ) -> Operation[tuple[bytes, dict[TopicPartition, Any]]]:
        """Answer after a moment, of this life of the topic alone."""
        yield Pause(0.002)
        known = self._life.cluster.topics.get(topic)
        if known is None:
            raise UnknownTopicError(f"there is no topic named {topic!r}")
        if known[0] != topic_id:
            raise UnknownTopicIdError(f"topic {topic} was deleted and created again")
        return topic_id, {TopicPartition(topic, number): _Found(0) for number in partitions}


@dataclass(frozen=True, slots=True)
class _Found:
    offset: int


class _Fetcher:
    """What of `headrace.client.fetch.fetch_manager` a `ConsumerMember` uses."""

    def __init__(self, life: MemberLife) -> None:
        self._life = life
        self._positions = _Positions(life)
        self.admin = _Admin(life)
        self.background = life.shell
        self.gate: Any = None
        self.cursor = None
        self.interrupts: list[None] = []
        self.engine = SimpleNamespace(raise_on_unknown_topic=True)

    def interrupt(self) -> None:
        """Wake the application."""
        if not self.interrupts:
            self.interrupts.append(None)
        self._life.wake()

    @contextlib.contextmanager
    def changing(self) -> Iterator[_Positions]:
        """Yield the positions, to change them."""
        yield self._positions

    def read_topics(self, names: set[str]) -> None:
        """Nothing: where leaders are is not modelled."""

    def check(self) -> None:
        """Nothing is wrong with it."""

    @property
    def is_usable(self) -> bool:
        """Yes."""
        return True
