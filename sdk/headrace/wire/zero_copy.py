"""Produce and Fetch messages whose batches are not copied: the same bytes as by the generated code, with fewer copies.

protobuf copies a `bytes` field when it parses a message and again when the field is read, and twice more when one is
written. For the messages that carry batches, a `SplicedMessage` keeps the rest of the message as protobuf and the
batches apart: parsed, they are views into the received bytes; written, they are joined once. The wire format is the
same, so peers may use the generated code.

The fields are `topics.partitions.batches` of `ProduceRequest` and `FetchResponse`; their numbers are looked up in the
descriptors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, Protocol, TypeAlias

from google.protobuf.message import DecodeError

from headrace.v1 import broker_pb2
from headrace.wire.crc import ReadableBuffer
from headrace.wire.errors import InvalidRequestError
from headrace.wire.varint import encode_varint

Buffers: TypeAlias = list[ReadableBuffer]

SMALL_BYTES = 32 * 1024
"""Size below which protobuf's copies of a message cost less than the search for the fields."""
SMALL_BATCH_BYTES = 2 * 1024
"""Size below which protobuf's copies of a batch cost less than the search for it, or than writing its head."""
_LOOKED_AT = 8
"""Number of batches of a partition after which their size is evaluated."""
MAX_PROTOBUF_BYTES = 1 << 20
"""Maximum size of a request that protobuf alone parses: 1 MiB of empty messages costs 20 ms and 28 MiB."""
MAX_FIELDS = 20_000
"""Maximum number of fields examined in a larger request."""
MAX_FIELDS_BEFORE_PROTOBUF = 4_000
"""Maximum number of fields examined in a smaller request, before protobuf parses it."""
MAX_FIELDS_OF_ANSWER = 200_000
"""Maximum number of fields of a response examined before protobuf parses all: 10,000 partitions have half of it."""
MAX_REST_BYTES = 2 << 20
"""Maximum bytes of a larger request besides its batches."""

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5


class Sized(Protocol):
    """Placeholder for batches that are sent separately."""

    def __len__(self) -> int:
        """Return their size in bytes."""


class BufferVector:
    """Batch, or several consecutive ones, in consecutive buffers that are joined when a message is written."""

    __slots__ = ("parts", "size_bytes", "sizes")

    def __init__(self, parts: Sequence[ReadableBuffer], sizes: Sequence[int] | None = None) -> None:
        """`sizes` are the bytes of each batch if there are several."""
        self.parts = parts
        self.size_bytes = sum(map(len, parts))
        self.sizes = (self.size_bytes,) if sizes is None else sizes

    def batches(self) -> list[BufferVector]:
        """Return each batch separately."""
        if len(self.sizes) == 1:
            return [self]
        whole = memoryview(self.parts[0] if len(self.parts) == 1 else bytes(self))
        ends = accumulate(self.sizes)
        return [BufferVector([whole[end - size : end]]) for size, end in zip(self.sizes, ends, strict=True)]

    def __len__(self) -> int:
        return self.size_bytes

    def __bytes__(self) -> bytes:
        return b"".join(self.parts)


class SplicedMessage:
    """Message without its batches, and the batches: one list per partition, in the message's order."""

    __slots__ = ("batches", "message")

    def __init__(self, message: Any, batches: list[Buffers]) -> None:
        self.message = message
        self.batches = batches


class _Fields:
    """Number of fields that may still be read."""

    __slots__ = ("is_protobuf_faster", "left")

    def __init__(self, left: int, *, is_protobuf_faster: bool = True) -> None:
        """`is_protobuf_faster` stops the search if batches turn out to be small, because protobuf may parse them."""
        self.left = left
        self.is_protobuf_faster = is_protobuf_faster


