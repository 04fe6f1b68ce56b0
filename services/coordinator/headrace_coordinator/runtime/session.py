"""The coordinator's registration: `coord/{coordinator_id}` on a lease, made anew when it is lost.

The controller's key hangs on the same lease. Belongs to the event loop; `run` is a task of the app.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog
from headrace.wire.errors import MetastoreUnavailableError
from headrace_server.clock import Clock
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.keys import Keyspace
from headrace_server.metastore.api import (
    LeaseNotFoundError,
    Metastore,
    MetastoreRolledBackError,
    ModRevisionIs,
    Put,
)
from headrace_server.metastore.lease import LeaseKeeper, LeaseRenewer, LeaseState, give_back

from headrace_coordinator.metrics import CoordinatorMetrics

log = structlog.get_logger(__name__)

RETRY_SECONDS = 0.5


class CoordinatorSession:
    """Keeps one coordinator registered for as long as `run` runs."""

    def __init__(
        self,
        metastore: Metastore,
        keyspace: Keyspace,
        live: metadata_pb2.CoordinatorLive,
        metrics: CoordinatorMetrics,
        *,
        lease_ttl_ms: int,
        clock: Clock,
        make_renewer: Callable[[], LeaseRenewer],
    ) -> None:
        """`live` is what is published."""
        self.live = live
        self._metastore = metastore
        self._keyspace = keyspace
        self._metrics = metrics
        self._lease_ttl_ms = lease_ttl_ms
        self._clock = clock
        self._make_renewer = make_renewer
        self._keeper: LeaseKeeper | None = None
        self._lost = asyncio.Event()
        self._callbacks: list[Callable[[], None]] = []

    @property
    def lease_id(self) -> int:
        """The lease of the current registration; 0: there is none."""
        return 0 if self._keeper is None else self._keeper.lease_id

    def subscribe(self, callback: Callable[[], None]) -> None:
        """Call `callback` whenever `lease_id` has changed."""
        self._callbacks.append(callback)

    async def run(self) -> None:
        """Register, and register again whenever the lease is lost, until cancelled."""
        while True:
            try:
                await self._register()
            except (MetastoreUnavailableError, LeaseNotFoundError) as error:
                if isinstance(error, MetastoreRolledBackError):
                    raise
                log.warning("registration_delayed", cause=str(error))
                await asyncio.sleep(RETRY_SECONDS)
                continue
            await self._lost.wait()
            log.warning("lease_lost", lease_id=self.lease_id)
            await self._leave()

    async def end(self) -> None:
        """Give the lease back, so that the keys on it vanish at once; best effort."""
        lease_id = self.lease_id
        await self._leave()
        if lease_id:
            await give_back(self._metastore, lease_id)

    async def _register(self) -> None:
        granted_at_ms = self._clock.boottime_ms()
        lease = await self._metastore.grant_lease(self._lease_ttl_ms)
        key = self._keyspace.coordinator(self.live.coordinator_id)
        value = self.live.SerializeToString()
        while True:
            found = (await self._metastore.get(key)).key_value
            if found is not None and found.lease_id == lease.lease_id:
                break
            compare = ModRevisionIs(key, 0 if found is None else found.mod_revision)
            if (await self._metastore.txn([compare], [Put(key, value, lease.lease_id)])).succeeded:
                break
        self._lost.clear()
        self._keeper = LeaseKeeper(
            self._make_renewer(),
            lease.lease_id,
            lease.ttl_ms,
            granted_at_ms=granted_at_ms,
            on_change=self._on_lease,
            clock=self._clock,
        )
        self._keeper.start()
        self._metrics.registered.set(1)
        log.info("registered", lease_id=lease.lease_id, address=self.live.address)
        self._tell()

    async def _leave(self) -> None:
        keeper, self._keeper = self._keeper, None
        self._metrics.registered.set(0)
        self._tell()
        if keeper is not None:
            await keeper.stop()

    def _on_lease(self, state: LeaseState) -> None:
        log.info("lease_state", state=state.value)
        if state is LeaseState.LOST:
            self._lost.set()

    def _tell(self) -> None:
        for callback in self._callbacks:
            callback()
