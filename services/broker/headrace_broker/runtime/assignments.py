"""Which partitions this broker holds: follows the cluster's metadata, opens logs, gives the core its events.

Level-triggered: a change only marks a partition, and what is done follows from how its key stands then. Owned by the
broker's app, belongs to the event loop; the data directory's calls run in one thread at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import structlog
from headrace.v1 import topics_pb2
from headrace.wire.errors import (
    HeadraceError,
    InternalError,
    InvalidConfigError,
    LeaderHint,
    NotLeaderError,
    Outcome,
    StorageOfflineError,
    UnknownPartitionError,
)
from headrace.wire.ids import BrokerId
from headrace_server.keys import PartitionKey, TopicKey
from headrace_server.metadata_view import ClusterView, Topic
from headrace_server.metadata_view import Partition as PartitionEntry
from headrace_server.partition_state import Replica
from headrace_server.topic_configs import TopicConfig

from headrace_broker.core.messages import SessionLost, SessionStarted, StateGone, StateSeen
from headrace_broker.core.replica import Role
from headrace_broker.runtime.partition import Partition, log_settings
from headrace_broker.runtime.producer_state import rebuild_producers
from headrace_broker.runtime.replication import Replication
from headrace_broker.runtime.services import PartitionServices
from headrace_broker.storage.directory import DataDirectory, LogId
from headrace_broker.storage.errors import LogDamagedError
from headrace_broker.storage.log import PartitionLog

log = structlog.get_logger(__name__)

ResultT = TypeVar("ResultT")
PartitionId = tuple[bytes, int]


class Assignments:
    """The partitions of this broker, by (topic id, number)."""

    def __init__(
        self,
        view: ClusterView,
        directory: DataDirectory,
        services: PartitionServices,
        replication: Replication,
    ) -> None:
        self._view = view
        self._directory = directory
        self._services = services
        self._replication = replication
        replication.on_left(self._note_left)
        self._damaged: dict[PartitionId, None] = {}  # taken out of their keys, to be replaced by empty logs
        self._partitions: dict[PartitionId, Partition] = {}
        self._dirty: dict[PartitionId, None] = {}
        self._wake = asyncio.Event()
        self._broker_epoch: int | None = None
        self._directory_lock = asyncio.Lock()
        # Logs of deleted topics, open or not, with the monotonic ms of their removal.
        self._doomed: list[tuple[int, LogId, PartitionLog | None]] = []
        self._unsubscribe = view.subscribe(self._on_change)

    @property
    def partitions(self) -> list[Partition]:
        """All partitions held, in the order they were opened."""
        return list(self._partitions.values())

    def get(self, key: PartitionId) -> Partition | None:
        """The replica held here of the partition (topic id, number), or None."""
        return self._partitions.get(key)

    def find(self, reference: topics_pb2.TopicRef, number: int) -> Partition:
        """The partition that a request names.

        Raises:
            UnknownTopicError, UnknownTopicIdError, UnknownPartitionError, NotLeaderError with a hint.
        """
        return self.find_in(self._view.resolve(reference), number)

    def resolve(self, reference: topics_pb2.TopicRef) -> Topic:
        """The topic that a request names; raises as `ClusterView.resolve`."""
        return self._view.resolve(reference)

    def find_in(self, topic: Topic, number: int) -> Partition:
        """As `find`, once the topic is resolved."""
        partition = self._partitions.get((topic.topic_id, number))
        if partition is not None:
            return partition
        if not 0 <= number < topic.partitions:
            raise UnknownPartitionError(f"topic {topic.name} has partitions 0 to {topic.partitions - 1}, not {number}")
        entry = self._view.partition(topic.topic_id, number)
        state = None if entry is None else entry.state
        hint = LeaderHint(-1, -1)
        if state is not None:
            hint = LeaderHint(-1 if state.leader is None else state.leader.broker_id, state.leader_epoch)
        raise NotLeaderError(
            "this broker holds no replica of the partition", outcome=Outcome.NOT_APPLIED, leader=self.with_address(hint)
        )

    def with_address(self, hint: LeaderHint) -> LeaderHint:
        """`hint` with the leader's address for clients, where it is registered."""
        broker = self._view.brokers.get(BrokerId(hint.leader_id))
        return hint if broker is None else LeaderHint(hint.leader_id, hint.leader_epoch, broker.live.address)

    def rack_of(self, replica: Replica) -> str:
        """The rack of a broker in that session; empty: it names none, or is not registered so."""
        broker = self._view.brokers.get(BrokerId(replica.broker_id))
        return broker.live.rack if broker is not None and broker.broker_epoch == replica.broker_epoch else ""

    # --- start ---

    async def open_existing(self) -> None:
        """Open the logs on disk, before the broker registers.

        After a clean stop, and where only the process ended, all that was written is there: the kernel has kept it.
        After a crash of the machine recovery finds what was fsynced, which is all that counts where the partition's key
        says `durable`. A damaged replica is taken out of its key first, so that no election counts on it.

        Raises:
            InvalidConfigError: a log knows a later leader epoch than etcd, which was restored from a backup.
            MetastoreRolledBackError
        """
        log_ids, all_recovered = self._directory.log_ids(), True
        self._services.metrics.recovery_logs.set(len(log_ids))
        for topic_id, number in log_ids:
            self._services.metrics.recovered_logs.inc()
            entry, topic = self._view.partition(topic_id, number), self._view.topic_by_id(topic_id)
            if entry is None or topic is None:
                all_recovered = await self._doom_leftover(topic_id, number) and all_recovered
                continue
            partition = await self._open(topic, number)
            if partition.log is None:
                all_recovered = False
                damaged = isinstance(partition.failure, LogDamagedError)
                await self._replication.writer.leave(topic_id, number, damaged=damaged)
            elif partition.replica.last_epoch > entry.state.leader_epoch:
                raise InvalidConfigError(
                    f"the log of {topic.name}-{number} knows leader epoch {partition.replica.last_epoch}, etcd only "
                    f"{entry.state.leader_epoch}: etcd was restored from a backup",
                    action="Stop all and run `headrace-coordinator new-generation`: see the guide disaster-recovery.",
                )
        for topic in self._view.topics.values():
            self._mark_topic(topic)
        if all_recovered:
            self._directory.note_boot()

    async def _doom_leftover(self, topic_id: bytes, number: int) -> bool:
        """A log whose topic is gone goes after the usual delay; while the topic is in creation or deletion it stays.

        False: it stays.
        """
        if self._view.source.get(self._view.keyspace.topic_by_id(topic_id)) is not None:
            return False
        self._doom(LogId(topic_id, number), None, TopicConfig().file_delete_delay_ms)
        return True

    # --- sessions ---

    def start_session(self, broker_epoch: int) -> None:
        """The broker registered: partitions that name this session begin to lead, the others to follow."""
        self._broker_epoch = self._replication.broker_epoch = broker_epoch
        for partition in self.partitions:
            partition.handle(SessionStarted(broker_epoch))

    def lose_session(self) -> None:
        """The registration is gone: nothing is led."""
        self._broker_epoch = self._replication.broker_epoch = None
        for partition in self.partitions:
            partition.handle(SessionLost())

    # --- following the metadata ---

    def _on_change(self, _revision: int, keys: Sequence[str]) -> None:
        """Mark what a revision touched. Called by the view."""
        for key in keys:
            match self._view.keyspace.parse(key):
                case PartitionKey(topic_id, number):
                    self._mark(topic_id, number)
                case TopicKey(name):
                    topic = self._view.topics.get(name)
                    if topic is not None:
                        self._mark_topic(topic)
                    for held_id, held_number in self._partitions:
                        if self._view.topic_by_id(held_id) is None:
                            self._mark(held_id, held_number)

    def _mark_topic(self, topic: Topic) -> None:
        for number in range(topic.partitions):
            self._mark(topic.topic_id, number)

    def _mark(self, topic_id: bytes, number: int) -> None:
        self._dirty[(topic_id, number)] = None
        self._wake.set()

    async def run(self) -> None:
        """Bring marked partitions to where the metadata wants them, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._dirty:
                key = next(iter(self._dirty))
                del self._dirty[key]
                if key in self._damaged:
                    await self._replace_damaged(key)
                await self._reconcile(*key)

    async def _reconcile(self, topic_id: bytes, number: int) -> None:
        entry, topic = self._view.partition(topic_id, number), self._view.topic_by_id(topic_id)
        partition = self._partitions.get((topic_id, number))
        if topic is None or entry is None:
            if partition is not None and topic is None:
                self._let_go(partition)
            return
        if self._services.broker_id not in entry.state.replicas:
            # Moved away: what is here goes after the usual delay (H25).
            if partition is not None and entry.mod_revision > partition.replica.revision:
                self._let_go(partition)
            return
        if partition is None:
            await self._spare(LogId(topic_id, number))
            partition = await self._open(topic, number)
            self._fail_restored(partition, entry)
            if self._broker_epoch is not None:
                partition.handle(SessionStarted(self._broker_epoch))
        elif partition.config != topic.config:
            partition.update_config(topic.config)
            await partition.update_log_settings()
            log.info("topic_config_applied", topic=topic.name, partition=number)
        is_news = entry.mod_revision > partition.replica.revision
        partition.handle(StateSeen(entry.state, entry.mod_revision))
        if is_news:
            self._note_left(partition)

    def _let_go(self, partition: Partition) -> None:
        """Hold a replica no more; its log goes after the delay that its topic sets."""
        del self._partitions[(partition.topic_id, partition.number)]
        partition.handle(StateGone(self._view.source.revision))
        self._doom(LogId(partition.topic_id, partition.number), partition.log, partition.config.file_delete_delay_ms)

    def _note_left(self, partition: Partition) -> None:
        """A failed replica is out of its key: where its log is damaged and others have the records, begin anew.

        Where nobody else is entitled to lead, the damaged log may be the only one with all records: it stays (H14).
        """
        key = (partition.topic_id, partition.number)
        entry = self._view.partition(*key)
        if entry is None or not isinstance(partition.failure, LogDamagedError):
            return
        members = {member.broker_id for member in (*entry.state.in_sync, *entry.state.eligible_leaders)}
        if members and self._services.broker_id not in members and self._partitions.get(key) is partition:
            self._damaged[key] = None
            self._mark(*key)

    async def _replace_damaged(self, key: PartitionId) -> None:
        """Set a damaged log aside for a person and forget the replica, so that an empty one takes its place (H33)."""
        del self._damaged[key]
        partition = self._partitions.get(key)
        if partition is None or partition.replica.role is not Role.OFFLINE:
            return
        partition_log = partition.log
        async with partition.log_lock:
            try:
                if partition_log is not None:
                    await self._in_directory(lambda: self._directory.close_log(partition_log))
                path = await self._in_directory(lambda: self._directory.quarantine_log(LogId(*key)))
            except HeadraceError as error:
                log.error("damaged_log_stays", topic=partition.topic, partition=partition.number, reason=str(error))
                return
        del self._partitions[key]
        self._services.metrics.offline_logs.dec()
        self._services.metrics.replaced_logs.inc()
        log.error(
            "damaged_log_replaced",
            topic=partition.topic, partition=partition.number, kept=path, reason=str(partition.failure),
        )  # fmt: skip

    def _fail_restored(self, partition: Partition, entry: PartitionEntry) -> None:
        if partition.replica.last_epoch > entry.state.leader_epoch:
            partition.fail(
                StorageOfflineError(
                    f"the log knows leader epoch {partition.replica.last_epoch}, etcd only {entry.state.leader_epoch}"
                )
            )

    async def _open(self, topic: Topic, number: int) -> Partition:
        """Open the log of a partition; one that cannot be opened is held offline, and the others are served."""
        topic_id, config = topic.topic_id, topic.config
        error: HeadraceError | None = None
        partition_log = None
        try:
            partition_log = await self._in_directory(
                lambda: self._directory.open_log(topic_id, number, log_settings(config))
            )
        except HeadraceError as met:
            error = met
        partition = Partition(
            topic.name,
            topic_id,
            number,
            partition_log,
            config=config,
            services=self._services,
            host=self._replication,
        )
        if partition_log is not None:
            try:
                kept = await asyncio.get_running_loop().run_in_executor(
                    self._services.executor, rebuild_producers, partition.replica.producers, partition_log
                )
                partition.note_kept(kept)
            except HeadraceError as met:
                error = met
        if error is not None:
            partition.fail(error)
        self._partitions[(topic_id, number)] = partition
        self._services.metrics.partitions.set(len(self._partitions))
        return partition

    # --- removal ---

    def _doom(self, log_id: LogId, partition_log: PartitionLog | None, delay_ms: int) -> None:
        self._doomed.append((self._services.clock.monotonic_ms() + delay_ms, log_id, partition_log))
        self._services.metrics.partitions.set(len(self._partitions))
        log.info("partition_deleted", topic_id=log_id.topic_id.hex(), partition=log_id.partition, delay_ms=delay_ms)

    async def _spare(self, log_id: LogId) -> None:
        """A replica was moved away and comes back before its log went: what it has need not be copied again."""
        for entry in [entry for entry in self._doomed if entry[1] == log_id]:
            self._doomed.remove(entry)
            partition_log = entry[2]
            if partition_log is not None:
                await self._in_directory(partial(self._directory.close_log, partition_log))

    async def remove_doomed(self) -> None:
        """Remove the logs of deleted topics, and of replicas that were moved away, whose delay is over."""
        now_ms = self._services.clock.monotonic_ms()
        due = [doomed for doomed in self._doomed if doomed[0] <= now_ms]
        self._doomed = [doomed for doomed in self._doomed if doomed[0] > now_ms]
        for _, log_id, partition_log in due:
            try:
                await self._remove(log_id, partition_log)
            except HeadraceError as error:
                log.error("partition_not_removed", topic_id=log_id.topic_id.hex(), reason=str(error))
        if due:
            await self._in_directory(self._directory.remove_deleted)

    async def _remove(self, log_id: LogId, partition_log: PartitionLog | None) -> None:
        if partition_log is None:
            await self._in_directory(lambda: self._directory.delete_log_directory(log_id))
        else:
            await self._in_directory(lambda: self._directory.delete_log(partition_log))

    def movable_leaderships(self) -> int:
        """How many partitions are led here that another in-sync replica could lead."""
        return sum(
            partition.replica.role is Role.LEADING
            and partition.replica.state is not None
            and len(partition.replica.state.in_sync) > 1
            for partition in self._partitions.values()
        )

    async def close(self) -> bool:
        """Flush and close every log; whether all of them are whole, so that the stop is clean."""
        self._unsubscribe()
        whole = True
        for partition in self.partitions:
            await partition.prepare_close()
            await self._close_log(partition)
            whole &= partition.replica.role is not Role.OFFLINE
        return whole

    async def _close_log(self, partition: Partition) -> None:
        partition_log = partition.log
        if partition_log is None:
            return
        high_watermark = partition.replica.high_watermark
        try:
            await self._in_directory(lambda: self._directory.close_log(partition_log, high_watermark=high_watermark))
        except HeadraceError as error:
            partition.fail(error)

    async def _in_directory(self, call: Callable[[], ResultT]) -> ResultT:
        async with self._directory_lock:
            try:
                return await asyncio.get_running_loop().run_in_executor(self._services.executor, call)
            except HeadraceError:
                raise
            except Exception as error:
                # One log that meets a bug of ours must not take the others down with it.
                log.exception("directory_call_failed")
                raise InternalError(f"the storage met an unexpected {type(error).__name__}") from error
