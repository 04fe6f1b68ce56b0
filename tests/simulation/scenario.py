"""Directed schedules: a cluster without faults in which each call is one step.

Scenarios under tests/scenario are written with it. Nothing happens by chance but delays, so a scenario
waits for conditions, never for time. The invariants are checked after every event as in any run (PROTOCOL T1, T7).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from headrace.client.net.connection import PRODUCE
from headrace.log.directory import LogId
from headrace.v1 import broker_pb2, topics_pb2
from headrace.wire.batch import read_header
from headrace.wire.columns import encode_batch
from headrace.wire.errors import HeadraceError, LeaderNotAvailableError, from_detail, from_rpc_error
from headrace.wire.zero_copy import produce_request_bytes
from headrace_broker.core.replica_fetch import FetchAnswer
from headrace_server.metastore.api import Put
from headrace_server.partition_state import PartitionState, ask_hand_over, change, encode

from tests.fakes.memory_filesystem import Loss
from tests.simulation.cluster import Cluster
from tests.simulation.etcd import run_now
from tests.simulation.history import OK, UNKNOWN, Send, is_deletion, is_replaceable, key_of, shared_name
from tests.simulation.host import Host
from tests.simulation.plan import Plan
from tests.simulation.promises import NAME_HEADER
from tests.simulation.world import SimulationError

FIRST_PRODUCER = 5_000
ACKS = {-1: broker_pb2.ACKS_ALL, 0: broker_pb2.ACKS_NONE, 1: broker_pb2.ACKS_LEADER}
PATIENCE_MS = 20_000
"""What is waited for happens within so long, or the scenario fails."""
LARGE = b"0" * 700
"""A value after which an answer to a follower is full."""


@dataclass(slots=True)
class Sent:
    """One record of the scenario; a producer of its own sent it."""

    producer_id: int
    acks: int
    sent_at: int
    partition: int
    batch: bytes
    name: str
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
        partitions: int = 1,
        seed: int = 1,
        **settings: Any,
    ) -> None:
        """`partitions`: further ones, so that brokers keep their streams to one another; `settings`: of the plan."""
        plan = Plan(
            seed,
            brokers=brokers,
            partitions=partitions,
            replication_factor=replicas,
            min_insync_replicas=min_insync_replicas,
            durable=durable,
            producers=(),
            **settings,
        )
        self.cluster = Cluster(plan, keep_trace=True)
        self._sent: list[Sent] = []
        self._promises_all = False
        self.cluster.prepare()
        self.key: LogId = self.cluster.partitions[0]
        self.until(lambda: all(self.end(each) == 0 for each in self.state.replicas), "all have a log")

    # --- who is there ---

    @property
    def state(self) -> PartitionState:
        """The partition's key."""
        return self.cluster.state(self.key)

    @property
    def in_sync(self) -> list[int]:
        """The brokers in sync, by the key."""
        return sorted(entry.broker_id for entry in self.state.in_sync)

    def host(self, broker_id: int) -> Host:
        """The partition at a broker that runs."""
        host = self.cluster.host(broker_id, self.key)
        assert host is not None, f"b{broker_id} runs and has the partition"
        return host

    @property
    def leader(self) -> int:
        """The broker that leads, by the key and by itself."""
        host = self.cluster.leader_host(self.key)
        assert host is not None, "a broker leads"
        return host.broker.broker_id

    def leads(self, broker_id: int) -> bool:
        """Whether the broker leads, by the key and by itself."""
        host = self.cluster.leader_host(self.key)
        return host is not None and host.broker.broker_id == broker_id

    def end(self, broker_id: int) -> int:
        """The log end of a replica; -1 while it does not run."""
        host = self.cluster.host(broker_id, self.key)
        return -1 if host is None else int(host.log.log_end_offset)

    def high_watermark(self, broker_id: int) -> int:
        """The high watermark, as one replica knows it."""
        return int(self.host(broker_id).replica.high_watermark)

    def epochs(self, broker_id: int) -> list[int]:
        """The leader epoch of each batch of a log; none while it does not run."""
        host = self.cluster.host(broker_id, self.key)
        return [] if host is None else [int(header.leader_epoch) for header in host.log.reader.headers(0)]

    # --- waiting ---

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Run until `condition` holds."""
        if not self.cluster.run_until(condition, PATIENCE_MS):
            raise SimulationError("scenario", f"never happened: {what}")

    def until_leads(self, broker_id: int) -> None:
        """Run until the broker leads."""
        self.until(lambda: self.leads(broker_id), f"b{broker_id} leads")

    def until_in_sync(self, *broker_ids: int) -> None:
        """Run until just these are in sync."""
        self.until(lambda: self.in_sync == sorted(broker_ids), f"in sync are {broker_ids}")

    def until_known(self, broker_id: int) -> None:
        """Run until a broker has seen the partition's present key."""

        def has_seen() -> bool:
            return self.host(broker_id).replica.state == self.state

        self.until(has_seen, f"b{broker_id} has seen the key")

    def until_end(self, broker_id: int, offset: int) -> None:
        """Run until a replica's log ends at `offset`."""
        self.until(lambda: self.end(broker_id) == offset, f"b{broker_id} ends at {offset}")

    def until_watermark(self, offset: int, *broker_ids: int) -> None:
        """Run until replicas have this high watermark."""
        self.until(lambda: all(self.high_watermark(each) == offset for each in broker_ids), f"{offset} is committed")

    def until_flushed(self, broker_id: int) -> None:
        """Run until all that a broker has is fsynced there."""
        log = self.host(broker_id).log
        self.until(lambda: log.flushed_offset == log.log_end_offset, f"b{broker_id} has fsynced")

    def run_for(self, duration_ms: int) -> None:
        """Let time pass in which nothing is waited for."""
        self.cluster.run_for(duration_ms)

    # --- producing ---

    def send(self, *, to: int, acks: int = -1, value: bytes = b"0", key: str = "", deletes: bool = False) -> Sent:
        """Send one record to the broker, whether or not it leads; its answer comes later.

        `key`: it replaces those of the same key, or deletes them.
        """
        number = self.cluster.number_of(self.key)
        producer_id = FIRST_PRODUCER + len(self._sent)
        name = name_of(producer_id)
        if key:
            name = shared_name(key, name, deletes=deletes)
        batch = record_of(producer_id, value, name=name)
        self.cluster.promises.sends(f"s{producer_id}", self.key, read_header(batch), memoryview(batch))
        sent = Sent(producer_id, acks, self.cluster.next_order(), number, batch, name)
        self._sent.append(sent)
        self._attempt(sent, to)
        return sent

    def send_again(self, sent: Sent, *, to: int) -> None:
        """Send a record again, as its producer does where the outcome is unknown."""
        sent.offset, sent.error, sent.answered = -1, None, False
        self._attempt(sent, to)

    def _attempt(self, sent: Sent, to: int) -> None:
        def reply(answer: bytes | grpc.aio.AioRpcError) -> None:
            sent.answered = True
            if not isinstance(answer, bytes):
                sent.error = from_rpc_error(answer)
                return
            for topic in broker_pb2.ProduceResponse.FromString(answer).topics:
                result = topic.partitions[0]
                if result.HasField("error"):
                    sent.error = from_detail(result.error)
                else:
                    sent.offset = result.base_offsets[0]

        server = self.cluster.transport.servers[self.host(to).broker.address]
        server.call(PRODUCE, self._request(sent.batch, sent.acks), 30.0, reply)

    def _request(self, batch: bytes, acks: int) -> bytes:
        """One batch for the partition."""
        request = broker_pb2.ProduceRequest(acks=ACKS[acks], timeout_ms=30_000)
        request.topics.add(topic=topics_pb2.TopicRef(topic_id=self.key.topic_id)).partitions.add(
            partition=self.key.partition
        )
        return produce_request_bytes(request, [[batch]])

    # --- copies of another log ---

    def configure(self, **configs: str) -> None:
        """Change the topic's settings, and wait until the brokers that run have taken them up."""
        self.cluster.administration.configure(**configs)

        def is_known() -> bool:
            hosts = [self.cluster.host(broker_id, self.key) for broker_id in self.state.replicas]
            partitions = [host.partition for host in hosts if host is not None]
            return all(each is not None and each.config.mirror == configs["mirror"] for each in partitions)

        self.until(is_known, f"all have heard of {configs}")

    def copy(self, batches: Sequence[bytes], *, to: int, acks: int = 1) -> broker_pb2.PartitionProduceResult:
        """Append batches as copies at a broker, and wait for its answer."""
        request = broker_pb2.ProduceRequest(acks=ACKS[acks], timeout_ms=30_000, as_copies=True)
        request.topics.add(topic=topics_pb2.TopicRef(topic_id=self.key.topic_id)).partitions.add(
            partition=self.key.partition
        )
        names = [f"{header.producer_id}.0.0" for header in map(read_header, batches)]
        number, at_ms = self.cluster.number_of(self.key), self.cluster.world.now_ms
        order = self.cluster.next_order()
        self.cluster.sends += [
            Send("copier", number, (name,), UNKNOWN, -1, False, order, at_ms, numbered=False) for name in names
        ]
        answers: list[bytes | grpc.aio.AioRpcError] = []
        server = self.cluster.transport.servers[self.host(to).broker.address]
        server.call(PRODUCE, produce_request_bytes(request, [list(batches)]), 30.0, answers.append)
        self.until(lambda: bool(answers), f"b{to} answers")
        (answer,) = answers
        assert isinstance(answer, bytes)
        return broker_pb2.ProduceResponse.FromString(answer).topics[0].partitions[0]

    def produce(self, *, to: int, value: bytes = b"0", key: str = "", deletes: bool = False) -> Sent:
        """Send one record and wait until it is acknowledged by all."""
        sent = self.send(to=to, value=value, key=key, deletes=deletes)
        self.until(lambda: sent.answered, f"b{to} answers")
        if not sent.acknowledged:
            raise SimulationError("scenario", f"b{to} refuses: {sent.error}")
        return sent

    def pause_readers(self) -> None:
        """Let no client read from now on, so that a long time takes few events."""
        for client in self.cluster.clients:
            self.cluster.world.pause(client.process)

    def resume_readers(self) -> None:
        """End `pause_readers`."""
        for client in self.cluster.clients:
            self.cluster.world.resume(client.process)

    def produce_elsewhere(self) -> None:
        """Produce one record to each other partition."""
        key = self.key
        for other in self.cluster.partitions:
            if other != key:
                self.key = other
                self.produce(to=self.leader)
        self.key = key

    # --- faults ---

    def block(self, source: int, target: int) -> None:
        """From now on what one broker sends to another waits, in order."""
        self.cluster.network.block(f"b{source}", f"b{target}")

    def unblock(self, source: int, target: int) -> None:
        """Deliver it."""
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

    def break_streams(self, broker_id: int, other: int) -> None:
        """Break the streams between two brokers; both hear of it."""
        sides = (self.host(broker_id).broker.process, self.host(other).broker.process)
        self.cluster.network.break_between(*sides)

    def blind(self, *broker_ids: int) -> None:
        """Block etcd's answers to these brokers; their requests still arrive there."""
        for broker_id in broker_ids:
            self.cluster.network.block("etcd", f"b{broker_id}")

    def restore_sight(self, *broker_ids: int) -> None:
        """End `blind`."""
        for broker_id in broker_ids:
            self.cluster.network.unblock("etcd", f"b{broker_id}")

    def mute(self, broker_id: int) -> None:
        """Let nothing that a broker sends arrive at etcd."""
        self.cluster.network.block(f"b{broker_id}", "etcd")

    def unmute(self, *broker_ids: int) -> None:
        """End `mute`."""
        for broker_id in broker_ids:
            self.cluster.network.unblock(f"b{broker_id}", "etcd")

    def lose_power(self, *broker_ids: int, loss: Loss = Loss.ALL, noticed: bool = True) -> None:
        """Take machines' power, with what was not fsynced; registrations end at once or, not `noticed`, with leases."""
        for broker_id in broker_ids:
            if noticed:
                self.end_session(broker_id)
            self.cluster.brokers[broker_id].kill(loss)

    def kill(self, *broker_ids: int, noticed: bool = True) -> None:
        """Kill -9; otherwise as `lose_power`."""
        self.lose_power(*broker_ids, loss=Loss.NOTHING, noticed=noticed)

    def start(self, *broker_ids: int) -> None:
        """Start brokers that are dead."""
        for broker_id in broker_ids:
            self.cluster.brokers[broker_id].start()

    def corruption(self, broker_id: int) -> None:
        """Flip a bit in the last batch of a log that is one segment, below what its recovery point vouches for."""
        host = self.host(broker_id)
        host.log.durability.checkpoint(host.broker.clock.now_ms(), host.replica.high_watermark, force=True)
        self.cluster.checks.corrupt(broker_id, self.key)
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
        app = self.host(broker_id).broker.app
        assert app is not None
        assert app.replica_manager is not None
        assert app.membership is not None
        for partition in app.replica_manager.partitions:
            partition.replica.stops = True
        app.life.do(app.membership.registration.announce_draining)
        self.run_for(50)  # coordinators have heard of it

    def pause(self, broker_id: int) -> None:
        """SIGSTOP; its registration ends at once."""
        self.end_session(broker_id)
        self.cluster.world.pause(self.host(broker_id).broker.process)

    def resume(self, broker_id: int) -> None:
        """SIGCONT: what came meanwhile happens now."""
        self.cluster.world.resume(self.host(broker_id).broker.process)

    def end_session(self, *broker_ids: int) -> None:
        """Let registrations end, as if the leases had run out."""
        for broker_id in broker_ids:
            key_value = self.cluster.etcd.store.now(self.cluster.keyspace.broker(broker_id))
            if key_value is not None:
                self.cluster.etcd.store.end_lease(key_value.lease_id)

    def prolong_sessions(self, by_ms: int) -> None:
        """Let the registrations of those who die from now on stay longer."""
        self.cluster.etcd.store.prolong_leases(by_ms)

    def lose_next_answer(self) -> None:
        """The next transaction is applied without an answer."""
        self.cluster.etcd.lose_next_answers += 1

    def delay_next_write(self) -> None:
        """The next transaction is applied long after its sender has given up."""
        count = self.cluster.world.counts
        before = count.get("writes applied late", 0)
        self.delay_writes(lambda: count.get("writes applied late", 0) > before, "a transaction is sent")

    def delay_writes(self, condition: Callable[[], bool], what: str) -> None:
        """All transactions until `condition` holds are applied long after their senders have given up."""
        self.cluster.etcd.rates.late_apply_rate = 1.0
        self.until(condition, what)
        self.cluster.etcd.rates.late_apply_rate = 0.0

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
                node.broker.be_slow(_Unlucky(1))

    def delete_records(self, before: int) -> None:
        """Raise the partition's log start, and wait until that is answered."""
        self.until(self.begin_delete_records(before), f"records below {before} are deleted")

    def begin_delete_records(self, before: int) -> Callable[[], bool]:
        """Ask the leader to raise the log start; what is returned says whether it has answered that it has."""
        leader = self.cluster.leader_host(self.key)
        assert leader is not None
        return leader.broker.delete_records(leader, before)

    def log_start(self, broker_id: int) -> int:
        """Where a leader tells clients that the log begins; raises where it tells nothing."""
        host = self.host(broker_id)
        host.leadership.check_earliest()
        return int(host.replica.log_start_offset)

    def move(self, *broker_ids: int) -> None:
        """An administrator moves the partition to these brokers."""
        self.cluster.administration.move(self.key, broker_ids)

    def elect_uncleanly(self) -> None:
        """An administrator elects any replica, where no complete one is alive."""
        self.cluster.administration.elect_uncleanly(self.key)

    def elect(self, broker_id: int) -> None:
        """An administrator moves leadership to a member of the in-sync set, and the broker takes it up."""
        state = self.state
        leader = state.replica_of(broker_id)
        assert leader is not None, f"b{broker_id} is in sync"
        after = change(state, leader=leader, in_sync=state.in_sync)
        run_now(self.cluster.etcd.store.txn([], [Put(self.cluster.partition_key(self.key), encode(after))]))
        self.until_leads(broker_id)

    def ask_hand_over(self, broker_id: int) -> None:
        """An administrator asks the leader to hand over to a member of the in-sync set."""
        state = self.state
        successor = state.replica_of(broker_id)
        assert successor is not None, f"b{broker_id} is in sync"
        value = encode(ask_hand_over(state, (successor,)))
        run_now(self.cluster.etcd.store.txn([], [Put(self.cluster.partition_key(self.key), value)]))

    def refuses_appends(self, broker_id: int) -> bool:
        """Whether a leader refuses appends, since it hands over."""
        replica = self.host(broker_id).replica
        if replica.leadership is None:
            return False
        try:
            replica.leadership.check_appending(committed=False)
        except LeaderNotAvailableError:
            return True
        return False

    def promise_all(self) -> None:
        """Ask in the end for what `acks=1` acknowledged, too: leaderships have moved in order only (H24)."""
        self._promises_all = True

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
                    sent.partition,
                    (sent.name,),
                    OK if sent.acknowledged and sent.acks else UNKNOWN,
                    sent.offset,
                    sent.acknowledged and (sent.acks == -1 or self._promises_all),
                    sent.sent_at,
                    self.cluster.world.now_ms,
                )
            )
        self.cluster.finish()
        self.cluster.close()


