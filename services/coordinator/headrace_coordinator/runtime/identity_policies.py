"""Roles, issuers, quotas and the posture in etcd, written by any coordinator. Belongs to the event loop.

Deadlines are in loop time, seconds.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from headrace.v1 import auth_pb2
from headrace.wire.errors import ConflictError, InvalidRequestError, Outcome
from headrace_server.identity.rights import ROLES, Operation, parse_operations
from headrace_server.internal_v1 import metadata_pb2

from headrace_coordinator.core.administrators import Removal
from headrace_coordinator.core.identity_rules import (
    MAX_ISSUERS,
    MAX_QUOTAS,
    MAX_ROLES,
    check_issuer,
    check_quota,
    check_role,
    check_room,
)
from headrace_coordinator.runtime.identity_writes import Change, IdentityWrites
from headrace_coordinator.runtime.issuers.key_fetch import context_of
from headrace_coordinator.runtime.metadata_limits import MetadataLimits


class IdentityPolicies:
    """Writes of roles, issuers, quotas and the posture. Methods return the revision to see, and raise as `rewrite`."""

    def __init__(self, writes: IdentityWrites, limits: MetadataLimits) -> None:
        self._writes = writes
        self._view = writes.view
        self._keyspace = writes.keyspace
        self._limits = limits

    # --- roles ---

    async def put_role(self, role: auth_pb2.Role, deadline: float) -> int:
        """Create a role, or change one that is not built in.

        Raises:
            InvalidRequestError: If it breaks a rule.
            MetadataLimitError: If it is new and there are too many, or etcd is nearly full.
        """
        check_role(role)
        wanted = auth_pb2.Role(name=role.name, operations=sorted(set(role.operations)))
        stays = Operation(0)
        for name in wanted.operations:
            stays |= parse_operations(name, {})

        async def decide(before: auth_pb2.Role | None) -> Change[auth_pb2.Role] | None:
            if before is None:
                self._limits.check_reserve("a new role")
                check_room("roles", len(self._view.roles) - len(ROLES), MAX_ROLES)
                return Change(wanted)
            return Change(wanted, Removal(role=role.name, role_stays=stays))

        return await self._rewrite_role(role.name, decide, deadline, "writing")

    async def delete_role(self, name: str, deadline: float) -> int:
        """Delete a role that no grant names; return `0` if there was none.

        Raises:
            InvalidRequestError: If it is built in.
            ConflictError: If a grant names it.
        """
        if name in ROLES:
            raise InvalidRequestError(f"role {name} is built in and cannot be deleted", action="Delete its grants.")

        async def decide(_before: auth_pb2.Role | None) -> Change[auth_pb2.Role] | None:
            used = next((grant for grant in self._view.all_grants if grant.role == name), None)
            if used is not None:
                raise _conflict(
                    f"{used.principal} has role {name} on {used.resource}", "Delete the grants of this role first."
                )
            return Change(None)

        return await self._rewrite_role(name, decide, deadline, "deleting")

    async def _rewrite_role(
        self,
        name: str,
        decide: Callable[[auth_pb2.Role | None], Awaitable[Change[auth_pb2.Role] | None]],
        deadline: float,
        what: str,
    ) -> int:
        key = self._keyspace.role(name)
        return (await self._writes.rewrite(key, auth_pb2.Role, decide, deadline, f"{what} role {name[:64]}"))[1]

    # --- issuers ---

    async def put_issuer(self, issuer: auth_pb2.Issuer, deadline: float) -> int:
        """Accept the tokens of an issuer, or change how.

        Raises:
            InvalidRequestError: If it breaks a rule.
            ConflictError: If it could name a user that exists, or another issuer is the same.
            MetadataLimitError: If it is new and there are too many, or etcd is nearly full.
        """
        users = (user.name for user in self._view.users.values() if user.api_keys or user.certificate_names)
        check_issuer(issuer, self._view.issuers.values(), users)
        _check_authorities(issuer.keys_ca_pem)

        async def decide(before: auth_pb2.Issuer | None) -> Change[auth_pb2.Issuer] | None:
            if before is None:
                self._limits.check_reserve("a new issuer")
                check_room("issuers", len(self._view.issuers), MAX_ISSUERS)
            return Change(issuer)

        key = self._keyspace.issuer(issuer.name)
        return (await self._writes.rewrite(key, auth_pb2.Issuer, decide, deadline, f"writing issuer {issuer.name}"))[1]

    async def delete_issuer(self, name: str, deadline: float) -> int:
        """Accept the tokens of an issuer no more; return `0` if it was none."""

        async def decide(_before: auth_pb2.Issuer | None) -> Change[auth_pb2.Issuer] | None:
            return Change(None, Removal(issuer=name))

        key = self._keyspace.issuer(name)
        return (await self._writes.rewrite(key, auth_pb2.Issuer, decide, deadline, f"deleting issuer {name[:64]}"))[1]

    # --- quotas ---

    async def put_quota(self, quota: auth_pb2.Quota, set_by: str, deadline: float) -> int:
        """Bound what a server serves one user, or change the bounds.

        Raises:
            InvalidRequestError: If no user can have the name, or a rate is negative.
            MetadataLimitError: If it is new and there are too many, or etcd is nearly full.
        """
        check_quota(quota, self._view.issuers)
        wanted = auth_pb2.Quota()
        wanted.CopyFrom(quota)
        wanted.set_by, wanted.set_ms = set_by, self._writes.clock.now_ms()

        async def decide(before: auth_pb2.Quota | None) -> Change[auth_pb2.Quota] | None:
            if before is None:
                self._limits.check_reserve("a new quota")
                check_room("quotas", len(self._view.quotas()), MAX_QUOTAS)
            return Change(wanted)

        return await self._rewrite_quota(quota.user, decide, deadline, "writing")

    async def delete_quota(self, user: str, deadline: float) -> int:
        """Delete a user's quota; return `0` if there was none."""

        async def decide(_before: auth_pb2.Quota | None) -> Change[auth_pb2.Quota] | None:
            return Change(None)

        return await self._rewrite_quota(user, decide, deadline, "deleting")

    async def _rewrite_quota(
        self,
        user: str,
        decide: Callable[[auth_pb2.Quota | None], Awaitable[Change[auth_pb2.Quota] | None]],
        deadline: float,
        what: str,
    ) -> int:
        key = self._keyspace.quota(user)
        return (await self._writes.rewrite(key, auth_pb2.Quota, decide, deadline, f"{what} quota of {user[:64]}"))[1]

    # --- posture ---

    async def set_posture(self, posture: auth_pb2.Posture, set_by: str, deadline: float) -> int:
        """Change what happens to calls without an identity or a right.

        Raises:
            InvalidRequestError: If it is none.
            ConflictError: If it is REQUIRED and the cluster has no administrator.
        """
        if posture not in auth_pb2.Posture.values() or posture == auth_pb2.POSTURE_UNSPECIFIED:
            raise InvalidRequestError("the request names no posture", action="Name OPEN, OBSERVE or REQUIRED.")
        wanted = metadata_pb2.StoredPosture(posture=posture, set_by=set_by, set_ms=self._writes.clock.now_ms())

        async def decide(before: metadata_pb2.StoredPosture | None) -> Change[metadata_pb2.StoredPosture] | None:
            if before is not None and before.posture == posture:
                return None
            if posture == auth_pb2.POSTURE_REQUIRED and not self._writes.has_administrator:
                raise _conflict(
                    "the cluster has no administrator, and no caller could change anything",
                    "Create one: `headrace-coordinator bootstrap-admin`.",
                )
            return Change(wanted)

        key = self._keyspace.posture()
        kind = metadata_pb2.StoredPosture
        return (await self._writes.rewrite(key, kind, decide, deadline, "changing the posture"))[1]


def _check_authorities(pem: str) -> None:
    try:
        context_of(pem)
    except ValueError:
        raise InvalidRequestError(
            "keys_ca_pem is no certificate in PEM", action="Give text with -----BEGIN CERTIFICATE-----."
        ) from None


def _conflict(message: str, action: str) -> ConflictError:
    return ConflictError(message, outcome=Outcome.NOT_APPLIED, retriable=False, action=action)
