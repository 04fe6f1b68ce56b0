"""Registration of the coordinator: `coordinators/{coordinator_id}` on a lease, renewed after the lease is lost.

The controller's key is on the same lease. Belongs to the event loop; `run` is a task of the app.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog
from headrace.wire.errors import InvalidConfigError, MetastoreUnavailableError
from headrace_server.clock import Clock
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.keys import Keyspace
from headrace_server.metastore.api import (
    LeaseNotFoundError,
    LeaseRenewer,
    Metastore,
    MetastoreRolledBackError,
    ModRevisionIs,
    Put,
)
from headrace_server.metastore.lease import LeaseKeeper, LeaseState, give_back
from headrace_server.telemetry import LogInterval

from headrace_coordinator.metrics import CoordinatorMetrics

log = structlog.get_logger(__name__)

RETRY_SECONDS = 0.5


class CoordinatorSession:
    """Keeps one coordinator registered while `run` runs."""

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
        """`live` is the value of the registration."""
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
        """Lease of the current registration; `0` if there is none."""
        return 0 if self._keeper is None else self._keeper.lease_id

    def subscribe(self, callback: Callable[[], None]) -> None:
        """Call `callback` after every change of `lease_id`."""
        self._callbacks.append(callback)

    async def run(self) -> None:
        """Register, and register again whenever the lease is lost, until cancelled."""
        waiting = LogInterval(self._clock.monotonic_ms)
        while True:
            try:
                await self._register()
            except (MetastoreUnavailableError, LeaseNotFoundError) as error:
                if isinstance(error, MetastoreRolledBackError):
                    raise
                if waiting.is_due():
                    log.warning("registration_delayed", cause=str(error), for_seconds=waiting.for_seconds)
                await asyncio.sleep(RETRY_SECONDS)
                continue
            waiting.end()
            await self._lost.wait()
            log.warning("lease_lost", lease_id=self.lease_id)
            await self._leave()

    async def end(self) -> None:
        """Revoke the lease, so that its keys are deleted at once; best effort."""
        lease_id = self.lease_id
        await self._leave()
        if lease_id:
            await give_back(self._metastore, lease_id)

    async def _register(self) -> None:
        key = self._keyspace.coordinator(self.live.coordinator_id)
        value = self.live.SerializeToString()
        while True:
            base = await self._wait_until_free(key)
            granted_at_ms = self._clock.boottime_ms()
            lease = await self._metastore.grant_lease(self._lease_ttl_ms)
            if (await self._metastore.txn([ModRevisionIs(key, base)], [Put(key, value, lease.lease_id)])).succeeded:
                break
            found = (await self._metastore.get(key)).key_value
            if found is not None and found.lease_id == lease.lease_id:
                break
            await give_back(self._metastore, lease.lease_id)
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

    async def _wait_until_free(self, key: str) -> int:
        """Return the mod_revision of a registration that may be replaced, or `0` if there is none.

        A registration with this process's address belongs to a dead process, because the address could be bound. For
        any other one, wait three times the expiry of a dead process.

        Raises:
            InvalidConfigError: If another process still uses the id.
        """
        waiting = LogInterval(self._clock.monotonic_ms)
        given_up_at_ms = self._clock.monotonic_ms() + 3 * self._lease_ttl_ms
        while True:
            found = (await self._metastore.get(key)).key_value
            if found is None:
                return 0
            other = metadata_pb2.CoordinatorLive.FromString(found.value)
            if other.address == self.live.address:
                return found.mod_revision
            if self._clock.monotonic_ms() >= given_up_at_ms:
                raise InvalidConfigError(
                    f"coordinator id {self.live.coordinator_id} is registered by the process at {other.address}",
                    action="Set another coordinator_id for this one, or stop the other one.",
                )
            if waiting.is_due():
                log.warning(
                    "coordinator_id_in_use",
                    coordinator_id=self.live.coordinator_id,
                    address=other.address,
                    for_seconds=waiting.for_seconds,
                )
            await asyncio.sleep(RETRY_SECONDS)

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
