"""Clients with a credential on a cluster that serves no call without a session: every path, blocking and asyncio."""

import asyncio
import contextlib
import threading
import time

import grpc
import headrace
import headrace.aio
import pytest
from headrace.client.base.config import AdminConfig, build
from headrace.client.base.operations import BeginCall, Call, StartCall
from headrace.client.net.call_future import CallFuture
from headrace.client.net.connection import Connections
from headrace.client.net.sessions import UnsentCallError
from headrace.v1 import cluster_pb2
from headrace.wire.columns import encode_batch
from headrace.wire.errors import Outcome, ShuttingDownError, TimedOutError, UnauthenticatedError

from tests.fakes.cluster import FakeCluster
from tests.fakes.groups import fake_groups
from tests.fakes.identity import API_KEY, JWT, FakeIdentity

WAIT = 20.0
FAST = {"retry_backoff_ms": 1, "retry_backoff_max_ms": 5, "fetch_max_wait_ms": 50}


@pytest.fixture
def identity():
    return FakeIdentity()


@pytest.fixture
def cluster(identity):
    cluster = FakeCluster(identity=identity)
    cluster.create_topic("t")
    yield cluster
    cluster.stop()


def settings(cluster, *but, **changed):
    found = {"bootstrap_servers": cluster.address, "api_key": API_KEY, **FAST, **changed}
    return {name: value for name, value in found.items() if name not in but}


def values(records):
    return [record.value for record in records]


def test_every_call_of_every_client_carries_the_session(cluster, identity):
    """One exchange for each client, at the first address that it calls; then the token is in all its calls."""
    with headrace.Admin(**settings(cluster, "fetch_max_wait_ms")) as admin:
        assert admin.list_topics() == ["t"]
    with headrace.Producer(**settings(cluster, "fetch_max_wait_ms", linger_ms=0)) as producer:
        for number in range(20):
            producer.send("t", b"%d" % number).result(WAIT)
    with headrace.Reader("t", **settings(cluster)) as reader:
        assert values(reader) == [b"%d" % number for number in range(20)]
    assert [request.api_key for request in identity.opened] == [API_KEY] * 3
    assert {method for method, _ in identity.calls} == {
        "GetMetadata", "InitProducerId", "Produce", "ListOffsets", "Fetch",
    }  # fmt: skip
    assert {token for _, token in identity.calls} == {"hr1.k.1", "hr1.k.2", "hr1.k.3"}


async def test_every_call_of_asyncio_clients_carries_the_session(cluster, identity):
    """Also of concurrent calls, which wait for one exchange."""
    async with headrace.aio.Admin(**settings(cluster, "fetch_max_wait_ms")) as admin:
        assert await asyncio.gather(*(admin.list_topics() for _ in range(5))) == [["t"]] * 5
        assert len(identity.opened) == 1
    async with headrace.aio.Producer(**settings(cluster, "fetch_max_wait_ms", linger_ms=0)) as producer:
        for number in range(20):
            await producer.send("t", b"%d" % number)
    async with headrace.aio.Reader("t", **settings(cluster)) as reader:
        assert values([record async for record in reader]) == [b"%d" % number for number in range(20)]
    assert len(identity.opened) == 3
    assert {token for _, token in identity.calls} == {"hr1.k.1", "hr1.k.2", "hr1.k.3"}


def test_concurrent_calls_of_threads_wait_for_one_exchange(cluster, identity):
    with headrace.Admin(**settings(cluster, "fetch_max_wait_ms")) as admin:
        threads = [threading.Thread(target=admin.list_topics) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT)
    assert (len(identity.opened), len(identity.calls)) == (1, 8)


def test_a_revoked_session_costs_a_producer_nothing(cluster, identity):
    """Refused batches had no effect and are sent again with a new session, in order, none twice."""
    with headrace.Producer(**settings(cluster, "fetch_max_wait_ms", linger_ms=0, batch_records=1)) as producer:
        for number in range(50):
            future = producer.send("t", b"%d" % number)
            if number % 10 == 5:
                future.result(WAIT)
                identity.revoke()
    assert cluster.topics["t"].partitions[0].values() == [b"%d" % number for number in range(50)]
    assert len(identity.opened) >= 6


