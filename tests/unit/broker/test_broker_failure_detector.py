"""Phi accrual: what it says of silences, what it forgives, and when the cluster is told."""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import statistics
from collections.abc import Callable, Sequence

import pytest
from headrace_broker.core.phi_accrual import (
    LATE_TICK_MS,
    LONGEST_INTERVAL_MS,
    MIN_DEVIATION_MS,
    TRUST_AFTER_MS,
    WINDOW_INTERVALS,
    ArrivalIntervals,
    PhiAccrualFailureDetector,
)
from headrace_broker.metrics import BrokerMetrics
from headrace_broker.runtime import failure_detector as module
from headrace_broker.runtime.failure_detector import PeerFailureDetector
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

PROMISED_MS = 500
THRESHOLD = 8.0
PEER, OTHER = 2, 3


def heard(intervals: Sequence[int], promised_ms: int = PROMISED_MS) -> tuple[ArrivalIntervals, int]:
    """A peer whose messages came in these intervals, and when the last one came."""
    peer, at_ms = ArrivalIntervals(0, promised_ms), 0
    for interval in intervals:
        at_ms += interval
        peer.arrive(at_ms)
    return peer, at_ms


# --- one peer ---


@pytest.mark.parametrize(("z", "phi"), [(-9.0, 0.0), (0.0, 0.30103), (1.2816, 1.0), (2.3263, 2.0), (5.6120, 8.0)])
def test_phi_is_the_logarithm_of_the_tail(z: float, phi: float) -> None:
    """Hayashibara et al., section 4.1: phi 1 is one doubt in ten that is wrong, phi 2 one in a hundred."""
    peer, at_ms = heard([1_000, 3_000] * WINDOW_INTERVALS, 1_000)
    assert peer.phi(at_ms + round(2_000 + z * 1_000)) == pytest.approx(phi, abs=0.01)


@given(st.lists(st.integers(0, 8_000), max_size=300), st.integers(0, 10**9), st.integers(0, 10**9))
def test_doubt_grows_with_silence(intervals: list[int], first: int, second: int) -> None:
    """Whatever came before: phi is finite, never negative, and never falls while nothing comes; news end it."""
    peer, at_ms = heard(intervals)
    sooner, later = sorted((first, second))
    levels = [peer.phi(at_ms + silence) for silence in (sooner, later)]
    assert 0 <= levels[0] <= levels[1] < math.inf
    peer.arrive(at_ms + later)
    assert peer.phi(at_ms + later) < 0.302


def test_the_far_tail_continues_the_near_one() -> None:
    """Where the probability is too small for a float its logarithm continues, without a step down."""
    peer, at_ms = heard([PROMISED_MS] * WINDOW_INTERVALS)
    levels = [peer.phi(at_ms + silence) for silence in range(PROMISED_MS, 50 * MIN_DEVIATION_MS)]
    steps = [after - before for before, after in itertools.pairwise(levels)]
    assert min(steps) >= 0
    assert max(steps) < 0.1


@pytest.mark.parametrize("draw", ["normal", "exponential"])
def test_phi_one_is_wrong_about_once_in_ten(draw: str) -> None:
    """Calibration: of messages that come as before, a tenth comes later than the silence whose phi is 1.

    So for both shapes; further out the normal tail is for senders that keep time: of exponential intervals phi 2 is
    exceeded 3.6 times in a hundred.
    """
    chance = random.Random(5)
    shapes: dict[str, Callable[[], float]] = {
        "normal": lambda: chance.gauss(2_000, 400),
        "exponential": lambda: chance.expovariate(1 / 900),
    }
    peer, at_ms, later, count = ArrivalIntervals(0, 2), 0, {1: 0, 2: 0}, 0
    for index in range(20_000):
        interval = min(LONGEST_INTERVAL_MS, max(1, round(shapes[draw]())))
        at_ms += interval
        if index > WINDOW_INTERVALS:
            count += 1
            for phi in later:
                later[phi] += peer.phi(at_ms) > phi
        peer.arrive(at_ms)
    assert later[1] / count == pytest.approx(0.1, abs=0.015)
    assert later[2] / count == pytest.approx({"normal": 0.01, "exponential": 0.036}[draw], abs=0.006)


def test_as_regular_as_a_clock_is_no_division_by_zero() -> None:
    """The deviation has a floor: a peer that was never late is not suspected for one scheduler's turn."""
    peer, at_ms = heard([PROMISED_MS] * 2 * WINDOW_INTERVALS)
    assert peer.phi(at_ms + PROMISED_MS + MIN_DEVIATION_MS) == pytest.approx(0.8, abs=0.01)
    assert peer.phi(at_ms + PROMISED_MS + 6 * MIN_DEVIATION_MS) > THRESHOLD


