"""Producer windows: examples of each rule, and a property test against a plain set model."""

from __future__ import annotations

import struct

import pytest
from headrace.partition.producers import WINDOW_RANGES, Duplicate, ProducerWindows
from headrace.wire.errors import (
    FencedProducerError,
    Outcome,
    OutOfOrderSequenceError,
    ThrottledError,
    UnknownProducerError,
)
from hypothesis import given
from hypothesis import strategies as st

SEQUENCES = 2**31


def windows(max_producers: int = 100, expiry_ms: int = 1000, retry_window_ms: int = 0) -> ProducerWindows:
    return ProducerWindows(max_producers=max_producers, expiry_ms=expiry_ms, retry_window_ms=retry_window_ms)


@pytest.fixture
def target() -> ProducerWindows:
    return windows()


def fill(target: ProducerWindows, count: int, *, size: int = 1, producer: int = 1, epoch: int = 0) -> None:
    for index in range(count):
        assert target.check(producer, epoch, index * size, size) is None
        target.record(producer, epoch, index * size, size, base_offset=index * size, at_ms=index)
        target.validate()


def test_a_retry_is_answered_with_the_first_offset(target: ProducerWindows) -> None:
    """H48, I20: every batch of the window is recognised, and its end is what the answer waits for."""
    fill(target, WINDOW_RANGES, size=3)
    for index in range(WINDOW_RANGES):
        assert target.check(1, 0, index * 3, 3) == Duplicate(index * 3, index * 3 + 3)


def test_a_forgotten_batch_is_applied_at_an_unknown_offset(target: ProducerWindows) -> None:
    """H48: a range wholly below the next sequence is a duplicate also where its offset is forgotten."""
    fill(target, WINDOW_RANGES + 2)
    assert target.check(1, 0, 0, 1) == Duplicate(-1, 2)


@pytest.mark.parametrize(("sequence", "count"), [(5, 1), (3, 2), (2, 3), (SEQUENCES - 1, 6)])
def test_gaps_and_overlaps_are_refused(sequence: int, count: int, target: ProducerWindows) -> None:
    """H50, I22: definite, nothing is appended."""
    fill(target, 4)
    with pytest.raises(OutOfOrderSequenceError) as caught:
        target.check(1, 0, sequence, count)
    assert caught.value.outcome is Outcome.NOT_APPLIED


def test_an_unknown_producer_starts_at_zero(target: ProducerWindows) -> None:
    """H49: an unknown producer with a later sequence is never accepted; definite."""
    assert target.check(9, 0, 0, 1) is None
    with pytest.raises(UnknownProducerError) as caught:
        target.check(9, 0, 1, 1)
    assert caught.value.outcome is Outcome.NOT_APPLIED


def test_epochs_fence(target: ProducerWindows) -> None:
    """I20: a lower epoch is fenced, a new one starts at 0."""
    fill(target, 2, epoch=3)
    with pytest.raises(FencedProducerError):
        target.check(1, 2, 2, 1)
    with pytest.raises(OutOfOrderSequenceError):
        target.check(1, 4, 2, 1)
    assert target.check(1, 4, 0, 1) is None
    target.record(1, 4, 0, 1, base_offset=2, at_ms=5)
    with pytest.raises(FencedProducerError):
        target.check(1, 3, 2, 1)


def test_sequences_wrap(target: ProducerWindows) -> None:
    """H48: sequences count modulo 2^31."""
    start = SEQUENCES - 2
    target.record(1, 0, start, 2, base_offset=10, at_ms=0)
    assert target.check(1, 0, 0, 3) is None
    target.record(1, 0, 0, 3, base_offset=12, at_ms=0)
    assert target.check(1, 0, start, 2) == Duplicate(10, 12)
    assert target.check(1, 0, 0, 3) == Duplicate(12, 15)
    with pytest.raises(OutOfOrderSequenceError):
        target.check(1, 0, 4, 1)


