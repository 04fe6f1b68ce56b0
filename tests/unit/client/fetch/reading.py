"""One partition that is read, by hand: its application, its brokers and its clock. For the tests of `fetch`."""

import random

from headrace.client.base.config import ConsumerConfig
from headrace.client.base.retry import Backoff
from headrace.client.fetch.fetch_planner import FetchPlanner
from headrace.client.fetch.subscription_state import SubscriptionState
from headrace.client.net.cluster_metadata import ClusterMetadata
from headrace.v1 import broker_pb2, cluster_pb2
from headrace.wire.batch import STAMP_BYTES, read_header, stamp
from headrace.wire.columns import encode_batch
from headrace.wire.errors import TransportError, to_detail
from headrace.wire.ids import TopicPartition
from headrace.wire.zero_copy import SplicedMessage

WHERE = TopicPartition("clicks", 0)
TOPIC_ID = b"c" * 16
TERM_MS = 60_000
UNREACHABLE = TransportError("connection refused", retriable=True)
OTHER_ID = b"d" * 16


def metadata(leader=1, epoch=3, topic_id=TOPIC_ID, partitions=1):
    topic = cluster_pb2.TopicMetadata(name="clicks", topic_id=topic_id)
    for number in range(partitions):
        topic.partitions.add(partition=number, leader_id=leader, leader_epoch=epoch)
    brokers = [cluster_pb2.BrokerMetadata(broker_id=broker, address=f"b{broker}:1") for broker in (1, 2, 3)]
    return cluster_pb2.GetMetadataResponse(brokers=brokers, topics=[topic])


def batch(base, records=10, epoch=3):
    encoded = encode_batch([b"v"] * records, base_timestamp_ms=1)
    head = stamp(read_header(encoded), base_offset=base, append_timestamp_ms=1, leader_epoch=epoch, previous_crc=0)
    return head + encoded[STAMP_BYTES:]


class Reading:
    """One partition that is read, by hand: an application, brokers and a clock of its own."""

    def __init__(self, offset=0, **settings):
        self.cluster_metadata = ClusterMetadata()
        self.cluster_metadata.update(metadata())
        config = ConsumerConfig(metadata_max_age_ms=TERM_MS, **settings)
        self.positions = SubscriptionState(config, Backoff(50, 1000, random.Random(1)))
        self.fetches = FetchPlanner(config, self.positions, self.cluster_metadata)
        self.positions.assign(WHERE, offset)
        self.now_ms = 0

    def fetch(self):
        """The fetch that starts now, or None."""
        plans = self.fetches.plan(self.now_ms)
        assert len(plans) <= 1
        return plans[0] if plans else None

    def asks(self):
        """Broker, and the partition's entry, of the fetch that starts now; it stays in flight."""
        plan = self.fetch()
        return (plan.broker_id, plan.request.topics[0].partitions[0]) if plan else None

    def answer(self, plan, *batches, error=None, diverged=None, preferred=-1, high_watermark=1000, throttle_ms=0):
        response = broker_pb2.FetchResponse(throttle_ms=throttle_ms)
        entry = response.topics.add(topic_id=TOPIC_ID).partitions.add(
            partition=0, high_watermark=high_watermark, preferred_replica=preferred
        )
        if error is not None:
            entry.error.CopyFrom(to_detail(error))
        if diverged is not None:
            entry.diverged.leader_epoch, entry.diverged.end_offset = diverged
        spliced = SplicedMessage(response, [[b"".join(batches)]])
        return self.fetches.take_answer(plan, spliced, self.now_ms)

    def fail(self, plan, error=UNREACHABLE):
        return self.fetches.take_failure(plan, error, self.now_ms)

    def deliver(self, up_to=None, epoch=3):
        """The application takes what has come."""
        completed = self.positions.pop(self.now_ms)
        assert completed is not None
        end = up_to if up_to is not None else self.end_of(completed)
        self.positions.deliver(WHERE, completed.generation, end, epoch)
        return completed

    @staticmethod
    def end_of(completed):
        return completed.offset + 10 * (len(completed.data) // len(batch(0)))

    def read(self, base, epoch=3):
        """Fetch and take one batch."""
        self.answer(self.fetch(), batch(base, epoch=epoch))
        return self.deliver(base + 10, epoch)

    def later(self, milliseconds):
        self.now_ms += milliseconds


def near(offset=0, **settings):
    """A partition whose leader, broker 1, has named broker 2."""
    reading = Reading(offset, client_rack="east", **settings)
    plan = reading.fetch()
    assert plan.request.rack == "east"
    reading.answer(plan, preferred=2)
    return reading
