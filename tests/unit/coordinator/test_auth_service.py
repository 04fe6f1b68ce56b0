"""`AuthService`: who may call what, and that an answer follows the view (read your writes)."""

from __future__ import annotations

import contextlib
import copy

import pytest
from headrace.v1 import auth_pb2
from headrace.wire.errors import InvalidRequestError, NotAuthorizedError, UnauthenticatedError
from headrace_coordinator.rpc.answers import Answers
from headrace_coordinator.rpc.auth_service import SERVICE_NAME, AuthServicer
from headrace_server.identity.callers import ANONYMOUS, Caller, Identity, Proof
from headrace_server.identity.gate import Access, access, set_access
from headrace_server.identity.quotas import DEFAULT_QUOTA
from headrace_server.identity.rights import Operation, ResourceKind
from headrace_server.methods import METHODS, Right

from tests.fakes.identity_parts import identity_parts
from tests.fakes.memory_metastore import MemoryMetastore
from tests.fakes.open_gate import gate_over, open_access
from tests.unit.coordinator.group_parts import Context

ISSUER = {"name": "sso", "issuer": "i", "audience": "a", "keys_url": "/keys"}
REQUESTS = {
    "PutUser": {"user": {"name": "bob"}},
    "DeleteUser": {"name": "bob"},
    "ListUsers": {},
    "CreateApiKey": {"user": "bob"},
    "DeleteApiKey": {"key_id": "x"},
    "PutGrant": {"grant": {"principal": "bob", "role": "reader", "resource": "topic:x"}},
    "DeleteGrant": {"principal": "bob", "role": "reader", "resource": "topic:x"},
    "ListGrants": {},
    "PutRole": {"role": {"name": "own", "operations": ["read"]}},
    "DeleteRole": {"name": "own"},
    "PutIssuer": {"issuer": ISSUER},
    "DeleteIssuer": {"name": "sso"},
    "ListIssuers": {},
    "PutQuota": {"quota": {"user": "*"}},
    "DeleteQuota": {"user": "*"},
    "ListQuotas": {},
    "CheckAccess": {"user": "bob", "operation": "read", "resource": "topic:x"},
    "SetPosture": {"posture": auth_pb2.POSTURE_OBSERVE},
}
FREE = {"ListRoles"}
"""Calls that need no right."""
OWN = {"CreateApiKey", "DeleteApiKey", "CheckAccess"}
"""Calls whose right depends on whom the request names."""


class Service:
    """The servicer of a coordinator, and callers."""

    def __init__(self, parts, posture):
        self.parts = parts
        self.gate = gate_over(parts.source, parts.clock, posture)
        self.servicer = AuthServicer(
            self.gate,
            store=parts.store,
            policies=parts.policies,
            answers=Answers(parts.source, parts.metrics, default_timeout_ms=20_000),
            metrics=parts.metrics,
            clock=parts.clock,
        )

    def caller(self, user):
        """A caller with an API key of a user, or one without an identity."""
        if not user:
            return ANONYMOUS
        (api_key, *_) = self.parts.view.users[user].api_keys
        found = Caller(Identity(user, Proof.API_KEY, api_key.key_id), self.parts.view)
        self.gate.identification.check(found)
        return found

    async def call(self, user, method, /, **fields):
        set_access(Access(self.gate, self.caller(user), method))
        request = getattr(auth_pb2, f"{method}Request")(**fields)
        return await getattr(AuthServicer, method).__wrapped__(self.servicer, request, Context())


@pytest.fixture
def service():
    return _service()


@contextlib.asynccontextmanager
async def _service(posture=auth_pb2.POSTURE_REQUIRED):
    async with identity_parts(MemoryMetastore()) as parts:
        await parts.administrator("root")
        await parts.put_user("ada", groups=["team"])
        await parts.add_key("ada")
        try:
            yield Service(parts, posture)
        finally:
            set_access(open_access())


def test_every_method_is_here():
    prefix = f"/{SERVICE_NAME}/"
    methods = {name.removeprefix(prefix) for name in METHODS if name.startswith(prefix)}
    assert methods == {*REQUESTS, *FREE}


def test_all_others_need_an_administrator_before_they_are_here():
    """By the server's table, which `Admission` asks: the handlers have no check of their own."""
    rights = {method: METHODS[f"/{SERVICE_NAME}/{method}"].right for method in {*REQUESTS, *FREE}}
    assert {method for method, right in rights.items() if right is None} == OWN | FREE
    assert {right for right in rights.values() if right is not None} == {Right(Operation.ADMIN, ResourceKind.CLUSTER)}


