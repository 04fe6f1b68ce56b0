"""The view of a prefix stays equal to the metastore whatever happens to its watch (PROTOCOL H80, H81, I19)."""

import asyncio
import contextlib

import pytest
from headrace.wire.errors import MetastoreUnavailableError, TimedOutError
from headrace_server.clock import SystemClock
from headrace_server.metastore.api import Delete, MetastoreRolledBackError, Put
from headrace_server.metastore.view import PrefixView

PROGRESS_SECONDS = 0.1


class FaultyWatch:
    """A metastore whose watches break, fall silent or lose events when told; all else goes through."""

    def __init__(self, store):
        self.store = store
        self.mode = "whole"
        self.broken = asyncio.Event()
        self.watches = []

    def __getattr__(self, name):
        return getattr(self.store, name)

    async def watch(self, prefix, start_revision, **options):
        self.watches.append(start_revision)
        if self.mode == "broken":
            self.broken.set()
            raise MetastoreUnavailableError("broken by the test")
        stream = self.store.watch(prefix, start_revision, **options)
        try:
            async for item in stream:
                if self.mode == "broken":
                    self.broken.set()
                    raise MetastoreUnavailableError("broken by the test")
                if self.mode == "silent":
                    self.broken.set()
                    await asyncio.Event().wait()
                if self.mode == "lossy" and item.events:
                    self.broken.set()
                    continue
                yield item
        finally:
            await stream.aclose()

    async def fault(self, mode):
        """Go into a mode; returns once it has taken effect, where that can be seen at once."""
        self.mode = mode
        self.broken.clear()
        if mode in ("broken", "silent"):
            await self.broken.wait()


@contextlib.asynccontextmanager
async def running_view(store, prefix, **options):
    view = PrefixView(store, prefix, SystemClock(), **{"progress_interval_s": PROGRESS_SECONDS, **options})
    await view.load()
    task = asyncio.create_task(view.run())
    try:
        yield view
        assert not task.done() or task.result() is None
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def put(store, **values):
    """Write several keys in one transaction; keys by their names here."""
    result = await store.txn([], [Put(key, value) for key, value in values.items()])
    return result.revision


async def assert_equal(view, store, prefix):
    listed = await store.range(prefix)
    assert view.items(prefix) == list(listed.key_values)


async def test_the_view_follows_by_whole_revision(store, world):
    """The view begins with what is there and reports each later revision once, with all its keys."""
    a, b, c = (world.key(name) for name in "abc")
    await put(store, **{a: b"1", b: b"1"})
    async with running_view(store, world.prefix) as view:
        assert view.get(a).value == b"1"
        heard = []
        unsubscribe = view.subscribe(lambda revision, keys: heard.append((revision, sorted(keys))))
        first = await put(store, **{a: b"2", c: b"2"})
        second = (await store.txn([], [Delete(b), Put(c, b"3")])).revision
        await view.wait_for(second, 10)
        assert heard == [(first, [a, c]), (second, [b, c])]
        assert view.revision == second
        assert view.get(b) is None
        assert [found.key for found in view.items(world.prefix)] == [a, c]
        assert 0 <= view.age_ms() < 10_000
        unsubscribe()
        await view.wait_for(await put(store, **{a: b"4"}), 10)
        assert len(heard) == 2
        await assert_equal(view, store, world.prefix)


async def test_waiting_for_a_revision_ends_in_time(store, world):
    """`wait_for` a revision that does not come raises TimedOutError, and the view keeps working."""
    async with running_view(store, world.prefix) as view:
        with pytest.raises(TimedOutError):
            await view.wait_for(view.revision + 1_000_000, 0.01)
        await view.wait_for(await put(store, **{world.key("a"): b"1"}), 10)


