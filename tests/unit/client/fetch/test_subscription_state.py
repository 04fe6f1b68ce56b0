"""SubscriptionState: whom a partition is fetched from, what an answer means, and when a fetch is given up. No I/O, no
clock.
"""

import random

import pytest
from headrace.client.base.config import ConsumerConfig
from headrace.client.base.errors import LogTruncationError, TopicRecreatedError
from headrace.client.base.retry import OVERDUE_MS, Backoff
from headrace.client.fetch.partition_fetch_state import (
    CORRUPT_COPIES,
    CORRUPTION_PATIENCE_MS,
    LAGGING_TRIES,
    REFUSED_REPLICA_MS,
    SILENT_REPLICA_MS,
)
from headrace.client.fetch.subscription_state import (
    FETCHES_BEHIND,
    FETCHES_PER_BROKER,
    MAX_THROTTLE_MS,
    PARTITIONS_BEHIND,
    SubscriptionState,
)
from headrace.client.net.cluster_metadata import ClusterMetadata
from headrace.v1 import broker_pb2, cluster_pb2
from headrace.wire.batch import STAMP_BYTES, read_header, stamp
from headrace.wire.columns import encode_batch
from headrace.wire.errors import (
    CorruptBatchError,
    FencedLeaderEpochError,
    InternalError,
    LeaderHint,
    LeaderNotAvailableError,
    NotLeaderError,
    OffsetNotAvailableError,
    OffsetOutOfRangeError,
    StorageOfflineError,
    TransportError,
    UnknownTopicError,
    to_detail,
)
from headrace.wire.ids import TopicPartition
from headrace.wire.zero_copy import SplicedMessage

WHERE = TopicPartition("clicks", 0)
TOPIC_ID = b"c" * 16
TERM_MS = 60_000
UNREACHABLE = TransportError("connection refused", retriable=True)


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
        self.positions.assign(WHERE, offset)
        self.now_ms = 0

    def fetch(self):
        """The fetch that starts now, or None."""
        plans = self.positions.plan(self.cluster_metadata, self.now_ms)
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
        return self.positions.take_answer(plan, spliced, self.cluster_metadata, self.now_ms)

    def fail(self, plan, error=UNREACHABLE):
        return self.positions.take_failure(plan, error, self.cluster_metadata, self.now_ms)

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


# --- leader epochs (KIP-320) ---


def test_a_fetch_names_the_epoch_of_the_batch_before_it():
    """Nothing at first; then that of the last batch fetched, also where it is not delivered yet."""
    reading = Reading()
    plan = reading.fetch()
    assert not plan.request.topics[0].partitions[0].HasField("last_epoch")
    reading.answer(plan, batch(0, epoch=1), batch(10, epoch=2))
    _, entry = reading.asks()
    assert (entry.offset, entry.last_epoch, entry.leader_epoch) == (20, 2, 3)


def test_after_a_rewind_the_epoch_is_that_of_what_was_delivered():
    """What was fetched and dropped says nothing; a position inside a batch has the epoch of that batch."""
    reading = Reading()
    reading.answer(reading.fetch(), batch(0, epoch=1), batch(10, epoch=2))
    reading.deliver(5, epoch=1)
    reading.positions.pause(WHERE)
    reading.positions.resume(WHERE)
    _, entry = reading.asks()
    assert (entry.offset, entry.last_epoch) == (5, 1)


def test_a_position_that_was_chosen_is_not_checked():
    """After a seek nothing is known of the batch before it, until one has been read there."""
    reading = Reading()
    reading.read(0)
    reading.positions.seek(WHERE, 7)
    plan = reading.fetch()
    assert not plan.request.topics[0].partitions[0].HasField("last_epoch")
    reading.answer(plan, batch(0))
    assert reading.asks()[1].last_epoch == 3


def test_a_replaced_log_is_an_error_once_all_that_was_read_is_delivered():
    """The error has the diverging offset; it comes again until the position is moved, and then reading goes on."""
    reading = Reading()
    reading.answer(reading.fetch(), batch(0), batch(10))
    assert reading.answer(reading.fetch(), diverged=(2, 15))
    assert reading.fetch() is None
    reading.deliver(20)
    for _ in range(2):
        with pytest.raises(LogTruncationError) as caught:
            reading.positions.pop(reading.now_ms)
        error = caught.value
        assert (error.partition, error.position, error.diverging_offset, error.leader_epoch) == (WHERE, 20, 0, 2)
        assert "go on from 0" in str(error)
        reading.later(1000)
        reading.answer(reading.fetch(), diverged=(2, 15))
    reading.positions.seek(WHERE, 15)
    plan = reading.fetch()
    assert plan.partitions[0].offset == 15
    reading.answer(plan, batch(15, epoch=4))
    reading.deliver(25, epoch=4)
    assert list(reading.positions._partitions[WHERE].epochs) == [(4, 15)], "what was read before is another log"


