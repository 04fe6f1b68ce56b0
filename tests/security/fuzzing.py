"""Requests that no client sends, for every method of every listener: drawn by a seed from the descriptors.

A request is made of random fields with values that are likely to be wrong, or of one of the floods, or is such a
message with bytes changed, cut off or put in between, or is no message at all. Names come from a few, so that calls
meet what earlier ones made; nothing drawn drains a broker or creates more than a few partitions.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from google.protobuf import descriptor_pool
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from headrace.client.net.native_calls import NativeCalls
from headrace.v1 import broker_pb2, cluster_pb2, groups_pb2, process_pb2, topics_pb2
from headrace.wire.encoding import encode_batch
from headrace.wire.frames import HEADER, MAX_FRAME_BYTES, Header, Kind, MethodCode
from headrace_server.internal_v1 import replication_pb2
from headrace_server.methods import METHODS

DESCRIBED = (health_pb2, reflection_pb2, broker_pb2, cluster_pb2, groups_pb2, process_pb2)
"""Importing them puts their services into the pool."""

NAMES = (
    "fuzz-a",
    "fuzz-b",
    "fuzz-c",
    "",
    ".",
    "..",
    "../../etc/passwd",
    "a\0b",
    "\u202eevil",
    "\x1b[2J",
    "x" * 300,
    "\U0001f600",
)
INTEGERS = (0, 1, 2, 3, -1, -2, 7, 127, 128, 255, 256, 1_000, 2**15, 2**31 - 1, -(2**31))
LONGS = (*INTEGERS, 2**31, 2**53, 2**62, 2**63 - 1, -(2**63))
IDS = (b"", b"0" * 16, b"1" * 16, b"x", b"y" * 17, bytes(16))
DEPTH = 5
LIES: dict[str, tuple[int, ...]] = {
    "size": (0, 1, 5, 2**20, 2**25 + 1, MAX_FRAME_BYTES, MAX_FRAME_BYTES + 1, 2**32 - 1),
    "kind": (0, *Kind, 99),
    "method": (0, 4, 255),
    "flags": (1, 2, 2**16 - 1),
    "correlation": (0, 1, 2**64 - 1),
    "message_size": (0, 1, 2**20, 2**32 - 1),
    "timeout_ms": (0, 2**32 - 1),
    "request_id_size": (0, 64, 65, 2**16 - 1),
    "reserved": (1, 2**16 - 1),
}
"""Values of a header's field that its frame does not have."""


def methods(service: str) -> list[str]:
    """The rows of one service, as paths of calls."""
    return [path for path in METHODS if path.startswith(f"/{service}/")]


def request_type(path: str) -> Descriptor:
    """What one method takes."""
    service, _, name = path[1:].partition("/")
    return descriptor_pool.Default().FindServiceByName(service).FindMethodByName(name).input_type


