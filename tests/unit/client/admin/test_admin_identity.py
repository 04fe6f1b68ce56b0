"""Users, keys, grants, roles, issuers, quotas and access by `Admin`, blocking and asyncio, on a fake `AuthService`."""

import asyncio
import inspect

import headrace
import headrace.aio
import pytest
from headrace.client.admin.identity import posture_name
from headrace.v1 import auth_pb2
from headrace.wire.errors import ConflictError, InvalidRequestError

from tests.fakes.auth_service import CREATED_MS
from tests.fakes.cluster import FakeCluster
from tests.fakes.identity import API_KEY, FakeIdentity


@pytest.fixture
def identity():
    return FakeIdentity()


@pytest.fixture
def auth(identity):
    return identity.auth


class Awaited:
    """An asyncio client whose methods a test calls as those of the blocking one."""

    def __init__(self, loop, client):
        self._loop = loop
        self._client = client

    def __getattr__(self, name):
        def call(*arguments, **keywords):
            result = getattr(self._client, name)(*arguments, **keywords)
            return self._loop.run_until_complete(result) if inspect.isawaitable(result) else result

        return call


@pytest.fixture(params=["blocking", "asyncio"])
def admin(request, identity):
    cluster = FakeCluster(identity=identity)
    settings = {"bootstrap_servers": cluster.address, "api_key": API_KEY, "client_id": "me"}
    if request.param == "blocking":
        with headrace.Admin(**settings) as made:
            yield made
    else:
        loop = asyncio.new_event_loop()

        async def make():
            return headrace.aio.Admin(**settings)

        made = Awaited(loop, loop.run_until_complete(make()))
        yield made
        made.close()
        loop.close()
    cluster.stop()


def test_a_user_is_created_changed_and_deleted(admin, auth):
    """A change touches only what is given; a second creation is a conflict."""
    made = admin.create_user("billing", groups=["finance"], description="invoices", certificate_names=["cn"])
    assert (made.name, made.groups, made.description, made.certificate_names) == (
        "billing", ("finance",), "invoices", ("cn",),
    )  # fmt: skip
    assert (made.disabled, made.api_keys, made.created_ms) == (False, (), CREATED_MS)
    with pytest.raises(ConflictError):
        admin.create_user("billing")
    changed = admin.alter_user("billing", disabled=True)
    assert (changed.disabled, changed.groups, changed.description) == (True, ("finance",), "invoices")
    changed = admin.alter_user("billing", groups=[], description="", certificate_names=["other"])
    assert (changed.disabled, changed.groups, changed.certificate_names) == (True, (), ("other",))
    assert admin.describe_user("billing") == changed
    admin.create_user("audit")
    assert [user.name for user in admin.list_users()] == ["audit", "billing"]
    admin.delete_user("billing")
    assert list(auth.users) == ["audit"]
    assert {request.client_id for request in auth.requests} == {"me"}


def test_an_unknown_user_is_an_error(admin):
    for call in (admin.describe_user, admin.alter_user, admin.delete_user, admin.create_api_key):
        with pytest.raises(InvalidRequestError, match="there is no user 'nemo'"):
            call("nemo")


def test_an_api_key_is_created_and_deleted(admin):
    """Its secret is in the result alone, and not in the `repr` of that."""
    admin.create_user("billing")
    made = admin.create_api_key("billing", description="first", lifetime_ms=1_000)
    assert made.secret == f"hrk_{made.key_id}_{'s' * 43}"
    assert "sss" not in repr(made)
    assert made.expires_ms == CREATED_MS + 1_000
    [described] = admin.describe_user("billing").api_keys
    assert (described.key_id, described.description, described.expires_ms) == (made.key_id, "first", made.expires_ms)
    admin.delete_api_key(made.key_id)
    assert admin.describe_user("billing").api_keys == ()
    with pytest.raises(InvalidRequestError):
        admin.delete_api_key(made.key_id)


def test_grants_are_given_listed_and_taken(admin, auth):
    made = admin.grant("ada", "reader", "topic:clicks.*", expires_ms=CREATED_MS + 5)
    assert (made.principal, made.role, made.resource) == ("ada", "reader", "topic:clicks.*")
    assert (made.expires_ms, made.granted_by, made.granted_ms) == (CREATED_MS + 5, "root", CREATED_MS)
    admin.grant("group:ops", "admin", "cluster")
    assert [grant.principal for grant in admin.list_grants()] == ["ada", "group:ops"]
    assert admin.list_grants("ada") == [made]
    assert [grant.role for grant in admin.list_grants(resource="cluster")] == ["admin"]
    assert [admin.revoke("ada", "reader", "topic:clicks.*") for _ in range(2)] == [True, False]
    assert list(auth.grants) == [("group:ops", "admin", "cluster")]


