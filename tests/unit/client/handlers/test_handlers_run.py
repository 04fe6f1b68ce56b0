"""`Consumer.run` on threads: every record at least once, failures held back, dead letters, bounds."""

from __future__ import annotations

import signal
import threading
import time

import headrace
import pytest
from headrace import ConfigError, HandlerError, RetryPolicy, TopicPartition
from headrace.client.fetch.dead_letter_producer import DeadLetterProducer
from headrace.v1 import groups_pb2
from headrace.wire.columns import encode_batch
from headrace.wire.errors import TimedOutError, UnknownMemberError

from tests.unit.client.consumer.test_group_consumer import consumer_for, fill

P0 = TopicPartition("clicks", 0)
WAIT = 20
FAST = RetryPolicy(attempts=3, backoff_ms=1, backoff_max_ms=2)


def wait_until(condition):
    pause, deadline = threading.Event(), time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < deadline, "it did not come"
        pause.wait(0.001)


def keyed(cluster, keys):
    cluster.append(
        "clicks",
        encode_batch([b"%d" % n for n in range(len(keys))], keys=list(keys), base_timestamp_ms=1_000),
    )


def test_every_record_is_handled_and_committed_and_stop_may_come_from_a_handler(clicks, groups):
    fill(clicks, 200)
    seen = []
    with consumer_for(clicks) as consumer:

        def handle(record):
            seen.append(record.offset)
            if len(seen) == 200:
                consumer.stop()

        summary = consumer.run(handle, concurrency=4)
    assert sorted(seen) == list(range(200))
    assert groups.offset("clicks", 0) == 200
    assert (summary.handled, summary.failed, summary.dead_letters, summary.uncommitted) == (200, 0, 0, 0)


def test_records_of_a_key_are_handled_in_order_and_one_at_a_time(clicks, groups):
    keys = [b"abc"[n % 3 : n % 3 + 1] for n in range(90)]
    keyed(clicks, keys)
    at_work, seen = {}, {b"a": [], b"b": [], b"c": []}
    lock = threading.Lock()
    with consumer_for(clicks) as consumer:

        def handle(record):
            assert not at_work.get(record.key)
            at_work[record.key] = True
            with lock:
                seen[record.key].append(record.offset)
                if sum(map(len, seen.values())) == 90:
                    consumer.stop()
            at_work[record.key] = False

        summary = consumer.run(handle, concurrency=8)
    assert summary.failed == 0
    assert all(offsets == sorted(offsets) and len(offsets) == 30 for offsets in seen.values())


def test_a_poisoned_record_becomes_a_dead_letter_and_others_do_not_wait_for_it(clicks, groups):
    keyed(clicks, [b"a", b"b", b"a", b"c"])
    seen = []
    with consumer_for(clicks) as consumer:

        def handle(record):
            if record.offset == 0:
                raise ValueError("poison")
            seen.append(record.offset)
            if len(seen) == 3:
                consumer.stop()

        summary = consumer.run(handle, concurrency=2, retry=FAST, dead_letter="dead")
    assert sorted(seen) == [1, 2, 3]
    assert (summary.handled, summary.failed, summary.dead_letters) == (3, 3, 1)
    assert groups.offset("clicks", 0) == 4
    with headrace.Reader("dead", bootstrap_servers=clicks.address) as reader:
        (letter,) = reader
    assert (letter.key, letter.value) == (b"a", b"0")
    assert dict(letter.headers)["headrace.dead_letter.message"] == b"poison"
    assert dict(letter.headers)["headrace.dead_letter.attempts"] == b"3"


def test_without_a_dead_letter_topic_a_poisoned_record_ends_the_run_and_is_not_committed(clicks, groups):
    keyed(clicks, [b"a", b"b", b"c"])
    with consumer_for(clicks) as consumer:

        def handle(record):
            if record.offset == 1:
                raise ValueError("poison")

        with pytest.raises(HandlerError, match="clicks-0 offset 1, 3 times") as failed:
            consumer.run(handle, retry=FAST)
        assert isinstance(failed.value.__cause__, ValueError)
        assert consumer.position(P0) == 1
        assert consumer.poll(WAIT)[0].offset == 1
    assert groups.commits[-1].topics[0].partitions[0].offset in (1, 3)


