"""Partitions of this broker: follows the cluster's metadata, opens logs, passes events to the core.

Level-triggered: a change only marks a partition, and the action depends on its key at the time of processing. Owned by
the broker's app, belongs to the event loop; the data directory's calls run in one thread at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import structlog
from headrace.log.directory import DataDirectory, LogId
from headrace.log.errors import REFUSALS, RETRY_AFTER_MS, CorruptLogError
from headrace.partition.log_settings import log_settings
from headrace.partition.topic_configs import TopicConfig
from headrace.placement.nearness import Location
from headrace.wire.errors import (
    HeadraceError,
    LeaderHint,
    NotLeaderError,
    Outcome,
    StorageOfflineError,
    UnknownPartitionError,
)
from headrace.wire.ids import BrokerId
from headrace_server.key_table import DeletedTopicKey, PartitionKey, TopicKey
from headrace_server.metadata_view import ClusterView, PartitionEntry, Topic
from headrace_server.metastore.api import Metastore
from headrace_server.partition_state import Replica

from headrace_broker.core.messages import SessionLost, SessionStarted, StateGone, StateSeen
from headrace_broker.core.roles import Role, leader_hint
from headrace_broker.runtime.directory_calls import DirectoryCalls
from headrace_broker.runtime.log_deletion import LogDeletion
from headrace_broker.runtime.partition import Partition, open_partition
from headrace_broker.runtime.partition_context import PartitionContext
from headrace_broker.runtime.replication import Replication
from headrace_broker.runtime.restore_guard import RestoreGuard, etcd_restored

log = structlog.get_logger(__name__)

PartitionId = tuple[bytes, int]


class ReplicaManager:
    """Partitions of this broker by (topic id, number)."""

    def __init__(
        self,
        view: ClusterView,
        metastore: Metastore,
        directory: DataDirectory,
        context: PartitionContext,
        replication: Replication,
    ) -> None:
        self.view = view
        self._directory = directory
        self._context = context
        self._replication = replication
        replication.on_left(self._note_written_out)
        self._corrupt: dict[PartitionId, None] = {}  # removed from their keys; to be replaced by empty logs
        self._partitions: dict[PartitionId, Partition] = {}
        context.metrics.partitions.set_function(lambda: len(self._partitions))
        context.metrics.offline_logs.set_function(lambda: self.offline_logs)
        self._dirty: dict[PartitionId, None] = {}
        self._wake = asyncio.Event()
        self._broker_epoch: int | None = None
        self._calls = DirectoryCalls(context.executor)
        self.deletion = LogDeletion(view, metastore, directory, self._calls, context)
        self._seen = RestoreGuard(view, directory, self._calls, context)
        self._was_undecodable = bool(view.undecodable)
        self._unsubscribe = view.subscribe(self._on_change)

    @property
    def partitions(self) -> list[Partition]:
        """All partitions of this broker, in the order in which they were opened."""
        return list(self._partitions.values())

    @property
    def offline_logs(self) -> int:
        """Number of replicas whose log failed."""
        return sum(partition.replica.role is Role.OFFLINE for partition in self.partitions)

    def get(self, key: PartitionId) -> Partition | None:
        """Return this broker's replica of the partition (topic id, number), or `None`."""
        return self._partitions.get(key)

    def find_in(self, topic: Topic, number: int) -> Partition:
        """Return this broker's replica of a partition. Raises UnknownPartitionError, NotLeaderError with a hint."""
        partition = self._partitions.get((topic.topic_id, number))
        if partition is not None:
            return partition
        if not 0 <= number < topic.partitions:
            raise UnknownPartitionError(f"topic {topic.name} has partitions 0 to {topic.partitions - 1}, not {number}")
        entry = self.view.partition(topic.topic_id, number)
        hint = self.with_address(leader_hint(None if entry is None else entry.state))
        raise NotLeaderError("this broker holds no replica of the partition", outcome=Outcome.NOT_APPLIED, leader=hint)

    def with_address(self, hint: LeaderHint) -> LeaderHint:
        """Return `hint` with the leader's address for clients if it is registered."""
        broker = self.view.brokers.get(BrokerId(hint.leader_id))
        return hint if broker is None else LeaderHint(hint.leader_id, hint.leader_epoch, broker.live.address)

    def with_leader_address(self, error: HeadraceError) -> HeadraceError:
        """Return an error for a client: where it names the leader, that has its address."""
        if error.leader is not None:
            error.leader = self.with_address(error.leader)
        return error

    def place_of(self, replica: Replica) -> Location:
        """Return the place of a broker in that session; an empty one if it is not registered in it."""
        broker = self.view.brokers.get(BrokerId(replica.broker_id))
        if broker is None or broker.broker_epoch != replica.broker_epoch:
            return Location("", "")
        return Location(broker.live.data_center, broker.live.rack)

    # --- start ---

    async def open_existing(self) -> None:
        """Open the logs on disk, before the broker registers.

        After a clean stop, or if only the process ended, all written data is present in the kernel or on disk. After a
        crash of the machine recovery finds the fsynced data, which is sufficient if the partition's key is `durable`.
        A corrupt replica is first removed from its key, so that no election counts on it.

        Raises:
            InvalidConfigError: If the directory has seen a newer state of etcd, which was restored from a backup.
            MetastoreRolledBackError: If etcd's revision went back, or another etcd cluster responds.
        """
        log_ids, all_recovered = self._directory.log_ids(), True
        self._seen.check(log_ids)
        self._context.metrics.recovery_logs.set(len(log_ids))
        for topic_id, number in log_ids:
            self._context.metrics.recovered_logs.inc()
            entry, topic = self.view.partition(topic_id, number), self.view.topic_by_id(topic_id)
            if entry is None or topic is None or self._context.broker_id not in entry.state.replicas:
                all_recovered = await self._look_at_leftover(LogId(topic_id, number)) and all_recovered
                continue
            partition = await self._open(topic, number)
            if partition.log is None:
                all_recovered = False
                corrupt = isinstance(partition.failure, CorruptLogError)
                partition.left_revision = await self._replication.isr_updater.leave(topic_id, number, corrupt=corrupt)
            elif partition.replica.last_epoch > entry.state.leader_epoch:
                raise etcd_restored(
                    f"the log of {topic.name}-{number} has leader epoch {partition.replica.last_epoch}, etcd only "
                    f"{entry.state.leader_epoch}"
                )
        for topic in self.view.topics.values():
            await self._leave_where_missing(topic)
            self._mark_topic(topic)
        with suppress(*REFUSALS):  # An older record only detects fewer restores.
            await self._seen.note(self._partitions, all_held=frozenset(found.directory_name for found in log_ids))
        if all_recovered:
            with suppress(*REFUSALS):  # Without the record the next start trusts only fsynced data.
                self._directory.note_boot()

    async def _leave_where_missing(self, topic: Topic) -> None:
        """Remove this broker from keys whose logs are missing on its disk, before empty logs replace them.

        Only logs that were on this disk count as missing: the log of a new partition may not have been created yet.
        """
        for entry in self.view.partitions(topic.topic_id):
            state, number = entry.state, entry.partition
            members = {member.broker_id for member in state.members}
            is_counted_on = state.durable and self._context.broker_id in members
            was_begun = self._directory.seen.was_begun(LogId(topic.topic_id, number).directory_name)
            if is_counted_on and was_begun and (topic.topic_id, number) not in self._partitions:
                log.error("log_missing", topic=topic.name, partition=number)
                await self._replication.isr_updater.leave(topic.topic_id, number, corrupt=True)

    async def _look_at_leftover(self, log_id: LogId) -> bool:
        """Schedule the deletion of an unclaimed log on evidence, else keep it; return whether it was recovered."""
        if self.deletion.has_evidence(log_id):
            self.deletion.schedule(log_id, None)
            return True
        partition_log, recovered = None, True
        try:
            partition_log = await self._calls.run(
                lambda: self._directory.open_log(log_id.topic_id, log_id.partition, log_settings(TopicConfig()))
            )
        except HeadraceError:
            recovered = False
        await self.deletion.keep(log_id, partition_log)
        return recovered

    # --- sessions ---

    def start_session(self, broker_epoch: int) -> None:
        """Start to lead partitions that name this session and to follow the others, after the broker has registered."""
        self._broker_epoch = self._replication.broker_epoch = broker_epoch
        for partition in self.partitions:
            partition.handle(SessionStarted(broker_epoch))

    def lose_session(self) -> None:
        """End all leaderships after the registration was lost."""
        self._broker_epoch = self._replication.broker_epoch = None
        for partition in self.partitions:
            partition.handle(SessionLost())

    # --- following the metadata ---

    def _on_change(self, _revision: int, keys: Sequence[str]) -> None:
        """Mark the partitions that a revision affects. Called by the view."""
        for key in keys:
            match self.view.keyspace.parse(key):
                case PartitionKey(topic_id, number):
                    self._mark(topic_id, number)
                case TopicKey(name):
                    topic = self.view.topics.get(name)
                    if topic is not None:
                        self._mark_topic(topic)
                    for held_id, held_number in self._partitions:
                        if self.view.topic_by_id(held_id) is None:
                            self._mark(held_id, held_number)
                case DeletedTopicKey(topic_id):
                    for log_id in [*self._partitions, *self.deletion.unclaimed]:
                        if log_id[0] == topic_id:
                            self._mark(*log_id)
        if self._was_undecodable and not self.view.undecodable:
            for log_id in [*self._partitions, *self.deletion.unclaimed]:
                self._mark(*log_id)
        self._was_undecodable = bool(self.view.undecodable)

    def _mark_topic(self, topic: Topic) -> None:
        for number in range(topic.partitions):
            self._mark(topic.topic_id, number)

    def _mark(self, topic_id: bytes, number: int) -> None:
        self._dirty[(topic_id, number)] = None
        self._wake.set()

    async def run(self) -> None:
        """Reconcile marked partitions with the metadata, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self.reconcile()

    async def reconcile(self) -> None:
        """Reconcile the partitions that are marked now, or meanwhile, with the metadata."""
        while self._dirty:
            key = next(iter(self._dirty))
            del self._dirty[key]
            if key in self._corrupt:
                await self._replace_corrupt(key)
            await self._reconcile(*key)

    async def _reconcile(self, topic_id: bytes, number: int) -> None:
        entry, topic = self.view.partition(topic_id, number), self.view.topic_by_id(topic_id)
        partition = self._partitions.get((topic_id, number))
        log_id = LogId(topic_id, number)
        if topic is None or entry is None or self._context.broker_id not in entry.state.replicas:
            if partition is None:
                self.deletion.review(log_id)
            elif entry is None or entry.mod_revision > partition.replica.revision:
                await self._remove_replica(partition, gone=topic is None)
            return
        has_new_config = False
        if partition is None:
            try:
                await self._claim(log_id, entry)
            except HeadraceError as error:
                log.warning("replica_not_started", topic=topic.name, partition=number, reason=str(error))
                asyncio.get_running_loop().call_later(RETRY_AFTER_MS / 1000, self._mark, *log_id)
                return
            partition = await self._open(topic, number)
            self._fail_restored(partition, entry)
            if self._broker_epoch is not None:
                partition.handle(SessionStarted(self._broker_epoch))
        elif partition.config != topic.config:
            has_new_config = True
            partition.update_config(topic.config)  # Before the key of this revision, and without a wait between them.
        is_news = entry.mod_revision > partition.replica.revision
        partition.handle(StateSeen(entry.state, entry.mod_revision))
        if is_news:
            self._note_left(partition)
        if has_new_config:
            await partition.update_log_settings()
            log.info("topic_config_applied", topic=topic.name, partition=number)

    async def _remove_replica(self, partition: Partition, *, gone: bool) -> None:
        """Remove a replica if there is evidence that it may be deleted, or, with `gone`, if its topic is absent.

        While any value cannot be decoded it is kept, because that may be its own (H26).
        """
        log_id = LogId(partition.topic_id, partition.number)
        has_evidence = self.deletion.has_evidence(log_id)
        if not has_evidence and (self.view.undecodable or not gone):
            return
        del self._partitions[log_id]
        partition.handle(StateGone(self.view.source.revision))
        partition.close_table()
        if has_evidence:
            self.deletion.schedule(log_id, partition.log)
        else:
            async with partition.log_lock:
                await self.deletion.keep(log_id, partition.log, partition.replica.high_watermark)

    async def _claim(self, log_id: LogId, entry: PartitionEntry) -> None:
        """Record the revision at which the key names this broker, before a log is created or reopened (H25)."""
        await self.deletion.claim(log_id)
        noted = self._directory.seen.revision_of(log_id.directory_name)
        if noted is None or noted < entry.mod_revision:
            await self._seen.note(self._partitions, [log_id, *self._dirty])

    def _note_written_out(self, partition: Partition, revision: int) -> None:
        partition.left_revision = revision
        self._note_left(partition)

    def _note_left(self, partition: Partition) -> None:
        """Replace a corrupt log by an empty one after it was removed from its key, if others have the records.

        An earlier replacement would be wrong, because a write in transit could name the empty log. If no other replica
        may lead, the corrupt log may be the only one with all records, and is kept (H14).
        """
        key, left_revision = (partition.topic_id, partition.number), partition.left_revision
        entry = self.view.partition(*key)
        if entry is None or left_revision is None or not isinstance(partition.failure, CorruptLogError):
            return
        if entry.mod_revision < left_revision:
            return  # The view does not show the write yet; this is called again when it does.
        members = {member.broker_id for member in entry.state.members}
        if members and self._context.broker_id not in members and self._partitions.get(key) is partition:
            self._corrupt[key] = None
            self._mark(*key)

    async def _replace_corrupt(self, key: PartitionId) -> None:
        """Set a corrupt log aside for inspection and drop the replica, so that an empty one replaces it (H33)."""
        del self._corrupt[key]
        partition = self._partitions.get(key)
        if partition is None or partition.replica.role is not Role.OFFLINE:
            return
        partition_log = partition.log
        async with partition.log_lock:
            try:
                if partition_log is not None:
                    await self._calls.run(lambda: self._directory.close_log(partition_log))
                path = await self._calls.run(lambda: self._directory.quarantine_log(LogId(*key)))
            except HeadraceError as error:
                log.error("corrupt_log_kept", topic=partition.topic, partition=partition.number, reason=str(error))
                if isinstance(error, REFUSALS):
                    self._corrupt[key] = None
                    asyncio.get_running_loop().call_later(RETRY_AFTER_MS / 1000, self._mark, *key)
                return
        del self._partitions[key]
        partition.close_table()
        self._context.metrics.replaced_logs.inc()
        log.error(
            "corrupt_log_replaced",
            topic=partition.topic, partition=partition.number, kept=path, reason=str(partition.failure),
        )  # fmt: skip

    def _fail_restored(self, partition: Partition, entry: PartitionEntry) -> None:
        if partition.replica.last_epoch > entry.state.leader_epoch:
            partition.fail(
                StorageOfflineError(
                    f"the log has leader epoch {partition.replica.last_epoch}, etcd has {entry.state.leader_epoch}"
                )
            )

    async def _open(self, topic: Topic, number: int) -> Partition:
        settings = log_settings(topic.config)
        partition = await open_partition(
            topic,
            number,
            self._calls.run(lambda: self._directory.open_log(topic.topic_id, number, settings)),
            context=self._context,
            host=self._replication,
        )
        self._partitions[(topic.topic_id, number)] = partition
        return partition

    # --- maintenance ---

    async def note_metadata(self) -> None:
        """Record the seen state of the metadata in the data directory, if the last record is old."""
        await self._seen.note_if_old(self._partitions)

    async def reopen_refused(self) -> None:
        """Retry to open logs that could not be opened because of a full disk or a busy machine."""
        for key, partition in list(self._partitions.items()):
            if not isinstance(partition.failure, REFUSALS):
                continue
            partition_log = partition.log
            if partition_log is not None:  # It was opened, but its producers could not be read.
                async with partition.log_lock:
                    with suppress(HeadraceError):
                        await self._calls.run(partial(self._directory.close_log, partition_log))
            if self._partitions.get(key) is partition:
                del self._partitions[key]
                partition.close_table()
                self._mark(*key)

    async def close(self) -> bool:
        """Flush and close every log; return whether all succeeded, so that the stop is clean."""
        self._unsubscribe()
        whole = True
        for partition in self.partitions:
            await partition.prepare_close()
            whole &= await self._close_log(partition)
            whole &= partition.replica.role is not Role.OFFLINE
        return whole

    async def _close_log(self, partition: Partition) -> bool:
        """Close a log; return False if a full disk left work for the next start."""
        partition_log = partition.log
        if partition_log is None:
            return True
        high_watermark = partition.replica.high_watermark
        try:
            await self._calls.run(lambda: self._directory.close_log(partition_log, high_watermark=high_watermark))
        except HeadraceError as error:
            partition.fail_unless_refused(error)
            return False
        return True