def test_the_window_moves() -> None:
    """Old intervals are forgotten: what counts are exactly the last ones."""
    chance = random.Random(1)
    intervals = [chance.randrange(300, 3_000) for _ in range(3 * WINDOW_INTERVALS)]
    peer, at_ms = heard(intervals)
    last = intervals[-WINDOW_INTERVALS:]
    mean, deviation = statistics.fmean(last), statistics.pstdev(last)
    assert peer.phi(at_ms + round(mean + 3 * deviation)) == pytest.approx(2.87, abs=0.02)


def test_traffic_does_not_make_the_silence_after_it_suspicious() -> None:
    """Messages a millisecond apart are heartbeats; an idle stream sends one in `promised_ms`, and that is normal."""
    peer, at_ms = heard([PROMISED_MS] * 50 + [1] * 10_000)
    assert peer.phi(at_ms + PROMISED_MS) < 1


def test_an_outage_is_not_a_rhythm() -> None:
    """A peer that was away for long is doubted as soon as before once it is back."""
    steady, _ = heard([PROMISED_MS] * 50)
    back, at_ms = heard([PROMISED_MS] * 50 + [LONGEST_INTERVAL_MS + 1])
    assert back.phi(at_ms + 2_000) == steady.phi(50 * PROMISED_MS + 2_000)


# --- all peers ---


class Watch:
    """A table whose ticks come on time, and peers that send as the test says."""

    def __init__(self) -> None:
        self.table = PhiAccrualFailureDetector(threshold=THRESHOLD, promised_ms=PROMISED_MS, tick_ms=500)
        self.at_ms = 0
        self.expected = [PEER, OTHER]
        self.table.tick(0, self.expected)

    def go(self, ticks: int, *sending: int) -> None:
        for _ in range(ticks):
            self.at_ms += 499
            for broker_id in sending:
                self.table.arrive(broker_id, self.at_ms)
            self.at_ms += 1
            self.table.tick(self.at_ms, self.expected)


def test_only_a_silent_peer_is_suspected() -> None:
    """Within a few intervals; the lease would take its whole time-to-live."""
    watch = Watch()
    watch.go(50, PEER, OTHER)
    assert watch.table.suspected == ()
    watch.go(5, OTHER)
    assert watch.table.suspected == (PEER,)
    assert watch.table.levels[PEER] > THRESHOLD
    assert watch.table.levels[OTHER] < 1


def test_who_never_sends_is_suspected_a_little_later() -> None:
    """A peer that should be sending and never did is doubted too, after more patience."""
    watch = Watch()
    watch.go(5, OTHER)
    assert watch.table.suspected == ()
    watch.go(5, OTHER)
    assert watch.table.suspected == (PEER,)


