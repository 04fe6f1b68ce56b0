"""Routes of the schema registry's REST interface: from an HTTP request to a call of `SchemaRequests`, and its answer.

The interface is that of Confluent's registry, so that its clients work unchanged. A caller proves its identity with
HTTP basic authentication, a user and one of its API keys, with a bearer token, also one of an issuer, or with a
certificate, and has the rights of its grants on `schema:SUBJECT`. Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote

import structlog
from headrace.wire.errors import (
    ErrorCode,
    HeadraceError,
    InvalidRequestError,
    MetadataLimitError,
    NotAuthorizedError,
    ThrottledError,
    TimedOutError,
    UnauthenticatedError,
)
from headrace_server.calls import CURRENT_CALL
from headrace_server.http_listener import HttpRequest, HttpResponse
from headrace_server.identity import session_tokens
from headrace_server.identity.callers import ANONYMOUS, Caller
from headrace_server.identity.gate import CANCELLED, Access, IdentityGate, set_access
from headrace_server.identity.quotas import Use
from headrace_server.identity.session_service import TokenVerifier
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.methods import KIB, MIB, Method
from headrace_server.requests import PENALTY_SECONDS

from headrace_coordinator.core.schemas.errors import RegistryError
from headrace_coordinator.metrics import CoordinatorMetrics

log = structlog.get_logger(__name__)

MAX_BODY_BYTES = 2 * MIB
"""A schema as a JSON string may take more than its own size."""
JSON_TYPE = "application/vnd.schemaregistry.v1+json"
READ = Method(64 * KIB, 1_000)
ACT = Method(MAX_BODY_BYTES, 1_000, is_act=True)


@dataclass(frozen=True, slots=True)
class RegistryCall:
    """One request of an identified caller."""

    access: Access
    path: Mapping[str, str]
    """Values of the names in the route, such as `subject`."""
    query: Mapping[str, str]
    body: bytes
    deadline: float
    """In loop time, seconds."""

    def flag(self, name: str) -> bool:
        """Return whether a parameter of the query is true."""
        return self.query.get(name, "").lower() == "true"

    def number(self, name: str, default: int) -> int:
        """Return a parameter of the query.

        Raises:
            RegistryError: If it is no number.
        """
        text = self.query.get(name, str(default))
        try:
            return int(text)
        except ValueError:
            raise RegistryError(400, f"{name} = {text[:64]!r} is no number") from None

    def page(self, found: list[Any], maximum: int | None = None) -> list[Any]:
        """Return the part of a list that the query asks for by `offset` and `limit`, of at most `maximum` entries.

        A list that begins `after` a subject has no offset: entries before it may have been added or deleted.

        Raises:
            RegistryError: If one of them is no number.
        """
        start = 0 if self.query.get("after") else max(0, self.number("offset", 0))
        limit = self.number("limit", -1)
        limits = [each for each in (limit, maximum) if each is not None and each >= 0]
        return found[start : start + min(limits)] if limits else found[start:]

    def json(self) -> dict[str, Any]:
        """Return the body.

        Raises:
            RegistryError: If it is no JSON object.
        """
        try:
            found = json.loads(self.body)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise RegistryError(400, "The body is no JSON object.")
        return found


class Text(NamedTuple):
    """Answer that is text and not JSON, such as a schema."""

    text: str


Handler = Callable[[RegistryCall], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Route:
    """One operation of the interface."""

    name: str
    """Name in metrics and in the audit log."""
    method: str
    path: str
    """Such as `/subjects/{subject}/versions`."""
    handler: Handler
    row: Method = READ
    segments: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        """Split the path."""
        object.__setattr__(self, "segments", _split(self.path))

    def match(self, segments: tuple[str, ...]) -> dict[str, str] | None:
        """Return the values of the names in the path, or `None` if the segments are of another path."""
        if len(segments) != len(self.segments):
            return None
        values = {}
        for wanted, given in zip(self.segments, segments, strict=True):
            if wanted.startswith("{"):
                values[wanted[1:-1]] = unquote(given)
            elif wanted != given:
                return None
        return values


class SchemaRoutes:
    """See the module; `handle` is the handler of the listener."""

    def __init__(
        self,
        routes: list[Route],
        gate: IdentityGate,
        tokens: TokenVerifier,
        metrics: CoordinatorMetrics,
        *,
        timeout_ms: int,
    ) -> None:
        """`timeout_ms` is the time for a request."""
        self._routes: dict[tuple[int, str], list[Route]] = {}
        for route in routes:
            self._routes.setdefault(_group(route.segments), []).append(route)
        self._gate = gate
        self._tokens = tokens
        self._metrics = metrics
        self._timeout_seconds = timeout_ms / 1_000

    async def handle(self, request: HttpRequest) -> HttpResponse:
        """Answer one request."""
        target, _, query = request.target.partition("?")
        segments = _split(target)
        candidates = self._routes.get(_group(segments), ())
        found = [(route, values) for route in candidates if (values := route.match(segments)) is not None]
        for route, values in found:
            if route.method == request.method:
                return await self._serve(route, values, dict(parse_qsl(query, keep_blank_values=True)), request)
        if found:
            return refuse(405, f"The methods of {target[:256]} are {', '.join(route.method for route, _ in found)}.")
        return refuse(404, "HTTP 404 Not Found")

    async def _serve(
        self, route: Route, values: Mapping[str, str], query: Mapping[str, str], request: HttpRequest
    ) -> HttpResponse:
        started, access, error = time.perf_counter(), None, CANCELLED
        CURRENT_CALL.set(request)
        try:
            access = await self._admit(route, request)
            set_access(access)
            self._note_act(route, access, values, request)
            deadline = asyncio.get_running_loop().time() + self._timeout_seconds
            answer, error = await route.handler(RegistryCall(access, values, query, request.body, deadline)), ""
            response = _answer(answer)
            await access.hold(Use.REQUEST)
            if route.row.is_change:
                await access.hold(Use.CHANGE)
        except RegistryError as refused:
            response, error = refuse(refused.code, refused.message), f"{refused.code}"
        except HeadraceError as refused:
            response, error = _refuse_error(refused), refused.code.name
        except Exception:
            log.exception("schema_request_failed", method=route.name)
            response, error = refuse(500, "The registry failed; its log has the reason."), ErrorCode.INTERNAL.name
        finally:
            if access is not None:
                access.note_end(None, error)
        if error:
            self._metrics.common.call_errors.labels(route.name, error).inc()
        self._metrics.call_seconds.labels(route.name).observe(time.perf_counter() - started)
        return response

    async def _admit(self, route: Route, request: HttpRequest) -> Access:
        """Return what the caller of a request may do.

        Raises:
            UnauthenticatedError, NotAuthorizedError, ThrottledError: If it is not served.
            MetastoreUnavailableError: If the identity, or the keys of its issuer, cannot be known now.
        """
        user, token = _read_credentials(request.headers.get("authorization", ""))
        if _is_of_issuer(token):
            caller = await self._verify(token, route, request)
        else:
            caller = self._gate.identify(token, request.certificate_names, route.name, request.peer)
        if user is not None and token and caller.identity.user != user:
            error = UnauthenticatedError(
                f"the API key is not one of user {user[:64]!r}", action="Name the user that has the key."
            )
            Access(self._gate, caller, route.name, request.peer).note_refusal(error.code, error.message)
            raise error
        access = self._gate.admit(caller, route.name, route.row, request.peer)
        access.charge(Use.REQUEST)
        return access

    async def _verify(self, token: str, route: Route, request: HttpRequest) -> Caller:
        """Return the caller with a JSON Web Token; note a refusal, and raise as `_admit`."""
        try:
            caller = Caller(await self._tokens.verify(token), self._gate.view)
            self._gate.identification.check(caller)
        except UnauthenticatedError as error:
            Access(self._gate, ANONYMOUS, route.name, request.peer).note_refusal(error.code, error.message)
            raise
        return caller

    def _note_act(self, route: Route, access: Access, values: Mapping[str, str], request: HttpRequest) -> None:
        if route.row.is_change:
            access.charge(Use.CHANGE)
        if route.row.is_act:
            access.act = metadata_pb2.SchemaRegistryAct(
                subject=values.get("subject", ""),
                version=values.get("version", ""),
                body=request.body.decode(errors="replace"),
            )


def refuse(
    code: int, message: str, headers: Mapping[str, str] | None = None, *, delay_seconds: float = 0.0
) -> HttpResponse:
    """Return the response with an error; `code` is a status, or a code that begins with one."""
    body = json.dumps({"error_code": code, "message": message}).encode()
    status, headers = code if code < 1_000 else code // 100, {"Content-Type": JSON_TYPE, **(headers or {})}
    return HttpResponse(status, body, headers, delay_seconds)


def _refuse_error(error: HeadraceError) -> HttpResponse:
    message = str(error)
    match error:
        case UnauthenticatedError():
            challenge = {"WWW-Authenticate": 'Basic realm="headrace"'}
            return refuse(40101, message, challenge, delay_seconds=PENALTY_SECONDS)
        case NotAuthorizedError():
            return refuse(40301, message)
        case ThrottledError():
            seconds = max(1, round((error.retry_after_ms or 1_000) / 1_000))
            return refuse(42901, message, {"Retry-After": str(seconds)})
        case MetadataLimitError():
            return refuse(42205, message)
        case InvalidRequestError():
            return refuse(42201, message)
        case TimedOutError():
            return refuse(50002, message)
    return refuse(50001, message)


def _answer(answer: Any) -> HttpResponse:
    if isinstance(answer, Text):
        return HttpResponse(200, answer.text.encode(), {"Content-Type": JSON_TYPE})
    return HttpResponse(200, json.dumps(answer).encode(), {"Content-Type": JSON_TYPE})


def _group(segments: tuple[str, ...]) -> tuple[int, str]:
    """Return what the segments of a route and of a path that matches it share; no route begins with a name."""
    return len(segments), segments[0] if segments else ""


def _split(path: str) -> tuple[str, ...]:
    return tuple(path.strip("/").split("/")) if path.strip("/") else ()


def _is_of_issuer(token: str) -> bool:
    """Return whether a token has the form of a JSON Web Token."""
    return token.count(".") == 2 and not token.startswith(session_tokens.PREFIX)


def _read_credentials(header: str) -> tuple[str | None, str]:
    """Return the user, `None` with a bearer token, and the token or API key of an `Authorization`; empty without one.

    Raises:
        UnauthenticatedError: If it is malformed.
    """
    scheme, _, value = header.partition(" ")
    match scheme.lower():
        case "":
            return None, ""
        case "bearer":
            return None, value.strip()
        case "basic":
            try:
                user, colon, key = base64.b64decode(value.strip(), validate=True).decode().partition(":")
            except (binascii.Error, UnicodeDecodeError):
                user, colon, key = "", "", ""
            if colon and key:
                return user, key
    raise UnauthenticatedError(
        "the Authorization header cannot be read", action="Send Basic with user:api-key, or Bearer with a token."
    )
