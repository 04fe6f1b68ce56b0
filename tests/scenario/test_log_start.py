"""A log start holds for the partition, not for one replica: it never falls under any leader (H8, I18, KAFKA-9491)."""

import contextlib

from headrace.wire.errors import OffsetNotAvailableError

from tests.simulation.scenario import LARGE, Scenario


def log_starts(scenario: Scenario) -> list[int]:
    """Where the logs of all replicas begin."""
    return [int(scenario.host(broker_id).log.log_start_offset) for broker_id in (1, 2, 3)]


def told(scenario: Scenario, broker_id: int) -> int | None:
    """The log start that a leader tells clients; None: it tells none yet."""
    try:
        return scenario.log_start(broker_id)
    except OffsetNotAvailableError:
        return None


def test_a_follower_below_the_log_start_starts_over() -> None:
    """The records that b3 missed are gone; it takes log start, log end and high watermark from there at once."""
    scenario = Scenario()
    scenario.produce(to=1)
    scenario.separate(3, 1, 2)
    scenario.until_in_sync(1, 2)
    for _ in range(4):
        scenario.produce(to=1)
    scenario.delete_records(4)
    scenario.reunite(3, 1, 2)
    scenario.until_in_sync(1, 2, 3)
    replica = scenario.host(3).replica
    assert (replica.log_start_offset, scenario.end(3)) == (4, 5)
    scenario.produce(to=1)
    scenario.finish()


def test_the_log_start_outlives_a_power_loss() -> None:
    """b1 loses its power right after records were deleted: they are gone, and it knows where its log starts."""
    scenario = Scenario()
    for _ in range(5):
        scenario.produce(to=1, value=LARGE)
    scenario.delete_records(4)
    assert scenario.host(1).log.log_start_offset == 4
    scenario.separate(1, 2, 3)
    scenario.lose_power(1)
    scenario.start(1)
    scenario.until(lambda: scenario.end(1) == 5, "b1 has opened its log")
    assert scenario.host(1).log.log_start_offset == 4
    scenario.finish()


def test_deleted_records_stay_deleted_under_the_next_leader() -> None:
    """Nothing is produced after DeleteRecords, and the leader dies as soon as it has answered: all have deleted."""
    scenario = Scenario()
    for _ in range(5):
        scenario.produce(to=1)
    scenario.run_for(1_000)
    scenario.delete_records(5)
    assert log_starts(scenario) == [5, 5, 5]
    scenario.kill(1)
    scenario.until_leads(2)
    scenario.until(lambda: told(scenario, 2) is not None, "b3 has fetched from b2")
    assert told(scenario, 2) == 5
    scenario.start(1)
    scenario.finish()


def test_followers_take_up_the_log_start_first() -> None:
    """While b3 hears nothing from the leader, records are there for everybody; once it leaves, they go."""
    scenario = Scenario()
    for _ in range(5):
        scenario.produce(to=1)
    scenario.separate(3, 1, 2)
    deleted = scenario.begin_delete_records(3)
    scenario.until(lambda: log_starts(scenario)[1] == 3, "b2 has taken it up")
    assert told(scenario, 1) == 0
    assert not deleted()
    scenario.until_in_sync(1, 2)
    scenario.until(deleted, "b3 counts no more")
    assert log_starts(scenario) == [3, 3, 0]
    scenario.reunite(3, 1, 2)
    scenario.finish()
    assert log_starts(scenario) == [3, 3, 3]


def test_the_log_start_waits_for_enough_in_sync() -> None:
    """With b1 alone in sync of two that have to be, no log start moves: b2 may be elected, and has the records."""
    scenario = Scenario()
    for _ in range(5):
        scenario.produce(to=1)
    scenario.separate(1, 2, 3)
    scenario.until_in_sync(1)
    deleted = scenario.begin_delete_records(5)
    scenario.run_for(3_000)
    assert told(scenario, 1) == 0
    assert not deleted()
    scenario.reunite(1, 2, 3)
    scenario.until(deleted, "the others are back")
    scenario.finish()


def test_a_leader_elected_halfway_tells_no_log_start_yet() -> None:
    """b2 has deleted what b1 and b3 have not when it is elected: it tells no log start before b3 begins there, too."""
    scenario = Scenario()
    for _ in range(5):
        scenario.produce(to=1)
    scenario.separate(3, 1, 2)
    scenario.begin_delete_records(5)
    scenario.until(lambda: log_starts(scenario)[1] == 5, "b2 has taken it up")
    scenario.kill(1)
    scenario.until_leads(2)
    assert told(scenario, 2) is None
    with contextlib.suppress(OffsetNotAvailableError):  # It does not say either that they are gone.
        scenario.host(2).replica.check_read(0)
    scenario.reunite(3, 1, 2)
    scenario.until(lambda: told(scenario, 2) is not None, "b3 begins there, too")
    assert told(scenario, 2) == 5
    scenario.start(1)
    scenario.finish()


def test_a_follower_joins_where_the_log_starts() -> None:
    """b3 has all that is committed, and what was deleted while it was away: it joins without the latter."""
    scenario = Scenario()
    for _ in range(5):
        scenario.produce(to=1)
    scenario.separate(3, 1, 2)
    scenario.until_in_sync(1, 2)
    scenario.delete_records(5)
    scenario.unblock(3, 1)
    scenario.run_for(3_000)
    assert scenario.in_sync == [1, 2], "its fetches arrive, the answers do not"
    scenario.reunite(3, 1, 2)
    scenario.until_in_sync(1, 2, 3)
    assert log_starts(scenario) == [5, 5, 5]
    scenario.finish()
