"""A real etcd that stops answering, is away, comes back, or comes back empty: what the client says and does."""

import asyncio
import contextlib
import shutil

import grpc
import pytest
from headrace.wire.errors import ErrorCode, InvalidConfigError, MetastoreUnavailableError, Outcome
from headrace_devcluster.certificates import Authority
from headrace_devcluster.etcd import Etcd
from headrace_devcluster.ports import ReservedPort
from headrace_server.clock import SystemClock
from headrace_server.metastore.api import (
    Get,
    MetastoreRolledBackError,
    MetastoreUnknownOutcomeError,
    ModRevisionIs,
    Put,
    VersionIs,
)
from headrace_server.metastore.etcd import EtcdMetastore
from headrace_server.metastore.etcd_lease import EtcdLeaseRenewer
from headrace_server.metastore.etcd_status import read_published
from headrace_server.metastore.lease import LeaseKeeper, LeaseState
from headrace_server.metastore.view import PrefixView
from headrace_server.tls import TlsIdentity
from headrace_server.tls_settings import TlsFiles

WAIT_SECONDS = 60
SILENCE_SECONDS = 8
"""Shorter than the time in which a connection detects a silent peer."""
KEY = "/faults/key"


@contextlib.asynccontextmanager
async def connected(*endpoints, timeout_s=5.0):
    store = EtcdMetastore(endpoints, timeout_s=timeout_s)
    try:
        yield store
    finally:
        await store.close()


async def write_until_known(store, base):
    """Resolve an unknown outcome as C3 says: the same compare-and-swap on the same base until it is answered."""
    while True:
        try:
            return await store.txn([ModRevisionIs(KEY, base)], [Put(KEY, b"resolved")], [Get(KEY)])
        except MetastoreUnknownOutcomeError:
            continue


async def test_a_write_without_an_answer_is_unknown(own_etcd):
    """While etcd is stopped a write ends at its deadline with outcome UNKNOWN, a read with NOT_APPLIED; sent again on
    the same base the write has one winner (C2, C3, H78)."""
    async with connected(own_etcd.endpoint, timeout_s=0.5) as store:
        base = (await store.txn([VersionIs(KEY, 0)], [Put(KEY, b"base")])).revision
        own_etcd.pause()
        with pytest.raises(MetastoreUnknownOutcomeError) as unknown:
            await store.txn([ModRevisionIs(KEY, base)], [Put(KEY, b"unknown")])
        assert unknown.value.outcome is Outcome.UNKNOWN
        assert unknown.value.code is ErrorCode.METASTORE_UNAVAILABLE
        assert unknown.value.retriable
        with pytest.raises(MetastoreUnavailableError) as unread:
            await store.get(KEY)
        assert unread.value.outcome is Outcome.NOT_APPLIED
        assert own_etcd.endpoint in unread.value.message
        own_etcd.resume()
        resolved = await write_until_known(store, base)
        found = (await store.get(KEY)).key_value
        assert found.version == 2
        assert found.value == (b"resolved" if resolved.succeeded else b"unknown")


async def test_reads_go_to_the_endpoint_that_answers(own_etcd):
    """With one of two endpoints away a read succeeds at once, and the second write does: the first is unknown."""
    port = ReservedPort()  # Bound, without a listener.
    closed = f"127.0.0.1:{port}"
    async with connected(closed, own_etcd.endpoint) as store:
        assert (await store.get(KEY)).key_value is None
    async with connected(closed, own_etcd.endpoint) as store:
        with pytest.raises(MetastoreUnknownOutcomeError):
            await store.txn([], [Put(KEY, b"1")])
        assert (await store.txn([], [Put(KEY, b"2")])).succeeded
        assert (await store.get(KEY)).key_value.version == 1


async def test_an_etcd_that_is_slow_to_greet_is_waited_for(own_etcd):
    """A busy machine or a far one takes more than a moment for a connection: a read waits for its own deadline."""
    own_etcd.pause()
    async with connected(own_etcd.endpoint) as store:
        reading = asyncio.create_task(store.get(KEY))
        failed, _ = await asyncio.wait([reading], timeout=0.4)
        own_etcd.resume()
        assert not failed
        assert (await reading).key_value is None


