"""Requests to the schema registry before and after their handlers: acts in the audit log, delays of refusals."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from headrace.v1 import auth_pb2
from headrace.wire.call_tries import CallTry
from headrace.wire.errors import ErrorCode, MetadataLimitError, Outcome, TimedOutError, UnauthenticatedError
from headrace_coordinator.core.schemas.errors import no_subject
from headrace_coordinator.metrics import CoordinatorMetrics
from headrace_coordinator.rpc.schema_routes import ACT, RegistryCall, Route, SchemaRoutes
from headrace_server.calls import current_try, user
from headrace_server.http_listener import HttpRequest, HttpResponse
from headrace_server.identity.api_keys import make_api_key
from headrace_server.identity.callers import Identity, Proof
from headrace_server.identity.rights import Operation, ResourceKind
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.requests import PENALTY_SECONDS
from prometheus_client import CollectorRegistry

from tests.unit.common.identity.test_gate import KEYS, Known

JWT = "header.claims.signature"


class Issuer:
    """Verifier that accepts one token, of user `corp:ada`."""

    async def verify(self, token: str) -> Identity:
        if token != JWT:
            raise UnauthenticatedError("the token's signature is not the issuer's")
        return Identity("corp:ada", Proof.TOKEN, "corp", ("team",))


def routes_of(known: Known, handler: Any) -> SchemaRoutes:
    """Routes with one act."""
    route = Route("DeleteSubject", "DELETE", "/subjects/{subject}", handler, ACT)
    metrics = CoordinatorMetrics(CollectorRegistry())
    return SchemaRoutes([route], known.gate, Issuer(), metrics, timeout_ms=20_000)


def request_by(api_key: str) -> HttpRequest:
    """The act, called with an API key, or without one."""
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    return HttpRequest("DELETE", "/subjects/orders", headers, b"{}", "10.0.0.9", ())


@pytest.mark.parametrize(
    ("raised", "status", "error"),
    [
        (None, 200, ""),
        (no_subject("orders"), 404, "40401"),
        (MetadataLimitError("full"), 422, ErrorCode.METADATA_LIMIT.name),
        (TimedOutError("slow", outcome=Outcome.UNKNOWN), 500, ErrorCode.TIMED_OUT.name),
        (ZeroDivisionError(), 500, ErrorCode.INTERNAL.name),
    ],
)
async def test_an_act_is_in_the_audit_log_however_it_ends(raised: Exception | None, status: int, error: str) -> None:
    """Also one that may have been applied although it failed."""
    known = Known()

    async def handle(call: RegistryCall) -> Any:
        if raised is not None:
            raise raised
        return []

    assert (await routes_of(known, handle).handle(request_by(known.user()))).status == status
    (event,) = known.gate.audit_log.take(10)
    assert (event.kind, event.user, event.method, event.error) == ("act", "ada", "DeleteSubject", error)
    assert event.resources == ("schema:orders",)


async def test_a_handler_knows_the_try_and_the_user_of_its_request() -> None:
    """Each request of a connection has its own, or none."""
    known, seen = Known(), []

    async def handle(_: RegistryCall) -> Any:
        seen.append((current_try(), user()))
        return []

    routes, request = routes_of(known, handle), request_by(known.user())
    named = replace(request, headers={**request.headers, "headrace-try": "00112233aabbccdd-1"})
    for each in (named, request):
        await routes.handle(each)
    assert seen == [(CallTry("00112233aabbccdd", 1), "ada"), (None, "ada")]


async def test_an_act_whose_server_stops_is_in_the_audit_log() -> None:
    """A listener that stops cancels the requests that are left."""
    known, begun = Known(), asyncio.Event()

    async def wait(call: RegistryCall) -> Any:
        begun.set()
        await asyncio.Event().wait()

    serving = asyncio.create_task(routes_of(known, wait).handle(request_by(known.user())))
    await begun.wait()
    serving.cancel()
    await asyncio.wait([serving])
    (event,) = known.gate.audit_log.take(10)
    assert (event.kind, event.error) == ("act", "CANCELLED")


async def test_a_user_of_an_issuer_is_known_by_its_token() -> None:
    """Such users have no API key. The issuer, the user and its grants count as they are now."""
    known, seen = Known(), []
    known.keys.write({KEYS.issuer("corp"): auth_pb2.Issuer(name="corp").SerializeToString()})
    grant = known.grant("group:team", "developer", "schema:orders")

    async def handle(call: RegistryCall) -> Any:
        call.access.require(Operation.DELETE, ResourceKind.SCHEMA, call.path["subject"])
        seen.append(user())
        return []

    async def status() -> int:
        return (await routes_of(known, handle).handle(request_by(JWT))).status

    assert await status() == 200
    known.keys.write({grant: None})
    assert await status() == 403
    stored = metadata_pb2.StoredUser(name="corp:ada", disabled=True).SerializeToString()
    known.keys.write({KEYS.user("corp:ada"): stored})
    assert await status() == 401
    known.keys.write({KEYS.user("corp:ada"): None, KEYS.issuer("corp"): None})
    assert await status() == 401
    assert seen == ["corp:ada"]


async def test_a_token_that_is_not_accepted_is_in_the_audit_log() -> None:
    """With the reason, and nothing of the token."""
    known = Known()

    async def handle(call: RegistryCall) -> Any:
        raise AssertionError("served")

    forged = JWT.replace("claims", "forged")
    response = await routes_of(known, handle).handle(request_by(forged))
    assert (response.status, response.delay_seconds) == (401, PENALTY_SECONDS)
    (event,) = known.gate.audit_log.take(10)
    assert (event.kind, event.user, event.error) == ("refusal", "", ErrorCode.UNAUTHENTICATED.name)
    assert "signature" in event.reason
    assert "forged" not in event.reason


@pytest.mark.parametrize("api_key", ["", make_api_key()], ids=["no key", "a wrong key"])
async def test_the_refusal_of_a_stranger_is_delayed(api_key: str) -> None:
    """So that guesses by one connection cost the coordinator next to nothing."""

    async def handle(call: RegistryCall) -> Any:
        raise AssertionError("served")

    response: HttpResponse = await routes_of(Known(), handle).handle(request_by(api_key))
    assert (response.status, response.delay_seconds) == (401, PENALTY_SECONDS)
