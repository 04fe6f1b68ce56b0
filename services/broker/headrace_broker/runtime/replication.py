"""Replication of a broker: streams to its leaders, streams of its followers, in-sync sets.

Implements `PartitionHost`. Owned by the broker's app, belongs to the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import structlog
from headrace.wire.errors import (
    FencedBrokerError,
    InvalidRequestError,
    NotAuthorizedError,
    Outcome,
)
from headrace.wire.ids import BrokerId, Offset
from headrace.wire.releases import REPLICA_NEEDS
from headrace_server.cluster_identity import ClusterIdentity
from headrace_server.cluster_secret import is_proven, prove
from headrace_server.handshakes import check_handshake, own_handshake
from headrace_server.internal_v1 import replication_pb2
from headrace_server.metadata_view import ClusterView
from headrace_server.metastore.api import Metastore
from headrace_server.partition_state import Replica
from headrace_server.rpc import LIGHT_ITEMS_PER_TURN, let_others_run
from headrace_server.tls import TlsIdentity

from headrace_broker.core.messages import Propose, Ticked
from headrace_broker.core.roles import Role
from headrace_broker.runtime.failure_detector import PeerFailureDetector
from headrace_broker.runtime.follower_fetch_session import FollowerFetchSession, PartitionId
from headrace_broker.runtime.follower_lags import FollowerLags
from headrace_broker.runtime.isr_updater import IsrUpdater
from headrace_broker.runtime.partition import Partition
from headrace_broker.runtime.partition_context import PartitionContext
from headrace_broker.runtime.replica_fetcher import ReplicaFetcher
from headrace_broker.runtime.uninterrupted import spawn_unless_ending

log = structlog.get_logger(__name__)

TICK_SECONDS = 0.5
LAG_TICKS = 4
"""Number of ticks between reports of the followers' lag."""


