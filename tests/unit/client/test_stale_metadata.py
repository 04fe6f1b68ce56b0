"""Metadata of any age: an older answer never takes back what a newer one said of a topic (PROTOCOL I19, H84)."""

import random

import pytest
from headrace.client.inflight import Dispatcher
from headrace.client.pipeline import PartitionPipeline, SealedBatch
from headrace.client.receipts import PendingBatch
from headrace.client.retry import Backoff
from headrace.client.routing import RoutingTable
from headrace.v1 import cluster_pb2
from headrace.wire.encoding import batch_parts
from headrace.wire.envelopes import Pieces
from headrace.wire.errors import MetastoreUnavailableError, Outcome, UnknownTopicError, to_detail
from headrace.wire.ids import TopicPartition

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
    routes = RoutingTable()
    for response in answers:
        routes.update(response)
    return routes


def test_an_older_answer_does_not_delete_a_topic():
    routes = table(answer(95, NEW), answer(90))
    assert routes.require("t").topic_id == NEW
    assert routes.error("t") is None


def test_an_older_answer_does_not_bring_back_a_deleted_topic():
    routes = table(answer(90, OLD), answer(95), answer(90, OLD))
    assert routes.topic("t") is None
    assert isinstance(routes.error("t"), UnknownTopicError)


def test_an_older_answer_does_not_bring_back_the_old_life_of_a_topic():
    routes = table(answer(90, OLD), answer(95, NEW), answer(91, OLD))
    assert routes.require("t").topic_id == NEW


def test_an_older_answer_about_the_same_life_tells_newer_leaders_and_no_older_ones():
    """Leader epochs order what is said of one life, whatever the answer's revision: no client is locked out."""
    routes = table(answer(95, NEW, leader=(1, 5)), answer(90, NEW, leader=(2, 4), address="b1:9"))
    assert routes.leader(PARTITION) == (1, "b1:1", 5)
    response = answer(90, NEW, leader=(2, 6))
    response.brokers.add(broker_id=2, address="b2:1")
    routes.update(response)
    assert routes.leader(PARTITION) == (2, "b2:1", 6)


@pytest.mark.parametrize("later", [answer(95), answer(96), answer(3, generation=2)])
def test_an_answer_as_new_as_what_is_known_deletes_a_topic(later):
    routes = table(answer(95, OLD), later)
    assert routes.topic("t") is None
    assert isinstance(routes.error("t"), UnknownTopicError)


def test_a_restored_cluster_is_believed_at_its_lower_revision():
    """The generation compares before the revision: a restore from a backup begins a later one (PROTOCOL H81)."""
    routes = table(answer(5_000, OLD), answer(40, NEW, generation=2), answer(6_000, OLD))
    assert routes.require("t").topic_id == NEW


def test_another_cluster_replaces_all_that_was_known():
    routes = table(answer(5_000, OLD), answer(3, NEW, cluster="d"))
    assert (routes.cluster_id, routes.require("t").topic_id) == ("d", NEW)


def test_an_error_that_a_retry_may_mend_says_nothing_against_a_topic():
    routes = table(answer(95, NEW), answer(96, error=MetastoreUnavailableError("the value cannot be read")))
    assert routes.require("t").topic_id == NEW


def queued(routes, topic_id):
    dispatcher = Dispatcher(
        routes, Backoff(5, 50, random.Random(1)), idempotent=True, max_in_flight_requests=5,
        max_request_bytes=1 << 20, request_timeout_ms=1_000,
    )  # fmt: skip
    dispatcher.set_identity(7, 0)
    pipeline = PartitionPipeline(PARTITION, topic_id)
    dispatcher.start_pipeline(pipeline)
    batch = SealedBatch(pipeline, PendingBatch(PARTITION, 0, lambda pending: None, 100), 1, 0, 10**9)
    batch.encoded = [Pieces(batch_parts([b"v"], base_timestamp_ms=0, **batch.stamp._asdict()))]
    dispatcher.add(batch)
    return dispatcher


def test_a_batch_of_a_new_topic_outlives_an_answer_from_before_the_topic():
    routes = table(answer(95, NEW))
    dispatcher = queued(routes, NEW)
    for stale in (answer(90), answer(94, OLD)):
        routes.update(stale)
        assert dispatcher.metadata_changed() == []
    assert [request.parts[0].pipeline.topic_id for request in dispatcher.next_requests(0)] == [NEW]


def test_a_batch_of_a_deleted_topic_ends_with_the_answer_that_has_the_deletion():
    routes = table(answer(95, OLD))
    dispatcher = queued(routes, OLD)
    routes.update(answer(96))
    (finished,) = dispatcher.metadata_changed()
    assert finished.error.outcome == Outcome.NOT_APPLIED
