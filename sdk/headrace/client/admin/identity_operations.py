"""Operations of `Admin` on users, API keys, grants, roles, issuers and quotas. No I/O. Coordinators serve them."""

from collections.abc import Sequence
from typing import Any

from headrace.client.admin import identity
from headrace.client.admin.identity import (
    AccessDecision,
    CallerDescription,
    CreatedApiKey,
    GrantDescription,
    IssuerDescription,
    QuotaDescription,
    RoleDescription,
    UserDescription,
)
from headrace.client.base.config import ClientConfig
from headrace.client.base.operations import Operation
from headrace.client.net.bootstrap_client import BootstrapClient
from headrace.v1 import auth_pb2
from headrace.wire.errors import InvalidRequestError


class AdminIdentityOperations:
    """Identity operations of one client; any thread. `timeout` in seconds is for all tries (default:
    request_timeout_ms).

    Arguments, results and errors are documented in the methods of `headrace.client.admin.admin.Admin`.
    """

    def __init__(self, config: ClientConfig, calls: BootstrapClient) -> None:
        self._config = config
        self._calls = calls

    # --- users ---

    def create_user(
        self,
        name: str,
        groups: Sequence[str],
        description: str,
        certificate_names: Sequence[str],
        *,
        disabled: bool,
        timeout: float | None,
    ) -> Operation[UserDescription]:
        """Create a user. Not repeated after a lost response: the second try would find the user of the first."""
        user = auth_pb2.User(
            name=name,
            groups=groups,
            description=description,
            certificate_names=certificate_names,
            disabled=disabled,
        )
        request = auth_pb2.PutUserRequest(user=user, create_only=True)
        response = yield from self._ask("PutUser", request, timeout, repeatable=False)
        return identity.user_description(response.user)

    def alter_user(
        self,
        name: str,
        groups: Sequence[str] | None,
        description: str | None,
        certificate_names: Sequence[str] | None,
        *,
        disabled: bool | None,
        timeout: float | None,
    ) -> Operation[UserDescription]:
        """Change a user: read it, and write it with the changes."""
        found = yield from self.describe_user(name, timeout)
        user = auth_pb2.User(
            name=name,
            groups=found.groups if groups is None else groups,
            description=found.description if description is None else description,
            certificate_names=found.certificate_names if certificate_names is None else certificate_names,
            disabled=found.disabled if disabled is None else disabled,
        )
        response = yield from self._ask("PutUser", auth_pb2.PutUserRequest(user=user), timeout)
        return identity.user_description(response.user)

    def delete_user(self, name: str, timeout: float | None) -> Operation[None]:
        """Delete a user. Not repeated after a lost response: the second try would find none."""
        yield from self._ask("DeleteUser", auth_pb2.DeleteUserRequest(name=name), timeout, repeatable=False)

    def list_users(self, timeout: float | None) -> Operation[list[UserDescription]]:
        """List the users."""
        response = yield from self._ask("ListUsers", auth_pb2.ListUsersRequest(), timeout)
        return sorted(map(identity.user_description, response.users), key=lambda user: user.name)

    def describe_user(self, name: str, timeout: float | None) -> Operation[UserDescription]:
        """Describe one user."""
        response = yield from self._ask("ListUsers", auth_pb2.ListUsersRequest(names=[name]), timeout)
        if not response.users:
            raise InvalidRequestError(f"there is no user {name!r}", action="`headrace user list` has their names.")
        return identity.user_description(response.users[0])

    # --- API keys ---

    def create_api_key(
        self, user: str, description: str, lifetime_ms: int, timeout: float | None
    ) -> Operation[CreatedApiKey]:
        """Create an API key. Not repeated after a lost response: the key of the first try would stay."""
        request = auth_pb2.CreateApiKeyRequest(user=user, description=description, lifetime_ms=lifetime_ms)
        response = yield from self._ask("CreateApiKey", request, timeout, repeatable=False)
        return CreatedApiKey(response.api_key.key_id, response.secret, response.api_key.expires_ms)

    def delete_api_key(self, key_id: str, timeout: float | None) -> Operation[None]:
        """Delete an API key. Not repeated after a lost response: the second try would find none."""
        request = auth_pb2.DeleteApiKeyRequest(key_id=key_id)
        yield from self._ask("DeleteApiKey", request, timeout, repeatable=False)

    # --- grants ---

    def grant(
        self, principal: str, role: str, resource: str, expires_ms: int, timeout: float | None
    ) -> Operation[GrantDescription]:
        """Grant a role."""
        grant = auth_pb2.Grant(principal=principal, role=role, resource=resource, expires_ms=expires_ms)
        response = yield from self._ask("PutGrant", auth_pb2.PutGrantRequest(grant=grant), timeout)
        return identity.grant_description(response.grant)

    def revoke(self, principal: str, role: str, resource: str, timeout: float | None) -> Operation[bool]:
        """Delete a grant; return whether there was one."""
        request = auth_pb2.DeleteGrantRequest(principal=principal, role=role, resource=resource)
        return not (yield from self._ask("DeleteGrant", request, timeout)).missing

    def list_grants(self, principal: str, resource: str, timeout: float | None) -> Operation[list[GrantDescription]]:
        """List grants."""
        request = auth_pb2.ListGrantsRequest(principal=principal, resource=resource)
        return identity.grant_descriptions((yield from self._ask("ListGrants", request, timeout)).grants)

    # --- roles ---

    def create_role(self, name: str, operations: Sequence[str], timeout: float | None) -> Operation[None]:
        """Create a role, or replace its operations."""
        role = auth_pb2.Role(name=name, operations=operations)
        yield from self._ask("PutRole", auth_pb2.PutRoleRequest(role=role), timeout)

    def delete_role(self, name: str, timeout: float | None) -> Operation[bool]:
        """Delete a role; return whether there was one."""
        return not (yield from self._ask("DeleteRole", auth_pb2.DeleteRoleRequest(name=name), timeout)).missing

    def list_roles(self, timeout: float | None) -> Operation[list[RoleDescription]]:
        """List the roles."""
        return identity.role_descriptions((yield from self._ask("ListRoles", auth_pb2.ListRolesRequest(), timeout)))

    # --- issuers ---

    def create_issuer(self, issuer: auth_pb2.Issuer, timeout: float | None) -> Operation[None]:
        """Accept the tokens of an issuer, or change how."""
        yield from self._ask("PutIssuer", auth_pb2.PutIssuerRequest(issuer=issuer), timeout)

    def delete_issuer(self, name: str, timeout: float | None) -> Operation[bool]:
        """Accept the tokens of an issuer no more; return whether there was one."""
        return not (yield from self._ask("DeleteIssuer", auth_pb2.DeleteIssuerRequest(name=name), timeout)).missing

    def list_issuers(self, timeout: float | None) -> Operation[list[IssuerDescription]]:
        """List the issuers."""
        request = auth_pb2.ListIssuersRequest()
        return identity.issuer_descriptions((yield from self._ask("ListIssuers", request, timeout)))

    # --- quotas ---

    def put_quota(self, quota: auth_pb2.Quota, timeout: float | None) -> Operation[None]:
        """Bound what a server serves one user, or change the bounds."""
        yield from self._ask("PutQuota", auth_pb2.PutQuotaRequest(quota=quota), timeout)

    def delete_quota(self, user: str, timeout: float | None) -> Operation[bool]:
        """Delete a quota; return whether there was one."""
        return not (yield from self._ask("DeleteQuota", auth_pb2.DeleteQuotaRequest(user=user), timeout)).missing

    def list_quotas(self, timeout: float | None) -> Operation[list[QuotaDescription]]:
        """List the quotas."""
        return identity.quota_descriptions((yield from self._ask("ListQuotas", auth_pb2.ListQuotasRequest(), timeout)))

    # --- access ---

    def check_access(
        self, operation: str, resource: str, user: str, groups: Sequence[str], timeout: float | None
    ) -> Operation[AccessDecision]:
        """Return whether a user may do something."""
        request = auth_pb2.CheckAccessRequest(user=user, groups=groups, operation=operation, resource=resource)
        return identity.access_decision((yield from self._ask("CheckAccess", request, timeout)))

    def who_am_i(self, timeout: float | None) -> Operation[CallerDescription]:
        """Describe this client."""
        response = yield from self._ask("WhoAmI", auth_pb2.WhoAmIRequest(), timeout, service="session")
        return identity.caller_description(response)

    def set_posture(self, posture: str, timeout: float | None) -> Operation[str]:
        """Change the posture; return the one in force."""
        request = auth_pb2.SetPostureRequest(posture=identity.posture_of(posture))
        return identity.posture_name((yield from self._ask("SetPosture", request, timeout)).posture)

    def _ask(
        self, method: str, request: Any, timeout: float | None, *, repeatable: bool = True, service: str = "auth"
    ) -> Operation[Any]:
        seconds = self._config.request_timeout_ms / 1000 if timeout is None else timeout
        return self._calls.coordinator(method, request, seconds, repeatable=repeatable, service=service)
