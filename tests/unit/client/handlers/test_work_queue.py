"""What `Consumer.run` decides, without threads: what may be committed, what runs next, what becomes of failures."""

from __future__ import annotations

import random

import pytest
from headrace import ConfigError, Record, TopicPartition
from headrace.client.fetch.dead_letters import dead_letter
from headrace.client.handlers.offset_tracker import OffsetTracker
from headrace.client.handlers.work_queue import RetryDecision, RetryPolicy, WorkQueue
from hypothesis import given, settings, strategies
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


def record(offset, key=b"k", partition=0):
    return Record("t", partition, offset, 1_000, key, b"v%d" % offset, ())


def queue_of(ordering="key", **retry):
    queue = WorkQueue(ordering, RetryPolicy(**retry), random.Random(1))
    queue.open(P0, 0)
    return queue


@given(
    start=strategies.integers(0, 5),
    gaps=strategies.lists(strategies.integers(0, 3), min_size=1, max_size=30),
    order=strategies.randoms(use_true_random=False),
)
def test_the_position_is_that_of_the_first_unfinished_record(start, gaps, order):
    tracker = OffsetTracker(start)
    offsets = []
    offset = start
    for gap in gaps:
        offset += gap
        offsets.append(offset)
        tracker.begin(offset, leader_epoch=offset // 10)
        offset += 1
    left = set(offsets)
    for done in order.sample(offsets, len(offsets)):
        before = tracker.position
        moved = tracker.finish(done)
        left.discard(done)
        below = [o for o in offsets if not left or o < min(left)]
        expected = below[-1] + 1 if below else start
        assert tracker.position == expected
        assert moved == (expected != before)
        assert tracker.span == len(offsets) - len(below)
        assert tracker.leader_epoch == (below[-1] // 10 if below else -1)


def test_records_of_a_key_come_one_by_one_and_those_of_others_and_without_a_key_concurrently():
    queue = queue_of()
    for offset, key in enumerate([b"a", b"a", b"b", None, None]):
        queue.add(record(offset, key), 0)
    first = [queue.take(0) for _ in range(4)]
    assert [task.record.offset for task in first] == [0, 2, 3, 4]
    assert queue.take(0) is None
    assert queue.succeeded(first[0])
    assert queue.take(0).record.offset == 1


def test_by_partition_the_whole_partition_is_in_order():
    queue = queue_of("partition")
    queue.open(P1, 0)
    for offset in range(2):
        queue.add(record(offset, None), 0)
        queue.add(record(offset, None, 1), 0)
    tasks = [queue.take(0), queue.take(0)]
    assert {task.where for task in tasks} == {P0, P1}
    assert queue.take(0) is None


def test_a_failure_waits_at_the_head_of_its_key_and_holds_up_no_other():
    queue = queue_of(attempts=3, backoff_ms=100, backoff_max_ms=100)
    queue.add(record(0, b"a"), 0)
    queue.add(record(1, b"a"), 0)
    queue.add(record(2, b"b"), 0)
    task = queue.take(0)
    assert queue.failed(task, ValueError("no"), 0) is RetryDecision.RETRY
    assert queue.take(0).record.offset == 2
    assert queue.take(0) is None
    due = queue.next_due_ms()
    assert 0 < due <= 100
    again = queue.take(due)
    assert again is task
    assert again.attempts == 2
    assert queue.failed(again, ValueError("no"), due) is RetryDecision.RETRY
    last = queue.take(due + 100)
    assert last.attempts == 3
    assert queue.failed(last, ValueError("no"), due) is RetryDecision.GIVE_UP
    buried = queue.take(due + 200)
    assert buried is task
    assert buried.is_given_up
    queue.not_sent(buried, due)
    assert queue.take(due) is None
    assert queue.take(due + 200) is buried
    assert buried.attempts == 3
    assert queue.succeeded(buried)
    assert queue.tracker(P0).position == 1
    assert queue.take(due + 200).record.offset == 1


def test_what_the_policy_does_not_retry_is_given_up_at_once():
    queue = queue_of(retriable=lambda error: not isinstance(error, KeyError))
    queue.add(record(0), 0)
    assert queue.failed(queue.take(0), KeyError("x"), 0) is RetryDecision.GIVE_UP


def test_a_partition_that_is_given_up_begins_nothing_more_and_is_ready_when_nothing_of_it_runs():
    queue = queue_of()
    for offset in range(4):
        queue.add(record(offset, b"%d" % offset), 0)
    running = queue.take(0)
    assert not queue.revoke(P0)
    assert queue.size == 1
    assert queue.take(0) is None
    queue.add(record(4), 0)
    assert queue.take(0) is None
    assert queue.succeeded(running)
    assert queue.revoke(P0)
    assert queue.tracker(P0).position == 1


def test_records_that_a_handler_has_had_are_counted_until_the_committable_offset_is_above_them():
    """Failed, finished out of order and running ones; not those that only wait."""
    queue = queue_of(attempts=3, backoff_ms=5, backoff_max_ms=5)
    for offset in range(6):
        queue.add(record(offset, key=None), 0)
    tracker = queue.tracker(P0)
    tasks = [queue.take(0) for _ in range(4)]
    assert (tracker.span, tracker.started) == (6, 4)
    queue.succeeded(tasks[0])
    queue.failed(tasks[1], ValueError(), 0)
    queue.succeeded(tasks[2])
    assert (tracker.position, tracker.started) == (1, 3)
    assert [queue.take(100).record.offset for _ in range(3)] == [4, 5, 1]
    assert tracker.started == 5


def test_what_still_runs_of_a_lost_partition_means_nothing_and_holds_back_its_key_in_the_next_term():
    queue = queue_of()
    queue.add(record(0), 0)
    late = queue.take(0)
    queue.close(P0)
    queue.open(P0, 0)
    queue.add(record(0), 0)
    assert queue.take(0) is None
    assert not queue.succeeded(late)
    again = queue.take(0)
    assert again is not late
    assert queue.succeeded(again)
    assert queue.tracker(P0).position == 1
    assert queue.size == queue.running == 0


@pytest.mark.parametrize("wrong", [{"attempts": 0}, {"backoff_ms": 0}, {"backoff_ms": 10, "backoff_max_ms": 5}])
def test_a_policy_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(ConfigError):
        RetryPolicy(**wrong)


def test_an_ordering_that_is_none_is_refused():
    with pytest.raises(ConfigError, match="'key', 'partition'"):
        WorkQueue("topic", RetryPolicy(), random.Random())


def test_a_dead_letter_has_the_bytes_and_the_cause():
    queue = queue_of(attempts=1)
    queue.add(record(7)._replace(headers=(("own", b"1"),)), 0)
    task = queue.take(0)
    queue.failed(task, ValueError("no \ud800 such order"), 0)
    letter = dead_letter(task.record, task.error, task.attempts, "g", 5_000)
    assert (letter.value, letter.key) == (b"v7", b"k")
    assert letter.headers[0] == ("own", b"1")
    assert dict(letter.headers[1:]) == {
        "headrace.dead_letter.error": b"ValueError",
        "headrace.dead_letter.message": b"no ? such order",
        "headrace.dead_letter.topic": b"t",
        "headrace.dead_letter.partition": b"0",
        "headrace.dead_letter.offset": b"7",
        "headrace.dead_letter.timestamp_ms": b"1000",
        "headrace.dead_letter.attempts": b"1",
        "headrace.dead_letter.failed_ms": b"5000",
        "headrace.dead_letter.group": b"g",
    }


class Work(RuleBasedStateMachine):
    """Two partitions that come and go, handlers that fail; a set of what was dealt with is the model."""

    def __init__(self):
        super().__init__()
        self.queue = WorkQueue("key", RetryPolicy(attempts=2, backoff_ms=5, backoff_max_ms=9), random.Random(3))
        self.now = 0
        self.next = {P0: 0, P1: 0}
        self.done = {P0: set(), P1: set()}
        self.running = []
        for where in (P0, P1):
            self.queue.open(where, 0)

    @rule(where=strategies.sampled_from([P0, P1]), key=strategies.sampled_from([None, b"a", b"b"]))
    def arrives(self, where, key):
        self.queue.add(record(self.next[where], key, where.partition), 0)
        self.next[where] += 1

    @rule(later=strategies.integers(0, 10))
    def begins(self, later):
        self.now += later
        task = self.queue.take(self.now)
        if task is not None:
            busy = [(t.where, t.record.key) for t in self.running if t.record.key is not None]
            assert (task.where, task.record.key) not in busy
            self.running.append(task)

    def pick(self, data):
        return self.running.pop(data.draw(strategies.integers(0, len(self.running) - 1)))

    @precondition(lambda self: self.running)
    @rule(data=strategies.data())
    def succeeds(self, data):
        task = self.pick(data)
        if not task.tracker.is_over:
            self.done[task.where].add(task.record.offset)
        self.queue.succeeded(task)

    @precondition(lambda self: self.running)
    @rule(data=strategies.data())
    def fails(self, data):
        task = self.pick(data)
        if task.is_given_up:
            self.queue.not_sent(task, self.now)
        else:
            self.queue.failed(task, ValueError("no"), self.now)

    @rule(where=strategies.sampled_from([P0, P1]))
    def is_given_to_another_and_comes_back(self, where):
        position = self.queue.tracker(where).position
        self.queue.revoke(where)
        self.queue.close(where)
        self.queue.open(where, position)
        self.next[where] = position
        self.done[where] = {offset for offset in self.done[where] if offset < position}

    @invariant()
    def nothing_is_committed_that_was_not_dealt_with(self):
        for where in (P0, P1):
            tracker = self.queue.tracker(where)
            assert set(range(tracker.position)) <= self.done[where]
            assert tracker.position not in self.done[where]

    @invariant()
    def counts_agree(self):
        assert self.queue.running == len(self.running)
        assert self.queue.size >= self.queue.running

    def teardown(self):
        """When everything succeeds, everything is committed."""
        while self.running or self.queue.size:
            task = self.queue.take(self.now)
            self.now += 10
            for one in [*self.running, *([task] if task else [])]:
                self.queue.succeeded(one)
            self.running = []
        for where in (P0, P1):
            assert self.queue.tracker(where).position == self.next[where]


TestWork = Work.TestCase
TestWork.settings = settings(max_examples=80, stateful_step_count=50)
