"""What a stranger does to a real broker and coordinator, while every call of an honest client is answered.

Bounds are processor time and memory of the servers, generous, and nothing is timed.
"""

from __future__ import annotations

import gzip
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from queue import SimpleQueue

import grpc
import headrace
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from headrace.v1 import (
    broker_pb2,
    broker_pb2_grpc,
    cluster_pb2,
    cluster_pb2_grpc,
    groups_pb2,
    groups_pb2_grpc,
    topics_pb2,
)
from headrace.wire.errors import HeadraceError, InvalidRequestError, from_rpc_error
from headrace_server.methods import METHODS
from headrace_server.places import PlaceLimits

from tests.security.conftest import Witness
from tests.security.fuzzing import request_type
from tests.security.http2 import (
    ADDRESSES,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PING,
    SETTINGS,
    Stranger,
    call_headers,
    calls,
    frame,
    is_served,
)

MIB = 1 << 20
SLACK_MIB = 192
"""What allocators and a busy machine add."""
FORBIDDEN = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)
FETCH = "/headrace.v1.BrokerService/Fetch"
BAD_NAMES = ("", ".", "..", "../../etc/passwd", "a\0b", "\u202eevil", "\x1b[2J", "a\nb", "x" * 250, "x" * MIB)


@contextmanager
def bounded(witness: Witness, *, cpu_seconds: float, mib: int = 0) -> Iterator[None]:
    """Within: an attack; an honest client works before, during and after it, and the servers are the same."""
    wait_until_all_are_accepted(witness)
    witness.work(5)
    processes = witness.processes()
    cpu = [sum(process.cpu_times()[:2]) for process in processes]
    memory = [process.memory_info().rss for process in processes]
    yield
    witness.work(20)
    assert is_healthy(witness)
    assert witness.processes() == processes
    for process, before, rss in zip(processes, cpu, memory, strict=True):
        assert sum(process.cpu_times()[:2]) - before < cpu_seconds
        assert process.memory_info().rss - rss < (mib + SLACK_MIB) * MIB


def wait_until_all_are_accepted(witness: Witness) -> None:
    """After an attack new connections are drawn for seconds."""
    deadline = time.monotonic() + 60
    for listener in ("client", "coordinator"):
        while not all(is_served(witness.address(listener), "127.0.0.1") for _ in range(16)):
            assert time.monotonic() < deadline, f"the listener {listener} still draws"


def is_healthy(witness: Witness) -> bool:
    for listener in ("client", "coordinator"):
        with grpc.insecure_channel(witness.address(listener)) as channel:
            request = health_pb2.HealthCheckRequest(service="readiness")
            check = health_pb2_grpc.HealthStub(channel).Check
            answer = check(request, timeout=60, wait_for_ready=True)  # New connections are drawn for seconds.
            if answer.status != health_pb2.HealthCheckResponse.SERVING:
                return False
    return True


def listener_of(path: str) -> str:
    service = path.split("/")[1]
    return {
        "headrace.v1.ClusterService": "coordinator",
        "headrace.v1.GroupService": "coordinator",
    }.get(service, "client")


def floods() -> Iterator[object]:
    """A mebibyte of one empty repeated element for each method that has one."""
    for path in METHODS:
        if not path.startswith("/headrace"):
            continue
        name = path.rpartition("/")[2]
        for field in request_type(path).fields:
            if field.is_repeated:
                size = min(METHODS[path].max_bytes, MIB) // 2
                yield pytest.param(path, bytes([field.number << 3 | 2, 0]) * size, id=f"{name}-{field.name}")


def ended(call: object) -> grpc.StatusCode:
    """Read all the answers of a call; its status."""
    try:
        for _answer in call:  # type: ignore[attr-defined]
            pass
    except grpc.RpcError as error:
        return error.code()
    return grpc.StatusCode.OK


def refusal(call: object) -> HeadraceError:
    with pytest.raises(grpc.RpcError) as caught:
        call()  # type: ignore[operator]
    return from_rpc_error(caught.value)


@pytest.mark.parametrize(("path", "flood"), list(floods()))
def test_a_flood_of_empty_elements(witness: Witness, path: str, flood: bytes) -> None:
    """F1: three calls of a mebibyte cost less than 2 s together; they were 0.3 to 7 s and up to 400 MiB each."""
    with bounded(witness, cpu_seconds=2.0), grpc.insecure_channel(witness.address(listener_of(path))) as channel:
        for _ in range(3):
            assert ended(channel.stream_stream(path)(iter([flood]), timeout=60)) not in FORBIDDEN


