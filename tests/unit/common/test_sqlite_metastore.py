"""What a metastore in a file keeps over crashes, full disks and damage, and what it says of the rest.

The contract tests run on it, too (tests/contract).
"""

import asyncio
import contextlib
import shutil
import sqlite3
import subprocess
import sys
import textwrap
import threading

import pytest
from headrace.wire.errors import MetastoreUnavailableError, Outcome
from headrace_server.metastore.api import (
    CompactedError,
    CreateRevisionIs,
    Delete,
    Get,
    MetastoreUnknownOutcomeError,
    ModRevisionIs,
    Put,
    VersionIs,
)
from headrace_server.metastore.local import JournalFailedError
from headrace_server.metastore.sqlite import (
    MAX_GAP_MS,
    LeaseClock,
    MetastoreDamagedError,
    MetastoreInUseError,
    SqliteJournal,
    open_sqlite,
)

from tests.children import running
from tests.fakes.manual_clock import ManualClock

LEASE_MS = 60_000


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metastore.sqlite"


@contextlib.asynccontextmanager
async def opened(path, **arguments):
    store = open_sqlite(path, **arguments)
    try:
        yield store
    finally:
        await store.close()


async def put(store, key, value=b"v", lease_id=0):
    return (await store.txn([], [Put(key, value, lease_id)])).revision


async def test_a_restart_keeps_keys_with_their_revisions(path):
    """Every field of a key, the revision and the id of the cluster are as before, and revisions continue."""
    async with opened(path) as store:
        first = await put(store, "/a", b"1")
        await put(store, "/a", b"2")
        await put(store, "/ä\0", b"\0\xff")
        await store.txn([], [Delete("/a"), Put("/b", b"3")])
        before, status = await store.range("/"), await store.status()
    async with opened(path) as store:
        assert await store.range("/") == before
        assert (await store.status()).cluster_id == status.cluster_id
        assert (await store.status()).revision == status.revision
        assert await put(store, "/a", b"4") == status.revision + 1
        assert (await store.get("/a")).key_value.create_revision > first


async def test_only_its_owner_may_read_the_file(path):
    """It has the cluster's secret, and so has the write-ahead log."""
    async with opened(path) as store:
        await put(store, "/a")
        files = list(path.parent.iterdir())
        assert len(files) == 2
        assert {file.stat().st_mode & 0o777 for file in files} == {0o600}


async def test_a_watch_from_before_a_restart_is_refused(path):
    """The history is not kept: a watch that may have missed events is told so, one from now on is served."""
    async with opened(path) as store:
        revision = await put(store, "/a")
    async with opened(path) as store:
        with pytest.raises(CompactedError) as caught:
            await anext(store.watch("/", revision))
        assert caught.value.compact_revision == revision
        stream = store.watch("/", revision + 1)
        await anext(stream)
        await put(store, "/a")
        assert (await anext(stream)).revision == revision + 1
        await stream.aclose()


async def test_the_history_is_bounded(path):
    """A watch that fell behind the history reads everything again, instead of events in memory without end."""
    async with opened(path) as store:
        store.state._max_history_bytes = 10_000
        stream = store.watch("/", 1 + await put(store, "/a"))
        await anext(stream)
        for number in range(20):
            await put(store, "/a", bytes(1_000 + number))
        with pytest.raises(CompactedError):
            async for _ in stream:
                pass
        assert len(list(store.state.history_from(1))) < 10


async def test_a_lease_survives_a_restart_with_its_whole_time(path):
    """What a restart takes is no holder's fault: the lease may be renewed, its keys are there, and it ends if it is not
    renewed from then on. A lease that had ended stays so, and its id is not used again."""
    async with opened(path) as store:
        kept, ended = await store.grant_lease(LEASE_MS), await store.grant_lease(LEASE_MS)
        await put(store, "/kept", b"", kept.lease_id)
        await put(store, "/ended", b"", ended.lease_id)
        await store.revoke_lease(ended.lease_id)
    clock = ManualClock()
    async with opened(path, clock=clock) as store:
        assert await store.renew_lease(ended.lease_id) == 0
        assert (await store.get("/ended")).key_value is None
        assert (await store.grant_lease(LEASE_MS)).lease_id > ended.lease_id
        pass_time(store, clock, LEASE_MS - MAX_GAP_MS)
        assert (await store.get("/kept")).key_value.lease_id == kept.lease_id
        assert await store.renew_lease(kept.lease_id) == LEASE_MS
        pass_time(store, clock, LEASE_MS)
        assert (await store.get("/kept")).key_value is None
        assert await store.renew_lease(kept.lease_id) == 0