async def test_a_revoked_session_costs_an_asyncio_producer_nothing(cluster, identity):
    producer = headrace.aio.Producer(**settings(cluster, "fetch_max_wait_ms", linger_ms=0, batch_records=1))
    async with producer:
        for number in range(50):
            future = await producer.send("t", b"%d" % number)
            if number % 10 == 5:
                await future
                identity.revoke()
    assert cluster.topics["t"].partitions[0].values() == [b"%d" % number for number in range(50)]
    assert len(identity.opened) >= 6


def test_a_revoked_session_does_not_disturb_a_consumer(cluster, identity):
    """Fetches are repeated with a new session."""
    with (
        headrace.Consumer(**settings(cluster)) as consumer,
        headrace.Producer(**settings(cluster, "fetch_max_wait_ms", linger_ms=0)) as producer,
    ):
        consumer.assign({headrace.TopicPartition("t", 0): 0})
        for number in range(5):
            producer.send("t", b"%d" % number).result(WAIT)
            assert values(consumer.poll(WAIT)) == [b"%d" % number]
            cluster.wait_for_fetch(WAIT)  # A fetch that two revocations meet is refused for good.
            identity.revoke()


async def test_a_revoked_session_does_not_disturb_an_asyncio_consumer(cluster, identity):
    producing = headrace.aio.Producer(**settings(cluster, "fetch_max_wait_ms", linger_ms=0))
    async with headrace.aio.Consumer(**settings(cluster)) as consumer, producing as producer:
        await consumer.assign({headrace.TopicPartition("t", 0): 0})
        for number in range(5):
            await producer.send_and_wait("t", b"%d" % number)
            assert values(await consumer.poll(WAIT)) == [b"%d" % number]
            await asyncio.to_thread(cluster.wait_for_fetch, WAIT)
            identity.revoke()


GROUP = {"group_id": "g", "auto_offset_reset": "earliest", "auto_commit_interval_ms": 20, "heartbeat_interval_ms": 20}


def test_a_group_member_keeps_its_partitions_when_its_session_is_revoked(cluster, identity):
    """Heartbeats, commits and look-ups carry the session too; a refused one is repeated and nothing is lost."""
    lost = []
    with fake_groups(cluster, identity) as groups:
        groups.assign(("t", 0))
        with headrace.Consumer("t", on_lost=lost.append, **GROUP, **settings(cluster)) as consumer:
            for number in range(5):
                cluster.append("t", encode_batch([b"%d" % number], base_timestamp_ms=1_000))
                assert values(consumer.poll(WAIT)) == [b"%d" % number]
                identity.revoke()
                consumer.commit()
        assert groups.offsets["t", 0].offset == 5
    assert lost == []
    assert {"Heartbeat", "CommitOffsets", "FetchOffsets", "LeaveGroup"} <= {method for method, _ in identity.calls}
    assert "" not in {token for _, token in identity.calls}


async def test_an_asyncio_group_member_keeps_its_partitions_when_its_session_is_revoked(cluster, identity):
    lost = []
    with fake_groups(cluster, identity) as groups:
        groups.assign(("t", 0))
        async with headrace.aio.Consumer("t", on_lost=lost.append, **GROUP, **settings(cluster)) as consumer:
            for number in range(5):
                cluster.append("t", encode_batch([b"%d" % number], base_timestamp_ms=1_000))
                assert values(await consumer.poll(WAIT)) == [b"%d" % number]
                identity.revoke()
                await consumer.commit()
        assert groups.offsets["t", 0].offset == 5
    assert lost == []
    assert "" not in {token for _, token in identity.calls}


