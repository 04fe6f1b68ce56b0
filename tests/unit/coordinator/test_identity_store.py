"""The stores of identity: lost answers, races, limits, and the last administrator (PROTOCOL C2, C3)."""

from __future__ import annotations

import contextlib

import pytest
from headrace.v1 import auth_pb2
from headrace.wire.errors import ConflictError, InvalidRequestError, MetadataLimitError, Outcome
from headrace_coordinator.core import identity_rules
from headrace_server.identity.rights import EVERYTHING, ROLES, operation_names
from headrace_server.metastore.api import Delete, MemberStatus, Put

from tests.fakes.identity_parts import identity_parts
from tests.fakes.lossy_metastore import LATE, LOST, NEVER, LossyMetastore
from tests.fakes.memory_metastore import MemoryMetastore

FAULTS = [[], [NEVER], [LOST], [LOST, NEVER], [NEVER, LOST]]
LAST = "is the last administrator"


@pytest.fixture
def parts():
    return identity_parts(LossyMetastore(MemoryMetastore()))


@pytest.fixture
def with_certificates():
    return identity_parts(LossyMetastore(MemoryMetastore()), accepts_certificates=True)


@pytest.fixture
def pair():
    @contextlib.asynccontextmanager
    async def two():
        memory = MemoryMetastore()
        async with identity_parts(LossyMetastore(memory)) as one, identity_parts(LossyMetastore(memory)) as other:
            yield one, other

    return two()


@pytest.mark.parametrize("faults", FAULTS)
async def test_lost_answers_change_nothing_twice(parts, faults):
    """One user, one API key, one grant, and the answers say so, however often each write had to be sent."""
    parts.metastore.faults = list(faults)
    stored, _ = await parts.store.put_user(auth_pb2.User(name="ada"), parts.deadline, create_only=True)
    parts.metastore.faults = list(faults)
    created = await parts.store.create_api_key("ada", "laptop", 0, parts.deadline)
    parts.metastore.faults = list(faults)
    grant = auth_pb2.Grant(principal="ada", role="reader", resource="topic:x")
    await parts.see((await parts.store.put_grant(grant, "root", parts.deadline))[1])
    assert stored.name == "ada"
    assert [api_key.key_id for api_key in parts.view.users["ada"].api_keys] == [created.stored.key_id]
    assert len(parts.view.all_grants) == 1
    parts.metastore.faults = list(faults)
    await parts.see(await parts.store.delete_api_key(created.stored.key_id, parts.deadline))
    assert not parts.view.users["ada"].api_keys
    parts.metastore.faults = list(faults)
    await parts.see(await parts.store.delete_user("ada", parts.deadline))
    assert not parts.view.users
    assert not parts.view.all_grants


async def test_what_arrives_late_gives_no_right_back(parts):
    """A grant and a user whose first writes are held back until they are removed stay removed."""
    await parts.put_user("ada")
    grant = auth_pb2.Grant(principal="ada", role="reader", resource="topic:x")
    parts.metastore.faults = [LATE]
    await parts.see((await parts.store.put_grant(grant, "root", parts.deadline))[1])
    await parts.see(await parts.store.delete_grant("ada", "reader", "topic:x", parts.deadline))
    parts.metastore.faults = [LATE]
    await parts.put_user("bob")
    await parts.see(await parts.store.delete_user("bob", parts.deadline))
    await parts.metastore.arrive()
    stored = await parts.metastore.range(parts.writes.keyspace.identity_prefix)
    assert [each.key for each in stored.key_values] == [parts.writes.keyspace.user("ada")]


async def test_the_secret_of_a_key_is_stored_nowhere_and_not_shown(parts):
    await parts.put_user("ada")
    created = await parts.store.create_api_key("ada", "", 0, parts.deadline)
    secret = created.text.rpartition("_")[2]
    assert secret not in repr(created)
    written = [
        operation.value for _, success in parts.metastore.sent for operation in success if isinstance(operation, Put)
    ]
    assert written
    assert not [value for value in written if secret.encode() in value]