@pytest.mark.parametrize(
    ("diverged", "offset"),
    [((3, 25), 25), ((2, 15), 15), ((2, 30), 20), ((1, 99), 10), ((0, 3), 0), ((-1, 0), 0)],
)
def test_the_diverging_offset_is_where_the_logs_part_as_far_as_epochs_tell(diverged, offset):
    """The leader's end of an epoch that both have, or where ours of that epoch ended, whichever is less: what follows
    that was read in later epochs is not the leader's, however far its own epoch goes on.
    """
    reading = Reading()
    for base, epoch in ((0, 1), (10, 2), (20, 3)):
        reading.read(base, epoch)
    reading.answer(reading.fetch(), diverged=diverged)
    with pytest.raises(LogTruncationError) as caught:
        reading.positions.pop(0)
    assert caught.value.diverging_offset == offset


def test_a_leader_from_before_what_was_read_is_not_asked():
    """A zombie that leads an older epoch lacks what came later, and would call it a truncation (PROTOCOL H4)."""
    reading = Reading()
    reading.read(0, epoch=4)
    assert reading.fetch() is None
    assert reading.positions.stale_topics == {"clicks"}
    reading.cluster_metadata.update(metadata(leader=2, epoch=4))
    assert reading.asks()[0] == 2


OTHER_ID = b"d" * 16


def test_a_position_of_another_life_of_the_topic_is_lost():
    """Offsets and epochs of a topic say nothing about the one that was created again under its name."""
    reading = Reading()
    reading.read(0)
    reading.cluster_metadata.update(metadata(epoch=0, topic_id=OTHER_ID))
    assert reading.asks() is None
    assert reading.positions.resets() == [WHERE]
    assert reading.positions.replaced(WHERE) == (TOPIC_ID, OTHER_ID)
    reading.positions.seek(WHERE, 0, OTHER_ID)
    assert reading.positions.resets() == []
    assert reading.positions.replaced(WHERE) is None
    plan = reading.fetch()
    assert plan.request.topics[0].topic.topic_id == OTHER_ID
    assert not plan.request.topics[0].partitions[0].HasField("last_epoch")


def test_what_was_fetched_of_the_old_life_is_delivered_before_the_position_is_lost():
    reading = Reading()
    reading.answer(reading.fetch(), batch(0))
    reading.cluster_metadata.update(metadata(topic_id=OTHER_ID))
    assert reading.asks() is None
    assert reading.positions.resets() == []
    reading.deliver()
    assert reading.positions.resets() == [WHERE]


def test_a_position_of_a_newer_life_waits_for_the_metadata_to_reach_it():
    """A look-up may find a new life before the background does: only a later answer can say that it is gone, too."""
    reading = Reading()
    reading.positions.assign(WHERE, 5, topic_id=OTHER_ID)
    assert reading.asks() is None
    assert reading.positions.stale_topics == {"clicks"}
    assert reading.positions.resets() == []
    reading.cluster_metadata.update(metadata(epoch=0, topic_id=OTHER_ID))
    assert reading.asks()[1].offset == 5
    reading = Reading()
    reading.positions.assign(WHERE, 5, topic_id=OTHER_ID)
    assert reading.asks() is None
    reading.cluster_metadata.update(metadata(topic_id=b"e" * 16))
    assert reading.asks() is None
    assert reading.positions.replaced(WHERE) == (OTHER_ID, b"e" * 16)


def test_a_seek_after_the_loss_goes_on_in_the_new_life():
    reading = Reading()
    reading.read(0)
    reading.cluster_metadata.update(metadata(epoch=0, topic_id=OTHER_ID))
    assert reading.asks() is None
    reading.positions.seek(WHERE, 3)
    assert reading.fetch().request.topics[0].topic.topic_id == OTHER_ID


# --- leaders that move ---


@pytest.mark.parametrize("known", [True, False])
def test_a_newer_leader_is_tried_at_once(known):
    """Back-off is for the leader that failed: with a hint, or with metadata, the next one is asked without waiting."""
    reading = Reading()
    hint = LeaderHint(2, 4, "b2:1") if known else None
    reading.answer(reading.fetch(), error=NotLeaderError("moved", leader=hint))
    if not known:
        assert reading.fetch() is None
        assert reading.positions.stale_topics == {"clicks"}
        reading.cluster_metadata.update(metadata(leader=2, epoch=4))
    assert reading.asks()[0] == 2


def test_two_moves_in_a_row_cost_no_wait():
    reading = Reading()
    reading.answer(reading.fetch(), error=NotLeaderError("moved", leader=LeaderHint(2, 4, "b2:1")))
    reading.answer(reading.fetch(), error=FencedLeaderEpochError("moved", leader=LeaderHint(3, 5, "b3:1")))
    assert reading.asks()[0] == 3


