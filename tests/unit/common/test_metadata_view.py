"""The decoded view of the metadata: what is visible, how topics are named, what GetMetadata answers."""

import pytest
from headrace.v1 import cluster_pb2, topics_pb2
from headrace.wire.errors import (
    ErrorCode,
    InvalidRequestError,
    MetastoreUnavailableError,
    UnknownTopicError,
    UnknownTopicIdError,
)
from headrace_server.cluster_identity import ClusterIdentity
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.metadata_view import ClusterView
from headrace_server.partition_state import PartitionState, Replica, encode

from tests.fakes.written_keys import WrittenKeys

IDENTITY = ClusterIdentity("test", "cluster-1", 1, b"s" * 32)
KEYS = IDENTITY.keyspace
CLICKS_ID, VIEWS_ID = b"c" * 16, b"v" * 16


def topic(name, topic_id, partitions=1, **configs):
    return metadata_pb2.Topic(
        name=name, topic_id=topic_id, partitions=partitions, replication_factor=1, configs=configs
    ).SerializeToString()


def led_by(broker_id, broker_epoch):
    replica = Replica(broker_id, broker_epoch)
    return encode(PartitionState(replicas=(broker_id,), leader=replica, leader_epoch=3, in_sync=(replica,)))


def clicks(source, partitions=2):
    value = topic("clicks", CLICKS_ID, partitions)
    parts = {KEYS.partition(CLICKS_ID, number): led_by(1, 2) for number in range(partitions)}
    source.write({KEYS.topic("clicks"): value, KEYS.topic_by_id(CLICKS_ID): value} | parts)


@pytest.fixture
def source():
    return WrittenKeys()


def metadata(view, **request):
    return view.metadata(cluster_pb2.GetMetadataRequest(**request), "coordinator-a", view.resolve, lambda _: True)


@pytest.fixture
def view(source):
    return ClusterView(IDENTITY, source)


def test_what_was_there_and_what_comes_are_the_same(source):
    """A view made after the writes equals one that followed them."""
    early = ClusterView(IDENTITY, source)
    source.write({KEYS.broker(1): metadata_pb2.BrokerLive(broker_id=1, address="h:1").SerializeToString()})
    clicks(source)
    assert metadata(early) == metadata(ClusterView(IDENTITY, source))
    assert early.brokers[1].broker_epoch == 2


def test_a_topic_is_visible_with_its_name_key_only(source, view):
    """`topic_ids/` and `partitions/` keys alone are a topic still being made: not in the metadata, not led."""
    source.write({KEYS.topic_by_id(VIEWS_ID): topic("views", VIEWS_ID), KEYS.partition(VIEWS_ID, 0): led_by(1, 2)})
    assert not metadata(view).topics
    assert view.partition(VIEWS_ID, 0) is None
    source.write({KEYS.topic("views"): topic("views", VIEWS_ID)})
    assert [found.name for found in metadata(view).topics] == ["views"]
    assert view.partition(VIEWS_ID, 0).state.leader_epoch == 3


def test_a_topic_made_anew_is_another_topic(source, view):
    """After delete and create under the same name the old id is unknown and the new one found (H26)."""
    clicks(source)
    source.write({KEYS.topic("clicks"): None})
    source.write({KEYS.topic("clicks"): topic("clicks", VIEWS_ID)})
    assert view.resolve(topics_pb2.TopicRef(name="clicks")).topic_id == VIEWS_ID
    with pytest.raises(UnknownTopicIdError):
        view.resolve(topics_pb2.TopicRef(topic_id=CLICKS_ID))


def test_a_reference_that_names_nothing_is_refused(view):
    """Unknown names, ids of a wrong size and empty references are typed errors."""
    with pytest.raises(UnknownTopicError, match="nothing"):
        view.resolve(topics_pb2.TopicRef(name="nothing"))
    with pytest.raises(InvalidRequestError):
        view.resolve(topics_pb2.TopicRef(topic_id=b"short"))
    with pytest.raises(InvalidRequestError):
        view.resolve(topics_pb2.TopicRef())


