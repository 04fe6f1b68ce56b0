"""Callers: who a call is from, how that was proven, and whether it still holds.

A `Caller` is kept for a session, a certificate or an API key, and compared with the view whenever that has changed, so
that a deleted key or a grant counts from the next decision on, on open connections, too. Belongs to the event loop.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from headrace.v1 import auth_pb2

from headrace_server.identity.identity_view import IdentityView, ReadGrant
from headrace_server.identity.rights import EVERYTHING, Operation, Pattern, ResourceKind, Rights, parse_pattern
from headrace_server.internal_v1 import metadata_pb2

MAX_SKEW_MS = 60_000
"""Difference between the clocks of two servers that a session survives."""


class Proof(IntEnum):
    """How a caller was identified."""

    NONE = 0
    API_KEY = 1
    TOKEN = 2
    """A JSON Web Token of an issuer."""
    CERTIFICATE = 3
    SERVER = 4
    """The cluster's secret."""


PROOF_NAMES = {Proof.API_KEY: "API key", Proof.TOKEN: "token", Proof.CERTIFICATE: "certificate", Proof.SERVER: "server"}


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a call is from, as proven."""

    user: str = ""
    proof: Proof = Proof.NONE
    credential: str = ""
    """Id of the API key, name of the issuer, or name in the certificate."""
    groups: tuple[str, ...] = ()
    """Of a user that an issuer names."""
    issued_ms: int = 0
    expires_ms: int = 0
    """0: it does not expire by itself."""
    signing_key: str = ""
    """Id of the key that signed the session, or a hash of a server's secret; empty for a proof without a session."""


def identity_of(claims: metadata_pb2.SessionClaims, signing_key: str = "") -> Identity:
    """Return the identity of a session, which ends with the key that signed it."""
    return Identity(
        claims.user,
        Proof(claims.proof),
        claims.credential,
        tuple(claims.groups),
        claims.issued_ms,
        claims.expires_ms,
        signing_key,
    )


class Caller:
    """A caller and its rights; `ANONYMOUS` has neither."""

    __slots__ = ("_changes_at_ms", "_rights", "_version", "_view", "ended", "groups", "identity", "is_server")

    def __init__(self, identity: Identity, view: IdentityView | None = None) -> None:
        """Without a `view` nothing about the caller ever changes: it is anonymous or a server."""
        self.identity = identity
        self.is_server = identity.proof is Proof.SERVER
        self._view = view
        self._version = -1
        self._changes_at_ms: float = 0.0
        self.ended = ""
        """Reason for which it is no caller any more, after `refresh`; empty while it is one."""
        self.groups: tuple[str, ...] = identity.groups
        cluster = (Pattern((ResourceKind.CLUSTER,)), EVERYTHING)
        self._rights = Rights([cluster], is_server=True) if self.is_server else Rights()

    @property
    def is_known(self) -> bool:
        """Whether it has an identity that holds."""
        return self.identity.proof is not Proof.NONE and not self.ended

    @property
    def name(self) -> str:
        """Name in logs and counters."""
        return self.identity.user or "anonymous"

    def refresh(self, now_ms: int) -> None:
        """Compare with the view, if that or the time has changed anything; `now_ms` is the wall clock."""
        view = self._view
        if view is None or (view.version == self._version and now_ms < self._changes_at_ms):
            return
        self.ended, changes_at_ms = self._look(view, now_ms)
        grants = [] if self.ended else view.grants_of(self.identity.user, self.groups)
        in_force = [grant for grant in grants if grant.is_in_force(now_ms)]
        self._rights = Rights((grant.pattern, grant.operations) for grant in in_force)
        ends = [grant.grant.expires_ms for grant in in_force if grant.grant.expires_ms]
        self._changes_at_ms = min([changes_at_ms, *ends])
        self._version = view.version

    def allows(self, operation: Operation, kind: ResourceKind, name: str = "") -> bool:
        """Return whether its grants allow an operation, as of the last `refresh`."""
        return self._rights.allow(operation, kind, name)

    def allows_all(self, operation: Operation, kind: ResourceKind, prefix: str) -> bool:
        """Return whether they allow it on every name with a prefix."""
        return self._rights.allow_all(operation, kind, prefix)

    def _look(self, view: IdentityView, now_ms: int) -> tuple[str, float]:
        """Return why the identity does not hold, or an empty string, and when time changes that; sets the groups."""
        identity = self.identity
        changes_at_ms = identity.expires_ms + MAX_SKEW_MS if identity.expires_ms else math.inf
        if now_ms >= changes_at_ms:
            return "the session has expired", math.inf
        if identity.issued_ms > now_ms + MAX_SKEW_MS:
            begins_ms = identity.issued_ms - MAX_SKEW_MS
            return "the session begins in the future: the clocks of two servers differ", begins_ms
        if identity.signing_key and identity.signing_key not in view.signing_keys:
            return "the key that signed the session was removed", math.inf
        user = view.users.get(identity.user)
        if user is not None and user.disabled:
            return f"user {identity.user} is disabled", math.inf
        match identity.proof:
            case Proof.API_KEY:
                found = view.user_of_api_key(identity.credential)
                if found is None or found[0].name != identity.user:
                    return "the API key was deleted", math.inf
                if found[1].expires_ms and now_ms >= found[1].expires_ms:
                    return "the API key has expired", math.inf
                changes_at_ms = min(changes_at_ms, found[1].expires_ms or math.inf)
            case Proof.TOKEN:
                if identity.credential not in view.issuers:
                    return f"issuer {identity.credential} is not accepted any more", math.inf
            case Proof.CERTIFICATE:
                if user_of_certificate(view, (identity.credential,)) != (identity.user, identity.credential):
                    return "the certificate names another user", math.inf
        self.groups = identity.groups if user is None else (*identity.groups, *user.groups)
        return "", changes_at_ms


