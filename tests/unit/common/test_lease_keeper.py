"""The lease keeper: alive, silent and lost are three things, and a dead event loop is not kept alive."""

import asyncio
import queue
import threading

import pytest
from headrace.wire.errors import MetastoreUnavailableError
from headrace_server.clock import ManualClock
from headrace_server.metastore.lease import LeaseKeeper, LeaseState

TTL_MS = 30  # The thread waits a third of it in real time, so this is what paces these tests.
WAIT_SECONDS = 20


class ScriptedRenewer:
    """Answers from a script; the last answer stays. Records each renewal."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.renewals = queue.Queue()
        self.closed = threading.Event()

    def renew(self, lease_id):
        self.renewals.put(lease_id)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is None:
            raise MetastoreUnavailableError("no answer")
        return answer

    def close(self):
        self.closed.set()


class Beats:
    """An event loop that beats each time it is asked, or not at all."""

    def __init__(self, beating):
        self.beating = beating
        self.count = 0

    def __call__(self):
        self.count += self.beating
        return self.count


def keep(renewer, *, clock=None, beating=True, until):
    """Run a keeper in a loop until `until(states)` is true; returns the keeper and the states heard."""
    clock = clock or ManualClock()
    states = []

    async def run():
        heard = asyncio.Event()

        def on_state(state):
            states.append(state)
            heard.set()

        keeper = LeaseKeeper(
            renewer,
            7,
            TTL_MS,
            clock,
            granted_at_ms=clock.boottime_ms(),
            beats=Beats(beating),
            on_state=on_state,
        )
        keeper.start()
        async with asyncio.timeout(WAIT_SECONDS):
            while not until(states):
                heard.clear()
                await heard.wait()
        await keeper.stop()
        return keeper

    return asyncio.run(run()), states


def test_silence_is_not_loss():
    """Without an answer the lease is SILENT; with the next answer it is ALIVE again (H84: silence fences nothing)."""
    renewer = ScriptedRenewer(TTL_MS, None, TTL_MS)
    keeper, states = keep(renewer, until=lambda states: LeaseState.ALIVE in states)
    assert states == [LeaseState.SILENT, LeaseState.ALIVE]
    assert keeper.is_sure()
    assert renewer.closed.is_set()


def test_a_time_to_live_of_zero_is_loss_and_final():
    """A received time to live of 0 says that the lease has ended, at once and for good (H76)."""
    renewer = ScriptedRenewer(0)
    keeper, states = keep(renewer, until=lambda states: LeaseState.LOST in states)
    assert states == [LeaseState.LOST]
    assert not keeper.is_sure()
    assert renewer.renewals.qsize() == 1


def test_the_deadline_counts_from_the_sending():
    """The lease is sure until the sending of the last answered renewal + TTL - margin, on boot time (H77)."""
    clock = ManualClock()
    keeper, _ = keep(ScriptedRenewer(TTL_MS, 0), clock=clock, until=lambda states: LeaseState.LOST in states)
    assert keeper.deadline_ms == TTL_MS - TTL_MS // 10


@pytest.mark.parametrize("beating", [True, False])
def test_a_dead_event_loop_is_not_kept_alive(beating):
    """Once the loop stands still for the stall time, renewals end; while it beats, they go on (H89)."""
    clock = ManualClock()
    renewer = ScriptedRenewer(TTL_MS)
    asked = threading.Event()
    beats = Beats(beating)

    def count():
        clock.advance(TTL_MS)
        asked.set()
        return beats()

    async def run():
        keeper = LeaseKeeper(
            renewer, 7, TTL_MS, clock, granted_at_ms=0, beats=count, on_state=lambda _: None, stall_ms=1
        )
        keeper.start()
        for _ in range(5):
            asked.clear()
            assert await asyncio.to_thread(asked.wait, WAIT_SECONDS)
        await keeper.stop()

    asyncio.run(run())
    assert renewer.renewals.qsize() >= 2 if beating else renewer.renewals.qsize() <= 1
