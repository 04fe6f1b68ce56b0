"""A consumer of a group, against a coordinator that does what the test says."""

from __future__ import annotations

import threading
import time

import headrace
import pytest
from headrace import OffsetAndMetadata, TopicPartition
from headrace.wire.columns import encode_batch
from headrace.wire.errors import (
    FencedInstanceError,
    FencedMemberEpochError,
    GroupTooLargeError,
    InvalidRequestError,
    NotOwnerError,
    ThrottledError,
    TimedOutError,
    UnknownMemberError,
    UnknownTopicIdError,
)

from tests.fakes.groups import fake_groups

P0, P1 = TopicPartition("clicks", 0), TopicPartition("clicks", 1)
WAIT = 20


def fill(cluster, count, partition=0, size=10, topic="clicks"):
    for base in range(0, count, size):
        values = [f"{partition}/{n}".encode() for n in range(base, min(base + size, count))]
        cluster.append(topic, encode_batch(values, base_timestamp_ms=1_000), partition)


class Calls:
    """What was called back, with the thread that called."""

    def __init__(self):
        self.calls = []
        self.threads = set()

    def settings(self):
        return {name: self._note(name) for name in ("on_assigned", "on_revoked", "on_lost")}

    def _note(self, name):
        def callback(partitions):
            self.calls.append((name, partitions))
            self.threads.add(threading.current_thread())

        return callback


def consumer_for(cluster, **settings):
    settings = {
        "auto_offset_reset": "earliest",
        "fetch_max_wait_ms": 50,
        "auto_commit_interval_ms": 50,
        "retry_backoff_ms": 1,
        "retry_backoff_max_ms": 20,
        **settings,
    }
    return headrace.Consumer("clicks", bootstrap_servers=cluster.address, group_id="g", **settings)


def poll_until(consumer, condition, records=None):
    deadline = time.monotonic() + WAIT
    while not condition():
        batch = consumer.poll(0.02)
        if records is not None:
            records.extend(batch)
        assert time.monotonic() < deadline, "it did not come"


def test_what_is_assigned_is_read_and_callbacks_come_on_the_reading_thread(clicks, groups):
    fill(clicks, 20)
    calls = Calls()
    with consumer_for(clicks, **calls.settings()) as consumer:
        records = []
        poll_until(consumer, lambda: len(records) == 20, records)
        assert consumer.assignment() == [P0]
        assert consumer.assignment_epoch(P0) == 2
        assert consumer.health().ready
        assert consumer.health().healthy
    assert calls.calls == [("on_assigned", [P0]), ("on_revoked", [P0])]
    assert calls.threads == {threading.current_thread()}
    assert groups.left == groups.members
    assert groups.offset("clicks", 0) == 20


def test_a_topic_that_does_not_exist_is_named_in_a_warning(clicks, groups, caplog):
    """A group waits for it, so that a wrong name would never be seen."""
    fill(clicks, 1)
    with headrace.Consumer("clicks", "clcks", bootstrap_servers=clicks.address, group_id="g"):
        pass
    assert [record.getMessage() for record in caplog.records if record.name == "headrace.consumer"] == [
        "group g waits for topics that do not exist: clcks; create them, or check their names"
    ]


def test_a_stored_offset_is_where_reading_starts(clicks, groups):
    fill(clicks, 20)
    groups.offsets["clicks", 0] = groups_offset(0, 13)
    with consumer_for(clicks) as consumer:
        records = []
        poll_until(consumer, lambda: records, records)
        assert records[0].offset == 13
        assert [request.min_revision for request in groups.looked_up] == [groups.revision], "no older view will do"
        assert consumer.committed(P0, P1) == {P0: OffsetAndMetadata(13, 0, "mine"), P1: None}


def test_what_was_committed_is_read_back_from_any_coordinator(clicks, groups):
    """Another one may answer, and its view may be behind the commit."""
    fill(clicks, 5)
    with consumer_for(clicks, enable_auto_commit=False) as consumer:
        poll_until(consumer, lambda: consumer.assignment() == [P0])
        consumer.commit({P0: 3})
        stored_at = 1_000 + len(groups.commits)
        assert consumer.committed(P0)[P0].offset == 3
    assert groups.looked_up[-1].min_revision == stored_at > groups.revision


def groups_offset(partition, offset):
    from headrace.v1 import groups_pb2

    return groups_pb2.PartitionOffset(partition=partition, offset=offset, leader_epoch=0, metadata="mine")


