"""Users and rights of the fake cluster: the identity methods of `Admin` over dictionaries."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.client.admin.identity import (
    AccessDecision,
    ApiKeyDescription,
    CallerDescription,
    CreatedApiKey,
    GrantDescription,
    IssuerDescription,
    QuotaDescription,
    RoleDescription,
    UserDescription,
)
from headrace.wire.errors import ConflictError, InvalidRequestError

CREATED_MS = 1_700_000_000_000
DEFAULT_QUOTA = QuotaDescription("*", 5 << 30, 10 << 30, 50_000, 2_048, 20_000, "", 0, is_default=True)
ANONYMOUS = CallerDescription("", (), "", (), "open", 0)


@dataclass
class FakeUsers:
    """Users, grants, roles, issuers and quotas."""

    users: dict[str, UserDescription] = field(default_factory=dict)
    grants: dict[tuple[str, str, str], GrantDescription] = field(default_factory=dict)
    roles: dict[str, RoleDescription] = field(
        default_factory=lambda: {"reader": RoleDescription("reader", ("describe", "read"), True)}
    )
    issuers: dict[str, IssuerDescription] = field(default_factory=dict)
    quotas: dict[str, QuotaDescription] = field(default_factory=dict)
    caller: CallerDescription = ANONYMOUS
    posture: str = "open"
    # The least that the settings of the servers demand.
    demanded: str = "open"


class FakeUserMethods:
    """See the module; `held.identity` is its `FakeUsers`."""

    held: Any

    @property
    def _identity(self) -> FakeUsers:
        found: FakeUsers = self.held.identity
        return found

    def create_user(
        self,
        name: str,
        *,
        groups: Sequence[str] = (),
        description: str = "",
        certificate_names: Sequence[str] = (),
    ) -> UserDescription:
        if name in self._identity.users:
            raise ConflictError(f"user {name} exists", retriable=False, action="Choose another name.")
        made = UserDescription(name, False, tuple(groups), description, (), tuple(certificate_names), CREATED_MS)
        self._identity.users[name] = made
        return made

    def alter_user(self, name: str, *, disabled: bool | None = None) -> UserDescription:
        self._identity.users[name] = replace(self.describe_user(name), disabled=bool(disabled))
        return self._identity.users[name]

    def delete_user(self, name: str) -> None:
        self.describe_user(name)
        del self._identity.users[name]

    def list_users(self) -> list[UserDescription]:
        return list(self._identity.users.values())

    def describe_user(self, name: str) -> UserDescription:
        if name not in self._identity.users:
            raise InvalidRequestError(f"there is no user {name!r}", action="Look.")
        return self._identity.users[name]

    def create_api_key(self, user: str, *, description: str = "", lifetime_ms: int = 0) -> CreatedApiKey:
        found = self.describe_user(user)
        number = len(found.api_keys) + 1
        expires_ms = CREATED_MS + lifetime_ms if lifetime_ms else 0
        made = ApiKeyDescription(f"{number:012}", description, CREATED_MS, expires_ms)
        self._identity.users[user] = replace(found, api_keys=(*found.api_keys, made))
        return CreatedApiKey(made.key_id, f"hrk_{made.key_id}_{'s' * 43}", made.expires_ms)

    def delete_api_key(self, key_id: str) -> None:
        for name, user in self._identity.users.items():
            kept = tuple(key for key in user.api_keys if key.key_id != key_id)
            self._identity.users[name] = replace(user, api_keys=kept)

    def grant(self, principal: str, role: str, resource: str, *, expires_ms: int = 0) -> GrantDescription:
        made = GrantDescription(principal, role, resource, expires_ms, "root", CREATED_MS)
        self._identity.grants[principal, role, resource] = made
        return made

    def revoke(self, principal: str, role: str, resource: str) -> bool:
        return self._identity.grants.pop((principal, role, resource), None) is not None

    def list_grants(self, principal: str = "", resource: str = "") -> list[GrantDescription]:
        return [
            grant
            for grant in self._identity.grants.values()
            if principal in ("", grant.principal) and resource in ("", grant.resource)
        ]

    def create_role(self, name: str, operations: Sequence[str]) -> None:
        self._identity.roles[name] = RoleDescription(name, tuple(operations), False)

    def delete_role(self, name: str) -> bool:
        return self._identity.roles.pop(name, None) is not None

    def list_roles(self) -> list[RoleDescription]:
        return list(self._identity.roles.values())

    def create_issuer(
        self,
        name: str,
        *,
        issuer: str,
        audience: str,
        keys_url: str,
        keys_ca_pem: str = "",
        algorithms: Sequence[str] = (),
        user_claim: str = "",
        groups_claim: str = "",
    ) -> None:
        self._identity.issuers[name] = IssuerDescription(
            name, issuer, audience, keys_url, keys_ca_pem, tuple(algorithms), user_claim, groups_claim
        )

    def delete_issuer(self, name: str) -> bool:
        return self._identity.issuers.pop(name, None) is not None

    def list_issuers(self) -> list[IssuerDescription]:
        return list(self._identity.issuers.values())

    def put_quota(
        self,
        user: str,
        *,
        produce_bytes_per_second: int | None = None,
        fetch_bytes_per_second: int | None = None,
        requests_per_second: int | None = None,
        connections: int | None = None,
        changes_per_minute: int | None = None,
    ) -> None:
        bounds = produce_bytes_per_second, fetch_bytes_per_second, requests_per_second, connections, changes_per_minute
        self._identity.quotas[user] = QuotaDescription(user, *bounds, "root", CREATED_MS)

    def delete_quota(self, user: str) -> bool:
        return self._identity.quotas.pop(user, None) is not None

    def list_quotas(self) -> list[QuotaDescription]:
        return [DEFAULT_QUOTA, *self._identity.quotas.values()]

    def check_access(
        self, operation: str, resource: str, *, user: str = "", groups: Sequence[str] = ()
    ) -> AccessDecision:
        who = [user or self._identity.caller.user, *(f"group:{group}" for group in groups)]
        for grant in self._identity.grants.values():
            operations = self._identity.roles[grant.role].operations
            if grant.principal in who and grant.resource == resource and operation in operations:
                return AccessDecision(True, f"{grant.principal} has {grant.role} on {resource}", grant)
        return AccessDecision(False, f"{who[0]} has no grant of {operation} that covers {resource}", None)

    def who_am_i(self) -> CallerDescription:
        return replace(self._identity.caller, posture=self._identity.posture)

    def set_posture(self, posture: str) -> str:
        order = ("open", "observe", "required")
        self._identity.posture = max(posture, self._identity.demanded, key=order.index)
        return self._identity.posture
