"""Plays recorded requests to a cluster and says what came of them: the status, typed errors, and which fields are set.

`python -m tests.golden.conversation` (`make golden`) records this release's, from two clusters, so that what chance or
time decides is left out.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from headrace.v1 import (
    auth_pb2,
    broker_pb2,
    cluster_pb2,
    cluster_pb2_grpc,
    errors_pb2,
    groups_pb2,
    groups_pb2_grpc,
    process_pb2,
    topics_pb2,
)
from headrace.wire.errors import from_rpc_error
from headrace.wire.releases import RELEASE
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec
from headrace_devcluster.cluster_health import describe_cluster

from tests.golden.requests import CLUSTER_ID, TOPIC, TOPIC_ID, all_requests

FOLDER = Path(__file__).parent
SECONDS = 30.0
SPEC = LocalClusterSpec(brokers=2, coordinators=1)
MODULES = (auth_pb2, broker_pb2, cluster_pb2, groups_pb2, process_pb2)

VOLATILE = ("age_ms", "followers", "in_sync_replicas", "under_replicated_partitions", "offline_partitions")
"""Names of fields that time decides: they, and what is in them, are not recorded."""

Row = dict[str, Any]


def services() -> Iterator[ServiceDescriptor]:
    """Every service of this release."""
    for module in MODULES:
        yield from module.DESCRIPTOR.services_by_name.values()


def all_methods() -> list[str]:
    """Every RPC of this release, as in the path of its calls."""
    return [f"{service.full_name}/{method.name}" for service in services() for method in service.methods]


def recorded_file(release: str) -> Path:
    """Where a release's requests are."""
    return FOLDER / f"requests-{release}.json"


def rows_to_record() -> list[Row]:
    """This release's requests, without answers."""
    return [
        {
            "method": asked.method,
            "note": asked.note,
            "request": asked.request.SerializeToString(deterministic=True).hex(),
        }
        for asked in all_requests()
    ]


def play(cluster: LocalCluster, rows: Sequence[Row]) -> list[Row]:
    """Send the requests in their order to the servers that serve them; what came of each."""
    described = describe_cluster(cluster.coordinators[0].address)
    places = {
        "headrace.v1.BrokerService": cluster.broker(1).address,
        "headrace.v1.ProcessService": cluster.broker(1).address,
    }
    answers = []
    topic_id = b""
    for row in rows:
        service, _, _ = row["method"].partition("/")
        address = places.get(service, cluster.coordinators[0].address)
        request = bytes.fromhex(row["request"]).replace(CLUSTER_ID.encode(), described.cluster_id.encode())
        if TOPIC_ID in request:
            topic_id = topic_id or _topic_id(cluster)
            request = request.replace(TOPIC_ID, topic_id)
        if row["method"].endswith("/CommitOffsets"):
            request = _with_member_epoch(cluster, request)
        answer, deadline = _ask(address, row["method"], request), time.monotonic() + SECONDS
        while _has_not_heard(row, answer) and time.monotonic() < deadline:
            answer = _ask(address, row["method"], request)
        answers.append(answer)
    return answers


def _has_not_heard(row: Row, answer: Row) -> bool:
    """Whether a server does not know, or not lead, the topic yet that it is to: its view comes a moment later."""
    behind = any("UNKNOWN_TOPIC" in error or "NOT_LEADER" in error for error in answer["errors"])
    return behind and "answer" in row and answer["errors"] != row["answer"]["errors"]


def _topic_id(cluster: LocalCluster) -> bytes:
    with grpc.insecure_channel(cluster.coordinators[0].address) as channel:
        request = cluster_pb2.GetMetadataRequest(topics=[topics_pb2.TopicRef(name=TOPIC)])
        found = cluster_pb2_grpc.ClusterServiceStub(channel).GetMetadata(request, timeout=SECONDS)
        topic_id: bytes = found.topics[0].topic_id
        assert len(topic_id) == len(TOPIC_ID)
        return topic_id