async def test_a_broken_watch_resumes_behind_the_last_revision(store, world):
    """What changed while the watch was broken arrives afterwards, revision by revision, none left out."""
    faulty = FaultyWatch(store)
    async with running_view(faulty, world.prefix) as view:
        before = await put(store, **{world.key("a"): b"1"})
        await view.wait_for(before, 10)
        heard = []
        view.subscribe(lambda revision, keys: heard.append(revision))
        await faulty.fault("broken")
        missed = [await put(store, **{world.key("a"): b"%d" % number}) for number in range(3)]
        await faulty.fault("whole")
        await view.wait_for(missed[-1], 10)
        assert heard == missed
        assert faulty.watches[-1] == before
        await assert_equal(view, store, world.prefix)


async def test_a_compaction_during_an_outage_means_reading_again(store, world):
    """Where the revisions to resume from are gone, the view reads everything again, deletions included."""
    faulty = FaultyWatch(store)
    a, b = world.key("a"), world.key("b")
    async with running_view(faulty, world.prefix) as view:
        await view.wait_for(await put(store, **{a: b"1", b: b"1"}), 10)
        await faulty.fault("broken")
        await store.txn([], [Delete(a)])
        await put(store, **{b: b"2"})
        last = await put(store, **{b: b"3"})
        await store.compact(last)
        heard = []
        view.subscribe(lambda revision, keys: heard.append(sorted(keys)))
        await faulty.fault("whole")
        await view.wait_for(last, 10)
        assert heard == [[a, b]]
        assert view.lost_events == 0
        await assert_equal(view, store, world.prefix)


async def test_a_silent_watch_is_replaced(store, world):
    """A stream that sends no heartbeat for three intervals is given up, and everything is read again."""
    faulty = FaultyWatch(store)
    async with running_view(faulty, world.prefix) as view:
        await faulty.fault("silent")
        revision = await put(store, **{world.key("a"): b"1"})
        await view.wait_for(revision, 10)
        await assert_equal(view, store, world.prefix)


async def test_lost_events_are_found_and_counted(store, world):
    """The full read detects an event that a watch lost, corrects the view and counts it."""
    faulty = FaultyWatch(store)
    a, b = world.key("a"), world.key("b")
    # A busy machine's silence would have the view read everything again, the lost event too.
    async with running_view(faulty, world.prefix, progress_interval_s=60) as view:
        faulty.mode = "lossy"
        lost = await put(store, **{a: b"1"})
        await faulty.broken.wait()
        faulty.mode = "whole"
        await view.wait_for(await put(store, **{b: b"1"}), 10)
        assert view.get(a) is None
        assert view.revision > lost
        await view.load()
        assert view.get(a).value == b"1"
        assert view.lost_events == 1
        await assert_equal(view, store, world.prefix)


async def test_the_full_read_comes_by_itself(store, world):
    """With the interval passed, the view reads everything again without being told."""
    faulty = FaultyWatch(store)
    async with running_view(faulty, world.prefix, relist_interval_s=0) as view:
        faulty.mode = "lossy"
        revision = await put(store, **{world.key("a"): b"1"})
        await view.wait_for(revision, 10)
        await assert_equal(view, store, world.prefix)


class Replaced:
    """A metastore that answers reads as another cluster, or from an earlier revision."""

    def __init__(self, store, *, cluster_id=None, revision=None):
        self.store = store
        self.changes = {"cluster_id": cluster_id, "revision": revision}
        self.on = False

    def __getattr__(self, name):
        return getattr(self.store, name)

    async def range(self, prefix):
        import dataclasses

        listed = await self.store.range(prefix)
        if not self.on:
            return listed
        return dataclasses.replace(listed, **{name: value for name, value in self.changes.items() if value})


@pytest.mark.parametrize("change", [{"cluster_id": 7}, {"revision": 1}])
async def test_a_replaced_metastore_is_refused(store, world, change):
    """A revision that goes back, or another cluster, is refused with the view left as it was (H81)."""
    replaced = Replaced(store, **change)
    key = world.key("a")
    await put(store, **{key: b"1"})
    view = PrefixView(replaced, world.prefix, SystemClock())
    await view.load()
    await put(store, **{key: b"2"})
    replaced.on = True
    with pytest.raises(MetastoreRolledBackError) as caught:
        await view.load()
    assert caught.value.fatal
    assert view.get(key).value == b"1"
