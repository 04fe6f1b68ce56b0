"""A follower whose log ends below the leader's log start begins anew there, in one step (H8, KAFKA-9491)."""

from tests.simulation.scenario import Scenario


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
