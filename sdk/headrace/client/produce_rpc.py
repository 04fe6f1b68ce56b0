"""Produce on the wire: requests from sealed batches, answers by partition. Pure, shared by both shells."""

from google.protobuf.message import Message

from headrace.client.config import ProducerConfig
from headrace.client.inflight import Answer, Request
from headrace.v1 import broker_pb2, topics_pb2
from headrace.wire.errors import HeadraceError, InternalError, Outcome, from_detail
from headrace.wire.ids import TopicPartition

_ACKS: dict[str, broker_pb2.Acks] = {
    "0": broker_pb2.ACKS_NONE,
    "1": broker_pb2.ACKS_LEADER,
    "all": broker_pb2.ACKS_ALL,
}

GRACE_MS = 1_000
"""How much longer the call's deadline is than what the broker is given, so that its own answer arrives."""


def produce_request(request: Request, config: ProducerConfig) -> bytes:
    """Write a serialised ProduceRequest; topics are named by id.

    Protobuf would copy each batch into a message and again into the request. Here the small parts are protobuf's, and the
    batches are joined between them in their encoding (length-delimited fields), copied once.
    """
    topics: dict[bytes, list[list[bytes]]] = {}
    for pipeline, leader_epoch, batches in request.parts:
        head = broker_pb2.PartitionProduce(partition=pipeline.where.partition, leader_epoch=leader_epoch)
        pieces = [head.SerializeToString()]
        for batch in batches:
            assert batch.encoded is not None
            pieces += (_TAG_BATCHES, _varint(len(batch.encoded)), batch.encoded)
        topics.setdefault(pipeline.topic_id, []).append(pieces)
    message = broker_pb2.ProduceRequest(
        client_id=config.client_id, acks=_ACKS[config.acks_level], timeout_ms=request.timeout_ms
    )
    out = [message.SerializeToString()]
    for topic_id, parts in topics.items():
        topic = broker_pb2.TopicProduce(topic=topics_pb2.TopicRef(topic_id=topic_id))
        body = [topic.SerializeToString()]
        for pieces in parts:
            body += (_TAG_PARTITIONS, _varint(_size(pieces)), *pieces)
        out += (_TAG_TOPICS, _varint(_size(body)), *body)
    return b"".join(out)


def _size(pieces: list[bytes]) -> int:
    return sum(map(len, pieces))


def _varint(number: int) -> bytes:
    """Encode as protobuf's base-128 varint; `number` is not negative."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _tag(message: type[Message], field: str) -> bytes:
    """Give the tag of a length-delimited field."""
    return _varint(message.DESCRIPTOR.fields_by_name[field].number << 3 | 2)


_TAG_TOPICS = _tag(broker_pb2.ProduceRequest, "topics")
_TAG_PARTITIONS = _tag(broker_pb2.TopicProduce, "partitions")
_TAG_BATCHES = _tag(broker_pb2.PartitionProduce, "batches")


def answers_of(request: Request, response: broker_pb2.ProduceResponse, config: ProducerConfig) -> list[Answer]:
    """Read an answer, one entry a part of the request.

    With acks=0 the broker answers before it appends, and says nothing of the parts: all is well. Otherwise a part that
    is not answered has an unknown outcome.
    """
    found: dict[tuple[bytes, int], Answer] = {}
    for topic in response.topics:
        for part in topic.partitions:
            error = from_detail(part.error) if part.HasField("error") else None
            found[topic.topic_id, part.partition] = Answer(tuple(part.base_offsets), error)
    answers = []
    for sent in request.parts:
        answer = found.get((sent.pipeline.topic_id, sent.pipeline.where.partition))
        if answer is None:
            answer = Answer((), None if config.acks_level == "0" else _unanswered(sent.pipeline.where))
        answers.append(answer)
    return answers


def _unanswered(where: TopicPartition) -> HeadraceError:
    return InternalError(f"the broker's answer does not mention {where}", outcome=Outcome.UNKNOWN, retriable=True)
