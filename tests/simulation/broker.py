"""A broker's process, one life of it.

The counterpart of `headrace_broker.app` and its runtime: opens the data directory, registers (by the shipped
`Registration`), follows the metadata, keeps one stream to each leader it copies from, ticks, stops in order or dies.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

from headrace.wire.errors import HeadraceError, MetastoreUnavailableError
from headrace.wire.ids import BrokerId
from headrace_broker.core.messages import SessionLost, SessionStarted, StateSeen, Ticked
from headrace_broker.core.replica import Role
from headrace_broker.metrics import BrokerMetrics
from headrace_broker.runtime import in_sync, registration
from headrace_broker.runtime.in_sync import InSyncWriter
from headrace_broker.runtime.registration import Registration, StorageRecord
from headrace_broker.storage import DataDirectory, DiskLimits, LogDamagedError, LogId, LogSettings
from headrace_broker.storage.memory_filesystem import Loss
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.keys import LiveKey, PartitionKey, TopicKey
from headrace_server.metastore.api import CreateRevisionIs, Delete, LeaseNotFoundError, Put
from headrace_server.partition_state import Replica
from prometheus_client import CollectorRegistry

from tests.simulation.etcd import EtcdClient
from tests.simulation.host import Host
from tests.simulation.links import ReplicaLink
from tests.simulation.metadata import Metadata
from tests.simulation.world import NodeClock, VirtualAsyncio, sleep, spawn

if TYPE_CHECKING:
    from tests.simulation.machine import BrokerNode

LEASE_TTL_MS = 3_000
TICK_MS = 400
RETRY_MS = 150
STOP_MS = 1_500
REMOVAL_MS = 300
SILENCE_MS = 2_000
"""A stream on which nothing came for so long is given up."""
SEGMENT_BYTES = 2_500
LOG_SETTINGS = LogSettings(
    segment_bytes=SEGMENT_BYTES, index_interval_bytes=512, file_delete_delay_ms=0, checkpoint_interval_ms=1_000
)
DISK_LIMITS = DiskLimits(reserve_bytes=4096, refuse_below_bytes=0, resume_above_bytes=0)
_METRICS = BrokerMetrics(CollectorRegistry())  # Counted and never looked at.

for _module in (in_sync, registration):
    _module.asyncio = VirtualAsyncio()  # type: ignore[attr-defined]


class Broker:
    """One life of the process."""

    def __init__(self, node: BrokerNode) -> None:
        cluster = node.cluster
        self.cluster = cluster
        self.node = node
        self.broker_id = node.broker_id
        self.process = cluster.world.start_process(node.name)
        self.clock = NodeClock(cluster.world, self.process, node.wall)
        self.etcd = EtcdClient(cluster.etcd, self.process)
        self.disk_chance = cluster.world.chance(f"disk/{node.name}")
        self.writer = InSyncWriter(
            self.etcd,  # type: ignore[arg-type]  # it reads and writes, and does not watch
            cluster.keyspace,
            BrokerId(node.broker_id),
            _METRICS,
        )
        self.hosts: dict[int, Host] = {}
        self.links: dict[int, ReplicaLink] = {}
        """By the leader's broker id."""
        self.peers: list[ReplicaLink] = []
        """Streams of brokers that follow this one."""
        self.broker_epoch: int = 0
        self.registered = False
        self.stopping = False
        self._lease_id = 0
        self._exiting = False
        self.directory: DataDirectory
        self._registration: Registration
        self.metadata = Metadata(
            cluster.world,
            self.process,
            self.etcd,
            self.clock,
            cluster.identity,
            relist_ms=cluster.relist_ms,
            on_rolled_back=lambda: self.die_and_restart(Loss.NOTHING),
        )

    def disk_delay_ms(self) -> int:
        """Draw how long an fsync takes."""
        chance = self.disk_chance
        return 150 + chance.randrange(400) if chance.random() < self.cluster.slow_disk_rate else 1 + chance.randrange(6)

    # --- start ---

    def start(self) -> None:
        """Begin."""
        spawn(self.process, self._start())

    async def _start(self) -> None:
        cluster = self.cluster
        cluster.world.note(self.process.name, f"starts, life {self.process.number}")
        try:
            self.directory = DataDirectory.open(
                "/data",
                cluster_id=cluster.identity.cluster_id,
                generation=1,
                broker_id=self.broker_id,
                new_storage_id=self.disk_chance.randbytes(16),
                boot_id=self.node.boot_id,
                limits=DISK_LIMITS,
                filesystem=self.node.filesystem,
            )
            await self.metadata.load()
            await self._open_existing()
        except HeadraceError as error:
            cluster.world.note(self.process.name, f"cannot start: {error.message}")
            self.die_and_restart(Loss.NOTHING)
            return
        live = metadata_pb2.BrokerLive(broker_id=self.broker_id, boot_id=self.disk_chance.randbytes(16))
        self._live = live
        self._registration = Registration(
            self.etcd,  # type: ignore[arg-type]  # it registers, and does not watch
            cluster.keyspace,
            live,
            StorageRecord(self.directory.storage_id, self.directory.era, self.directory.clean_broker_epoch),
            lease_ttl_ms=LEASE_TTL_MS,
            clock=self.clock,
            make_renewer=_no_renewer,
            on_lease_change=lambda state: None,
        )
        await self._register()
        self.metadata.view.subscribe(self._on_change)
        self.metadata.follow()
        for number in cluster.partitions:
            self._reconcile(number)
        spawn(self.process, self._keep_lease())
        cluster.world.after(self.disk_chance.randrange(TICK_MS) + 1, self.process, "", self._tick)

    async def _open_existing(self) -> None:
        """Open what is on disk; a damaged log leaves its key first. As `Assignments.open_existing`."""
        for log_id in self.directory.log_ids():
            number = log_id.partition
            try:
                if number in self.node.suspects:
                    raise LogDamagedError("damage was found before", file="", offset=0, position=0)
                self._open(log_id)
            except LogDamagedError as error:
                self.node.suspects[number] = None
                self.cluster.world.count("damaged logs set aside")
                self.cluster.world.note(self.process.name, f"p{number} is damaged: {error.reason}")
                await self.writer.leave(log_id.topic_id, number, damaged=True)
                self.cluster.checks.set_aside(self.broker_id, number)
                self.directory.quarantine_log(log_id)
                del self.node.suspects[number]
                self._open(log_id)
            entry = self.metadata.view.partition(log_id.topic_id, number)
            if entry is not None and self.hosts[number].log.last_epoch > entry.state.leader_epoch:
                self.die_and_restart(Loss.NOTHING)  # Its list was of the past; a restored etcd would look the same.
                await sleep(self.cluster.world, self.process, 1)
        self.directory.note_boot()

    def _open(self, log_id: LogId) -> None:
        log = self.directory.open_log(log_id.topic_id, log_id.partition, LOG_SETTINGS)
        try:
            self.hosts[log_id.partition] = Host(self, log_id.partition, log)
        except LogDamagedError:
            self.directory.close_log(log)
            raise

    async def _register(self) -> None:
        while True:
            try:
                lease = await self.etcd.grant_lease(LEASE_TTL_MS)
                epoch = await self._registration._put(lease.lease_id)
            except (MetastoreUnavailableError, LeaseNotFoundError):
                await sleep(self.cluster.world, self.process, RETRY_MS)
                continue
            break
        self._lease_id, self.broker_epoch, self.registered = lease.lease_id, epoch, True
        self.cluster.world.count("registrations")
        self.cluster.world.note(self.process.name, f"registered: broker epoch {epoch}, clean {self._live.clean}")
        for host in self.hosts.values():
            host.handle(SessionStarted(epoch))

    async def _keep_lease(self) -> None:
        while True:
            await sleep(self.cluster.world, self.process, LEASE_TTL_MS // 3)
            if not self.registered:
                continue
            lease_id = self._lease_id
            try:
                left_ms = await self.etcd.renew_lease(lease_id)
            except MetastoreUnavailableError:
                continue  # Silence does not fence (H84).
            if left_ms == 0 and lease_id == self._lease_id:
                self._lose_session()

    def _lose_session(self) -> None:
        """Lead nothing, and register anew: the process lived on, so its data is whole."""
        if not self.registered:
            return
        self.registered = False
        self.cluster.world.count("sessions lost")
        self.cluster.world.note(self.process.name, f"has lost its session {self.broker_epoch}")
        for link in list(self.links.values()):
            self._drop_link(link)
        for host in self.hosts.values():
            host.handle(SessionLost())
        if not self.stopping:
            spawn(self.process, self._register())

    # --- metadata ---

    def _on_change(self, _revision: int, keys: Sequence[str]) -> None:
        view = self.metadata.view
        for key in keys:
            match view.keyspace.parse(key):
                case PartitionKey(_, number):
                    self._reconcile(number)
                case TopicKey():
                    for number in self.cluster.partitions:
                        self._reconcile(number)
                case LiveKey(broker_id) if broker_id == self.broker_id:
                    broker = view.brokers.get(BrokerId(self.broker_id))
                    behind = view.source.revision < self.broker_epoch
                    if not behind and (broker is None or broker.broker_epoch != self.broker_epoch):
                        self._lose_session()

    def _reconcile(self, number: int) -> None:
        topic_id = self.cluster.topic_id
        entry = self.metadata.view.partition(topic_id, number)
        if entry is None:
            return
        host = self.hosts.get(number)
        if host is None:
            if self.broker_id not in entry.state.replicas:
                return
            try:
                self._open(LogId(topic_id, number))
            except HeadraceError as error:
                if isinstance(error, LogDamagedError):
                    self.node.suspects[number] = None
                self.die_and_restart(Loss.NOTHING)
                return
            host = self.hosts[number]
            if self.registered:
                host.handle(SessionStarted(self.broker_epoch))
        host.handle(StateSeen(entry.state, entry.mod_revision))
        if self.broker_id not in entry.state.replicas:
            self.cluster.world.after(REMOVAL_MS, self.process, "", lambda: self._remove(number))

    def _remove(self, number: int) -> None:
        """Delete a replica that was moved away, if it still is (H25)."""
        entry, host = self.metadata.view.partition(self.cluster.topic_id, number), self.hosts.get(number)
        if entry is None or host is None or self.broker_id in entry.state.replicas or self.stopping:
            return
        if host.replica.role is Role.OFFLINE:
            return
        del self.hosts[number]
        host.let_go(self.metadata.source.revision)
        self.cluster.checks.set_aside(self.broker_id, number)
        self.directory.delete_log(host.log)
        self.directory.remove_deleted()

    def may_join(self) -> list[Replica]:
        """The registered sessions of brokers that do not stop (KIP-841)."""
        return [
            Replica(int(broker_id), broker.broker_epoch)
            for broker_id, broker in sorted(self.metadata.view.brokers.items())
            if not broker.live.draining
        ]

    def take_up_durability(self) -> None:
        """The topic says something else about flushing than before."""
        for host in self.hosts.values():
            host.change_durability(flushes=self.cluster.flushed_only)

    # --- time ---

    def _tick(self) -> None:
        world, at_ms = self.cluster.world, self.clock.monotonic_ms()
        world.after(TICK_MS, self.process, "", self._tick)
        self.directory.check_space()
        started_ms = self.process.started_ms
        heard_ms = {link.identity: link.heard_by_leader_ms - started_ms for link in self.peers}
        may_join = self.may_join()
        for link in list(self.links.values()):
            if world.now_ms - link.heard_by_follower_ms > SILENCE_MS:
                self._drop_link(link)
            else:
                link.give_signs_of_life(self)
        for link in self.peers:
            link.give_signs_of_life(self)
        for host in self.hosts.values():
            if host.replica.role is Role.LEADING:
                host.handle(Ticked(at_ms, heard_ms, may_join))
            elif host.replica.role is Role.FOLLOWING:
                host.send_fetch()
            host.keep_checkpoint(at_ms)

    # --- streams ---

    def link_to(self, broker_id: int) -> ReplicaLink | None:
        """The stream to a leader's broker, opened where there is none; None: nobody is there."""
        link = self.links.get(broker_id)
        if link is not None:
            return link
        node = self.cluster.brokers.get(broker_id)
        if node is None or node.broker is None or self.broker_id == broker_id or not self.registered:
            return None
        link = self.links[broker_id] = ReplicaLink(self, node.broker)
        return link

    def _drop_link(self, link: ReplicaLink) -> None:
        link.close(self.process)
        self.link_broke(link)

    def link_broke(self, link: ReplicaLink) -> None:
        """The stream to a leader is gone: no answer that was awaited comes any more."""
        leader_id = link.leader.broker_id
        if self.links.get(leader_id) is not link:
            return
        del self.links[leader_id]
        for host in self.hosts.values():
            if host.leader is not None and host.leader.broker_id == leader_id:
                host.replica.end_fetch()
                self.cluster.world.after(RETRY_MS, self.process, "", host.send_fetch)

    def peer_broke(self, link: ReplicaLink) -> None:
        """A follower's stream is gone."""
        if link in self.peers:
            self.peers.remove(link)
        for host in self.hosts.values():
            host.drop_parked(link)

    # --- end ---

    def exit_soon(self) -> None:
        """A log failed: the process exits once it has left the key, and is started again with a repaired disk."""
        if not self._exiting:
            self._exiting = True
            self.cluster.world.after(50, self.process, "exits: a log failed", lambda: self.die_and_restart(Loss.BLOCKS))

    def die_and_restart(self, loss: Loss) -> None:
        """Exit by itself; the operator starts it again."""
        self.node.kill(loss)
        cluster = self.cluster
        if self.node.restart_due:
            return
        self.node.restart_due = True
        cluster.world.after(500 + self.disk_chance.randrange(500), cluster.operator, "", self._restart)

    def _restart(self) -> None:
        self.node.restart_due = False
        if self.node.wanted:
            self.node.start()

    def stop(self) -> None:
        """Stop in order: leaders move first, the clean marker is written last (H40, KIP-841)."""
        if not self.stopping and self.registered:
            self.stopping = True
            spawn(self.process, self._stop())

    async def _stop(self) -> None:
        world, keyspace = self.cluster.world, self.cluster.keyspace
        world.note(self.process.name, "begins to stop")
        live_key, epoch = keyspace.live(self.broker_id), self.broker_epoch
        self._live.draining = True
        until_ms = world.now_ms + STOP_MS
        try:
            put = Put(live_key, self._live.SerializeToString(), self._lease_id)
            await self.etcd.txn([CreateRevisionIs(live_key, epoch)], [put], what=f"b{self.broker_id} is draining")
        except (MetastoreUnavailableError, LeaseNotFoundError):
            pass
        while world.now_ms < until_ms and self._leads():
            await sleep(world, self.process, 100)
        try:
            for host in self.hosts.values():
                if host.replica.role is not Role.OFFLINE:
                    host.handle(SessionLost())
                    host.prepare_stop()
                    self.directory.close_log(host.log, high_watermark=host.replica.high_watermark)
            clean = not any(host.replica.role is Role.OFFLINE for host in self.hosts.values())
            self.directory.close(clean=clean, broker_epoch=epoch)
        except HeadraceError as error:
            world.note(self.process.name, f"cannot stop in order: {error.message}")
            self.die_and_restart(Loss.NOTHING)
            return
        self.cluster.checks.stopped(self)
        self.hosts.clear()
        self.registered = False
        with suppress(MetastoreUnavailableError):
            await self.etcd.txn([CreateRevisionIs(live_key, epoch)], [Delete(live_key)], what=f"b{self.broker_id} goes")
        world.note(self.process.name, "has stopped in order")
        world.count("clean stops")
        self.node.ended(self)

    def _leads(self) -> bool:
        return any(host.replica.role in (Role.STARTING, Role.LEADING) for host in self.hosts.values())


def _no_renewer() -> NoReturn:
    raise AssertionError("the simulator renews leases itself")