def test_a_wrong_hint_is_followed_once_and_then_waits():
    """Two brokers that point at each other in one epoch are asked at the pace of the back-off, and metadata decides."""
    reading = Reading()
    reading.answer(reading.fetch(), error=NotLeaderError("not me", leader=LeaderHint(2, 3, "b2:1")))
    assert reading.fetch() is None
    reading.later(50)
    plan = reading.fetch()
    assert plan.broker_id == 2
    reading.answer(plan, error=NotLeaderError("not me", leader=LeaderHint(1, 3, "b1:1")))
    assert reading.fetch() is None
    reading.cluster_metadata.update(metadata(leader=3, epoch=4))
    assert reading.asks()[0] == 3


@pytest.mark.parametrize(
    "error", [LeaderNotAvailableError("none"), OffsetNotAvailableError("not yet"), StorageOfflineError("disk")]
)
def test_while_it_waits_for_a_leader_metadata_is_asked_for(error):
    """Each look at the partition asks for metadata again, until a newer leader is known."""
    reading = Reading()
    reading.answer(reading.fetch(), error=error)
    for _ in range(3):
        reading.positions.stale_topics.clear()
        assert reading.fetch() is None
        assert reading.positions.stale_topics == {"clicks"}


def test_where_nobody_leads_metadata_is_asked_for():
    reading = Reading()
    reading.cluster_metadata.update(metadata(leader=-1, epoch=4))
    assert reading.fetch() is None
    assert reading.positions.stale_topics == {"clicks"}


def test_a_position_that_is_gone_is_reset_once_all_that_was_read_is_delivered():
    """Not before: what was fetched below it is good."""
    reading = Reading()
    reading.answer(reading.fetch(), batch(0))
    assert not reading.answer(reading.fetch(), error=OffsetOutOfRangeError("gone"))
    assert reading.positions.resets() == []
    assert reading.fetch() is None
    reading.deliver(10)
    assert reading.positions.resets() == [WHERE]


def test_an_unreachable_leader_is_tried_again_only_after_a_while():
    reading = Reading()
    reading.fail(reading.fetch())
    reading.cluster_metadata.update(metadata())
    assert reading.fetch() is None
    reading.later(50)
    assert reading.asks()[0] == 1


def test_a_fetch_that_nobody_answers_is_given_up_for_a_newer_leader():
    """Metadata is asked for once it is overdue; what the old leader answers later is dropped, and nothing twice."""
    reading = Reading(fetch_max_wait_ms=500)
    reading.read(0)
    stuck = reading.fetch()
    reading.later(500 + OVERDUE_MS - 1)
    reading.positions.give_up_overdue(reading.cluster_metadata, reading.now_ms)
    assert not reading.positions.stale_topics
    reading.later(1)
    reading.positions.give_up_overdue(reading.cluster_metadata, reading.now_ms)
    assert reading.positions.stale_topics == {"clicks"}
    assert reading.positions._in_flight == {1: 1}, "the same leader's is not given up"
    reading.positions.stale_topics.clear()
    reading.positions.give_up_overdue(reading.cluster_metadata, reading.now_ms)
    assert not reading.positions.stale_topics, "one look a second"
    reading.cluster_metadata.update(metadata(leader=2, epoch=4))
    reading.positions.give_up_overdue(reading.cluster_metadata, reading.now_ms)
    plan = reading.fetch()
    assert plan.broker_id == 2
    assert not reading.answer(stuck, batch(10))
    reading.answer(plan, batch(10, epoch=4))
    assert reading.deliver(20, 4).offset == 10
    assert not reading.positions.has_completed_fetches()


def test_a_success_ends_the_back_off_and_failures_raise_it():
    """Counted from the last success on; the application's errors count as failures."""
    reading = Reading()
    partition = reading.positions._partitions[WHERE]
    for failures in (1, 2, 3):
        reading.answer(reading.fetch(), error=StorageOfflineError("disk"))
        assert partition.failures == failures
        reading.later(1000)
    assert partition.seeks_leader
    reading.answer(reading.fetch())
    assert (partition.failures, partition.retry_at_ms, partition.seeks_leader) == (0, 0, False)
    assert reading.positions.next_retry_ms(reading.now_ms) is None
    reading.answer(reading.fetch(), error=InternalError("bug"))
    assert reading.fetch() is None
    assert 0 < reading.positions.next_retry_ms(reading.now_ms) <= 50
    with pytest.raises(InternalError):
        reading.positions.pop(reading.now_ms)


def test_a_wait_that_is_over_does_not_wake_the_engine_again():
    """A partition that is in flight anew, or has nobody to ask, is waited for no more: the engine would never rest."""
    reading = Reading()
    reading.fail(reading.fetch())
    reading.cluster_metadata.update(metadata())
    reading.now_ms += 60
    assert reading.fetch() is not None
    assert reading.positions.next_retry_ms(reading.now_ms) is None
    reading = Reading()
    reading.fail(reading.fetch())
    reading.now_ms += 60
    assert reading.fetch() is None
    assert reading.positions.stale_topics == {"clicks"}
    assert reading.positions.next_retry_ms(reading.now_ms) is None


