"""Signing keys and expired grants, which the controller maintains: `run` is a task of the elected controller.

Every write compares the controller's epoch (I14). A write without a response is not repeated: the next look finds out
by the view whether it was applied. Expired grants give no right; they are kept for a day, so that an explanation can
name them. What `bootstrap-admin` and `replace-secret` write, for which there is no call, is noted in the audit log by
the controller that sees it. Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence

import structlog
from headrace.v1 import auth_pb2
from headrace.wire.errors import MetastoreUnavailableError, TimedOutError
from headrace_server.clock import Clock
from headrace_server.identity.identity_view import IdentityView
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.key_table import ClusterSecretsKey, GrantKey
from headrace_server.keys import Keyspace
from headrace_server.metastore.api import (
    Compare,
    CreateRevisionIs,
    Delete,
    Metastore,
    MetastoreRolledBackError,
    ModRevisionIs,
    Operation,
    Put,
    VersionIs,
)
from headrace_server.metastore.view import PrefixView

from headrace_coordinator.core.cluster_secrets import step_of
from headrace_coordinator.core.signing_keys import plan_keys
from headrace_coordinator.runtime.first_administrator import BOOTSTRAP_ADMIN

log = structlog.get_logger(__name__)

INTERVAL_SECONDS = 60.0
RETRY_SECONDS = 0.3
SEE_SECONDS = 5.0
KEPT_GRANT_MS = 86_400_000
MAX_REMOVED = 100
"""Keys that one transaction removes."""
SECRET_BYTES = 32
KEY_ID_BYTES = 4


class IdentityMaintenance:
    """Maintenance by one coordinator while it is the controller."""

    def __init__(
        self,
        metastore: Metastore,
        source: PrefixView,
        view: IdentityView,
        keyspace: Keyspace,
        clock: Clock,
        *,
        clock_doubt: Callable[[], str] = lambda: "",
        note_command: Callable[[str, dict[str, str]], None],
    ) -> None:
        """`clock_doubt` returns why the wall clock cannot be trusted now, or an empty string if it can.
        `note_command` is that of the gate.
        """
        self._metastore = metastore
        self._source = source
        self._view = view
        self._keyspace = keyspace
        self._clock = clock
        self._clock_doubt = clock_doubt
        self._note_command = note_command
        self._changed = asyncio.Event()
        self._pending: metadata_pb2.SigningKey | None = None
        """Key that is being added: the same one until the view shows it, so that retries add one."""

    async def run(self, controller_epoch: int) -> None:
        """Maintain until cancelled."""
        self._pending = None
        unsubscribe = self._source.subscribe(self._on_change)
        try:
            while True:
                self._changed.clear()
                try:
                    await self._look(controller_epoch)
                except MetastoreRolledBackError:
                    raise
                except (MetastoreUnavailableError, TimedOutError) as error:
                    log.warning("identity_maintenance_delayed", cause=str(error))
                    await asyncio.sleep(RETRY_SECONDS)
                    continue
                await self._wait()
        finally:
            unsubscribe()

    def _on_change(self, _revision: int, keys: Sequence[str]) -> None:
        if not self._view.signing_keys:
            self._changed.set()
        for key in keys:
            parsed = self._keyspace.parse(key)
            if isinstance(parsed, GrantKey):
                grant = self._view.grant(parsed.grant_id)
                if grant is not None and grant.granted_by == BOOTSTRAP_ADMIN:
                    self._note_command("BootstrapAdmin", {"user": grant.principal})
            elif isinstance(parsed, ClusterSecretsKey) and self._view.cluster_secrets:
                self._note_command("ReplaceSecret", {"step": step_of(self._view.stored_secrets)})

    async def _wait(self) -> None:
        """Wait for the next look, or until no signing key is left."""
        try:
            async with asyncio.timeout(INTERVAL_SECONDS):
                await self._changed.wait()
        except TimeoutError:
            pass

    async def _look(self, controller_epoch: int) -> None:
        now_ms = self._clock.now_ms()
        if self._pending is not None and self._pending.key_id in self._view.signing_keys:
            self._pending = None
        plan = plan_keys(self._view.signing_keys.values(), now_ms)
        if plan.add:
            self._pending = self._pending or _make_key(now_ms)
            await self._add_key(self._pending, controller_epoch)
        if self._clock_doubt():
            return  # Removals by a wrong clock would end sessions and rights.
        if plan.remove:
            keys = [self._keyspace.signing_key(key_id) for key_id in plan.remove]
            if await self._remove(keys, controller_epoch):
                log.info("signing_keys_removed", key_ids=list(plan.remove))
        expired = [self._key(grant) for grant in self._view.all_grants if _is_over(grant, now_ms)]
        for first in range(0, len(expired), MAX_REMOVED):
            chunk = expired[first : first + MAX_REMOVED]
            if await self._remove(chunk, controller_epoch):
                log.info("expired_grants_removed", count=len(chunk))

    async def _add_key(self, signing_key: metadata_pb2.SigningKey, controller_epoch: int) -> None:
        key = self._keyspace.signing_key(signing_key.key_id)
        if await self._write([VersionIs(key, 0)], [Put(key, signing_key.SerializeToString())], controller_epoch):
            self._pending = None
            log.info("signing_key_added", key_id=signing_key.key_id)

    async def _remove(self, keys: list[str], controller_epoch: int) -> bool:
        """Remove keys that are as the view shows them; return False if one has changed."""
        found = [value for value in map(self._source.get, keys) if value is not None]
        return await self._write(
            [ModRevisionIs(value.key, value.mod_revision) for value in found],
            [Delete(value.key) for value in found],
            controller_epoch,
        )

    async def _write(self, compares: Sequence[Compare], operations: Sequence[Operation], controller_epoch: int) -> bool:
        """Write as the controller of this epoch, and wait until the view shows it."""
        epoch = CreateRevisionIs(self._keyspace.controller(), controller_epoch)
        result = await self._metastore.txn([*compares, epoch], operations)
        if result.succeeded:
            await self._source.wait_for(result.revision, SEE_SECONDS)
        return result.succeeded

    def _key(self, grant: auth_pb2.Grant) -> str:
        return self._keyspace.grant(grant.principal, grant.role, grant.resource)


def _make_key(now_ms: int) -> metadata_pb2.SigningKey:
    return metadata_pb2.SigningKey(
        key_id=secrets.token_hex(KEY_ID_BYTES), secret=secrets.token_bytes(SECRET_BYTES), created_ms=now_ms
    )


def _is_over(grant: auth_pb2.Grant, now_ms: int) -> bool:
    return bool(grant.expires_ms) and now_ms >= grant.expires_ms + KEPT_GRANT_MS
