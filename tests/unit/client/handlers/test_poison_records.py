"""Records that end the processes which handle them, over many lives: found, given up, and no other one with them."""

from __future__ import annotations

import random

import pytest
from headrace import Record, TopicPartition
from headrace.client.base.errors import ProcessEndedError
from headrace.client.group.offsets import OffsetAndMetadata
from headrace.client.handlers.poison_records import (
    ISOLATE_MS,
    ISOLATE_RECORDS,
    MARK_WAIT_MS,
    Mode,
    PoisonRecordDetector,
    ProgressMarker,
)
from headrace.client.handlers.work_queue import RetryPolicy, WorkQueue

WATCH_MS = 1_000
P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Ended(Exception):
    """The process is gone, with all that it knew."""


class Group:
    """What outlives a process: stored offsets, what was handled, the dead letters."""

    def __init__(self, partitions, *, poison=(), attempts=5, chance=None):
        self.partitions = partitions
        """How many records each has."""
        self.poison = dict.fromkeys(poison)
        self.attempts = attempts
        self.chance = chance or random.Random(1)
        self.stored = {where: OffsetAndMetadata(0) for where in partitions}
        self.handled = {where: [] for where in partitions}
        self.letters = []
        self.marks = 0
        self.now_ms = 0

    def is_done(self):
        return all(self.stored[where].offset == n for where, n in self.partitions.items())

    def live(self, *, workers=4, commit_every=50, steps=20_000, ordering="key", marks_are_stored=True):
        """One process, until everything is committed, or a handler ends it."""
        queue = WorkQueue(ordering, RetryPolicy(attempts=self.attempts), self.chance)
        detector = PoisonRecordDetector(queue, attempts=self.attempts, watch_ms=WATCH_MS)
        progress, on_their_way, at_work = {}, [], []
        for where, n in self.partitions.items():
            start = self.stored[where]
            queue.open(where, start.offset, is_held=True)
            detector.opened(where, start.metadata)
            for offset in range(start.offset, n):
                key = None if self.chance.random() < 0.2 else b"%d" % self.chance.randrange(5)
                queue.add(Record(where.topic, where.partition, offset, 1, key, b"v", ()), 0)
        for step in range(steps):
            self.now_ms += 1
            if self.is_done():
                return True
            for where, value in detector.step(self.now_ms):
                on_their_way.append((where, value, detector.term(where)))
            if on_their_way and self.chance.random() < 0.5:
                where, value, term = on_their_way.pop(0)
                if marks_are_stored:
                    self.stored[where] = value
                    progress.pop(where, None)
                    self.marks += 1
                    detector.stored(where, self.now_ms, term=term)
            if step % commit_every == commit_every - 1 or not queue.size:
                self.stored.update(progress)
                progress.clear()
            task = queue.take(self.now_ms) if len(at_work) < workers else None
            if task is not None:
                at_work.append(task)
                if queue.alone is not None:
                    assert at_work == [task], "it is not alone"
            if at_work and self.chance.random() < 0.6:
                task = at_work.pop(self.chance.randrange(len(at_work)))
                where, offset = task.where, task.record.offset
                if task.is_given_up:
                    self.letters.append(task)
                elif (where, offset) in self.poison:
                    return False
                else:
                    self.handled[where].append(offset)
                moved = queue.succeeded(task)
                detector.finished(where, offset)
                if moved:
                    progress[where] = OffsetAndMetadata(task.tracker.position, 0, detector.text(where))
        raise AssertionError("it comes to no end")

    def lives(self, most=100, **how):
        """Let processes follow each other until one is done; how many ended before."""
        for ended in range(most):
            if self.live(**how):
                return ended
        raise AssertionError("the partition is blocked")


