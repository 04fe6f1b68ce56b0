"""SubscriptionState: positions, what is delivered of what was fetched, errors of partitions. No I/O, no clock."""

import random

import pytest
from headrace.client.base.config import ConsumerConfig
from headrace.client.base.errors import LogTruncationError, TopicRecreatedError
from headrace.client.base.retry import Backoff
from headrace.client.fetch.partition_fetch_state import CORRUPT_COPIES, CORRUPTION_PATIENCE_MS
from headrace.client.fetch.subscription_state import SubscriptionState
from headrace.v1 import broker_pb2
from headrace.wire.errors import (
    CorruptBatchError,
    InternalError,
    OffsetOutOfRangeError,
    StorageOfflineError,
    UnknownTopicError,
)
from headrace.wire.ids import TopicPartition
from headrace.wire.zero_copy import SplicedMessage

from tests.unit.client.fetch.reading import OTHER_ID, TOPIC_ID, WHERE, Reading, batch, metadata, near


def test_after_a_rewind_the_epoch_is_that_of_what_was_delivered(reading):
    """What was fetched and dropped says nothing; a position inside a batch has the epoch of that batch."""
    reading.answer(reading.fetch(), batch(0, epoch=1), batch(10, epoch=2))
    reading.deliver(5, epoch=1)
    reading.positions.pause(WHERE)
    reading.positions.resume(WHERE)
    _, entry = reading.asks()
    assert (entry.offset, entry.last_epoch) == (5, 1)


def test_a_position_that_was_chosen_is_not_checked(reading):
    """After a seek nothing is known of the batch before it, until one has been read there."""
    reading.read(0)
    reading.positions.seek(WHERE, 7)
    plan = reading.fetch()
    assert not plan.request.topics[0].partitions[0].HasField("last_epoch")
    reading.answer(plan, batch(0))
    assert reading.asks()[1].last_epoch == 3


def test_a_replaced_log_is_an_error_once_all_that_was_read_is_delivered(reading):
    """The error has the diverging offset; it is raised until a seek moves the position, and then reading continues."""
    reading.answer(reading.fetch(), batch(0), batch(10))
    assert reading.answer(reading.fetch(), diverged=(2, 15))
    assert reading.fetch() is None
    reading.deliver(20)
    for _ in range(2):
        with pytest.raises(LogTruncationError) as caught:
            reading.positions.pop(reading.now_ms)
        error = caught.value
        assert (error.partition, error.position, error.diverging_offset, error.leader_epoch) == (WHERE, 20, 0, 2)
        assert "continue from 0" in str(error)
        reading.later(1000)
        reading.answer(reading.fetch(), diverged=(2, 15))
    reading.positions.seek(WHERE, 15)
    plan = reading.fetch()
    assert plan.partitions[0].offset == 15
    reading.answer(plan, batch(15, epoch=4))
    reading.deliver(25, epoch=4)
    assert list(reading.positions.partitions[WHERE].epochs) == [(4, 15)], "what was read before is another log"


@pytest.mark.parametrize(
    ("diverged", "offset"),
    [((3, 25), 25), ((2, 15), 15), ((2, 30), 20), ((1, 99), 10), ((0, 3), 0), ((-1, 0), 0)],
)
def test_the_diverging_offset_is_where_the_logs_part_as_far_as_epochs_tell(diverged, offset, reading):
    """The leader's end of an epoch that both have, or where ours of that epoch ended, whichever is less: later records,
    read in later epochs, are not in the leader's log, however long its own epoch is.
    """
    for base, epoch in ((0, 1), (10, 2), (20, 3)):
        reading.read(base, epoch)
    reading.answer(reading.fetch(), diverged=diverged)
    with pytest.raises(LogTruncationError) as caught:
        reading.positions.pop(0)
    assert caught.value.diverging_offset == offset


def test_a_position_of_another_life_of_the_topic_is_lost(reading):
    """Offsets and epochs of a topic say nothing about the one that was created again under its name."""
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


