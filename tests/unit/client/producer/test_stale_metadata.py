"""Metadata of any age: an older answer never takes back what a newer one said of a topic (PROTOCOL I19, H84)."""

import random

import pytest
from headrace.client.base.retry import Backoff
from headrace.client.net.cluster_metadata import ClusterMetadata
from headrace.client.producer.futures import PendingBatch
from headrace.client.producer.inflight import InFlightRequests
from headrace.client.producer.partition_queue import PartitionQueue, SealedBatch
from headrace.v1 import cluster_pb2
from headrace.wire.encoding import batch_parts
from headrace.wire.errors import MetastoreUnavailableError, Outcome, UnknownTopicError, to_detail
from headrace.wire.ids import TopicPartition
from headrace.wire.zero_copy import BufferVector

OLD, NEW = b"o" * 16, b"n" * 16
PARTITION = TopicPartition("t", 0)


def answer(revision, topic_id=None, *, generation=1, cluster="c", leader=(1, 5), error=None, address="b1:1"):
    """An answer about topic `t`: its id and leader, or an error, or that there is no such topic."""
    response = cluster_pb2.GetMetadataResponse(cluster_id=cluster, generation=generation, revision=revision)
    response.brokers.add(broker_id=1, address=address)
    if topic_id is None:
        response.topics.add(name="t", error=to_detail(error or UnknownTopicError("there is no topic named 't'")))
        return response
    topic = response.topics.add(name="t", topic_id=topic_id)
    topic.partitions.add(partition=0, leader_id=leader[0], leader_epoch=leader[1])
    return response


def table(*answers):
    cluster_metadata = ClusterMetadata()
    for response in answers:
        cluster_metadata.update(response)
    return cluster_metadata


def test_an_older_answer_does_not_delete_a_topic():
    cluster_metadata = table(answer(95, NEW), answer(90))
    assert cluster_metadata.require("t").topic_id == NEW
    assert cluster_metadata.error("t") is None


def test_an_older_answer_does_not_bring_back_a_deleted_topic():
    cluster_metadata = table(answer(90, OLD), answer(95), answer(90, OLD))
    assert cluster_metadata.topic("t") is None
    assert isinstance(cluster_metadata.error("t"), UnknownTopicError)


def test_an_older_answer_does_not_bring_back_the_old_life_of_a_topic():
    cluster_metadata = table(answer(90, OLD), answer(95, NEW), answer(91, OLD))
    assert cluster_metadata.require("t").topic_id == NEW


def test_an_older_answer_about_the_same_life_tells_newer_leaders_and_no_older_ones():
    """Leader epochs order what is said of one life, whatever the answer's revision: no client is locked out."""
    cluster_metadata = table(answer(95, NEW, leader=(1, 5)), answer(90, NEW, leader=(2, 4), address="b1:9"))
    assert cluster_metadata.leader(PARTITION) == (1, "b1:1", 5)
    response = answer(90, NEW, leader=(2, 6))
    response.brokers.add(broker_id=2, address="b2:1")
    cluster_metadata.update(response)
    assert cluster_metadata.leader(PARTITION) == (2, "b2:1", 6)


@pytest.mark.parametrize("later", [answer(95), answer(96), answer(3, generation=2)])
def test_an_answer_as_new_as_what_is_known_deletes_a_topic(later):
    cluster_metadata = table(answer(95, OLD), later)
    assert cluster_metadata.topic("t") is None
    assert isinstance(cluster_metadata.error("t"), UnknownTopicError)


def test_a_restored_cluster_is_believed_at_its_lower_revision():
    """The generation compares before the revision: a restore from a backup begins a later one (PROTOCOL H81)."""
    cluster_metadata = table(answer(5_000, OLD), answer(40, NEW, generation=2), answer(6_000, OLD))
    assert cluster_metadata.require("t").topic_id == NEW


def test_another_cluster_replaces_all_that_was_known():
    cluster_metadata = table(answer(5_000, OLD), answer(3, NEW, cluster="d"))
    assert (cluster_metadata.cluster_id, cluster_metadata.require("t").topic_id) == ("d", NEW)


def test_a_retriable_error_is_no_evidence_against_a_topic():
    cluster_metadata = table(answer(95, NEW), answer(96, error=MetastoreUnavailableError("the value cannot be read")))
    assert cluster_metadata.require("t").topic_id == NEW


def queued(cluster_metadata, topic_id):
    in_flight_requests = InFlightRequests(
        cluster_metadata, Backoff(5, 50, random.Random(1)), idempotent=True, max_in_flight_requests=5,
        max_request_bytes=1 << 20, request_timeout_ms=1_000,
    )  # fmt: skip
    in_flight_requests.identity.set(7, 0)
    partition_queue = PartitionQueue(PARTITION, topic_id)
    in_flight_requests.identity.start(partition_queue)
    batch = SealedBatch(partition_queue, PendingBatch(PARTITION, 0, lambda pending: None, 100), 1, 0, 10**9)
    batch.encoded = [BufferVector(batch_parts([b"v"], base_timestamp_ms=0, **batch.stamp._asdict()))]
    in_flight_requests.add(batch)
    return in_flight_requests


def test_a_batch_of_a_new_topic_outlives_an_answer_from_before_the_topic():
    cluster_metadata = table(answer(95, NEW))
    in_flight_requests = queued(cluster_metadata, NEW)
    for stale in (answer(90), answer(94, OLD)):
        cluster_metadata.update(stale)
        assert in_flight_requests.metadata_changed() == []
    assert [request.parts[0].partition_queue.topic_id for request in in_flight_requests.next_requests(0)] == [NEW]


def test_a_batch_of_a_deleted_topic_ends_with_the_answer_that_has_the_deletion():
    cluster_metadata = table(answer(95, OLD))
    in_flight_requests = queued(cluster_metadata, OLD)
    cluster_metadata.update(answer(96))
    (finished,) = in_flight_requests.metadata_changed()
    assert finished.error.outcome == Outcome.NOT_APPLIED
