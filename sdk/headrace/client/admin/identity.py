"""Users, API keys, grants, roles, issuers and quotas, as `Admin` returns them. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.client.base.errors import ConfigError
from headrace.v1 import auth_pb2

_POSTURES = {
    "open": auth_pb2.POSTURE_OPEN,
    "observe": auth_pb2.POSTURE_OBSERVE,
    "required": auth_pb2.POSTURE_REQUIRED,
}
POSTURES = tuple(_POSTURES)
"""What a cluster does with calls that lack an identity or a right: serve, serve and count, or refuse them."""

_MAX_RATE, _MAX_CONNECTIONS = (1 << 63) - 1, (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class ApiKeyDescription:
    """API key of a user, without its secret."""

    key_id: str
    """The 12 characters of the key after `hrk_`."""
    description: str
    created_ms: int
    expires_ms: int
    """Milliseconds since 1970; 0 means never."""


@dataclass(frozen=True, slots=True)
class CreatedApiKey:
    """New API key. Its secret cannot be read again."""

    key_id: str
    secret: str = field(repr=False)
    """The whole key, as clients take it in `api_key`."""
    expires_ms: int
    """Milliseconds since 1970; 0 means never."""


@dataclass(frozen=True, slots=True)
class UserDescription:
    """User with its API keys."""

    name: str
    disabled: bool
    groups: tuple[str, ...]
    description: str
    api_keys: tuple[ApiKeyDescription, ...]
    certificate_names: tuple[str, ...]
    """Names in certificates that identify the user."""
    created_ms: int


@dataclass(frozen=True, slots=True)
class GrantDescription:
    """Role of a user or a group on a resource."""

    principal: str
    """Name of a user, or `group:NAME`."""
    role: str
    """Name of a role or of an operation."""
    resource: str
    """`cluster`, `topic:NAME`, `group:NAME`, or a prefix such as `topic:team.*` or `team.*`."""
    expires_ms: int
    """Milliseconds since 1970; 0 means never."""
    granted_by: str
    granted_ms: int


@dataclass(frozen=True, slots=True)
class RoleDescription:
    """Named set of operations."""

    name: str
    operations: tuple[str, ...]
    built_in: bool
    """Whether every cluster has it, and it cannot be changed."""


@dataclass(frozen=True, slots=True)
class IssuerDescription:
    """Issuer of JSON Web Tokens that the cluster accepts."""

    name: str
    """Its users are named `NAME:CLAIM`."""
    issuer: str
    """Exact value of the claim `iss`."""
    audience: str
    """Value that the claim `aud` must contain."""
    keys_url: str
    """Place of its keys: an https URL, or the path of a file at each coordinator."""
    keys_ca_pem: str
    """CA certificates for `keys_url`; empty means the public authorities."""
    algorithms: tuple[str, ...]
    """Accepted algorithms; empty means RS256, ES256 and EdDSA."""
    user_claim: str
    groups_claim: str
    """Claim with the groups of a user; empty means none."""


@dataclass(frozen=True, slots=True)
class QuotaDescription:
    """Rates at which each broker, and each coordinator, serves one user; 0 means no bound.

    `None` means that the bound is that of `*`, and the default where `*` has none.
    """

    user: str
    """Name of a user, or `*`: every user without a quota of its own, and callers without an identity, by address."""
    produce_bytes_per_second: int | None
    """Bytes of batches that a broker appends."""
    fetch_bytes_per_second: int | None
    """Bytes of batches that a broker sends."""
    requests_per_second: int | None
    connections: int | None
    """Connections of the native protocol to a broker."""
    changes_per_minute: int | None
    """Administrative requests, except those about identity, and what they create, move or delete."""
    set_by: str
    set_ms: int
    is_default: bool = False
    """Whether it has the bounds that no administrator has set."""


@dataclass(frozen=True, slots=True)
class AccessDecision:
    """Whether a user may do something, and why."""

    allowed: bool
    reason: str
    """One sentence."""
    grant: GrantDescription | None
    """Grant that allows it."""


@dataclass(frozen=True, slots=True)
class CallerDescription:
    """Identity of this client, as the server sees it."""

    user: str
    """Empty without an identity."""
    groups: tuple[str, ...]
    identified_by: str
    """`API key`, `token` or `certificate`; empty without an identity."""
    grants: tuple[GrantDescription, ...]
    """Grants of the user and its groups that are in force."""
    posture: str
    """One of `POSTURES`."""
    remaining_ms: int
    """Time until the session ends; 0 means that it ends with the connection."""


def quota_of(user: str, bounds: Mapping[str, int | None]) -> auth_pb2.Quota:
    """Return the message of a quota; bounds that are `None` are not set.

    Raises:
        ConfigError: If a bound is negative or does not fit into its field.
    """
    given: dict[str, Any] = {name: bound for name, bound in bounds.items() if bound is not None}
    for name, bound in given.items():
        largest = _MAX_CONNECTIONS if name == "connections" else _MAX_RATE
        if not 0 <= bound <= largest:
            raise ConfigError(f"{name} = {bound} is not between 0 and {largest}", action="Give 0 for no bound.")
    return auth_pb2.Quota(user=user, **given)


def posture_of(name: str) -> auth_pb2.Posture:
    """Return the posture of a name.

    Raises:
        ConfigError: If there is none.
    """
    if name not in _POSTURES:
        raise ConfigError(f"posture {name!r} is not one of {', '.join(POSTURES)}")
    return _POSTURES[name]


def posture_name(posture: int) -> str:
    """Return the name of a posture; of one that a newer server has, its number."""
    return next((name for name, value in _POSTURES.items() if int(value) == posture), str(posture))


def api_key_description(api_key: auth_pb2.ApiKey) -> ApiKeyDescription:
    """Return the description of an API key."""
    return ApiKeyDescription(api_key.key_id, api_key.description, api_key.created_ms, api_key.expires_ms)


def user_description(user: auth_pb2.User) -> UserDescription:
    """Return the description of a user."""
    return UserDescription(
        user.name,
        user.disabled,
        tuple(user.groups),
        user.description,
        tuple(map(api_key_description, user.api_keys)),
        tuple(user.certificate_names),
        user.created_ms,
    )


def grant_description(grant: auth_pb2.Grant) -> GrantDescription:
    """Return the description of a grant."""
    return GrantDescription(
        grant.principal, grant.role, grant.resource, grant.expires_ms, grant.granted_by, grant.granted_ms
    )


def grant_descriptions(grants: Iterable[auth_pb2.Grant]) -> list[GrantDescription]:
    """Return the descriptions of grants, by principal, resource and role."""
    found = [grant_description(grant) for grant in grants]
    return sorted(found, key=lambda grant: (grant.principal, grant.resource, grant.role))


def role_descriptions(response: auth_pb2.ListRolesResponse) -> list[RoleDescription]:
    """Return the descriptions of roles by name."""
    found = [RoleDescription(role.name, tuple(role.operations), role.built_in) for role in response.roles]
    return sorted(found, key=lambda role: role.name)


def issuer_descriptions(response: auth_pb2.ListIssuersResponse) -> list[IssuerDescription]:
    """Return the descriptions of issuers by name."""
    found = [
        IssuerDescription(
            issuer.name,
            issuer.issuer,
            issuer.audience,
            issuer.keys_url,
            issuer.keys_ca_pem,
            tuple(issuer.algorithms),
            issuer.user_claim or "sub",
            issuer.groups_claim,
        )
        for issuer in response.issuers
    ]
    return sorted(found, key=lambda issuer: issuer.name)


def quota_descriptions(response: auth_pb2.ListQuotasResponse) -> list[QuotaDescription]:
    """Return the descriptions of quotas by user; before them that of the default, if the servers have one."""
    found = sorted((_quota_description(quota) for quota in response.quotas), key=lambda quota: quota.user)
    if response.HasField("default_quota"):
        found.insert(0, _quota_description(response.default_quota, is_default=True))
    return found


def _quota_description(quota: auth_pb2.Quota, *, is_default: bool = False) -> QuotaDescription:
    return QuotaDescription(
        quota.user,
        quota.produce_bytes_per_second if quota.HasField("produce_bytes_per_second") else None,
        quota.fetch_bytes_per_second if quota.HasField("fetch_bytes_per_second") else None,
        quota.requests_per_second if quota.HasField("requests_per_second") else None,
        quota.connections if quota.HasField("connections") else None,
        quota.changes_per_minute if quota.HasField("changes_per_minute") else None,
        quota.set_by,
        quota.set_ms,
        is_default,
    )


def access_decision(response: auth_pb2.CheckAccessResponse) -> AccessDecision:
    """Return the decision in a response."""
    grant = grant_description(response.grant) if response.HasField("grant") else None
    return AccessDecision(response.allowed, response.reason, grant)


def caller_description(response: auth_pb2.WhoAmIResponse) -> CallerDescription:
    """Return the description of the caller."""
    return CallerDescription(
        response.user,
        tuple(response.groups),
        response.identified_by,
        tuple(grant_descriptions(response.grants)),
        posture_name(response.posture),
        response.remaining_ms,
    )
