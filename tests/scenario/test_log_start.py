"""A log start holds for the partition, not for one replica: it never falls under any leader (H8, I18, KAFKA-9491)."""

import contextlib

from headrace.wire.errors import OffsetNotAvailableError

from tests.simulation.scenario import LARGE, Scenario


def log_starts(story: Scenario) -> list[int]:
    """Where the logs of all replicas begin."""
    return [int(story.host(broker_id).log.log_start_offset) for broker_id in (1, 2, 3)]


def told(story: Scenario, broker_id: int) -> int | None:
    """The log start that a leader tells clients; None: it tells none yet."""
    try:
        return story.log_start(broker_id)
    except OffsetNotAvailableError:
        return None


def test_a_follower_below_the_log_start_starts_over() -> None:
    """The records that b3 missed are gone; it takes log start, log end and high watermark from there at once."""
    story = Scenario()
    story.produce(to=1)
    story.separate(3, 1, 2)
    story.until_in_sync(1, 2)
    for _ in range(4):
        story.produce(to=1)
    story.delete_records(4)
    story.reunite(3, 1, 2)
    story.until_in_sync(1, 2, 3)
    replica = story.host(3).replica
    assert (replica.log_start_offset, story.end(3)) == (4, 5)
    story.produce(to=1)
    story.finish()


def test_the_log_start_outlives_a_power_loss() -> None:
    """b1 loses its power right after records were deleted: they are gone, and it knows where its log starts."""
    story = Scenario()
    for _ in range(5):
        story.produce(to=1, value=LARGE)
    story.delete_records(4)
    assert story.host(1).log.log_start_offset == 4
    story.separate(1, 2, 3)
    story.lose_power(1)
    story.start(1)
    story.until(lambda: story.end(1) == 5, "b1 has opened its log")
    assert story.host(1).log.log_start_offset == 4
    story.finish()


def test_deleted_records_stay_deleted_under_the_next_leader() -> None:
    """Nothing is produced after DeleteRecords, and the leader dies as soon as it has answered: all have deleted."""
    story = Scenario()
    for _ in range(5):
        story.produce(to=1)
    story.run_for(1_000)
    story.delete_records(5)
    assert log_starts(story) == [5, 5, 5]
    story.kill(1)
    story.until_leads(2)
    story.until(lambda: told(story, 2) is not None, "b3 has fetched from b2")
    assert told(story, 2) == 5
    story.start(1)
    story.finish()


def test_followers_take_up_the_log_start_first() -> None:
    """While b3 hears nothing from the leader, records are there for everybody; once it leaves, they go."""
    story = Scenario()
    for _ in range(5):
        story.produce(to=1)
    story.separate(3, 1, 2)
    deleted = story.begin_delete_records(3)
    story.until(lambda: log_starts(story)[1] == 3, "b2 has taken it up")
    assert told(story, 1) == 0
    assert not deleted()
    story.until_in_sync(1, 2)
    story.until(deleted, "b3 counts no more")
    assert log_starts(story) == [3, 3, 0]
    story.reunite(3, 1, 2)
    story.finish()
    assert log_starts(story) == [3, 3, 3]


def test_the_log_start_waits_for_enough_in_sync() -> None:
    """With b1 alone in sync of two that have to be, no log start moves: b2 may be elected, and has the records."""
    story = Scenario()
    for _ in range(5):
        story.produce(to=1)
    story.separate(1, 2, 3)
    story.until_in_sync(1)
    deleted = story.begin_delete_records(5)
    story.run_for(3_000)
    assert told(story, 1) == 0
    assert not deleted()
    story.reunite(1, 2, 3)
    story.until(deleted, "the others are back")
    story.finish()


def test_a_leader_elected_halfway_tells_no_log_start_yet() -> None:
    """b2 has deleted what b1 and b3 have not when it is elected: it tells no log start before b3 begins there, too."""
    story = Scenario()
    for _ in range(5):
        story.produce(to=1)
    story.separate(3, 1, 2)
    story.begin_delete_records(5)
    story.until(lambda: log_starts(story)[1] == 5, "b2 has taken it up")
    story.kill(1)
    story.until_leads(2)
    assert told(story, 2) is None
    with contextlib.suppress(OffsetNotAvailableError):  # It does not say either that they are gone.
        story.host(2).replica.check_read(0)
    story.reunite(3, 1, 2)
    story.until(lambda: told(story, 2) is not None, "b3 begins there, too")
    assert told(story, 2) == 5
    story.start(1)
    story.finish()


def test_a_follower_joins_where_the_log_starts() -> None:
    """b3 has all that is committed, and what was deleted while it was away: it joins without the latter."""
    story = Scenario()
    for _ in range(5):
        story.produce(to=1)
    story.separate(3, 1, 2)
    story.until_in_sync(1, 2)
    story.delete_records(5)
    story.unblock(3, 1)
    story.run_for(3_000)
    assert story.in_sync == [1, 2], "its fetches arrive, the answers do not"
    story.reunite(3, 1, 2)
    story.until_in_sync(1, 2, 3)
    assert log_starts(story) == [5, 5, 5]
    story.finish()
