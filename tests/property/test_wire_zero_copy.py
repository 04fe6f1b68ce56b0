"""`zero_copy` and the generated code read and write the same bytes."""

import pytest
from google.protobuf.message import DecodeError
from headrace.v1 import broker_pb2, errors_pb2, topics_pb2
from headrace.wire import zero_copy
from headrace.wire.errors import InvalidRequestError
from headrace.wire.zero_copy import (
    SplicedMessage,
    fetch_response_bytes,
    parse_fetch_response,
    parse_produce_request,
    produce_request_bytes,
)
from hypothesis import given
from hypothesis import strategies as st

buffers = st.binary(min_size=1, max_size=300)
names = st.text(max_size=20)


@pytest.fixture(autouse=True)
def no_message_is_small(monkeypatch):
    """The way of large messages is taken by small ones too."""
    monkeypatch.setattr(zero_copy, "SMALL_BYTES", 0)


@st.composite
def produce_requests(draw):
    parts = st.builds(
        broker_pb2.PartitionProduce,
        partition=st.integers(0, 2**31 - 1),
        leader_epoch=st.none() | st.integers(-1, 2**31 - 1),
        batches=st.lists(buffers, max_size=4) | st.lists(buffers, min_size=8, max_size=12),
        records=st.lists(st.builds(topics_pb2.Record, value=buffers), max_size=2),
        producer=st.none() | st.builds(broker_pb2.ProducerIdentity, producer_id=st.integers(-(2**63), 2**63 - 1)),
    )
    topics = st.builds(
        broker_pb2.TopicProduce,
        topic=st.builds(topics_pb2.TopicRef, name=names) | st.builds(topics_pb2.TopicRef, topic_id=buffers),
        partitions=st.lists(parts, max_size=3),
    )
    return broker_pb2.ProduceRequest(
        client_id=draw(names), acks=draw(st.integers(0, 5)), timeout_ms=draw(st.integers(-5, 2**31 - 1)),
        topics=draw(st.lists(topics, max_size=3)),
    )  # fmt: skip


@st.composite
def fetch_responses(draw):
    parts = st.builds(
        broker_pb2.PartitionFetchResult,
        partition=st.integers(0, 2**31 - 1),
        batches=st.just(b"") | buffers,
        high_watermark=st.integers(-1, 2**63 - 1),
        preferred_replica=st.integers(-1, 9),
        error=st.none() | st.builds(errors_pb2.ErrorDetail, message=names),
    )
    topics = st.builds(
        broker_pb2.TopicFetchResult, name=names, topic_id=buffers, partitions=st.lists(parts, max_size=3)
    )
    return broker_pb2.FetchResponse(topics=draw(st.lists(topics, max_size=3)), throttle_ms=draw(st.integers(0, 99)))


def parts_of(message):
    return [part for topic in message.topics for part in topic.partitions]


@given(produce_requests())
def test_a_produce_request_is_read_and_written_alike(message):
    """Parsing takes the batches out and nothing else; writing gives a message that protobuf reads as the original."""
    spliced = parse_produce_request(message.SerializeToString())
    assert [[bytes(batch) for batch in found] for found in spliced.batches] == [
        list(part.batches) for part in parts_of(message)
    ]
    assert broker_pb2.ProduceRequest.FromString(produce_request_bytes(spliced.message, spliced.batches)) == message
    for part in parts_of(message):
        part.ClearField("batches")
    assert spliced.message == message


@given(fetch_responses())
def test_a_fetch_response_is_read_and_written_alike(message):
    """As for a produce request; every partition has one buffer, perhaps an empty one."""
    spliced = parse_fetch_response(message.SerializeToString())
    assert [bytes(found[0]) for found in spliced.batches] == [part.batches for part in parts_of(message)]
    assert broker_pb2.FetchResponse.FromString(fetch_response_bytes(spliced)) == message
    for part in parts_of(message):
        part.ClearField("batches")
    assert spliced.message == message


@given(st.binary(max_size=200))
def test_nonsense_is_refused_by_protobuf_or_read_as_protobuf_reads_it(data):
    """Bytes that are no message raise what protobuf raises, and nothing else."""
    for parse, kind in (
        (parse_produce_request, broker_pb2.ProduceRequest),
        (parse_fetch_response, broker_pb2.FetchResponse),
    ):
        try:
            expected = kind.FromString(data)
        except DecodeError:
            with pytest.raises(DecodeError):
                parse(data)
            continue
        spliced = parse(data)
        assert len(spliced.batches) == len(parts_of(expected))