@pytest.mark.parametrize("error", [UnknownTopicError("gone"), InternalError("odd")])
def test_what_the_application_has_moves_a_position_that_failed_meanwhile(error):
    """A fetch fails while a completed fetch is open: what is received of that completed fetch is not fetched again."""
    reading = Reading()
    reading.answer(reading.fetch(), batch(0))
    completed = reading.positions.pop(0)
    assert reading.positions.deliver(WHERE, completed.generation, 3, 3)
    reading.answer(reading.fetch(), error=error)
    reading.positions.fail(WHERE, error, reading.now_ms)
    assert reading.positions.deliver(WHERE, completed.generation, 7, 3)
    assert reading.positions.position(WHERE) == 7
    assert reading.fetch() is None, "it waits out the failure nevertheless"
    reading.now_ms += 1_000
    assert reading.fetch().partitions[0].offset == 7


def test_what_was_fetched_before_a_seek_is_received_no_more():
    """The engine itself seeks where a topic was made anew: an open completed fetch is of the old one."""
    reading = Reading()
    reading.answer(reading.fetch(), batch(0))
    completed = reading.positions.pop(0)
    assert reading.positions.deliver(WHERE, completed.generation, 3, 3)
    reading.positions.seek(WHERE, 0, b"d" * 16)
    assert not reading.positions.deliver(WHERE, completed.generation, 7, 3)
    assert reading.positions.position(WHERE) == 0


def test_a_position_that_is_tried_again_waits_where_that_is_asked_for():
    reading = Reading()
    reading.positions.rewind(WHERE)
    reading.answer(reading.fetch(), batch(0))
    reading.positions.rewind(WHERE, reading.now_ms)
    assert reading.fetch() is None
    reading.later(50)
    assert reading.asks()[1].offset == 0


# --- how much is fetched ahead, and in which order ---


def test_what_is_fetched_ahead_is_bounded_and_counted():
    """No fetch while the application has as much before it; taking, dropping and moving on give it back."""
    size = len(batch(0))
    reading = Reading(prefetch_bytes=2 * size, max_partition_fetch_bytes=size)
    reading.answer(reading.fetch(), batch(0), batch(10))
    assert reading.positions.buffered_bytes == 2 * size
    assert reading.fetch() is None
    reading.deliver(20)
    assert reading.positions.buffered_bytes == 0
    reading.answer(reading.fetch(), batch(20))
    reading.positions.seek(WHERE, 5)
    assert reading.positions.buffered_bytes == 0
    assert not reading.positions.has_completed_fetches()
    reading.answer(reading.fetch(), batch(0))
    reading.positions.drop(WHERE)
    assert reading.positions.buffered_bytes == 0
    assert reading.positions.is_empty()
    assert reading.fetch() is None


def test_an_answer_to_what_was_asked_before_a_seek_is_dropped():
    """And the partition is fetched from its new position meanwhile."""
    reading = Reading()
    old = reading.fetch()
    reading.positions.seek(WHERE, 500)
    new = reading.fetch()
    assert new.partitions[0].offset == 500
    assert not reading.answer(old, batch(0))
    assert not reading.positions.has_completed_fetches()
    reading.answer(new, batch(500))
    assert reading.deliver(510).offset == 500


def test_partitions_take_turns_and_one_that_is_idle_holds_up_none():
    """Each is in a fetch of its own while another waits; at most eight fetches are in flight to a broker."""
    reading = Reading()
    reading.cluster_metadata.update(metadata(partitions=10))
    for number in range(1, 10):
        reading.positions.assign(TopicPartition("clicks", number), 0)
        plans = reading.positions.plan(reading.cluster_metadata, 0)
        first = number == 1
        assert [part.where.partition for plan in plans for part in plan.partitions] == (
            [0, 1] if first else [number] if number < FETCHES_PER_BROKER + 1 else []
        )


# --- nearer replicas (KIP-392) ---


def near(offset=0, **settings):
    """A partition whose leader, broker 1, has named broker 2."""
    reading = Reading(offset, client_rack="east", **settings)
    plan = reading.fetch()
    assert plan.request.rack == "east"
    reading.answer(plan, preferred=2)
    return reading


