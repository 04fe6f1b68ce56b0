"""FetchPlanner: which broker a partition is fetched from, what a response means, when a fetch is given up. No I/O."""

import pytest
from headrace.client.base.retry import OVERDUE_MS
from headrace.client.fetch.fetch_planner import (
    FETCHES_BEHIND,
    FETCHES_PER_BROKER,
    FEWEST_BEHIND,
    MAX_THROTTLE_MS,
    PARTITIONS_BEHIND,
)
from headrace.client.fetch.partition_fetch_state import LAGGING_TRIES, REFUSED_REPLICA_MS, SILENT_REPLICA_MS
from headrace.v1 import broker_pb2, cluster_pb2
from headrace.wire.errors import (
    FencedLeaderEpochError,
    InternalError,
    LeaderHint,
    LeaderNotAvailableError,
    NotLeaderError,
    OffsetNotAvailableError,
    OffsetOutOfRangeError,
    StorageOfflineError,
    UnknownTopicError,
    to_detail,
)
from headrace.wire.ids import TopicPartition
from headrace.wire.zero_copy import SplicedMessage

from tests.unit.client.fetch.reading import OTHER_ID, TERM_MS, TOPIC_ID, WHERE, Reading, batch, metadata, near


def test_a_fetch_names_the_epoch_of_the_batch_before_it(reading):
    """Nothing at first; then that of the last batch fetched, also where it is not delivered yet."""
    plan = reading.fetch()
    assert not plan.request.topics[0].partitions[0].HasField("last_epoch")
    reading.answer(plan, batch(0, epoch=1), batch(10, epoch=2))
    _, entry = reading.asks()
    assert (entry.offset, entry.last_epoch, entry.leader_epoch) == (20, 2, 3)


def test_a_leader_from_before_what_was_read_is_not_asked(reading):
    """A zombie that leads an older epoch lacks what came later, and would call it a truncation (PROTOCOL H4)."""
    reading.read(0, epoch=4)
    assert reading.fetch() is None
    assert reading.fetches.stale_topics == {"clicks"}
    reading.cluster_metadata.update(metadata(leader=2, epoch=4))
    assert reading.asks()[0] == 2


@pytest.mark.parametrize("known", [True, False])
def test_a_newer_leader_is_tried_at_once(known, reading):
    """Back-off is for the leader that failed: with a hint, or with metadata, the next one is asked without waiting."""
    hint = LeaderHint(2, 4, "b2:1") if known else None
    reading.answer(reading.fetch(), error=NotLeaderError("moved", leader=hint))
    if not known:
        assert reading.fetch() is None
        assert reading.fetches.stale_topics == {"clicks"}
        reading.cluster_metadata.update(metadata(leader=2, epoch=4))
    assert reading.asks()[0] == 2


@pytest.mark.parametrize("hint", [None, LeaderHint(3, 9, "b3:1")])
def test_a_leader_of_the_deleted_topic_says_nothing_about_the_new_one(hint, reading):
    """Its epochs begin again: an old broker's answer for the old topic would hide the new leader for good (H26)."""
    answered = reading.fetch()
    reading.cluster_metadata.update(metadata(leader=2, epoch=0, topic_id=OTHER_ID))
    reading.answer(answered, error=NotLeaderError("moved", leader=hint))
    assert reading.cluster_metadata.leader(WHERE) == (2, "b2:1", 0)
    reading.positions.seek(WHERE, 0, OTHER_ID)
    lost = reading.fetch()
    reading.cluster_metadata.update(metadata(leader=3, epoch=0))
    reading.fail(lost)
    assert reading.cluster_metadata.leader(WHERE) == (3, "b3:1", 0)


def test_two_moves_in_a_row_cost_no_wait(reading):
    reading.answer(reading.fetch(), error=NotLeaderError("moved", leader=LeaderHint(2, 4, "b2:1")))
    reading.answer(reading.fetch(), error=FencedLeaderEpochError("moved", leader=LeaderHint(3, 5, "b3:1")))
    assert reading.asks()[0] == 3


def test_a_wrong_hint_is_followed_once_and_then_waits(reading):
    """Two brokers that point at each other in one epoch are asked at the pace of the back-off, and metadata decides."""
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
def test_while_it_waits_for_a_leader_metadata_is_asked_for(error, reading):
    """Each look at the partition asks for metadata again, until a newer leader is known."""
    reading.answer(reading.fetch(), error=error)
    for _ in range(3):
        reading.fetches.stale_topics.clear()
        assert reading.fetch() is None
        assert reading.fetches.stale_topics == {"clicks"}


def test_a_partition_without_a_leader_needs_metadata(reading):
    reading.cluster_metadata.update(metadata(leader=-1, epoch=4))
    assert reading.fetch() is None
    assert reading.fetches.stale_topics == {"clicks"}


def test_an_unreachable_leader_is_tried_again_only_after_a_while(reading):
    reading.fail(reading.fetch())
    reading.cluster_metadata.update(metadata())
    assert reading.fetch() is None
    reading.later(50)
    assert reading.asks()[0] == 1