@given(st.data())
def test_a_cut_message_is_refused(data):
    """A message that ends too early is no message, wherever it is cut inside a batch."""
    batch = bytes(range(256))
    part = broker_pb2.PartitionProduce(batches=[batch])
    whole = broker_pb2.ProduceRequest(topics=[broker_pb2.TopicProduce(partitions=[part])]).SerializeToString()
    cut = data.draw(st.integers(1, len(whole) - 1))
    with pytest.raises(DecodeError):
        parse_produce_request(whole[:cut])


def test_large_batches_are_not_copied():
    """A parsed batch is a view into the bytes that came."""
    batch = bytes(100_000)
    part = broker_pb2.PartitionFetchResult(partition=1)
    message = broker_pb2.FetchResponse(topics=[broker_pb2.TopicFetchResult(partitions=[part])])
    data = fetch_response_bytes(SplicedMessage(message, [[batch]]))
    (found,) = parse_fetch_response(data).batches[0]
    assert isinstance(found, memoryview)
    assert found.obj is data
    assert found == batch


@pytest.mark.parametrize("size", [zero_copy.SMALL_BATCH_BYTES // 2, zero_copy.SMALL_BATCH_BYTES * 2])
def test_many_batches_are_read_and_written_alike(size):
    """Small ones by protobuf, which copies them, larger ones in place."""
    batches = [bytes([number]) * size for number in range(40)]
    message = broker_pb2.ProduceRequest(topics=[broker_pb2.TopicProduce()])
    message.topics[0].partitions.add(partition=3)
    data = produce_request_bytes(message, [batches])
    parsed = broker_pb2.ProduceRequest.FromString(data)
    assert list(parsed.topics[0].partitions[0].batches) == batches
    spliced = parse_produce_request(data)
    assert spliced.batches == [batches]
    assert isinstance(spliced.batches[0][0], bytes) == (size < zero_copy.SMALL_BATCH_BYTES)
    assert produce_request_bytes(spliced.message, spliced.batches) == data


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\x22\x00" * (1 << 19), id="topics of 1 MiB"),
        pytest.param(b"\x22\x02\x12\x00" * (1 << 20), id="partitions of 4 MiB"),
        pytest.param(b"\x7a\x00" * (1 << 21), id="unknown fields of 4 MiB"),
    ],
)
def test_a_flood_of_fields_is_given_up(data):
    """A request of a stranger is refused after a bounded number of fields, however it is made up."""
    with pytest.raises(InvalidRequestError, match="more than 20000 fields"):
        parse_produce_request(data)


def test_what_is_no_request_is_not_left_to_protobuf_where_it_is_large():
    """Nor may a field that `_lift` does not know, or a rest without batches, have protobuf parse 32 MiB."""
    with pytest.raises(DecodeError):
        parse_produce_request(b"\x22\x00" * 1000 + b"\x1b" * (2 << 20))
    records = broker_pb2.ProduceRequest()
    records.topics.add().partitions.add().records.add(value=bytes(3 << 20))
    with pytest.raises(InvalidRequestError, match="besides its batches"):
        parse_produce_request(records.SerializeToString())


@pytest.mark.parametrize("batch_bytes", [100, 3_000, 200_000])
def test_an_untrusted_request_is_parsed_as_a_trusted_one(batch_bytes):
    """Below and above what protobuf may parse alone the batches are the same."""
    message = broker_pb2.ProduceRequest(client_id="c")
    part = message.topics.add().partitions.add(partition=3)
    part.batches.extend(bytes([number]) * batch_bytes for number in range(12))
    spliced = parse_produce_request(message.SerializeToString())
    assert [bytes(batch) for batch in spliced.batches[0]] == list(part.batches)
    assert spliced.message.topics[0].partitions[0].partition == 3


def test_what_is_looked_at_of_an_answer_is_bounded(monkeypatch):
    """A broker that sends fields without end costs its client what protobuf costs, and the answer is the same."""
    message = broker_pb2.FetchResponse()
    topic = message.topics.add(name="t")
    for number in range(100):
        topic.partitions.add(partition=number, batches=b"b%d" % number)
    data, looked_at = message.SerializeToString(), []
    read_varint = zero_copy._read_varint

    def count(view, position):
        looked_at.append(position)
        return read_varint(view, position)

    monkeypatch.setattr(zero_copy, "_read_varint", count)
    whole = parse_fetch_response(data)
    assert len(looked_at) > 300
    looked_at.clear()
    monkeypatch.setattr(zero_copy, "MAX_FIELDS_OF_ANSWER", 50)
    bounded = parse_fetch_response(data)
    assert len(looked_at) <= 2 * 50
    assert bounded.message == whole.message
    assert [[bytes(each) for each in found] for found in bounded.batches] == [
        [bytes(each) for each in found] for found in whole.batches
    ]
