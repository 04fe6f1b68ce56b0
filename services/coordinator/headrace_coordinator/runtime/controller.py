"""The controller: one coordinator, elected by creating `ctl` on its lease, that keeps partitions led and keys tidy.

Its epoch is the create_revision of `ctl`, compared in every write, so that nothing of a controller succeeds once
another one exists (I14). The loop is level-triggered: it asks `core.control` about the view as it stands and writes the
answers, each by compare-and-swap on the version it was computed from. A change of brokers or topics makes it look at
everything, a change of a partition's key at that partition. A write whose answer was lost is neither done nor failed:
the partition is looked at again after a moment, and the same version is written again, or the view has moved past it
(C2, C3). Belongs to the event loop; `run` is a task of the app.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import structlog
from headrace.wire.errors import MetastoreUnavailableError
from headrace.wire.ids import TopicId
from headrace_server.clock import Clock
from headrace_server.keys import PartitionKey, TopicIdKey
from headrace_server.metadata_view import ClusterView
from headrace_server.metastore.api import (
    Compare,
    CreateRevisionIs,
    LeaseNotFoundError,
    Metastore,
    MetastoreRolledBackError,
    MetastoreUnknownOutcomeError,
    ModRevisionIs,
    Put,
    VersionIs,
)
from headrace_server.partition_state import encode

from headrace_coordinator.core import topic_writes
from headrace_coordinator.core.control import Orphan, PartitionChange, change_partition, find_orphans, ripe_orphans
from headrace_coordinator.core.election import Session
from headrace_coordinator.metrics import CoordinatorMetrics
from headrace_coordinator.runtime.session import CoordinatorSession

log = structlog.get_logger(__name__)

RETRY_SECONDS = 0.3
ORPHAN_ROUNDS = 4
"""Looks for orphans in one grace time."""


class Controller:
    """Takes part in the election and, while elected, does the controller's work."""

    def __init__(
        self,
        metastore: Metastore,
        view: ClusterView,
        session: CoordinatorSession,
        metrics: CoordinatorMetrics,
        clock: Clock,
        *,
        max_inflight: int,
        orphan_grace_ms: int,
    ) -> None:
        self._metastore = metastore
        self._view = view
        self._keyspace = view.keyspace
        self._session = session
        self._metrics = metrics
        self._clock = clock
        self._permits = asyncio.Semaphore(max_inflight)
        self._orphan_grace_ms = orphan_grace_ms
        self._wake = asyncio.Event()
        self._look_at_all = True
        self._look_at: dict[str, tuple[TopicId, int]] = {}
        self._live: dict[int, Session] = {}
        self._written: dict[str, int] = {}
        self._offline: dict[str, None] = {}
        self._orphans_seen: dict[tuple[TopicId, int], int] = {}
        self._orphan_look_ms = 0
        self.epoch = 0
        """The controller epoch while elected; 0: somebody else is, or nobody."""

    async def run(self) -> None:
        """Stand for election and serve, again and again, until cancelled."""
        unsubscribe = self._view.subscribe(self._on_change)
        self._session.subscribe(self._wake.set)
        try:
            while True:
                lease_id, epoch = await self._win()
                await self._serve(lease_id, epoch)
        finally:
            unsubscribe()

    def _on_change(self, revision: int, keys: Sequence[str]) -> None:
        """Note what is to be looked at; offsets and groups change far more often and concern nobody here."""
        start = len(self._keyspace.prefix)
        for key in keys:
            if key.startswith("part/", start):
                parsed = self._keyspace.parse(key)
                if isinstance(parsed, PartitionKey):
                    self._look_at[key] = (parsed.topic_id, parsed.partition)
            elif key.startswith(("live/", "topic/"), start):
                self._look_at_all = True
            elif not key.startswith(("tid/", "ctl"), start):
                continue
            self._wake.set()

    async def _win(self) -> tuple[int, int]:
        """Wait until this coordinator is the controller; its lease and the controller epoch."""
        key = self._keyspace.controller()
        while True:
            self._wake.clear()
            lease_id = self._session.lease_id
            present = self._view.source.get(key)
            if lease_id and present is not None and present.lease_id == lease_id:
                return lease_id, present.create_revision  # An earlier attempt won; its answer was lost.
            if lease_id == 0 or present is not None:
                await self._wake.wait()
                continue
            try:
                result = await self._metastore.txn(
                    [VersionIs(key, 0)],
                    [Put(key, self._session.live.SerializeToString(), lease_id)],
                )
            except LeaseNotFoundError:
                await self._pause()
                continue
            except MetastoreUnavailableError as error:
                if isinstance(error, MetastoreRolledBackError):
                    raise
                log.info("controller_election_delayed", cause=str(error))
                await self._pause()
                continue
            if result.succeeded:
                return lease_id, result.revision
            await self._pause()  # The view is behind: it will show who won.

    async def _serve(self, lease_id: int, epoch: int) -> None:
        """Do the controller's work until the lease or the key is lost."""
        self.epoch = epoch
        self._metrics.is_controller.set(1)
        log.info("controller_elected", controller_epoch=epoch)
        self._look_at_all = True
        self._written.clear()
        self._orphans_seen.clear()
        self._orphan_look_ms = self._clock.monotonic_ms()
        self._wake.set()
        working: dict[str, asyncio.Task[None]] = {}
        try:
            async with asyncio.TaskGroup() as tasks:
                while self._is_elected(lease_id, epoch):
                    await self._wait_for_work()
                    for change in self._changes():
                        key = self._keyspace.partition(change.topic_id, change.partition)
                        if key not in working and self._written.get(key) != change.mod_revision:
                            working[key] = tasks.create_task(self._write_partition(key, change, epoch, working))
                    for orphan in self._ripe_orphans():
                        key = self._keyspace.topic_by_id(orphan.topic_id)
                        if key not in working:
                            working[key] = tasks.create_task(self._clear(key, orphan, epoch, working))
                for task in working.values():
                    task.cancel()
        finally:
            self.epoch = 0
            self._metrics.is_controller.set(0)
            log.info("controller_steps_down", controller_epoch=epoch)

    def _is_elected(self, lease_id: int, epoch: int) -> bool:
        """Whether nothing says otherwise; the compares of each write decide."""
        if self._session.lease_id != lease_id:
            return False
        if self._view.source.revision < epoch:
            return True
        return self._view.controller is not None and self._view.controller.create_revision == epoch

    async def _wait_for_work(self) -> None:
        """Return when something changed, or when it is time to look for orphans."""
        try:
            async with asyncio.timeout(self._orphan_grace_ms / ORPHAN_ROUNDS / 1000):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

    async def _pause(self) -> None:
        await asyncio.sleep(RETRY_SECONDS)

    def _changes(self) -> Iterator[PartitionChange]:
        """Say what the keys of the partitions to be looked at are to become."""
        if self._look_at_all:
            self._look_at_everything()
        looked_at, self._look_at = self._look_at, {}
        for key, (topic_id, number) in looked_at.items():
            topic = self._view.topic_by_id(topic_id)
            partition = self._view.partition(topic_id, number)
            self._offline.pop(key, None)
            if topic is None or partition is None:
                continue
            minimum = min(topic.config.min_insync_replicas, topic.replication_factor)
            after = change_partition(partition.state, self._live, minimum)
            if (after or partition.state).leader is None:
                self._offline[key] = None
            if after is not None:
                yield PartitionChange(topic_id, number, partition.mod_revision, partition.state, after)
        self._metrics.offline_partitions.set(len(self._offline))

    def _look_at_everything(self) -> None:
        """Take the brokers anew and note every partition, by topic name and number."""
        self._look_at_all = False
        self._live = {
            int(broker_id): Session(
                broker.broker_epoch, broker.live.resumes, broker.live.clean, draining=broker.live.draining
            )
            for broker_id, broker in self._view.brokers.items()
        }
        self._offline.clear()
        self._look_at = {
            self._keyspace.partition(topic.topic_id, number): (topic.topic_id, number)
            for _, topic in sorted(self._view.topics.items())
            for number in range(topic.partitions)
        }
        self._metrics.partitions.set(len(self._look_at))

    async def _write_partition(
        self, key: str, change: PartitionChange, epoch: int, working: dict[str, asyncio.Task[None]]
    ) -> None:
        """Write one partition's key once. Whatever comes of it, the view is asked again."""
        compares: list[Compare] = [
            ModRevisionIs(key, change.mod_revision),
            CreateRevisionIs(self._keyspace.controller(), epoch),
            *(
                CreateRevisionIs(self._keyspace.live(entry.broker_id), entry.broker_epoch)
                for entry in change.sessions()
            ),
        ]
        try:
            async with self._permits:
                result = await self._metastore.txn(compares, [Put(key, encode(change.after))])
            if result.succeeded:
                self._written[key] = change.mod_revision
                self._report(change)
            else:
                await self._pause()
        except MetastoreRolledBackError:
            raise
        except MetastoreUnavailableError as error:
            if isinstance(error, MetastoreUnknownOutcomeError):
                self._metrics.unknown_writes.inc()
            log.warning("partition_write_unanswered", key=key, cause=str(error))
            await self._pause()
        finally:
            working.pop(key, None)
            self._look_at[key] = (change.topic_id, change.partition)
            self._wake.set()

    def _report(self, change: PartitionChange) -> None:
        leader = change.after.leader
        bound = log.bind(
            topic_id=change.topic_id.hex(),
            partition=change.partition,
            leader_epoch=change.after.leader_epoch,
            broker_id=-1 if leader is None else leader.broker_id,
        )
        if leader is None:
            bound.warning("partition_without_leader", replicas=change.after.replicas)
        elif change.is_election and change.after.unclean:
            self._metrics.elections.inc()
            self._metrics.unclean_elections.inc()
            bound.warning("sole_replica_elected", reason="its log may lack the end that a crash took")
        elif change.is_election:
            self._metrics.elections.inc()
            bound.info("leader_elected")
        else:
            bound.info("partition_changed", min_insync_replicas=change.after.min_insync_replicas)

    def _ripe_orphans(self) -> list[Orphan]:
        """Look for orphans a few times in each grace time: it reads every key of the view."""
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._orphan_look_ms or self._view.undecodable:
            return []  # A topic that this release cannot read is no orphan.
        self._orphan_look_ms = now_ms + self._orphan_grace_ms // ORPHAN_ROUNDS
        source, keyspace = self._view.source, self._keyspace
        tids: dict[TopicId, int] = {}
        for key_value in source.items(keyspace.topic_by_id_prefix()):
            parsed = keyspace.parse(key_value.key)
            if isinstance(parsed, TopicIdKey):
                tids[parsed.topic_id] = key_value.mod_revision
        parsed_keys = (keyspace.parse(key_value.key) for key_value in source.items(keyspace.partition_prefix()))
        partitions = [(key.topic_id, key.partition) for key in parsed_keys if isinstance(key, PartitionKey)]
        visible = {topic.topic_id: topic.partitions for topic in self._view.topics.values()}
        found = find_orphans(visible, tids, partitions)
        return ripe_orphans(found, self._orphans_seen, now_ms, self._orphan_grace_ms)

    async def _clear(self, key: str, orphan: Orphan, epoch: int, working: dict[str, asyncio.Task[None]]) -> None:
        """Clear away one orphan, comparing what the look saw; what is left the next look finds again."""
        value = self._view.source.get(key) if orphan.visible else None
        assert not orphan.visible or value is not None, "a visible topic has its tid key"
        write = topic_writes.clear_orphan(
            self._keyspace,
            orphan.topic_id,
            orphan.tid_revision,
            None if value is None else value.value,
            orphan.partitions,
        )
        compares = (*write.compares, CreateRevisionIs(self._keyspace.controller(), epoch))
        try:
            async with self._permits:
                result = await self._metastore.txn(compares, write.success)
            if result.succeeded:
                self._metrics.orphans_cleared.inc()
                log.warning("orphan_cleared", topic_id=orphan.topic_id.hex(), partitions=len(orphan.partitions))
        except MetastoreRolledBackError:
            raise
        except MetastoreUnavailableError as error:
            log.warning("orphan_not_cleared", topic_id=orphan.topic_id.hex(), cause=str(error))
        finally:
            working.pop(key, None)