@pytest.mark.parametrize("method", sorted(OWN))
@pytest.mark.parametrize("user", ["", "ada"])
async def test_what_others_own_is_for_administrators(service, method, user):
    """Neither a stranger nor a user without the right; nothing has changed."""
    before = service.parts.source.revision
    with pytest.raises(NotAuthorizedError):
        await service.call(user, method, **REQUESTS[method])
    assert service.parts.source.revision == before


async def test_an_administrator_may_do_all_and_reads_its_writes(service):
    """Every answer is there once the coordinator's own view shows the change: the next call sees it."""
    view = service.parts.view

    async def call(method, /, **fields):
        return await service.call("root", method, **REQUESTS[method] | fields)

    assert (await call("PutUser")).user.name == "bob"
    assert "bob" in view.users
    created = await call("CreateApiKey", description="ci", lifetime_ms=1_000)
    assert created.secret.startswith(f"hrk_{created.api_key.key_id}_")
    assert view.user_of_api_key(created.api_key.key_id)
    grant = (await call("PutGrant")).grant
    assert (grant.granted_by, grant.granted_ms) == ("root", service.parts.clock.now_ms())
    assert view.grants_to("bob") == [grant]
    (user,) = (await service.call("root", "ListUsers", names=["bob", "unknown"])).users
    assert [api_key.description for api_key in user.api_keys] == ["ci"]
    assert [user.name for user in (await call("ListUsers")).users] == ["ada", "bob", "root"]
    await call("PutRole")
    roles = {role.name: role for role in (await service.call("ada", "ListRoles")).roles}
    assert ([*roles["own"].operations], roles["own"].built_in, roles["admin"].built_in) == (["read"], False, True)
    assert [(await call("DeleteRole")).missing for _ in range(2)] == [False, True]
    assert "own" not in view.roles
    await call("PutIssuer")
    assert [issuer.name for issuer in (await call("ListIssuers")).issuers] == ["sso"]
    assert [(await call("DeleteIssuer")).missing for _ in range(2)] == [False, True]
    await call("PutQuota")
    listed = await call("ListQuotas")
    assert (listed.quotas[0].set_by, listed.default_quota) == ("root", DEFAULT_QUOTA)
    assert [(await call("DeleteQuota")).missing for _ in range(2)] == [False, True]
    assert not view.quotas()
    await service.call("root", "DeleteApiKey", key_id=created.api_key.key_id)
    assert not view.users["bob"].api_keys
    assert [(await call("DeleteGrant")).missing for _ in range(2)] == [False, True]
    await call("DeleteUser")
    assert "bob" not in view.users
    assert (await call("SetPosture")).posture == auth_pb2.POSTURE_REQUIRED
    assert view.posture == auth_pb2.POSTURE_OBSERVE


async def test_no_answer_but_the_first_has_a_secret(service):
    created = await service.call("root", "CreateApiKey", user="ada")
    listed = await service.call("root", "ListUsers")
    secret = created.secret.rpartition("_")[2]
    assert secret.encode() not in listed.SerializeToString()
    assert service.parts.view.user_of_api_key(created.api_key.key_id)[1].sha256 not in listed.SerializeToString()


async def test_users_replace_their_own_keys(service):
    """A new one, then the old one away: rotation without an administrator. Those of others are out of reach."""
    created = await service.call("ada", "CreateApiKey", user="ada")
    (old, _) = service.parts.view.users["ada"].api_keys
    await service.call("ada", "DeleteApiKey", key_id=old.key_id)
    assert [key.key_id for key in service.parts.view.users["ada"].api_keys] == [created.api_key.key_id]
    (roots,) = service.parts.view.users["root"].api_keys
    for method, fields in (
        ("CreateApiKey", {"user": "root"}),
        ("CreateApiKey", {"user": ""}),
        ("DeleteApiKey", {"key_id": roots.key_id}),
        ("DeleteApiKey", {"key_id": "unknown"}),
    ):
        with pytest.raises(NotAuthorizedError):
            await service.call("ada", method, **fields)
    with pytest.raises(InvalidRequestError, match="there is no API key"):
        await service.call("root", "DeleteApiKey", key_id="unknown")


@pytest.mark.parametrize(
    ("user", "lifetime_ms", "is_refused"),
    [("ada", 60_000, False), ("ada", 60_001, True), ("ada", 0, True), ("root", 0, False)],
)
async def test_a_key_that_ends_makes_none_that_lives_longer(service, user, lifetime_ms, is_refused):
    """Else a holder for a week would keep one for good. A program replaces its key by one like it."""
    for key in [*service.parts.view.users["ada"].api_keys]:
        await service.call("root", "DeleteApiKey", key_id=key.key_id)
    await service.call("root", "CreateApiKey", user="ada", lifetime_ms=60_000)
    service.parts.clock.advance(1_000)
    with pytest.raises(InvalidRequestError, match="60000") if is_refused else contextlib.nullcontext():
        await service.call(user, "CreateApiKey", user="ada", lifetime_ms=lifetime_ms)
    assert len(service.parts.view.users["ada"].api_keys) == (1 if is_refused else 2)