@pytest.mark.parametrize(("value", "headers"), [(bytes(9_400), 0), (b"", 995)], ids=["large", "headers"])
def test_a_dead_letter_that_its_topic_refuses_ends_the_run(clicks, groups, value, headers):
    """No retry changes it: the record is not committed, and the error says why."""
    clicks.create_topic("small", max_batch_bytes=10_000)
    clicks.append("clicks", encode_batch([value], headers=[[("own", b"")] * headers], base_timestamp_ms=1_000))
    with consumer_for(clicks) as consumer:

        def handle(record):
            raise ValueError("poison")

        with pytest.raises(HandlerError, match=r"clicks-0 offset 0, 3 times.*its dead letter was refused") as failed:
            consumer.run(handle, retry=FAST, dead_letter="small")
    assert isinstance(failed.value.__cause__, ValueError)
    assert "max_batch_bytes" in failed.value.action
    assert groups.offset("clicks", 0) <= 0


def test_what_cannot_be_deserialized_is_a_failure_like_any_other(clicks, groups):
    clicks.append("clicks", encode_batch([b"{}", b"{", b"[]"], base_timestamp_ms=1_000))
    seen = []
    with consumer_for(clicks, value_deserializer="json") as consumer:

        def handle(record):
            seen.append(record.value)
            if len(seen) == 2:
                consumer.stop()

        summary = consumer.run(handle, retry=FAST, dead_letter="dead", concurrency=1)
    assert seen == [{}, []]
    assert summary.failed == 3
    with headrace.Reader("dead", bootstrap_servers=clicks.address) as reader:
        (letter,) = reader
    assert letter.value == b"{"
    assert dict(letter.headers)["headrace.dead_letter.error"] == b"SerializationError"


def test_a_handler_that_hangs_is_left_behind_and_its_record_given_up(clicks, groups):
    keyed(clicks, [b"a", b"b", b"a"])
    hangs = threading.Event()
    seen = []
    try:
        with consumer_for(clicks) as consumer:

            def handle(record):
                if record.offset == 0:
                    hangs.wait(WAIT)
                    return
                seen.append(record.offset)
                if len(seen) == 2:
                    consumer.stop()

            summary = consumer.run(handle, concurrency=1, handler_timeout_ms=50, dead_letter="dead")
        assert sorted(seen) == [1, 2]
        assert summary.dead_letters == 1
        assert groups.offset("clicks", 0) == 3
    finally:
        hangs.set()


def test_a_handler_that_returns_after_the_run_moves_no_offset(clicks, groups):
    """The application has read and committed all records in the meantime."""
    fill(clicks, 5)
    threads, returns = [], threading.Event()
    with consumer_for(clicks) as consumer:

        def handle(record):
            threads.append(threading.current_thread())
            consumer.stop()
            assert returns.wait(WAIT)

        summary = consumer.run(handle, concurrency=1, ordering="partition", drain_timeout_ms=1)
        assert (summary.handled, summary.uncommitted) == (0, 1)
        left = 5
        while left:
            left -= len(consumer.poll(WAIT))
        assert len(consumer.poll(0)) == 0
        consumer.commit()
        returns.set()
        threads[0].join(WAIT)
    assert groups.offset("clicks", 0) == 5


def test_what_ends_a_handlers_thread_ends_the_run(clicks, groups):
    fill(clicks, 3)
    with consumer_for(clicks) as consumer:

        def handle(record):
            raise SystemExit(3)

        with pytest.raises(SystemExit):
            consumer.run(handle)
    assert groups.offset("clicks", 0) <= 0


def test_a_partition_that_is_given_up_is_finished_first(clicks, groups):
    fill(clicks, 50)
    begun, goes_on = threading.Semaphore(0), threading.Event()
    with consumer_for(clicks) as consumer:
        handled = []

        def handle(record):
            begun.release()
            assert goes_on.wait(WAIT)
            handled.append(record.offset)

        def take_away():
            assert begun.acquire(timeout=WAIT)
            assert begun.acquire(timeout=WAIT)
            groups.assign()
            wait_until(lambda: consumer._core.group.work._revoking)
            assert groups.offset("clicks", 0) <= 0
            goes_on.set()
            groups.wait_for(lambda: groups.reported_owned() == set(), "that it was given up")
            consumer.stop()

        thread = threading.Thread(target=take_away)
        thread.start()
        consumer.run(handle, concurrency=2)
        thread.join(WAIT)
    assert sorted(handled) == [0, 1]
    assert groups.offset("clicks", 0) == 2


def test_a_partition_that_the_group_leaves_here_after_all_continues(clicks, groups):
    """Its revocation is withdrawn while a handler runs: what waited was dropped, and is handled."""
    fill(clicks, 50)
    begun, goes_on = threading.Event(), threading.Event()
    handled = set()
    with consumer_for(clicks) as consumer:

        def handle(record):
            begun.set()
            assert goes_on.wait(WAIT)
            handled.add(record.offset)
            if len(handled) == 50:
                consumer.stop()

        def take_away_and_give_back():
            assert begun.wait(WAIT)
            before = dict(groups.assigned)
            groups.assign()
            wait_until(lambda: consumer._core.group.work._revoking)
            groups.assign_again(before)
            wait_until(lambda: not consumer._core.group.work._revoking)
            goes_on.set()

        thread = threading.Thread(target=take_away_and_give_back)
        thread.start()
        consumer.run(handle, concurrency=1)
        thread.join(WAIT)
    assert handled == set(range(50))
    assert groups.offset("clicks", 0) == 50


