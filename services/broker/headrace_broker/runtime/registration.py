"""Session of a broker: its key in etcd on a lease, registered again when it is lost.

The epoch of a session is the revision of the transaction that created `brokers/{broker_id}`. Silence of etcd does not
end a session; a received time-to-live of 0 or the deletion of the own key does (PROTOCOL, decisions; H76). Owned by the
broker's app, belongs to the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog
from headrace.log.errors import REFUSALS
from headrace.wire.errors import HeadraceError, InvalidConfigError, MetastoreUnavailableError
from headrace_server.clock import Clock
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.keys import Keyspace
from headrace_server.metastore.api import (
    CreateRevisionIs,
    Get,
    KeyValue,
    LeaseNotFoundError,
    LeaseRenewer,
    Metastore,
    MetastoreRolledBackError,
    ModRevisionIs,
    Put,
    VersionIs,
)
from headrace_server.metastore.lease import LeaseKeeper, LeaseState, give_back
from headrace_server.telemetry import LogInterval

log = structlog.get_logger(__name__)

RETRY_SECONDS = 0.5
ID_IN_USE_LEASES = 3
"""Number of lease times after which another process that still holds this broker's id counts as alive."""
WENT_BACK_ACTION = (
    "The data directory is an older copy of itself, as a restored volume is: its replicas copy what they lack before "
    "they count. Where one was the only one, see `headrace partition elect --unclean`."
)


@dataclass(frozen=True, slots=True)
class BrokerSession:
    """Successful registration."""

    broker_epoch: int
    keeper: LeaseKeeper


class Storage(Protocol):
    """Session records of a data directory; see `storage.directory.DataDirectory`."""

    @property
    def storage_id(self) -> bytes:
        """Random id of the directory."""

    @property
    def incarnation(self) -> bytes:
        """Id of the period without a reboot of the machine, up to now; empty if unknown."""

    @property
    def clean_broker_epoch(self) -> int | None:
        """Epoch of the last session if it stopped cleanly, else `None`."""

    @property
    def version(self) -> int:
        """Version of the directory, which only grows."""

    @property
    def announced(self) -> int:
        """etcd's revision of the last version of the directory that etcd is known to have."""

    async def note_session(self, version: int, broker_epoch: int | None = None, announced: int | None = None) -> None:
        """Record the version and the other arguments, synced. Raises HeadraceError."""

    async def become_another(self) -> None:
        """Change to a new random storage id, synced. Raises HeadraceError."""


