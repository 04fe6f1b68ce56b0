"""Users and roles of etcd, as its administrator (the user `root`) changes them.

Used by the command `headrace-coordinator etcd-auth`; belongs to its event loop. Every method may be called again: it
changes what is missing, and returns whether it changed anything.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

import grpc
import grpc.aio
from headrace.wire.errors import MetastoreUnavailableError, Outcome

from headrace_server.metastore import etcd3_stubs as stubs
from headrace_server.metastore.etcd_endpoint import (
    check_endpoints,
    connect,
    describe_reason,
    disconnect,
    raise_definite,
)
from headrace_server.metastore.etcd_login import (
    NOT_ENABLED,
    WRONG_PASSWORD,
    EtcdLogin,
    EtcdRefusedError,
    NotAuthenticatedError,
    TokenRefusal,
    token_refusal,
)
from headrace_server.metastore.etcd_messages import prefix_end
from headrace_server.tls import TlsIdentity

ROOT = "root"
"""etcd's administrator, and the role that makes a user one."""
_NO_PASSWORD_BYTES = 32


class EtcdUsers:
    """See the module.

    Args:
        login: of `ROOT`; `None` while authentication is off, or if the certificate's common name is `root`.
        timeout_s: timeout of one call to one member.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        identity: TlsIdentity | None = None,
        login: EtcdLogin | None = None,
        timeout_s: float = 10.0,
    ) -> None:
        check_endpoints(endpoints)
        self._endpoints = [connect(endpoint, identity) for endpoint in endpoints]
        self._login = login
        self._timeout_s = timeout_s

    async def is_enabled(self) -> bool:
        """Return whether etcd authenticates its callers."""
        request = stubs.rpc_pb2.AuthenticateRequest(name=ROOT)
        try:
            await self._call("Authenticate", request, is_public=True)
        except _RefusedError as error:
            return NOT_ENABLED not in error.details
        return True  # Not reached: no user has an empty password.

    async def enable(self) -> bool:
        """Let etcd authenticate its callers; `ROOT` must be a user with its role."""
        if await self.is_enabled():
            return False
        await self._call("AuthEnable", stubs.rpc_pb2.AuthEnableRequest())
        return True

    async def put_role(self, role: str, prefix: str) -> bool:
        """Let a role read and write the keys that begin with `prefix`."""
        range_end = prefix_end(prefix)
        try:
            found = await self._call("RoleGet", stubs.rpc_pb2.AuthRoleGetRequest(role=role))
        except _RefusedError as error:
            error.expect("role name not found")
            await self._call("RoleAdd", stubs.rpc_pb2.AuthRoleAddRequest(name=role))
            granted = []
        else:
            granted = list(found.perm)
        wanted = stubs.auth_pb2.Permission(
            permType=stubs.auth_pb2.Permission.READWRITE, key=prefix.encode(), range_end=range_end
        )
        if wanted in granted:
            return False
        request = stubs.rpc_pb2.AuthRoleGrantPermissionRequest(name=role, perm=wanted)
        await self._call("RoleGrantPermission", request)
        return True

    async def put_user(self, user: str, role: str, password: str | None) -> bool:
        """Create a user with a role, or set what differs; without a password only a certificate identifies it."""
        try:
            found = await self._call("UserGet", stubs.rpc_pb2.AuthUserGetRequest(name=user))
        except _RefusedError as error:
            error.expect("user name not found")
            kept = password or secrets.token_urlsafe(_NO_PASSWORD_BYTES)
            await self._call("UserAdd", stubs.rpc_pb2.AuthUserAddRequest(name=user, password=kept))
            changed, roles = True, []
        else:
            changed, roles = password is not None and await self._put_password(user, password), list(found.roles)
        if role in roles:
            return changed
        await self._call("UserGrantRole", stubs.rpc_pb2.AuthUserGrantRoleRequest(user=user, role=role))
        return True

    async def _put_password(self, user: str, password: str) -> bool:
        """Change a password that differs. While authentication is off etcd compares none, so it is written."""
        try:
            request = stubs.rpc_pb2.AuthenticateRequest(name=user, password=password)
            await self._call("Authenticate", request, is_public=True)
        except _RefusedError as error:
            error.expect(WRONG_PASSWORD, NOT_ENABLED)
            change = stubs.rpc_pb2.AuthUserChangePasswordRequest(name=user, password=password)
            await self._call("UserChangePassword", change)
            return WRONG_PASSWORD in error.details
        return False

    async def close(self) -> None:
        """Close the connections."""
        for endpoint in self._endpoints:
            await disconnect(endpoint)

    async def _call(self, method: str, request: Any, *, is_public: bool = False) -> Any:
        """Call the first member that answers.

        Raises:
            _RefusedError: If etcd answers with an error of this request.
            EtcdRefusedError: If etcd does not accept the administrator.
            MetastoreUnavailableError: If no member answers; call again.
        """
        failures = []
        for endpoint in self._endpoints:
            send = getattr(endpoint.auth, method)
            try:
                if self._login is None or is_public:
                    return await send(request, timeout=self._timeout_s)
                return await self._login.send(endpoint.auth, send, request, self._timeout_s, self._timeout_s)
            except NotAuthenticatedError as error:
                failures.append(f"{endpoint.address}: {error}")
            except grpc.aio.AioRpcError as error:
                details = error.details() or ""
                if token_refusal(details) is TokenRefusal.MISSING:
                    raise EtcdRefusedError(
                        f"etcd refused {method}, which only its user {ROOT} may call",
                        action="Name the file with its password in --root-password-file.",
                    ) from error
                if error.code() is grpc.StatusCode.FAILED_PRECONDITION or WRONG_PASSWORD in details:
                    raise _RefusedError(method, details) from error
                raise_definite(method, endpoint.address, error)
                failures.append(f"{endpoint.address}: {describe_reason(error)}")
        raise MetastoreUnavailableError(
            f"etcd did not answer {method} ({'; '.join(failures)})", outcome=Outcome.UNKNOWN
        )


class _RefusedError(EtcdRefusedError):
    """etcd's answer to one request, such as that there is no such user."""

    def __init__(self, method: str, details: str) -> None:
        super().__init__(f"etcd refused {method}: {details}", action="Remove the reason in etcd, and run it again.")
        self.details = details

    def expect(self, *texts: str) -> None:
        """Raise it again unless it is one of these answers."""
        if not any(text in self.details for text in texts):
            raise self