async def test_a_watch_leaves_a_member_that_is_silent(etcd_members):
    """A machine that vanishes closes no connection: the view continues at another member before TCP fails."""
    silent, *others = etcd_members
    endpoints = [member.endpoint for member in others]
    async with connected(silent.endpoint, *endpoints) as store, connected(*endpoints) as other:
        base = (await other.txn([], [Put(KEY, b"before")])).revision
        view = PrefixView(store, "/faults/", SystemClock())
        await view.load()
        task = asyncio.create_task(view.run())
        await view.wait_for(base, WAIT_SECONDS)
        silent.pause()
        written = await write_until_known(other, base)
        await view.wait_for(base + 1, SILENCE_SECONDS)
        assert view.get(KEY).value == b"resolved"
        assert written.succeeded
        task.cancel()


async def test_a_write_that_a_lost_leader_has_is_sent_again(etcd_members):
    """A member forwards a write to a silent leader and gets no answer; the next leader answers the next try."""
    (leader,) = (member for member in etcd_members if member.is_leader())
    others = [member.endpoint for member in etcd_members if member is not leader]
    async with connected(*others, timeout_s=15) as store:
        base = (await store.txn([], [Put(KEY, b"before")])).revision
        leader.pause()
        with pytest.raises(MetastoreUnknownOutcomeError) as failed:
            await store.txn([ModRevisionIs(KEY, base)], [Put(KEY, b"lost")])
        # At the deadline of the try, which the member has too: it may answer a moment before the client's own timer.
        cause = failed.value.__cause__
        assert isinstance(cause, grpc.aio.AioRpcError)
        assert cause.code() == grpc.StatusCode.DEADLINE_EXCEEDED or "request timed out" in (cause.details() or "")
        assert (await write_until_known(store, base)).succeeded


async def test_the_view_survives_a_restart(own_etcd):
    """Over an orderly restart of etcd the view loses nothing: it resumes behind its last revision (H80)."""
    async with connected(own_etcd.endpoint) as store:
        await store.txn([], [Put(KEY, b"1")])
        view = PrefixView(store, "/faults/", SystemClock(), progress_interval_s=1)
        await view.load()
        task = asyncio.create_task(view.run())
        await asyncio.to_thread(own_etcd.stop)
        await asyncio.to_thread(own_etcd.start)
        async with connected(own_etcd.endpoint) as other:
            revisions = [(await other.txn([], [Put(KEY, b"%d" % n)])).revision for n in range(3)]
        await view.wait_for(revisions[-1], 30)
        assert view.get(KEY).value == b"2"
        task.cancel()
        await asyncio.wait([task])


async def test_an_etcd_that_comes_back_empty_is_refused(own_etcd):
    """An etcd whose revision has gone back stops the view with an error that says what to do (H81)."""
    async with connected(own_etcd.endpoint) as store:
        for number in range(5):
            await store.txn([], [Put(KEY, b"%d" % number)])
        view = PrefixView(store, "/faults/", SystemClock(), progress_interval_s=1)
        await view.load()
        task = asyncio.create_task(view.run())
        await asyncio.to_thread(own_etcd.stop)
        shutil.rmtree(own_etcd.directory / "data")
        await asyncio.to_thread(own_etcd.start)
        with pytest.raises(MetastoreRolledBackError, match="restore"):
            await task
        assert view.get(KEY).value == b"4"


async def test_an_etcd_without_quota_raises_an_alarm_and_stays_readable(tmp_path):
    """H83: writes end without a known outcome, reads succeed, and each look at the members names the alarm,
    also those that need no user."""
    quota = 16 << 20
    with Etcd(tmp_path / "etcd", extra_arguments=(f"--quota-backend-bytes={quota}",)) as etcd:
        async with connected(etcd.endpoint) as store:
            (before,) = await store.describe_members()
            assert before.alarms == ()
            with pytest.raises(MetastoreUnknownOutcomeError, match="space"):
                for number in range(512):  # etcd compares with the size of its last commit, at most 100 ms ago.
                    await store.txn([], [Put(f"{KEY}/{number}", bytes(1 << 20))])
            (full,) = await store.describe_members()
            assert full.alarms == ("NOSPACE",)
            assert full.database_bytes > before.database_bytes
            published = await read_published(etcd.endpoint, None, 5)
            assert published.alarms == ("NOSPACE",)
            assert published.quota_bytes == quota
            assert published.version == full.version
            assert published.used_bytes > 0
            assert (await store.get(f"{KEY}/0")).key_value is not None


