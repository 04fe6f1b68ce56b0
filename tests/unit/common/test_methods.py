"""Every method has a row, and a request is limited before it is walked."""

import pytest
from google.protobuf import descriptor_pool
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from headrace.v1 import auth_pb2, broker_pb2, cluster_pb2, groups_pb2, process_pb2, tables_pb2, topics_pb2
from headrace.wire.errors import InvalidRequestError
from headrace.wire.zero_copy import parse_produce_request
from headrace_server.internal_v1 import replication_pb2
from headrace_server.methods import METHODS, Method
from headrace_server.requests import RequestReader, item_counter

FILES = (
    auth_pb2, broker_pb2, cluster_pb2, groups_pb2, process_pb2, tables_pb2, replication_pb2, health_pb2, reflection_pb2
)  # fmt: skip


def every_method():
    for module in FILES:
        for service in module.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                yield f"/{service.full_name}/{method.name}", method


def reader(path, parse=None):
    pool = descriptor_pool.Default()
    service, _, name = path[1:].partition("/")
    request = pool.FindServiceByName(service).FindMethodByName(name).input_type
    return RequestReader(name, METHODS[path], parse or GetMessageClass(request).FromString, request)


def test_every_method_of_every_service_has_a_row_and_every_row_a_method():
    """No RPC is served without limits, and no row is left over."""
    assert {path for path, _ in every_method()} == set(METHODS)


def test_no_row_allows_more_than_one_call_may_cost():
    """Only Produce takes more than 4 MiB."""
    assert [path for path, row in METHODS.items() if row.max_bytes > 4 << 20] == ["/headrace.v1.BrokerService/Produce"]


@pytest.mark.parametrize("path", [path for path, _ in every_method()])
def test_a_request_over_its_bytes_is_refused_unparsed(path):
    """The limit is looked at before protobuf is."""

    def never(data):
        raise AssertionError("parsed")

    with pytest.raises(InvalidRequestError, match="bytes, and"):
        reader(path, never).read(bytes(METHODS[path].max_bytes + 1), "a")


def floods():
    """A message full of empty elements of each repeated field at the top, up to the bytes that its row allows."""
    for path, method in every_method():
        for field in method.input_type.fields:
            if (
                field.is_repeated
                and field.message_type is not None
                and not field.message_type.GetOptions().map_entry  # an equal entry takes the place of the one before
            ):
                size = min(METHODS[path].max_bytes, 1 << 20) // 2
                yield pytest.param(path, bytes([field.number << 3 | 2, 0]) * size, id=f"{path}-{field.name}")


@pytest.mark.parametrize(("path", "flood"), list(floods()))
def test_empty_elements_are_counted_and_refused(path, flood):
    """Empty sub-messages are items: a flood of them is refused before it is walked."""
    parse = parse_produce_request if path.endswith("/Produce") else None
    with pytest.raises(InvalidRequestError, match=r"items|fields"):
        reader(path, parse).read(flood, "a")


@pytest.mark.parametrize("data", [b"\xff\xff", b"\x0a", b"\x22\x05ab"])
def test_what_is_no_message_is_refused_with_a_sentence(data):
    """Bytes that protobuf cannot parse are the caller's mistake."""
    with pytest.raises(InvalidRequestError, match=f"the request of {len(data)} bytes is no FetchRequest"):
        reader("/headrace.v1.BrokerService/Fetch").read(data, "a")


def test_items_are_counted_at_every_depth():
    """Topics, partitions, records and headers count; so do the elements of a message by itself."""
    request = broker_pb2.ProduceRequest()
    for _ in range(3):
        part = request.topics.add().partitions.add()
        part.records.add().headers.add()
    assert item_counter(broker_pb2.ProduceRequest.DESCRIPTOR)(request, 100) == 12
    heartbeat = groups_pb2.HeartbeatRequest(topics=["a", "b"])
    heartbeat.owned.topics.add(partitions=[1, 2, 3])
    assert item_counter(groups_pb2.HeartbeatRequest.DESCRIPTOR)(heartbeat, 100) == 6


def test_counting_stops_above_the_limit():
    """What lies behind the limit is not looked at."""
    request = groups_pb2.FetchOffsetsRequest()
    for _ in range(1000):
        request.topics.add(partitions=range(100))
    assert 10 < item_counter(groups_pb2.FetchOffsetsRequest.DESCRIPTOR)(request, 1_050) < 1_300


@pytest.mark.parametrize(
    ("path", "request_message"),
    [
        (
            "/headrace.v1.BrokerService/Fetch",
            broker_pb2.FetchRequest(topics=[broker_pb2.TopicFetch(topic=topics_pb2.TopicRef(name="t"))] * 2),
        ),
        (
            "/headrace.v1.BrokerService/GetMetadata",
            cluster_pb2.GetMetadataRequest(topics=[topics_pb2.TopicRef(topic_id=b"1" * 16)] * 2),
        ),
        (
            "/headrace.v1.ClusterService/ListReassignments",
            cluster_pb2.ListReassignmentsRequest(topics=[topics_pb2.TopicRef(name="t")] * 2),
        ),
    ],
)
def test_a_topic_named_twice_is_refused(path, request_message):
    """What a handler does for a topic it does once a request."""
    with pytest.raises(InvalidRequestError, match="twice"):
        reader(path).read(request_message.SerializeToString(), "a")


def test_a_request_at_its_limits_is_read():
    """As many partitions as a request may name, and one byte less than too many."""
    fetch = broker_pb2.FetchRequest()
    topic = fetch.topics.add(topic=topics_pb2.TopicRef(name="t"))
    for number in range(10_000):
        topic.partitions.add(partition=number)
    assert reader("/headrace.v1.BrokerService/Fetch").read(fetch.SerializeToString(), "a") == fetch
    row = Method(len(fetch.SerializeToString()), 10_001)
    exact = RequestReader("Fetch", row, broker_pb2.FetchRequest.FromString, broker_pb2.FetchRequest.DESCRIPTOR)
    assert exact.read(fetch.SerializeToString(), "a") == fetch