# --- the last administrator ---


async def _delete_user(parts, key_id):
    await parts.store.delete_user("ada", parts.deadline)


async def _disable(parts, key_id):
    await parts.store.put_user(auth_pb2.User(name="ada", disabled=True), parts.deadline)


async def _delete_key(parts, key_id):
    await parts.store.delete_api_key(key_id, parts.deadline)


async def _delete_grant(parts, key_id):
    await parts.store.delete_grant("ada", "admin", "cluster", parts.deadline)


REMOVALS = [_delete_user, _disable, _delete_key, _delete_grant]


@pytest.mark.parametrize("remove", REMOVALS)
async def test_the_last_administrator_keeps_its_rights(parts, remove):
    """Neither deleted nor disabled, nor without its last key or its grant; with a second administrator it may be."""
    key_id = await parts.administrator("ada")
    before = parts.source.revision
    with pytest.raises(ConflictError, match=LAST) as failure:
        await remove(parts, key_id)
    assert failure.value.outcome is Outcome.NOT_APPLIED
    assert not failure.value.retriable
    assert parts.source.revision == before
    assert parts.writes.has_administrator
    await parts.administrator("bob")
    await remove(parts, key_id)
    assert parts.writes.has_administrator


@pytest.mark.parametrize("ends_after_ms", [0, 60_000])
async def test_the_grant_of_the_last_administrator_ends_no_earlier(parts, ends_after_ms):
    """It would take the rights away at its end, when it is too late to refuse. A later end takes nothing."""
    await parts.put_user("ada")
    await parts.add_key("ada")
    now_ms = parts.clock.now_ms()
    await parts.grant("ada", expires_ms=now_ms + ends_after_ms if ends_after_ms else 0)
    before = parts.source.revision
    with pytest.raises(ConflictError, match=LAST):
        await parts.grant("ada", expires_ms=now_ms + 59_999)
    assert parts.source.revision == before
    if ends_after_ms:
        await parts.grant("ada", expires_ms=now_ms + 60_001)
        await parts.grant("ada")
    await parts.administrator("bob")
    await parts.grant("ada", expires_ms=now_ms + 1)
    (grant,) = parts.view.grants_to("ada")
    assert grant.expires_ms == now_ms + 1


@pytest.mark.parametrize("remove", REMOVALS)
async def test_an_administrator_for_a_time_is_no_substitute_for_one_without_end(parts, remove):
    """At the end of that time the cluster would have none, when it is too late to refuse."""
    key_id = await parts.administrator("ada")
    await parts.put_user("guest")
    await parts.add_key("guest")
    await parts.grant("guest", expires_ms=parts.clock.now_ms() + 60_000)
    with pytest.raises(ConflictError, match=LAST + " whose grant does not expire"):
        await remove(parts, key_id)
    await parts.grant("guest")
    await remove(parts, key_id)


@pytest.mark.parametrize("remove", REMOVALS)
async def test_an_administrator_without_a_credential_that_works_does_not_count(parts, remove):
    """Disabled, without an API key, with an expired one, with an expired grant, or only a reader: no substitutes."""
    key_id = await parts.administrator("ada")
    await parts.administrator("disabled")
    await parts.put_user("disabled", disabled=True)
    await parts.put_user("keyless")
    await parts.grant("keyless")
    await parts.put_user("expired")
    await parts.add_key("expired", lifetime_ms=10)
    await parts.grant("expired")
    await parts.put_user("brief")
    await parts.add_key("brief")
    await parts.grant("brief", expires_ms=parts.clock.now_ms() + 10)
    await parts.put_user("reader")
    await parts.add_key("reader")
    await parts.grant("reader", "reader")
    await parts.grant("group:of-an-issuer")
    parts.clock.advance(10)
    with pytest.raises(ConflictError, match=LAST):
        await remove(parts, key_id)