def pass_time(store, clock, milliseconds):
    """Let time pass while the store runs."""
    for _ in range(milliseconds // MAX_GAP_MS):
        clock.advance(MAX_GAP_MS)
        store.expire_leases()


async def test_a_stopped_process_ends_no_lease(path):
    """A machine that slept for an hour, or a process that was stopped: its holders could not renew meanwhile."""
    clock = ManualClock()
    async with opened(path, clock=clock) as store:
        lease = await store.grant_lease(10_000)
        clock.advance(3_600_000)
        assert store.expire_leases() == 0
        assert await store.renew_lease(lease.lease_id) == 10_000


def test_the_clock_of_leases_counts_time_that_is_read():
    clock = ManualClock(monotonic_ms=5_000)
    leases = LeaseClock(clock)
    clock.advance(400)
    assert leases.now_ms() == 400
    clock.advance(50_000)
    assert leases.now_ms() == 400 + MAX_GAP_MS


async def test_leases_end_by_themselves(path):
    """Without any call a lease ends at its time, and the watch is told."""
    async with opened(path) as store:
        lease = await store.grant_lease(1_000)
        revision = await put(store, "/live", b"", lease.lease_id)
        running = asyncio.create_task(store.run(0.02))
        stream = store.watch("/", revision + 1, progress_interval_s=60)
        await anext(stream)
        async with asyncio.timeout(60):
            assert (await anext(stream)).events[0].key == "/live"
        running.cancel()


async def test_a_second_process_is_refused(path):
    """The lock is the process's: a second one gets an error that says so, and after a kill the file is free."""
    ready = "print('open', flush=True); await asyncio.sleep(600)"
    with child(path, ready) as holder:
        assert holder.stdout.readline() == "open\n"
        with pytest.raises(MetastoreInUseError, match=r"another process has .*metastore.sqlite open"):
            open_sqlite(path)
        holder.kill()
        holder.wait()
    async with opened(path) as store:
        await put(store, "/a")
        with pytest.raises(MetastoreInUseError):  # Not even in the same process.
            open_sqlite(path)


@contextlib.contextmanager
def child(path, body):
    """A process that opens the store and runs `body`."""
    program = f"""
        import asyncio, sys
        from pathlib import Path
        from headrace_server.metastore.api import Put
        from headrace_server.metastore.sqlite import open_sqlite

        async def main():
            store = open_sqlite(Path(sys.argv[1]))
            {body}

        asyncio.run(main())
    """
    arguments = [sys.executable, "-c", textwrap.dedent(program), str(path)]
    with running(arguments, stdout=subprocess.PIPE, text=True) as process:
        yield process


async def test_a_kill_loses_no_transaction_that_was_acknowledged(path):
    """After kill -9 at any point every acknowledged transaction is there whole, and the next one with it or not at
    all."""
    body = """
            number = 0
            while True:
                number += 1
                puts = [Put(f"/k{number % 50}/{part}", b"%d" % number) for part in range(3)]
                await store.txn([], puts)
                print(number, flush=True)
    """
    acknowledged = 0
    for _ in range(3):
        with child(path, body.strip()) as writer:
            acknowledged = [int(writer.stdout.readline()) for _ in range(40)][-1]
            writer.kill()
            rest = writer.stdout.read().split()
            acknowledged = int(rest[-1]) if rest else acknowledged
        async with opened(path) as store:
            found = (await store.range("/")).key_values
            by_group = {}
            for key_value in found:
                by_group.setdefault(key_value.key.rsplit("/", 1)[0], set()).add(
                    (key_value.value, key_value.mod_revision)
                )
            assert all(len(values) == 1 for values in by_group.values())
            newest = max(int(value) for values in by_group.values() for value, _ in values)
            assert newest in (acknowledged, acknowledged + 1)
        for file in path.parent.glob("metastore.sqlite*"):
            file.unlink()


async def test_writes_at_once_share_a_commit(path, monkeypatch):
    """Transactions that come while one is stored are decided in order and stored together: one fsync for all."""
    commits = []
    true_commit = SqliteJournal.commit
    monkeypatch.setattr(
        SqliteJournal, "commit", lambda *arguments: commits.append(arguments) or true_commit(*arguments)
    )
    async with opened(path) as store:
        base = await put(store, "/a", b"0")
        results = await asyncio.gather(
            *(store.txn([ModRevisionIs("/a", base)], [Put("/a", b"%d" % n)], [Get("/a")]) for n in range(50))
        )
    assert [result.succeeded for result in results] == [True] + [False] * 49
    assert len(commits) <= 3


async def test_nothing_is_shown_that_is_not_stored(path, monkeypatch):
    """While a commit is under way, neither a read nor a watch nor a failed compare tells of it: after a crash it may
    never have been."""
    loop, stored = asyncio.get_running_loop(), asyncio.Event()
    true_commit = SqliteJournal.commit

    def slow(*arguments):
        asyncio.run_coroutine_threadsafe(stored.wait(), loop).result(60)
        true_commit(*arguments)

    async with opened(path) as store:
        revision = await put(store, "/a", b"0")
        monkeypatch.setattr(SqliteJournal, "commit", slow)
        stream = store.watch("/", revision + 1, progress_interval_s=0.01)
        await anext(stream)
        calls = [
            asyncio.create_task(call)
            for call in (put(store, "/a", b"1"), store.get("/a"), store.range("/"), store.txn([VersionIs("/a", 9)], []))
        ]
        try:
            for _ in range(5):
                assert (await anext(stream)).revision == revision
            assert not any(call.done() for call in calls)
        finally:
            stored.set()
        _, got, ranged, compared = await asyncio.gather(*calls)
        assert got.key_value.value == ranged.key_values[0].value == b"1"
        assert (compared.succeeded, compared.revision) == (False, revision + 1)
        while not (item := await anext(stream)).events:
            pass
        assert item.revision == revision + 1
        await stream.aclose()


async def test_a_full_database_refuses_writes_and_keeps_the_rest(path):
    """A write for which there is no room has an unknown outcome and left nothing; reads are answered, the status names
    the alarm, and after a deletion there is room again."""
    async with opened(path, quota_bytes=256 << 10) as store:
        await put(store, "/small", b"1")
        with pytest.raises(MetastoreUnknownOutcomeError, match="no space"):
            for number in range(10):
                await put(store, f"/large/{number}", bytes(64 << 10))
        refused = number
        waiting = [asyncio.create_task(put(store, f"/large/x{n}", bytes(128 << 10))) for n in range(2)]
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(error) for error in found] == [MetastoreUnknownOutcomeError] * 2
        assert (await store.describe_members())[0].alarms == ("NOSPACE",)
        before = await store.range("/")
        assert [each.key for each in before.key_values] == [*(f"/large/{n}" for n in range(refused)), "/small"]
        await store.txn([], [Delete("/large/0"), Delete("/large/1")])
        assert (await store.describe_members())[0].alarms == ()
        revision = await put(store, "/small", b"2")
        assert revision == before.revision + 2
    async with opened(path) as store:
        assert (await store.get("/small")).key_value.mod_revision == revision