def test_an_unknown_topic_is_an_error_among_the_others(source, view):
    """GetMetadata answers what it knows and says of the rest what is wrong."""
    clicks(source)
    wanted = [topics_pb2.TopicRef(name="clicks"), topics_pb2.TopicRef(name="nothing")]
    found, missing = metadata(view, topics=wanted).topics
    assert [partition.leader_id for partition in found.partitions] == [1, 1]
    assert missing.name == "nothing"
    assert missing.error.code == ErrorCode.UNKNOWN_TOPIC


def test_a_value_that_cannot_be_read_is_left_out_and_listed(source, view):
    """One foreign value does not stop the rest; once it is restarted it is taken in."""
    clicks(source)
    source.write({KEYS.broker(7): b"\xff\xff\xff"})
    assert list(view.undecodable) == [KEYS.broker(7)]
    assert 7 not in view.brokers
    source.write({KEYS.broker(7): metadata_pb2.BrokerLive(broker_id=7).SerializeToString()})
    assert not view.undecodable
    assert 7 in view.brokers


def test_a_topic_whose_value_cannot_be_read_is_not_called_absent(source, view):
    """By name, by id and in the list of all: the error may pass, so no client takes the topic for deleted."""
    clicks(source)
    source.write({KEYS.topic("clicks"): b"\xff\xff\xff"})
    for reference in (topics_pb2.TopicRef(name="clicks"), topics_pb2.TopicRef(topic_id=CLICKS_ID)):
        with pytest.raises(MetastoreUnavailableError) as caught:
            view.resolve(reference)
        assert caught.value.retriable
    (listed,) = metadata(view).topics
    assert (listed.name, listed.error.code) == ("clicks", ErrorCode.METASTORE_UNAVAILABLE)
    with pytest.raises(UnknownTopicError):
        view.resolve(topics_pb2.TopicRef(name="nothing"))


def test_an_answer_has_its_revision_and_age(source):
    """Generation and revision order answers of different servers."""
    answer = metadata(ClusterView(IDENTITY, source))
    assert (answer.cluster_id, answer.generation) == (IDENTITY.cluster_id, IDENTITY.generation)
    assert answer.revision == source.revision


def test_a_setting_of_a_newer_release_does_not_stop_a_topic(source, view):
    """A stored setting that this release does not know is skipped; the others apply."""
    source.write({KEYS.topic("views"): topic("views", VIEWS_ID, retention_ms="1000", tiering="on")})
    assert view.topics["views"].config.retention_ms == 1000
    assert view.topics["views"].overrides == {"retention_ms": "1000", "tiering": "on"}


def test_callbacks_see_the_view_after_the_change(source, view):
    """A subscriber is called once a revision, with the keys, after the view took them in; and not once it ended."""
    seen = []
    end = view.subscribe(lambda revision, keys: seen.append((revision, len(keys), "clicks" in view.topics)))
    clicks(source)
    end()
    source.write({KEYS.topic("clicks"): None})
    assert seen == [(2, 4, True)]


def test_what_is_kept_follows_every_change(source, view):
    """F17: topics are described once and not for each call; a new leader, setting, size, or end of a topic is seen."""
    clicks(source)

    def told():
        assert metadata(view) == metadata(ClusterView(IDENTITY, source))
        return list(metadata(view).topics)

    assert [part.leader_id for part in told()[0].partitions] == [1, 1]
    told()[0].partitions[0].leader_id = 9  # What a caller does to its answer changes no other.
    source.write({KEYS.partition(CLICKS_ID, 1): led_by(2, 7)})
    assert [part.leader_id for part in told()[0].partitions] == [1, 2]
    source.write({KEYS.topic("clicks"): topic("clicks", CLICKS_ID, 1, max_batch_bytes="2000000")})
    assert (len(told()[0].partitions), told()[0].max_batch_bytes) == (1, 2_000_000)
    source.write({KEYS.topic("clicks"): None, KEYS.partition(CLICKS_ID, 0): None, KEYS.partition(CLICKS_ID, 1): None})
    assert told() == []


def test_a_topic_is_described_once_for_many_calls(source, monkeypatch):
    """F17: the second answer is a copy."""
    clicks(source)
    view = ClusterView(IDENTITY, source)
    metadata(view)
    monkeypatch.setattr("headrace_server.metadata_view._partition_metadata", None)
    assert len(metadata(view).topics[0].partitions) == 2