@pytest.mark.parametrize(("attempts", "ended"), [(1, 4), (4, 4), (5, 5), (8, 8)])
def test_a_record_that_ends_every_process_is_given_up_after_as_many_as_it_has_attempts(attempts, ended):
    """Four at least: two in which others were at work too, and two that had it alone."""
    group = Group({P0: 200}, poison=[(P0, 7)], attempts=attempts)
    assert group.lives(commit_every=1_000_000) == ended
    (letter,) = group.letters
    assert (letter.record.offset, letter.attempts) == (7, ended)
    assert isinstance(letter.error, ProcessEndedError)
    assert sorted(set(group.handled[P0])) == [n for n in range(200) if n != 7]


@pytest.mark.parametrize("seed", range(60))
def test_only_what_ends_processes_is_given_up(seed):
    """However many there are, wherever they are, and whatever is committed in between; the others are all handled."""
    chance = random.Random(seed)
    partitions = {TopicPartition("t", n): chance.choice((0, 1, 30, 150)) for n in range(chance.randint(1, 4))}
    poison = [(w, chance.randrange(n)) for w, n in partitions.items() if n for _ in range(chance.randint(0, 2))]
    group = Group(partitions, poison=poison, attempts=chance.choice((1, 3, 5)), chance=chance)
    group.lives(
        workers=chance.choice((1, 2, 8)),
        commit_every=chance.choice((3, 50, 1_000_000)),
        ordering=chance.choice(("key", "partition")),
    )
    assert {(task.where, task.record.offset) for task in group.letters} == group.poison.keys()
    for where, n in partitions.items():
        assert sorted(set(group.handled[where])) == [o for o in range(n) if (where, o) not in group.poison]


def test_a_life_that_ends_by_itself_costs_one_mark_a_partition():
    """While nothing ends processes, one commit a partition and term is all."""
    group = Group({P0: 3_000, P1: 3_000})
    assert group.lives() == 0
    assert group.marks == 2


def test_a_process_that_was_ended_once_is_followed_by_one_that_works_as_always():
    """A mark of one that ended: the next one only commits more often, and its watch is over after a while."""
    group = Group({P0: 3_000})
    group.stored[P0] = OffsetAndMetadata(0, 0, ProgressMarker(Mode.NORMAL).text)
    assert group.live(workers=8)
    assert ProgressMarker.of(group.stored[P0].metadata).mode is None
    assert group.marks < 1_500


def test_a_trial_that_finds_nothing_ends_after_a_fixed_number_of_records():
    """No record ended the earlier processes: the group returns to normal processing."""
    group = Group({P0: 3 * ISOLATE_RECORDS})
    group.stored[P0] = OffsetAndMetadata(0, 0, ProgressMarker(Mode.WATCH).text)
    assert group.live(workers=8, steps=100_000)
    assert group.letters == []
    assert ISOLATE_RECORDS < group.marks < ISOLATE_RECORDS + 10


def test_a_trial_is_over_after_a_minute():
    """Slow handlers are not held to one at a time for long."""
    queue = WorkQueue("key", RetryPolicy(), random.Random(1))
    detector = PoisonRecordDetector(queue, attempts=5, watch_ms=WATCH_MS)
    queue.open(P0, 0, is_held=True)
    detector.opened(P0, ProgressMarker(Mode.WATCH).text)
    for offset in range(3):
        queue.add(Record("t", 0, offset, 1, None, b"v", ()), 0)
    assert [value.metadata for _, value in detector.step(0)] == ["headrace.run alone=1 offset=0"]
    detector.stored(P0, 0, term=detector.term(P0))
    task = queue.take(0)
    assert queue.take(0) is None
    queue.succeeded(task)
    detector.finished(P0, 0)
    assert [value.metadata for _, value in detector.step(ISOLATE_MS)] == [""]
    assert queue.take(ISOLATE_MS) is None
    detector.stored(P0, ISOLATE_MS, term=detector.term(P0))
    assert detector.step(ISOLATE_MS) == []
    assert [queue.take(0).record.offset, queue.take(0).record.offset] == [1, 2]


