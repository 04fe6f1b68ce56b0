"""The coordinator's registration: one process an id."""

from __future__ import annotations

import asyncio

import pytest
from headrace.wire.errors import InvalidConfigError
from headrace_coordinator.runtime import session as session_module
from headrace_coordinator.runtime.session import CoordinatorSession
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.metastore.api import Delete, Put

from tests.fakes.manual_clock import ManualClock
from tests.fakes.memory_metastore import MemoryLeaseRenewer

TTL_MS = 10_000


@pytest.fixture
def clock(monkeypatch):
    """Time that passes only while the session waits."""
    clock = ManualClock()
    really_sleep = asyncio.sleep

    async def sleep(seconds):
        clock.advance(round(seconds * 1000))
        await really_sleep(0)

    monkeypatch.setattr(session_module.asyncio, "sleep", sleep)
    return clock


def make_session(parts, clock, address):
    return CoordinatorSession(
        parts.metastore,
        parts.keyspace,
        metadata_pb2.CoordinatorLive(coordinator_id="a", address=address),
        parts.metrics,
        lease_ttl_ms=TTL_MS,
        clock=clock,
        make_renewer=lambda: MemoryLeaseRenewer(parts.memory, asyncio.get_running_loop()),
    )


async def put_other(parts, address):
    lease = await parts.metastore.grant_lease(TTL_MS)
    value = metadata_pb2.CoordinatorLive(coordinator_id="a", address=address).SerializeToString()
    await parts.metastore.txn([], [Put(parts.keyspace.coordinator("a"), value, lease.lease_id)])


async def test_second_process_with_an_id_in_use_ends_with_a_sentence(parts, clock):
    """It waits as long as a dead process could keep the id, three times over, and leaves the first one registered."""
    await put_other(parts, "other:7170")
    with pytest.raises(InvalidConfigError, match="coordinator id a is registered by the process at other:7170"):
        await make_session(parts, clock, "own:7170").run()
    assert clock.monotonic_ms() >= 3 * TTL_MS
    found = (await parts.metastore.get(parts.keyspace.coordinator("a"))).key_value
    assert metadata_pb2.CoordinatorLive.FromString(found.value).address == "other:7170"


@pytest.mark.parametrize("released", [True, False])
async def test_restarted_process_registers(parts, clock, released):
    """At once where the registration has its own address, which it could bind; else when the other one is gone."""
    await put_other(parts, "other:7170" if released else "own:7170")
    session = make_session(parts, clock, "own:7170")
    running = asyncio.create_task(session.run())
    if released:
        await parts.metastore.txn([], [Delete(parts.keyspace.coordinator("a"))])
    await parts.shows(lambda: "a" in parts.view.coordinators and session.lease_id)
    assert parts.view.coordinators["a"].live.address == "own:7170"
    assert clock.monotonic_ms() < TTL_MS
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await session.end()