def test_a_start_without_an_offset_is_stored_so_that_a_restart_skips_nothing(clicks, groups):
    fill(clicks, 20)
    with consumer_for(clicks, auto_offset_reset="latest") as consumer:
        poll_until(consumer, lambda: groups.offset("clicks", 0) == 20)
        assert consumer.position(P0) == 20


def test_an_added_partition_is_read_from_its_beginning_whatever_the_reset(clicks, groups):
    """With `latest`: what came into it before this member heard of it is nothing that anybody chose to skip."""
    fill(clicks, 5)
    fill(clicks, 5, partition=1)
    groups.added.add(("clicks", 1))
    groups.assign(("clicks", 0), ("clicks", 1))
    with consumer_for(clicks, auto_offset_reset="latest") as consumer:
        records = []
        poll_until(consumer, lambda: len(consumer.assignment()) == 2 and len(records) == 5, records)
        assert [(record.partition, record.offset) for record in records] == [(1, offset) for offset in range(5)]
        assert consumer.position(P0) == 5


def test_without_an_offset_and_without_a_reset_the_application_is_told(clicks, groups):
    with consumer_for(clicks, auto_offset_reset="error") as consumer:
        with pytest.raises(headrace.HeadraceError, match="no committed offset for clicks-0"):
            poll_until(consumer, lambda: False)


def test_in_a_loop_all_but_the_record_at_hand_is_committed(clicks, groups):
    fill(clicks, 20)
    consumer = consumer_for(clicks)
    for record in consumer:
        if record.offset == 7:
            groups.wait_for(lambda: groups.offset("clicks", 0) == 7, "the commit of the seven that are done")
            break
    consumer.close()
    assert groups.offset("clicks", 0) == 7


def test_leaving_the_block_says_that_everything_was_dealt_with_and_an_error_does_not(clicks, groups):
    fill(clicks, 20)
    with pytest.raises(ZeroDivisionError), consumer_for(clicks) as consumer:
        for record in consumer:
            if record.offset == 4:
                raise ZeroDivisionError
    assert groups.offset("clicks", 0) == 4
    with consumer_for(clicks) as consumer:
        for record in consumer:
            if record.offset == 9:
                break
    assert groups.offset("clicks", 0) == 10


def test_a_loop_ends_between_two_records_when_its_partition_is_revoked(clicks, groups):
    fill(clicks, 100, size=100)
    fill(clicks, 100, partition=1, size=100)
    groups.assign(("clicks", 0), ("clicks", 1))
    calls = Calls()
    with consumer_for(clicks, **calls.settings()) as consumer:
        records = iter(consumer)
        seen = [next(records) for _ in range(5)]
        given_up, stays = seen[-1].partition, 1 - seen[-1].partition
        groups.assign(("clicks", stays))
        has_news = consumer._core.fetcher.interrupts
        groups.wait_for(lambda: bool(has_news), "the news")
        assert next(records).partition == stays
        assert ("on_revoked", [TopicPartition("clicks", given_up)]) in calls.calls
        groups.wait_for(lambda: groups.reported_owned() == {("clicks", stays)}, "that it was given up")
        assert groups.offset("clicks", given_up) == 5


def test_what_stays_is_not_fetched_again(clicks, groups):
    fill(clicks, 100, size=10)
    groups.assign(("clicks", 0), ("clicks", 1))
    with consumer_for(clicks) as consumer:
        records = list(consumer.poll(WAIT, 10))
        generation = consumer._core.fetcher.positions.generation(P0)
        groups.assign(("clicks", 0))
        poll_until(consumer, lambda: consumer.assignment() == [P0], records)
        assert consumer._core.fetcher.positions.generation(P0) == generation


def test_a_fenced_member_hears_what_it_lost_and_joins_again(clicks, groups):
    fill(clicks, 20)
    calls = Calls()
    with consumer_for(clicks, **calls.settings()) as consumer:
        records = []
        poll_until(consumer, lambda: len(records) == 20, records)
        groups.fence(FencedMemberEpochError("old"))
        poll_until(consumer, lambda: ("on_lost", [P0]) in calls.calls)
        groups.assign(("clicks", 1))
        poll_until(consumer, lambda: consumer.assignment() == [P1])
        assert len(groups.members) == 2
        assert len(set(groups.members)) == 2
    assert [name for name, _ in calls.calls] == ["on_assigned", "on_lost", "on_assigned", "on_revoked"]


