"""The lease keeper: alive, silent and lost are three things, and a dead event loop is not kept alive."""

import asyncio
import queue
import threading

import pytest
from headrace.wire.errors import MetastoreUnavailableError
from headrace_server.metastore.lease import LeaseKeeper, LeaseState

from tests.fakes.manual_clock import ManualClock

TTL_MS = 30  # The thread waits a third of it in real time, so this is what paces these tests.
WAIT_SECONDS = 20


class ScriptedRenewer:
    """Answers from a script, None for no answer; the last answer stays. May move the clock. Records each renewal."""

    def __init__(self, *answers, before=lambda: None):
        self.answers = list(answers)
        self.before = before
        self.renewals = queue.Queue()
        self.closed = threading.Event()

    def renew(self, lease_id, timeout_s):
        assert timeout_s > 0
        self.before()
        self.renewals.put(lease_id)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is None:
            raise MetastoreUnavailableError("no answer")
        return answer

    def close(self):
        self.closed.set()


def keep(renewer, clock, *, until):
    """Run a keeper in a loop until `until(states)` is true; returns the keeper and the states heard."""
    states = []

    async def scenario():
        heard = asyncio.Event()

        def on_change(state):
            states.append(state)
            heard.set()

        keeper = LeaseKeeper(renewer, 7, TTL_MS, granted_at_ms=clock.boottime_ms(), on_change=on_change, clock=clock)
        keeper.start()
        async with asyncio.timeout(WAIT_SECONDS):
            while not until(states):
                heard.clear()
                await heard.wait()
        await keeper.stop()
        return keeper

    return asyncio.run(scenario()), states


def test_silence_is_not_loss():
    """Unanswered beyond its deadline the lease is SILENT; with the next answer ALIVE again (H84)."""
    clock = ManualClock()
    renewer = ScriptedRenewer(TTL_MS, None, TTL_MS)
    script = iter([lambda: None, lambda: clock.advance(TTL_MS), *[lambda: None] * 1_000])

    def before():
        next(script)()

    renewer.before = before
    keeper, states = keep(renewer, clock, until=lambda states: LeaseState.ALIVE in states)
    assert states == [LeaseState.SILENT, LeaseState.ALIVE]
    assert keeper.alive_now()
    assert renewer.closed.is_set()


def test_a_time_to_live_of_zero_is_loss_and_final():
    """A received time to live of 0 says that the lease has ended, at once and for good (H76)."""
    renewer = ScriptedRenewer(0)
    keeper, states = keep(renewer, ManualClock(), until=lambda states: LeaseState.LOST in states)
    assert states == [LeaseState.LOST]
    assert keeper.state is LeaseState.LOST
    assert not keeper.alive_now()
    assert renewer.renewals.qsize() == 1


def test_the_deadline_counts_from_the_sending():
    """The lease is sure until the sending of the last answered renewal + TTL - margin, on boot time (H77)."""
    clock = ManualClock()
    answered = ScriptedRenewer(TTL_MS, 0)
    # The renewal takes 5 ms; the deadline counts from its beginning, and the end of the lease does not move it.
    answered.before = lambda: clock.advance(5)
    keeper, _ = keep(answered, clock, until=lambda states: LeaseState.LOST in states)
    assert keeper.deadline_ms == TTL_MS - TTL_MS // 10


def test_a_process_that_was_stopped_checks_its_lease():
    """`alive_now` compares with the clock at the moment of the question, with no timer in between (H77)."""
    clock = ManualClock()
    keeper = LeaseKeeper(ScriptedRenewer(TTL_MS), 7, TTL_MS, granted_at_ms=0, on_change=lambda state: None, clock=clock)
    assert keeper.alive_now()
    clock.advance(TTL_MS - TTL_MS // 10 - 1)
    assert keeper.alive_now()
    clock.advance(1)
    assert not keeper.alive_now()
    assert keeper.state is LeaseState.SILENT


class AskedClock(ManualClock):
    """Moves on at each look, and counts the looks."""

    def __init__(self):
        super().__init__()
        self.looks = 0
        self.looked_often = threading.Event()

    def boottime_ms(self):
        self.advance(TTL_MS)
        self.looks += 1
        if self.looks == 20:
            self.looked_often.set()
        return super().boottime_ms()


@pytest.mark.parametrize("blocked", [True, False])
def test_a_dead_event_loop_is_not_kept_alive(blocked):
    """Once the loop has not answered for the stall time, renewals end; while it runs, they continue (H89)."""
    clock = AskedClock()
    renewer = ScriptedRenewer(TTL_MS)

    async def scenario():
        keeper = LeaseKeeper(
            renewer, 7, TTL_MS, granted_at_ms=0, on_change=lambda state: None, loop_dead_after_ms=TTL_MS, clock=clock
        )
        keeper.start()
        if blocked:
            assert clock.looked_often.wait(WAIT_SECONDS)
            assert renewer.renewals.qsize() <= 1
        else:
            for _ in range(3):
                await asyncio.to_thread(renewer.renewals.get, timeout=WAIT_SECONDS)
        await keeper.stop()

    asyncio.run(scenario())