class Registration:
    """Registration of one broker in consecutive sessions."""

    def __init__(
        self,
        metastore: Metastore,
        keyspace: Keyspace,
        live: metadata_pb2.BrokerLive,
        storage: Storage,
        *,
        lease_ttl_ms: int,
        clock: Clock,
        make_renewer: Callable[[], LeaseRenewer],
        on_lease_change: Callable[[LeaseState], None],
    ) -> None:
        """`live` is the value of the registration; its boot id identifies this process."""
        self._metastore = metastore
        self._keyspace = keyspace
        self._live = live
        self._storage = storage
        self._lease_ttl_ms = lease_ttl_ms
        self._clock = clock
        self._make_renewer = make_renewer
        self._on_lease_change = on_lease_change
        self.session: BrokerSession | None = None
        self._writing = asyncio.Lock()
        self._log_interval = LogInterval(clock.monotonic_ms)
        # Epoch of another broker with this id, and since when this one waits for its end.
        self._other: tuple[int, int] | None = None
        self._written_at = 0  # last known mod_revision of the own key

    async def register(self) -> int:
        """Register, without a time limit, and return the new broker epoch.

        Raises:
            InvalidConfigError: If two brokers have the same id.
            MetastoreRolledBackError: If etcd lacks writes of this directory (I13, H81).
        """
        while True:
            granted_at_ms = self._clock.boottime_ms()
            try:
                lease = await self._metastore.grant_lease(self._lease_ttl_ms)
                broker_epoch = await self._put(lease.lease_id)
            except (MetastoreRolledBackError, asyncio.CancelledError):
                raise
            except (MetastoreUnavailableError, LeaseNotFoundError, *REFUSALS) as error:
                if self._log_interval.is_due():
                    log.warning("registration_delayed", cause=str(error), for_seconds=self._log_interval.for_seconds)
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
            self.session = BrokerSession(broker_epoch, keeper)
            self._written_at = broker_epoch
            self._log_interval.end()
            log.info("registered", broker_epoch=broker_epoch, clean=self._live.clean, resumes=self._live.resumes)
            return broker_epoch

    async def _put(self, lease_id: int) -> int:
        """Retry the transaction until this process owns the key; return the broker epoch."""
        broker_id = self._live.broker_id
        live_key, session_key = self._keyspace.broker(broker_id), self._keyspace.broker_session(broker_id)
        directory_key = self._keyspace.directory(broker_id)
        while True:
            found = (await self._metastore.get(session_key)).key_value
            noted = (await self._metastore.get(directory_key)).key_value
            self._check_history(noted)
            async with self._writing:  # The last version of the previous session may still be being written to disk.
                version = await self._raise_version(noted)
            session = self._describe_past(found)
            result = await self._metastore.txn(
                [
                    VersionIs(live_key, 0),
                    ModRevisionIs(session_key, 0 if found is None else found.mod_revision),
                    ModRevisionIs(directory_key, 0 if noted is None else noted.mod_revision),
                ],
                success=[
                    Put(live_key, self._live.SerializeToString(), lease_id),
                    Put(session_key, session.SerializeToString()),
                    Put(directory_key, self._directory_version(version)),
                ],
                failure=[Get(live_key)],
            )
            if result.succeeded:
                return await self._note_registered(result.revision)
            present = result.responses[0]
            if present and await self._take_over(present[0], found, lease_id):
                return await self._note_registered(present[0].create_revision)
            await self._keep_lease(lease_id)

    async def _raise_version(self, noted: KeyValue | None) -> int:
        """Raise the directory's version above its own and etcd's, before etcd has it; return the version.

        A directory of which etcd has a later version is an older copy: a restored volume, or a clone of one that kept
        serving. It must not count, so it gets a new storage id first (H16, H42).
        """
        known = (
            metadata_pb2.DirectoryVersion() if noted is None else metadata_pb2.DirectoryVersion.FromString(noted.value)
        )
        storage = self._storage
        if known.storage_id == storage.storage_id and storage.version < known.version:
            log.error(
                "directory_went_back",
                version=storage.version, seen_version=known.version, action=WENT_BACK_ACTION,
            )  # fmt: skip
            await storage.become_another()
        version = max(storage.version, known.version) + 1
        await storage.note_session(version)
        return version

    def _directory_version(self, version: int) -> bytes:
        return metadata_pb2.DirectoryVersion(storage_id=self._storage.storage_id, version=version).SerializeToString()

    async def _note_registered(self, broker_epoch: int) -> int:
        """Record a session in the directory, before it serves; return its broker epoch."""
        await self._storage.note_session(self._storage.version, broker_epoch, broker_epoch)
        return broker_epoch

    def _check_history(self, directory_key: KeyValue | None) -> None:
        """Raise if etcd lacks the last version of the directory that it is known to have had.

        Only this broker writes that key, so that in a restored etcd it stays behind, even if the revision has risen.
        """
        revision = 0 if directory_key is None else directory_key.mod_revision
        if revision < self._storage.announced:
            raise MetastoreRolledBackError(
                f"etcd has the version of this data directory of revision {revision}, the directory has "
                f"{self._storage.announced}: etcd was restored from a backup"
            )

    async def announce_version(self) -> bool:
        """Raise the version of the directory, and then that in etcd, after a change; return False if that failed.

        An older copy of the directory, or an older state of etcd, can then be recognized.

        Raises:
            MetastoreRolledBackError: If etcd has an older state.
        """
        async with self._writing:
            session, broker_id = self.session, self._live.broker_id
            if session is None:
                return False
            live_key, directory_key = self._keyspace.broker(broker_id), self._keyspace.directory(broker_id)
            version = self._storage.version + 1
            try:
                await self._storage.note_session(version)
                result = await self._metastore.txn(
                    [
                        CreateRevisionIs(live_key, session.broker_epoch),
                        ModRevisionIs(directory_key, self._storage.announced),
                    ],
                    success=[Put(directory_key, self._directory_version(version))],
                    failure=[Get(directory_key)],
                )
                revision = result.revision
                if not result.succeeded:
                    present = next(iter(result.responses[0]), None)
                    self._check_history(present)
                    revision = 0 if present is None else present.mod_revision  # From an earlier write, applied late.
                await self._storage.note_session(version, announced=revision)
            except MetastoreRolledBackError:
                raise
            except HeadraceError as error:
                log.warning("directory_version_not_advanced", cause=str(error))
                return False
            return result.succeeded

    def _describe_past(self, found: KeyValue | None) -> metadata_pb2.BrokerSession:
        """Set the earlier session that the registration continues, and return the record of this session."""
        live, storage = self._live, self._storage
        live.resumes, live.storage_since, live.clean = 0, 0, False
        session = metadata_pb2.BrokerSession(
            boot_id=live.boot_id, storage_id=storage.storage_id, storage_incarnation=storage.incarnation
        )
        if found is None:
            return session
        before = metadata_pb2.BrokerSession.FromString(found.value)
        if before.storage_id != storage.storage_id:
            return session
        live.storage_since = session.storage_since = before.storage_since or found.mod_revision
        live.clean = self._is_continuous(before, found.mod_revision)
        if not live.clean:
            live.resumes = found.mod_revision
            return session
        live.resumes = session.continuous_since = before.continuous_since or found.mod_revision
        return session

    def _is_continuous(self, before: metadata_pb2.BrokerSession, broker_epoch: int) -> bool:
        """Return whether all data of the previous session is present, also after runs without a session.

        That is so if it was this process's own, stopped cleanly, or the kernel has lost no data since.
        """
        storage = self._storage
        return (
            before.boot_id == self._live.boot_id
            or storage.clean_broker_epoch == broker_epoch
            or (before.storage_incarnation == storage.incarnation != b"")
        )

    async def _take_over(self, present: KeyValue, session: KeyValue | None, lease_id: int) -> bool:
        """Handle an existing registration; return True if it is this process's on this lease, after a lost response.

        One on an earlier lease of this process, or of the previous process of this data directory (dead, because this
        one has the lock), is revoked at once; any other must expire.
        """
        live = metadata_pb2.BrokerLive.FromString(present.value)
        if live.boot_id == self._live.boot_id and present.lease_id == lease_id:
            return True
        stored = None if session is None else metadata_pb2.BrokerSession.FromString(session.value)
        if live.boot_id == self._live.boot_id or (stored is not None and stored.storage_id == self._storage.storage_id):
            await self._metastore.revoke_lease(present.lease_id)
            return False
        self._check_id_is_free(live, present.create_revision)
        await asyncio.sleep(RETRY_SECONDS)
        return False

    def _check_id_is_free(self, live: metadata_pb2.BrokerLive, broker_epoch: int) -> None:
        """Raise once another process has held the id for `ID_IN_USE_LEASES` lease times.

        Raises:
            InvalidConfigError: If two brokers have the same id.
        """
        now_ms = self._clock.monotonic_ms()
        if self._other is None or self._other[0] != broker_epoch:
            self._other = broker_epoch, now_ms
        if now_ms - self._other[1] >= ID_IN_USE_LEASES * self._lease_ttl_ms:
            raise InvalidConfigError(
                f"broker id {live.broker_id} is registered by the broker at {live.address}",
                action="Set another broker_id for this one, or stop the other one.",
            )
        if self._log_interval.is_due():
            log.warning(
                "registration_waits",
                broker_id=live.broker_id, address=live.address, for_seconds=self._log_interval.for_seconds,
            )  # fmt: skip

    async def _keep_lease(self, lease_id: int) -> None:
        if await self._metastore.renew_lease(lease_id) == 0:
            raise LeaseNotFoundError("the lease ended while the registration waited")

    async def announce_draining(self) -> bool:
        """Publish that this broker is stopping; return False if etcd does not respond or the session has ended."""
        self._live.draining = True
        return await self._announce()

    async def announce_suspected(self, broker_ids: Sequence[int]) -> bool:
        """Publish the brokers whose messages are overdue here; return as `announce_draining`."""
        self._live.suspected_brokers[:] = broker_ids
        return await self._announce()

    async def _announce(self) -> bool:
        """Write the current value of the own key over the known version, so that no late write can undo it."""
        async with self._writing:
            session = self.session
            if session is None:
                return False
            live_key = self._keyspace.broker(self._live.broker_id)
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
        """Stop renewals, and with `revoke` end the registration now; best effort."""
        session, self.session = self.session, None
        if session is None:
            return
        await session.keeper.stop()
        if revoke:
            await give_back(self._metastore, session.keeper.lease_id)