@pytest.mark.parametrize("remove", REMOVALS)
async def test_who_administers_otherwise_counts(parts, remove):
    """By a group, by a role of the cluster's own, or as a user of an issuer."""
    key_id = await parts.administrator("ada")
    await parts.put_user("bob", groups=["operators"])
    await parts.add_key("bob")
    await parts.see(await parts.policies.put_role(auth_pb2.Role(name="root", operations=["admin"]), parts.deadline))
    await parts.grant("group:operators", "root")
    await remove(parts, key_id)
    assert parts.writes.has_administrator
    for change in (
        lambda: parts.store.put_user(auth_pb2.User(name="bob"), parts.deadline),
        lambda: parts.policies.put_role(auth_pb2.Role(name="root", operations=["read"]), parts.deadline),
        lambda: parts.store.delete_grant("group:operators", "root", "cluster", parts.deadline),
    ):
        with pytest.raises(ConflictError, match=LAST):
            await change()


async def test_an_issuer_whose_user_is_the_last_administrator_stays(parts):
    """Nor may that user be disabled or lose its grant."""
    issuer = auth_pb2.Issuer(name="sso", issuer="i", audience="a", keys_url="/keys")
    await parts.see(await parts.policies.put_issuer(issuer, parts.deadline))
    await parts.grant("sso:ada")
    for change in (
        lambda: parts.policies.delete_issuer("sso", parts.deadline),
        lambda: parts.store.put_user(auth_pb2.User(name="sso:ada", disabled=True), parts.deadline),
        lambda: parts.store.delete_grant("sso:ada", "admin", "cluster", parts.deadline),
    ):
        with pytest.raises(ConflictError, match=LAST):
            await change()
    await parts.administrator("bob")
    await parts.see(await parts.policies.delete_issuer("sso", parts.deadline))


async def test_certificates_count_where_clients_have_some(parts, with_certificates):
    for one in (parts, with_certificates):
        await one.administrator("ada")
        await one.put_user("bob", certificate_names=["bob.example"])
        await one.grant("bob")
        await one.grant("certificate:carol.example")
    with pytest.raises(ConflictError, match=LAST):
        await _delete_user(parts, "")
    await _delete_user(with_certificates, "")
    await with_certificates.store.delete_user("bob", with_certificates.deadline)
    with pytest.raises(ConflictError, match=LAST):
        await with_certificates.store.delete_grant("certificate:carol.example", "admin", "cluster", parts.deadline)


async def test_a_cluster_without_an_administrator_has_none_to_keep(parts):
    """Users come and go before the first one is made."""
    await parts.put_user("ada")
    await parts.add_key("ada")
    await parts.store.delete_user("ada", parts.deadline)


class Behind:
    """A coordinator to whose view nothing comes until it does something."""

    def __init__(self, parts):
        self._parts = parts
        self._held = []
        parts.source._take_item = self._held.append

    async def catch_up(self, *_):
        """Let its view be as new as etcd again."""
        self._parts.metastore.before_txn = None
        self._parts.source.__dict__.pop("_take_item", None)
        while self._held:
            self._parts.source._take_item(self._held.pop(0))

    def catch_up_at_a_txn(self):
        self._parts.metastore.before_txn = self.catch_up

    def catch_up_after_a_range(self):
        metastore = self._parts.metastore

        async def read(prefix):
            found = await metastore._inner.range(prefix)
            await self.catch_up()
            return found

        metastore.range = read


@pytest.mark.parametrize("remove", REMOVALS)
async def test_a_coordinator_that_is_behind_removes_no_last_administrator(pair, remove):
    """Its view shows an administrator that is gone: the write fails, and it refuses once its view has caught up."""
    one, other = pair
    await one.administrator("bob")
    await other.see(one.source.revision)
    behind = Behind(other)
    key_id = await one.administrator("ada")
    await one.see(await one.store.delete_user("bob", one.deadline))
    behind.catch_up_at_a_txn()
    if remove is _delete_key:
        await behind.catch_up()  # It learns of the key from its view.
    with pytest.raises(ConflictError, match=LAST):
        await remove(other, key_id)
    assert one.writes.has_administrator


