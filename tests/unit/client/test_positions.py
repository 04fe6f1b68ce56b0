"""Positions: what an answer may find changed since its fetch was planned."""

import random

from headrace.client.config import ConsumerConfig
from headrace.client.positions import Positions
from headrace.client.retry import Backoff
from headrace.client.routing import RoutingTable
from headrace.v1 import broker_pb2, cluster_pb2
from headrace.wire.columns import encode_batch
from headrace.wire.envelopes import Envelope
from headrace.wire.ids import TopicPartition

WHERE = TopicPartition("clicks", 0)
TOPIC_ID = b"c" * 16


def test_an_answer_for_a_topic_that_was_forgotten_meanwhile_is_taken_in():
    """Metadata may say that a topic is gone while a fetch of it is in flight; its answer still finds its partition."""
    routes = RoutingTable()
    topic = cluster_pb2.TopicMetadata(name="clicks", topic_id=TOPIC_ID)
    topic.partitions.add(partition=0, leader_id=1, leader_epoch=3)
    brokers = [cluster_pb2.BrokerMetadata(broker_id=1, address="127.0.0.1:1")]
    routes.update(cluster_pb2.GetMetadataResponse(brokers=brokers, topics=[topic]))
    positions = Positions(ConsumerConfig(), Backoff(50, 1000, random.Random(1)))
    positions.assign(WHERE, 0)
    (plan,) = positions.plan(routes, 0)
    routes.forget_topic("clicks")
    answer = broker_pb2.FetchResponse()
    answer.topics.add(topic_id=TOPIC_ID).partitions.add(partition=0, high_watermark=1)
    assert positions.take_answer(plan, Envelope(answer, [[encode_batch([b"v"], base_timestamp_ms=1)]]), routes, 0)
    chunk = positions.pop()
    assert chunk is not None
    assert chunk.where == WHERE