def test_of_many_partitions_those_that_have_more_are_asked_for_first():
    """A few at a time, as an answer has room for few; those that are idle wait together, and hold up nobody."""
    many = 3 * PARTITIONS_BEHIND
    reading = Reading()
    reading.cluster_metadata.update(metadata(partitions=many))
    for number in range(1, many):
        reading.positions.assign(TopicPartition("clicks", number), 0)

    def fetches():
        plans = reading.positions.plan(reading.cluster_metadata, 0)
        return plans, [[part.where.partition for part in plan.partitions] for plan in plans]

    (first,), (asked,) = fetches()
    assert sorted(asked) == list(range(many))  # Nothing is known yet.
    response = broker_pb2.FetchResponse()
    entry = response.topics.add(topic_id=TOPIC_ID)
    for number in range(many):  # Those of odd numbers have ten records more than nothing.
        entry.partitions.add(partition=number, high_watermark=10 * (number % 2), preferred_replica=-1)
    reading.positions.take_answer(first, SplicedMessage(response, [[b""]] * many), reading.cluster_metadata, 0)

    (behind, *_), (some, more, others) = fetches()
    assert (len(some), {number % 2 for number in some}) == (PARTITIONS_BEHIND, {1})
    assert sorted(some + more) == list(range(1, many, 2))
    assert sorted(others) == list(range(0, many, 2))
    assert fetches() == ([], [])

    response = broker_pb2.FetchResponse()
    entry = response.topics.add(topic_id=TOPIC_ID)
    for number in some:
        entry.partitions.add(partition=number, high_watermark=10, preferred_replica=-1)
    reading.positions.take_answer(
        behind, SplicedMessage(response, [[batch(0)]] * len(some)), reading.cluster_metadata, 0
    )
    _, (again,) = fetches()
    assert sorted(again) == sorted(some)  # Read to the end: idle as well.


def test_a_reader_knows_from_the_start_where_there_is_more():
    """Its end says so before any answer does; fetches in flight stay bounded."""
    many = 2 * FETCHES_PER_BROKER * PARTITIONS_BEHIND
    reading = Reading()
    reading.positions.drop(WHERE)
    reading.cluster_metadata.update(metadata(partitions=many))
    for number in range(many - 1):
        reading.positions.assign(TopicPartition("clicks", number), 0, 10)
    turns = FETCHES_PER_BROKER // FETCHES_BEHIND
    plans = [plan for _ in range(turns - 1) for plan in reading.positions.plan(reading.cluster_metadata, 0)]
    reading.positions.assign(TopicPartition("clicks", many - 1), 0)  # An idle one, as far as is known.
    plans += [plan for _ in range(3) for plan in reading.positions.plan(reading.cluster_metadata, 0)]
    assert [len(plan.partitions) for plan in plans] == [PARTITIONS_BEHIND] * FETCHES_PER_BROKER
    assert len({part.where for plan in plans for part in plan.partitions}) == FETCHES_PER_BROKER * PARTITIONS_BEHIND