@pytest.mark.parametrize("remove", [_delete_user, _disable, _delete_grant])
async def test_a_coordinator_that_knows_of_no_administrator_yet_looks_before_it_removes_one(pair, remove):
    one, other = pair
    behind = Behind(other)
    await one.administrator("ada")
    behind.catch_up_after_a_range()
    with pytest.raises(ConflictError, match=LAST):
        await remove(other, "")
    assert one.writes.has_administrator


@pytest.mark.parametrize("remove", REMOVALS)
async def test_a_coordinator_that_does_not_know_the_other_administrator_yet_looks_before_it_refuses(pair, remove):
    one, other = pair
    key_id = await one.administrator("ada")
    await other.see(one.source.revision)
    behind = Behind(other)
    await one.administrator("bob")
    behind.catch_up_after_a_range()
    await remove(other, key_id)
    assert one.writes.has_administrator


# --- names, limits, what belongs together ---


async def test_a_later_user_of_a_name_has_no_grants_of_the_first(pair):
    """Also those that another coordinator wrote while the user was deleted, or that a dead one left."""
    one, other = pair
    await one.administrator("root")
    await one.put_user("ada")
    await other.see(one.source.revision)

    async def grant_meanwhile(compares, success):
        one.metastore.before_txn = None
        await other.grant("ada", "reader", "topic:secret")

    one.metastore.before_txn = grant_meanwhile
    await one.store.delete_user("ada", one.deadline)
    assert not one.view.grants_to("ada")
    left = auth_pb2.Grant(principal="ada", role="reader", resource="topic:secret")
    key = one.keyspace.grant("ada", "reader", "topic:secret")
    await one.see((await one.metastore.txn([], [Put(key, left.SerializeToString())])).revision)
    await one.put_user("ada")
    assert not one.view.grants_to("ada")


async def test_more_grants_than_a_transaction_takes_go_with_their_user(parts):
    await parts.put_user("ada")
    for number in range(250):
        await parts.grant("ada", "reader", f"topic:{number}")
    await parts.store.delete_user("ada", parts.deadline)
    assert not parts.view.all_grants
    assert max(max(len(compares), len(success)) for compares, success in parts.metastore.sent) <= 128


async def test_a_grant_to_a_user_that_is_deleted_meanwhile_is_not_written(pair):
    one, other = pair
    await one.put_user("ada")
    await other.see(one.source.revision)

    async def delete_meanwhile(compares, success):
        one.metastore.before_txn = None
        await other.store.delete_user("ada", other.deadline)

    one.metastore.before_txn = delete_meanwhile
    with pytest.raises(InvalidRequestError, match="there is no user 'ada'"):
        await one.grant("ada", "reader", "topic:x")
    assert not other.view.all_grants


@pytest.mark.parametrize("name", ["", "a" * 129, "a b", "é", "group:admins", "anonymous", "a\n", "a*"])
async def test_names_that_no_user_can_have(parts, name):
    with pytest.raises(InvalidRequestError):
        await parts.put_user(name)
    if name != "group:admins":
        with pytest.raises(InvalidRequestError):
            await parts.grant(name, "reader", "topic:x")


@pytest.mark.parametrize("name", ["a", "a" * 128, "Ada.Lovelace_1-2@example+x:y/z", "certificate:CN=ü, O=Ä Ö"])
async def test_names_that_users_can_have(parts, name):
    await parts.put_user(name)
    assert [*parts.view.users] == [name]


async def test_users_of_issuers_are_disabled_and_grouped_by_any_name_but_have_no_keys(parts):
    issuer = auth_pb2.Issuer(name="sso", issuer="i", audience="a", keys_url="https://sso.example/keys")
    await parts.see(await parts.policies.put_issuer(issuer, parts.deadline))
    name = "sso:Ada Lovelace, née Byron <ada@example>"
    await parts.put_user(name, groups=["x"], disabled=True)
    await parts.grant(name, "reader", "topic:x")
    with pytest.raises(InvalidRequestError, match="identified elsewhere"):
        await parts.add_key(name)
    with pytest.raises(InvalidRequestError):
        await parts.put_user("sso:" + "x" * 253)
    with pytest.raises(InvalidRequestError):
        await parts.put_user("other:Ada Lovelace")