class Replication:
    """Replication of one broker; see the module and `PartitionHost`."""

    def __init__(
        self,
        view: ClusterView,
        metastore: Metastore,
        context: PartitionContext,
        failure_detector: PeerFailureDetector,
        tasks: asyncio.TaskGroup,
        tls: TlsIdentity | None,
        secrets: Callable[[], tuple[bytes, ...]],
    ) -> None:
        """`tls` is the client identity towards leaders; `None` means plain text. `secrets` returns those of the cluster
        that are accepted; this broker proves by the first one.
        """
        self._view = view
        self._context = context
        self._failure_detector = failure_detector
        self._tasks = tasks
        self._tls = tls
        self._secrets = secrets
        self._proven_by: dict[FollowerFetchSession, bytes] = {}
        self.isr_updater = IsrUpdater(metastore, view.keyspace, context.broker_id, context.metrics)
        self._fetchers: dict[int, tuple[ReplicaFetcher, asyncio.Task[None]]] = {}
        self._followed: dict[PartitionId, int] = {}  # leader broker of each followed partition
        self._streams: dict[int, FollowerFetchSession] = {}  # of followers, by broker id
        self._on_left: Callable[[Partition, int], None] = lambda partition, revision: None
        self._closed = False
        self.broker_epoch: int | None = None

    def on_left(self, callback: Callable[[Partition, int], None]) -> None:
        """Call `callback` with the result of `IsrUpdater.leave` after a failed replica was removed from its key."""
        self._on_left = callback

    # --- PartitionHost ---

    def start_epoch(self, partition: Partition, leader_epoch: int) -> None:
        """See `PartitionHost`."""
        self._spawn(partition.persist_epoch(leader_epoch))

    def raise_log_start(self, partition: Partition, offset: Offset) -> None:
        """See `PartitionHost`."""
        self._spawn(partition.log_start.raise_to(offset))

    def follow(self, partition: Partition, leader: Replica) -> None:
        """See `PartitionHost`."""
        if self._closed:
            return  # Nothing would stop the fetcher if a leader is elected during the shutdown.
        key = (partition.topic_id, partition.number)
        if self._followed.get(key, leader.broker_id) != leader.broker_id:
            self.unfollow(partition)
        self._followed[key] = leader.broker_id
        if leader.broker_id not in self._fetchers:
            on_heartbeat = partial(self._on_heartbeat, leader.broker_id)
            fetcher = ReplicaFetcher(
                leader.broker_id, self._view, partial(self._identify, leader.broker_id), on_heartbeat, self._tls
            )
            self._fetchers[leader.broker_id] = fetcher, self._tasks.create_task(fetcher.run())
        self._fetchers[leader.broker_id][0].add(partition)
        self._context.metrics.follower_partitions.set(len(self._followed))

    def unfollow(self, partition: Partition) -> None:
        """See `PartitionHost`."""
        leader_id = self._followed.pop((partition.topic_id, partition.number), None)
        if leader_id is not None:
            fetcher, task = self._fetchers[leader_id]
            fetcher.remove(partition)
            if not fetcher.partitions:
                del self._fetchers[leader_id]
                task.cancel()
        self._context.metrics.follower_partitions.set(len(self._followed))

    def fetch(self, partition: Partition) -> None:
        """See `PartitionHost`."""
        leader_id = self._followed.get((partition.topic_id, partition.number))
        if leader_id is not None:
            self._fetchers[leader_id][0].fetch(partition)

    def propose(self, partition: Partition, proposal: Propose) -> None:
        """See `PartitionHost`."""
        self._spawn(self.isr_updater.write(partition, proposal))

    def leave_in_sync(self, partition: Partition, *, corrupt: bool) -> None:
        """See `PartitionHost`."""
        self._spawn(self._leave(partition, corrupt))

    async def _leave(self, partition: Partition, corrupt: bool) -> None:
        self._on_left(partition, await self.isr_updater.leave(partition.topic_id, partition.number, corrupt=corrupt))

    def _on_heartbeat(self, leader_id: int) -> None:
        self._failure_detector.on_heartbeat(leader_id, self._context.clock.monotonic_ms())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        spawn_unless_ending(self._tasks, work)

    def _identify(self, leader_id: int, challenge: bytes) -> replication_pb2.FollowerIdentity | None:
        """Return this broker's identity and proof for a leader, or `None` without a session."""
        if self.broker_epoch is None:
            return None
        own = Replica(self._context.broker_id, self.broker_epoch)
        return replication_pb2.FollowerIdentity(
            cluster_id=self._view.identity.cluster_id,
            generation=self._view.keyspace.generation,
            broker_id=self._context.broker_id,
            broker_epoch=self.broker_epoch,
            handshake=own_handshake(),
            proof=prove(self._identity_with(self._secrets()[0]), own, leader_id, challenge),
        )

    def _identity_with(self, secret: bytes) -> ClusterIdentity:
        return replace(self._view.identity, secret=secret)

    # --- followers ---

    def open_stream(
        self,
        identity: replication_pb2.FollowerIdentity,
        challenge: bytes,
        find: Callable[[PartitionId], Partition | None],
    ) -> FollowerFetchSession:
        """Authenticate a follower and open its stream; an older stream of the same broker ends.

        Raises:
            InvalidRequestError: If it is of another cluster or generation, or this broker itself.
            NotAuthorizedError: If its answer to `challenge` was not computed with the cluster's secret.
            FencedBrokerError: If it is not registered in this session; retriable if this broker's view may be stale.
            UnsupportedVersionError: If its release is incompatible.
        """
        if (identity.cluster_id, identity.generation) != (
            self._view.identity.cluster_id,
            self._view.keyspace.generation,
        ):
            raise InvalidRequestError(
                f"broker {identity.broker_id} is of cluster {identity.cluster_id!r}, generation {identity.generation}",
                action="Start it with the etcd endpoints and the cluster name of its own cluster.",
            )
        check_handshake(f"broker {identity.broker_id}, which follows here,", identity.handshake, REPLICA_NEEDS)
        if identity.broker_id == self._context.broker_id:
            raise InvalidRequestError(f"broker {identity.broker_id} is this broker: two share an id or an address")
        follower = Replica(identity.broker_id, identity.broker_epoch)
        me = self._context.broker_id
        proven_by = (
            secret
            for secret in self._secrets()
            if is_proven(self._identity_with(secret), follower, me, challenge, identity.proof)
        )
        secret = next(proven_by, None)
        if secret is None:
            raise NotAuthorizedError(
                f"the caller did not prove that it is broker {identity.broker_id} of this cluster",
                action="Allow only brokers of this cluster to connect to its internal listener.",
            )
        registered = self._view.brokers.get(BrokerId(identity.broker_id))
        if registered is None or registered.broker_epoch != identity.broker_epoch:
            known = "none" if registered is None else str(registered.broker_epoch)
            raise FencedBrokerError(
                f"broker {identity.broker_id} calls in session {identity.broker_epoch}; registered is {known}",
                outcome=Outcome.NOT_APPLIED,
            )
        before = self._streams.get(identity.broker_id)
        if before is not None:
            before.close()
        stream = self._streams[identity.broker_id] = FollowerFetchSession(
            follower, find, self._may_join, self._failure_detector.on_heartbeat, self._context
        )
        self._proven_by[stream] = secret
        self._context.metrics.connected_followers.set(len(self._streams))
        return stream

    def close_stream(self, stream: FollowerFetchSession) -> None:
        """Close a stream of `open_stream`."""
        stream.close()
        self._proven_by.pop(stream, None)
        if self._streams.get(stream.follower.broker_id) is stream:
            del self._streams[stream.follower.broker_id]
        self._context.metrics.connected_followers.set(len(self._streams))

    def _may_join(self, replica: Replica) -> bool:
        """Return whether the view shows `replica` as registered and not stopping; the write compares it again."""
        broker = self._view.brokers.get(BrokerId(replica.broker_id))
        return broker is not None and broker.broker_epoch == replica.broker_epoch and not broker.live.draining

    def close_unproven(self) -> None:
        """Close the streams that followers have opened by a secret that is no longer accepted; they open new ones."""
        accepted = self._secrets()
        for stream in [stream for stream, secret in self._proven_by.items() if secret not in accepted]:
            self.close_stream(stream)

    async def tick(self, partitions: Callable[[], list[Partition]]) -> None:
        """Remove followers that fall behind from the in-sync sets, until cancelled."""
        clock, metrics = self._context.clock, self._context.metrics
        ticks = 0
        told: tuple[int, ...] = ()
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self.close_unproven()
            ticked = Ticked(
                clock.monotonic_ms(),
                {stream.follower: stream.heard_ms for stream in self._streams.values()},
                {
                    Replica(broker_id, broker.broker_epoch)
                    for broker_id, broker in self._view.brokers.items()
                    if not broker.live.draining
                },
            )
            under_replicated = under_minimum = 0
            ticks += 1
            lags = FollowerLags(self._view.brokers, clock.monotonic_ms()) if ticks % LAG_TICKS == 0 else None
            replica_sets: dict[tuple[int, ...], None] = {}
            handled = 0
            for partition in partitions():
                state = partition.replica.state
                if partition.replica.role is not Role.LEADING or state is None:
                    continue
                replica_sets[state.replicas] = None
                if is_due := len(state.replicas) > 1 or state.durable != partition.replica.flushes:
                    partition.handle(ticked)
                under_replicated += len(state.in_sync) < len(state.replicas) - len(state.adding)
                under_minimum += len(state.in_sync) < state.min_insync_replicas
                if lags is not None:
                    lags.look_at(partition)
                if is_due:
                    await let_others_run(handled, LIGHT_ITEMS_PER_TURN)
                    handled += 1
            registered = self._view.brokers
            me = self._context.broker_id
            peers = dict.fromkeys((*self._fetchers, *chain.from_iterable(replica_sets)))
            self._failure_detector.tick(
                clock.monotonic_ms(), {peer: None for peer in peers if peer != me and BrokerId(peer) in registered}
            )
            metrics.under_replicated.set(under_replicated)
            metrics.under_min_insync.set(under_minimum)
            if lags is not None:
                told = lags.tell(metrics, told)

    def close(self) -> None:
        """Close all streams at shutdown; no new ones are opened."""
        self._closed = True
        for _, task in self._fetchers.values():
            task.cancel()
        self._fetchers.clear()
        self._followed.clear()
        for stream in list(self._streams.values()):
            stream.close()
