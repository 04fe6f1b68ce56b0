"""Who administers the cluster, and what a change would take from them. Pure.

The cluster must keep an administrator: a user with a credential that works and ADMIN on the cluster. A change that may
take this from one finds another administrator first, its witness, and compares the keys that make it one in the same
transaction. Two changes that each take the other's witness can therefore not both succeed.

A group of an issuer is no witness: only the issuer knows who is in it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from headrace.v1 import auth_pb2
from headrace.wire.errors import InvalidRequestError
from headrace_server.identity.identity_view import GROUP_PREFIX
from headrace_server.identity.rights import ROLES, Operation, parse_operations
from headrace_server.internal_v1 import metadata_pb2

from headrace_coordinator.core.identity_rules import CERTIFICATE, is_external

_NONE = Operation(0)

GrantName = tuple[str, str, str]
"""Principal, role and resource of a grant."""


class Identities(Protocol):
    """What is known of users and grants: `IdentityView`."""

    @property
    def users(self) -> Mapping[str, metadata_pb2.StoredUser]:
        """Users by name."""

    @property
    def issuers(self) -> Mapping[str, auth_pb2.Issuer]:
        """Issuers by name."""

    @property
    def roles(self) -> Mapping[str, Operation]:
        """Operations of roles."""

    @property
    def cluster_grants(self) -> Collection[auth_pb2.Grant]:
        """Grants on the cluster."""


@dataclass(frozen=True, slots=True)
class Removal:
    """What a change takes away. A default takes nothing."""

    user: str = ""
    stays: metadata_pb2.StoredUser | None = None
    """What the change leaves of `user`; `None`: it is deleted."""
    grant: GrantName | None = None
    role: str = ""
    role_stays: Operation = _NONE
    """Operations that the change leaves to `role`."""
    issuer: str = ""


NOTHING = Removal()


@dataclass(frozen=True, slots=True)
class Administrator:
    """Administrator, with the names of the keys that make it one."""

    user: str
    grant: GrantName
    role: str
    """Role of the grant if it is not built in, otherwise empty."""
    issuer: str
    """Issuer that names the user, otherwise empty."""


def administrators(
    found: Identities, now_ms: int, removal: Removal = NOTHING, *, accepts_certificates: bool, lasting: bool = False
) -> Iterator[Administrator]:
    """Yield the administrators that there are after a change, those of direct grants first.

    Args:
        found: users and grants before the change.
        now_ms: wall time; what has expired does not count.
        removal: the change.
        accepts_certificates: whether a certificate is a credential that works here.
        lasting: only those whose grant does not expire.
    """
    granted = [grant for grant in found.cluster_grants if not (lasting and grant.expires_ms)]
    grants = [grant for grant in granted if _gives_admin(found, grant, now_ms, removal)]
    for grant in grants:
        if not grant.principal.startswith(GROUP_PREFIX):
            user = _user(found, grant.principal, removal)
            if _works(found, grant.principal, user, now_ms, removal, accepts_certificates=accepts_certificates):
                yield _administrator(found, grant.principal, grant)
    of_group = {
        grant.principal.removeprefix(GROUP_PREFIX): grant
        for grant in grants
        if grant.principal.startswith(GROUP_PREFIX)
    }
    if not of_group:
        return
    for name in found.users:
        user = _user(found, name, removal)
        group = next((group for group in (() if user is None else user.groups) if group in of_group), None)
        if group is not None and _works(found, name, user, now_ms, removal, accepts_certificates=accepts_certificates):
            yield _administrator(found, name, of_group[group])


def usable_keys(api_keys: Iterable[metadata_pb2.StoredApiKey], now_ms: int) -> list[metadata_pb2.StoredApiKey]:
    """Return the API keys that have not expired."""
    return [api_key for api_key in api_keys if not api_key.expires_ms or now_ms < api_key.expires_ms]


def _user(found: Identities, name: str, removal: Removal) -> metadata_pb2.StoredUser | None:
    return removal.stays if removal.user == name else found.users.get(name)


def _gives_admin(found: Identities, grant: auth_pb2.Grant, now_ms: int, removal: Removal) -> bool:
    if removal.grant == (grant.principal, grant.role, grant.resource):
        return False
    if removal.user and removal.stays is None and grant.principal == removal.user:
        return False  # A user is deleted with its grants.
    if grant.expires_ms and now_ms >= grant.expires_ms:
        return False
    if removal.role and grant.role == removal.role:
        return bool(removal.role_stays & Operation.ADMIN)
    try:
        return bool(parse_operations(grant.role, found.roles) & Operation.ADMIN)
    except InvalidRequestError:  # The role was deleted.
        return False


def _works(
    found: Identities,
    name: str,
    user: metadata_pb2.StoredUser | None,
    now_ms: int,
    removal: Removal,
    *,
    accepts_certificates: bool,
) -> bool:
    """Return whether a user can prove who it is."""
    if user is not None and user.disabled:
        return False
    if name.startswith(f"{CERTIFICATE}:"):
        return accepts_certificates
    if is_external(name, found.issuers):
        return name.partition(":")[0] != removal.issuer
    if user is None:
        return False
    return bool(usable_keys(user.api_keys, now_ms)) or (accepts_certificates and bool(user.certificate_names))


def _administrator(found: Identities, user: str, grant: auth_pb2.Grant) -> Administrator:
    prefix = user.partition(":")[0]
    return Administrator(
        user,
        (grant.principal, grant.role, grant.resource),
        "" if grant.role in ROLES or grant.role not in found.roles else grant.role,
        prefix if is_external(user, found.issuers) and prefix != CERTIFICATE else "",
    )