@pytest.mark.parametrize("is_seen", [False, True])
async def test_a_deleted_key_makes_no_successor(service, is_seen):
    """Of a call that was admitted before, whether this coordinator's view shows the deletion or is behind etcd."""
    parts = service.parts
    set_access(Access(service.gate, service.caller("ada"), "CreateApiKey"))
    (own,) = parts.view.users["ada"].api_keys
    before = copy.deepcopy(parts.view.users["ada"])
    await parts.see(await parts.store.delete_api_key(own.key_id, parts.deadline))
    if not is_seen:
        parts.view._take_user(parts.view._keyspace.parse(parts.view._keyspace.user("ada")).user_id, before)
        service.gate.identification.check(access().caller)
    create = AuthServicer.CreateApiKey.__wrapped__
    with pytest.raises(UnauthenticatedError, match="the API key was deleted"):
        await create(service.servicer, auth_pb2.CreateApiKeyRequest(user="ada"), Context())
    stored = await parts.writes.read_user("ada", parts.deadline)
    assert not stored[0].api_keys


async def test_a_disabled_user_makes_no_key_and_an_administrator_makes_one_for_it(service):
    """By etcd, also where this coordinator's view is behind."""
    parts = service.parts
    creator = service.caller("ada").identity
    await parts.put_user("ada", disabled=True)
    with pytest.raises(UnauthenticatedError, match="user ada is disabled"):
        await parts.store.create_api_key("ada", "", 0, parts.deadline, creator=creator)
    await service.call("root", "CreateApiKey", user="ada")
    assert len(parts.view.users["ada"].api_keys) == 2


async def test_callers_ask_about_themselves(service):
    """With the groups that they have, not with others."""
    await service.parts.grant("group:team", "reader", "topic:clicks")
    await service.parts.grant("ada", "writer", "topic:orders*")
    question = {"operation": "read", "resource": "topic:clicks"}
    for fields in ({}, {"user": "ada"}, {"groups": ["team"]}):
        answer = await service.call("ada", "CheckAccess", **question | fields)
        assert (answer.allowed, answer.grant.principal) == (True, "group:team")
        assert answer.reason == "group:team has reader on topic:clicks"
    answer = await service.call("ada", "CheckAccess", operation="write", resource="topic:clicks")
    assert (answer.allowed, answer.HasField("grant")) == (False, False)
    assert answer.reason == "ada and its groups have no grant of write that covers topic:clicks"
    for fields in ({"user": "root"}, {"groups": ["other"]}):
        with pytest.raises(NotAuthorizedError):
            await service.call("ada", "CheckAccess", **question | fields)
    answer = await service.call("root", "CheckAccess", **question | {"user": "stranger", "groups": ["team"]})
    assert answer.allowed
    with pytest.raises(InvalidRequestError):
        await service.call("root", "CheckAccess", operation="reader", resource="topic:clicks")


async def test_grants_are_listed_by_principal_and_by_what_they_cover(service):
    """A grant on the cluster or on a prefix covers what begins with it; a narrower one does not."""
    for principal, resource in (
        ("ada", "topic:orders"),
        ("ada", "topic:orders*"),
        ("group:team", "topic:*"),
        ("group:team", "group:orders"),
        ("ada", "orders.eu.*"),
    ):
        await service.parts.grant(principal, "reader", resource)

    async def listed(**fields):
        answer = await service.call("root", "ListGrants", **fields)
        return [grant.resource for grant in answer.grants]

    assert sorted(await listed(principal="ada")) == ["orders.eu.*", "topic:orders", "topic:orders*"]
    assert await listed(resource="topic:orders") == ["topic:orders", "topic:orders*", "topic:*", "cluster"]
    assert await listed(resource="topic:orders*") == ["topic:orders*", "topic:*", "cluster"]
    assert await listed(resource="group:orders.eu.x") == ["orders.eu.*", "cluster"]
    assert await listed(resource="cluster") == ["cluster"]


async def test_an_open_cluster_lets_anyone_begin():
    """Until the posture says otherwise, as for all other calls."""
    async with _service(auth_pb2.POSTURE_OPEN) as service:
        await service.call("", "PutUser", user={"name": "bob"})
        assert "bob" in service.parts.view.users


async def test_a_long_client_id_is_refused(service):
    for method in ("ListUsers", "ListRoles", "CheckAccess"):
        with pytest.raises(InvalidRequestError, match="client id"):
            await service.call("root", method, client_id="x" * 257)