class UnspeakableError(Exception):
    def __str__(self):
        raise RuntimeError("no text")

    __repr__ = __str__


def test_a_policy_that_fails_does_not_retry_and_ends_no_worker(clicks, groups):
    fill(clicks, 1)
    with consumer_for(clicks) as consumer:

        def handle(record):
            raise UnspeakableError

        with pytest.raises(HandlerError, match="UnspeakableError without a text"):
            consumer.run(handle, concurrency=1, retry=RetryPolicy(retriable=lambda error: 1 / 0))


def test_a_dead_letter_needs_no_text_of_its_error(clicks, groups):
    fill(clicks, 2)
    with consumer_for(clicks) as consumer:

        def handle(record):
            if record.offset == 0:
                raise UnspeakableError
            consumer.stop()

        summary = consumer.run(handle, concurrency=1, retry=RetryPolicy(attempts=1), dead_letter="dead")
    assert summary.dead_letters == 1
    with headrace.Reader("dead", bootstrap_servers=clicks.address) as reader:
        (letter,) = reader
    assert dict(letter.headers)["headrace.dead_letter.message"] == b"UnspeakableError without a text"


def test_a_run_follows_a_position_that_a_reset_moves_back(clicks, groups):
    """The log ends below the committed offset, as after an unclean election."""
    fill(clicks, 20)
    groups.offsets["clicks", 0] = groups_pb2.PartitionOffset(partition=0, offset=1_000, leader_epoch=-1)
    seen = []
    with consumer_for(clicks) as consumer:

        def handle(record):
            seen.append(record.offset)
            if len(seen) == 20:
                consumer.stop()

        consumer.run(handle, concurrency=1)
    assert seen == list(range(20))
    assert groups.offset("clicks", 0) == 20


def test_after_a_loss_what_was_in_work_is_not_committed(clicks, groups):
    fill(clicks, 5)
    begun, goes_on, lost = threading.Event(), threading.Event(), threading.Event()
    with consumer_for(clicks, on_lost=lambda partitions: lost.set()) as consumer:

        def handle(record):
            begun.set()
            assert goes_on.wait(WAIT)

        def fence():
            assert begun.wait(WAIT)
            groups.fence(UnknownMemberError("over"))
            assert lost.wait(WAIT)
            goes_on.set()
            consumer.stop()

        thread = threading.Thread(target=fence)
        thread.start()
        consumer.run(handle, concurrency=1)
        thread.join(WAIT)
    assert groups.offset("clicks", 0) <= 0


def test_what_is_read_ahead_is_bounded(clicks, groups):
    fill(clicks, 500)
    begun, goes_on = threading.Semaphore(0), threading.Event()
    most = []
    with consumer_for(clicks) as consumer:
        seen = []

        def handle(record):
            begun.release()
            if record.offset == 0:
                while len(seen) < 30:
                    goes_on.wait(0.001)
            seen.append(record.offset)
            core = consumer._core.group.work
            most.append((core.queue.size, core.queue.span(P0)))
            if len(seen) == 500:
                consumer.stop()

        consumer.run(handle, concurrency=2, buffer_records=20, window_records=60)
    assert sorted(seen) == list(range(500))
    assert max(size for size, _ in most) <= 20
    assert max(span for _, span in most) <= 80
    assert groups.offset("clicks", 0) == 500


def test_a_signal_ends_the_run_after_the_handlers_at_work(clicks, groups):
    fill(clicks, 50)
    with consumer_for(clicks) as consumer:
        handled = []

        def handle(record):
            if not handled:
                signal.raise_signal(signal.SIGTERM)
            handled.append(record.offset)

        before = signal.getsignal(signal.SIGTERM)
        summary = consumer.run(handle, concurrency=1)
        assert signal.getsignal(signal.SIGTERM) is before
    assert summary.handled == len(handled) >= 1
    assert groups.offset("clicks", 0) == len(handled)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"concurrency": 0}, "concurrency=0"),
        ({"ordering": "topic"}, "'key', 'partition'"),
        ({"dead_leter": "x"}, "did you mean 'dead_letter'"),
        ({"handler_timeout_ms": 0}, "handler_timeout_ms=0"),
    ],
)
def test_wrong_options_are_refused(clicks, groups, options, said):
    with consumer_for(clicks) as consumer, pytest.raises(ConfigError, match=said):
        consumer.run(print, **options)