def name_of(producer_id: int) -> str:
    """Return the name of the one record of a producer of the scenario."""
    return f"{producer_id}.0.0"


def record_of(producer_id: int, value: bytes = b"0", *, name: str = "") -> bytes:
    """Return the batch with the one record of a producer of the scenario; by its name it may delete its key."""
    name = name or name_of(producer_id)
    text, deletes = f"{name} ".encode(), is_deletion(name)
    keys = [key_of(name).encode()] if is_replaceable(name) else None
    return encode_batch(
        [None if deletes else text + value[len(text) :]],
        keys,
        headers=[[(NAME_HEADER, text)]] if deletes else None,
        base_timestamp_ms=0,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
    )


class _Unlucky(random.Random):
    """Chance that never favours."""

    def random(self) -> float:
        return 0.999


class HeldAnswers:
    """Answers on their way to a follower, which come when the scenario delivers them."""

    def __init__(self, host: Host) -> None:
        self._host = host
        partition: Any = host.partition
        self._partition = partition
        self._deliver = partition.follower.take_answer
        self.answers: list[FetchAnswer] = []
        partition.follower.take_answer = self._hold

    async def _hold(self, answer: FetchAnswer) -> bool:
        self.answers.append(answer)
        return False

    def release(self) -> None:
        """Let later answers come as they do; those that were caught stay caught."""
        self._partition.follower.take_answer = self._deliver

    def deliver(self, index: int = 0) -> None:
        """Let one that was caught arrive now, and let the follower do what it asks for."""

        async def take() -> None:
            if await self._deliver(self.answers[index]):
                self._partition._host.fetch(self._partition)

        self._host.broker.do(take)
        cluster = self._host.broker.cluster
        cluster.run_until(lambda: not self._partition.log_lock.locked(), PATIENCE_MS)