def test_a_wrong_key_is_an_error_of_the_first_call(cluster, identity):
    """Nothing but the exchange is sent, and it is not repeated."""
    wrong = settings(cluster, "fetch_max_wait_ms", api_key=API_KEY + "x")
    with headrace.Admin(**wrong) as admin, pytest.raises(UnauthenticatedError, match=r"not valid \(api_key\)"):
        admin.list_topics()
    with headrace.Producer(**wrong) as producer, pytest.raises(UnauthenticatedError, match="not valid"):
        producer.send("t", b"v")
    assert (len(identity.opened), identity.calls) == (2, [])


async def test_a_wrong_key_is_an_error_of_the_first_asyncio_call(cluster, identity):
    async with headrace.aio.Admin(**settings(cluster, "fetch_max_wait_ms", api_key=API_KEY + "x")) as admin:
        with pytest.raises(UnauthenticatedError, match=r"not valid \(api_key\)"):
            await admin.list_topics()
    assert (len(identity.opened), identity.calls) == (1, [])


def test_a_token_that_is_always_refused_is_tried_twice(cluster, identity):
    """One more exchange and one more call, then the error."""
    with headrace.Admin(**settings(cluster, "fetch_max_wait_ms")) as admin:
        identity.issue = lambda user: f"refused-{len(identity.opened)}"
        with pytest.raises(UnauthenticatedError, match="session token is not valid"):
            admin.list_topics()
    assert [token for _, token in identity.calls] == ["refused-1", "refused-2"]


def test_without_a_credential_no_exchange_is_made(cluster, identity):
    """The call carries nothing; the server's error says what to set."""
    with headrace.Admin(**settings(cluster, "fetch_max_wait_ms", "api_key")) as admin:
        with pytest.raises(UnauthenticatedError, match="Set api_key_file, token_file or a client certificate"):
            admin.list_topics()
    assert (identity.opened, identity.calls) == ([], [("GetMetadata", "")])


def test_a_dead_bootstrap_address_is_passed_over(cluster, identity):
    """The exchange at an address without a server fails like the call, which goes to the next one."""
    servers = f"127.0.0.1:1,{cluster.address}"
    with headrace.Admin(**settings(cluster, "fetch_max_wait_ms", bootstrap_servers=servers)) as admin:
        assert admin.list_topics() == ["t"]


def test_a_jwt_goes_from_the_broker_to_a_coordinator(cluster, identity, tmp_path):
    """The broker names it, and takes the session that it opened."""
    elsewhere = FakeIdentity()
    elsewhere.issue = identity.issue
    coordinator = FakeCluster(identity=elsewhere)
    identity.coordinators = [coordinator.address]
    path = tmp_path / "token"
    path.write_text(JWT)
    try:
        with headrace.Admin(**settings(cluster, "api_key", "fetch_max_wait_ms", token_file=str(path))) as admin:
            assert admin.list_topics() == ["t"]
    finally:
        coordinator.stop()
    assert [request.jwt for request in (*identity.opened, *elsewhere.opened)] == [JWT, JWT]
    assert elsewhere.calls == []


async def test_a_provider_may_be_a_coroutine_function(cluster, identity):
    """Of an asyncio client, which awaits it."""

    async def token():
        await asyncio.sleep(0)
        return JWT

    async with headrace.aio.Admin(**settings(cluster, "api_key", "fetch_max_wait_ms", token_provider=token)) as admin:
        assert await admin.list_topics() == ["t"]
    with headrace.Admin(**settings(cluster, "api_key", "fetch_max_wait_ms", token_provider=token)) as admin:
        with pytest.raises(headrace.ConfigError, match=r"headrace\.aio"):
            admin.list_topics()


