"""Sessions of a fake cluster: exchanges proofs for tokens, and refuses calls that carry none of these."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import grpc
from headrace.v1 import auth_pb2, auth_pb2_grpc
from headrace.wire.errors import HeadraceError, UnauthenticatedError

from tests.fakes.auth_service import FakeAuthService, refuse

API_KEY = f"hrk_{'A' * 12}_{'b' * 43}"
JWT = "eyJh.eyJz.c2ln"
_OPEN = "/headrace.v1.SessionService/OpenSession"


class FakeIdentity(auth_pb2_grpc.SessionServiceServicer, grpc.ServerInterceptor):
    """Of one server or several. Tests change it at any time."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.users = {API_KEY: "ada", JWT: "kubernetes:ada"}
        """User by proof."""
        self.tokens: dict[str, str] = {}
        """User by valid token."""
        self.lifetime_ms = 900_000
        self.coordinators: list[str] = []
        """Named in answer to a token of an issuer, in place of a session."""
        self.opened: list[auth_pb2.OpenSessionRequest] = []
        self.calls: list[tuple[str, str]] = []
        """Method and token of every other call."""
        self.failure: HeadraceError | None = None
        """Answer to every exchange."""
        self.issued = 0
        self.auth = FakeAuthService()

    def serve_at(self, server: grpc.Server) -> None:
        """Add sessions, users and rights to a server, whose interceptors this one is among."""
        auth_pb2_grpc.add_SessionServiceServicer_to_server(self, server)
        auth_pb2_grpc.add_AuthServiceServicer_to_server(self.auth, server)

    def issue(self, user: str) -> str:
        """Return a new token."""
        with self.lock:
            self.issued += 1
            token = f"hr1.k.{self.issued}"
            self.tokens[token] = user
            return token

    def revoke(self) -> None:
        """Refuse every token that was issued."""
        with self.lock:
            self.tokens.clear()

    def OpenSession(
        self, request: auth_pb2.OpenSessionRequest, context: grpc.ServicerContext
    ) -> auth_pb2.OpenSessionResponse:
        """Exchange an API key or a token of an issuer."""
        self.opened.append(request)
        if self.failure is not None:
            refuse(self.failure, context)
        if request.jwt and self.coordinators:
            return auth_pb2.OpenSessionResponse(coordinators=self.coordinators)
        user = self.users.get(request.api_key or request.jwt)
        if user is None:
            refuse(UnauthenticatedError("the proof is not valid"), context)
        return auth_pb2.OpenSessionResponse(token=self.issue(user), lifetime_ms=self.lifetime_ms, user=user)

    def WhoAmI(self, request: auth_pb2.WhoAmIRequest, context: grpc.ServicerContext) -> auth_pb2.WhoAmIResponse:
        """Describe the caller."""
        user = self.tokens[_token_of(context.invocation_metadata())]
        return auth_pb2.WhoAmIResponse(
            user=user,
            groups=["blue"],
            identified_by="API key",
            grants=[grant for grant in self.auth.grants.values() if grant.principal == user],
            posture=self.auth.posture,
            remaining_ms=self.lifetime_ms,
        )

    def intercept_service(
        self, continuation: Callable[[Any], Any], handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        """Refuse a call without a valid token."""
        if handler_call_details.method == _OPEN:
            return continuation(handler_call_details)
        token = _token_of(handler_call_details.invocation_metadata)
        self.calls.append((handler_call_details.method.rpartition("/")[2], token))
        if token in self.tokens:
            return continuation(handler_call_details)
        error = UnauthenticatedError("the session token is not valid")
        return grpc.unary_unary_rpc_method_handler(lambda _, context: refuse(error, context))


def _token_of(metadata: Any) -> str:
    return str(dict(metadata or ()).get("authorization", "")).removeprefix("Bearer ")