class BatchCarrier:
    """Reads and writes one message type that carries batches, as `SplicedMessage`s."""

    def __init__(self, message_type: Any) -> None:
        """`message_type` has its batches in the field `topics.partitions.batches`."""
        self._message_type = message_type
        topics = message_type.DESCRIPTOR.fields_by_name["topics"]
        partitions = topics.message_type.fields_by_name["partitions"]
        batches = partitions.message_type.fields_by_name["batches"]
        self._is_repeated = not isinstance(message_type().topics.add().partitions.add().batches, bytes)
        self._path = (topics.number, partitions.number, batches.number)

    def parse(self, data: ReadableBuffer, fields: _Fields | None = None) -> SplicedMessage:
        """Parse a message; a partition has one buffer for each value of the field.

        `fields` bounds the fields examined before protobuf parses all; `None` means the bound of a response.

        Raises:
            google.protobuf.message.DecodeError: If `data` is no such message.
        """
        if len(data) >= SMALL_BYTES:
            lifted = _lift_all(data, self._path, fields or _Fields(MAX_FIELDS_OF_ANSWER))
            if lifted is not None:
                return SplicedMessage(self._message_type.FromString(lifted[0]), lifted[1])
        message = self._message_type.FromString(bytes(data))
        batches: list[Buffers] = []
        if fields is not None:
            _check_parts(message.topics)
        for topic in message.topics:
            for part in topic.partitions:
                batches.append(list(part.batches) if self._is_repeated else [part.batches])
                part.ClearField("batches")
        return SplicedMessage(message, batches)

    def parse_untrusted(self, data: ReadableBuffer) -> SplicedMessage:
        """Parse a message of an untrusted sender, at a cost bounded by its batches' bytes.

        Raises:
            google.protobuf.message.DecodeError: If `data` is no such message.
            InvalidRequestError: If it has too many fields, or too many bytes besides its batches.
        """
        if len(data) <= MAX_PROTOBUF_BYTES:
            return self.parse(data, _Fields(MAX_FIELDS_BEFORE_PROTOBUF))
        lifted: list[Buffers] = []
        fields = _Fields(MAX_FIELDS, is_protobuf_faster=False)
        try:
            rest = b"".join(_lift(memoryview(data), self._path, lifted, fields))
        except (IndexError, ValueError) as error:
            if fields.left < 0:
                raise _too_many_fields() from error
            raise DecodeError(f"no {self._message_type.DESCRIPTOR.name}: {error}") from error
        if len(rest) > MAX_REST_BYTES:
            raise InvalidRequestError(
                f"the request has {len(rest)} bytes besides its batches, more than {MAX_REST_BYTES}",
                action="Send fewer records in one request, or send them as batches.",
            )
        return SplicedMessage(self._message_type.FromString(rest), lifted)

    def write(self, spliced: SplicedMessage) -> bytes:
        """Write a message."""
        return self.write_with(spliced.message, spliced.batches)

    def write_with(self, message: Any, batches: Sequence[Sequence[ReadableBuffer | BufferVector]]) -> bytes:
        """Write a message that is not in a `SplicedMessage`."""
        if self._is_repeated and _are_small(batches):
            parts = [part for topic in message.topics for part in topic.partitions]
            for part, found in zip(parts, batches, strict=True):
                part.batches.extend(map(bytes, found))
            data: bytes = message.SerializeToString()
            for part in parts:
                part.ClearField("batches")
            return data
        if not any(len(each) for found in batches for each in found):
            whole: bytes = message.SerializeToString()
            return whole
        return b"".join(self.buffers(message, batches)[0])

    def buffers(self, message: Any, batches: Sequence[Sequence[Any]]) -> tuple[list[Any], int]:
        """Return the buffers of a message, in order, and its size in bytes; only the length of `batches` is used."""
        return _embed(memoryview(message.SerializeToString()), self._path, iter(batches))


_PRODUCE = BatchCarrier(broker_pb2.ProduceRequest)
_FETCH = BatchCarrier(broker_pb2.FetchResponse)


def parse_produce_request(data: bytes) -> SplicedMessage:
    """Parse a ProduceRequest.

    Raises:
        google.protobuf.message.DecodeError: If `data` is no such message.
        InvalidRequestError: If it has too many fields, or too many bytes besides its batches.
    """
    return _PRODUCE.parse_untrusted(data)


def parse_fetch_response(data: ReadableBuffer) -> SplicedMessage:
    """Parse a FetchResponse; each partition has one buffer, empty if it has no batches.

    Raises:
        google.protobuf.message.DecodeError: If `data` is no such message.
    """
    spliced = _FETCH.parse(data)
    spliced.batches = [found[-1:] or [b""] for found in spliced.batches]
    return spliced


def produce_request_bytes(
    message: broker_pb2.ProduceRequest, batches: Sequence[Sequence[ReadableBuffer | BufferVector]]
) -> bytes:
    """Write a ProduceRequest with these batches, one list per partition."""
    return _PRODUCE.write_with(message, batches)


def serialize_produce(spliced: SplicedMessage) -> bytes:
    """Write a ProduceRequest."""
    return _PRODUCE.write(spliced)


def fetch_response_bytes(spliced: SplicedMessage) -> bytes:
    """Write a FetchResponse."""
    return _FETCH.write(spliced)


def fetch_response_buffers(
    message: broker_pb2.FetchResponse, batches: Sequence[Sequence[Sized]]
) -> tuple[list[Any], int]:
    """Return the bytes of a FetchResponse with the buffers of its batches in their places, and the size in bytes."""
    return _FETCH.buffers(message, batches)


