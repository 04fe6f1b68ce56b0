"""View of users, grants, roles, issuers and signing keys in etcd, decoded once and kept up to date.

Every broker and coordinator has one, so that it decides without asking anybody, and continues with what it knows while
etcd is unavailable. A value that cannot be decoded, for example of a newer release, gives no right. Belongs to the
event loop.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar, cast

import structlog
from google.protobuf.message import DecodeError
from headrace.v1 import auth_pb2
from headrace.wire.errors import HeadraceError

from headrace_server.identity.quotas import DEFAULT_QUOTA, EVERY_USER
from headrace_server.identity.rights import ROLES, Operation, Pattern, ResourceKind, parse_operations, parse_pattern
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.key_table import (
    ClusterSecretsKey,
    GrantKey,
    IssuerKey,
    PostureKey,
    QuotaKey,
    RoleKey,
    SigningKeyKey,
    UserKey,
)
from headrace_server.keys import Keyspace
from headrace_server.metadata_view import KeySource
from headrace_server.metastore.api import KeyValue

log = structlog.get_logger(__name__)

GROUP_PREFIX = "group:"
SIGNS_AFTER_MS = 120_000
"""Age from which a signing key signs: servers that are behind, or without etcd for a minute, know it then."""

KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")


class ReadGrant(NamedTuple):
    """Grant with its meaning."""

    grant: auth_pb2.Grant
    pattern: Pattern
    operations: Operation

    def is_in_force(self, now_ms: int) -> bool:
        """Return whether it has not expired."""
        return not self.grant.expires_ms or now_ms < self.grant.expires_ms


class IdentityView:
    """See the module. All attributes are read-only for callers."""

    def __init__(self, keyspace: Keyspace, source: KeySource) -> None:
        self._keyspace = keyspace
        self.source = source
        self.users: dict[str, metadata_pb2.StoredUser] = {}
        self.issuers: dict[str, auth_pb2.Issuer] = {}
        self.posture = auth_pb2.POSTURE_UNSPECIFIED
        self.signing_keys: dict[str, metadata_pb2.SigningKey] = {}
        self.signing_secrets: dict[str, bytes] = {}
        """Secrets of `signing_keys`."""
        self.stored_secrets = metadata_pb2.ClusterSecrets()
        self.cluster_secrets: tuple[bytes, ...] = ()
        """Accepted secrets of the cluster, the used one first; none before the first replacement."""
        self.version = 0
        """Rises with every change; what was concluded at another version may be wrong."""
        self._user_names: dict[bytes, str] = {}
        self._api_keys: dict[str, str] = {}
        self._certificates: dict[str, set[str]] = {}
        self._own_roles: dict[str, Operation] = {}
        self._quotas: dict[bytes, auth_pb2.Quota] = {}
        self._quota_of: dict[str, auth_pb2.Quota] = {}
        self._applied_quotas: dict[str, auth_pb2.Quota] = {}
        self._grants: dict[bytes, auth_pb2.Grant] = {}
        self._of_principal: dict[str, dict[bytes, auth_pb2.Grant]] = {}
        self._on_cluster: dict[bytes, auth_pb2.Grant] = {}
        self._on_change(0, [found.key for found in source.items(keyspace.identity_prefix)])
        self._unsubscribe = source.subscribe(self._on_change)

    def close(self) -> None:
        """Unsubscribe from the source."""
        self._unsubscribe()

    @property
    def roles(self) -> Mapping[str, Operation]:
        """Operations of every role, those built in included."""
        return {**self._own_roles, **ROLES}

    def signing_key(self, now_ms: int) -> metadata_pb2.SigningKey | None:
        """Return the key that signs now: the newest one that every server has had time to see, else the oldest.

        `None` in a cluster whose controller has made none yet.
        """
        keys = sorted(self.signing_keys.values(), key=lambda key: (key.created_ms, key.key_id))
        known = [key for key in keys if key.created_ms + SIGNS_AFTER_MS <= now_ms]
        return known[-1] if known else next(iter(keys), None)

    def user_of_api_key(self, key_id: str) -> tuple[metadata_pb2.StoredUser, metadata_pb2.StoredApiKey] | None:
        """Return an API key and its user, or `None`."""
        user = self.users.get(self._api_keys.get(key_id, ""))
        if user is None:
            return None
        return next((user, api_key) for api_key in user.api_keys if api_key.key_id == key_id)

    def users_of_certificate(self, names: Iterable[str]) -> set[str]:
        """Return the users that the names in a certificate identify."""
        return {user for name in names for user in self._certificates.get(name, ())}

    def grants_of(self, user: str, groups: Iterable[str]) -> list[ReadGrant]:
        """Return the grants of a user and its groups, expired ones included."""
        found = []
        roles = self.roles
        for principal in (user, *(GROUP_PREFIX + group for group in groups)):
            for grant in self._of_principal.get(principal, {}).values():
                try:
                    pattern, operations = parse_pattern(grant.resource), parse_operations(grant.role, roles)
                except HeadraceError as error:  # of a role that was deleted, or of a newer release
                    log.warning("grant_without_effect", principal=principal, cause=error.message)
                    continue
                found.append(ReadGrant(grant, pattern, operations))
        return found

    def grant(self, grant_id: bytes) -> auth_pb2.Grant | None:
        """Return the grant with the id in a key, or `None`."""
        return self._grants.get(grant_id)

    def grants(self) -> list[auth_pb2.Grant]:
        """Return all grants, by principal, resource and role."""
        return sorted(self._grants.values(), key=lambda grant: (grant.principal, grant.resource, grant.role))

    @property
    def all_grants(self) -> Collection[auth_pb2.Grant]:
        """All grants in no order, expired ones included."""
        return self._grants.values()

    @property
    def cluster_grants(self) -> Collection[auth_pb2.Grant]:
        """Grants on the cluster, expired ones included."""
        return self._on_cluster.values()

    def grants_to(self, principal: str) -> list[auth_pb2.Grant]:
        """Return the grants of a user, without those of its groups, or of `group:NAME`; expired ones included."""
        return list(self._of_principal.get(principal, {}).values())

    def has_grants(self, principal: str) -> bool:
        """Return whether a user or `group:NAME` has a grant."""
        return principal in self._of_principal

    def quotas(self) -> list[auth_pb2.Quota]:
        """Return all quotas that were set, by user."""
        return [self._quota_of[user] for user in sorted(self._quota_of)]

    def quota_of(self, user: str) -> auth_pb2.Quota:
        """See `quotas.QuotaSource`."""
        if user not in self._quota_of:
            user = EVERY_USER
        applied = self._applied_quotas.get(user)
        if applied is None:
            applied = self._applied_quotas[user] = auth_pb2.Quota()
            for quota in (DEFAULT_QUOTA, self._quota_of.get(EVERY_USER), self._quota_of.get(user)):
                if quota is not None:
                    applied.MergeFrom(quota)
        return applied

    # --- changes ---

    def _on_change(self, _revision: int, keys: Sequence[str]) -> None:
        for key in keys:
            self._apply(key, self.source.get(key))
        self.version += 1

    def _apply(self, key: str, found: KeyValue | None) -> None:
        parsed = self._keyspace.parse(key)
        match parsed:
            case UserKey():
                self._take_user(parsed.user_id, self._decode(found, metadata_pb2.StoredUser))
            case GrantKey():
                self._take_grant(parsed.grant_id, self._decode(found, auth_pb2.Grant))
            case RoleKey():
                self._take_role(parsed.name, self._decode(found, auth_pb2.Role))
            case IssuerKey():
                _set(self.issuers, parsed.name, self._decode(found, auth_pb2.Issuer))
            case SigningKeyKey():
                key_of = self._decode(found, metadata_pb2.SigningKey)
                _set(self.signing_keys, parsed.key_id, key_of)
                _set(self.signing_secrets, parsed.key_id, None if key_of is None else key_of.secret)
            case QuotaKey():
                _set(self._quotas, parsed.quota_id, self._decode(found, auth_pb2.Quota))
                self._quota_of = {quota.user: quota for quota in self._quotas.values()}
                self._applied_quotas = {}
            case ClusterSecretsKey():
                secrets = self._decode(found, metadata_pb2.ClusterSecrets) or metadata_pb2.ClusterSecrets()
                self.stored_secrets = secrets
                self.cluster_secrets = tuple(filter(None, (secrets.used, secrets.next, secrets.previous)))
            case PostureKey():
                posture = self._decode(found, metadata_pb2.StoredPosture)
                self.posture = cast(auth_pb2.Posture, 0 if posture is None else posture.posture)

    def _decode(self, found: KeyValue | None, kind: type[ValueT]) -> ValueT | None:
        if found is None:
            return None
        try:
            return cast(ValueT, cast("type[metadata_pb2.StoredUser]", kind).FromString(found.value))
        except DecodeError as error:
            log.error("identity_value_undecodable", key=found.key, cause=str(error))
            return None

    def _take_user(self, user_id: bytes, user: metadata_pb2.StoredUser | None) -> None:
        before = self.users.pop(self._user_names.pop(user_id, ""), None)
        if before is not None:
            for api_key in before.api_keys:
                self._api_keys.pop(api_key.key_id, None)
            for name in before.certificate_names:
                self._certificates[name].discard(before.name)
                if not self._certificates[name]:
                    del self._certificates[name]
        if user is not None:
            self._user_names[user_id] = user.name
            self.users[user.name] = user
            self._api_keys.update((api_key.key_id, user.name) for api_key in user.api_keys)
            for name in user.certificate_names:
                self._certificates.setdefault(name, set()).add(user.name)

    def _take_grant(self, grant_id: bytes, grant: auth_pb2.Grant | None) -> None:
        before = self._grants.pop(grant_id, None)
        self._on_cluster.pop(grant_id, None)
        if before is not None:
            of_principal = self._of_principal[before.principal]
            del of_principal[grant_id]
            if not of_principal:
                del self._of_principal[before.principal]
        if grant is not None:
            self._grants[grant_id] = grant
            if grant.resource == ResourceKind.CLUSTER.value:
                self._on_cluster[grant_id] = grant
            self._of_principal.setdefault(grant.principal, {})[grant_id] = grant

    def _take_role(self, name: str, role: auth_pb2.Role | None) -> None:
        operations = Operation(0)
        for operation in () if role is None else role.operations:
            try:
                operations |= parse_operations(operation, {})
            except HeadraceError:
                log.warning("role_with_unknown_operation", role=name, operation=operation)
        _set(self._own_roles, name, None if role is None else operations)


def _set(values: dict[KeyT, ValueT], key: KeyT, value: ValueT | None) -> None:
    if value is None:
        values.pop(key, None)
    else:
        values[key] = value