@pytest.mark.parametrize("error", [FencedInstanceError("two"), GroupTooLargeError("many"), InvalidRequestError("bad")])
def test_what_the_group_refuses_for_good_is_the_applications_error_at_every_call(clicks, groups, error):
    calls = Calls()
    with consumer_for(clicks, group_instance_id="i", **calls.settings()) as consumer:
        poll_until(consumer, consumer.assignment)
        groups.fence(error)
        for _ in range(2):
            with pytest.raises(type(error)):
                poll_until(consumer, lambda: False)
        assert not consumer.health().healthy
        with pytest.raises(type(error)):
            consumer.commit()
    assert calls.calls[-1] == ("on_lost", [P0])
    assert groups.left == []


def test_a_commit_refused_to_a_former_owner_is_raised_and_loses_that_partition(clicks, groups):
    fill(clicks, 10)
    fill(clicks, 10, partition=1)
    groups.assign(("clicks", 0), ("clicks", 1))
    calls = Calls()
    with consumer_for(clicks, enable_auto_commit=False, **calls.settings()) as consumer:
        records = []
        poll_until(consumer, lambda: len(records) == 20, records)
        groups.partition_faults["clicks", 1] = NotOwnerError("another's")
        with pytest.raises(NotOwnerError):
            consumer.commit()
        assert groups.offset("clicks", 0) == 10
        poll_until(consumer, lambda: ("on_lost", [P1]) in calls.calls)
        assert consumer.assignment() == [P0]
        with pytest.raises(NotOwnerError):
            consumer.commit({P1: 3})


def test_a_commit_without_an_answer_is_sent_again_unchanged_before_any_later_one(clicks, groups):
    fill(clicks, 30)
    with consumer_for(clicks, enable_auto_commit=False) as consumer:
        consumer.poll(WAIT, 10)
        groups.lost_commits = 3
        consumer.commit_async({P0: 4})
        groups.wait_for(lambda: len(groups.commits) >= 1, "the first commit")
        consumer.commit({P0: 7})
        sent = [request.topics[0].partitions[0].offset for request in groups.commits]
        assert sent == [4, 4, 4, 4, 7]
        assert len({request.SerializeToString() for request in groups.commits[:4]}) == 1


@pytest.mark.parametrize(
    "error", [UnknownMemberError("behind"), FencedMemberEpochError("behind"), ThrottledError("slow")]
)
def test_a_commit_that_a_coordinator_with_an_old_view_refuses_is_sent_again(clicks, groups, error):
    fill(clicks, 10)
    with consumer_for(clicks, enable_auto_commit=False) as consumer:
        consumer.poll(WAIT)
        groups.commit_faults.append(error)
        consumer.commit()
        assert groups.offset("clicks", 0) == 10
        assert len(groups.members) == 1


def test_a_commit_of_a_deleted_topic_is_refused_and_of_the_others_is_not(clicks, groups):
    fill(clicks, 10)
    with consumer_for(clicks, enable_auto_commit=False) as consumer:
        consumer.poll(WAIT)
        groups.partition_faults["clicks", 0] = UnknownTopicIdError("deleted")
        with pytest.raises(UnknownTopicIdError):
            consumer.commit()
        consumer.commit()


def test_the_callback_of_a_commit_comes_on_the_reading_thread(clicks, groups):
    fill(clicks, 10)
    with consumer_for(clicks, enable_auto_commit=False) as consumer:
        consumer.poll(WAIT)
        said = []
        consumer.commit_async(callback=lambda offsets, error: said.append((offsets, error, threading.current_thread())))
        poll_until(consumer, lambda: said)
        assert said == [({P0: OffsetAndMetadata(10, 0)}, None, threading.current_thread())]


def test_a_commit_in_on_revoked_is_stored_before_the_partition_is_given_up(clicks, groups):
    fill(clicks, 10)
    consumers = []

    def on_revoked(partitions):
        consumers[0].commit({P0: 3})
        assert groups.reported_owned() in (None, {("clicks", 0)})

    with consumer_for(clicks, enable_auto_commit=False, on_revoked=on_revoked) as consumer:
        consumers.append(consumer)
        consumer.poll(WAIT)
        groups.assign()
        poll_until(consumer, lambda: groups.reported_owned() == set())
        assert groups.offset("clicks", 0) == 3


