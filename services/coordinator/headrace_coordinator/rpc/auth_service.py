"""`AuthService`: users, API keys, grants, roles, issuers, quotas and the posture. Every coordinator serves every call.

By `methods.METHODS` most calls need ADMIN on the cluster. Questions about the caller itself and changes of its own API
keys, which a program replaces by itself, do not: these handlers check whom a request names. A call returns once this
coordinator's view shows what it wrote. Belongs to the event loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import structlog
from headrace.v1 import auth_pb2, auth_pb2_grpc
from headrace.wire.errors import InvalidRequestError
from headrace_server.clock import Clock
from headrace_server.identity.callers import Proof, explain, to_api_key, to_user
from headrace_server.identity.gate import IdentityGate, access
from headrace_server.identity.identity_view import IdentityView
from headrace_server.identity.quotas import DEFAULT_QUOTA
from headrace_server.identity.rights import (
    EVERYTHING,
    ROLES,
    Operation,
    Pattern,
    ResourceKind,
    Rights,
    operation_names,
    parse_operations,
    parse_pattern,
)
from headrace_server.requests import check_client_id
from headrace_server.rpc import LIGHT_ITEMS_PER_TURN, let_others_run, unary

from headrace_coordinator.core.identity_rules import check_own_lifetime
from headrace_coordinator.metrics import CoordinatorMetrics
from headrace_coordinator.rpc.answers import Answers
from headrace_coordinator.runtime.identity_policies import IdentityPolicies
from headrace_coordinator.runtime.identity_store import IdentityStore, deleted_api_key, unknown_api_key

log = structlog.get_logger(__name__)

SERVICE_NAME = "headrace.v1.AuthService"


class AuthServicer(auth_pb2_grpc.AuthServiceServicer):
    """The servicer of one coordinator."""

    def __init__(
        self,
        gate: IdentityGate,
        *,
        store: IdentityStore,
        policies: IdentityPolicies,
        answers: Answers,
        metrics: CoordinatorMetrics,
        clock: Clock,
    ) -> None:
        """`answers` waits for the view of identity."""
        self._gate = gate
        self._view: IdentityView = gate.view
        self._store = store
        self._policies = policies
        self._answers = answers
        self._clock = clock
        self.call_errors = metrics.common.call_errors
        self.call_seconds = metrics.timers(SERVICE_NAME)

    # --- users ---

    @unary
    async def PutUser(self, request: auth_pb2.PutUserRequest, context: Any) -> auth_pb2.PutUserResponse:
        """See the proto."""
        by = _caller_name(request.client_id)
        deadline = self._deadline(context)
        stored, revision = await self._store.put_user(request.user, deadline, create_only=request.create_only)
        await self._answers.see(revision, deadline)
        log.info("user_written", user=stored.name, disabled=stored.disabled, by=by)
        return auth_pb2.PutUserResponse(user=to_user(stored))

    @unary
    async def DeleteUser(self, request: auth_pb2.DeleteUserRequest, context: Any) -> auth_pb2.DeleteUserResponse:
        """See the proto."""
        by = _caller_name(request.client_id)
        await self._write(context, self._store.delete_user, request.name)
        log.info("user_deleted", user=request.name, by=by)
        return auth_pb2.DeleteUserResponse()

    @unary
    async def ListUsers(self, request: auth_pb2.ListUsersRequest, context: Any) -> auth_pb2.ListUsersResponse:
        """See the proto."""
        _caller_name(request.client_id)
        users = self._view.users
        response = auth_pb2.ListUsersResponse()
        for index, name in enumerate(sorted(set(request.names) if request.names else users)):
            await let_others_run(index, LIGHT_ITEMS_PER_TURN)
            if name in users:
                response.users.append(to_user(users[name]))
        return response

    # --- API keys ---

    @unary
    async def CreateApiKey(self, request: auth_pb2.CreateApiKeyRequest, context: Any) -> auth_pb2.CreateApiKeyResponse:
        """See the proto. A user may create its own, as `check_own_lifetime` says."""
        by = self._administrator_or(request.client_id, request.user)
        self._check_own_lifetime(request.lifetime_ms)
        deadline = self._deadline(context)
        identity = access().caller.identity
        creator = identity if identity.user == request.user else None
        created = await self._store.create_api_key(
            request.user, request.description, request.lifetime_ms, deadline, creator=creator
        )
        await self._answers.see(created.revision, deadline)
        log.info("api_key_created", user=request.user, key_id=created.stored.key_id, by=by)
        return auth_pb2.CreateApiKeyResponse(api_key=to_api_key(created.stored), secret=created.text)

    @unary
    async def DeleteApiKey(self, request: auth_pb2.DeleteApiKeyRequest, context: Any) -> auth_pb2.DeleteApiKeyResponse:
        """See the proto. A user may delete its own."""
        found = self._view.user_of_api_key(request.key_id)
        user = "" if found is None else found[0].name
        by = self._administrator_or(request.client_id, user)
        if found is None:
            raise unknown_api_key(request.key_id)
        await self._write(context, self._store.delete_api_key, request.key_id)
        log.info("api_key_deleted", user=user, key_id=request.key_id, by=by)
        return auth_pb2.DeleteApiKeyResponse()

    # --- grants ---

    @unary
    async def PutGrant(self, request: auth_pb2.PutGrantRequest, context: Any) -> auth_pb2.PutGrantResponse:
        """See the proto. A grant that exists with the same expiry is left as it is."""
        by = _caller_name(request.client_id)
        deadline = self._deadline(context)
        grant, revision = await self._store.put_grant(request.grant, by, deadline)
        await self._answers.see(revision, deadline)
        log.info("grant_written", principal=grant.principal, role=grant.role, resource=grant.resource, by=by)
        return auth_pb2.PutGrantResponse(grant=grant)

    @unary
    async def DeleteGrant(self, request: auth_pb2.DeleteGrantRequest, context: Any) -> auth_pb2.DeleteGrantResponse:
        """See the proto."""
        by = _caller_name(request.client_id)
        wanted = request.principal, request.role, request.resource
        existed = await self._write(context, self._store.delete_grant, *wanted)
        if existed:
            log.info("grant_deleted", principal=request.principal, role=request.role, resource=request.resource, by=by)
        return auth_pb2.DeleteGrantResponse(missing=not existed)

    @unary
    async def ListGrants(self, request: auth_pb2.ListGrantsRequest, context: Any) -> auth_pb2.ListGrantsResponse:
        """See the proto."""
        _caller_name(request.client_id)
        grants = self._view.grants_to(request.principal) if request.principal else self._view.grants()
        wanted = parse_pattern(request.resource) if request.resource else None
        response = auth_pb2.ListGrantsResponse()
        for index, grant in enumerate(grants):
            await let_others_run(index, LIGHT_ITEMS_PER_TURN)
            if wanted is None or _covers(grant.resource, wanted):
                response.grants.append(grant)
        return response

    # --- roles ---

    @unary
    async def PutRole(self, request: auth_pb2.PutRoleRequest, context: Any) -> auth_pb2.PutRoleResponse:
        """See the proto."""
        by = _caller_name(request.client_id)
        await self._write(context, self._policies.put_role, request.role)
        log.info("role_written", role=request.role.name, operations=list(request.role.operations), by=by)
        return auth_pb2.PutRoleResponse()

    @unary
    async def DeleteRole(self, request: auth_pb2.DeleteRoleRequest, context: Any) -> auth_pb2.DeleteRoleResponse:
        """See the proto. A role that grants name is not deleted."""
        by = _caller_name(request.client_id)
        existed = await self._write(context, self._policies.delete_role, request.name)
        if existed:
            log.info("role_deleted", role=request.name, by=by)
        return auth_pb2.DeleteRoleResponse(missing=not existed)

    @unary
    async def ListRoles(self, request: auth_pb2.ListRolesRequest, context: Any) -> auth_pb2.ListRolesResponse:
        """See the proto. Every caller may see them."""
        _caller_name(request.client_id)
        return auth_pb2.ListRolesResponse(
            roles=[
                auth_pb2.Role(name=name, operations=operation_names(operations), built_in=name in ROLES)
                for name, operations in sorted(self._view.roles.items())
            ]
        )

    # --- issuers ---

    @unary
    async def PutIssuer(self, request: auth_pb2.PutIssuerRequest, context: Any) -> auth_pb2.PutIssuerResponse:
        """See the proto."""
        by = _caller_name(request.client_id)
        await self._write(context, self._policies.put_issuer, request.issuer)
        log.info("issuer_written", issuer=request.issuer.name, keys_url=request.issuer.keys_url, by=by)
        return auth_pb2.PutIssuerResponse()

    @unary
    async def DeleteIssuer(self, request: auth_pb2.DeleteIssuerRequest, context: Any) -> auth_pb2.DeleteIssuerResponse:
        """See the proto. The sessions of its users end."""
        by = _caller_name(request.client_id)
        existed = await self._write(context, self._policies.delete_issuer, request.name)
        if existed:
            log.info("issuer_deleted", issuer=request.name, by=by)
        return auth_pb2.DeleteIssuerResponse(missing=not existed)

    @unary
    async def ListIssuers(self, request: auth_pb2.ListIssuersRequest, context: Any) -> auth_pb2.ListIssuersResponse:
        """See the proto."""
        _caller_name(request.client_id)
        return auth_pb2.ListIssuersResponse(issuers=[self._view.issuers[name] for name in sorted(self._view.issuers)])

    # --- quotas ---

    @unary
    async def PutQuota(self, request: auth_pb2.PutQuotaRequest, context: Any) -> auth_pb2.PutQuotaResponse:
        """See the proto."""
        by = _caller_name(request.client_id)
        await self._write(context, self._policies.put_quota, request.quota, by)
        log.info("quota_written", user=request.quota.user, by=by)
        return auth_pb2.PutQuotaResponse()

    @unary
    async def DeleteQuota(self, request: auth_pb2.DeleteQuotaRequest, context: Any) -> auth_pb2.DeleteQuotaResponse:
        """See the proto."""
        by = _caller_name(request.client_id)
        existed = await self._write(context, self._policies.delete_quota, request.user)
        if existed:
            log.info("quota_deleted", user=request.user, by=by)
        return auth_pb2.DeleteQuotaResponse(missing=not existed)

    @unary
    async def ListQuotas(self, request: auth_pb2.ListQuotasRequest, context: Any) -> auth_pb2.ListQuotasResponse:
        """See the proto."""
        _caller_name(request.client_id)
        return auth_pb2.ListQuotasResponse(quotas=self._view.quotas(), default_quota=DEFAULT_QUOTA)

    # --- access ---

    @unary
    async def CheckAccess(self, request: auth_pb2.CheckAccessRequest, context: Any) -> auth_pb2.CheckAccessResponse:
        """See the proto. A caller may ask about itself."""
        _caller_name(request.client_id)
        caller = access().caller
        own = caller.identity.user
        user = request.user or own
        if caller.is_known and user == own and set(request.groups) <= set(caller.groups):
            groups = [*request.groups] or [*caller.groups]
        else:
            access().require(Operation.ADMIN, ResourceKind.CLUSTER)
            groups = [*request.groups]
        if not user:
            raise InvalidRequestError("the request names no user, and the call has no identity", action="Name a user.")
        operation = parse_operations(request.operation, {})
        now_ms = self._clock.now_ms()
        reason, grant = explain(self._view, user, groups, operation, request.resource, now_ms)
        return auth_pb2.CheckAccessResponse(
            allowed=grant is not None, reason=reason, grant=None if grant is None else grant.grant
        )

    @unary
    async def SetPosture(self, request: auth_pb2.SetPostureRequest, context: Any) -> auth_pb2.SetPostureResponse:
        """See the proto."""
        by = _caller_name(request.client_id)
        await self._write(context, self._policies.set_posture, request.posture, by)
        log.warning("posture_changed", posture=auth_pb2.Posture.Name(request.posture), by=by)
        return auth_pb2.SetPostureResponse(posture=self._gate.posture)

    def _administrator_or(self, client_id: str, user: str) -> str:
        """Check that the caller is `user` or administers the cluster; return its name.

        Raises:
            NotAuthorizedError: If it is neither.
            InvalidRequestError: If the client id is too long.
        """
        caller = access().caller
        if not caller.is_known or not user or caller.identity.user != user:
            access().require(Operation.ADMIN, ResourceKind.CLUSTER)
        return _caller_name(client_id)

    def _check_own_lifetime(self, lifetime_ms: int) -> None:
        """Check the lifetime of a key that the caller creates for itself; raise as the rule of this name, and
        UnauthenticatedError if the key of the call was deleted.
        """
        caller = access().caller
        if caller.identity.proof is not Proof.API_KEY or caller.allows(Operation.ADMIN, ResourceKind.CLUSTER):
            return
        found = self._view.user_of_api_key(caller.identity.credential)
        if found is None:
            raise deleted_api_key()
        check_own_lifetime(lifetime_ms, found[1])

    async def _write(self, context: Any, write: Callable[..., Awaitable[int]], *arguments: Any) -> bool:
        """Await `write(*arguments, deadline)` of a store, and this coordinator's view; return whether it wrote."""
        deadline = self._deadline(context)
        revision = await write(*arguments, deadline)
        await self._answers.see(revision, deadline)
        return revision != 0

    def _deadline(self, context: Any) -> float:
        return self._answers.deadline(0, context.time_remaining())


def _caller_name(client_id: str) -> str:
    """Check the client id, and return the name of the caller, for the log.

    Raises:
        InvalidRequestError: If the client id is too long.
    """
    check_client_id(client_id)
    return access().caller.name


def _covers(resource: str, wanted: Pattern) -> bool:
    """Return whether a grant on `resource` is one on everything that `wanted` names."""
    try:
        rights = Rights([(parse_pattern(resource), EVERYTHING)])
    except InvalidRequestError:  # Of a newer release.
        return False
    return all(
        rights.allow_all(Operation.DESCRIBE, kind, wanted.name)
        if wanted.is_prefix
        else rights.allow(Operation.DESCRIBE, kind, wanted.name)
        for kind in wanted.kinds
    )