async def test_a_view_outlives_certificates_that_are_renewed_again_and_again(tmp_path):
    """A connection is closed when it is two certificates old: a watch on it continues with the newest certificate."""
    authority = Authority(tmp_path / "authority", "headrace services")
    own = authority.issue("broker-1")
    identity = TlsIdentity("etcd", TlsFiles(str(own.cert_file), str(own.key_file), str(own.ca_file)))
    with Etcd(tmp_path / "etcd", tls=authority.issue("etcd")) as etcd:
        store = EtcdMetastore([etcd.endpoint], timeout_s=1, identity=identity)
        view = PrefixView(store, "/faults/", SystemClock(), progress_interval_s=60)
        await view.load()
        following = asyncio.create_task(view.run())
        for number in range(4):
            written = await store.txn([], [Put(KEY, b"%d" % number)])
            await view.wait_for(written.revision, 30)
            authority.issue("broker-1")
            identity.look()
            if store._closing:
                await asyncio.wait(list(store._closing))
        assert not following.done()
        following.cancel()
        await store.close()


async def test_another_cluster_is_refused(own_etcd, tmp_path):
    """An endpoint of another etcd cluster among ours is refused when it answers, for reads and writes alike (H81)."""
    with Etcd(tmp_path / "other") as other:
        async with connected(own_etcd.endpoint, other.endpoint) as store:
            await store.txn([], [Put(KEY, b"1")])
            await asyncio.to_thread(own_etcd.stop)
            with pytest.raises(MetastoreRolledBackError):
                await store.get(KEY)
            with pytest.raises(MetastoreRolledBackError):
                await store.txn([VersionIs(KEY, 1)], [Put(KEY, b"2")])


async def test_a_silent_etcd_is_not_a_lost_lease(own_etcd):
    """While etcd is stopped the keeper turns SILENT at its deadline, not LOST; then ALIVE, or LOST if it expired."""
    async with connected(own_etcd.endpoint) as store:
        clock = SystemClock()
        granted_at_ms = clock.boottime_ms()
        lease = await store.grant_lease(2_000)
        changes = asyncio.Queue()
        keeper = LeaseKeeper(
            EtcdLeaseRenewer([own_etcd.endpoint]),
            lease.lease_id,
            lease.ttl_ms,
            granted_at_ms=granted_at_ms,
            on_change=changes.put_nowait,
            clock=clock,
        )
        keeper.start()
        own_etcd.pause()
        assert await changes.get() is LeaseState.SILENT
        assert not keeper.alive_now()
        own_etcd.resume()
        assert await changes.get() in (LeaseState.ALIVE, LeaseState.LOST)
        await keeper.stop()


async def test_renewals_end_in_time_and_resume_with_etcd(own_etcd):
    """While etcd is stopped a renewal ends at its deadline, which decides nothing; then the same client renews again,
    also after a restart."""
    async with connected(own_etcd.endpoint, timeout_s=0.5) as store:
        lease = await store.grant_lease(60_000)
        assert await store.renew_lease(lease.lease_id) == lease.ttl_ms
        own_etcd.pause()
        found = await asyncio.gather(*(store.renew_lease(lease.lease_id) for _ in range(3)), return_exceptions=True)
        assert [type(error) for error in found] == [MetastoreUnavailableError] * 3
        own_etcd.resume()
        assert await renewed_at_last(store, lease) == lease.ttl_ms
        await asyncio.to_thread(own_etcd.stop)
        await asyncio.to_thread(own_etcd.start)
        assert await renewed_at_last(store, lease) == lease.ttl_ms


async def renewed_at_last(store, lease):
    """Renew until etcd answers."""
    while True:
        with contextlib.suppress(MetastoreUnavailableError):
            return await store.renew_lease(lease.lease_id)


@pytest.mark.parametrize("endpoints", [[], ["localhost"], ["http://localhost:2379"], ["localhost:0"], [":2379"]])
def test_bad_endpoints_are_named(endpoints):
    """An endpoint that is not host:port is refused before anything is connected."""
    with pytest.raises(InvalidConfigError):
        EtcdLeaseRenewer(endpoints)


async def test_a_server_that_is_no_etcd_is_named():
    """A broker's address among etcd_endpoints ends the start with a sentence, and not with a report of a bug."""
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with connected(f"127.0.0.1:{port}") as store:
            for call in (store.get(KEY), store.txn([VersionIs(KEY, 0)], [Put(KEY, b"v")]), store.grant_lease(5_000)):
                with pytest.raises(InvalidConfigError, match=f"127.0.0.1:{port} serves gRPC and is no etcd"):
                    await call
    finally:
        await server.stop(None)