def test_nothing_is_given_up_before_its_last_commit_is_resolved(clicks, groups):
    fill(clicks, 10)
    with consumer_for(clicks, auto_commit_interval_ms=60_000) as consumer:
        consumer.poll(WAIT)
        groups.lost_commits = 5
        groups.assign()
        poll_until(consumer, lambda: groups.reported_owned() == set())
        assert len(groups.commits) == 6
        assert groups.lost_commits == 0
        assert consumer.assignment() == []


def test_while_etcd_is_away_reading_continues_and_health_reports_it(clicks, groups):
    fill(clicks, 10)
    with consumer_for(clicks) as consumer:
        consumer.poll(WAIT)
        with groups.changed:
            groups.is_away = True
            groups.changed.notify_all()
        poll_until(consumer, lambda: not consumer.health().etcd_reachable)
        fill(clicks, 10)
        records = []
        poll_until(consumer, lambda: len(records) == 10, records)
        poll_until(consumer, lambda: "offsets are not committed" in " ".join(consumer.health().notices))
        assert consumer.health().healthy
        with pytest.raises(TimedOutError):
            consumer.commit(timeout=0.05)
        with groups.changed:
            groups.is_away = False
        poll_until(consumer, lambda: groups.offset("clicks", 0) == 20)
        poll_until(consumer, lambda: consumer.health().etcd_reachable)
        assert len(groups.members) == 1


def test_with_stop_on_session_loss_nothing_is_handed_out_once_the_session_may_be_over(clicks, groups):
    fill(clicks, 10)
    with consumer_for(clicks, stop_on_session_loss=True, session_timeout_ms=1_000) as consumer:
        consumer.poll(WAIT)
        with groups.changed:
            groups.is_away = True
            groups.changed.notify_all()
        poll_until(consumer, lambda: not consumer.health().ready)
        fill(clicks, 10)
        assert not consumer.poll(0.2)
        with groups.changed:
            groups.is_away = False
        assert len(consumer.poll(WAIT)) == 10


def test_a_stalled_application_is_told_of_and_leaves_only_where_it_is_asked_to(clicks, groups):
    fill(clicks, 10)
    calls = Calls()
    settings = {"processing_timeout_ms": 20, "heartbeat_interval_ms": 20, **calls.settings()}
    with consumer_for(clicks, **settings) as consumer:
        consumer.poll(WAIT)
        deadline = time.monotonic() + WAIT
        while consumer.health().healthy:
            assert time.monotonic() < deadline
        assert "has not polled for" in consumer.health().problem
        sent = len(groups.heartbeats)
        groups.wait_for(lambda: groups.left or len(groups.heartbeats) > sent + 2, "heartbeats of a stalled member")
        assert groups.left == []
    settings["processing_timeout_ms"] = 500  # Long enough that it does not leave between two polls.
    with consumer_for(clicks, leave_on_processing_timeout=True, **settings) as consumer:
        poll_until(consumer, consumer.assignment)
        groups.wait_for(lambda: len(groups.left) == 2, "that it leaves")
        poll_until(consumer, lambda: ("on_lost", [P0]) in calls.calls)
        poll_until(consumer, consumer.assignment)


@pytest.mark.parametrize("read", [lambda consumer: consumer.poll(WAIT), lambda consumer: next(iter(consumer))])
def test_an_application_may_stall_after_a_poll_that_raised_an_error(clicks, groups, read):
    with consumer_for(clicks, processing_timeout_ms=20) as consumer:
        consumer.wakeup()
        with pytest.raises(headrace.WakeupError):
            read(consumer)
        deadline = time.monotonic() + WAIT
        while consumer.health().healthy:
            assert time.monotonic() < deadline
        assert "has not polled for" in consumer.health().problem


def test_a_seek_is_committed_and_pause_and_wakeup_work_as_without_a_group(clicks, groups):
    fill(clicks, 20)
    with consumer_for(clicks) as consumer:
        consumer.poll(WAIT)
        consumer.seek(P0, 5)
        groups.wait_for(lambda: groups.offset("clicks", 0) == 5, "the commit of the position sought")
        assert consumer.poll(WAIT, 1)[0].offset == 5
        consumer.pause(P0)
        assert not consumer.poll(0)
        consumer.resume(P0)
        assert consumer.poll(WAIT, 1)[0].offset == 6
        consumer.pause(P0)
        consumer.wakeup()
        with pytest.raises(headrace.WakeupError):
            consumer.poll(WAIT)
        assert consumer.lag() == {P0: 13}