def test_a_fetch_without_an_answer_is_given_up_for_a_newer_leader():
    """Metadata is asked for once it is overdue; what the old leader answers later is dropped, and nothing twice."""
    reading = Reading(fetch_max_wait_ms=500)
    reading.read(0)
    stuck = reading.fetch()
    reading.later(500 + OVERDUE_MS - 1)
    reading.fetches.give_up_overdue(reading.now_ms)
    assert not reading.fetches.stale_topics
    reading.later(1)
    reading.fetches.give_up_overdue(reading.now_ms)
    assert reading.fetches.stale_topics == {"clicks"}
    assert reading.fetches._in_flight == {1: 1}, "the same leader's is not given up"
    reading.fetches.stale_topics.clear()
    reading.fetches.give_up_overdue(reading.now_ms)
    assert not reading.fetches.stale_topics, "one look a second"
    reading.cluster_metadata.update(metadata(leader=2, epoch=4))
    reading.fetches.give_up_overdue(reading.now_ms)
    plan = reading.fetch()
    assert plan.broker_id == 2
    assert not reading.answer(stuck, batch(10))
    reading.answer(plan, batch(10, epoch=4))
    assert reading.deliver(20, 4).offset == 10
    assert not reading.positions.has_completed_fetches()


def test_a_success_ends_the_back_off_and_failures_raise_it(reading):
    """Counted from the last success on; the application's errors count as failures."""
    partition = reading.positions.partitions[WHERE]
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


def test_a_wait_that_is_over_does_not_wake_the_engine_again(reading):
    """A partition that is in flight again or has no leader has no retry time; otherwise the engine would spin."""
    reading.fail(reading.fetch())
    reading.cluster_metadata.update(metadata())
    reading.now_ms += 60
    assert reading.fetch() is not None
    assert reading.positions.next_retry_ms(reading.now_ms) is None
    reading = Reading()
    reading.fail(reading.fetch())
    reading.now_ms += 60
    assert reading.fetch() is None
    assert reading.fetches.stale_topics == {"clicks"}
    assert reading.positions.next_retry_ms(reading.now_ms) is None


def test_an_answer_to_what_was_asked_before_a_seek_is_dropped(reading):
    """And the partition is fetched from its new position meanwhile."""
    old = reading.fetch()
    reading.positions.seek(WHERE, 500)
    new = reading.fetch()
    assert new.partitions[0].offset == 500
    assert not reading.answer(old, batch(0))
    assert not reading.positions.has_completed_fetches()
    reading.answer(new, batch(500))
    assert reading.deliver(510).offset == 500


def test_partitions_take_turns_and_one_that_is_idle_holds_up_none(reading):
    """Each is in a fetch of its own while another waits; at most eight fetches are in flight to a broker."""
    reading.cluster_metadata.update(metadata(partitions=10))
    for number in range(1, 10):
        reading.positions.assign(TopicPartition("clicks", number), 0)
        plans = reading.fetches.plan(0)
        first = number == 1
        assert [part.where.partition for plan in plans for part in plan.partitions] == (
            [0, 1] if first else [number] if number < FETCHES_PER_BROKER + 1 else []
        )


def test_of_many_partitions_those_that_have_more_are_asked_for_first():
    """A few per fetch, as a response has room for few; idle partitions share one fetch and delay no other."""
    many = 3 * PARTITIONS_BEHIND
    reading = Reading()
    reading.cluster_metadata.update(metadata(partitions=many))
    for number in range(1, many):
        reading.positions.assign(TopicPartition("clicks", number), 0)

    def fetches():
        plans = reading.fetches.plan(0)
        return plans, [[part.where.partition for part in plan.partitions] for plan in plans]

    (first,), (asked,) = fetches()
    assert sorted(asked) == list(range(many))  # Nothing is known yet.
    response = broker_pb2.FetchResponse()
    entry = response.topics.add(topic_id=TOPIC_ID)
    for number in range(many):  # Those of odd numbers have ten records more than nothing.
        entry.partitions.add(partition=number, high_watermark=10 * (number % 2), preferred_replica=-1)
    reading.fetches.take_answer(first, SplicedMessage(response, [[b""]] * many), 0)

    (behind, *_), (some, more, others) = fetches()
    assert (len(some), {number % 2 for number in some}) == (PARTITIONS_BEHIND, {1})
    assert sorted(some + more) == list(range(1, many, 2))
    assert sorted(others) == list(range(0, many, 2))
    assert fetches() == ([], [])

    response = broker_pb2.FetchResponse()
    entry = response.topics.add(topic_id=TOPIC_ID)
    for number in some:
        entry.partitions.add(partition=number, high_watermark=10, preferred_replica=-1)
    reading.fetches.take_answer(behind, SplicedMessage(response, [[batch(0)]] * len(some)), 0)
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
    plans = [plan for _ in range(turns - 1) for plan in reading.fetches.plan(0)]
    reading.positions.assign(TopicPartition("clicks", many - 1), 0)  # An idle one, as far as is known.
    plans += [plan for _ in range(3) for plan in reading.fetches.plan(0)]
    assert [len(plan.partitions) for plan in plans] == [PARTITIONS_BEHIND] * FETCHES_PER_BROKER
    assert len({part.where for plan in plans for part in plan.partitions}) == FETCHES_PER_BROKER * PARTITIONS_BEHIND