def _with_member_epoch(cluster: LocalCluster, request: bytes) -> bytes:
    """Return a member's commit with the epoch that it was told, which begins at a revision of etcd."""
    commit = groups_pb2.CommitOffsetsRequest.FromString(request)
    if not commit.member_id:
        return request
    with grpc.insecure_channel(cluster.coordinators[0].address) as channel:
        describe = groups_pb2.DescribeGroupRequest(group_id=commit.group_id)
        found = groups_pb2_grpc.GroupServiceStub(channel).DescribeGroup(describe, timeout=SECONDS)
    commit.member_epoch = next(each.member_epoch for each in found.members if each.member_id == commit.member_id)
    return commit.SerializeToString()


def _ask(address: str, method: str, request: bytes) -> Row:
    """One call, with the bytes as they are; the answer is read as this release has it."""
    service_name, _, name = method.partition("/")
    service = next(service for service in services() if service.full_name == service_name)
    found = service.methods_by_name[name]
    answer_class = GetMessageClass(found.output_type)
    with grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        try:
            if found.server_streaming:
                answers = list(channel.unary_stream(f"/{method}")(request, timeout=SECONDS))
            else:
                answers = [channel.unary_unary(f"/{method}")(request, timeout=SECONDS, wait_for_ready=True)]
        except grpc.RpcError as error:
            return {"status": from_rpc_error(error).code.name, "errors": [], "fields": []}
    return {"status": "OK", **describe([answer_class.FromString(answer) for answer in answers])}


def describe(answers: Sequence[Message]) -> Row:
    """Return the typed errors in messages, and the fields that are set."""
    fields: set[str] = set()
    errors: set[str] = set()
    for answer in answers:
        for path, value in _walk(answer, ""):
            if path.endswith("log_start_offset") and value == -1:
                continue  # A leader that has just started does not know it yet.
            fields.add(path)
            if isinstance(value, errors_pb2.ErrorDetail):
                errors.add(f"{path} {errors_pb2.ErrorCode.Name(value.code).removeprefix('ERROR_CODE_')}")
    return {"errors": sorted(errors), "fields": sorted(fields)}


def _walk(message: Message, prefix: str) -> Iterator[tuple[str, Any]]:
    """Every field that is set, by its path of names; the content of maps is not looked at."""
    for field, value in message.ListFields():
        path = f"{prefix}{field.name}"
        # Repeated fields are sequences of their own kind; so are maps, which are no sequences.
        for each in value if isinstance(value, Sequence) and not isinstance(value, (str, bytes)) else [value]:
            yield path, each
            if isinstance(each, Message):
                yield from _walk(each, f"{path}.")


def is_volatile(path: str) -> bool:
    """Whether a field may be set or not as it happens."""
    return any(name in VOLATILE for name in path.split("."))


def record() -> Path:
    """Play this release's requests to two clusters and write down what both answer.

    Servers may not have heard of a topic yet: what was recorded before says whether that is the answer.
    """
    path, rows = recorded_file(RELEASE), rows_to_record()
    before = json.loads(path.read_text()) if path.exists() else []
    expected = {(row["method"], row["note"], row["request"]): row["answer"] for row in before}
    awaited = [{**row, "answer": expected[key]} if (key := tuple(row.values())) in expected else row for row in rows]
    answers = []
    for _ in range(2):
        with LocalCluster(SPEC) as cluster:
            answers.append(play(cluster, awaited))
    for row, first, second in zip(rows, *answers, strict=True):
        assert (first["status"], first["errors"]) == (second["status"], second["errors"]), row
        kept = [path for path in first["fields"] if path in second["fields"] and not is_volatile(path)]
        row["answer"] = {**first, "fields": kept}
    path.write_text(json.dumps(rows, indent=1) + "\n")
    return path


if __name__ == "__main__":
    from tests.golden.frames import record_frames

    print(f"wrote {record().name} and {record_frames().name}")