def test_a_flood_that_grpc_compressed(witness: Witness) -> None:
    """F1: 2 kB that inflate to 2 MiB are refused as they are."""
    with bounded(witness, cpu_seconds=2.0), grpc.insecure_channel(witness.address("client")) as channel:
        call = channel.unary_unary("/headrace.v1.BrokerService/Produce")
        for _ in range(20):
            with pytest.raises(grpc.RpcError) as caught:
                call(b"\x22\x00" * MIB, timeout=60, compression=grpc.Compression.Gzip)
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("listener", ["client", "coordinator"])
def test_half_open_calls(witness: Witness, listener: str) -> None:
    """F3: twenty connections with all the streams they may have, headers and nothing more, for ten thousand years."""
    path = FETCH if listener == "client" else "/headrace.v1.GroupService/Heartbeat"
    with bounded(witness, cpu_seconds=20.0, mib=64), ExitStack() as stack:
        for _ in range(20):
            stranger = stack.enter_context(Stranger(witness.address(listener)))
            stranger.send(calls(250, path))
        witness.work(20)
        assert is_healthy(witness)


@pytest.mark.parametrize(
    "frames", [calls(250, FETCH), calls(2_000, FETCH, then="reset")], ids=["half-open", "rapid resets"]
)
def test_who_wastes_calls_opens_no_more_connections(witness: Witness, frames: bytes) -> None:
    """F3: it is diverted at the listener while an honest client of another address is served."""
    address, waster = witness.address("client"), next(ADDRESSES)
    with bounded(witness, cpu_seconds=20.0, mib=64), ExitStack() as stack:
        strangers = [stack.enter_context(Stranger(address, waster)) for _ in range(20)]
        for stranger in strangers:
            stranger.send(frames)
        deadline = time.monotonic() + 60
        while is_served(address, waster, 0.5):
            assert time.monotonic() < deadline, "it is served still"
        witness.work(20)
        neighbour = next(ADDRESSES)
        while not is_served(address, neighbour):  # After waste from many addresses new ones are drawn for seconds.
            assert time.monotonic() < deadline, "no other address is served"
        with headrace.Admin(bootstrap_servers=witness.cluster.bootstrap_servers) as admin:
            admin.describe_topics([witness.topic])


def test_all_places_in_which_fetches_wait(witness: Witness) -> None:
    """F11: a caller that takes what it can is told to wait when it has its share, and others are served."""
    request = broker_pb2.FetchRequest(max_wait_ms=20_000, min_bytes=1)
    topic = request.topics.add(topic=topics_pb2.TopicRef(name=witness.topic))
    with bounded(witness, cpu_seconds=10.0), grpc.insecure_channel(witness.address("client")) as channel:
        topic.partitions.add(partition=0, offset=witness.sent)
        stub = broker_pb2_grpc.BrokerServiceStub(channel)
        done: SimpleQueue[grpc.Future] = SimpleQueue()
        for _ in range(12):
            stub.Fetch.future(request, timeout=60).add_done_callback(done.put)
        assert [done.get().result().throttle_ms for _ in range(8)] == [5_000] * 8
        witness.work(1)
        assert [done.get().result().throttle_ms for _ in range(4)] == [0] * 4


def test_metadata_of_all_and_descriptions_again_and_again(witness: Witness) -> None:
    """F17: what is dear is answered from what is kept, or not more often than its share."""
    with bounded(witness, cpu_seconds=20.0), ExitStack() as stack:
        broker, coordinator = (
            stack.enter_context(grpc.insecure_channel(witness.address(name))) for name in ("client", "coordinator")
        )
        for _ in range(100):
            cluster_pb2_grpc.ClusterServiceStub(coordinator).GetMetadata(cluster_pb2.GetMetadataRequest(), timeout=60)
            dump = cluster_pb2_grpc.ClusterServiceStub(coordinator).DumpMetadata
            describe = broker.unary_stream("/headrace.v1.BrokerService/DescribeLogs")
            for call in (dump(cluster_pb2.DumpMetadataRequest(), timeout=60), describe(b"", timeout=60)):
                assert ended(call) in (grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED)


# --- what held before, too ---


