"""Wire format of Produce: requests from sealed batches, responses by partition, errors of calls. Pure."""

import logging

from headrace.client.base.config import ProducerConfig
from headrace.client.net.bootstrap_client import error_of_call
from headrace.client.net.native_calls import NativeRequest
from headrace.client.producer.partition_queue import PartitionResponse, Request, RequestPart
from headrace.v1 import broker_pb2, topics_pb2
from headrace.wire.attachments import attach_batches
from headrace.wire.errors import HeadraceError, InternalError, Outcome, TimedOutError, from_detail, rpc_failures
from headrace.wire.frames import Frame, MethodCode
from headrace.wire.ids import TopicPartition
from headrace.wire.zero_copy import BufferVector, produce_request_bytes

_log = logging.getLogger("headrace.client")

_ACKS: dict[str, broker_pb2.Acks] = {
    "0": broker_pb2.ACKS_NONE,
    "1": broker_pb2.ACKS_LEADER,
    "all": broker_pb2.ACKS_ALL,
}

GRACE_MS = 1_000
"""Time by which the call's deadline exceeds the broker's, so that the broker's own response arrives."""


def produce_request(
    request: Request, config: ProducerConfig
) -> tuple[broker_pb2.ProduceRequest, list[list[BufferVector]]]:
    """Return a ProduceRequest without its batches, with topic ids; and the batches of each partition, some together."""
    by_topic: dict[bytes, list[RequestPart]] = {}
    for part in request.parts:
        by_topic.setdefault(part.partition_queue.topic_id, []).append(part)
    message = broker_pb2.ProduceRequest(
        client_id=config.client_id, acks=_ACKS[config.acks_level], timeout_ms=request.timeout_ms
    )
    batches: list[list[BufferVector]] = []
    for topic_id, parts in by_topic.items():
        topic = message.topics.add(topic=topics_pb2.TopicRef(topic_id=topic_id))
        for partition_queue, leader_epoch, sealed in parts:
            topic.partitions.add(partition=partition_queue.where.partition, leader_epoch=leader_epoch)
            batches.append([encoded for batch in sealed for encoded in batch.encoded or ()])
    return message, batches


def native_produce_request(request: Request, config: ProducerConfig) -> NativeRequest:
    """Return a request for the native protocol; batches are not copied."""
    message, batches = produce_request(request, config)
    attached = attach_batches(message, batches)
    timeout = (request.timeout_ms + GRACE_MS) / 1000
    return NativeRequest(MethodCode.PRODUCE, message.SerializeToString(), attached, timeout, request.request_id)


def grpc_produce_request(request: Request, config: ProducerConfig) -> bytes:
    """Return a serialised ProduceRequest; the bytes of the batches are copied once."""
    message, batches = produce_request(request, config)
    separate = [[batch for vector in found for batch in vector.batches()] for found in batches]
    return produce_request_bytes(message, separate)


def parse_produced(frame: Frame) -> broker_pb2.ProduceResponse:
    """Parse the response of the native protocol."""
    return broker_pb2.ProduceResponse.FromString(frame.message)


def answers_of(
    request: Request, response: broker_pb2.ProduceResponse, config: ProducerConfig
) -> list[PartitionResponse]:
    """Return one entry per part of the request from its response.

    With acks=0 the broker responds before it appends, without parts: they count as appended. Otherwise a part that is
    missing in the response has an unknown outcome.
    """
    found: dict[tuple[bytes, int], PartitionResponse] = {}
    for topic in response.topics:
        for part in topic.partitions:
            error = None
            if part.HasField("error"):
                error = from_detail(part.error)
                error.request_id = request.request_id
            found[topic.topic_id, part.partition] = PartitionResponse(
                tuple(part.base_offsets), error, part.repeated_batches
            )
    answers = []
    for sent in request.parts:
        answer = found.get((sent.partition_queue.topic_id, sent.partition_queue.where.partition))
        if answer is None:
            answer = PartitionResponse(
                (), None if config.acks_level == "0" else _unanswered(sent.partition_queue.where)
            )
        answers.append(answer)
    return answers


def error_of(error: BaseException) -> HeadraceError:
    """Return the typed error of a Produce call that failed or was cancelled by its producer."""
    if isinstance(error, rpc_failures()):
        return error_of_call(error)
    if isinstance(error, HeadraceError) or type(error).__name__ == "FutureCancelledError":
        return cancelled_call()
    _log.error("a response could not be processed", exc_info=error)
    return InternalError(repr(error), outcome=Outcome.UNKNOWN)


def cancelled_call() -> HeadraceError:
    """Return the error of a call that its producer has cancelled; not raised."""
    return TimedOutError("the call was cancelled", outcome=Outcome.UNKNOWN, retriable=False)


def _unanswered(where: TopicPartition) -> HeadraceError:
    return InternalError(f"the response has no result for {where}", outcome=Outcome.UNKNOWN, retriable=True)
