"""A call that its client has repeated at another coordinator is not applied any more by the first one."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from headrace.client.admin.rpc import by_name
from headrace.wire.call_tries import CALL_TRY_KEY, CallTry
from headrace.wire.errors import MetastoreUnavailableError, TimedOutError
from headrace_coordinator.core.topics import TopicDefaults, TopicSpec, altered_configs, check_new_topic, place_new_topic
from headrace_server.calls import CURRENT_CALL
from headrace_server.identity.gate import set_access

from tests.fakes.lossy_metastore import LOST, NEVER
from tests.fakes.open_gate import open_access

CALL_ID = "00112233aabbccdd"


class Repeated:
    """Changes of a topic's retention: a first try is held up before its first write, and others are served."""

    def __init__(self, parts):
        self.parts = parts
        self._go_on = asyncio.Event()
        self.is_at_its_write = asyncio.Event()

    async def change(self, retention_ms, call_try=None, user=""):
        """As the handler of a call does, in a task of its own."""
        set_access(open_access(user))
        if call_try is not None:
            CURRENT_CALL.set(SimpleNamespace(invocation_metadata=lambda: ((CALL_TRY_KEY, call_try),)))
        changes = {"retention_ms": retention_ms}
        await self.parts.store.configure(
            by_name("t"), lambda topic: altered_configs(topic, changes, [], {}), self.parts.deadline
        )

    async def begin_first(self, call_try):
        """Begin a try that comes to its write, and waits there."""

        async def hold(_compares, _success):
            self.parts.metastore.before_txn = None
            self.is_at_its_write.set()
            await self._go_on.wait()

        self.parts.metastore.before_txn = hold
        first = asyncio.create_task(self.change("1", call_try))
        await self.is_at_its_write.wait()
        return first

    def let_go(self):
        """Let the first try write."""
        self._go_on.set()

    async def retention(self):
        return (await self.parts.store.find(by_name("t"), self.parts.deadline)).message.configs["retention_ms"]


async def begin(parts):
    """Create the topic."""
    await parts.register(1)
    topic = check_new_topic(TopicSpec("t", 3), TopicDefaults(), 1)
    await parts.store.create(topic, place_new_topic(topic, parts.store.candidates()), parts.deadline)
    return Repeated(parts)


@pytest.mark.parametrize("faults", [[], [NEVER], [LOST], ["", NEVER]])
async def test_a_try_that_was_held_up_does_not_undo_a_later_change(parts, faults):
    """Its call was confirmed elsewhere, and another client has changed the same since (simulator)."""
    repeated = await begin(parts)
    first = await repeated.begin_first(f"{CALL_ID}-0")
    parts.metastore.faults = faults
    await asyncio.create_task(repeated.change("1", f"{CALL_ID}-1"))
    await asyncio.create_task(repeated.change("2"))
    repeated.let_go()
    with pytest.raises(TimedOutError, match="repeated this call at another coordinator"):
        await first
    assert await repeated.retention() == "2"


async def test_a_third_try_fences_both_before_it(parts):
    """The second one may never have reached its coordinator."""
    repeated = await begin(parts)
    first = await repeated.begin_first(f"{CALL_ID}-0")
    await asyncio.create_task(repeated.change("1", f"{CALL_ID}-2"))
    await asyncio.create_task(repeated.change("2"))
    repeated.let_go()
    with pytest.raises(TimedOutError):
        await first
    with pytest.raises(TimedOutError):
        await asyncio.create_task(repeated.change("1", f"{CALL_ID}-1"))
    assert await repeated.retention() == "2"


@pytest.mark.parametrize(
    ("call_try", "user"),
    [
        (f"{CALL_ID}-1", "eve"),
        ("0000000000000000-1", ""),
        (f"{CALL_ID}-0", ""),
        (f"{CALL_ID}-10", ""),
        (f"{CALL_ID.upper()}-1", ""),
        ("", ""),
    ],
)
async def test_nothing_else_fences_a_try(parts, call_try, user):
    """Neither another user, nor another call, nor the same try, nor what is malformed."""
    repeated = await begin(parts)
    first = await repeated.begin_first(f"{CALL_ID}-0")
    await asyncio.create_task(repeated.change("2", call_try, user))
    repeated.let_go()
    await first
    assert await repeated.retention() == "1"


async def test_a_fence_that_etcd_does_not_take_refuses_the_call(parts):
    """Nothing is written before the earlier try is known to write no more."""
    repeated = await begin(parts)

    async def refuse(_milliseconds):
        raise MetastoreUnavailableError("etcd has no space left")

    parts.metastore.grant_lease = refuse
    with pytest.raises(MetastoreUnavailableError):
        await asyncio.create_task(repeated.change("1", f"{CALL_ID}-1"))
    assert await repeated.retention() != "1"


def test_a_try_is_what_it_was_written_as():
    first = CallTry.first()
    assert CallTry.parse(str(first)) == first
    assert CallTry.parse(str(first.next())) == (first.call_id, 1)
    assert first.call_id != CallTry.first().call_id
    assert CallTry.parse(str(CallTry(first.call_id, 9).next())) == (first.call_id, 9)


async def test_fences_of_one_call_cost_one_transaction(parts):
    """However many tries a caller says it made before."""
    repeated = await begin(parts)
    before, leases = len(parts.metastore.sent), []

    async def grant_lease(milliseconds):
        leases.append(milliseconds)
        return await parts.memory.grant_lease(milliseconds)

    parts.metastore.grant_lease = grant_lease
    await asyncio.create_task(repeated.change("1", f"{CALL_ID}-9"))
    assert (len(leases), len(parts.metastore.sent) - before) == (1, 2)
    assert len({each.key for each in parts.metastore.sent[before][1]}) == 9
