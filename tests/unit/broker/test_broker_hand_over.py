"""A leader that is asked to hand over: when appends stop, for how long, and who is named (H24)."""

from __future__ import annotations

import asyncio

from headrace.wire.errors import LeaderNotAvailableError, NotLeaderError, Outcome
from headrace.wire.ids import Offset
from headrace_broker.core.hand_over import HAND_OVER_RETRY_MS
from headrace_broker.core.messages import (
    Action,
    FollowerFetched,
    LimitPause,
    PauseOver,
    ProposalFailed,
    ProposalSucceeded,
    ProposalUnanswered,
    Propose,
    StateSeen,
    Ticked,
)
from headrace_broker.core.roles import Role
from headrace_broker.runtime.partition import Partition
from headrace_server.partition_state import PartitionState, Replica

from tests.unit.broker.test_broker_replica import EPOCH, ME, OTHER, Driver
from tests.unit.broker.test_broker_runtime import Gate, batch

LEADER, SECOND, THIRD = Replica(ME, EPOCH), Replica(OTHER, 7), Replica(3, 8)
LOG_END = 5


def asked(*successors: Replica, **fields: object) -> Driver:
    """A leader of five records that is asked to hand over."""
    driver = Driver(log_end=LOG_END, high_watermark=LOG_END)
    members = {"replicas": (ME, OTHER, 3), "in_sync": (LEADER, SECOND, THIRD), "min_insync_replicas": 2}
    driver.lead(**members)
    driver.see(LEADER, 0, **{**members, "successors": successors, **fields})
    return driver


def fetch(driver: Driver, follower: Replica, offset: int, at_ms: int = 0) -> list[Action]:
    """What a verified fetch leads to, as far as it concerns the hand-over."""
    actions = driver(FollowerFetched(follower, Offset(offset), Offset(offset), at_ms, False))
    return [each for each in actions if isinstance(each, Propose | LimitPause)]


def refuses(driver: Driver) -> bool:
    driver.replica.check_leading(-1)  # Readers and followers are served on.
    try:
        driver.replica.check_leading(-1).check_appending(committed=False)
    except LeaderNotAvailableError as error:
        return error.outcome is Outcome.NOT_APPLIED
    return False


def test_a_successor_that_has_everything_is_named_at_once() -> None:
    """The write compares both sessions; nothing is appended while it is on its way."""
    driver = asked(SECOND)
    assert fetch(driver, THIRD, LOG_END) == []
    (proposal,) = fetch(driver, SECOND, LOG_END)
    assert isinstance(proposal, Propose)
    assert (proposal.state.leader, proposal.state.in_sync) == (SECOND, (LEADER, SECOND, THIRD))
    assert proposal.sessions == (LEADER, SECOND)
    assert refuses(driver)
    driver(ProposalSucceeded(proposal.number, 10**6))
    assert driver.replica.role is Role.FOLLOWING


def test_appends_stop_until_a_successor_has_everything() -> None:
    """The first of those asked for that gets there is named, whatever their order; one pause at a time."""
    driver = asked(SECOND, THIRD)
    (pause,) = fetch(driver, SECOND, 2)
    assert isinstance(pause, LimitPause)
    assert refuses(driver)
    assert fetch(driver, SECOND, 3) == []
    (proposal,) = fetch(driver, THIRD, LOG_END)
    assert isinstance(proposal, Propose)
    assert proposal.state.leader == THIRD
    assert driver(PauseOver(pause.number, 100)) == [], "the write is on its way: its end decides"
    assert refuses(driver)