def test_roles_are_created_listed_and_deleted(admin):
    admin.create_role("importer", ["write", "create"])
    found = {role.name: role for role in admin.list_roles()}
    assert list(found) == ["admin", "importer", "reader"]
    assert (found["importer"].operations, found["importer"].built_in) == (("write", "create"), False)
    assert found["reader"].built_in
    assert [admin.delete_role("importer") for _ in range(2)] == [True, False]
    assert [role.name for role in admin.list_roles()] == ["admin", "reader"]


def test_issuers_are_created_listed_and_deleted(admin, auth):
    """Every argument arrives; the claim of the user has its default."""
    given = {
        "issuer": "https://id.example.org", "audience": "headrace", "keys_url": "https://id.example.org/jwks",
        "keys_ca_pem": "PEM", "algorithms": ["ES256"], "groups_claim": "groups",
    }  # fmt: skip
    admin.create_issuer("corp", **given)
    assert auth.issuers["corp"] == auth_pb2.Issuer(name="corp", **given)
    [found] = admin.list_issuers()
    assert {name: getattr(found, name) for name in given} == {**given, "algorithms": ("ES256",)}
    assert found.user_claim == "sub"
    assert [admin.delete_issuer("corp") for _ in range(2)] == [True, False]
    assert admin.list_issuers() == []


def test_quotas_are_put_listed_and_deleted(admin, auth):
    """Every bound arrives; a quota replaces the one before as a whole."""
    bounds = {
        "produce_bytes_per_second": 10_000_000, "fetch_bytes_per_second": 1 << 40, "requests_per_second": 7,
        "connections": 3, "changes_per_minute": 60,
    }  # fmt: skip
    admin.put_quota("billing", **bounds)
    admin.put_quota("*", connections=100)
    default, everyone, billing = admin.list_quotas()
    assert (default.is_default, default.requests_per_second, default.connections) == (True, 50_000, 0)
    assert {name: getattr(billing, name) for name in bounds} == bounds
    assert (billing.user, billing.set_by, billing.set_ms) == ("billing", "root", CREATED_MS)
    assert (everyone.user, everyone.connections, everyone.produce_bytes_per_second) == ("*", 100, None)
    admin.put_quota("billing", requests_per_second=9)
    assert auth.quotas["billing"].requests_per_second == 9
    assert not auth.quotas["billing"].HasField("connections")
    admin.put_quota("billing", connections=0)
    assert auth.quotas["billing"].HasField("connections")
    assert [admin.delete_quota("billing") for _ in range(2)] == [True, False]
    assert [quota.user for quota in admin.list_quotas()[1:]] == ["*"]


@pytest.mark.parametrize(
    "bounds", [{"connections": 1 << 31}, {"requests_per_second": -1}, {"fetch_bytes_per_second": 1 << 63}]
)
def test_a_bound_out_of_range_is_not_sent(admin, auth, bounds):
    with pytest.raises(headrace.ConfigError, match=f"{next(iter(bounds))} = "):
        admin.put_quota("billing", **bounds)
    assert auth.quotas == {}


def test_access_is_checked_with_the_reason(admin):
    admin.grant("ada", "reader", "topic:clicks")
    admin.grant("group:ops", "admin", "cluster")
    allowed = admin.check_access("read", "topic:clicks", user="ada")
    assert (allowed.allowed, allowed.reason) == (True, "ada has reader on topic:clicks")
    assert allowed.grant.role == "reader"
    assert admin.check_access("read", "topic:clicks").allowed
    denied = admin.check_access("write", "topic:clicks", user="ada")
    assert (denied.allowed, denied.grant) == (False, None)
    assert "no grant of write" in denied.reason
    assert admin.check_access("admin", "cluster", user="bob", groups=["ops"]).allowed


def test_the_caller_is_described(admin, identity):
    admin.grant("ada", "reader", "topic:clicks")
    caller = admin.who_am_i()
    assert (caller.user, caller.groups, caller.identified_by) == ("ada", ("blue",), "API key")
    assert [grant.resource for grant in caller.grants] == ["topic:clicks"]
    assert (caller.posture, caller.remaining_ms) == ("open", identity.lifetime_ms)


def test_the_posture_is_changed(admin, auth):
    assert admin.set_posture("observe") == "observe"
    assert auth.posture == auth_pb2.POSTURE_OBSERVE
    assert admin.who_am_i().posture == "observe"
    with pytest.raises(headrace.ConfigError, match="open, observe, required"):
        admin.set_posture("closed")
    assert posture_name(9) == "9"
