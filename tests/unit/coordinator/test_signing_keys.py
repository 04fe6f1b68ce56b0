"""Signing keys: one at once, a new one a day, old ones until their last session has ended; by the controller alone."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from headrace.v1 import auth_pb2
from headrace_coordinator.core.cluster_secrets import next_secrets
from headrace_coordinator.core.signing_keys import KEPT_MS, ROTATION_MS, KeyPlan, plan_keys
from headrace_coordinator.runtime.identity_maintenance import KEPT_GRANT_MS, IdentityMaintenance
from headrace_server.identity.callers import MAX_SKEW_MS
from headrace_server.identity.identification import SESSION_MS
from headrace_server.identity.identity_view import SIGNS_AFTER_MS
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.metastore.api import Delete, Put

from tests.fakes.identity_parts import identity_parts
from tests.fakes.lossy_metastore import LOST, NEVER, LossyMetastore
from tests.fakes.memory_metastore import MemoryMetastore

NOW = 1_700_000_000_000


def key(key_id, created_ms):
    return metadata_pb2.SigningKey(key_id=key_id, created_ms=created_ms)


def test_a_cluster_without_keys_gets_one_at_once_and_another_a_day_later():
    assert plan_keys([], NOW) == KeyPlan(True, ())
    assert plan_keys([key("a", NOW)], NOW + ROTATION_MS - 1) == KeyPlan(False, ())
    assert plan_keys([key("a", NOW)], NOW + ROTATION_MS) == KeyPlan(True, ())


def test_a_key_verifies_until_its_last_session_has_ended_everywhere():
    """Its successor signs from when a server sees it; a session lasts a quarter of an hour, clocks differ."""
    keys = [key("a", NOW), key("b", NOW + ROTATION_MS)]
    assert KEPT_MS >= SESSION_MS + MAX_SKEW_MS
    assert plan_keys(keys, NOW + ROTATION_MS + KEPT_MS - 1) == KeyPlan(False, ())
    assert plan_keys(keys, NOW + ROTATION_MS + KEPT_MS) == KeyPlan(False, ("a",))


def test_a_key_that_signed_for_longer_is_kept_as_long():
    """No controller for a week: the old key signed until a moment ago, whatever its age."""
    keys = [key("a", NOW), key("b", NOW + 7 * ROTATION_MS)]
    assert plan_keys(keys, NOW + 7 * ROTATION_MS + 1) == KeyPlan(False, ())


@pytest.mark.parametrize("ahead_ms", [MAX_SKEW_MS, 30 * ROTATION_MS])
def test_the_newest_key_stays_whatever_the_clock_says(ahead_ms):
    """It may be of a controller whose clock was ahead."""
    plan = plan_keys([key("a", NOW), key("b", NOW + ahead_ms)], NOW + 100 * ROTATION_MS)
    assert plan == KeyPlan(True, ("a",))
    assert not plan_keys([key("a", NOW), key("b", NOW + ahead_ms)], NOW).remove


@pytest.fixture
def parts():
    return identity_parts(LossyMetastore(MemoryMetastore()))


@contextlib.asynccontextmanager
async def elected(parts, doubt=lambda: "", noted=None):
    """Maintenance by a controller, which has the epoch that etcd says."""
    controller = Put(parts.keyspace.controller(), b"me")
    epoch = (await parts.metastore._inner.txn([], [controller])).revision
    maintenance = IdentityMaintenance(
        parts.metastore,
        parts.source,
        parts.view,
        parts.keyspace,
        parts.clock,
        clock_doubt=doubt,
        note_command=lambda method, done: None if noted is None else noted.append((method, *done.values())),
    )
    task = asyncio.create_task(maintenance.run(epoch))
    try:
        yield maintenance, epoch
    finally:
        task.cancel()
        await asyncio.wait([task])


async def shown(parts, condition):
    changed = asyncio.Event()
    unsubscribe = parts.source.subscribe(lambda revision, keys: changed.set())
    try:
        while not condition():
            changed.clear()
            await changed.wait()
    finally:
        unsubscribe()


@pytest.mark.parametrize("faults", [[], [NEVER], [LOST], [LOST, LOST, NEVER]])
async def test_one_key_is_added_whatever_answers_are_lost(parts, faults):
    parts.metastore.faults = list(faults)
    async with elected(parts) as (maintenance, epoch):
        await shown(parts, lambda: parts.view.signing_keys)
        await maintenance._look(epoch)
        (added,) = parts.view.signing_keys.values()
        assert len(added.secret) == 32
        assert parts.view.signing_key(parts.clock.now_ms()) == added


async def test_a_key_that_an_operator_deletes_is_replaced_at_once(parts):
    async with elected(parts):
        await shown(parts, lambda: parts.view.signing_keys)
        (first,) = parts.view.signing_keys
        await parts.metastore._inner.txn([], [Delete(parts.keyspace.signing_key(first))])
        await shown(parts, lambda: parts.view.signing_keys and first not in parts.view.signing_keys)


async def test_keys_rotate_and_expired_grants_go(parts):
    """A new key a day; grants a day after they expired, so that an explanation can still name them."""
    await parts.put_user("ada")
    await parts.grant("ada", "reader", "topic:brief", expires_ms=parts.clock.now_ms() + 1_000)
    await parts.grant("ada", "reader", "topic:lasting")
    async with elected(parts) as (maintenance, epoch):
        await shown(parts, lambda: parts.view.signing_keys)
        (first,) = parts.view.signing_keys
        parts.clock.advance(ROTATION_MS)
        await maintenance._look(epoch)
        assert len(parts.view.signing_keys) == 2
        assert parts.view.signing_key(parts.clock.now_ms()).key_id == first
        parts.clock.advance(SIGNS_AFTER_MS)
        assert parts.view.signing_key(parts.clock.now_ms()).key_id != first
        assert len(parts.view.all_grants) == 2
        parts.clock.advance(KEPT_MS + KEPT_GRANT_MS - ROTATION_MS - SIGNS_AFTER_MS + 1_000)
        await maintenance._look(epoch)
        assert first not in parts.view.signing_keys
        assert [grant.resource for grant in parts.view.all_grants] == ["topic:lasting"]


async def test_a_clock_in_doubt_removes_nothing(parts):
    async with elected(parts, doubt=lambda: "it differs from all others") as (maintenance, epoch):
        await shown(parts, lambda: parts.view.signing_keys)
        parts.clock.advance(ROTATION_MS)
        await maintenance._look(epoch)
        parts.clock.advance(KEPT_MS)
        await maintenance._look(epoch)
        assert len(parts.view.signing_keys) == 2


async def test_who_is_no_controller_any_more_writes_nothing(parts):
    """I14: every write compares the controller's epoch."""
    async with elected(parts) as (maintenance, epoch):
        await shown(parts, lambda: parts.view.signing_keys)
        await parts.put_user("ada")
        await parts.grant("ada", "reader", "topic:brief", expires_ms=parts.clock.now_ms() + 1)
        parts.clock.advance(ROTATION_MS + KEPT_GRANT_MS)
        before = parts.source.revision
        await maintenance._look(epoch - 1)
        assert parts.source.revision == before
        grant = auth_pb2.Grant(principal="ada", role="reader", resource="topic:brief")
        assert parts.source.get(parts.keyspace.grant(grant.principal, grant.role, grant.resource))


