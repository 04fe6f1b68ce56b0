"""Turns of a producer's timer operation."""

import random
import threading

import pytest
from headrace.client.base.retry import OVERDUE_MS, Backoff
from headrace.client.producer import maintenance
from headrace.client.producer.maintenance import ProducerMaintenance


class Signal:
    """Signal that only keeps its state."""

    def __init__(self):
        self.is_set = False

    def set(self):
        """See `Signal`."""
        self.is_set = True

    def clear(self):
        """See `Signal`."""
        self.is_set = False


class Background:
    """Background whose operations the test runs."""

    def __init__(self):
        self.spawned = []

    def make_signal(self):
        """See `Background`."""
        return Signal()

    def spawn(self, operation):
        """See `Background`."""
        self.spawned.append(operation)


class Core:
    """Core that starts a call in each turn; the response arrives before the turn ends."""

    def __init__(self):
        self.background = Background()
        self.timer = ProducerMaintenance(
            self, self.background, threading.Lock(), Backoff(1, 1, random.Random(0)), metadata_max_age_ms=1_000
        )
        self.is_sending = True
        self.turns = 0

    def seal_due(self):
        """See `Maintained`."""
        self.turns += 1
        if self.is_sending:
            self.timer.due_at(maintenance.monotonic_ms() + OVERDUE_MS)


@pytest.fixture
def now(monkeypatch):
    """Return a list with the time in ms, which the test sets."""
    at = [5_000]
    monkeypatch.setattr(maintenance, "monotonic_ms", lambda: at[0])
    monkeypatch.setattr(maintenance.time, "monotonic", lambda: at[0] / 1000)
    return at


@pytest.fixture
def core(now):
    """Return a core whose first batch was sent."""
    core = Core()
    core.timer.due_at(now[0])
    return core


def wait_of(clock):
    """Run turns until one waits; return the wait."""
    wait = next(clock)
    while wait.signal.is_set:
        wait = next(clock)
    return wait


def test_a_busy_producer_takes_one_turn_per_batch(core, now):
    clock = core.background.spawned[0]
    wait = wait_of(clock)
    core.turns = 0
    for _ in range(100):
        now[0] += 2
        core.timer.due_at(now[0])
        assert wait.signal.is_set
        wait = next(clock)
        assert not wait.signal.is_set
        assert wait.seconds <= OVERDUE_MS / 1000
    assert core.turns == 100


def test_a_quiet_producer_is_not_woken(core, now):
    clock = core.background.spawned[0]
    wait = wait_of(clock)
    core.is_sending = False
    now[0] += round(wait.seconds * 1000)
    assert next(clock).seconds == maintenance.IDLE_MS / 1000


def test_a_failed_turn_is_repeated_soon(core, now, monkeypatch):
    clock = core.background.spawned[0]
    now[0] += round(wait_of(clock).seconds * 1000)
    monkeypatch.setattr(core, "seal_due", lambda: 1 // 0)
    assert next(clock).seconds <= OVERDUE_MS / 1000


def test_a_failed_look_is_repeated_soon_and_concerns_no_call(core, now, monkeypatch):
    """It is called when a call has ended, by a connection with further calls."""
    clock = core.background.spawned[0]
    wait = wait_of(clock)
    core.is_sending = False
    now[0] += round(wait.seconds * 1000)
    assert next(clock).seconds == maintenance.IDLE_MS / 1000
    monkeypatch.setattr(core, "seal_due", lambda: 1 // 0)
    core.timer.look()
    assert core.timer._wakes_ms <= maintenance.monotonic_ms() + OVERDUE_MS