async def test_what_is_stored_is_read_in_a_thread_after_a_refused_write(path, monkeypatch):
    """The event loop serves meanwhile. Calls that come are decided on what was refused, and fail with it."""
    loop, loads, late = asyncio.get_running_loop(), [], []
    true_load = SqliteJournal.load

    def load(journal):
        loads.append(threading.get_ident())
        late.append(asyncio.run_coroutine_threadsafe(start(put(store, "/late")), loop).result(60))
        return true_load(journal)

    async def start(call):
        task = asyncio.create_task(call)
        await asyncio.sleep(0)
        return task

    async with opened(path, quota_bytes=256 << 10) as store:
        await put(store, "/small", b"1")
        monkeypatch.setattr(SqliteJournal, "load", load)
        with pytest.raises(MetastoreUnknownOutcomeError, match="no space"):
            await put(store, "/large", bytes(1 << 20))
        with pytest.raises(MetastoreUnknownOutcomeError, match="no space"):
            await late[0]
        assert loads != [threading.get_ident()]
        assert [each.key for each in (await store.range("/")).key_values] == ["/small"]
        assert await put(store, "/small", b"2") == 3


@pytest.mark.parametrize("error", [MetastoreDamagedError("damaged", action="Put back a copy."), MemoryError()])
async def test_a_store_that_cannot_be_read_after_a_refused_write_ends(path, monkeypatch, error):
    """No later write waits for a commit that never comes."""

    def broken(_journal):
        raise error

    async with opened(path, quota_bytes=256 << 10) as store, asyncio.timeout(20):
        running = asyncio.create_task(store.run(60))
        monkeypatch.setattr(SqliteJournal, "load", broken)
        with pytest.raises(MetastoreUnknownOutcomeError, match=r"damaged|MemoryError"):
            await put(store, "/large", bytes(1 << 20))
        with pytest.raises(MetastoreUnknownOutcomeError):
            await put(store, "/a")
        with pytest.raises(JournalFailedError, match="Start the process again"):
            await running


