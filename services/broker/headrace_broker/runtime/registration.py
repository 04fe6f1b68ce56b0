"""The broker's session: its key in etcd on a lease, made anew when it is lost.

The epoch of a session is the revision of the transaction that made `live/{broker_id}`. Silence of etcd does not end a
session; a received time-to-live of 0 or the own key deleted does (PROTOCOL, decisions; H76). Owned by the broker's app,
belongs to the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog
from headrace.wire.errors import MetastoreUnavailableError
from headrace_server.clock import Clock
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.keys import Keyspace
from headrace_server.metastore.api import (
    CreateRevisionIs,
    Get,
    KeyValue,
    LeaseNotFoundError,
    Metastore,
    MetastoreRolledBackError,
    ModRevisionIs,
    Put,
    VersionIs,
)
from headrace_server.metastore.lease import LeaseKeeper, LeaseRenewer, LeaseState, give_back

log = structlog.get_logger(__name__)

RETRY_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Session:
    """A registration that was made."""

    broker_epoch: int
    keeper: LeaseKeeper


@dataclass(frozen=True, slots=True)
class StorageRecord:
    """What a data directory says of its past; see `storage.directory.DataDirectory`."""

    storage_id: bytes
    era: bytes
    clean_broker_epoch: int | None


class Registration:
    """Makes sessions, one after the other."""

    def __init__(
        self,
        metastore: Metastore,
        keyspace: Keyspace,
        live: metadata_pb2.BrokerLive,
        storage: StorageRecord,
        *,
        lease_ttl_ms: int,
        clock: Clock,
        make_renewer: Callable[[], LeaseRenewer],
        on_lease_change: Callable[[LeaseState], None],
    ) -> None:
        """`live` is what is published; its boot id names this process."""
        self._metastore = metastore
        self._keyspace = keyspace
        self._live = live
        self._storage = storage
        self._lease_ttl_ms = lease_ttl_ms
        self._clock = clock
        self._make_renewer = make_renewer
        self._on_lease_change = on_lease_change
        self.session: Session | None = None
        self._writing = asyncio.Lock()
        self._written_at = 0  # mod_revision of the own key, as far as is known

    async def register(self) -> int:
        """Register, waiting as long as it takes, and return the new broker epoch."""
        while True:
            granted_at_ms = self._clock.boottime_ms()
            try:
                lease = await self._metastore.grant_lease(self._lease_ttl_ms)
                broker_epoch = await self._put(lease.lease_id)
            except (MetastoreRolledBackError, asyncio.CancelledError):
                raise
            except (MetastoreUnavailableError, LeaseNotFoundError) as error:
                log.warning("registration_delayed", cause=str(error))
                await asyncio.sleep(RETRY_SECONDS)
                continue
            keeper = LeaseKeeper(
                self._make_renewer(),
                lease.lease_id,
                lease.ttl_ms,
                granted_at_ms=granted_at_ms,
                on_change=self._on_lease_change,
                clock=self._clock,
            )
            keeper.start()
            self.session = Session(broker_epoch, keeper)
            self._written_at = broker_epoch
            log.info("registered", broker_epoch=broker_epoch, clean=self._live.clean, resumes=self._live.resumes)
            return broker_epoch

    async def _put(self, lease_id: int) -> int:
        """Try the transaction until the key is ours; the broker epoch."""
        broker_id = self._live.broker_id
        live_key, session_key = self._keyspace.live(broker_id), self._keyspace.session(broker_id)
        while True:
            found = (await self._metastore.get(session_key)).key_value
            session = self._describe_past(found)
            result = await self._metastore.txn(
                [VersionIs(live_key, 0), ModRevisionIs(session_key, 0 if found is None else found.mod_revision)],
                success=[
                    Put(live_key, self._live.SerializeToString(), lease_id),
                    Put(session_key, session.SerializeToString()),
                ],
                failure=[Get(live_key)],
            )
            if result.succeeded:
                return result.revision
            present = result.responses[0]
            if present and await self._take_over(present[0], found, lease_id):
                return present[0].create_revision
            await self._keep_lease(lease_id)

    def _describe_past(self, found: KeyValue | None) -> metadata_pb2.BrokerSession:
        """Say in the registration what this session continues of the ones before, and give the session's own record."""
        live, storage = self._live, self._storage
        live.resumes, live.storage_since, live.clean = 0, 0, False
        session = metadata_pb2.BrokerSession(
            boot_id=live.boot_id, storage_id=storage.storage_id, storage_era=storage.era
        )
        if found is None:
            return session
        before = metadata_pb2.BrokerSession.FromString(found.value)
        if before.storage_id != storage.storage_id:
            return session
        live.storage_since = session.storage_since = before.storage_since or found.mod_revision
        live.clean = self._is_unbroken(before, found.mod_revision)
        if not live.clean:
            live.resumes = found.mod_revision
            return session
        live.resumes = session.unbroken_since = before.unbroken_since or found.mod_revision
        return session

    def _is_unbroken(self, before: metadata_pb2.BrokerSession, broker_epoch: int) -> bool:
        """Whether all that the session before had written is there, whatever lives without a session came between.

        It was this process's own, or it stopped in order, or nothing of what the kernel held was lost since.
        """
        storage = self._storage
        return (
            before.boot_id == self._live.boot_id
            or storage.clean_broker_epoch == broker_epoch
            or (before.storage_era == storage.era != b"")
        )

    async def _take_over(self, present: KeyValue, session: KeyValue | None, lease_id: int) -> bool:
        """Deal with a registration that is there: True where it is ours, on this lease, after a lost answer.

        One of an earlier lease of ours, or of the process that had this data directory before (whose lock we hold, so
        it is dead), is ended at once; any other is waited for.
        """
        live = metadata_pb2.BrokerLive.FromString(present.value)
        if live.boot_id == self._live.boot_id and present.lease_id == lease_id:
            return True
        stored = None if session is None else metadata_pb2.BrokerSession.FromString(session.value)
        if live.boot_id == self._live.boot_id or (stored is not None and stored.storage_id == self._storage.storage_id):
            await self._metastore.revoke_lease(present.lease_id)
            return False
        log.warning("registration_waits", broker_id=live.broker_id, address=live.address)
        await asyncio.sleep(RETRY_SECONDS)
        return False

    async def _keep_lease(self, lease_id: int) -> None:
        if await self._metastore.renew_lease(lease_id) == 0:
            raise LeaseNotFoundError("the lease ended while the registration waited")

    async def announce_draining(self) -> bool:
        """Tell the cluster that this broker stops; False where etcd does not answer or the session is over."""
        self._live.draining = True
        return await self._announce()

    async def announce_suspected(self, broker_ids: Sequence[int]) -> bool:
        """Tell the cluster whose messages are overdue here; False as for `announce_draining`."""
        self._live.suspected_brokers[:] = broker_ids
        return await self._announce()

    async def _announce(self) -> bool:
        """Write the own key as it is to be, over the version known: a late write of an earlier one cannot undo it."""
        async with self._writing:
            session = self.session
            if session is None:
                return False
            live_key = self._keyspace.live(self._live.broker_id)
            try:
                while True:
                    result = await self._metastore.txn(
                        [CreateRevisionIs(live_key, session.broker_epoch), ModRevisionIs(live_key, self._written_at)],
                        success=[Put(live_key, self._live.SerializeToString(), session.keeper.lease_id)],
                        failure=[Get(live_key)],
                    )
                    if result.succeeded:
                        self._written_at = result.revision
                        return True
                    present = result.responses[0]
                    if not present or present[0].create_revision != session.broker_epoch:
                        return False
                    self._written_at = present[0].mod_revision
            except (MetastoreUnavailableError, LeaseNotFoundError) as error:
                log.warning("registration_not_changed", cause=str(error))
                return False

    async def end(self, *, revoke: bool) -> None:
        """Stop renewing; `revoke`: let the registration go now, best effort."""
        session, self.session = self.session, None
        if session is None:
            return
        await session.keeper.stop()
        if revoke:
            await give_back(self._metastore, session.keeper.lease_id)