def test_what_the_leader_took_counts_though_it_had_forgotten_the_producer() -> None:
    """H49, I20: a follower remembers more than a leader rebuilt after DeleteRecords; then both know the same."""
    target, rebuilt = windows(), windows()
    fill(target, 3, size=2)
    for each in (target, rebuilt):
        each.record(1, 0, 0, 2, base_offset=6, at_ms=9)
        each.validate()
    assert target.snapshot() == rebuilt.snapshot()
    assert target.check(1, 0, 0, 2) == Duplicate(6, 8)
    assert target.check(1, 0, 2, 1) is None


def test_producers_are_bounded_and_expire() -> None:
    """The least recently used goes first; silent ones go with time."""
    target = windows(max_producers=2, expiry_ms=100)
    for at_ms, (producer, sequence) in enumerate([(1, 0), (2, 0), (1, 1), (3, 0)]):
        target.record(producer, 0, sequence, 1, base_offset=at_ms, at_ms=at_ms)
    assert len(target) == 2
    with pytest.raises(UnknownProducerError):
        target.check(2, 0, 1, 1)
    assert target.expire(102) == 1
    assert target.check(3, 0, 1, 1) is None


def test_no_flood_of_ids_makes_a_retry_new() -> None:
    """H49: who wrote within the retry window is not forgotten for a new id, which is refused and may come again."""
    target = windows(max_producers=3, expiry_ms=10_000, retry_window_ms=500)
    target.record(7, 0, 0, 2, base_offset=0, at_ms=1_000)
    for flood in (100, 101):
        assert target.check(flood, 0, 0, 1, at_ms=1_499) is None
        target.record(flood, 0, 0, 1, base_offset=flood, at_ms=1_499)
    for flood in range(102, 150):
        with pytest.raises(ThrottledError) as caught:
            target.check(flood, 0, 0, 1, at_ms=1_499)
        error = caught.value
        assert (error.retriable, error.outcome, error.retry_after_ms) == (True, Outcome.NOT_APPLIED, 1)
    assert target.check(7, 0, 0, 2, at_ms=1_499) == Duplicate(0, 2), "the retry of the first batch"
    assert target.check(7, 0, 2, 1, at_ms=1_499) is None, "and what it sends next"
    assert target.check(7, 1, 0, 1, at_ms=1_499) is None, "a new epoch of a known producer needs no room"
    assert target.check(200, 0, 0, 1, at_ms=1_500) is None
    target.record(200, 0, 0, 1, base_offset=200, at_ms=1_500)
    with pytest.raises(UnknownProducerError):
        target.check(7, 0, 2, 1, at_ms=1_500)
    with pytest.raises(ThrottledError):
        target.check(7, 0, 0, 2, at_ms=1_500)


def test_retry_window_ends_with_the_expiry() -> None:
    """A producer that has expired blocks no request, whatever the window is."""
    target = windows(max_producers=1, expiry_ms=100, retry_window_ms=500)
    target.record(1, 0, 0, 1, base_offset=0, at_ms=1_000)
    with pytest.raises(ThrottledError):
        target.check(2, 0, 0, 1, at_ms=1_099)
    assert target.check(2, 0, 0, 1, at_ms=1_100) is None


def test_a_snapshot_restores_everything_and_a_broken_one_nothing() -> None:
    """H48: snapshots only shorten the rebuild."""
    target, copy = windows(), windows()
    fill(target, 70, size=2)
    snapshot = target.snapshot()
    assert copy.restore(snapshot)
    copy.validate()
    assert copy.snapshot() == snapshot
    assert not copy.restore(snapshot[:-1])
    assert len(copy) == 0


