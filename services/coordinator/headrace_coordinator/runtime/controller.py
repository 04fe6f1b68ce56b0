"""Controller: the coordinator that elects leaders and cleans up keys. It is elected by creating `controller`.

Its epoch is the create_revision of `controller`, which is on its lease and compared in every write, so that no write of
a controller succeeds once another one exists (I14). The loop is level-triggered: it passes the current view to
`core.control` and writes the results, each by compare-and-swap on the version it was computed from, up to
`max_inflight` at once. After a write without a response the partition is examined again a moment later: either the
same version is written again, or the view has moved past it (C2, C3). Belongs to the event loop; `run` is a task of
the app.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import structlog
from headrace.wire.errors import MetastoreUnavailableError
from headrace_server.clock import Clock
from headrace_server.key_table import BrokerKey, ControllerKey, DrainedBrokerKey, TopicIdKey, TopicKey
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
from headrace_server.rpc import let_others_run

from headrace_coordinator.core.control import PlannedChange, Step
from headrace_coordinator.core.orphans import Orphan
from headrace_coordinator.metrics import CoordinatorMetrics
from headrace_coordinator.runtime.broker_filler import BrokerFiller
from headrace_coordinator.runtime.deleted_topics import DeletedTopics
from headrace_coordinator.runtime.identity_maintenance import IdentityMaintenance
from headrace_coordinator.runtime.orphan_cleaner import OrphanCleaner
from headrace_coordinator.runtime.partition_reconciler import PartitionReconciler
from headrace_coordinator.runtime.session import CoordinatorSession
from headrace_coordinator.runtime.waiting import wait_until

log = structlog.get_logger(__name__)

RETRY_SECONDS = 0.3


class Controller:
    """Candidate in the election of the controller, which reconciles the cluster while elected."""

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
        deleted_topics_retention_ms: int,
        leader_rebalance_interval_ms: int,
        fill_bytes_per_second: int = 0,
        identity: IdentityMaintenance | None = None,
    ) -> None:
        """`identity` is maintained while elected; `None` in a simulation without users."""
        self._metastore = metastore
        self._view = view
        self._keyspace = view.keyspace
        self._session = session
        self._metrics = metrics
        self._clock = clock
        self._permits = asyncio.Semaphore(max_inflight)
        self._partitions = PartitionReconciler(view, metrics)
        self._orphans = OrphanCleaner(metastore, view, metrics, clock, grace_ms=orphan_grace_ms)
        self._deleted = DeletedTopics(metastore, view, clock, retention_ms=deleted_topics_retention_ms)
        self._rebalance_interval_ms = leader_rebalance_interval_ms
        self._filler = BrokerFiller(view, clock, bytes_per_second=fill_bytes_per_second)
        self._identity = identity
        self._rebalance_ms = 0
        self._wake = asyncio.Event()
        self.epoch = 0
        """Controller epoch while elected; `0` while not elected."""

    async def run(self) -> None:
        """Take part in elections, and serve while elected, until cancelled."""
        unsubscribe = self._view.subscribe(self._on_change)
        self._session.subscribe(self._wake.set)
        try:
            while True:
                lease_id, epoch = await self._win()
                await self._serve(lease_id, epoch)
        finally:
            unsubscribe()

    def _on_change(self, revision: int, keys: Sequence[str]) -> None:
        """Wake the loop for relevant keys; offsets and groups change far more often and are ignored."""
        if self._keyspace.has_any(keys, BrokerKey, DrainedBrokerKey, TopicKey):
            self._filler.note_brokers()
        if self._partitions.note(keys) or self._keyspace.has_any(keys, TopicIdKey, ControllerKey):
            self._wake.set()

    async def _win(self) -> tuple[int, int]:
        """Wait until this coordinator is the controller; return its lease and the controller epoch."""
        key = self._keyspace.controller()
        while True:
            self._wake.clear()
            lease_id = self._session.lease_id
            present = self._view.source.get(key)
            if lease_id and present is not None and present.lease_id == lease_id:
                return lease_id, present.create_revision  # An earlier attempt won; its response was lost.
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
            await self._pause()  # The view is stale and will show the winner.

    async def _serve(self, lease_id: int, epoch: int) -> None:
        """Reconcile the cluster until the lease or the key is lost."""
        self.epoch = epoch
        self._metrics.is_controller.set(1)
        log.info("controller_elected", controller_epoch=epoch)
        self._partitions.begin()
        self._orphans.begin()
        self._rebalance_ms = self._clock.monotonic_ms() + self._rebalance_interval_ms
        self._wake.set()
        working: dict[str, asyncio.Task[None]] = {}
        try:
            async with asyncio.TaskGroup() as tasks:
                if self._identity is not None:
                    working["identity"] = tasks.create_task(self._identity.run(epoch))
                while self._is_elected(lease_id, epoch):
                    await self._wait_for_work()
                    changes = await self._partitions.changes()
                    for index, (key, change) in enumerate([*changes, *self._filler.changes()]):
                        await let_others_run(index)
                        if key not in working:
                            working[key] = tasks.create_task(self._write_partition(key, change, epoch, working))
                    for key, orphan in (await self._orphans.ripe()).items():
                        if key not in working:
                            working[key] = tasks.create_task(self._clear(key, orphan, epoch, working))
                    forgotten = self._keyspace.deleted_topic_prefix()
                    if forgotten not in working and (expired := self._deleted.expired()):
                        working[forgotten] = tasks.create_task(self._forget(forgotten, expired, epoch, working))
                for task in working.values():
                    task.cancel()
        finally:
            self.epoch = 0
            self._metrics.is_controller.set(0)
            self._partitions.end()
            log.info("controller_steps_down", controller_epoch=epoch)

    def _is_elected(self, lease_id: int, epoch: int) -> bool:
        """Return whether the lease and the view still agree; the compares of each write are decisive."""
        if self._session.lease_id != lease_id:
            return False
        if self._view.source.revision < epoch:
            return True
        return self._view.controller is not None and self._view.controller.create_revision == epoch

    async def _wait_for_work(self) -> None:
        """Wait for a change, or until the next search for orphans or moves, or rebalance of leaders is due."""
        wait_ms = self._orphans.interval_ms
        if (fill_ms := self._filler.wait_ms()) is not None:
            wait_ms = min(wait_ms, fill_ms)
        if self._rebalance_interval_ms:
            wait_ms = min(wait_ms, max(0, self._rebalance_ms - self._clock.monotonic_ms()))
        try:
            async with asyncio.timeout(wait_ms / 1000):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()
        if self._rebalance_interval_ms and self._clock.monotonic_ms() >= self._rebalance_ms:
            self._rebalance_ms = self._clock.monotonic_ms() + self._rebalance_interval_ms
            self._partitions.note_rebalance()

    async def _pause(self) -> None:
        await asyncio.sleep(RETRY_SECONDS)

    async def _write_partition(
        self, key: str, change: PlannedChange, epoch: int, working: dict[str, asyncio.Task[None]]
    ) -> None:
        """Write one partition's key once; the partition is then examined again, whatever the outcome."""
        compares: list[Compare] = [
            ModRevisionIs(key, change.mod_revision),
            CreateRevisionIs(self._keyspace.controller(), epoch),
            *(
                CreateRevisionIs(self._keyspace.broker(entry.broker_id), entry.broker_epoch)
                for entry in change.sessions()
            ),
        ]
        written = False
        try:
            async with self._permits:
                result = await self._metastore.txn(compares, [Put(key, encode(change.after))])
            written = result.succeeded
            if written:
                self._report(change)
            else:
                await self._see(result.revision)
        except MetastoreRolledBackError:
            raise
        except MetastoreUnavailableError as error:
            if isinstance(error, MetastoreUnknownOutcomeError):
                self._metrics.ambiguous_writes.inc()
            log.warning("partition_write_unanswered", key=key, cause=str(error))
            await self._pause()
        finally:
            working.pop(key, None)
            self._partitions.note_again(change, written=written)
            self._wake.set()

    async def _clear(self, key: str, orphan: Orphan, epoch: int, working: dict[str, asyncio.Task[None]]) -> None:
        """Try once to remove one orphan."""
        try:
            async with self._permits:
                await self._orphans.clear(orphan, epoch)
        except MetastoreRolledBackError:
            raise
        except MetastoreUnavailableError as error:
            log.warning("orphan_not_cleared", key=key, cause=str(error))
        finally:
            working.pop(key, None)

    async def _forget(
        self, key: str, expired: Mapping[bytes, int], epoch: int, working: dict[str, asyncio.Task[None]]
    ) -> None:
        """Try once to remove the keys of deleted topics; `key` identifies the work."""
        try:
            async with self._permits:
                await self._deleted.remove(expired, epoch)
        except MetastoreRolledBackError:
            raise
        except MetastoreUnavailableError as error:
            log.warning("deleted_topics_not_forgotten", cause=str(error))
        finally:
            working.pop(key, None)

    async def _see(self, revision: int) -> None:
        """Wait until the view has reached `revision`, at most `RETRY_SECONDS`."""
        deadline = asyncio.get_running_loop().time() + RETRY_SECONDS
        await wait_until(self._view, lambda: self._view.source.revision >= revision, deadline)

    def _report(self, change: PlannedChange) -> None:
        before, after = change.before, change.after
        bound = log.bind(
            topic_id=change.topic_id.hex(),
            partition=change.partition,
            leader_epoch=after.leader_epoch,
            broker_id=after.leader_id,
        )
        self._metrics.partition_changes.labels(change.step.value).inc()
        match change.step:
            case Step.ELECT if after.leader is None:
                bound.warning("partition_without_leader", replicas=after.replicas)
            case Step.ELECT:
                self._metrics.elections.inc()
                if after.unclean:
                    self._metrics.unclean_elections.inc()
                    bound.warning("sole_replica_elected", reason="its log may lack records that a crash lost")
                else:
                    bound.info("leader_elected")
            case Step.RELIEVE | Step.PREFER:
                self._metrics.leadership_moves.inc()
                bound.info("hand_over_asked", step=change.step.value, to=[e.broker_id for e in after.successors])
            case Step.SWEEP | Step.LEAVE:
                if len(after.in_sync) < len(before.in_sync):
                    self._metrics.in_sync_shrinks.inc()
                bound.info("in_sync_changed", step=change.step.value, in_sync=[e.broker_id for e in after.in_sync])
            case Step.FILL:
                bound.info("move_started", replicas=after.replicas, added=after.adding, removed=after.removing)
            case Step.FINISH_MOVE:
                bound.info("move_finished", replicas=after.replicas, removed=before.removing)
            case Step.CONFIGURE:
                bound.info("partition_configured", min_insync_replicas=after.min_insync_replicas)