def start_all(queue, detector, now_ms):
    """Store the marks that are due, and return the records that start then, without an end of any."""
    for _ in range(3):
        for where, _ in detector.step(now_ms):
            detector.stored(where, now_ms, term=detector.term(where))
    return list(iter(lambda: queue.take(now_ms), None))


@pytest.mark.parametrize("is_quarantined", [True, False])
def test_other_partitions_continue_while_a_dead_letter_cannot_be_written(is_quarantined):
    """Of a record that has ended enough processes, or whose handler failed when it ran alone."""
    queue = WorkQueue("partition", RetryPolicy(attempts=1), random.Random(1))
    detector = PoisonRecordDetector(queue, attempts=1, watch_ms=WATCH_MS)
    marks = {P0: ProgressMarker(Mode.ISOLATE, 2, 0) if is_quarantined else ProgressMarker(Mode.WATCH)}
    for where in (P0, P1):
        queue.open(where, 0, is_held=True)
        detector.opened(where, marks.get(where, ProgressMarker()).text)
        for offset in range(2):
            queue.add(Record("t", where.partition, offset, 1, None, b"v", ()), 0)
    started = start_all(queue, detector, 0)
    if not is_quarantined:
        (task,) = started
        queue.failed(task, ValueError(), 0)
        detector.given_up(P0, 0)
        started = start_all(queue, detector, 0)
    letter, other = sorted(started, key=lambda task: task.where)
    assert (letter.where, letter.is_given_up, other.where) == (P0, True, P1)
    queue.not_sent(letter, 0)
    queue.succeeded(other)
    (other,) = start_all(queue, detector, 0)
    assert other.where == P1
    queue.succeeded(other)
    (letter,) = start_all(queue, detector, ISOLATE_MS // 2)
    queue.succeeded(letter)
    detector.finished(P0, 0)
    assert [task.record.offset for task in start_all(queue, detector, ISOLATE_MS // 2)] == [1]
    assert queue.alone == P0


def test_without_etcd_work_continues_after_a_while():
    """A mark that cannot be stored holds up what is owned for some seconds, and no longer."""
    group = Group({P0: 50})
    with pytest.raises(AssertionError, match="no end"):
        group.live(marks_are_stored=False, steps=MARK_WAIT_MS)
    assert group.handled[P0] == []
    assert group.live(marks_are_stored=False)


def test_a_mark_of_another_record_condemns_none():
    """Retention may have taken the record that was isolated: the one that comes first now is another one."""
    group = Group({P0: 20}, attempts=3)
    group.stored[P0] = OffsetAndMetadata(5, 0, ProgressMarker(Mode.ISOLATE, 9, 4).text)
    assert group.live()
    assert group.letters == []


def test_an_answer_of_an_earlier_term_lets_nothing_go():
    queue = WorkQueue("key", RetryPolicy(), random.Random(1))
    detector = PoisonRecordDetector(queue, attempts=5, watch_ms=WATCH_MS)
    terms = []
    for _ in range(2):
        queue.open(P0, 0, is_held=True)
        detector.opened(P0, "")
        queue.add(Record("t", 0, 0, 1, None, b"v", ()), 0)
        assert len(detector.step(0)) == 1
        terms.append(detector.term(P0))
    detector.stored(P0, 0, term=terms[0])
    assert queue.take(0) is None
    detector.stored(P0, 0, term=terms[1])
    assert queue.take(0).record.offset == 0


@pytest.mark.parametrize(
    "mark",
    [
        ProgressMarker(),
        ProgressMarker(Mode.NORMAL),
        ProgressMarker(Mode.WATCH),
        ProgressMarker(Mode.ISOLATE, 2, 1 << 60),
    ],
)
def test_a_mark_is_read_as_it_was_written(mark):
    assert ProgressMarker.of(mark.text) == mark


@pytest.mark.parametrize(
    "metadata", ["", "x", "headrace.run", "headrace.run alone=-1 offset=2", "headrace.run alone=1"]
)
def test_metadata_of_others_is_no_mark(metadata):
    assert ProgressMarker.of(metadata) == ProgressMarker()
