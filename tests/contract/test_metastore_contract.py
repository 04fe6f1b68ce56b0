"""What every metastore does, on real etcd and on the fake alike (PROTOCOL C1-C4, H78-H82)."""

import asyncio

import pytest
from headrace.wire.errors import InvalidRequestError
from headrace_server.clock import SystemClock
from headrace_server.metastore.api import (
    MAX_REQUEST_BYTES,
    MAX_TXN_OPERATIONS,
    CompactedError,
    CreateRevisionIs,
    Delete,
    DeleteEvent,
    DeletePrefix,
    Exists,
    Get,
    LeaseNotFoundError,
    ModRevisionIs,
    Put,
    PutEvent,
    VersionIs,
)
from headrace_server.metastore.lease import LeaseKeeper, LeaseState


async def next_events(stream):
    """The next item of a watch that has events."""
    async for item in stream:
        if item.events:
            return item
    raise AssertionError("the watch ended")


async def put(store, key, value=b"v", lease_id=0):
    result = await store.txn([], [Put(key, value, lease_id)])
    assert result.succeeded
    return result.revision


async def test_a_key_carries_its_revisions(store, world):
    """create_revision is that of the first write, mod_revision of the last, version counts; a deletion ends that."""
    key = world.key("a")
    first = await put(store, key, b"1")
    second = await put(store, key, b"2")
    found = (await store.get(key)).key_value
    assert (found.value, found.create_revision, found.mod_revision, found.version) == (b"2", first, second, 2)
    assert found.lease_id == 0
    assert second > first
    await store.txn([], [Delete(key)])
    assert (await store.get(key)).key_value is None
    third = await put(store, key, b"3")
    found = (await store.get(key)).key_value
    assert (found.create_revision, found.mod_revision, found.version) == (third, third, 1)


async def test_a_range_is_one_revision_in_order(store, world):
    """A range returns all keys of the prefix and no others, ascending, over any number of pages (H85)."""
    # The page of 1000 ends at k0999; the next one begins with a key that extends it.
    names = sorted([f"k{number:04d}" for number in range(1_005)] + ["k0999x"])
    for start in range(0, len(names), 100):
        await store.txn([], [Put(world.key("r/" + name), name.encode()) for name in names[start : start + 100]])
    await put(store, world.key("s"))
    await put(store, world.key("q"))
    listed = await store.range(world.key("r/"))
    assert [found.value.decode() for found in listed.key_values] == names
    assert listed.revision >= max(found.mod_revision for found in listed.key_values)
    assert (await store.range(world.key("nothing/"))).key_values == ()


@pytest.mark.parametrize("kind", ["mod", "create", "version", "exists"])
async def test_a_compare_decides(store, world, kind):
    """A transaction does `success` where its compares hold, else `failure`, which returns the present values (C1)."""
    key = world.key(kind)
    created = await put(store, key, b"1")
    changed = await put(store, key, b"2")
    holds, fails = {
        "mod": (ModRevisionIs(key, changed), ModRevisionIs(key, created)),
        "create": (CreateRevisionIs(key, created), CreateRevisionIs(key, changed)),
        "version": (VersionIs(key, 2), VersionIs(key, 1)),
        "exists": (Exists(key), Exists(world.key("absent"))),
    }[kind]
    failed = await store.txn([holds, fails], [Put(key, b"never")], [Get(key)])
    assert not failed.succeeded
    assert failed.responses[0][0].value == b"2"
    done = await store.txn([holds], [Put(key, b"3")], [Get(key)])
    assert done.succeeded
    assert done.responses == ((),)
    found = (await store.get(key)).key_value
    assert (found.value, found.mod_revision) == (b"3", done.revision)


@pytest.mark.parametrize("compare", [ModRevisionIs, CreateRevisionIs, VersionIs])
async def test_zero_means_absent(store, world, compare):
    """A compare with 0 holds only while the key is absent: the way to register."""
    key = world.key(compare.__name__)
    assert (await store.txn([compare(key, 0)], [Put(key, b"me")])).succeeded
    assert not (await store.txn([compare(key, 0)], [Put(key, b"you")])).succeeded
    assert (await store.get(key)).key_value.value == b"me"


async def test_a_transaction_is_one_revision(store, world):
    """All writes of a transaction have its revision; reads inside it see the writes before them."""
    a, b = world.key("a"), world.key("b")
    result = await store.txn([], [Put(a, b"1"), Get(a), Put(b, b"2")])
    assert [len(found) for found in result.responses] == [0, 1, 0]
    assert result.responses[1][0].mod_revision == result.revision
    listed = await store.range(world.prefix)
    assert {found.mod_revision for found in listed.key_values} == {result.revision}
    read = await store.txn([], [Get(a), Get(world.key("absent"))])
    assert read.revision == result.revision
    assert [len(found) for found in read.responses] == [1, 0]


