"""A view of a prefix applies every change once, in the order of revisions (H80, I19)."""

import asyncio

import pytest
from headrace_server.clock import SystemClock
from headrace_server.metastore.api import KeyValue, MetastoreRolledBackError, Put, PutEvent, RangeResult, WatchEvents
from headrace_server.metastore.view import PrefixView

from tests.fakes.memory_metastore import MemoryMetastore

CLUSTER = 7


def _key(value: bytes, revision: int) -> KeyValue:
    return KeyValue("p/a", value, create_revision=3, mod_revision=revision, version=1, lease_id=0)


def test_an_event_that_the_list_has_is_not_applied_again():
    """A list of revision 5 is taken in while the event of revision 4 is on its way: it is of the past."""
    view = PrefixView(MemoryMetastore(), "p/", SystemClock())
    view._take_list(RangeResult((_key(b"new", 5),), 5, CLUSTER))
    view._take_item(WatchEvents(4, (PutEvent(_key(b"old", 4)),), CLUSTER))
    found = view.get("p/a")
    assert found is not None
    assert (found.value, view.revision) == (b"new", 5)


def test_a_list_of_the_past_is_refused():
    """H81: etcd was restored or replaced; what is known stays."""
    view = PrefixView(MemoryMetastore(), "p/", SystemClock())
    view._take_list(RangeResult((_key(b"new", 5),), 5, CLUSTER))
    with pytest.raises(MetastoreRolledBackError):
        view._take_list(RangeResult((_key(b"old", 4),), 4, CLUSTER))
    found = view.get("p/a")
    assert found is not None
    assert (found.value, view.revision) == (b"new", 5)


def test_a_list_of_the_past_with_a_key_that_was_deleted_is_refused():
    """H81: no key is older than it was seen, so that nothing but the list's own revision tells."""
    view = PrefixView(MemoryMetastore(), "p/", SystemClock())
    view._take_list(RangeResult((), 5, CLUSTER))
    with pytest.raises(MetastoreRolledBackError, match="revision 4, but 5"):
        view._take_list(RangeResult((_key(b"old", 4),), 4, CLUSTER))
    assert view.get("p/a") is None


def test_a_key_of_the_past_is_refused():
    """H81: a restore with --bump-revision raises etcd's revision, and leaves the keys at theirs."""
    view = PrefixView(MemoryMetastore(), "p/", SystemClock())
    view._take_list(RangeResult((_key(b"new", 5),), 5, CLUSTER))
    with pytest.raises(MetastoreRolledBackError, match="p/a at revision 4, but 5"):
        view._take_list(RangeResult((_key(b"old", 4),), 1_000_000, CLUSTER))
    found = view.get("p/a")
    assert found is not None
    assert (found.value, view.revision) == (b"new", 5)


@pytest.mark.parametrize("has_key", [False, True])
async def test_a_broken_watch_is_resumed_only_where_the_newest_key_is(has_key):
    """A watch continues over an etcd that was restored with a raised revision; the missing key reveals it."""
    before, restored = MemoryMetastore(), MemoryMetastore()
    for etcd in (before, restored):
        await etcd.txn([], [Put("p/old", b"")])
    await before.txn([], [Put("p/new", b"")])
    view = PrefixView(before, "p/", SystemClock())
    await view.load()
    assert await view._is_continued()
    for _ in range(5):
        await restored.txn([], [Put("p/old", b"")])
    if has_key:
        await restored.txn([], [Put("p/new", b"")])
    view._metastore = restored
    view._cluster_id = (await restored.get("p/old")).cluster_id
    assert await view._is_continued() == has_key


@pytest.mark.parametrize("put_back", [False, True])
async def test_a_broken_watch_overlaps_with_what_was_seen(put_back):
    """H81: others have written the same keys anew and raised the revision above all that was seen."""
    before, restored = MemoryMetastore(), MemoryMetastore()
    for etcd in (before, restored):
        await etcd.txn([], [Put("p/old", b"")])
    for etcd, value in ((before, b"1"), (restored, b"2")):
        await etcd.txn([], [Put("p/new", value)])
    view = PrefixView(before, "p/", SystemClock())
    await view.load()
    view._metastore = restored if put_back else before
    for _ in range(5):
        await view._metastore.txn([], [Put("p/old", b"")])
    run = asyncio.create_task(view._follow(view._newest))
    if put_back:
        with pytest.raises(MetastoreRolledBackError, match="p/new at revision 3"):
            await asyncio.wait_for(run, 5)
        return
    await view.wait_for((await before.get("p/old")).revision, 5)
    run.cancel()
