"""Three replicas under whatever order of events: logs match, and what was committed stays.

Real cores and real logs over disks in memory; hypothesis chooses who does what next. Messages are lost, late and
duplicated; processes die with what they had not flushed; sessions end; the key is written late, with lost answers.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from headrace.wire.errors import FencedProducerError, HeadraceError, OutOfOrderSequenceError, UnknownProducerError
from headrace_broker.core.messages import DurabilityChanged, ProposalUnanswered, Propose
from headrace_broker.core.replica_fetch import FetchAnswer, FetchRequest
from headrace_broker.core.roles import Role
from headrace_server.partition_state import change
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.fakes.memory_filesystem import Loss
from tests.unit.broker.three_replicas import Node, ThreeReplicas

pytestmark = pytest.mark.no_cover

BROKERS = st.sampled_from([1, 2, 3])
WHERE = st.integers(0, 1_000)
PRODUCERS = (7, 8)
MAX_MESSAGES = 12


class ReplicationModel(RuleBasedStateMachine):
    """The network holds `requests` (to whom, what) and `answers` (to whom, what); etcd holds `writes` on their way."""

    replicas_type = ThreeReplicas

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[tuple[int, FetchRequest]] = []
        self.answers: list[tuple[int, FetchAnswer]] = []
        self.writes: list[tuple[int, Propose]] = []
        self.late: list[tuple[int, Any]] = []  # etcd's answers on their way: (to whom, event)

    @initialize(durable=st.booleans(), minimum=st.sampled_from([1, 2]), leader=BROKERS)
    def begin(self, durable: bool, minimum: int, leader: int) -> None:
        self.partition = self.replicas_type(durable=durable, min_insync_replicas=minimum).start(leader)

    def node(self, broker_id: int) -> Node:
        return self.partition[broker_id]

    def leaders(self) -> list[Node]:
        return [node for node in self.partition.nodes.values() if node.replica.role is Role.LEADING]

    # --- clients ---

    @rule(
        which=WHERE,
        records=st.integers(1, 3),
        producer=st.sampled_from([-1, *PRODUCERS]),
        back=st.integers(0, 2),
        epoch=st.integers(0, 1),
    )
    def produce(self, which: int, records: int, producer: int, back: int, epoch: int) -> None:
        """Any leader takes it, deposed ones too; retries and gaps are answered as the windows say."""
        leaders = self.leaders()
        if not leaders:
            return
        node = leaders[which % len(leaders)]
        if producer < 0:
            node.produce(records)
            return
        known = node.replica.producers._producers.get(producer)
        epoch = max(epoch, 0 if known is None else known.epoch)
        sequence = 0 if known is None or epoch > known.epoch else max(0, known.next_sequence - back * records)
        try:
            duplicate = node.replica.producers.check(producer, epoch, sequence, records)
        except (OutOfOrderSequenceError, UnknownProducerError, FencedProducerError):
            return
        if duplicate is None:
            node.produce(records, producer=(producer, epoch, sequence))

    @rule(broker=BROKERS)
    def flush(self, broker: int) -> None:
        self.node(broker).flush()

    @rule(broker=BROKERS, snapshot=st.booleans())
    def checkpoint(self, broker: int, snapshot: bool) -> None:
        node = self.node(broker)
        node.log.durability.checkpoint(self.partition.at_ms, node.replica.high_watermark, force=True)
        if snapshot:
            node.flush()
            node.log.snapshots.store(node.log.log_end_offset, node.replica.producers.snapshot())

    @rule(which=WHERE, where=st.floats(0, 1))
    def delete_records(self, which: int, where: float) -> None:
        leaders = self.leaders()
        if leaders:
            replica = leaders[which % len(leaders)].replica
            start = replica.log_start_offset
            leaders[which % len(leaders)].delete_records(start + int(where * (replica.high_watermark - start)))

    # --- the network ---

    @rule(broker=BROKERS, rounds=st.integers(1, 4), max_bytes=st.sampled_from([1, 400, 1 << 20]), flushes=st.booleans())
    def exchange(self, broker: int, rounds: int, max_bytes: int, flushes: bool) -> None:
        """A follower and the leader that it knows, undisturbed for a while."""
        for _ in range(rounds):
            before = len(self.requests)
            self.send(broker)
            if len(self.requests) == before:
                return
            leader, request = self.requests.pop()
            self._take(broker, self._answer(leader, request, max_bytes))
            if flushes:
                self.flush(broker)
                self.flush(leader)

    @rule(brokers=st.sets(BROKERS, min_size=1), elects=st.booleans())
    def calm(self, brokers: set[int], elects: bool) -> None:
        """For a while all goes well for some: they are back, see the key, copy and are taken in."""
        for broker in sorted(brokers):
            if broker not in self.partition.live:
                self.partition.register(broker)
        if elects:
            self.control(sweep=True)
        for broker in sorted(brokers):
            self.see(broker)
            self.lose_connection(broker)
        for broker in sorted(brokers) * 2:
            self.exchange(broker, 3, 1 << 20, flushes=True)
            leader = self.partition.state.leader
            if leader is not None:
                self.write(leader.broker_id, "answered")

    @rule(broker=BROKERS)
    def send(self, broker: int) -> None:
        node, state = self.node(broker), self.node(broker).replica.state
        request = node.request()
        if request is not None:
            assert state is not None
            assert state.leader is not None
            self.requests.append((state.leader.broker_id, request))
            del self.requests[:-MAX_MESSAGES]

    @rule(which=WHERE, twice=st.booleans(), max_bytes=st.sampled_from([1, 400, 1 << 20]))
    def deliver_request(self, which: int, twice: bool, max_bytes: int) -> None:
        if self.requests:
            at = which % len(self.requests)
            leader, request = self.requests[at] if twice else self.requests.pop(at)
            answer = self._answer(leader, request, max_bytes)
            if answer is not None:
                self.answers.append((request.follower.broker_id, answer))
                del self.answers[:-MAX_MESSAGES]

    @rule(which=WHERE, twice=st.booleans())
    def deliver_answer(self, which: int, twice: bool) -> None:
        if self.answers:
            at = which % len(self.answers)
            follower, answer = self.answers[at] if twice else self.answers.pop(at)
            self._take(follower, answer)

    @rule(broker=BROKERS)
    def lose_connection(self, broker: int) -> None:
        """The follower asks again; what it was sent may still come."""
        self.node(broker).replica.fetches.end()

    def _answer(self, leader: int, request: FetchRequest, max_bytes: int) -> FetchAnswer | None:
        try:
            return self.node(leader).answer(request, max_bytes)
        except HeadraceError:
            return None

    def _take(self, follower: int, answer: FetchAnswer | None) -> None:
        if answer is None:
            self.node(follower).replica.fetches.end()
        else:
            self.node(follower).take(answer)

    # --- processes and sessions ---

    @rule(broker=BROKERS, loss=st.sampled_from(list(Loss)), seed=WHERE)
    def kill(self, broker: int, loss: Loss, seed: int) -> None:
        """Its tokens begin anew, and its connections are gone with it: what it was sent does not reach it."""
        self.partition.kill(broker, loss, seed)
        self.answers = [each for each in self.answers if each[0] != broker]
        self.late = [each for each in self.late if each[0] != broker]

    @rule()
    def come_back(self) -> None:
        for broker in self.partition.nodes:
            if broker not in self.partition.live:
                self.partition.register(broker)

    @rule(broker=BROKERS)
    def lose_session(self, broker: int) -> None:
        """The lease ends, the process lives on and registers anew."""
        if broker in self.partition.live:
            self.partition.unregister(broker)
            self.partition.register(broker)

    # --- the key ---

    @rule(broker=BROKERS)
    def see(self, broker: int) -> None:
        self.node(broker).see()

    @rule()
    def all_see(self) -> None:
        self.partition.see_all()

    @rule(sweep=st.booleans())
    def control(self, sweep: bool) -> None:
        if not self.partition.elect() and sweep:
            self.partition.sweep()

    @rule(broker=BROKERS)
    def lead(self, broker: int) -> None:
        """Leadership moves among in-sync replicas: preferred, drained, suspected; the same one begins anew at times."""
        state = self.partition.state
        entry = state.replica_of(broker)
        if entry is not None and self.partition.is_live(entry) and entry != state.leader:
            self.partition.write(change(state, leader=entry, in_sync=state.in_sync))

    @rule(broker=BROKERS)
    def elect_uncleanly(self, broker: int) -> None:
        """An administrator's act, where no clean election is possible."""
        self.partition.elect(unclean=broker)

    @rule(durable=st.booleans())
    def configure(self, durable: bool) -> None:
        """The topic's durability changes: the key promises nothing any more before anybody stops flushing (H30)."""
        state = self.partition.state
        if not durable and state.durable:
            self.partition.write(change(state, leader=state.leader, in_sync=state.in_sync, durable=False))
        self.partition.durable = durable

    @rule(broker=BROKERS)
    def see_settings(self, broker: int) -> None:
        if self.node(broker).replica.flushes != self.partition.durable:
            self.node(broker).handle(DurabilityChanged(self.partition.durable))

    # --- proposals ---

    @rule(broker=BROKERS, by_ms=st.sampled_from([10, 500, 20_000]), heard=st.sets(BROKERS))
    def tick(self, broker: int, by_ms: int, heard: set[int]) -> None:
        self.partition.at_ms += by_ms
        self.node(broker).tick(heard=sorted(heard))

    @rule(broker=BROKERS, fate=st.sampled_from(["answered", "late", "lost before", "lost after", "no answer yet"]))
    def write(self, broker: int, fate: str) -> None:
        """A leader's proposal reaches etcd, or not, or later; its answer reaches the leader, or not, or later."""
        proposals = self.node(broker).proposals
        if not proposals:
            return
        proposal = proposals.pop(0)
        match fate:
            case "answered":
                self.node(broker).handle(self.partition.apply(proposal))
            case "late":
                self.late.append((broker, self.partition.apply(proposal)))
            case "lost before":
                self.node(broker).handle(ProposalUnanswered(proposal.number))
            case "lost after":
                self.partition.apply(proposal)
                self.node(broker).handle(ProposalUnanswered(proposal.number))
            case _:
                self.writes.append((broker, proposal))
                self.node(broker).handle(ProposalUnanswered(proposal.number))

    @rule(which=WHERE)
    def a_write_is_carried_out_late(self, which: int) -> None:
        if self.writes:
            _, proposal = self.writes.pop(which % len(self.writes))
            self.partition.apply(proposal)

    @rule(which=WHERE)
    def a_late_answer_comes(self, which: int) -> None:
        if self.late:
            broker, event = self.late.pop(which % len(self.late))
            self.node(broker).handle(event)

    @invariant()
    def nothing_is_lost(self) -> None:
        if hasattr(self, "partition"):
            self.partition.check()