async def test_an_administrator_that_the_command_makes_is_noted(parts):
    """There is no call that the audit log could have; those whom administrators make are acts of theirs."""
    noted = []
    async with elected(parts, noted=noted):
        await shown(parts, lambda: parts.view.signing_keys)
        await parts.bootstrap("first")
        await parts.bootstrap("first", recover=True)
        await parts.administrator("second")
    assert noted == [("BootstrapAdmin", "first")] * 2


async def test_the_steps_of_a_replacement_of_the_secret_are_noted(parts):
    """The command makes no call either; no secret is in the audit log."""
    noted, key = [], parts.keyspace.cluster_secrets()
    async with elected(parts, noted=noted):
        await shown(parts, lambda: parts.view.signing_keys)
        await parts.metastore._inner.txn([], [Put(key, b"\xff")])
        secrets = metadata_pb2.ClusterSecrets(used=b"old")
        for _ in range(3):
            secrets = next_secrets(secrets, b"new")
            await parts.metastore._inner.txn([], [Put(key, secrets.SerializeToString())])
            await shown(parts, lambda: parts.view.stored_secrets == secrets)  # noqa: B023
    steps = (
        "the new secret is accepted",
        "the new secret is used, and the old one is still accepted",
        "the old secret is refused",
    )
    assert noted == [("ReplaceSecret", step) for step in steps]