def test_appends_resume_where_no_successor_catches_up_in_time() -> None:
    """The leader reports that it still leads, and refuses no appends for a second."""
    driver = asked(SECOND)
    (pause,) = fetch(driver, SECOND, 2)
    assert isinstance(pause, LimitPause)
    (proposal,) = driver(PauseOver(pause.number, 100))
    assert isinstance(proposal, Propose)
    assert (proposal.state.leader, proposal.state.successors) == (LEADER, ())
    assert not refuses(driver)
    driver(ProposalSucceeded(proposal.number, 10**6))
    driver(StateSeen(PartitionState((ME, OTHER, 3), LEADER, 0, (LEADER, SECOND, THIRD), successors=(SECOND,)), 10**7))
    assert fetch(driver, SECOND, 2, at_ms=200) == []
    assert fetch(driver, SECOND, LOG_END, at_ms=300) == []
    assert fetch(driver, SECOND, 2, at_ms=200 + HAND_OVER_RETRY_MS) == [LimitPause(pause.number + 1)]


def test_appends_resume_where_the_successor_has_gone() -> None:
    """The compare of its session fails; the tick tries again, since a follower that has everything does not fetch."""
    driver = asked(SECOND)
    (proposal,) = fetch(driver, SECOND, LOG_END)
    assert isinstance(proposal, Propose)
    driver(ProposalFailed(proposal.number, None, 0))
    assert not refuses(driver)
    assert driver.replica.counts_append(0)
    assert driver(Ticked(1, {}, ())) == []
    (again,) = driver(Ticked(1 + HAND_OVER_RETRY_MS, {}, ()))
    assert isinstance(again, Propose)
    assert again.state.leader == SECOND


def test_appends_do_not_wait_for_etcd() -> None:
    """H84, C3: the write gets no answer; appends continue, and another write on that version settles the outcome."""
    driver = asked(SECOND)
    (proposal,) = fetch(driver, SECOND, LOG_END)
    assert isinstance(proposal, Propose)
    driver(ProposalUnanswered(proposal.number))
    assert not refuses(driver)
    (settling,) = driver(Ticked(1, {}, ()))
    assert isinstance(settling, Propose)
    assert (settling.base_revision, settling.state.leader) == (proposal.base_revision, LEADER)


def test_a_leader_that_stops_leaves_the_in_sync_set_where_enough_stay() -> None:
    """KIP-841: who takes over does not wait for it."""
    driver = asked(SECOND)
    driver.replica.stops = True
    (proposal,) = fetch(driver, SECOND, LOG_END)
    assert isinstance(proposal, Propose)
    assert proposal.state.in_sync == (SECOND, THIRD)
    driver = asked(SECOND, min_insync_replicas=3)
    driver.replica.stops = True
    (proposal,) = fetch(driver, SECOND, LOG_END)
    assert isinstance(proposal, Propose)
    assert proposal.state.in_sync == (LEADER, SECOND, THIRD)


async def test_an_append_under_way_is_not_acknowledged_once_a_successor_is_named(partition: Partition) -> None:
    """A thread writes it while the successor, which has all that came before, is named: its outcome is unknown."""
    gate = Gate(partition.open_log, "append")
    proposed: list[Propose] = []
    partition._host.propose = lambda _, proposal: proposed.append(proposal)  # type: ignore[method-assign]
    first = asyncio.create_task(partition.appender.append([batch(b"a")], -1, committed=False))
    await gate.reached()
    _ask(partition)
    assert len(proposed) == 1
    gate.opened.set()
    result = await first
    assert isinstance(result.error, NotLeaderError)
    assert result.error.outcome is Outcome.UNKNOWN
    refused = partition.appender.append_now([batch(b"b")], -1, committed=False)
    assert refused is not None
    assert isinstance(refused.error, LeaderNotAvailableError)


def _ask(partition: Partition) -> None:
    """Ask for another broker to lead, which has all that the leader has appended."""
    me, other = Replica(1, 5), Replica(2, 6)
    partition.handle(StateSeen(PartitionState((1, 2), me, 0, (me, other), partition_epoch=1, successors=(other,)), 10))
    end = partition.replica.log_end_offset
    partition.handle(FollowerFetched(other, end, end, 0, True))
