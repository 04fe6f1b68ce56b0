"""docs/guides/simple-clients.md: every body on it goes through plain stubs to a running cluster, in order."""

import json
import re
import shlex
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pool, json_format, message_factory
from grpc_health.v1 import health_pb2
from headrace.v1 import broker_pb2, cluster_pb2, tables_pb2
from headrace_devcluster.cluster import LocalCluster

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "simple-clients.md"
PAGE_TOPIC = "greetings"
OTHER_TOPICS = ("visits", "accounts")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
KNOWN_PRODUCER = '"producer_id": "45327182818284", "producer_epoch": 45964'
VARYING = {"cluster_id", "topic_id", "name", "brokers", "leader_id", "replicas", "in_sync_replicas", "coordinators"}
VARYING |= {"timestamp_ms", "append_timestamp_ms", "producer_id", "producer_epoch"}
"""Fields that differ between clusters, or between runs."""


@dataclass(frozen=True)
class Call:
    """One grpcurl command with a body, and the answer that the page shows for it."""

    body: str
    address: str
    method: str
    answer: str | None


def page_calls() -> list[Call]:
    calls: list[Call] = []
    for language, text in BLOCK.findall(PAGE.read_text("utf-8")):
        if language == "json":
            last = calls.pop()
            calls.append(Call(last.body, last.address, last.method, text))
            continue
        for command in re.split(r"^(?=grpcurl)", text, flags=re.MULTILINE):
            words = shlex.split(command)
            if "-d" in words:
                assert words[:4] == ["grpcurl", "-plaintext", "-max-time", "10"]
                calls.append(Call(words[words.index("-d") + 1], words[-2], words[-1], None))
    return calls


def message_types(method: str) -> tuple[Any, Any]:
    """The request's and the answer's class, from the descriptors of the imported modules."""
    for module in (broker_pb2, cluster_pb2, health_pb2, tables_pb2):
        assert module.DESCRIPTOR.services_by_name  # Imported, so the pool knows it.
    service, _, name = method.partition("/")
    found = descriptor_pool.Default().FindServiceByName(service).methods_by_name[name]
    return message_factory.GetMessageClass(found.input_type), message_factory.GetMessageClass(found.output_type)


def send(address: str, method: str, request: Any) -> Any:
    """What grpcurl does: one unary call."""
    _, answer_type = message_types(method)
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_unary(
            f"/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=answer_type.FromString,
        )
        return call(request, timeout=10)


def leader_address(cluster: LocalCluster, topic: str) -> str:
    """Where the leader of partition 0 is, once it knows that it leads."""
    find, ask = "headrace.v1.ClusterService/GetMetadata", "headrace.v1.BrokerService/ListOffsets"
    request = json_format.ParseDict({"topics": [{"name": topic}]}, message_types(find)[0]())
    partition = {"partition": 0, "spec": "OFFSET_SPEC_LATEST"}
    question = {"topics": [{"topic": {"name": topic}, "partitions": [partition]}]}
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        metadata = send(cluster.coordinators[0].address, find, request)
        addresses = {broker.broker_id: broker.address for broker in metadata.brokers}
        leader = metadata.topics[0].partitions[0].leader_id if metadata.topics[0].partitions else -1
        if leader in addresses:
            answer = send(addresses[leader], ask, json_format.ParseDict(question, message_types(ask)[0]()))
            if not answer.topics[0].partitions[0].HasField("error"):
                return addresses[leader]
    pytest.fail("no leader answered within 20 s")


def shape(answer: Any) -> set[str]:
    """The names of all fields that are set, nested ones too, without their values."""
    if isinstance(answer, dict):
        return {name for key, value in answer.items() for name in (key, *shape(value))}
    if isinstance(answer, list):
        return {name for value in answer for name in shape(value)}
    return set()