def _check_parts(topics: Any) -> None:
    """Raise an error if there are more than `MAX_FIELDS` topics, partitions and batches; stop counting there."""
    count = len(topics)
    if count <= MAX_FIELDS:
        for topic in topics:
            count += len(topic.partitions)
            if count > MAX_FIELDS:
                break
            count += sum(len(part.batches) for part in topic.partitions)
    if count > MAX_FIELDS:
        raise _too_many_fields()


def _too_many_fields() -> InvalidRequestError:
    return InvalidRequestError(
        f"the request has more than {MAX_FIELDS} fields",
        action="Send fewer partitions and batches in one request, or larger batches.",
    )


def _are_small(batches: Sequence[Sequence[ReadableBuffer | BufferVector]]) -> bool:
    count = sum(map(len, batches))
    return count >= _LOOKED_AT and sum(len(each) for found in batches for each in found) < count * SMALL_BATCH_BYTES


def _lift_all(data: ReadableBuffer, path: tuple[int, ...], fields: _Fields) -> tuple[bytes, list[Buffers]] | None:
    """Split a message into the rest and the fields at `path`; `None` if protobuf must parse it."""
    lifted: list[Buffers] = []
    try:
        return b"".join(_lift(memoryview(data), path, lifted, fields)), lifted
    except (IndexError, ValueError):
        return None  # protobuf then reports the error, if there is one.


def _lift(view: memoryview, path: tuple[int, ...], lifted: list[Buffers], fields: _Fields) -> list[ReadableBuffer]:
    """Return the buffers of one message without the fields at `path`, which are appended to `lifted`."""
    buffers: list[ReadableBuffer] = []
    position = kept = 0
    while position < len(view):
        fields.left -= 1
        if fields.left < 0:
            raise ValueError("too many fields")
        start = position
        tag, position = _read_varint(view, position)
        kind = tag & 7
        if kind == _LENGTH:
            size, position = _read_varint(view, position)
            end = position + size
            if tag >> 3 == path[0]:
                buffers.append(view[kept:start])
                kept = end
                if len(path) == 1:
                    lifted[-1].append(view[position:end])
                    if (
                        fields.is_protobuf_faster
                        and len(lifted[-1]) == _LOOKED_AT
                        and end < _LOOKED_AT * SMALL_BATCH_BYTES
                    ):
                        raise ValueError("batches so small that protobuf is faster")
                else:
                    if len(path) == 2:
                        lifted.append([])
                    inner = b"".join(_lift(view[position:end], path[1:], lifted, fields))
                    buffers += (view[start : start + _varint_bytes(tag)], encode_varint(len(inner)), inner)
            position = end
        elif kind == _VARINT:
            _, position = _read_varint(view, position)
        elif kind in (_FIXED32, _FIXED64):
            position += 4 if kind == _FIXED32 else 8
        else:
            raise ValueError(f"wire type {kind}")
        if position > len(view):
            raise ValueError("a field goes past the end")
    buffers.append(view[kept:])
    return buffers


def _embed(view: memoryview, path: tuple[int, ...], batches: Iterator[Sequence[Any]]) -> tuple[list[Any], int]:
    """Return the buffers of one message with the batches in their places, and their size in bytes."""
    if len(path) == 1:
        buffers: list[Any] = [view]
        size = len(view)
        tag = encode_varint(path[0] << 3 | _LENGTH)
        for batch in next(batches):
            if len(batch):
                head = tag + encode_varint(len(batch))
                buffers += (head, *batch.parts) if isinstance(batch, BufferVector) else (head, batch)
                size += len(head) + len(batch)
        return buffers, size
    buffers, size = [], 0
    position = 0
    while position < len(view):
        start = position
        tag_number, position = _read_varint(view, position)
        kind = tag_number & 7
        if kind == _LENGTH:
            length, position = _read_varint(view, position)
            end = position + length
            if tag_number >> 3 == path[0]:
                inner, inner_size = _embed(view[position:end], path[1:], batches)
                head = bytes(view[start : start + _varint_bytes(tag_number)]) + encode_varint(inner_size)
                buffers += (head, *inner)
                size += len(head) + inner_size
                position = end
                continue
            position = end
        elif kind == _VARINT:
            _, position = _read_varint(view, position)
        else:
            position += 4 if kind == _FIXED32 else 8
        buffers.append(view[start:position])
        size += position - start
    return buffers, size


def _read_varint(view: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = view[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 63:
            raise ValueError("a varint of more than ten bytes")


def _varint_bytes(value: int) -> int:
    return max(1, (value.bit_length() + 6) // 7)
