"""Messages of the native protocol with their batches as attachments, without a copy on either side. Pure.

The fields with the sizes of attachments are in the order of the attachments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.v1 import broker_pb2
from headrace.wire.crc import ReadableBuffer
from headrace.wire.errors import InvalidRequestError
from headrace.wire.zero_copy import BufferVector, SplicedMessage


def attach_batches(
    message: broker_pb2.ProduceRequest, batches: Sequence[Sequence[BufferVector]]
) -> list[ReadableBuffer]:
    """Set the sizes of a request's batches, a list per partition; return the attachments in order."""
    attached: list[ReadableBuffer] = []
    in_order = iter(batches)
    for topic in message.topics:
        for part in topic.partitions:
            for batch in next(in_order):
                part.batch_sizes.extend(batch.sizes)
                attached += batch.parts
    return attached


def splice_produce(request: broker_pb2.ProduceRequest, attached: memoryview) -> SplicedMessage:
    """Attach the batches of a frame to its request, as views.

    Raises:
        InvalidRequestError: If the sizes are not those of the attachments.
    """
    batches: list[list[ReadableBuffer]] = []
    position, end = 0, len(attached)
    for topic in request.topics:
        for part in topic.partitions:
            if part.batches:
                raise InvalidRequestError(
                    "a request of the native protocol carries batches in its message",
                    action="Attach them to the frame.",
                )
            found: list[ReadableBuffer] = []
            for size in part.batch_sizes:
                found.append(attached[position : position + size])
                position += size
            batches.append(found)
    if position != end:
        raise InvalidRequestError(
            f"the request names batches of {position} bytes, and {end} bytes are attached",
            action="Name the size of every attached batch, in order.",
        )
    return SplicedMessage(request, batches)


def splice_fetch(response: Any, attached: memoryview) -> SplicedMessage:
    """Attach the batches of a frame to its response: one view per partition, empty if there are none.

    Raises:
        ValueError: If the sizes are not those of the attachments.
    """
    batches: list[list[ReadableBuffer]] = []
    position = 0
    for topic in response.topics:
        for part in topic.partitions:
            batches.append([attached[position : position + part.batches_size]])
            position += part.batches_size
    if position != len(attached):
        raise ValueError(f"the answer names {position} bytes of batches, and {len(attached)} are attached")
    return SplicedMessage(response, batches)
