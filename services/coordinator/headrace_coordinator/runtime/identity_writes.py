"""Compare-and-swap of single values about identity, and the compares by which an administrator remains.

Used by `identity_store` and `identity_policies`. A value is read from etcd and rewritten if it has not changed
meanwhile; a lost response is resolved by reading again (PROTOCOL C2, C3). Belongs to the event loop; deadlines are in
loop time, seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from google.protobuf.message import Message
from headrace.v1 import auth_pb2
from headrace.wire.errors import ConflictError, Outcome
from headrace_server.clock import Clock
from headrace_server.identity.identity_view import IdentityView
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.keys import Keyspace
from headrace_server.metastore.api import Compare, Delete, ModRevisionIs, Operation, Put
from headrace_server.metastore.view import PrefixView

from headrace_coordinator.core.administrators import Administrator, GrantName, Removal, administrators
from headrace_coordinator.core.topic_writes import Write
from headrace_coordinator.runtime.ambiguous_writes import AmbiguousWriteResolver, WriteTracker

MAX_REMOVED_GRANTS = 100
"""Grants that one transaction removes, with a compare each."""

ValueT = TypeVar("ValueT", bound=Message)


@dataclass(frozen=True, slots=True)
class Change(Generic[ValueT]):
    """New value of a key, with what else belongs to the transaction."""

    value: ValueT | None
    """`None` deletes the key."""
    removal: Removal | None = None
    """What the change may take from an administrator."""
    compares: tuple[Compare, ...] = ()
    also: tuple[Operation, ...] = ()


class IdentityWrites:
    """Writes of one coordinator."""

    def __init__(
        self,
        writes: AmbiguousWriteResolver,
        source: PrefixView,
        view: IdentityView,
        keyspace: Keyspace,
        clock: Clock,
        *,
        accepts_certificates: bool,
    ) -> None:
        """`view` is over `source`; `accepts_certificates` is whether a client's certificate proves who it is."""
        self._writes = writes
        self._source = source
        self.view = view
        self.keyspace = keyspace
        self.clock = clock
        self._accepts_certificates = accepts_certificates

    @property
    def has_administrator(self) -> bool:
        """Whether the view shows an administrator."""
        return self._administrator() is not None

    async def rewrite(
        self,
        key: str,
        kind: type[ValueT],
        decide: Callable[[ValueT | None], Awaitable[Change[ValueT] | None]],
        deadline: float,
        what: str,
    ) -> tuple[ValueT | None, int]:
        """Write what `decide` makes of the value in etcd; return the value and the revision of its last write.

        `decide` returns `None` if nothing has to change, and is called again after a concurrent change or a lost
        response, perhaps with the value that it returned before.

        Raises:
            ConflictError: If the change would leave the cluster without an administrator.
            MetastoreUnavailableError, TimedOutError: If etcd does not respond in time; has the outcome.
            HeadraceError: What `decide` raises.
        """

        async def attempt(tracker: WriteTracker) -> tuple[ValueT | None, int] | None:
            found = await self._writes.read(key, deadline)
            before = None if found is None else kind.FromString(found.value)
            revision = 0 if found is None else found.mod_revision
            change = await decide(before)
            if change is None or change.value == before:
                return before, revision
            kept = await self._keep_administrator(change.removal, deadline)
            if kept is None:
                return None
            value = change.value
            operation = Delete(key) if value is None else Put(key, value.SerializeToString(deterministic=True))
            write = Write((ModRevisionIs(key, revision), *change.compares, *kept), (operation, *change.also))
            result = await self._writes.send(tracker, write)
            return (value, result.revision) if result.succeeded else None

        return await self._writes.resolve(attempt, deadline, what)

    async def read_user(self, name: str, deadline: float) -> tuple[metadata_pb2.StoredUser, int] | None:
        """Return a user and the create_revision of its key from etcd, or `None`. Raises as `AmbiguousWriteResolver`."""
        found = await self._writes.read(self.keyspace.user(name), deadline)
        return None if found is None else (metadata_pb2.StoredUser.FromString(found.value), found.create_revision)

    def grant_removals(self, principal: str) -> list[tuple[ModRevisionIs, Delete]]:
        """Return for each grant that the view shows of a user the compare and the operation that remove it."""
        removals = []
        for grant in self.view.grants_to(principal):
            key = self.keyspace.grant(*grant_name(grant))
            found = self._source.get(key)
            if found is not None:
                removals.append((ModRevisionIs(key, found.mod_revision), Delete(key)))
        return removals

    async def remove_grants(self, principal: str, deadline: float) -> None:
        """Remove the grants that the view shows of a user that does not exist. Raises as `rewrite`."""
        absent = ModRevisionIs(self.keyspace.user(principal), 0)

        async def attempt(tracker: WriteTracker) -> bool | None:
            removals = self.grant_removals(principal)[:MAX_REMOVED_GRANTS]
            if not removals or principal in self.view.users:
                return True
            compares, operations = zip(*removals, strict=True)
            result = await self._writes.send(tracker, Write((absent, *compares), operations))
            if result.succeeded:
                await self.see(result.revision, deadline)
            return None

        await self._writes.resolve(attempt, deadline, f"removing the grants of {principal}")

    async def see(self, revision: int, deadline: float) -> None:
        """Wait until the view shows a write of identity.

        Raises:
            TimedOutError: If it does not in time; the write is applied nevertheless.
        """
        await self._source.wait_for(revision, max(0.0, deadline - asyncio.get_running_loop().time()))

    async def _keep_administrator(self, removal: Removal | None, deadline: float) -> tuple[Compare, ...] | None:
        """Return compares by which an administrator remains after a change; `None` if the view is too old to decide.

        It is one whose grant does not expire, if there is such a one before.

        Raises:
            ConflictError: If none remains.
        """
        if removal is None:
            return ()
        revision = self._source.revision
        before = self._administrator(lasting=True)
        lasting = before is not None
        after = self._administrator(removal, lasting=lasting)
        if after is not None:
            return self._evidence(after)
        if not await self._is_current(revision, deadline):
            return None
        before = before or self._administrator()
        if before is None:
            return ()
        raise ConflictError(
            f"{before.user} is the last administrator{' whose grant does not expire' * lasting}, and the cluster would "
            "have none",
            outcome=Outcome.NOT_APPLIED,
            retriable=False,
            action="First grant admin on cluster to another user that has an API key.",
        )

    def _administrator(self, removal: Removal | None = None, *, lasting: bool = False) -> Administrator | None:
        """Return an administrator that there is after a change."""
        return next(
            administrators(
                self.view,
                self.clock.now_ms(),
                removal or Removal(),
                accepts_certificates=self._accepts_certificates,
                lasting=lasting,
            ),
            None,
        )

    def _evidence(self, administrator: Administrator) -> tuple[Compare, ...]:
        """Return compares that fail if anything changed that makes a user an administrator."""
        keys = [self.keyspace.user(administrator.user), self.keyspace.grant(*administrator.grant)]
        if administrator.role:
            keys.append(self.keyspace.role(administrator.role))
        if administrator.issuer:
            keys.append(self.keyspace.issuer(administrator.issuer))
        found = [(key, self._source.get(key)) for key in keys]
        return tuple(ModRevisionIs(key, 0 if value is None else value.mod_revision) for key, value in found)

    async def _is_current(self, revision: int, deadline: float) -> bool:
        """Return whether a view of `revision` shows every key of identity that etcd has. Reads them all."""
        listed = await self._writes.read_prefix(self.keyspace.identity_prefix, deadline)
        return all(found.mod_revision <= revision for found in listed.key_values)


def grant_name(grant: auth_pb2.Grant) -> GrantName:
    """Return what identifies a grant."""
    return grant.principal, grant.role, grant.resource