TestReplicationModel = ReplicationModel.TestCase
TestReplicationModel.settings = settings(
    max_examples=60, stateful_step_count=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


@given(seed=st.integers(0, 2**32), durable=st.booleans(), minimum=st.sampled_from([1, 2]))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_long_walks_lose_nothing(seed: int, durable: bool, minimum: int) -> None:
    """The same model, walked for longer than hypothesis would: more epochs, more records, rarer meetings.

    Make what this finds an example for the model above, or a scenario.
    """
    walk(ReplicationModel(), random.Random(seed), durable=durable, minimum=minimum)


def walk(
    model: ReplicationModel, chance: random.Random, *, durable: bool, minimum: int,
    more: Sequence[tuple[float, Callable[[], None]]] = (), steps: int = 150,
) -> None:  # fmt: skip
    """Do what a model can do, in any order; `more` is what it can do besides, with rates."""
    model.begin(durable, minimum, 1)
    broker, which = partial(chance.randrange, 1, 4), partial(chance.randrange, 1_000)
    loss = list(Loss)
    fates = ["answered", "answered", "late", "lost before", "lost after", "no answer yet"]
    kinds: list[tuple[float, Callable[[], None]]] = [
        (
            6,
            lambda: model.produce(
                which(), chance.randint(1, 3), chance.choice([-1, 7, 8]), which() % 3, which() // 900
            ),
        ),
        (3, lambda: model.flush(broker())),
        (0.5, lambda: model.checkpoint(broker(), chance.random() < 0.5)),
        (0.2, lambda: model.delete_records(which(), chance.random())),
        (8, lambda: model.exchange(broker(), chance.randint(1, 4), chance.choice([1, 400, 1 << 20]), which() < 500)),
        (2, lambda: model.calm({broker(), broker()}, which() < 500)),
        (3, lambda: model.send(broker())),
        (3, lambda: model.deliver_request(which(), which() < 200, chance.choice([1, 400, 1 << 20]))),
        (3, lambda: model.deliver_answer(which(), which() < 200)),
        (1, lambda: model.lose_connection(broker())),
        (0.7, lambda: model.kill(broker(), chance.choice(loss), which())),
        (0.7, model.come_back),
        (0.4, lambda: model.lose_session(broker())),
        (3, lambda: model.see(broker())),
        (1, model.all_see),
        (1, lambda: model.control(which() < 500)),
        (1, lambda: model.lead(broker())),
        (0.3, lambda: model.configure(which() < 500)),
        (0.6, lambda: model.see_settings(broker())),
        (1, lambda: model.elect_uncleanly(broker())),
        (1.5, lambda: model.tick(broker(), chance.choice([10, 500, 20_000]), {broker()})),
        (3, lambda: model.write(broker(), chance.choice(fates))),
        (0.5, lambda: model.a_write_is_carried_out_late(which())),
        (0.5, lambda: model.a_late_answer_comes(which())),
        *more,
    ]
    rates = [rate * chance.choice([0, 0.3, 1, 3]) for rate, _ in kinds]  # each walk has its own weather
    for _, step in chance.choices(kinds, rates, k=steps):
        step()
        model.nothing_is_lost()