async def test_deletions_return_what_they_deleted(store, world):
    """Delete and DeletePrefix answer the keys that were there; a deletion of nothing makes no revision."""
    for name in ("p/1", "p/2", "q"):
        await put(store, world.key(name), name.encode())
    result = await store.txn([], [DeletePrefix(world.key("p/")), Delete(world.key("q")), Delete(world.key("x"))])
    deleted = [[found.value for found in response] for response in result.responses]
    assert deleted == [[b"p/1", b"p/2"], [b"q"], []]
    assert (await store.range(world.prefix)).key_values == ()
    nothing = await store.txn([], [Delete(world.key("x"))])
    assert nothing.revision == result.revision


@pytest.mark.parametrize(
    ("compares", "operations"),
    [
        ([], [Put(f"/k{number}", b"") for number in range(MAX_TXN_OPERATIONS + 1)]),
        ([VersionIs("/k", 0)] * (MAX_TXN_OPERATIONS + 1), []),
        ([], [Put("/k", bytes(MAX_REQUEST_BYTES))]),
        ([], [Put("/k", b"1"), Put("/k", b"2")]),
        ([], [Put("/k", b"1"), Delete("/k")]),
        ([], [DeletePrefix("/k"), Put("/k1", b"1")]),
        ([], [Put("", b"1")]),
        ([], [DeletePrefix("")]),
    ],
)
async def test_what_etcd_would_refuse_is_refused_first(store, compares, operations):
    """A transaction beyond etcd's limits, or with two writes of a key, is refused with nothing done."""
    before = (await store.status()).revision
    with pytest.raises(InvalidRequestError):
        await store.txn(compares, operations)
    assert (await store.status()).revision == before


async def test_the_largest_transaction_passes(store, world):
    """128 operations, and close to 1.5 MiB, are taken: the limits here are not below etcd's."""
    many = await store.txn([], [Put(world.key(f"{number}"), b"v") for number in range(MAX_TXN_OPERATIONS)])
    assert many.succeeded
    large = await store.txn([], [Put(world.key("large"), bytes(MAX_REQUEST_BYTES - 4096))])
    assert large.succeeded


async def test_a_watch_resumes_from_a_revision(store, world):
    """A watch from revision R gives R and all later changes under the prefix, one item a revision, in order (H80)."""
    a, b = world.key("a"), world.key("b")
    first = await put(store, a, b"1")
    second = (await store.txn([], [Put(a, b"2"), Put(b, b"2")])).revision
    await put(store, "/contract-elsewhere", b"not seen")
    third = (await store.txn([], [Delete(a)])).revision
    stream = store.watch(world.prefix, second)
    item = await next_events(stream)
    assert item.revision == second
    assert [(event.key_value.key, event.key_value.value) for event in item.events] == [(a, b"2"), (b, b"2")]
    assert item.events[0].key_value.create_revision == first
    item = await next_events(stream)
    assert (item.revision, item.events) == (third, (DeleteEvent(a, third),))
    fourth = await put(store, b, b"live")
    item = await next_events(stream)
    assert item.revision == fourth
    assert isinstance(item.events[0], PutEvent)
    await stream.aclose()


async def test_a_silent_prefix_gets_progress_notifications(store, world):
    """Without changes a watch gives items without events, within the interval asked for (H80)."""
    stream = store.watch(world.prefix, 1 + (await store.status()).revision, progress_interval_s=0.05)
    signs = [await anext(stream) for _ in range(3)]
    assert all(sign.events == () for sign in signs)
    assert all(sign.revision >= 1 for sign in signs)
    assert {sign.cluster_id for sign in signs} == {(await store.status()).cluster_id}
    await stream.aclose()


async def test_a_watch_into_compacted_history_raises(store, world):
    """A watch from before the compaction raises CompactedError with the revision, so that no event is missed (H80)."""
    first = await put(store, world.key("a"), b"1")
    await put(store, world.key("a"), b"2")
    last = await put(store, world.key("a"), b"3")
    await store.compact(last)
    with pytest.raises(CompactedError) as caught:
        await next_events(store.watch(world.prefix, first))
    assert caught.value.compact_revision == last
    stream = store.watch(world.prefix, last + 1)
    after = await put(store, world.key("a"), b"4")
    assert (await next_events(stream)).revision == after
    await stream.aclose()


async def test_a_watch_continues_over_a_compaction(store, world):
    """A watch that is up to date does not notice a compaction."""
    await put(store, world.key("a"), b"1")
    stream = store.watch(world.prefix, 1 + (await store.status()).revision)
    second = await put(store, world.key("a"), b"2")
    assert (await next_events(stream)).revision == second
    await store.compact(second)
    third = await put(store, world.key("a"), b"3")
    assert (await next_events(stream)).revision == third
    await stream.aclose()


