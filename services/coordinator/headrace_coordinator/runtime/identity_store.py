"""Users, API keys and grants in etcd, written by any coordinator; `identity_policies` has what is about all users.

A user is deleted with its grants, and a grant is written only while its user exists, so that a later user of the same
name has none of them. Belongs to the event loop; deadlines are in loop time, seconds.
"""

from __future__ import annotations

from typing import NamedTuple

from headrace.v1 import auth_pb2
from headrace.wire.errors import ConflictError, InvalidRequestError, Outcome, UnauthenticatedError
from headrace_server.identity import api_keys
from headrace_server.identity.callers import Identity, Proof
from headrace_server.identity.identity_view import GROUP_PREFIX
from headrace_server.identity.rights import ROLES
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.metastore.api import Compare, CreateRevisionIs, Exists

from headrace_coordinator.core import identity_rules
from headrace_coordinator.core.administrators import Removal, usable_keys
from headrace_coordinator.core.identity_rules import MAX_GRANTS, MAX_USERS, check_room, is_external
from headrace_coordinator.runtime.identity_writes import MAX_REMOVED_GRANTS, Change, IdentityWrites, grant_name
from headrace_coordinator.runtime.metadata_limits import MetadataLimits

UserChange = Change[metadata_pb2.StoredUser]


class NewApiKey(NamedTuple):
    """API key that was created."""

    stored: metadata_pb2.StoredApiKey
    text: str
    """The whole key, which is stored nowhere."""
    revision: int

    def __repr__(self) -> str:
        """Return a description without the secret."""
        return f"NewApiKey({self.stored.key_id})"


