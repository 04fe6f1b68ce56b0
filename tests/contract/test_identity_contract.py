"""Users, grants, roles, issuers and the posture in etcd, and in the fake that the unit tests have."""

from __future__ import annotations

import asyncio

import pytest
from headrace.v1 import auth_pb2
from headrace.wire.errors import ConflictError, InvalidRequestError
from headrace_server.identity.quotas import DEFAULT_QUOTA

from tests.fakes.identity_parts import identity_parts

ISSUER = {"issuer": "https://login.example", "audience": "headrace", "keys_url": "https://login.example/keys"}


@pytest.fixture
def cluster(request):
    """Each test has a cluster of its own in the shared etcd."""
    return request.node.originalname


async def test_a_user_lives_and_dies_with_all_that_is_its(store, cluster):
    """Created, changed with its keys kept, deleted with its keys and grants: another of its name has none of them."""
    async with identity_parts(store, cluster) as parts:
        await parts.put_user("ada", groups=["a"], description="d")
        key_id = await parts.add_key("ada")
        await parts.grant("ada", "reader", "topic:clicks")
        await parts.grant("ada", "writer", "topic:clicks")
        await parts.put_user("ada", groups=["b"])
        user = parts.view.users["ada"]
        assert ([*user.groups], user.description, user.api_keys[0].key_id) == (["b"], "", key_id)
        await parts.see(await parts.store.delete_user("ada", parts.deadline))
        assert not parts.view.users
        assert not parts.view.all_grants
        assert parts.view.user_of_api_key(key_id) is None
        with pytest.raises(InvalidRequestError, match="there is no user 'ada'"):
            await parts.store.delete_user("ada", parts.deadline)
        await parts.put_user("ada")
        assert not parts.view.users["ada"].api_keys


async def test_a_user_that_must_be_new_is_not_changed(store, cluster):
    async with identity_parts(store, cluster) as parts:
        await parts.put_user("ada", description="first")
        with pytest.raises(ConflictError, match="there is a user ada already"):
            await parts.store.put_user(auth_pb2.User(name="ada"), parts.deadline, create_only=True)
        assert parts.view.users["ada"].description == "first"


async def test_a_third_api_key_is_refused_and_names_the_two(store, cluster):
    """After one of them is deleted, or has expired, there is room for another."""
    async with identity_parts(store, cluster) as parts:
        await parts.put_user("ada")
        first, second = await parts.add_key("ada"), await parts.add_key("ada", lifetime_ms=60_000)
        with pytest.raises(ConflictError, match=f"user ada has 2 API keys, {first} and {second}"):
            await parts.add_key("ada")
        await parts.see(await parts.store.delete_api_key(first, parts.deadline))
        third = await parts.add_key("ada")
        parts.clock.advance(60_000)
        fourth = await parts.add_key("ada")
        assert [api_key.key_id for api_key in parts.view.users["ada"].api_keys] == [third, fourth]


async def test_grants_are_put_and_deleted_any_number_of_times(store, cluster):
    """Putting one again changes nothing, another expiry replaces it, and deleting one that is gone succeeds."""
    async with identity_parts(store, cluster) as parts:
        await parts.put_user("ada")
        wanted = auth_pb2.Grant(principal="ada", role="reader", resource="topic:x*")
        first, revision = await parts.store.put_grant(wanted, "root", parts.deadline)
        parts.clock.advance(5)
        assert await parts.store.put_grant(wanted, "other", parts.deadline) == (first, revision)
        wanted.expires_ms = parts.clock.now_ms() + 1
        replaced, later = await parts.store.put_grant(wanted, "other", parts.deadline)
        assert (replaced.granted_by, replaced.expires_ms, later > revision) == ("other", wanted.expires_ms, True)
        await parts.see(await parts.store.delete_grant("ada", "reader", "topic:x*", parts.deadline))
        assert not parts.view.all_grants
        assert await parts.store.delete_grant("ada", "reader", "topic:x*", parts.deadline) == 0


async def test_two_coordinators_cannot_remove_the_last_two_administrators(store, cluster):
    """Each sees the other administrator when it decides; one of the two writes is refused all the same."""
    async with identity_parts(store, cluster) as one, identity_parts(store, cluster) as two:
        await one.administrator("ada")
        await one.administrator("bob")
        await two.see(one.source.revision)
        results = await asyncio.gather(
            one.store.delete_user("ada", one.deadline),
            two.store.delete_user("bob", two.deadline),
            return_exceptions=True,
        )
        failures = [result for result in results if isinstance(result, Exception)]
        assert [type(failure) for failure in failures] == [ConflictError]
        assert one.writes.has_administrator


async def test_roles_issuers_and_the_posture(store, cluster):
    async with identity_parts(store, cluster) as parts:
        role = auth_pb2.Role(name="auditor", operations=["read", "describe"])
        await parts.see(await parts.policies.put_role(role, parts.deadline))
        await parts.put_user("ada")
        await parts.grant("ada", "auditor", "topic:__audit")
        with pytest.raises(ConflictError, match="ada has role auditor on topic:__audit"):
            await parts.policies.delete_role("auditor", parts.deadline)
        await parts.see(await parts.store.delete_grant("ada", "auditor", "topic:__audit", parts.deadline))
        await parts.see(await parts.policies.delete_role("auditor", parts.deadline))
        assert "auditor" not in parts.view.roles
        await parts.see(await parts.policies.put_issuer(auth_pb2.Issuer(name="sso", **ISSUER), parts.deadline))
        assert parts.view.issuers["sso"].audience == "headrace"
        await parts.grant("sso:ada", "reader", "topic:clicks")
        await parts.see(await parts.policies.delete_issuer("sso", parts.deadline))
        assert not parts.view.issuers
        for quota in (
            auth_pb2.Quota(user="*", connections=5, requests_per_second=9),
            auth_pb2.Quota(user="ada", connections=0),
        ):
            await parts.see(await parts.policies.put_quota(quota, "root", parts.deadline))
        applied = parts.view.quota_of("ada")
        assert (applied.connections, applied.requests_per_second) == (0, 9)
        assert applied.changes_per_minute == DEFAULT_QUOTA.changes_per_minute
        assert parts.view.quota_of("bob").connections == 5
        assert [quota.user for quota in parts.view.quotas()] == ["*", "ada"], "as many as were set"
        await parts.see(await parts.policies.delete_quota("*", parts.deadline))
        assert parts.view.quota_of("ada").requests_per_second == DEFAULT_QUOTA.requests_per_second
        await parts.see(await parts.policies.delete_quota("ada", parts.deadline))
        assert parts.view.quota_of("ada") == parts.view.quota_of("") == DEFAULT_QUOTA
        await parts.see(await parts.policies.set_posture(auth_pb2.POSTURE_OBSERVE, "root", parts.deadline))
        assert parts.view.posture == auth_pb2.POSTURE_OBSERVE