class Fuzz:
    """Draws requests. The same seed draws the same ones."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._batch = encode_batch([b"value"] * 3, base_timestamp_ms=1)

    def call(self, paths: list[str]) -> tuple[str, bytes]:
        """A method of these and the bytes to send to it."""
        path = self._random.choice(paths)
        return path, self.request(path)

    def request(self, path: str) -> bytes:
        """The bytes of a request of one method."""
        message_type = request_type(path)
        kind = self._random.random()
        if kind < 0.05:
            return self._random.randbytes(self._random.choice((0, 1, 2, 10, 1_000, 100_000)))
        if kind < 0.08:
            return self._flood(message_type)
        data = self.message(message_type).SerializeToString()
        return self.mutate(data) if kind < 0.4 else data

    def connections(self, count: int, *, are_streams: bool = False) -> Iterator[bytes]:
        """What is sent at a port of the native protocol, connection by connection; `are_streams`: at the followers'."""
        frame = self.stream_frame if are_streams else self.request_frame
        greeting = NativeCalls("", "fuzz").greeting()
        for _ in range(count):
            kind = self._random.random()
            if kind < 0.1:
                yield self._random.randbytes(self._random.choice((1, 8, 30, 1_000)))
            elif kind < 0.2:
                yield self.mutate(greeting) + frame(1)
            else:
                frames = b"".join(frame(number) for number in range(1, self._random.choice((2, 4, 80))))
                yield greeting + self.mutate(frames, 0.2)

    def request_frame(self, number: int, lies: float = 0.2) -> bytes:
        """A request, or what passes for one: this share of headers contradicts what follows."""
        draw = self._random
        names = {
            MethodCode.PRODUCE: "BrokerService/Produce",
            MethodCode.FETCH: "BrokerService/Fetch",
            MethodCode.LIST_OFFSETS: "BrokerService/ListOffsets",
            MethodCode.GET_ROWS: "TableService/GetRows",
            MethodCode.WRITE_ROW: "TableService/WriteRow",
        }
        method, attached = draw.choice(list(names)), b""
        message = self.request(f"/headrace.v1.{names[method]}")
        if method is MethodCode.PRODUCE and draw.random() < 0.7:
            message, attached = self._produce()
        header = Header(
            size=6 + len(message) + len(attached),
            kind=Kind.REQUEST,
            method=method,
            correlation=number,
            message_size=len(message),
            timeout_ms=draw.choice((1, 100, 2_000)),
            request_id_size=6,
        )
        return (
            HEADER.pack(*self.lie(header, lies)) + draw.choice((b"abcdef", b"\xff\x00\n\r\x1b~")) + message + attached
        )

    def stream_frame(self, number: int, lies: float = 0.2) -> bytes:
        """A follower's message, or what passes for one: this share of headers contradicts what follows."""
        message = self.message(replication_pb2.ReplicaFetchRequest.DESCRIPTOR).SerializeToString()
        header = Header(len(message), Kind.MESSAGE, MethodCode.REPLICA_FETCH, 0, number, len(message))
        return HEADER.pack(*self.lie(header, lies)) + self.mutate(message, 0.2)

    def lie(self, header: Header, share: float = 1.0) -> Header:
        """A header, this share of the time with a field that is not as what follows it."""
        draw = self._random
        if draw.random() > share:
            return header
        field = draw.choice(Header._fields)
        return header._replace(**{field: draw.choice(LIES[field])})

    def _produce(self) -> tuple[bytes, bytes]:
        """A ProduceRequest and its batches, whose sizes it may get wrong."""
        draw, batches = self._random, list[bytes]()
        request = broker_pb2.ProduceRequest(acks=draw.choice((1, 2, 3)), timeout_ms=100)
        for name in draw.sample(NAMES, 2):
            partition = request.topics.add(topic=topics_pb2.TopicRef(name=name)).partitions.add()
            for _ in range(draw.choice((0, 1, 3))):
                batches.append(draw.choice((b"", self._batch, self.mutate(self._batch), draw.randbytes(20_000))))
                lie = draw.choice((0, 1, 2**31, 2**32 - 1))
                partition.batch_sizes.append(len(batches[-1]) if draw.random() < 0.9 else lie)
        return request.SerializeToString(), b"".join(batches)

    def heads(self, count: int) -> Iterator[bytes]:
        """What is sent at the HTTP port, connection by connection."""
        paths = (
            "/metrics",
            "/metrics/detail",
            "/health/liveness",
            "/health/",
            "/../..",
            "//",
            "*",
            "/\x00",
            "/" + "x" * 9_000,
        )
        for _ in range(count):
            method = self._random.choice(("GET", "HEAD", "POST", "", "G\0T", "PRI"))
            query = self._random.choice(("", "?name[]=x", "?" + "a&" * 500, "?%ff%zz"))
            lines = [f"{method} {self._random.choice(paths)}{query} HTTP/1.1"]
            lines += [f"accept: {self._random.choice(NAMES)}"] * self._random.choice((0, 1, 3, 300))
            yield self.mutate("\r\n".join((*lines, "", "")).encode(errors="replace"), 0.3) + b"\r\n\r\n"

    # --- messages ---

    def message(self, message_type: Descriptor, depth: int = DEPTH) -> Message:
        """A message of random fields."""
        message = GetMessageClass(message_type)()
        for field in message_type.fields:
            if field.is_repeated:
                self._fill(message, field, depth)
            elif field.message_type is not None:
                if depth and self._random.random() < 0.7:
                    getattr(message, field.name).CopyFrom(self.message(field.message_type, depth - 1))
            elif self._random.random() < 0.7:
                setattr(message, field.name, self._scalar(field))
        return message

    def _fill(self, message: Message, field: FieldDescriptor, depth: int) -> None:
        repeated = getattr(message, field.name)
        count = self._random.choice((0, 1, 1, 2, 3, 20)) if depth else 0
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            key, value = field.message_type.fields
            for _ in range(count):
                repeated[self._scalar(key)] = self._scalar(value)
        elif field.message_type is not None:
            repeated.extend(self.message(field.message_type, depth - 1) for _ in range(min(count, 3)))
        else:
            repeated.extend(self._scalar(field) for _ in range(count))

    def _scalar(self, field: FieldDescriptor):
        draw = self._random
        match field.cpp_type:
            case FieldDescriptor.CPPTYPE_STRING if field.type == FieldDescriptor.TYPE_BYTES:
                if field.name == "batches":
                    return draw.choice((b"", self._batch, self.mutate(self._batch), draw.randbytes(200)))
                return draw.choice((*IDS, draw.randbytes(16)))
            case FieldDescriptor.CPPTYPE_STRING:
                return draw.choice(NAMES)
            case FieldDescriptor.CPPTYPE_BOOL:
                return draw.random() < 0.5
            case FieldDescriptor.CPPTYPE_ENUM:
                return draw.choice((0, 1, 2, 3, 4, 99, -1))
            case FieldDescriptor.CPPTYPE_DOUBLE | FieldDescriptor.CPPTYPE_FLOAT:
                return draw.choice((0.0, -1.0, float("nan"), float("inf")))
            case FieldDescriptor.CPPTYPE_UINT32 | FieldDescriptor.CPPTYPE_UINT64:
                return draw.choice((0, 1, 2**31, 2**32 - 1))
            case FieldDescriptor.CPPTYPE_INT64:
                return draw.choice(LONGS)
        if field.name == "broker_id":
            return draw.choice((0, -1, 7, 2**31 - 1))
        return draw.choice(INTEGERS)

    # --- bytes ---

    def _flood(self, message_type: Descriptor) -> bytes:
        """One field again and again, empty."""
        if not message_type.fields:
            return b""
        field = self._random.choice(list(message_type.fields))
        count = self._random.choice((10, 1_000, 30_000, 500_000))
        return bytes([(field.number << 3 | 2) & 0x7F, 0]) * count

    def mutate(self, data: bytes, share: float = 1.0) -> bytes:
        """The bytes, this share of the time with some changed, cut off or put in between."""
        draw = self._random
        if not data or draw.random() > share:
            return data
        changed = bytearray(data)
        match draw.randrange(4):
            case 0:
                for _ in range(draw.randint(1, 5)):
                    changed[draw.randrange(len(changed))] = draw.randrange(256)
            case 1:
                del changed[draw.randrange(len(changed)) :]
            case 2:
                at = draw.randrange(len(changed))
                changed[at:at] = draw.randbytes(draw.randint(1, 30))
            case 3:
                changed += changed[draw.randrange(len(changed)) :] * draw.randint(1, 3)
        return bytes(changed)