def constants(answer: Any, path: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
    """The path and value of each field that is the same in all clusters and runs."""
    if isinstance(answer, dict):
        return {each for key in answer.keys() - VARYING for each in constants(answer[key], (*path, key))}
    if isinstance(answer, list):
        return {each for number, part in enumerate(answer) for each in constants(part, (*path, str(number)))}
    return {(*path, str(answer))}


@pytest.mark.parametrize("call", page_calls(), ids=lambda call: call.method.rpartition("/")[2])
def test_bodies_and_answers_parse(call: Call) -> None:
    """The JSON on the page is exactly what the messages take: no unknown field, no wrong type."""
    request_type, answer_type = message_types(call.method)
    json_format.Parse(call.body, request_type())
    if call.answer is not None:
        json_format.Parse(call.answer, answer_type())


def test_the_page_works_from_top_to_bottom(headrace_cluster: LocalCluster, topic_name: str) -> None:
    """Every call succeeds, and its answer has the fields that the page shows, and the values that never differ."""
    methods = [call.method.rpartition("/")[2] for call in page_calls()]
    assert {"CreateTopics", "Produce", "Fetch", "ListOffsets", "Check", "DeleteTopics"} <= set(methods)
    assert {"WriteRow", "GetRows"} <= set(methods)
    producer = ""
    for call in page_calls():
        body = call.body.replace(f'"{PAGE_TOPIC}"', json.dumps(topic_name)).replace(KNOWN_PRODUCER, producer)
        topic = topic_name
        for other in OTHER_TOPICS:
            if f'"{other}"' in body:
                topic = f"{topic_name}-{other}"
                body = body.replace(f'"{other}"', json.dumps(topic))
        request = json_format.Parse(body, message_types(call.method)[0]())
        address = headrace_cluster.coordinators[0].address
        if call.address != "localhost:7170":
            health = call.method.startswith("grpc.health")
            address = headrace_cluster.broker(1).address if health else leader_address(headrace_cluster, topic)
        if call.method.endswith("/GetMetadata"):
            leader_address(headrace_cluster, topic_name)
        answer = json_format.MessageToDict(send(address, call.method, request), preserving_proto_field_name=True)
        assert "error" not in shape(answer), (call.method, answer)
        if call.answer is not None:
            # GetMetadata leaves ids out that are 0 and grows with the cluster; the page shows the part that matters.
            assert shape(json.loads(call.answer)) <= shape(answer) | {"leader_id"}, call.method
            assert constants(json.loads(call.answer)) <= constants(answer), call.method
        if call.method.endswith("/InitProducerId"):
            assert answer.keys() <= json.loads(call.answer or "").keys(), "the page shows all that must be sent on"
            producer = json.dumps(answer).strip("{}")
        if "base_sequence" in body:
            again = json_format.MessageToDict(send(address, call.method, request), preserving_proto_field_name=True)
            offsets = [each["topics"][0]["partitions"][0]["base_offsets"] for each in (answer, again)]
            assert offsets[0] == offsets[1] == ["2"], "a retry with its sequence is stored once"


def test_a_call_without_a_deadline_is_refused_with_the_reason(headrace_cluster: LocalCluster) -> None:
    """As the page says: DEADLINE_REQUIRED, with what to do."""
    method = "headrace.v1.ClusterService/InitProducerId"
    request_type, answer_type = message_types(method)
    with grpc.insecure_channel(headrace_cluster.coordinators[0].address) as channel:
        call = channel.unary_unary(
            f"/{method}",
            request_serializer=request_type.SerializeToString,
            response_deserializer=answer_type.FromString,
        )
        with pytest.raises(grpc.RpcError) as caught:
            call(request_type())
    assert "Give every call a deadline" in caught.value.details()


def test_reflection_lists_what_the_page_lists(headrace_cluster: LocalCluster) -> None:
    """A client without the .proto files finds services and messages at coordinator and broker."""
    from google.protobuf.descriptor_pool import DescriptorPool
    from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

    for address, service in (
        (headrace_cluster.coordinators[0].address, "headrace.v1.ClusterService"),
        (headrace_cluster.broker(1).address, "headrace.v1.BrokerService"),
    ):
        with grpc.insecure_channel(address) as channel:
            database = ProtoReflectionDescriptorDatabase(channel)
            assert {service, "grpc.health.v1.Health"} <= set(database.get_services())
            pool = DescriptorPool(database)
            assert pool.FindServiceByName(service).methods
            assert pool.FindMessageTypeByName("headrace.v1.GetMetadataRequest").fields
