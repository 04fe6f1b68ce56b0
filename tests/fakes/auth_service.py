"""`AuthService` over dictionaries: users, API keys, grants, roles, issuers, quotas, posture of a fake cluster."""

from __future__ import annotations

from typing import Any, NoReturn

import grpc
from headrace.v1 import auth_pb2, auth_pb2_grpc
from headrace.wire.errors import (
    GRPC_STATUS,
    STATUS_DETAILS_KEY,
    ConflictError,
    HeadraceError,
    InvalidRequestError,
    Outcome,
    to_status_bytes,
)

CREATED_MS = 1_700_000_000_000


class FakeAuthService(auth_pb2_grpc.AuthServiceServicer):
    """Tests look at its dictionaries."""

    def __init__(self) -> None:
        self.users: dict[str, auth_pb2.User] = {}
        self.grants: dict[tuple[str, str, str], auth_pb2.Grant] = {}
        self.roles = {
            "reader": auth_pb2.Role(name="reader", operations=["describe", "read"], built_in=True),
            "admin": auth_pb2.Role(name="admin", operations=["admin"], built_in=True),
        }
        self.issuers: dict[str, auth_pb2.Issuer] = {}
        self.quotas: dict[str, auth_pb2.Quota] = {}
        self.posture: auth_pb2.Posture = auth_pb2.POSTURE_OPEN
        self.requests: list[Any] = []

    def PutUser(self, request: auth_pb2.PutUserRequest, context: grpc.ServicerContext) -> auth_pb2.PutUserResponse:
        """Create or replace; keys stay."""
        self.requests.append(request)
        before = self.users.get(request.user.name)
        if before is not None and request.create_only:
            refuse(ConflictError("the user exists", outcome=Outcome.NOT_APPLIED, retriable=False), context)
        user = auth_pb2.User()
        user.CopyFrom(request.user)
        user.created_ms = CREATED_MS if before is None else before.created_ms
        del user.api_keys[:]
        user.api_keys.extend([] if before is None else before.api_keys)
        self.users[user.name] = user
        return auth_pb2.PutUserResponse(user=user)

    def DeleteUser(
        self, request: auth_pb2.DeleteUserRequest, context: grpc.ServicerContext
    ) -> auth_pb2.DeleteUserResponse:
        """Delete one that exists."""
        self.requests.append(request)
        if self.users.pop(request.name, None) is None:
            refuse(InvalidRequestError(f"there is no user {request.name!r}"), context)
        return auth_pb2.DeleteUserResponse()

    def ListUsers(
        self, request: auth_pb2.ListUsersRequest, context: grpc.ServicerContext
    ) -> auth_pb2.ListUsersResponse:
        """Return those that exist."""
        self.requests.append(request)
        names = request.names or self.users
        return auth_pb2.ListUsersResponse(users=[self.users[name] for name in names if name in self.users])

    def CreateApiKey(
        self, request: auth_pb2.CreateApiKeyRequest, context: grpc.ServicerContext
    ) -> auth_pb2.CreateApiKeyResponse:
        """Create a key with an id that counts."""
        self.requests.append(request)
        if request.user not in self.users:
            refuse(InvalidRequestError(f"there is no user {request.user!r}"), context)
        user = self.users[request.user]
        made = auth_pb2.ApiKey(
            key_id=f"{len(user.api_keys) + 1:012}",
            description=request.description,
            created_ms=CREATED_MS,
            expires_ms=CREATED_MS + request.lifetime_ms if request.lifetime_ms else 0,
        )
        user.api_keys.append(made)
        return auth_pb2.CreateApiKeyResponse(api_key=made, secret=f"hrk_{made.key_id}_{'s' * 43}")

    def DeleteApiKey(
        self, request: auth_pb2.DeleteApiKeyRequest, context: grpc.ServicerContext
    ) -> auth_pb2.DeleteApiKeyResponse:
        """Delete one that exists."""
        self.requests.append(request)
        user = next((user for user in self.users.values() if request.key_id in _key_ids(user)), None)
        if user is None:
            refuse(InvalidRequestError(f"there is no API key {request.key_id!r}"), context)
        kept = [key for key in user.api_keys if key.key_id != request.key_id]
        del user.api_keys[:]
        user.api_keys.extend(kept)
        return auth_pb2.DeleteApiKeyResponse()

    def PutGrant(self, request: auth_pb2.PutGrantRequest, context: grpc.ServicerContext) -> auth_pb2.PutGrantResponse:
        """Store it with who granted it."""
        self.requests.append(request)
        grant = auth_pb2.Grant()
        grant.CopyFrom(request.grant)
        grant.granted_by, grant.granted_ms = "root", CREATED_MS
        self.grants[grant.principal, grant.role, grant.resource] = grant
        return auth_pb2.PutGrantResponse(grant=grant)

    def DeleteGrant(
        self, request: auth_pb2.DeleteGrantRequest, context: grpc.ServicerContext
    ) -> auth_pb2.DeleteGrantResponse:
        """Delete it if it is there."""
        self.requests.append(request)
        return auth_pb2.DeleteGrantResponse(
            missing=self.grants.pop((request.principal, request.role, request.resource), None) is None
        )

    def ListGrants(
        self, request: auth_pb2.ListGrantsRequest, context: grpc.ServicerContext
    ) -> auth_pb2.ListGrantsResponse:
        """Compare texts; the real one compares prefixes."""
        self.requests.append(request)
        found = [
            grant
            for (principal, _, resource), grant in self.grants.items()
            if request.principal in ("", principal) and request.resource in ("", resource)
        ]
        return auth_pb2.ListGrantsResponse(grants=found)

    def PutRole(self, request: auth_pb2.PutRoleRequest, context: grpc.ServicerContext) -> auth_pb2.PutRoleResponse:
        """Create or replace."""
        self.requests.append(request)
        self.roles[request.role.name] = request.role
        return auth_pb2.PutRoleResponse()

    def DeleteRole(
        self, request: auth_pb2.DeleteRoleRequest, context: grpc.ServicerContext
    ) -> auth_pb2.DeleteRoleResponse:
        """Delete it if it is there."""
        self.requests.append(request)
        return auth_pb2.DeleteRoleResponse(missing=self.roles.pop(request.name, None) is None)

    def ListRoles(
        self, request: auth_pb2.ListRolesRequest, context: grpc.ServicerContext
    ) -> auth_pb2.ListRolesResponse:
        """Return all."""
        return auth_pb2.ListRolesResponse(roles=self.roles.values())

    def PutIssuer(
        self, request: auth_pb2.PutIssuerRequest, context: grpc.ServicerContext
    ) -> auth_pb2.PutIssuerResponse:
        """Create or replace."""
        self.requests.append(request)
        self.issuers[request.issuer.name] = request.issuer
        return auth_pb2.PutIssuerResponse()

    def DeleteIssuer(
        self, request: auth_pb2.DeleteIssuerRequest, context: grpc.ServicerContext
    ) -> auth_pb2.DeleteIssuerResponse:
        """Delete it if it is there."""
        self.requests.append(request)
        return auth_pb2.DeleteIssuerResponse(missing=self.issuers.pop(request.name, None) is None)

    def ListIssuers(
        self, request: auth_pb2.ListIssuersRequest, context: grpc.ServicerContext
    ) -> auth_pb2.ListIssuersResponse:
        """Return all."""
        return auth_pb2.ListIssuersResponse(issuers=self.issuers.values())

    def PutQuota(self, request: auth_pb2.PutQuotaRequest, context: grpc.ServicerContext) -> auth_pb2.PutQuotaResponse:
        """Create or replace, with who set it."""
        self.requests.append(request)
        quota = auth_pb2.Quota()
        quota.CopyFrom(request.quota)
        quota.set_by, quota.set_ms = "root", CREATED_MS
        self.quotas[quota.user] = quota
        return auth_pb2.PutQuotaResponse()

    def DeleteQuota(
        self, request: auth_pb2.DeleteQuotaRequest, context: grpc.ServicerContext
    ) -> auth_pb2.DeleteQuotaResponse:
        """Delete it if it is there."""
        self.requests.append(request)
        return auth_pb2.DeleteQuotaResponse(missing=self.quotas.pop(request.user, None) is None)

    def ListQuotas(
        self, request: auth_pb2.ListQuotasRequest, context: grpc.ServicerContext
    ) -> auth_pb2.ListQuotasResponse:
        """Return all."""
        default = auth_pb2.Quota(user="*", requests_per_second=50_000, connections=0)
        return auth_pb2.ListQuotasResponse(quotas=self.quotas.values(), default_quota=default)

    def CheckAccess(
        self, request: auth_pb2.CheckAccessRequest, context: grpc.ServicerContext
    ) -> auth_pb2.CheckAccessResponse:
        """Allow what a grant with this very resource allows."""
        self.requests.append(request)
        user = request.user or "ada"
        for (principal, role, resource), grant in self.grants.items():
            names = (user, *(f"group:{name}" for name in request.groups))
            allows = request.operation in self.roles[role].operations
            if principal in names and resource == request.resource and allows:
                reason = f"{principal} has {role} on {resource}"
                return auth_pb2.CheckAccessResponse(allowed=True, reason=reason, grant=grant)
        return auth_pb2.CheckAccessResponse(reason=f"{user} has no grant of {request.operation}")

    def SetPosture(
        self, request: auth_pb2.SetPostureRequest, context: grpc.ServicerContext
    ) -> auth_pb2.SetPostureResponse:
        """Change it."""
        self.requests.append(request)
        self.posture = request.posture
        return auth_pb2.SetPostureResponse(posture=self.posture)


def _key_ids(user: auth_pb2.User) -> list[str]:
    return [key.key_id for key in user.api_keys]


def refuse(error: HeadraceError, context: grpc.ServicerContext) -> NoReturn:
    """End the call with a typed error."""
    context.set_trailing_metadata(((STATUS_DETAILS_KEY, to_status_bytes(error)),))
    context.abort(GRPC_STATUS[error.code], error.message)
    raise AssertionError("unreachable: abort raises")