class IdentityStore:
    """Writes of users, API keys and grants. Every method returns the revision to see, and raises as `rewrite`."""

    def __init__(self, writes: IdentityWrites, limits: MetadataLimits) -> None:
        self._writes = writes
        self._view = writes.view
        self._keyspace = writes.keyspace
        self._clock = writes.clock
        self._limits = limits

    # --- users ---

    async def put_user(
        self, user: auth_pb2.User, deadline: float, *, create_only: bool = False
    ) -> tuple[metadata_pb2.StoredUser, int]:
        """Create a user, or change one; its API keys stay.

        Raises:
            InvalidRequestError: If the user breaks a rule.
            ConflictError: If it exists and must not, or another user has its certificate names.
            MetadataLimitError: If it is new and there are too many, or etcd is nearly full.
        """
        identity_rules.check_user(user, self._view.issuers)
        created_ms = self._clock.now_ms()
        own = None
        if user.name not in self._view.users and not is_external(user.name, self._view.issuers):
            await self._writes.remove_grants(user.name, deadline)  # Of a deleted user, if a coordinator died meanwhile.

        async def decide(before: metadata_pb2.StoredUser | None) -> UserChange | None:
            nonlocal own
            identity_rules.check_certificate_names(user, self._view.users_of_certificate(user.certificate_names))
            if before is None:
                self._limits.check_reserve("a new user")
                check_room("users", len(self._view.users), MAX_USERS)
                own = _changed(metadata_pb2.StoredUser(name=user.name, created_ms=created_ms), user)
                return Change(own, Removal(user.name, own) if user.disabled else None)
            if create_only and before != own:
                raise _exists(f"there is a user {user.name} already", "Choose another name, or change this user.")
            after = _changed(before, user)
            return Change(after, Removal(user.name, after))

        stored, revision = await self._writes.rewrite(
            self._keyspace.user(user.name), metadata_pb2.StoredUser, decide, deadline, f"writing user {user.name}"
        )
        assert stored is not None, "it was put"
        return stored, revision

    async def delete_user(self, name: str, deadline: float) -> int:
        """Delete a user with its API keys and grants.

        Raises:
            InvalidRequestError: If there is no such user.
        """
        was_there = self._view.has_grants(name) and not is_external(name, self._view.issuers)

        async def decide(before: metadata_pb2.StoredUser | None) -> UserChange | None:
            nonlocal was_there
            if before is None and not was_there:
                raise _unknown_user(name)
            was_there = True
            grants = self._writes.grant_removals(name)[: MAX_REMOVED_GRANTS if before is not None else 0]
            return Change(
                None,
                Removal(name),
                tuple(compare for compare, _ in grants),
                tuple(operation for _, operation in grants),
            )

        _, revision = await self._writes.rewrite(
            self._keyspace.user(name), metadata_pb2.StoredUser, decide, deadline, f"deleting user {name[:64]}"
        )
        await self._writes.see(revision, deadline)
        await self._writes.remove_grants(name, deadline)  # Those that were written meanwhile, or too many for one.
        return revision

    # --- API keys ---

    async def create_api_key(
        self, user: str, description: str, lifetime_ms: int, deadline: float, *, creator: Identity | None = None
    ) -> NewApiKey:
        """Create an API key; those of the user that have expired are removed.

        `creator` is the identity of the user that creates it for itself; `None` means that another user does.

        Raises:
            InvalidRequestError: If there is no such user, or it is identified elsewhere.
            ConflictError: If the user has two.
            UnauthenticatedError: If etcd has the user disabled, or not the API key of `creator`.
        """
        now_ms = self._clock.now_ms()
        identity_rules.check_lifetime(lifetime_ms)
        identity_rules.check_text("the description", description, identity_rules.MAX_DESCRIPTION_CHARACTERS)
        text = api_keys.make_api_key()
        parsed = api_keys.parse_api_key(text)
        assert parsed is not None, "it was made a moment ago"
        stored = metadata_pb2.StoredApiKey(
            key_id=parsed.key_id,
            sha256=parsed.sha256,
            description=description,
            created_ms=now_ms,
            expires_ms=now_ms + lifetime_ms if lifetime_ms else 0,
        )
        if is_external(user, self._view.issuers):
            raise InvalidRequestError(
                f"user {user[:64]} is identified elsewhere and has no API keys",
                action="Create a user for the program that needs the key.",
            )

        async def decide(before: metadata_pb2.StoredUser | None) -> UserChange | None:
            if before is None:
                raise _unknown_user(user)
            if any(api_key.key_id == stored.key_id for api_key in before.api_keys):
                return None  # An earlier attempt created it; its response was lost.
            if creator is not None:
                _check_creator(creator, before)
            self._limits.check_reserve("a new API key")
            kept = usable_keys(before.api_keys, now_ms)
            identity_rules.check_further_key(user, kept)
            return Change(with_api_keys(before, [*kept, stored]))

        _, revision = await self._writes.rewrite(
            self._keyspace.user(user), metadata_pb2.StoredUser, decide, deadline, f"creating an API key of {user[:64]}"
        )
        return NewApiKey(stored, text, revision)

    async def delete_api_key(self, key_id: str, deadline: float) -> int:
        """Delete an API key.

        Raises:
            InvalidRequestError: If there is no such key.
        """
        found = self._view.user_of_api_key(key_id)
        if found is None:
            raise unknown_api_key(key_id)

        async def decide(before: metadata_pb2.StoredUser | None) -> UserChange | None:
            if before is None:
                return None
            after = with_api_keys(before, [api_key for api_key in before.api_keys if api_key.key_id != key_id])
            return Change(after, Removal(before.name, after))

        _, revision = await self._writes.rewrite(
            self._keyspace.user(found[0].name), metadata_pb2.StoredUser, decide, deadline, f"deleting API key {key_id}"
        )
        return revision

    # --- grants ---

    async def put_grant(self, grant: auth_pb2.Grant, granted_by: str, deadline: float) -> tuple[auth_pb2.Grant, int]:
        """Add a grant, or change when it expires. A grant that exists is returned as it is.

        Raises:
            InvalidRequestError: If it breaks a rule, or names a user or a role that does not exist.
            ConflictError: If it would end earlier than now, and without it the cluster has no administrator.
            MetadataLimitError: If it is new and there are too many, or etcd is nearly full.
        """
        wanted = auth_pb2.Grant(
            principal=grant.principal,
            role=grant.role,
            resource=grant.resource,
            expires_ms=grant.expires_ms,
            granted_by=granted_by,
            granted_ms=self._clock.now_ms(),
        )

        async def decide(before: auth_pb2.Grant | None) -> Change[auth_pb2.Grant] | None:
            identity_rules.check_grant(wanted, self._view.roles, self._view.issuers, wanted.granted_ms)
            if before is not None and before.expires_ms == wanted.expires_ms:
                return None
            if before is None:
                self._limits.check_reserve("a new grant")
                check_room("grants", len(self._view.all_grants), MAX_GRANTS)
            is_own_role = wanted.role not in ROLES and wanted.role in self._view.roles
            role = (Exists(self._keyspace.role(wanted.role)),) if is_own_role else ()
            removal = Removal(grant=grant_name(wanted)) if _ends_earlier(wanted, before) else None
            return Change(wanted, removal, (*role, *await self._principal_exists(wanted.principal, deadline)))

        stored, revision = await self._writes.rewrite(
            self._keyspace.grant(grant.principal, grant.role, grant.resource),
            auth_pb2.Grant,
            decide,
            deadline,
            f"granting {grant.role[:64]} on {grant.resource[:64]} to {grant.principal[:64]}",
        )
        assert stored is not None, "it was put"
        return stored, revision

    async def delete_grant(self, principal: str, role: str, resource: str, deadline: float) -> int:
        """Delete a grant, if there is one; return `0` if there was none."""

        async def decide(_before: auth_pb2.Grant | None) -> Change[auth_pb2.Grant] | None:
            return Change(None, Removal(grant=(principal, role, resource)))

        _, revision = await self._writes.rewrite(
            self._keyspace.grant(principal, role, resource),
            auth_pb2.Grant,
            decide,
            deadline,
            f"deleting the grant of {role[:64]} on {resource[:64]} to {principal[:64]}",
        )
        return revision

    async def _principal_exists(self, principal: str, deadline: float) -> tuple[Compare, ...]:
        """Return compares that fail if a user is deleted meanwhile; a group or a user of an issuer need not exist.

        Raises:
            InvalidRequestError: If the user does not exist.
        """
        if principal.startswith(GROUP_PREFIX) or is_external(principal, self._view.issuers):
            return ()
        found = await self._writes.read_user(principal, deadline)
        if found is None:
            raise _unknown_user(principal)
        return (CreateRevisionIs(self._keyspace.user(principal), found[1]),)