@pytest.mark.parametrize("name", BAD_NAMES)
def test_names_that_are_none(witness: Witness, name: str) -> None:
    """Topics and groups: traversal, NUL, escapes, right-to-left and a mebibyte are refused with a sentence."""
    with bounded(witness, cpu_seconds=5.0), grpc.insecure_channel(witness.address("coordinator")) as channel:
        request = cluster_pb2.CreateTopicsRequest(topics=[cluster_pb2.NewTopic(name=name)], timeout_ms=1_000)
        create = cluster_pb2_grpc.ClusterServiceStub(channel).CreateTopics
        while (call := create.future(request, timeout=60)).code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
            pass  # The floods before had more refused than a caller may; an answer to that takes half a second.
        (answer,) = call.result().topics
        assert answer.error.message
        stub = groups_pb2_grpc.GroupServiceStub(channel)
        error = refusal(lambda: stub.DescribeGroup(groups_pb2.DescribeGroupRequest(group_id=name), timeout=60))
        assert isinstance(error, InvalidRequestError)


@pytest.mark.parametrize(
    "topic",
    [
        cluster_pb2.NewTopic(name="numbers", partitions=100_000),
        cluster_pb2.NewTopic(name="numbers", partitions=-1),
        cluster_pb2.NewTopic(name="numbers", partitions=1, replication_factor=-1),
        cluster_pb2.NewTopic(name="numbers", partitions=1, replication_factor=9),
        cluster_pb2.NewTopic(name="numbers", assignments=[cluster_pb2.ReplicaList(broker_ids=[77])]),
        cluster_pb2.NewTopic(name="numbers", assignments=[cluster_pb2.ReplicaList(broker_ids=[1, 1])]),
        cluster_pb2.NewTopic(name="numbers", partitions=1, configs={"retention_ms": "9" * 5_000}),
    ],
)
def test_numbers_that_are_none(witness: Witness, topic: cluster_pb2.NewTopic) -> None:
    """Counts, replicas and settings that cannot be are refused, and nothing is made."""
    with bounded(witness, cpu_seconds=5.0), grpc.insecure_channel(witness.address("coordinator")) as channel:
        request = cluster_pb2.CreateTopicsRequest(topics=[topic], timeout_ms=1_000)
        (answer,) = cluster_pb2_grpc.ClusterServiceStub(channel).CreateTopics(request, timeout=60).topics
        assert answer.error.message
        with headrace.Admin(bootstrap_servers=witness.cluster.bootstrap_servers) as admin:
            assert "numbers" not in admin.list_topics()


@pytest.mark.parametrize(
    "frames",
    [
        pytest.param(calls(2_000, FETCH, then="reset"), id="rapid resets"),
        pytest.param(frame(PING, 0, 0, bytes(8)) * 5_000, id="pings"),
        pytest.param(frame(SETTINGS, 0, 0) * 50_000, id="settings"),
        pytest.param(frame(HEADERS, 0, 1, call_headers(FETCH)) + frame(CONTINUATION, 0, 1) * 20_000, id="continued"),
        pytest.param(
            frame(HEADERS, END_HEADERS, 1, call_headers(FETCH, **{f"x-{n}": "y" * 100 for n in range(600)})), id="60 kB"
        ),
        pytest.param(b"\x16\x03\x01" + bytes(5_000), id="junk"),
    ],
)
def test_floods_of_frames(witness: Witness, frames: bytes) -> None:
    """HTTP/2's own floods cost what they cost, end with their connections, and leave an honest client served."""
    with bounded(witness, cpu_seconds=10.0):
        for _ in range(5):
            with Stranger(witness.address("client")) as stranger:
                stranger.send(frames)
                witness.work(2)


def test_a_message_that_inflates_beyond_all_limits(witness: Witness) -> None:
    """A compressed message is refused whatever is in it."""
    bomb = gzip.compress(bytes(64 * MIB))
    body = b"\x01" + len(bomb).to_bytes(4, "big") + bomb
    headers = call_headers("/headrace.v1.BrokerService/Produce", **{"grpc-encoding": "gzip"})
    chunks = [body[at : at + 16_384] for at in range(0, len(body), 16_384)]
    frames = [frame(HEADERS, END_HEADERS, 1, headers), *(frame(DATA, 0, 1, chunk) for chunk in chunks)]
    with bounded(witness, cpu_seconds=5.0, mib=64):
        for _ in range(5):
            with Stranger(witness.address("client")) as stranger:
                stranger.send(b"".join(frames) + frame(DATA, END_STREAM, 1))
                witness.work(1)


def test_connections_without_calls(witness: Witness) -> None:
    """Three hundred idle connections are a few kilobytes each."""
    with bounded(witness, cpu_seconds=10.0, mib=32), ExitStack() as stack:
        for _ in range(300):
            stack.enter_context(Stranger(witness.address("client")))
        witness.work(20)


def test_health_has_more_places_than_one_caller_may_take() -> None:
    """The pools' totals are many times one peer's share."""
    limits = PlaceLimits()
    for total, share in (limits.clients, limits.administrators, limits.health):
        assert total >= 4 * share
