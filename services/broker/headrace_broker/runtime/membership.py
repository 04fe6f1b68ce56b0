"""Membership of a broker in the cluster: registration, fencing after a lost lease, hand-over at shutdown.

Owned by the broker's app, belongs to the event loop. `Registration` writes the key; this module informs the replicas
and the readiness probe, and hands leaderships over before the broker stops (KIP-841).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

import structlog
from headrace.log.directory import DataDirectory
from headrace.wire.ids import BrokerId
from headrace_server.health import Health, HealthCause
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.key_table import BrokerKey
from headrace_server.keys import Keyspace
from headrace_server.metadata_view import Broker, ClusterView
from headrace_server.metastore.api import LeaseRenewer, Metastore
from headrace_server.metastore.lease import LeaseState
from headrace_server.partition_state import PartitionState

from headrace_broker.runtime.directory_calls import DirectoryCalls
from headrace_broker.runtime.directory_version import StoredSessions
from headrace_broker.runtime.partition_context import PartitionContext
from headrace_broker.runtime.registration import Registration
from headrace_broker.runtime.replica_manager import ReplicaManager

log = structlog.get_logger(__name__)

DRAIN_POLL_SECONDS = 0.02
LAST_HAND_OVERS_MS = 2_500
"""Maximum wait for successors after the timeout of a stop, without further appends."""


class BrokerMembership:
    """Membership of one broker; see the module."""

    def __init__(
        self,
        metastore: Metastore,
        keyspace: Keyspace,
        live: metadata_pb2.BrokerLive,
        directory: DataDirectory,
        context: PartitionContext,
        *,
        health: Health,
        make_renewer: Callable[[], LeaseRenewer],
    ) -> None:
        """`live` is the value of the registration."""
        self._context = context
        self._health = health
        self.registration = Registration(
            metastore,
            keyspace,
            live,
            StoredSessions(directory, DirectoryCalls(context.executor)),
            lease_ttl_ms=context.settings.lease_ttl_ms,
            clock=context.clock,
            make_renewer=make_renewer,
            on_lease_change=self._on_lease_change,
        )
        self.broker_epoch = 0
        # False from the loss of a session until the next one starts, so that events of the old one are ignored.
        self.registered = False
        self._lease_lost = asyncio.Event()
        health.hold(HealthCause.UNREGISTERED)

    async def start_session(self, replica_manager: ReplicaManager) -> None:
        """Register, and start to lead and follow partitions in the new session."""
        self.broker_epoch = await self.registration.register()
        self.registered = True
        self._context.metrics.registered.set(1)
        replica_manager.start_session(self.broker_epoch)
        self._health.release(HealthCause.UNREGISTERED, HealthCause.REGISTRATION_LOST)

    def _on_lease_change(self, state: LeaseState) -> None:
        """Fence the broker when etcd reports the end of the lease, but not on silence (PROTOCOL, decisions)."""
        log.warning("lease_changed", state=state.value)
        if state is LeaseState.LOST and self.registered:
            self._lease_lost.set()

    def watch_own_key(self, view: ClusterView) -> None:
        """Fence the broker once its key is gone or belongs to another session, even if renewals succeed (H76)."""
        own = BrokerId(self._context.broker_id)

        def look(_revision: int, keys: Sequence[str]) -> None:
            if not any(view.keyspace.parse(key) == BrokerKey(own) for key in keys):
                return
            broker = view.brokers.get(own)
            behind = view.source.revision < self.broker_epoch
            if self.registered and not behind and (broker is None or broker.broker_epoch != self.broker_epoch):
                self._lease_lost.set()

        view.subscribe(look)

    async def run(self, replica_manager: ReplicaManager) -> None:
        """End all leaderships after a lost lease, and register again; the data is complete, as the process ran on."""
        while True:
            await self._lease_lost.wait()
            log.error("registration_lost", broker_epoch=self.broker_epoch)
            self.registered = False
            self._context.metrics.registered.set(0)
            replica_manager.lose_session()
            self._health.hold(HealthCause.REGISTRATION_LOST)
            await self.registration.end(revoke=False)
            self._lease_lost.clear()
            await self.start_session(replica_manager)

    async def give_leaderships_away(self, replica_manager: ReplicaManager) -> bool:
        """Announce the stop, and keep serving until other brokers lead all partitions that they can lead (KIP-841).

        Return False if the timeout passes before.
        """
        clock, timeout_ms = self._context.clock, self._context.settings.drain_timeout_ms
        if not self.registered or not timeout_ms or not self._movable(replica_manager):
            return True
        started_ms = clock.monotonic_ms()
        for partition in replica_manager.partitions:
            partition.replica.stops = True
        if not await self.registration.announce_draining():
            return True
        while left := self._movable(replica_manager):
            if clock.monotonic_ms() - started_ms >= timeout_ms or not self.registered:
                log.warning("leaderships_not_moved", partitions=left, waited_ms=timeout_ms)
                return not self.registered
            await asyncio.sleep(DRAIN_POLL_SECONDS)
        log.info("leaderships_moved", took_ms=clock.monotonic_ms() - started_ms)
        return True

    async def give_the_last_away(self, replica_manager: ReplicaManager) -> None:
        """Wait briefly for lagging successors to reach the log ends, after appends have ended (H24)."""
        clock = self._context.clock
        deadline_ms = clock.monotonic_ms() + LAST_HAND_OVERS_MS
        while left := self._movable(replica_manager):
            if clock.monotonic_ms() >= deadline_ms:
                log.warning("leaderships_not_handed_over", partitions=left, waited_ms=LAST_HAND_OVERS_MS)
                return
            await asyncio.sleep(DRAIN_POLL_SECONDS)

    def _movable(self, replica_manager: ReplicaManager) -> int:
        """Return the number of partitions led here that another replica could lead."""
        leaderships = [partition.replica.leadership for partition in replica_manager.partitions]
        brokers = replica_manager.view.brokers
        return sum(each is not None and may_be_succeeded(each.state, brokers) for each in leaderships)


def may_be_succeeded(state: PartitionState, brokers: Mapping[BrokerId, Broker]) -> bool:
    """Return whether another replica is in sync, or eligible and live.

    An eligible one would be elected after this broker has ended, without records acknowledged only by `acks=1` (H24).
    The broker waits until it is in sync again, to hand over to it.
    """
    return len(state.in_sync) > 1 or any(
        entry.broker_id in brokers and brokers[BrokerId(entry.broker_id)].broker_epoch == entry.broker_epoch
        for entry in state.eligible_leaders
    )