def _ends_earlier(wanted: auth_pb2.Grant, before: auth_pb2.Grant | None) -> bool:
    """Return whether a grant would expire earlier than the one that it replaces, if any."""
    if before is None or not wanted.expires_ms:
        return False
    return not before.expires_ms or wanted.expires_ms < before.expires_ms


def with_api_keys(user: metadata_pb2.StoredUser, kept: list[metadata_pb2.StoredApiKey]) -> metadata_pb2.StoredUser:
    """Return a copy of a user with these API keys."""
    after = metadata_pb2.StoredUser()
    after.CopyFrom(user)
    del after.api_keys[:]
    after.api_keys.extend(kept)
    return after


def _check_creator(creator: Identity, user: metadata_pb2.StoredUser) -> None:
    """Check that a user may still create an API key for itself, by etcd and not by a view that is behind.

    Raises:
        UnauthenticatedError: If it is disabled, or the API key that proves who it is was deleted.
    """
    if user.disabled:
        raise UnauthenticatedError(f"user {user.name} is disabled", action="Open a new session.")
    is_by_key = creator.proof is Proof.API_KEY
    if is_by_key and all(api_key.key_id != creator.credential for api_key in user.api_keys):
        raise deleted_api_key()


def deleted_api_key() -> UnauthenticatedError:
    """Return the error for a call by an API key that was deleted meanwhile."""
    return UnauthenticatedError("the API key was deleted", action="Open a new session.")


def unknown_api_key(key_id: str) -> InvalidRequestError:
    """Return the error for an API key that does not exist."""
    return InvalidRequestError(
        f"there is no API key {key_id[:64]!r}", action="Give the 12 characters after `hrk_`; a list of users has them."
    )


def _changed(user: metadata_pb2.StoredUser, wanted: auth_pb2.User) -> metadata_pb2.StoredUser:
    after = with_api_keys(user, list(user.api_keys))
    after.disabled = wanted.disabled
    after.description = wanted.description
    for field in ("groups", "certificate_names"):
        values = getattr(after, field)
        del values[:]
        values.extend(dict.fromkeys(getattr(wanted, field)))
    return after


def _unknown_user(name: str) -> InvalidRequestError:
    return InvalidRequestError(f"there is no user {name[:64]!r}", action="Create it first, or correct the name.")


def _exists(message: str, action: str) -> ConflictError:
    return ConflictError(message, outcome=Outcome.NOT_APPLIED, retriable=False, action=action)