async def test_the_end_of_a_lease_deletes_its_keys(store, world):
    """A lease without renewals ends, and the watch reports the deletion of all its keys."""
    lease = await store.grant_lease(1_000)
    assert lease.ttl_ms >= 1_000
    key = world.key("live")
    revision = await put(store, key, b"me", lease.lease_id)
    assert (await store.get(key)).key_value.lease_id == lease.lease_id
    stream = store.watch(world.prefix, revision + 1)
    assert (await anext(stream)).events == ()
    world.let_leases_end(lease.ttl_ms)
    item = await next_events(stream)
    assert item.events == (DeleteEvent(key, item.revision),)
    assert (await store.get(key)).key_value is None
    assert await store.renew_lease(lease.lease_id) == 0
    assert await store.revoke_lease(lease.lease_id) is False
    await stream.aclose()


async def test_a_lease_is_renewed_revoked_and_replaced(store, world):
    """A renewal answers the time to live; a revocation deletes the keys; a key put again without a lease stays."""
    lease = await store.grant_lease(60_000)
    assert await store.renew_lease(lease.lease_id) == lease.ttl_ms
    stays, goes = world.key("stays"), world.key("goes")
    await put(store, stays, b"1", lease.lease_id)
    await put(store, goes, b"1", lease.lease_id)
    await put(store, stays, b"2")
    assert await store.revoke_lease(lease.lease_id) is True
    assert (await store.get(goes)).key_value is None
    assert (await store.get(stays)).key_value.value == b"2"


async def test_renewals_at_once_are_answered_each(store):
    """Of leases that are renewed at the same time each renewal says what is so of its own."""
    leases = [await store.grant_lease(1_000 * seconds) for seconds in range(20, 40)]
    ended = leases[3::5]
    for lease in ended:
        await store.revoke_lease(lease.lease_id)
    found = await asyncio.gather(*(store.renew_lease(lease.lease_id) for lease in leases))
    assert found == [0 if lease in ended else lease.ttl_ms for lease in leases]


async def test_a_put_on_an_ended_lease_is_refused(store, world):
    """A transaction that names a lease which has ended does nothing, and says which error it is."""
    lease = await store.grant_lease(60_000)
    await store.revoke_lease(lease.lease_id)
    with pytest.raises(LeaseNotFoundError):
        await store.txn([], [Put(world.key("a"), b"1"), Put(world.key("b"), b"1", lease.lease_id)])
    assert (await store.range(world.prefix)).key_values == ()


async def test_racing_writers_have_one_winner(store, world):
    """Of many transactions computed from one revision exactly one succeeds (C1)."""
    key = world.key("cas")
    base = await put(store, key, b"0")
    results = await asyncio.gather(
        *(store.txn([ModRevisionIs(key, base)], [Put(key, b"%d" % number)], [Get(key)]) for number in range(20))
    )
    winners = [number for number, result in enumerate(results) if result.succeeded]
    assert len(winners) == 1
    assert (await store.get(key)).key_value.value == b"%d" % winners[0]
    assert {result.responses[0][0].value for result in results if not result.succeeded} == {b"%d" % winners[0]}


class CountingRenewer:
    """A renewer that says in the event loop when it has renewed `wanted` times."""

    def __init__(self, renewer, wanted):
        self.renewer = renewer
        self.left = wanted
        self.done = asyncio.Event()
        self.loop = asyncio.get_running_loop()

    def renew(self, lease_id, timeout_s):
        ttl_ms = self.renewer.renew(lease_id, timeout_s)
        self.left -= 1
        if self.left == 0:
            self.loop.call_soon_threadsafe(self.done.set)
        return ttl_ms

    def close(self):
        self.renewer.close()


async def test_the_keeper_reports_that_its_lease_has_ended(store, world):
    """A LeaseKeeper renews, moving its deadline on, and reports a lost lease once, at once and for good (H76)."""
    lease = await store.grant_lease(1_000)
    lost, states = asyncio.Event(), []

    def on_change(state):
        states.append(state)
        lost.set()

    clock = SystemClock()
    granted_at_ms = clock.boottime_ms()
    renewer = CountingRenewer(world.renewer(), wanted=2)
    keeper = LeaseKeeper(
        renewer, lease.lease_id, lease.ttl_ms, granted_at_ms=granted_at_ms, on_change=on_change, clock=clock
    )
    before = keeper.deadline_ms
    assert before == granted_at_ms + lease.ttl_ms * 9 // 10
    keeper.start()
    await renewer.done.wait()
    assert keeper.deadline_ms > before
    assert keeper.alive_now()
    await store.revoke_lease(lease.lease_id)
    await lost.wait()
    assert states == [LeaseState.LOST]
    assert not keeper.alive_now()
    await keeper.stop()


async def test_status_names_the_server(store, world):
    """The status says version, revision and cluster."""
    revision = await put(store, world.key("a"))
    status = await store.status()
    assert status.version
    assert status.revision >= revision
    assert status.cluster_id == (await store.get(world.key("a"))).cluster_id