@given(
    st.lists(st.tuples(st.integers(-70, 3), st.integers(1, 3), st.booleans()), max_size=120), st.sampled_from([0, 5])
)
def test_windows_agree_with_a_set_of_sequences(steps: list[tuple[int, int, bool]], back: int) -> None:
    """I20: what is accepted is contiguous and unique; what is a duplicate was accepted before, as a whole."""
    target = windows()
    accepted: dict[int, int] = {}
    start = SEQUENCES - back
    expected = 0
    if back:
        target.record(1, 0, start, back, base_offset=0, at_ms=0)
        accepted = {index: index for index in range(back)}
        expected = back
    for shift, count, _ in steps:
        first = expected + shift
        if first < 0:
            continue
        try:
            answer = target.check(1, 0, (start + first) % SEQUENCES, count)
        except (OutOfOrderSequenceError, UnknownProducerError):
            assert not all(index in accepted for index in range(first, first + count))
            assert first != expected
            continue
        if answer is None:
            assert first == expected
            target.record(1, 0, (start + first) % SEQUENCES, count, base_offset=expected, at_ms=0)
            accepted.update((index, index) for index in range(first, first + count))
            expected += count
        else:
            assert all(index in accepted for index in range(first, first + count))
            assert answer.base_offset in (-1, accepted[first])
            assert answer.end_offset > accepted[first + count - 1]
        if len(target):
            target.validate()


# What a producer, or its family, has appended.

OWN = 2**62 + (7 << 20)


def test_the_offsets_of_a_producer_and_of_its_family_are_known(target: ProducerWindows) -> None:
    """From the first batch of the epoch, which is remembered when the batch itself is not any more, to the last."""
    for index in range(WINDOW_RANGES + 5):
        target.record(OWN, 3, index * 2, 2, base_offset=100 + index * 10, at_ms=index)
    target.record(OWN + 1, 3, 0, 4, base_offset=50, at_ms=1_000)
    target.record(OWN + 2, 2, 0, 4, base_offset=10, at_ms=1_000)
    target.record(OWN + (1 << 20), 3, 0, 4, base_offset=5, at_ms=1_000)
    last = 100 + (WINDOW_RANGES + 4) * 10 + 2
    restored = windows()
    assert restored.restore(target.snapshot())
    for each in (target, restored):
        assert each.appended(OWN, 3, family=False) == (100, last)
        assert each.appended(OWN, 3, family=True) == (50, last)
        assert each.appended(OWN + 9, 2, family=True) == (10, 14)
        assert each.appended(OWN + 9, 2, family=False) is None
        assert each.appended(OWN, 4, family=True) is None


def test_a_new_epoch_has_offsets_of_its_own(target: ProducerWindows) -> None:
    """The records of the epoch before are not asked for any more."""
    target.record(OWN, 0, 0, 5, base_offset=0, at_ms=0)
    target.record(OWN, 1, 0, 5, base_offset=20, at_ms=1)
    assert target.appended(OWN, 1, family=True) == (20, 25)
    assert target.appended(OWN, 0, family=True) is None


def test_who_is_forgotten_has_no_family() -> None:
    """For want of room, or after a long silence: nothing is kept of it."""
    target = windows(max_producers=2)
    for number in range(3):
        target.record(OWN + number, 0, 0, 1, base_offset=number, at_ms=number)
    assert target.appended(OWN, 0, family=True) == (1, 3)
    assert target.expire(5_000) == 2
    assert target.appended(OWN, 0, family=True) is None
    assert not target._families


def test_a_snapshot_of_the_format_before_is_read() -> None:
    """It lacks the first offset; where that matters a reader is sent to the start of the log."""
    head, producer, each = struct.Struct("<HI"), struct.Struct("<qiqiqI"), struct.Struct("<iiq")
    snapshot = head.pack(1, 1) + producer.pack(OWN, 3, 9, 7, 0, 1) + each.pack(5, 2, 40)
    target = windows()
    assert target.restore(snapshot)
    assert target.check(OWN, 3, 5, 2) == Duplicate(40, 42)
    assert target.appended(OWN, 3, family=True) == (0, 42)
