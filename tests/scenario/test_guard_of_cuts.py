"""What a replica that was killed knows to be committed: the guard against leaders that lost it (I18)."""

from tests.simulation.scenario import Scenario


def test_a_follower_that_is_killed_amid_records_knows_what_was_committed() -> None:
    """The last checkpoint is older than all of the records, and the key names none; it receives nothing further."""
    story = Scenario()
    for _ in range(10):
        story.produce(to=1)
    story.separate(2, 1, 3)
    story.kill(2)
    story.start(2)
    story.until_end(2, 10)
    assert story.high_watermark(2) >= 8, "all but what was committed since its last fsync"
    story.reunite(2, 1, 3)
    story.until_in_sync(1, 2, 3)
    story.finish()