ANONYMOUS = Caller(Identity())


def user_of_certificate(view: IdentityView, names: Sequence[str]) -> tuple[str, str] | None:
    """Return the user that a certificate identifies, and the name in it that does; `None` if it names several users.

    A certificate that no user has is a user of its own, `certificate:NAME`: its SPIFFE id, else its first alternative
    name, else its common name. `names` has the common name first, empty if the certificate has none.
    """
    users = view.users_of_certificate(names)
    if len(users) > 1 or not any(names):
        return None
    if users:
        (user,) = users
        return user, next(name for name in names if user in view.users_of_certificate((name,)))
    alternatives = names[1:] or names
    name = next((name for name in alternatives if name.startswith("spiffe://")), alternatives[0])
    return f"certificate:{name}", name


def explain(
    view: IdentityView, user: str, groups: Sequence[str], operation: Operation, resource: str, now_ms: int
) -> tuple[str, ReadGrant | None]:
    """Return in one sentence why a user may do something or may not, and the grant that allows it.

    Raises:
        InvalidRequestError: If `resource` is none.
    """
    pattern = parse_pattern(resource)
    stored = view.users.get(user)
    if stored is not None and stored.disabled:
        return f"user {user} is disabled", None
    all_groups = (*groups, *(() if stored is None else stored.groups))
    expired = None
    for grant in view.grants_of(user, all_groups):
        rights = Rights([(grant.pattern, grant.operations)])
        covers = all(
            rights.allow_all(operation, kind, pattern.name)
            if pattern.is_prefix
            else rights.allow(operation, kind, pattern.name)
            for kind in pattern.kinds
        )
        if covers and grant.is_in_force(now_ms):
            said = grant.grant
            return f"{said.principal} has {said.role} on {said.resource}", grant
        if covers:
            expired = grant.grant
    if expired is not None:
        return f"the grant of {expired.role} on {expired.resource} to {expired.principal} has expired", None
    who = f"{user} and its groups have" if all_groups else f"{user} has"
    name = (operation.name or "").lower()
    return f"{who} no grant of {name} that covers {resource}", None


def to_user(stored: metadata_pb2.StoredUser) -> auth_pb2.User:
    """Return what administrators may see of a user."""
    return auth_pb2.User(
        name=stored.name,
        disabled=stored.disabled,
        groups=stored.groups,
        description=stored.description,
        api_keys=[to_api_key(api_key) for api_key in stored.api_keys],
        certificate_names=stored.certificate_names,
        created_ms=stored.created_ms,
    )


def to_api_key(stored: metadata_pb2.StoredApiKey) -> auth_pb2.ApiKey:
    """Return what administrators may see of an API key."""
    return auth_pb2.ApiKey(
        key_id=stored.key_id,
        description=stored.description,
        created_ms=stored.created_ms,
        expires_ms=stored.expires_ms,
    )