def test_what_was_fetched_of_the_old_life_is_delivered_before_the_position_is_lost(reading):
    reading.answer(reading.fetch(), batch(0))
    reading.cluster_metadata.update(metadata(topic_id=OTHER_ID))
    assert reading.asks() is None
    assert reading.positions.resets() == []
    reading.deliver()
    assert reading.positions.resets() == [WHERE]


def test_a_position_of_a_newer_life_waits_for_the_metadata_to_reach_it(reading):
    """A look-up may find a new life before the background does: only a later answer can say that it is gone, too."""
    reading.positions.assign(WHERE, 5, topic_id=OTHER_ID)
    assert reading.asks() is None
    assert reading.fetches.stale_topics == {"clicks"}
    assert reading.positions.resets() == []
    reading.cluster_metadata.update(metadata(epoch=0, topic_id=OTHER_ID))
    assert reading.asks()[1].offset == 5
    reading = Reading()
    reading.positions.assign(WHERE, 5, topic_id=OTHER_ID)
    assert reading.asks() is None
    reading.cluster_metadata.update(metadata(topic_id=b"e" * 16))
    assert reading.asks() is None
    assert reading.positions.replaced(WHERE) == (OTHER_ID, b"e" * 16)


def test_a_seek_after_the_loss_continues_in_the_new_topic(reading):
    reading.read(0)
    reading.cluster_metadata.update(metadata(epoch=0, topic_id=OTHER_ID))
    assert reading.asks() is None
    reading.positions.seek(WHERE, 3)
    assert reading.fetch().request.topics[0].topic.topic_id == OTHER_ID


def test_a_position_that_is_gone_is_reset_once_all_that_was_read_is_delivered(reading):
    """Not before: what was fetched below it is good."""
    reading.answer(reading.fetch(), batch(0))
    assert not reading.answer(reading.fetch(), error=OffsetOutOfRangeError("gone"))
    assert reading.positions.resets() == []
    assert reading.fetch() is None
    reading.deliver(10)
    assert reading.positions.resets() == [WHERE]


@pytest.mark.parametrize("error", [UnknownTopicError("gone"), InternalError("odd")])
def test_what_the_application_has_moves_a_position_that_failed_meanwhile(error, reading):
    """A fetch fails while a completed fetch is open: what is received of that completed fetch is not fetched again."""
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


def test_what_was_fetched_before_a_seek_is_received_no_more(reading):
    """The engine itself seeks where a topic was made anew: an open completed fetch is of the old one."""
    reading.answer(reading.fetch(), batch(0))
    completed = reading.positions.pop(0)
    assert reading.positions.deliver(WHERE, completed.generation, 3, 3)
    reading.positions.seek(WHERE, 0, b"d" * 16)
    assert not reading.positions.deliver(WHERE, completed.generation, 7, 3)
    assert reading.positions.position(WHERE) == 0


def test_a_position_that_is_tried_again_waits_where_that_is_asked_for(reading):
    reading.positions.rewind(WHERE)
    reading.answer(reading.fetch(), batch(0))
    reading.positions.rewind(WHERE, reading.now_ms)
    assert reading.fetch() is None
    reading.later(50)
    assert reading.asks()[1].offset == 0


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


def test_a_position_that_is_gone_is_news_when_all_before_it_is_received(reading):
    """Only then the engine looks for another one."""
    reading.answer(reading.fetch(), batch(0))
    reading.answer(reading.fetch(), error=OffsetOutOfRangeError("gone"))
    reading.positions.has_news = False
    assert reading.positions.resets() == []
    reading.deliver()
    assert reading.positions.has_news
    assert reading.positions.resets() == [WHERE]
    reading.positions.seek(WHERE, 50)
    assert reading.positions.resets() == []


def test_chunks_are_handed_out_in_turns(reading):
    """One of each partition that has some, however many it has; one that was dropped has no turn."""
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
        reading.fetches.take_answer(plan, SplicedMessage(response, batches), 0)
    order = [reading.positions.pop(0).where.partition for _ in range(3)]
    assert sorted(order) == [0, 1, 2]
    assert reading.positions.has_completed_fetches()
    reading.positions.drop(TopicPartition("clicks", order[0]))
    assert [reading.positions.pop(0).where.partition for _ in range(2)] == order[1:]
    assert not reading.positions.has_completed_fetches()
    assert reading.positions.pop(0) is None