def test_run_commits_by_itself_and_needs_a_group(clicks, groups):
    with consumer_for(clicks, enable_auto_commit=False) as consumer, pytest.raises(ConfigError, match="auto_commit"):
        consumer.run(print)
    with headrace.Consumer("clicks", bootstrap_servers=clicks.address) as alone:
        with pytest.raises(ConfigError, match="has no group"):
            alone.run(print)


def store(groups, offset, metadata):
    groups.offsets["clicks", 0] = groups_pb2.PartitionOffset(partition=0, offset=offset, metadata=metadata)


def test_that_a_partition_is_begun_is_stored_first_and_taken_back_by_who_leaves_in_order(clicks, groups):
    """A run that fails at its first record has committed nothing, and leaves no mark that counts as an end."""
    fill(clicks, 3)
    found = []
    with consumer_for(clicks) as consumer:

        def handle(record):
            found.append(groups.offsets["clicks", 0].metadata)
            raise ValueError("no")

        with pytest.raises(HandlerError):
            consumer.run(handle, concurrency=1, retry=RetryPolicy(attempts=1))
        assert set(found) == {"headrace.run begun"}
        assert (groups.offset("clicks", 0), groups.offsets["clicks", 0].metadata) == (0, "")


def test_after_a_process_that_ended_each_record_is_committed_at_once_for_a_while(clicks, groups):
    """The mark of the one before: so little is open, should this one end too."""
    store(groups, 0, "headrace.run begun")
    fill(clicks, 2)
    with consumer_for(clicks, auto_commit_interval_ms=60_000) as consumer:

        def handle(record):
            if record.offset == 1:
                groups.wait_for(lambda: groups.offset("clicks", 0) == 1, "the commit")
                assert groups.offsets["clicks", 0].metadata == "headrace.run watched"
                consumer.stop()

        assert consumer.run(handle, concurrency=1).handled == 2
    assert (groups.offset("clicks", 0), groups.offsets["clicks", 0].metadata) == (2, "")


def test_a_record_that_has_ended_enough_processes_is_not_handled_again(clicks, groups):
    """It is a dead letter, and the records behind it are handled as ever."""
    store(groups, 1, "headrace.run alone=3 offset=1")
    fill(clicks, 4)
    seen = []
    with consumer_for(clicks) as consumer:

        def handle(record):
            seen.append(record.offset)
            if record.offset == 3:
                consumer.stop()

        summary = consumer.run(handle, concurrency=4, dead_letter="dead")
    assert (seen, summary.dead_letters) == ([2, 3], 1)
    with headrace.Reader("dead", bootstrap_servers=clicks.address) as reader:
        (letter,) = reader
    assert letter.value == b"0/1"
    assert dict(letter.headers)["headrace.dead_letter.attempts"] == b"5"


@pytest.mark.parametrize("metadata", ["headrace.run watched", "headrace.run alone=3 offset=1"])
def test_a_dead_letter_that_is_not_written_yet_holds_up_no_other_partition(clicks, groups, metadata, monkeypatch):
    """The record was alone while the handler had it; its dead letter is retried meanwhile."""
    groups.assign(("clicks", 0), ("clicks", 1))
    store(groups, 1, metadata)
    fill(clicks, 2)
    fill(clicks, 1, partition=1)
    seen, tries = [], []

    def write(_, topic, letters):
        tries.append(letters)
        if len(tries) == 50:
            consumer.stop()
        raise TimedOutError("no leader")

    monkeypatch.setattr(DeadLetterProducer, "write", write)
    with consumer_for(clicks) as consumer:

        def handle(record):
            seen.append((record.partition, record.offset))
            if record.partition == 0:
                raise ValueError("poison")
            consumer.stop()

        summary = consumer.run(handle, concurrency=2, retry=FAST, dead_letter="dead")
    assert seen[-1] == (1, 0)
    assert (summary.handled, summary.dead_letters) == (1, 0)
    assert [groups.offset("clicks", partition) for partition in (0, 1)] == [1, 1]


def test_without_a_dead_letter_topic_such_a_record_ends_the_run_with_its_reason(clicks, groups):
    """And is tried again by the next run, from the beginning: the handler may be another one by then."""
    store(groups, 1, "headrace.run alone=3 offset=1")
    fill(clicks, 4)
    with consumer_for(clicks) as consumer:
        with pytest.raises(HandlerError, match="clicks-0 offset 1, 5 times") as failed:
            consumer.run(lambda record: pytest.fail("it is called"))
        assert isinstance(failed.value.__cause__, headrace.ProcessEndedError)
        assert (groups.offset("clicks", 0), groups.offsets["clicks", 0].metadata) == (1, "")