async def test_a_failed_disk_ends_the_store(path, monkeypatch):
    """After a failed write it is not known what the disk holds: no later call is served, and `run` ends the process."""
    async with opened(path) as store:
        await put(store, "/a", b"1")
        running = asyncio.create_task(store.run(60))
        stream = store.watch("/", 100, progress_interval_s=60)
        await anext(stream)

        def broken(*_):
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
            raise error

        monkeypatch.setattr(SqliteJournal, "_store", broken)
        with pytest.raises(MetastoreUnknownOutcomeError, match="disk I/O error"):
            await put(store, "/a", b"2")
        monkeypatch.undo()
        with pytest.raises(MetastoreUnavailableError) as caught:
            await store.get("/a")
        assert caught.value.outcome is Outcome.NOT_APPLIED
        with pytest.raises(MetastoreUnknownOutcomeError):
            await put(store, "/a", b"3")
        with pytest.raises(JournalFailedError, match="Check the disk"):
            await running
        await stream.aclose()
    async with opened(path) as store:
        assert (await store.get("/a")).key_value.value == b"1"


async def test_a_torn_write_ahead_log_loses_its_last_transaction_whole(path, tmp_path):
    """What a crash of the machine leaves of a commit that had not returned is dropped whole."""
    async with opened(path) as store:
        for number in range(5):
            await store.txn([], [Put("/a", b"%d" % number), Put("/b", b"%d" % number)])
        copy = tmp_path / "copy.sqlite"
        for end in ("", "-wal"):
            shutil.copy(f"{path}{end}", f"{copy}{end}")
    wal = tmp_path / "copy.sqlite-wal"
    wal.write_bytes(wal.read_bytes()[:-100])
    async with opened(copy) as store:
        assert [each.value for each in (await store.range("/")).key_values] == [b"3", b"3"]


@pytest.mark.parametrize("harm", ["head", "cut", "page", "no database", "another database", "contradiction"])
async def test_a_damaged_file_is_refused_with_the_next_step(path, harm):
    """A file that is torn, overwritten or none of ours does not start as an empty or partial metastore."""
    async with opened(path) as store:
        for number in range(200):
            await put(store, f"/k/{number}", bytes([number]) * 500)
    content = bytearray(path.read_bytes())
    if harm == "head":
        content[:64] = bytes(64)
    elif harm == "cut":
        del content[len(content) // 2 :]
    elif harm == "page":
        content[8 * 4096 : 9 * 4096] = b"\xa5" * 4096
    elif harm == "no database":
        content = bytearray(b"this is no database" * 100)
    path.write_bytes(content)
    if harm in ("another database", "contradiction"):
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute(
                "PRAGMA application_id = 7" if harm == "another database" else "UPDATE meta SET revision = 5"
            )
            connection.commit()
    with pytest.raises(MetastoreDamagedError, match=r"metastore.sqlite .*(is damaged|is no metastore).*(Put back|Use)"):
        open_sqlite(path)


async def test_calls_after_the_end_are_refused(path):
    """Closing stores what was decided; then writes are unknown, reads refused, and watches end."""
    store = open_sqlite(path)
    stream = store.watch("/", 100, progress_interval_s=60)
    await anext(stream)
    last = asyncio.create_task(put(store, "/a", b"last"))
    waiting = asyncio.create_task(anext(stream))
    await asyncio.sleep(0)
    await store.close()
    await last
    with pytest.raises(MetastoreUnavailableError):
        await waiting
    with pytest.raises(MetastoreUnavailableError):
        await store.get("/a")
    with pytest.raises(MetastoreUnknownOutcomeError):
        await put(store, "/a")
    async with opened(path) as again:
        assert (await again.txn([CreateRevisionIs("/a", 2)], [])).succeeded