def test_a_look_at_many_partitions_continues_where_the_last_one_ended():
    """It ends when there is enough to ask for; so those at the end of the line come as soon as the others."""
    many = 4 * FETCHES_BEHIND * PARTITIONS_BEHIND * 3
    reading = Reading()
    reading.positions.drop(WHERE)
    reading.cluster_metadata.update(metadata(partitions=many))
    for number in range(many):
        reading.positions.assign(TopicPartition("clicks", number), 0, 10)
    asked = []
    for _ in range(3):
        for plan in reading.fetches.plan(0):
            asked += [part.where.partition for part in plan.partitions]
            response = broker_pb2.FetchResponse()
            entry = response.topics.add(topic_id=TOPIC_ID)
            for part in plan.partitions:  # There was no room for them in the answer.
                entry.partitions.add(partition=part.where.partition, high_watermark=10, preferred_replica=-1)
            reading.fetches.take_answer(plan, SplicedMessage(response, [[b""]] * len(plan.partitions)), 0)
    looked_at = 3 * PARTITIONS_BEHIND * FETCHES_BEHIND  # By three known brokers, of which one leads all.
    assert {number // looked_at for number in asked} == {0, 1, 2}


@pytest.mark.parametrize(("filled", "then"), [(1, FEWEST_BEHIND), (10, 20), (60, PARTITIONS_BEHIND)])
def test_a_fetch_has_about_as_many_partitions_as_responses_have_room_for(filled, then):
    """Twice as many: the number falls with a response that left some out, and rises with one that left out none."""
    many = 400
    reading = Reading()
    reading.positions.drop(WHERE)
    reading.cluster_metadata.update(metadata(partitions=many))
    for number in range(many):
        reading.positions.assign(TopicPartition("clicks", number), 0, 1000)
    first, *_ = reading.fetches.plan(0)
    assert len(first.partitions) == PARTITIONS_BEHIND
    take_filled(reading, first, filled)
    reading.fetches.plan(0)
    sizes = []
    for _ in range(4):
        plan = reading.fetches.plan(0)[0]
        sizes.append(len(plan.partitions))
        take_filled(reading, plan, len(plan.partitions))
    assert sizes == [min(PARTITIONS_BEHIND, then * 2**turn) for turn in range(4)]


def take_filled(reading, plan, filled):
    """Respond with batches of the first `filled` partitions; there was no room for the others."""
    response = broker_pb2.FetchResponse()
    entry = response.topics.add(topic_id=TOPIC_ID)
    for part in plan.partitions:
        entry.partitions.add(partition=part.where.partition, high_watermark=1000, preferred_replica=-1)
    batches = [[batch(0)] if index < filled else [b""] for index in range(len(plan.partitions))]
    reading.fetches.take_answer(plan, SplicedMessage(response, batches), 0)


def test_without_a_rack_no_replica_is_asked_for(reading):
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


def test_data_with_the_replicas_name_is_kept():
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
    assert not reading.fetches.give_up_overdue(reading.now_ms)
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
    assert (plan.broker_id, reading.positions.partitions[WHERE].near.tries) == (2, 0)
    reading.answer(plan)
    assert reading.fetch().broker_id == 2


def test_an_answer_for_a_topic_that_was_forgotten_meanwhile_is_taken_in(reading):
    """Metadata may say that a topic is gone while a fetch of it is in flight; its answer still finds its partition."""
    plan = reading.fetch()
    gone = cluster_pb2.GetMetadataResponse()
    gone.topics.add(name="clicks", error=to_detail(UnknownTopicError("deleted")))
    reading.cluster_metadata.update(gone)
    assert reading.answer(plan, batch(0))
    assert reading.deliver(10).where == WHERE


def test_a_reader_that_is_told_to_wait_waits(reading):
    """F11: a broker without a place to wait says for how long; nothing is fetched before, then as usual."""
    reading.answer(reading.fetch(), throttle_ms=125)
    assert reading.fetch() is None
    assert reading.positions.next_retry_ms(reading.now_ms) == 125
    reading.later(124)
    assert reading.fetch() is None
    reading.later(1)
    reading.answer(reading.fetch())
    assert reading.fetch() is not None


def test_what_came_with_a_throttle_is_followed_by_a_fetch_at_once(reading):
    """Only a partition that brought nothing waits, and a newer leader ends its wait."""
    reading.answer(reading.fetch(), batch(0), throttle_ms=125)
    reading.deliver(10)
    reading.answer(reading.fetch(), throttle_ms=10**9)
    assert reading.positions.next_retry_ms(reading.now_ms) == MAX_THROTTLE_MS
    reading.cluster_metadata.update(metadata(leader=2, epoch=4))
    assert reading.fetch().broker_id == 2