@pytest.mark.parametrize("text", ["\u00fc\u00fc", "# M\u00fcller", "\n"])
async def test_authorities_of_an_issuer_without_a_certificate_are_refused(parts, text):
    """Also text that `ssl` does not take at all."""
    issuer = auth_pb2.Issuer(name="sso", issuer="i", audience="a", keys_url="https://sso.example", keys_ca_pem=text)
    with pytest.raises(InvalidRequestError, match="keys_ca_pem is no certificate in PEM"):
        await parts.policies.put_issuer(issuer, parts.deadline)


async def test_an_issuer_can_name_no_user_that_exists_and_no_group(parts):
    """Its users are named by its name and a colon: it must not be able to say that one is a user with an API key."""
    await parts.put_user("sso:ada")
    await parts.add_key("sso:ada")
    fields = {"issuer": "i", "audience": "a", "keys_url": "https://sso.example/keys"}
    with pytest.raises(ConflictError, match="there is a user sso:ada"):
        await parts.policies.put_issuer(auth_pb2.Issuer(name="sso", **fields), parts.deadline)
    for name in ("group", "certificate", "server", "a:b", ""):
        with pytest.raises(InvalidRequestError):
            await parts.policies.put_issuer(auth_pb2.Issuer(name=name, **fields), parts.deadline)
    await parts.see(await parts.policies.put_issuer(auth_pb2.Issuer(name="one", **fields), parts.deadline))
    with pytest.raises(ConflictError, match="issuer one has the same issuer i"):
        await parts.policies.put_issuer(auth_pb2.Issuer(name="two", **fields), parts.deadline)


@pytest.mark.parametrize(
    "fields",
    [
        {"issuer": ""},
        {"audience": ""},
        {"keys_url": "http://sso.example/keys"},
        {"keys_url": "keys.json"},
        {"keys_url": ""},
        {"algorithms": ["HS256"]},
        {"algorithms": ["none"]},
        {"algorithms": ["RS256", "RS512"]},
        {"keys_ca_pem": "-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n"},
        {"user_claim": "x" * 129},
    ],
)
async def test_issuers_that_are_not_accepted(parts, fields):
    good = {"name": "sso", "issuer": "i", "audience": "a", "keys_url": "https://sso.example/keys"}
    with pytest.raises(InvalidRequestError):
        await parts.policies.put_issuer(auth_pb2.Issuer(**good | fields), parts.deadline)


async def test_what_does_not_exist_is_not_granted(parts):
    await parts.put_user("ada")
    for fields in (
        {"principal": "bob", "role": "reader", "resource": "topic:x"},
        {"principal": "ada", "role": "no-role", "resource": "topic:x"},
        {"principal": "ada", "role": "reader", "resource": "x"},
        {"principal": "group:", "role": "reader", "resource": "topic:x"},
        {"principal": "ada", "role": "reader", "resource": "topic:x", "expires_ms": 1},
    ):
        with pytest.raises(InvalidRequestError):
            await parts.grant(**fields)
    assert not parts.view.all_grants


async def test_the_error_of_an_unknown_role_lists_each_name_once(parts):
    """Roles of the cluster, also its own, and operations; `admin` is both."""
    await parts.put_user("ada")
    role = auth_pb2.Role(name="janitor", operations=["delete"])
    await parts.see(await parts.policies.put_role(role, parts.deadline))
    with pytest.raises(InvalidRequestError, match="'rader' is no role and no operation") as raised:
        await parts.grant(principal="ada", role="rader", resource="topic:x")
    listed = raised.value.action.removeprefix("Name one of ").rstrip(".").split(", ")
    assert sorted(listed) == sorted({"janitor", *ROLES, *operation_names(EVERYTHING)})


