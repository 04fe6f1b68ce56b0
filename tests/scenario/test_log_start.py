"""A follower below the leader's log start begins anew there, in one step (H8, KAFKA-9491); it never falls (I18)."""

from tests.simulation.scenario import LARGE, Scenario


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
