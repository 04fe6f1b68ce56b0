"""Frames that a client and a follower of each release send, and what a cluster answers: the kinds, codes and fields.

Each row is one connection of its own. `python -m tests.golden.conversation` (`make golden`) records this release's.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import headrace
from google.protobuf.message import Message
from headrace.v1 import broker_pb2, errors_pb2, handshake_pb2, native_pb2, topics_pb2
from headrace.wire.columns import encode_batch
from headrace.wire.frames import (
    LEADER_KINDS,
    PREFACE,
    SERVER_KINDS,
    Frame,
    FrameReader,
    Kind,
    MethodCode,
    frame_head,
)
from headrace.wire.releases import CAPABILITIES, RELEASE
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec
from headrace_server.internal_v1 import replication_pb2

from tests.golden.conversation import describe
from tests.golden.requests import CLUSTER_ID

FOLDER = Path(__file__).parent
SPEC = LocalClusterSpec(brokers=1, coordinators=1)
SECONDS = 30.0
TOPIC = "golden-frames"
ANSWERS: dict[int, Any] = {
    MethodCode.PRODUCE: broker_pb2.ProduceResponse,
    MethodCode.FETCH: broker_pb2.FetchResponse,
    MethodCode.LIST_OFFSETS: broker_pb2.ListOffsetsResponse,
    MethodCode.REPLICA_FETCH: replication_pb2.ReplicaFetchResponse,
}

Row = dict[str, Any]


def recorded_frames(release: str) -> Path:
    """Where a release's frames are."""
    return FOLDER / f"frames-{release}.json"


def frames_to_record() -> list[Row]:
    """This release's connections, without answers."""
    return [{"port": port, "note": note, "sent": sent.hex()} for port, note, sent in _connections()]


def _connections() -> Iterator[tuple[str, str, bytes]]:
    handshake = handshake_pb2.Handshake(release=RELEASE, capabilities=CAPABILITIES)
    hello = PREFACE + _frame(Kind.HELLO, native_pb2.Hello(client_id="golden", handshake=handshake))
    yield "native", "a greeting", hello
    batch = encode_batch([b"golden"], base_timestamp_ms=1_700_000_000_000)
    topic = topics_pb2.TopicRef(name=TOPIC)
    produce = broker_pb2.ProduceRequest(client_id="golden", acks=broker_pb2.ACKS_ALL, timeout_ms=10_000)
    produce.topics.add(topic=topic).partitions.add(partition=0, batch_sizes=[len(batch)])
    yield "native", "a batch", hello + _request(MethodCode.PRODUCE, produce, batch)
    fetch = broker_pb2.FetchRequest(client_id="golden", max_wait_ms=0, min_bytes=1, max_bytes=1 << 20)
    fetch.topics.add(topic=topic).partitions.add(partition=0, offset=0, max_bytes=1 << 20)
    yield "native", "the batch again", hello + _request(MethodCode.FETCH, fetch)
    offsets = broker_pb2.ListOffsetsRequest(client_id="golden")
    offsets.topics.add(topic=topic).partitions.add(partition=0, spec=broker_pb2.OFFSET_SPEC_LATEST)
    listing = _request(MethodCode.LIST_OFFSETS, offsets)
    yield "native", "offsets", hello + listing
    yield "native", "a cancellation of nothing, then offsets", hello + frame_head(Kind.CANCEL, correlation=9) + listing
    yield "native", "a method that is not served", hello + _request(99, offsets)
    unknown = native_pb2.Hello(client_id="golden", handshake=handshake, session="hr1.golden")
    yield "native", "a greeting with an unknown session", PREFACE + _frame(Kind.HELLO, unknown)
    unknown_session = frame_head(Kind.SESSION, b"hr1.golden")
    yield "native", "an unknown session, then offsets", hello + unknown_session + listing
    stranger = replication_pb2.FollowerIdentity(
        cluster_id=CLUSTER_ID, generation=1, broker_id=4_711, broker_epoch=1 << 60, handshake=handshake
    )
    for note, request in (
        ("a follower of another cluster", replication_pb2.ReplicaFetchRequest(follower=stranger)),
        ("a follower without a name", replication_pb2.ReplicaFetchRequest()),
    ):
        yield "replication", note, hello + _frame(Kind.MESSAGE, request, method=MethodCode.REPLICA_FETCH, correlation=1)


def _frame(kind: Kind, message: Message, **fields: int) -> bytes:
    return frame_head(kind, message.SerializeToString(deterministic=True), **fields)


def _request(method: int, message: Message, batch: bytes = b"") -> bytes:
    data = message.SerializeToString(deterministic=True)
    fields = {"correlation": 1, "timeout_ms": 20_000, "attached": len(batch)}
    return frame_head(Kind.REQUEST, data, method=method, request_id=b"golden", **fields) + batch


def play_frames(cluster: LocalCluster, rows: list[Row]) -> list[list[Row]]:
    """Send each row on a connection; return the frames that answer it."""
    with headrace.Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.create_topic(TOPIC, 1, replication_factor=1)
    with headrace.Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        producer.send(TOPIC, b"first").result(timeout=SECONDS)  # The broker leads now.
    ready = json.loads(cluster.broker(1).ready_file.read_text())
    return [_converse(ready[f"{row['port']}_address"], bytes.fromhex(row["sent"])) for row in rows]


def _converse(address: str, sent: bytes) -> list[Row]:
    """Send, end the sending side, and read all frames."""
    host, _, port = address.rpartition(":")
    reader, answers = FrameReader(SERVER_KINDS | LEADER_KINDS, lambda _: True), list[Row]()
    with closing(socket.create_connection((host, int(port)), timeout=SECONDS)) as connection:
        connection.sendall(sent)
        while not _is_last(sent, answers):
            size = connection.recv_into(reader.buffer())
            if size == 0:
                break
            reader.received(size)
            while (frame := reader.next_frame()) is not None:
                answers.append(_describe(frame))
    return answers


def _is_last(sent: bytes, answers: list[Row]) -> bool:
    """Whether the last frame answers what was sent: the greeting, or the request behind it."""
    greeting = len(PREFACE) + 28 + int.from_bytes(sent[len(PREFACE) : len(PREFACE) + 4], "little")
    last = "WELCOME" if len(sent) == greeting else "ANSWER"
    return bool(answers) and answers[-1]["kind"] in (last, "ERROR")


def _describe(frame: Frame) -> Row:
    kind = Kind(frame.header.kind)
    row: Row = {"kind": kind.name, "correlation": frame.header.correlation, "attached": len(frame.attachments) > 0}
    if kind is Kind.ERROR:
        detail = errors_pb2.ErrorDetail.FromString(frame.message)
        row["code"] = errors_pb2.ErrorCode.Name(detail.code).removeprefix("ERROR_CODE_")
    elif kind is Kind.WELCOME:
        row |= describe([native_pb2.Welcome.FromString(frame.message)])
    elif frame.header.method in ANSWERS:
        row |= describe([ANSWERS[frame.header.method].FromString(frame.message)])
    return row


def record_frames() -> Path:
    """Play this release's frames to a cluster and write down what it answers."""
    rows = frames_to_record()
    with LocalCluster(SPEC) as cluster:
        for row, answers in zip(rows, play_frames(cluster, rows), strict=True):
            row["answers"] = answers
    path = recorded_frames(RELEASE)
    path.write_text(json.dumps(rows, indent=1) + "\n")
    return path