def test_another_coordinator_is_asked_when_one_is_gone(clicks, groups):
    fill(clicks, 10)
    with fake_groups(clicks) as gone:
        address = gone.address
    clicks.coordinators = [address, groups.address]
    with consumer_for(clicks) as consumer:
        assert consumer.poll(WAIT)
        consumer.commit()


def test_a_commit_does_not_wait_long_for_one_coordinator(clicks, groups):
    """One whose machine has vanished never answers, and the others could."""
    fill(clicks, 10)
    with consumer_for(clicks) as consumer:
        assert consumer.poll(WAIT)
        consumer.commit()
    assert max(groups.commit_seconds) < 4


def test_what_belongs_to_groups_needs_one_and_a_group_assigns_by_itself(clicks, groups):
    with pytest.raises(headrace.ConfigError, match="names no topic"):
        headrace.Consumer(bootstrap_servers=clicks.address, group_id="g")
    with headrace.Consumer("clicks", bootstrap_servers=clicks.address) as alone:
        for call in (alone.commit, alone.commit_async, alone.committed):
            with pytest.raises(headrace.ConfigError, match="has no group"):
                call()
    with consumer_for(clicks) as consumer, pytest.raises(headrace.ConfigError, match="the group assigns"):
        consumer.assign([P0])


def test_closing_twice_leaves_once_and_close_is_bounded_while_etcd_is_away(clicks, groups):
    fill(clicks, 10)
    consumer = consumer_for(clicks)
    consumer.poll(WAIT)
    with groups.changed:
        groups.is_away = True
        groups.changed.notify_all()
    consumer.commit_async()
    consumer.close(timeout=0.2)
    consumer.close()
    assert len(groups.left) == 1
    with pytest.raises(headrace.ClosedError):
        consumer.poll(0)


def test_a_commit_that_a_close_overtakes_is_not_reported_as_stored(clicks, groups):
    """The thread that commits hears that the consumer was closed, whichever thread closes it."""
    fill(clicks, 10)
    groups.assign(("clicks", 0))
    consumer = consumer_for(clicks, enable_auto_commit=False)
    consumer.poll(WAIT)
    with groups.changed:
        groups.is_away = True
        groups.changed.notify_all()
    raised = []

    def commit():
        with pytest.raises(headrace.ClosedError) as caught:
            consumer.commit(timeout=10 * WAIT)
        raised.append(caught)

    committing = threading.Thread(target=commit)
    committing.start()
    groups.wait_for(lambda: groups.commits, "the commit")
    consumer.close(timeout=0.2)
    committing.join(WAIT)
    assert raised
    assert not groups.offsets


def test_a_member_has_one_thread_besides_its_fetches_and_those_of_grpc(clicks, groups):
    """Heartbeats, commits, look-ups, metadata and positions share it."""
    fill(clicks, 10)
    groups.assign(("clicks", 0), ("clicks", 1))
    before = {*threading.enumerate()}
    with consumer_for(clicks) as consumer:
        poll_until(consumer, lambda: groups.offset("clicks", 0) == 10)
        names = [thread.name for thread in threading.enumerate() if thread not in before]
    assert [name for name in names if name.startswith("headrace-") and "fetch" not in name] == ["headrace-consumer"]


class FullOnce:
    """Has no room when the reading thread looks first, and has some from then on: a handler has just finished."""

    def __init__(self):
        self.looks = 0

    def is_full(self):
        self.looks += 1
        return self.looks == 1

    def may_give_up(self, holdings):
        return holdings

    def closed(self, where):
        pass


def test_what_is_left_of_a_fetch_is_not_lost_where_room_comes_while_nothing_is_taken(clicks, groups):
    """H66 and `run`: after a short pause a partition continues at the next record, though newer ones are fetched."""
    fill(clicks, 20)
    fill(clicks, 20, partition=1)
    groups.assign(("clicks", 0), ("clicks", 1))
    with consumer_for(clicks) as consumer:
        records = []
        deadline = time.monotonic() + WAIT
        while not records or not consumer._core.fetcher.positions.has_completed_fetches():
            if not records:
                records.extend(consumer.poll(0.02, max_records=5))
            assert time.monotonic() < deadline, "it did not come"
        consumer._core.group.work = FullOnce()
        poll_until(consumer, lambda: len(records) == 40, records)
        for where in (P0, P1):
            assert [r.offset for r in records if r.partition == where.partition] == list(range(20))