async def test_a_cancelled_call_leaves_the_exchange_to_others(cluster, identity):
    """One of two calls that wait for it is cancelled; the other one succeeds."""
    provided = asyncio.Event()

    async def token():
        await provided.wait()
        return JWT

    async with headrace.aio.Admin(**settings(cluster, "api_key", "fetch_max_wait_ms", token_provider=token)) as admin:
        first, second = (asyncio.create_task(admin.list_topics()) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        provided.set()
        assert await second == ["t"]


async def test_a_call_that_waits_for_a_slow_provider_ends_in_time(cluster, identity):
    """The error says that nothing was sent; the client closes although the provider never returns."""
    async with headrace.aio.Admin(
        **settings(cluster, "api_key", "fetch_max_wait_ms", token_provider=asyncio.Event().wait)
    ) as admin:
        with pytest.raises(headrace.NoBrokersAvailableError, match="no session was opened in time"):
            await admin.list_topics(timeout=0.05)


async def test_a_cancelled_refresh_of_a_provider_is_an_error_of_the_calls_that_wait(cluster, identity):
    """The provider awaits a task that it shares; the next call calls it again."""
    refresh = asyncio.get_running_loop().create_future()

    async def token():
        return JWT if refresh.done() and not refresh.cancelled() else await refresh

    async with headrace.aio.Admin(**settings(cluster, "api_key", "fetch_max_wait_ms", token_provider=token)) as admin:
        listing = asyncio.create_task(admin.list_topics(timeout=WAIT))
        await asyncio.sleep(0)
        refresh.cancel()
        with pytest.raises(headrace.HeadraceError, match="exchange of the credential was cancelled"):
            await listing
        refresh = asyncio.get_running_loop().create_future()
        refresh.set_result(JWT)
        assert await admin.list_topics() == ["t"]


def hanging_provider():
    """Return a provider that returns once, and again after an event; the event; and a list with an item a call."""
    provided, calls = threading.Event(), []

    def token():
        calls.append(1)
        if len(calls) > 1:
            provided.wait(WAIT)
        return JWT

    return token, provided, calls


def test_a_producer_keeps_its_delivery_timeout_while_a_provider_hangs(cluster, identity):
    """Its session has ended, and no other one is opened; the records were not sent."""
    token, provided, _ = hanging_provider()
    changed = {"token_provider": token, "delivery_timeout_ms": 300, "linger_ms": 0}
    with headrace.Producer(**settings(cluster, "api_key", "fetch_max_wait_ms", **changed)) as producer:
        producer.send("t", b"warm").result(WAIT)
        identity.revoke()
        error = producer.send("t", b"v").exception(WAIT / 2)
        assert isinstance(error, TimedOutError)
        assert error.outcome == Outcome.NOT_APPLIED
        provided.set()
        with pytest.raises(headrace.DeliveryError):
            producer.flush(WAIT)
    assert cluster.topics["t"].partitions[0].values() == [b"warm"]


def test_a_consumer_reports_a_provider_that_hangs_within_its_request_timeout(cluster, identity):
    """Fetches that wait for the session end in time, with an error that states the reason."""
    token, provided, calls = hanging_provider()
    cluster.append("t", encode_batch([b"0"], base_timestamp_ms=1_000))
    changed = {"token_provider": token, "auto_offset_reset": "earliest", "request_timeout_ms": 100}
    with headrace.Consumer("t", **settings(cluster, "api_key", **changed)) as consumer:
        assert values(consumer.poll(WAIT)) == [b"0"]
        identity.revoke()
        deadline = time.monotonic() + WAIT
        while "token_provider has not returned" not in consumer.health().problem:
            consumer.poll(0.02)
            assert time.monotonic() < deadline
        provided.set()
        cluster.append("t", encode_batch([b"1"], base_timestamp_ms=1_000))
        assert values(consumer.poll(WAIT)) == [b"1"]
    assert len(calls) == 2


def test_an_address_from_metadata_gets_no_token_in_plain_text(cluster, identity):
    """It is refused before anything is sent, whatever the bootstrap address was."""
    cluster.addresses[1] = "broker.example.org:7181"
    made = headrace.Producer(**settings(cluster, "fetch_max_wait_ms", linger_ms=0))
    with pytest.raises(headrace.DeliveryError), made as producer:
        with pytest.raises(headrace.ConfigError, match=r"broker\.example\.org:7181 in plain text"):
            producer.send("t", b"v").result(WAIT)


# --- steps ---


METADATA = cluster_pb2.GetMetadataRequest(client_id="me")


@contextlib.contextmanager
def connected(cluster, timeout=WAIT, **changed):
    connections = Connections("Admin", build(AdminConfig, settings(cluster, "fetch_max_wait_ms", **changed)))
    try:
        yield connections, Call(cluster.address, "cluster", "GetMetadata", METADATA, timeout)
    finally:
        connections.close()


def test_a_started_call_waits_for_the_session_without_blocking(cluster, identity):
    """`StartCall` returns a future at once, before the exchange has ended; a refused call is repeated behind it."""
    hold = threading.Event()
    issue = identity.issue
    identity.issue = lambda user: (hold.wait(WAIT), issue(user))[1]
    with connected(cluster) as (connections, call):
        future = connections.run_step(StartCall(call))
        assert not future.done()
        hold.set()
        assert future.result(WAIT).cluster_id == "fake"
        identity.revoke()
        assert connections.run_step(StartCall(call)).result(WAIT).cluster_id == "fake"
    assert [token for _, token in identity.calls] == ["hr1.k.1", "hr1.k.1", "hr1.k.2"]


def test_a_started_call_that_is_cancelled_before_the_session_is_not_sent(cluster, identity):
    hold = threading.Event()
    issue = identity.issue
    identity.issue = lambda user: (hold.wait(WAIT), issue(user))[1]
    with connected(cluster) as (connections, call):
        future = connections.run_step(StartCall(call))
        assert future.cancel()
        hold.set()
        connections.run_step(call)
    assert identity.calls == [("GetMetadata", "hr1.k.1")]


def test_a_cancelled_future_cancels_its_call_and_drops_its_result():
    calls = []

    class Running:
        def cancel(self):
            calls.append("cancelled")

    early, late = CallFuture(), CallFuture()
    early.begun(Running().cancel)
    early.cancel()
    late.cancel()
    late.begun(Running().cancel)
    late.ended("answer", None)
    assert calls == ["cancelled", "cancelled"]
    assert early.cancelled()
    assert late.cancelled()


def test_a_begun_call_ends_once_with_the_error_of_the_exchange(cluster, identity):
    identity.failure = ShuttingDownError("going down")
    ends = []
    ended = threading.Event()
    with connected(cluster) as (connections, call):
        connections.run_step(BeginCall(call, lambda answer, error: (ends.append((answer, error)), ended.set())))
        assert ended.wait(WAIT)
    [(answer, error)] = ends
    assert answer is None
    assert isinstance(error, UnsentCallError)
    assert isinstance(error, grpc.RpcError)


@pytest.mark.parametrize("start", ["StartCall", "BeginCall", "Call"])
def test_a_call_ends_in_time_while_a_provider_hangs(cluster, identity, start):
    """Nothing is left of it that would wait for the provider."""
    provided = threading.Event()
    ended = CallFuture()

    def token():
        provided.wait(WAIT)
        return JWT

    with connected(cluster, timeout=0.05, api_key="", token_provider=token) as (connections, call):
        match start:
            case "StartCall":
                ended = connections.run_step(StartCall(call))
            case "BeginCall":
                connections.run_step(BeginCall(call, ended.ended))
            case "Call":
                with pytest.raises(UnsentCallError) as raised:
                    connections.run_step(call)
                ended.ended(None, raised.value)
        with pytest.raises(UnsentCallError, match=r"in time .*token_provider has not returned"):
            ended.result(WAIT)
        assert connections.sessions._waiting == []
        provided.set()
        assert connections.run_step(call._replace(timeout=WAIT)).cluster_id == "fake"
    assert len(identity.calls) == 1


async def test_an_asyncio_call_that_waited_too_long_leaves_no_wait(cluster, identity):
    provided = asyncio.Event()

    async def token():
        await provided.wait()
        return JWT

    async with headrace.aio.Admin(**settings(cluster, "api_key", "fetch_max_wait_ms", token_provider=token)) as admin:
        with pytest.raises(headrace.NoBrokersAvailableError, match="token_provider has not returned"):
            await admin.list_topics(timeout=0.05)
        assert admin._connections.sessions._waiting == []
        provided.set()
        assert await admin.list_topics() == ["t"]
