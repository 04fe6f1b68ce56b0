"""When a process believes its wall clock (PROTOCOL H43): jumps, a wrong start, drift, other processes, an operator."""

from __future__ import annotations

import asyncio

import pytest
from headrace_server.clock_watch import OPERATOR, ClockExchange, ClockWatch, trust_clock
from headrace_server.cluster_identity import ClusterIdentity, read_or_create
from headrace_server.metadata_view import ClusterView
from headrace_server.metastore.view import PrefixView
from prometheus_client import CollectorRegistry, Gauge

from tests.fakes.manual_clock import ManualClock
from tests.fakes.memory_metastore import MemoryMetastore

HOUR = 3_600_000
DAY = 24 * HOUR


class Machine:
    """One clock and the processes that read it."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self.clock = ManualClock(now_ms)
        self.watch = ClockWatch(self.clock)

    def hear(self, name: str, other: Machine) -> None:
        """Take in what a process of another machine writes now."""
        self.watch.note(name, other.clock.now_ms(), doubtful=bool(other.watch.doubt()))


def pass_time(by_ms: int, *machines: Machine) -> None:
    for machine in machines:
        machine.clock.advance(by_ms)


@pytest.mark.parametrize("by_ms", [30 * DAY, -30 * DAY, 25 * HOUR])
def test_a_jump_is_doubted_until_it_is_taken_back(by_ms: int) -> None:
    """Not for one round: for as long as the clock is wrong."""
    machine = Machine()
    pass_time(HOUR, machine)
    assert machine.watch.doubt() == ""
    machine.clock.set_wall(by_ms)
    for _ in range(1_000):
        assert "jumped" in machine.watch.doubt()
        pass_time(HOUR, machine)
    machine.clock.set_wall(-by_ms)
    assert machine.watch.doubt() == ""


@pytest.mark.parametrize("by_ms", [30 * DAY, -30 * DAY])
def test_records_are_stamped_as_if_the_clock_had_not_jumped(by_ms: int) -> None:
    """From the moment of the jump on, asked or not, and until it is taken back."""
    machine = Machine()
    pass_time(HOUR, machine)
    before_ms = machine.watch.now_ms()
    assert before_ms == machine.clock.now_ms()
    machine.clock.set_wall(by_ms)
    assert machine.watch.now_ms() == before_ms
    pass_time(HOUR, machine)
    assert machine.watch.now_ms() == before_ms + HOUR
    machine.clock.set_wall(-by_ms)
    assert machine.watch.now_ms() == machine.clock.now_ms() == before_ms + HOUR


def test_records_are_stamped_by_the_clocks_of_others() -> None:
    """A clock that two of three others disprove does not stamp, whether it jumped or was wrong at the start."""
    machine, others = Machine(1_700_000_000_000 - 400 * DAY), [Machine(), Machine(), Machine()]
    for name, other in zip("abc", others, strict=True):
        machine.hear(name, other)
    pass_time(HOUR, machine, *others)
    assert machine.watch.now_ms() == others[0].clock.now_ms()


@pytest.mark.parametrize(("wrong_ms", "stamped_ms"), [(-400 * DAY, 0), (400 * DAY, 400 * DAY), (-HOUR, -HOUR)])
def test_a_clock_doubted_since_the_start_stamps_no_time_before_the_last_seen(wrong_ms: int, stamped_ms: int) -> None:
    """A stamp that is too late keeps a record too long; one that is too early would delete it too early."""
    start_ms = 1_700_000_000_000
    machine = Machine(start_ms + wrong_ms)
    machine.watch.note_seen(start_ms)
    machine.watch.doubt()
    pass_time(HOUR, machine)
    assert machine.watch.now_ms() == start_ms + stamped_ms + HOUR


def test_slow_drift_is_legal() -> None:
    """A clock that is slewed by NTP's 500 ppm is two days ahead after eleven years, and was never in doubt."""
    machine = Machine()
    for _ in range(11 * 365):
        pass_time(DAY, machine)
        machine.clock.set_wall(DAY * 450 // 1_000_000)
        assert machine.watch.doubt() == ""


def test_a_step_within_the_limit_is_no_jump() -> None:
    """Setting the clock by hours, as summer time by mistake, deletes nothing that is a day from its end."""
    machine = Machine()
    machine.clock.set_wall(2 * HOUR)
    assert machine.watch.doubt() == ""


@pytest.mark.parametrize("by_ms", [30 * DAY, -30 * DAY])
def test_a_clock_that_is_wrong_at_the_start_is_doubted(by_ms: int) -> None:
    """Against the newest time that was seen before; another process that agrees ends the doubt, its age does not."""
    machine = Machine()
    machine.watch.note_seen(machine.clock.now_ms() - by_ms)
    for _ in range(100):
        assert "before this start" in machine.watch.doubt()
        pass_time(HOUR, machine)
    other = Machine(machine.clock.now_ms())
    machine.hear("broker-2", other)
    assert machine.watch.doubt() == ""


def test_a_start_after_a_short_stop_is_believed() -> None:
    """A restart is no reason for doubt."""
    machine = Machine()
    machine.watch.note_seen(machine.clock.now_ms() - 5 * HOUR)
    assert machine.watch.doubt() == ""


def test_the_one_that_is_wrong_among_three_is_doubted_and_only_that() -> None:
    """Wrong from the start and without a past: the others see it, and it sees them."""
    wrong, second, third = Machine(1_700_000_000_000 + 30 * DAY), Machine(), Machine()
    for machine, others in ((wrong, (second, third)), (second, (wrong, third)), (third, (wrong, second))):
        for number, other in enumerate(others):
            machine.hear(f"broker-{number}", other)
    assert "2 of 2 other clocks differ" in wrong.watch.doubt()
    assert second.watch.doubt() == third.watch.doubt() == ""
    pass_time(HOUR, wrong, second, third)
    assert wrong.watch.doubt()


def test_processes_of_one_machine_do_not_confirm_each_others_jump() -> None:
    """Broker and coordinator read the same clock: each notes its own jump, and one in doubt is no witness."""
    broker, coordinator = Machine(), Machine()
    broker.hear("coordinator-a", coordinator)
    coordinator.hear("broker-1", broker)
    for machine in (broker, coordinator):
        machine.clock.set_wall(30 * DAY)
    for _ in range(10):
        coordinator.hear("broker-1", broker)
        broker.hear("coordinator-a", coordinator)
        assert broker.watch.doubt()
        assert coordinator.watch.doubt()
        pass_time(HOUR, broker, coordinator)


def test_a_clock_that_was_wrong_and_is_set_right_is_believed_when_others_agree() -> None:
    """The correction is a jump, too; the others' clocks tell it from a wrong one."""
    machine, second, third = Machine(1_600_000_000_000), Machine(), Machine()
    machine.clock.set_wall(100_000_000_000)
    assert machine.watch.doubt()
    machine.hear("broker-2", second)
    machine.hear("broker-3", third)
    assert machine.watch.doubt() == ""


def test_an_operator_ends_the_doubt_of_clocks_that_agree() -> None:
    """Who says what time it is ends the doubt of a machine that has this time, and of no other."""
    right, wrong = Machine(), Machine()
    for machine in (right, wrong):
        machine.watch.note_seen(machine.clock.now_ms() - 60 * DAY)
        assert machine.watch.doubt()
    wrong.clock.set_wall(7 * DAY)
    for machine in (right, wrong):
        machine.watch.note(OPERATOR, right.clock.now_ms(), doubtful=False)
    assert right.watch.doubt() == ""
    assert wrong.watch.doubt()
    right.clock.set_wall(7 * DAY)
    assert right.watch.doubt(), "a later jump is doubted again"


def test_a_process_that_is_gone_is_no_witness() -> None:
    """What a broker wrote before it left says nothing of the time now."""
    machine, other = Machine(), Machine(1_700_000_000_000 + 30 * DAY)
    machine.hear("broker-2", other)
    assert machine.watch.doubt()
    machine.watch.forget("broker-2")
    assert machine.watch.doubt() == ""


class Process:
    """A process with its view of etcd; `run` writes its clock and reads those of others, as the services do."""

    def __init__(self, name: str, memory: MemoryMetastore, identity: ClusterIdentity, clock: ManualClock) -> None:
        self.name, self.memory, self.identity, self.clock = name, memory, identity, clock
        self.gauge = Gauge("clock_in_doubt", "-", registry=CollectorRegistry())

    async def start(self) -> None:
        source = PrefixView(self.memory, self.identity.keyspace.prefix, self.clock)
        await source.load()
        view = ClusterView(self.identity, source)
        self.clocks = ClockExchange(ClockWatch(self.clock), self.name, view, self.memory, self.clock, self.gauge)
        self.following = asyncio.create_task(source.run())

    async def write(self) -> None:
        """One round of `run`."""
        revision = (await self.memory.range(self.identity.keyspace.prefix)).revision
        task = asyncio.create_task(self.clocks.run())
        while (await self.memory.range(self.identity.keyspace.prefix)).revision == revision:  # noqa: ASYNC110
            await asyncio.sleep(0)
        task.cancel()

    async def stop(self) -> None:
        self.following.cancel()


async def test_the_time_that_was_believed_outlives_all_processes() -> None:
    """A machine that comes back with a wrong clock is doubted by all that start on it, again and again, until told.

    What they wrote while they doubted is no evidence, nor is what was appended meanwhile.
    """
    memory, clock = MemoryMetastore(), ManualClock()
    identity = await read_or_create(memory, "test", "id")
    names = ("broker-1", "coordinator-a")
    for off_ms, doubted in ((0, False), (HOUR, False), (30 * DAY, True), (HOUR, True)):
        clock.set_wall(off_ms)
        processes = [Process(name, memory, identity, clock) for name in names]
        for process in processes:
            await process.start()
            process.clocks.note_newest_record(clock.now_ms())
        for process in processes:
            await process.write()
            assert bool(process.clocks.look()) is doubted
            assert process.gauge._value.get() == doubted
        if off_ms == HOUR and doubted:
            await trust_clock(memory, identity.keyspace.clock(OPERATOR), clock)
            again = Process("broker-1", memory, identity, clock)
            await again.start()
            assert again.clocks.look() == ""
            await again.stop()
        for process in processes:
            await process.stop()