def test_one_message_does_not_make_a_suspect_trusted() -> None:
    """Hysteresis: only a while of it does, so that a stuttering peer does not flap."""
    watch = Watch()
    watch.go(50, PEER, OTHER)
    watch.go(5, OTHER)
    watch.go(TRUST_AFTER_MS // 500 - 1, PEER, OTHER)
    assert watch.table.suspected == (PEER,)
    watch.go(1, PEER, OTHER)
    assert watch.table.suspected == ()


def test_doubts_at_half_the_threshold_keep_a_suspect_suspected() -> None:
    """Hysteresis: the level at which trust begins is half of the one at which suspecting begins."""
    watch = Watch()
    watch.go(50, PEER, OTHER)
    watch.go(5, OTHER)
    for _ in range(3):
        watch.go(TRUST_AFTER_MS // 500 - 5, PEER, OTHER)
        assert watch.table.suspected == (PEER,)
        level = 0.0
        while level < THRESHOLD / 2:
            watch.go(1, OTHER)
            level = watch.table.levels[PEER]
        assert level < THRESHOLD


def test_peers_that_are_not_expected_are_forgotten() -> None:
    """Unregistered brokers and brokers that share no partition: their silence means nothing; bounded by the cluster."""
    watch = Watch()
    watch.go(50, PEER, OTHER)
    watch.go(5, OTHER)
    watch.expected = [OTHER]
    watch.go(1, OTHER)
    assert (watch.table.suspected, list(watch.table.levels)) == ((), [OTHER])
    watch.table.arrive(PEER, watch.at_ms)
    watch.expected = [PEER, OTHER]
    watch.go(1, OTHER)
    assert watch.table.levels[PEER] < 1


@pytest.mark.parametrize("tick_first", [False, True])
@pytest.mark.parametrize("pause_ms", [2_000, 60_000])
def test_a_pause_of_the_observer_is_not_the_peers_fault(pause_ms: int, tick_first: bool) -> None:
    """SIGSTOP, a late event loop: a detector that did not run suspects no peer, and learns no interval from it."""
    watch, undisturbed = Watch(), Watch()
    for each in (watch, undisturbed):
        each.go(50, PEER, OTHER)
    watch.at_ms += pause_ms
    if tick_first:
        watch.table.tick(watch.at_ms, watch.expected)
    watch.table.arrive(PEER, watch.at_ms + 1)
    watch.at_ms += 2
    watch.table.tick(watch.at_ms, watch.expected)
    assert watch.table.suspected == ()
    assert max(watch.table.levels.values()) < 1
    for each in (watch, undisturbed):
        each.go(1, PEER, OTHER)
        each.go(4, OTHER)
    assert watch.table.suspected == undisturbed.table.suspected == (PEER,)
    assert watch.table.levels[PEER] == pytest.approx(undisturbed.table.levels[PEER], rel=0.02)


def test_a_tick_that_is_a_little_late_excuses_nothing() -> None:
    """Otherwise a busy observer would never suspect anybody."""
    watch = Watch()
    watch.go(50, PEER, OTHER)
    for _ in range(2):
        watch.at_ms += LATE_TICK_MS
        watch.go(1, OTHER)
    assert watch.table.suspected == (PEER,)


@given(st.lists(st.tuples(st.integers(1, 4_000), st.sets(st.sampled_from([PEER, OTHER]))), max_size=60))
def test_whatever_the_times_the_table_stays_bounded_and_sane(steps: list[tuple[int, set[int]]]) -> None:
    """Any ticks and arrivals: levels of exactly the expected peers, finite, and suspects among them."""
    watch = Watch()
    for by_ms, who in steps:
        watch.at_ms += by_ms
        for broker_id in sorted(who):
            watch.table.arrive(broker_id, watch.at_ms)
        watch.expected = sorted({PEER} | who)
        watch.table.tick(watch.at_ms, watch.expected)
        assert list(watch.table.levels) == watch.expected
        assert all(0 <= level < math.inf for level in watch.table.levels.values())
        assert set(watch.table.suspected) <= set(watch.expected)


# --- telling the cluster ---


class FakePublisher:
    """Notes what it is told; `answers` says how the next calls end (then: well)."""

    def __init__(self, *answers: bool) -> None:
        self.answers = list(answers)
        self.told: list[tuple[int, ...]] = []
        self.called = asyncio.Event()

    async def announce_suspected(self, broker_ids: Sequence[int]) -> bool:
        self.told.append(tuple(broker_ids))
        self.called.set()
        return self.answers.pop(0) if self.answers else True


async def test_changes_are_published_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The registration is written when the set of suspects changes, until that has happened; never otherwise."""
    monkeypatch.setattr(module, "PUBLISH_SECONDS", 0.0)
    registry = CollectorRegistry()
    publisher = FakePublisher(False)
    table = PhiAccrualFailureDetector(threshold=THRESHOLD, promised_ms=PROMISED_MS, tick_ms=500)
    failure_detector = PeerFailureDetector(table, publisher, BrokerMetrics(registry))
    running = asyncio.create_task(failure_detector.run())
    try:
        at_ms = 0

        async def go(ticks: int, *sending: int, yields: int = 5) -> None:
            nonlocal at_ms
            for _ in range(ticks):
                at_ms += 500
                for broker_id in sending:
                    failure_detector.on_heartbeat(broker_id, at_ms)
                failure_detector.tick(at_ms, (PEER, OTHER))
                for _ in range(yields):
                    await asyncio.sleep(0)

        await go(30, PEER, OTHER)
        assert publisher.told == []
        await go(10, OTHER)
        assert publisher.told == [(PEER,), (PEER,)]
        await go(20, PEER, OTHER, yields=0)
        await go(10, OTHER, yields=0)
        await go(1, OTHER)
        assert publisher.told == [(PEER,), (PEER,)]
        await go(20, PEER, OTHER)
        assert publisher.told == [(PEER,), (PEER,), ()]

        def sample(peer: int) -> float | None:
            return registry.get_sample_value("headrace_broker_peer_phi", {"peer": str(peer)})

        assert sample(PEER) == failure_detector.level(PEER) < 1
        failure_detector.tick(at_ms + 500, (OTHER,))
        assert (sample(PEER), failure_detector.level(PEER)) == (None, 0.0)
        assert sample(OTHER) is not None
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