async def test_roles_that_are_not_accepted(parts):
    for name, operations in (("admin", ["read"]), ("read", ["read"]), ("x", []), ("x", ["reader"]), ("a b", ["read"])):
        with pytest.raises(InvalidRequestError):
            await parts.policies.put_role(auth_pb2.Role(name=name, operations=operations), parts.deadline)
    with pytest.raises(InvalidRequestError, match="'reader' is no operation"):
        await parts.policies.put_role(auth_pb2.Role(name="x", operations=["reader"]), parts.deadline)
    with pytest.raises(InvalidRequestError, match="built in"):
        await parts.policies.delete_role("admin", parts.deadline)


async def test_a_certificate_identifies_one_user(parts):
    await parts.put_user("ada", certificate_names=["x", "y"])
    with pytest.raises(ConflictError, match="user ada has one of these certificate_names"):
        await parts.put_user("bob", certificate_names=["z", "y"])
    await parts.put_user("ada", certificate_names=["y", "z"])


async def test_limits_of_users_and_grants(parts, monkeypatch):
    """Both kinds, by number; what exists may be changed and deleted."""
    await parts.put_user("ada")
    await parts.grant("ada", "reader", "topic:x")
    monkeypatch.setattr("headrace_coordinator.runtime.identity_store.MAX_USERS", 1)
    monkeypatch.setattr("headrace_coordinator.runtime.identity_store.MAX_GRANTS", 1)
    assert identity_rules.MAX_USERS == identity_rules.MAX_GRANTS == 100_000
    with pytest.raises(MetadataLimitError, match="there are 1 users"):
        await parts.put_user("bob")
    with pytest.raises(MetadataLimitError, match="there are 1 grants"):
        await parts.grant("ada", "reader", "topic:y")
    await parts.put_user("ada", description="changed")
    await parts.store.delete_user("ada", parts.deadline)


async def test_a_nearly_full_etcd_takes_deletions_only(parts):
    key_id = await parts.administrator("ada")
    await parts.administrator("bob")
    full = MemberStatus("m", version="3.5", used_bytes=80, database_bytes=80, quota_bytes=100)
    parts.limits.look_at([full])
    for add in (parts.put_user("carol"), parts.add_key("ada"), parts.grant("ada", "reader", "topic:x")):
        with pytest.raises(MetadataLimitError, match="etcd uses"):
            await add
    await parts.see(await parts.store.delete_api_key(key_id, parts.deadline))
    await parts.see(await parts.store.delete_grant("ada", "admin", "cluster", parts.deadline))
    await parts.store.delete_user("ada", parts.deadline)


async def test_required_needs_an_administrator(parts):
    """A cluster without one would refuse every administrator's call for ever."""
    with pytest.raises(ConflictError, match="no administrator"):
        await parts.policies.set_posture(auth_pb2.POSTURE_REQUIRED, "x", parts.deadline)
    with pytest.raises(InvalidRequestError):
        await parts.policies.set_posture(auth_pb2.POSTURE_UNSPECIFIED, "x", parts.deadline)
    await parts.administrator("ada")
    await parts.see(await parts.policies.set_posture(auth_pb2.POSTURE_REQUIRED, "x", parts.deadline))
    assert parts.view.posture == auth_pb2.POSTURE_REQUIRED


async def test_every_removal_compares_what_makes_another_user_an_administrator(parts):
    """Its user and its grant: the write fails if either changes meanwhile."""
    await parts.administrator("ada")
    await parts.administrator("bob")
    parts.metastore.sent.clear()
    await parts.store.delete_user("ada", parts.deadline)
    (compares, operations), *_ = parts.metastore.sent
    compared = {compare.key for compare in compares}
    assert {parts.keyspace.user("bob"), parts.keyspace.grant("bob", "admin", "cluster")} <= compared
    assert Delete(parts.keyspace.user("ada")) in operations
