"""Directed schedules: a cluster without faults in which each call is one sentence of a story.

Scenarios under tests/scenario are written with it. Nothing happens by chance but delays, so a story is told in terms of
what is waited for, never of time. The invariants are checked after every event as in any run (PROTOCOL T1, T7).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from headrace.wire.columns import encode_batch
from headrace.wire.errors import HeadraceError
from headrace_broker.core.replica_fetch import FetchAnswer
from headrace_broker.storage.memory_filesystem import Loss
from headrace_server.metastore.api import Put
from headrace_server.partition_state import PartitionState, change

from tests.simulation.cluster import Cluster
from tests.simulation.etcd import run_now
from tests.simulation.history import OK, UNKNOWN, Send
from tests.simulation.host import FETCH_BYTES, Host
from tests.simulation.plan import Plan
from tests.simulation.world import SimulationError, spawn

FIRST_PRODUCER = 5_000
PATIENCE_MS = 20_000
"""What is waited for happens within so long, or the story fails."""
LARGE = b"0" * FETCH_BYTES
"""A value after which an answer to a follower is full."""


@dataclass(slots=True)
class Sent:
    """One record of the story; a producer of its own sent it."""

    producer_id: int
    acks: int
    sent_at: int
    offset: int = -1
    error: HeadraceError | None = None
    answered: bool = False

    @property
    def acknowledged(self) -> bool:
        """Whether the broker said that it is written, as `acks` asks for."""
        return self.answered and self.error is None


class Scenario:
    """One partition on brokers 1, 2, ...; broker 1 leads epoch 0, all are in sync."""

    def __init__(
        self,
        *,
        brokers: int = 3,
        replicas: int = 3,
        min_insync_replicas: int = 2,
        durable: bool = True,
        seed: int = 1,
    ) -> None:
        plan = Plan(
            seed,
            brokers=brokers,
            replication_factor=replicas,
            min_insync_replicas=min_insync_replicas,
            durable=durable,
            producers=(),
        )
        self.cluster = Cluster(plan, keep_trace=True)
        self._sent: list[Sent] = []
        self.cluster.prepare()

    # --- who is there ---

    @property
    def state(self) -> PartitionState:
        """The partition's key."""
        return self.cluster.state(0)

    @property
    def in_sync(self) -> list[int]:
        """The brokers in sync, by the key."""
        return sorted(entry.broker_id for entry in self.state.in_sync)

    def host(self, broker_id: int) -> Host:
        """The partition at a broker that runs."""
        host = self.cluster.host(broker_id)
        assert host is not None, f"b{broker_id} runs and has the partition"
        return host

    @property
    def leader(self) -> int:
        """The broker that leads, by the key and by itself."""
        host = self.cluster.leader_host()
        assert host is not None, "somebody leads"
        return host.broker.broker_id

    def leads(self, broker_id: int) -> bool:
        """Whether the broker leads, by the key and by itself."""
        host = self.cluster.leader_host()
        return host is not None and host.broker.broker_id == broker_id

    def end(self, broker_id: int) -> int:
        """The log end of a replica; -1 while it does not run."""
        host = self.cluster.host(broker_id)
        return -1 if host is None else int(host.log.log_end_offset)

    def high_watermark(self, broker_id: int) -> int:
        """The high watermark, as one replica knows it."""
        return int(self.host(broker_id).replica.high_watermark)

    def epochs(self, broker_id: int) -> list[int]:
        """The leader epoch of each batch of a log; none while it does not run."""
        host = self.cluster.host(broker_id)
        return [] if host is None else [int(header.leader_epoch) for header in host.log.headers(0)]

    # --- waiting ---

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Go on until `condition` holds."""
        if not self.cluster.run_until(condition, PATIENCE_MS):
            raise SimulationError("story", f"never happened: {what}")

    def until_leads(self, broker_id: int) -> None:
        """Go on until the broker leads."""
        self.until(lambda: self.leads(broker_id), f"b{broker_id} leads")

    def until_in_sync(self, *broker_ids: int) -> None:
        """Go on until just these are in sync."""
        self.until(lambda: self.in_sync == sorted(broker_ids), f"in sync are {broker_ids}")

    def until_known(self, broker_id: int) -> None:
        """Go on until a broker has seen the partition's key as it stands."""

        def has_seen() -> bool:
            return self.host(broker_id).replica.state == self.state

        self.until(has_seen, f"b{broker_id} has seen the key")

    def until_end(self, broker_id: int, offset: int) -> None:
        """Go on until a replica's log ends at `offset`."""
        self.until(lambda: self.end(broker_id) == offset, f"b{broker_id} ends at {offset}")

    def run_for(self, duration_ms: int) -> None:
        """Let time pass in which nothing is waited for."""
        self.cluster.run_for(duration_ms)

    # --- producing ---

    def send(self, *, to: int, acks: int = -1, value: bytes = b"0") -> Sent:
        """Send one record to the broker, whether or not it leads; its answer comes later."""
        sent = Sent(FIRST_PRODUCER + len(self._sent), acks, self.cluster.next_order())
        self._sent.append(sent)
        self._attempt(sent, to, value)
        return sent

    def send_again(self, sent: Sent, *, to: int, value: bytes = b"0") -> None:
        """Send a record again, as its producer does where the outcome is unknown."""
        sent.offset, sent.error, sent.answered = -1, None, False
        self._attempt(sent, to, value)

    def _attempt(self, sent: Sent, to: int, value: bytes) -> None:
        def reply(result: int | HeadraceError) -> None:
            sent.answered = True
            if isinstance(result, HeadraceError):
                sent.error = result
            else:
                sent.offset = result

        batch = encode_batch(
            [value], base_timestamp_ms=0, producer_id=sent.producer_id, producer_epoch=0, base_sequence=0
        )
        self.host(to).produce(batch, -1, sent.acks, reply)

    def produce(self, *, to: int, value: bytes = b"0") -> Sent:
        """Send one record and wait until it is acknowledged by all."""
        sent = self.send(to=to, value=value)
        self.until(lambda: sent.answered, f"b{to} answers")
        if not sent.acknowledged:
            raise SimulationError("story", f"b{to} refuses: {sent.error}")
        return sent

    # --- faults ---

    def block(self, source: int, target: int) -> None:
        """From now on what one broker sends to another waits, in order."""
        self.cluster.network.block(f"b{source}", f"b{target}")

    def unblock(self, source: int, target: int) -> None:
        """Let it go on its way."""
        self.cluster.network.unblock(f"b{source}", f"b{target}")

    def separate(self, broker_id: int, *others: int) -> None:
        """Block both directions between one broker and others."""
        for other in others:
            self.block(broker_id, other)
            self.block(other, broker_id)

    def reunite(self, broker_id: int, *others: int) -> None:
        """Open what `separate` blocked."""
        for other in others:
            self.unblock(broker_id, other)
            self.unblock(other, broker_id)

    def blind(self, broker_id: int) -> None:
        """Let a broker hear no more of etcd; what it asks for still arrives there."""
        self.cluster.network.block("etcd", f"b{broker_id}")

    def restore_sight(self, broker_id: int) -> None:
        """End `blind`."""
        self.cluster.network.unblock("etcd", f"b{broker_id}")

    def mute(self, broker_id: int) -> None:
        """Let nothing that a broker sends arrive at etcd."""
        self.cluster.network.block(f"b{broker_id}", "etcd")

    def unmute(self, broker_id: int) -> None:
        """End `mute`."""
        self.cluster.network.unblock(f"b{broker_id}", "etcd")

    def kill(self, broker_id: int, *, noticed: bool = True) -> None:
        """Kill -9, and let its registration end at once, or, not `noticed`, when its lease does."""
        if noticed:
            self.end_session(broker_id)
        self.cluster.brokers[broker_id].kill(Loss.NOTHING)

    def lose_power(self, broker_id: int, loss: Loss = Loss.ALL) -> None:
        """Take the machine's power, with what was not fsynced; its registration ends at once."""
        self.end_session(broker_id)
        self.cluster.brokers[broker_id].kill(loss)

    def start(self, broker_id: int) -> None:
        """Start a broker that is dead."""
        self.cluster.brokers[broker_id].start()

    def damage(self, broker_id: int) -> None:
        """Flip a bit in the last batch of a log that is one segment, below what its recovery point vouches for."""
        host = self.host(broker_id)
        host.log.checkpoint(host.broker.clock.monotonic_ms(), host.replica.high_watermark, force=True)
        self.cluster.checks.damaged(broker_id, 0)
        path, disk = f"{host.log.directory}/{0:020d}.log", host.broker.node.filesystem
        disk.corrupt(path, len(disk.content(path)) - 100, 1)

    def stop(self, broker_id: int) -> None:
        """Let a broker stop in order, and wait until it has."""
        node = self.cluster.brokers[broker_id]
        broker = node.broker
        assert broker is not None, f"b{broker_id} runs"
        node.wanted = False
        broker.stop()
        self.until(lambda: node.broker is None, f"b{broker_id} has stopped")

    def announce_stop(self, broker_id: int) -> None:
        """Let a broker say that it is about to stop, and take its time."""
        broker = self.host(broker_id).broker
        broker._live.draining = True
        put = Put(self.cluster.keyspace.live(broker_id), broker._live.SerializeToString(), broker._lease_id)
        run_now(self.cluster.etcd.store.txn([], [put]))
        self.run_for(50)  # coordinators have heard of it

    def pause(self, broker_id: int) -> None:
        """SIGSTOP; its registration ends at once."""
        self.end_session(broker_id)
        self.cluster.world.pause(self.host(broker_id).broker.process)

    def resume(self, broker_id: int) -> None:
        """SIGCONT: what came meanwhile happens now."""
        self.cluster.world.resume(self.host(broker_id).broker.process)

    def end_session(self, broker_id: int) -> None:
        """Let the registration end, as if the lease had run out."""
        key_value = self.cluster.etcd.store.now(self.cluster.keyspace.live(broker_id))
        if key_value is not None:
            self.cluster.etcd.store.end_lease(key_value.lease_id)

    def lose_next_answer(self) -> None:
        """The next transaction happens, and nobody is told."""
        self.cluster.etcd.lose_next_answers += 1

    def delay_next_write(self) -> None:
        """The next transaction is applied long after whoever sent it has given up."""
        rates, count = self.cluster.etcd.rates, self.cluster.world.counts
        before = count.get("writes applied late", 0)
        rates.late_apply_rate = 1.0
        self.until(lambda: count.get("writes applied late", 0) > before, "somebody writes")
        rates.late_apply_rate = 0.0

    def serve_stale_reads(self) -> None:
        """Every read of etcd, from now on, is answered with an older revision."""
        self.cluster.etcd.rates.stale_read_rate = 1.0

    def serve_fresh_reads(self) -> None:
        """End `serve_stale_reads`."""
        self.cluster.etcd.rates.stale_read_rate = 0.0

    def slow_disks(self) -> None:
        """Every fsync of those who run takes long from now on, and happens at the end of that time."""
        self.cluster.slow_disk_rate = 1.0
        for node in self.cluster.brokers.values():
            if node.broker is not None:
                node.broker.disk_chance = _Unlucky(1)

    def delete_records(self, before: int) -> None:
        """Raise the leader's log start."""
        leader = self.cluster.leader_host()
        assert leader is not None
        leader.delete_records(before)

    def move(self, *broker_ids: int) -> None:
        """An administrator moves the partition to these brokers."""
        coordinator = self.cluster.coordinator()
        assert coordinator is not None
        coordinator.move(0, broker_ids)

    def elect_uncleanly(self) -> None:
        """An administrator lets any replica lead, where nobody complete lives."""
        coordinator = self.cluster.coordinator()
        assert coordinator is not None
        coordinator.elect_uncleanly(0)

    def elect(self, broker_id: int) -> None:
        """An administrator moves leadership to a member of the in-sync set, and the broker takes it up."""
        state, coordinator = self.state, self.cluster.coordinator()
        leader = state.replica_of(broker_id)
        assert leader is not None, f"b{broker_id} is in sync"
        assert coordinator is not None
        found = self.cluster.etcd.store.now(self.cluster.partition_key(0))
        assert found is not None
        after = change(state, leader=leader, in_sync=state.in_sync)
        write = coordinator.administrate(0, state, after, found.mod_revision, f"elect b{broker_id}")
        spawn(coordinator.process, write)
        self.until_leads(broker_id)

    def hold_answers(self, broker_id: int) -> HeldAnswers:
        """Catch the answers to a follower's fetches from now on; they can be delivered later, and more than once."""
        return HeldAnswers(self.host(broker_id))

    # --- the end ---

    def finish(self) -> None:
        """Heal everything; all must come alive again, hold the same, and hold what was acknowledged."""
        for sent in self._sent:
            self.cluster.sends.append(
                Send(
                    f"s{sent.producer_id}",
                    0,
                    (f"{sent.producer_id}.0.0",),
                    OK if sent.acknowledged and sent.acks else UNKNOWN,
                    sent.offset,
                    sent.acknowledged and sent.acks == -1,
                    sent.sent_at,
                    self.cluster.world.now_ms,
                )
            )
        self.cluster.finish()


class _Unlucky(random.Random):
    """Chance that never favours."""

    def random(self) -> float:
        return 0.999


class HeldAnswers:
    """Answers on their way to a follower, which come when the story says so."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._deliver = host.take_answer
        self.answers: list[tuple[FetchAnswer | HeadraceError, int, int]] = []
        host.take_answer = self._hold  # type: ignore[method-assign]

    def _hold(self, answer: FetchAnswer | HeadraceError, token: int, leader_epoch: int) -> None:
        self.answers.append((answer, token, leader_epoch))

    def release(self) -> None:
        """Let later answers come as they do; those that were caught stay caught."""
        self._host.take_answer = self._deliver  # type: ignore[method-assign]

    def deliver(self, index: int = 0) -> None:
        """Let one that was caught arrive now."""
        self._deliver(*self.answers[index])