def test_a_truncation_that_is_due_is_told_before_more_is_collected(reading):
    """A poll that has collected one partition's last records must not meet another's error with them in its hands."""
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
        reading.fetches.take_answer(plan, SplicedMessage(response, batches), 0)
    while (completed := reading.positions.pop(0)).where != WHERE:
        pass
    assert reading.positions.has_completed_fetches()
    reading.positions.deliver(WHERE, completed.generation, 10, 3)
    assert not reading.positions.has_completed_fetches()
    with pytest.raises(LogTruncationError):
        reading.positions.pop(0)


def corrupt(reading):
    """Fetch and find the batch corrupt; whether it is asked for again."""
    plan = reading.fetch()
    reading.answer(plan, batch(0))
    completed = reading.positions.pop(reading.now_ms)
    again = reading.positions.corruption_detected(completed, CorruptBatchError("checksum"), reading.now_ms)
    reading.later(1000)
    return again


def test_a_corrupt_batch_is_asked_for_again_and_the_broker_is_told(reading):
    """A sound copy is delivered as if nothing had been; the reported corruption ends with it."""
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


def test_corruption_is_asked_for_after_a_back_off_and_forgotten_by_a_seek(reading):
    reading.answer(reading.fetch(), batch(0))
    completed = reading.positions.pop(0)
    assert reading.positions.corruption_detected(completed, CorruptBatchError("checksum"), 0)
    assert reading.fetch() is None
    reading.positions.seek(WHERE, 10)
    assert not reading.asks()[1].corruption_detected


def test_after_three_corrupt_copies_it_is_the_applications(reading):
    """Every further three raise again while the position is unchanged: no application passes corruption unnoticed."""
    for _ in range(2):
        assert [corrupt(reading) for _ in range(CORRUPT_COPIES)] == [True, True, False]


def test_a_new_leaders_copies_are_counted_anew(reading):
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
def test_a_leader_that_refuses_what_is_corrupt_is_waited_out(error, reading):
    """Until another one has a sound copy, or patience ends with the error that was found."""
    assert corrupt(reading)
    assert not reading.answer(reading.fetch(), error=error)
    assert "clicks" in reading.fetches.stale_topics
    reading.later(CORRUPTION_PATIENCE_MS)
    assert reading.answer(reading.fetch(), error=error)
    with pytest.raises(CorruptBatchError, match="checksum"):
        reading.positions.pop(reading.now_ms)
    reading.later(1000)
    assert not reading.asks()[1].corruption_detected, "then it begins anew"


def test_corruption_in_a_fetch_that_a_seek_has_replaced_is_ignored(reading):
    """A completed fetch from before a seek says nothing about where the reader is now."""
    reading.answer(reading.fetch(), batch(0))
    completed = reading.positions.pop(0)
    reading.positions.seek(WHERE, 500)
    assert reading.positions.corruption_detected(completed, CorruptBatchError("checksum"), 0)
    assert not reading.asks()[1].corruption_detected


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


def test_errors_of_a_partition_are_one_until_it_is_raised(reading):
    """An application that does not poll for long gets the last one, and the partition is fetched ever less often."""
    delays = []
    for _ in range(10):
        started_ms = reading.now_ms
        reading.positions.fail(WHERE, UnknownTopicError("gone"), reading.now_ms)
        delays.append(reading.positions.partitions[WHERE].retry_at_ms - started_ms)
        reading.now_ms += 10_000
    assert max(delays[5:]) > 100, "50 ms is the bound of the first delay"
    with pytest.raises(UnknownTopicError):
        reading.positions.pop(reading.now_ms)
    assert reading.positions.pop(reading.now_ms) is None


def test_an_error_of_a_partition_that_is_not_read_any_more_is_dropped(reading):
    reading.positions.fail(WHERE, UnknownTopicError("gone"), 0)
    reading.positions.assign(WHERE, 0)
    assert reading.positions.pop(0) is None