def test_a_look_at_many_partitions_goes_on_where_the_last_one_ended():
    """It ends when there is enough to ask for; so those at the end of the line come as soon as the others."""
    many = 4 * FETCHES_BEHIND * PARTITIONS_BEHIND * 3
    reading = Reading()
    reading.positions.drop(WHERE)
    reading.cluster_metadata.update(metadata(partitions=many))
    for number in range(many):
        reading.positions.assign(TopicPartition("clicks", number), 0, 10)
    asked = []
    for _ in range(3):
        for plan in reading.positions.plan(reading.cluster_metadata, 0):
            asked += [part.where.partition for part in plan.partitions]
            response = broker_pb2.FetchResponse()
            entry = response.topics.add(topic_id=TOPIC_ID)
            for part in plan.partitions:  # There was no room for them in the answer.
                entry.partitions.add(partition=part.where.partition, high_watermark=10, preferred_replica=-1)
            reading.positions.take_answer(
                plan, SplicedMessage(response, [[b""]] * len(plan.partitions)), reading.cluster_metadata, 0
            )
    looked_at = 3 * PARTITIONS_BEHIND * FETCHES_BEHIND  # By three known brokers, of which one leads all.
    assert {number // looked_at for number in asked} == {0, 1, 2}


def test_the_engine_is_told_of_what_it_has_to_look_at_and_of_nothing_else():
    """That a record was received is none of it: a reader would wake its engine with every completed fetch."""
    reading = Reading(prefetch_bytes=4096, max_partition_fetch_bytes=4096)
    assert reading.positions.has_news
    reading.positions.has_news = False
    reading.answer(reading.fetch(), batch(0))
    reading.deliver()
    assert not reading.positions.has_news

    wide = batch(10, records=2000)
    reading.answer(reading.fetch(), wide)
    assert reading.fetch() is None  # There is no room for more.
    reading.deliver(2010)
    assert reading.positions.has_news

    for change in (
        lambda: reading.positions.seek(WHERE, 5),
        lambda: reading.positions.pause(WHERE),
        lambda: reading.positions.resume(WHERE),
        lambda: reading.fail(reading.fetch()),
        lambda: reading.positions.drop(WHERE),
    ):
        reading.positions.has_news = False
        change()
        assert reading.positions.has_news


def test_a_position_that_is_gone_is_news_when_all_before_it_is_received():
    """Only then the engine looks for another one."""
    reading = Reading()
    reading.answer(reading.fetch(), batch(0))
    reading.answer(reading.fetch(), error=OffsetOutOfRangeError("gone"))
    reading.positions.has_news = False
    assert reading.positions.resets() == []
    reading.deliver()
    assert reading.positions.has_news
    assert reading.positions.resets() == [WHERE]
    reading.positions.seek(WHERE, 50)
    assert reading.positions.resets() == []


def test_chunks_are_handed_out_in_turns():
    """One of each partition that has some, however many it has; one that was dropped has no turn."""
    reading = Reading()
    reading.cluster_metadata.update(metadata(partitions=3))
    for number in (1, 2):
        reading.positions.assign(TopicPartition("clicks", number), 0)
    for base in (0, 10):
        plan = reading.fetch()
        response = broker_pb2.FetchResponse()
        entry = response.topics.add(topic_id=TOPIC_ID)
        for part in plan.partitions:
            entry.partitions.add(partition=part.where.partition, high_watermark=20, preferred_replica=-1)
        batches = [[batch(base)] for _ in plan.partitions]
        reading.positions.take_answer(plan, SplicedMessage(response, batches), reading.cluster_metadata, 0)
    order = [reading.positions.pop(0).where.partition for _ in range(3)]
    assert sorted(order) == [0, 1, 2]
    assert reading.positions.has_completed_fetches()
    reading.positions.drop(TopicPartition("clicks", order[0]))
    assert [reading.positions.pop(0).where.partition for _ in range(2)] == order[1:]
    assert not reading.positions.has_completed_fetches()
    assert reading.positions.pop(0) is None


def test_a_truncation_that_is_due_is_told_before_more_is_collected():
    """A poll that has collected one partition's last records must not meet another's error with them in its hands."""
    reading = Reading()
    other = TopicPartition("clicks", 1)
    reading.cluster_metadata.update(metadata(partitions=2))
    reading.positions.assign(other, 0)
    for diverged in (False, True):
        plan = reading.fetch()
        response = broker_pb2.FetchResponse()
        entry = response.topics.add(topic_id=TOPIC_ID)
        batches = []
        for part in plan.partitions:
            result = entry.partitions.add(partition=part.where.partition, high_watermark=20, preferred_replica=-1)
            batches.append([batch(10 * diverged)])
            if diverged and part.where == WHERE:
                result.diverged.leader_epoch, result.diverged.end_offset = 2, 5
                batches[-1] = [b""]
        reading.positions.take_answer(plan, SplicedMessage(response, batches), reading.cluster_metadata, 0)
    while (completed := reading.positions.pop(0)).where != WHERE:
        pass
    assert reading.positions.has_completed_fetches()
    reading.positions.deliver(WHERE, completed.generation, 10, 3)
    assert not reading.positions.has_completed_fetches()
    with pytest.raises(LogTruncationError):
        reading.positions.pop(0)


def test_without_a_rack_no_replica_is_asked_for():
    reading = Reading()
    plan = reading.fetch()
    assert plan.request.rack == ""
    reading.answer(plan, preferred=2)
    assert reading.asks()[0] == 1


def test_the_leader_names_a_nearer_replica_and_it_is_read():
    """From the same offset, with the same epochs, and with the rack, which lets it serve."""
    reading = near()
    plan = reading.fetch()
    assert (plan.broker_id, plan.address, plan.request.rack) == (2, "b2:1", "east")
    reading.answer(plan, batch(0))
    reading.deliver(10)
    broker_id, entry = reading.asks()
    assert (broker_id, entry.offset, entry.last_epoch, entry.leader_epoch) == (2, 10, 3, 3)


def test_data_beside_the_replicas_name_is_kept():
    reading = Reading(client_rack="east")
    reading.answer(reading.fetch(), batch(0), preferred=2)
    assert reading.deliver(10).offset == 0
    assert reading.asks()[0] == 2


@pytest.mark.parametrize(
    "error",
    [
        NotLeaderError("no replica"),
        OffsetOutOfRangeError("behind"),
        FencedLeaderEpochError("old"),
        InternalError("bug"),
        None,
    ],
)
def test_a_replica_that_cannot_serve_is_left_for_the_leader(error):
    """At once, at the same offset, without a word to the application; for a while no other is asked for."""
    reading = near()
    reading.read(0)
    plan = reading.fetch()
    assert plan.broker_id == 2
    if error is None:
        assert not reading.fail(plan)
    else:
        assert not reading.answer(plan, error=error)
    assert not reading.positions.resets()
    plan = reading.fetch()
    assert (plan.broker_id, plan.request.rack) == (1, "")
    assert plan.request.topics[0].partitions[0].offset == 10
    reading.answer(plan, batch(10))
    reading.later(REFUSED_REPLICA_MS)
    assert reading.fetch().request.rack == "east"


def test_a_replica_that_has_not_heard_yet_of_the_offset_is_asked_again():
    """A reader that comes from the leader is ahead of what a follower knows to be committed: it waits a little."""
    reading = near()
    reading.read(0)
    for _ in range(LAGGING_TRIES):
        plan = reading.fetch()
        assert plan.broker_id == 2
        assert not reading.answer(plan, error=OffsetNotAvailableError("not yet"))
        assert reading.fetch() is None
        reading.later(800)
    plan = reading.fetch()
    reading.answer(plan)
    reading.answer(reading.fetch(), error=OffsetNotAvailableError("not yet"))
    reading.later(800)
    assert reading.fetch().broker_id == 2, "an answer ends the count"


def test_a_replica_that_stays_behind_is_left():
    reading = near()
    for _ in range(LAGGING_TRIES + 1):
        reading.answer(reading.fetch(), error=OffsetNotAvailableError("not yet"))
        reading.later(1000)
    assert reading.fetch().broker_id == 1


def test_only_the_leader_is_believed_that_the_log_was_replaced():
    """A replica may be behind what was read elsewhere: that is not a truncation."""
    reading = near()
    reading.read(0)
    assert not reading.answer(reading.fetch(), diverged=(3, 5))
    assert reading.asks()[0] == 1
    assert reading.positions.pop(0) is None


def test_a_replica_is_read_for_a_term():
    reading = near()
    reading.later(TERM_MS)
    plan = reading.fetch()
    assert (plan.broker_id, plan.request.rack) == (1, "east")


def test_a_replica_that_brings_nothing_for_long_is_asked_about_again():
    """It may have fallen behind without saying so; the leader knows."""
    reading = near()
    for _ in range(2):
        plan = reading.fetch()
        assert plan.broker_id == 2
        reading.later(SILENT_REPLICA_MS // 2)
        reading.answer(plan)
    assert reading.fetch().broker_id == 1


def test_a_replica_of_unknown_address_is_not_waited_for():
    reading = Reading(client_rack="east")
    reading.answer(reading.fetch(), preferred=9)
    plan = reading.fetch()
    assert (plan.broker_id, plan.request.rack) == (1, "")


def test_a_replica_that_became_leader_is_asked_as_such():
    reading = near()
    reading.cluster_metadata.update(metadata(leader=2, epoch=4))
    plan = reading.fetch()
    assert (plan.broker_id, plan.request.rack, plan.partitions[0].from_leader) == (2, "east", True)


def test_a_replica_that_does_not_answer_is_left_without_asking_anybody():
    reading = near(fetch_max_wait_ms=500)
    stuck = reading.fetch()
    reading.later(500 + OVERDUE_MS)
    assert not reading.positions.give_up_overdue(reading.cluster_metadata, reading.now_ms)
    assert reading.asks()[0] == 1
    assert not reading.answer(stuck, batch(0))
    assert not reading.positions.has_completed_fetches()


def test_a_replica_that_is_named_again_starts_afresh():
    """Neither its earlier tries nor its earlier silence count."""
    reading = near()
    reading.answer(reading.fetch(), error=OffsetNotAvailableError("not yet"))
    reading.later(TERM_MS)
    reading.answer(reading.fetch(), preferred=2)
    plan = reading.fetch()
    assert (plan.broker_id, reading.positions._partitions[WHERE].near.tries) == (2, 0)
    reading.answer(plan)
    assert reading.fetch().broker_id == 2


# --- corruption (PROTOCOL I17) ---


def corrupt(reading):
    """Fetch and find the batch corrupt; whether it is asked for again."""
    plan = reading.fetch()
    reading.answer(plan, batch(0))
    completed = reading.positions.pop(reading.now_ms)
    again = reading.positions.corruption_detected(completed, CorruptBatchError("checksum"), reading.now_ms)
    reading.later(1000)
    return again


def test_a_corrupt_batch_is_asked_for_again_and_the_broker_is_told():
    """A sound copy is delivered as if nothing had been; the reported corruption ends with it."""
    reading = Reading()
    assert corrupt(reading)
    plan = reading.fetch()
    entry = plan.request.topics[0].partitions[0]
    assert (entry.offset, entry.corruption_detected) == (0, True)
    reading.answer(plan, batch(0))
    plan = reading.fetch()
    assert not plan.request.topics[0].partitions[0].corruption_detected, "it is behind the batch"
    reading.deliver(10)
    reading.answer(plan)
    assert not reading.asks()[1].corruption_detected


def test_corruption_is_asked_for_after_a_back_off_and_forgotten_by_a_seek():
    reading = Reading()
    reading.answer(reading.fetch(), batch(0))
    completed = reading.positions.pop(0)
    assert reading.positions.corruption_detected(completed, CorruptBatchError("checksum"), 0)
    assert reading.fetch() is None
    reading.positions.seek(WHERE, 10)
    assert not reading.asks()[1].corruption_detected


def test_after_three_corrupt_copies_it_is_the_applications():
    """And then again after three, as long as the application stays there: nobody passes corruption unaware."""
    reading = Reading()
    for _ in range(2):
        assert [corrupt(reading) for _ in range(CORRUPT_COPIES)] == [True, True, False]


def test_a_new_leaders_copies_are_counted_anew():
    reading = Reading()
    assert corrupt(reading)
    assert corrupt(reading)
    reading.cluster_metadata.update(metadata(leader=2, epoch=4))
    assert corrupt(reading)
    assert corrupt(reading)
    assert not corrupt(reading)


def test_a_nearer_replicas_corruption_leads_back_to_the_leader():
    reading = near()
    assert [corrupt(reading) for _ in range(CORRUPT_COPIES)] == [True] * CORRUPT_COPIES
    plan = reading.fetch()
    assert (plan.broker_id, plan.request.topics[0].partitions[0].corruption_detected) == (1, True)
    reading.answer(plan, batch(0))
    assert reading.deliver(10).broker_id == 1


@pytest.mark.parametrize("error", [StorageOfflineError("corrupt"), CorruptBatchError("corrupt")])
def test_a_leader_that_refuses_what_is_corrupt_is_waited_out(error):
    """Until another one has a sound copy, or patience ends with the error that was found."""
    reading = Reading()
    assert corrupt(reading)
    assert not reading.answer(reading.fetch(), error=error)
    assert "clicks" in reading.positions.stale_topics
    reading.later(CORRUPTION_PATIENCE_MS)
    assert reading.answer(reading.fetch(), error=error)
    with pytest.raises(CorruptBatchError, match="checksum"):
        reading.positions.pop(reading.now_ms)
    reading.later(1000)
    assert not reading.asks()[1].corruption_detected, "then it begins anew"


def test_corruption_in_what_was_left_behind_meanwhile_is_nobodys():
    """A completed fetch from before a seek says nothing about where the reader is now."""
    reading = Reading()
    reading.answer(reading.fetch(), batch(0))
    completed = reading.positions.pop(0)
    reading.positions.seek(WHERE, 500)
    assert reading.positions.corruption_detected(completed, CorruptBatchError("checksum"), 0)
    assert not reading.asks()[1].corruption_detected


# --- answers and metadata that cross ---


def test_an_answer_for_a_topic_that_was_forgotten_meanwhile_is_taken_in():
    """Metadata may say that a topic is gone while a fetch of it is in flight; its answer still finds its partition."""
    reading = Reading()
    plan = reading.fetch()
    gone = cluster_pb2.GetMetadataResponse()
    gone.topics.add(name="clicks", error=to_detail(UnknownTopicError("deleted")))
    reading.cluster_metadata.update(gone)
    assert reading.answer(plan, batch(0))
    assert reading.deliver(10).where == WHERE


# --- throttling ---


def test_a_reader_that_is_told_to_wait_waits():
    """F11: a broker without a place to wait says for how long; nothing is fetched before, then as usual."""
    reading = Reading()
    reading.answer(reading.fetch(), throttle_ms=125)
    assert reading.fetch() is None
    assert reading.positions.next_retry_ms(reading.now_ms) == 125
    reading.later(124)
    assert reading.fetch() is None
    reading.later(1)
    reading.answer(reading.fetch())
    assert reading.fetch() is not None


def test_what_came_with_a_throttle_is_followed_by_a_fetch_at_once():
    """Only a partition that brought nothing waits, and a newer leader ends its wait."""
    reading = Reading()
    reading.answer(reading.fetch(), batch(0), throttle_ms=125)
    reading.deliver(10)
    reading.answer(reading.fetch(), throttle_ms=10**9)
    assert reading.positions.next_retry_ms(reading.now_ms) == MAX_THROTTLE_MS
    reading.cluster_metadata.update(metadata(leader=2, epoch=4))
    assert reading.fetch().broker_id == 2


def test_an_error_found_before_a_seek_is_not_raised_after_it():
    """It was about the position that the application has left; errors of other partitions are raised."""
    first, second = TopicPartition("clicks", 0), TopicPartition("clicks", 1)
    positions = SubscriptionState(ConsumerConfig(), Backoff(50, 1000, random.Random(1)))
    positions.assign(first, 100)
    positions.assign(second, 0)
    positions.fail(first, TopicRecreatedError(first, 100, b"old", b"new"), 0)
    positions.fail(second, UnknownTopicError("gone"), 0)
    positions.seek(first, 0)
    with pytest.raises(UnknownTopicError):
        positions.pop(0)
    assert positions.pop(0) is None
