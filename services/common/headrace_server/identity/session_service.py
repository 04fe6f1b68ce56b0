"""`headrace.v1.SessionService`: exchanges proofs of identity for session tokens. Served by brokers and coordinators.

Only coordinators verify the tokens of issuers, because that needs the issuers' keys; a broker answers with their
addresses. Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from headrace.v1 import auth_pb2, auth_pb2_grpc
from headrace.wire.errors import (
    ErrorCode,
    InvalidRequestError,
    MetastoreUnavailableError,
    Outcome,
    UnauthenticatedError,
)
from prometheus_client import Counter

from headrace_server.calls import certified_names
from headrace_server.clock import Clock
from headrace_server.identity.api_keys import parse_api_key
from headrace_server.identity.callers import PROOF_NAMES, Identity
from headrace_server.identity.gate import IdentityGate, access
from headrace_server.metadata_view import ClusterView
from headrace_server.requests import check_client_id
from headrace_server.rpc import unary

SERVICE_NAME = "headrace.v1.SessionService"
LOOK_SECONDS = 0.05
NEW_KEY_LOOKS = 10
"""Half a second: views of etcd are milliseconds behind, on a busy machine some hundred."""
MAX_WAITING = 64
"""Calls that wait for a new key at once; strangers with invented keys get their error directly beyond that."""


class TokenVerifier(Protocol):
    """Verifies the tokens of issuers."""

    async def verify(self, token: str) -> Identity:
        """Return the identity that a JSON Web Token proves.

        Raises:
            UnauthenticatedError: If it proves none; the reason helps its owner and never contains the token.
            MetastoreUnavailableError: If the issuer's keys are not known yet.
        """


class SessionServicer(auth_pb2_grpc.SessionServiceServicer):
    """Servicer of one process."""

    def __init__(
        self,
        gate: IdentityGate,
        view: ClusterView,
        clock: Clock,
        call_errors: Counter,
        tokens: TokenVerifier | None = None,
    ) -> None:
        """`tokens` is `None` at a broker, which refers to the coordinators in `view`."""
        self._gate = gate
        self._view = view
        self._clock = clock
        self._tokens = tokens
        self._waiting = 0
        self.call_errors = call_errors

    @unary
    async def OpenSession(self, request: auth_pb2.OpenSessionRequest, context: Any) -> auth_pb2.OpenSessionResponse:
        """See the proto."""
        check_client_id(request.client_id)
        try:
            return await self._open_session(request, context)
        except UnauthenticatedError as error:
            access().note_refusal(ErrorCode.UNAUTHENTICATED, error.message)
            raise

    async def _open_session(self, request: auth_pb2.OpenSessionRequest, context: Any) -> auth_pb2.OpenSessionResponse:
        match request.WhichOneof("proof"):
            case "api_key":
                await self._wait_for_new_key(request.api_key)
                identity = self._gate.identification.identity_of_api_key(request.api_key)
            case "jwt" if self._tokens is None:
                return auth_pb2.OpenSessionResponse(coordinators=self._coordinators())
            case "jwt":
                assert self._tokens is not None, "the case before"
                identity = await self._tokens.verify(request.jwt)
            case "certificate":
                identity = self._of_certificate(context)
            case _:
                raise InvalidRequestError(
                    "the request has no proof of identity", action="Set api_key, jwt or certificate."
                )
        token, lifetime_ms = self._gate.identification.open_session(identity)
        return auth_pb2.OpenSessionResponse(token=token, lifetime_ms=lifetime_ms, user=identity.user)

    @unary
    async def WhoAmI(self, request: auth_pb2.WhoAmIRequest, context: Any) -> auth_pb2.WhoAmIResponse:
        """See the proto."""
        check_client_id(request.client_id)
        caller, now_ms = access().caller, self._clock.now_ms()
        response = auth_pb2.WhoAmIResponse(posture=self._gate.posture)
        if caller.is_known:
            identity = caller.identity
            found = self._gate.view.grants_of(identity.user, caller.groups)
            response.user = identity.user
            response.groups.extend(dict.fromkeys(caller.groups))
            response.identified_by = PROOF_NAMES[identity.proof]
            response.grants.extend(grant.grant for grant in found if grant.is_in_force(now_ms))
            response.remaining_ms = max(1, identity.expires_ms - now_ms) if identity.expires_ms else 0
        return response

    async def _wait_for_new_key(self, text: str) -> None:
        """Wait a moment for a key that this server does not know: it may have been created at another one just now."""
        api_key = parse_api_key(text)
        if api_key is None or self._waiting >= MAX_WAITING:
            return
        self._waiting += 1
        try:
            for _ in range(NEW_KEY_LOOKS):
                if self._gate.view.user_of_api_key(api_key.key_id) is not None:
                    return
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            self._waiting -= 1

    def _of_certificate(self, context: Any) -> Identity:
        names = certified_names(context)
        if not names:
            raise UnauthenticatedError(
                "the connection has no client certificate",
                action="Set tls_cert_file and tls_key_file, and let the server have tls_client_auth = required.",
            )
        return self._gate.identification.caller("", names).identity

    def _coordinators(self) -> list[str]:
        found = [self._view.coordinators[name].live.address for name in sorted(self._view.coordinators)]
        if not found:
            raise MetastoreUnavailableError(
                "a broker accepts no tokens of issuers, and no coordinator is registered", outcome=Outcome.NOT_APPLIED
            )
        return found
