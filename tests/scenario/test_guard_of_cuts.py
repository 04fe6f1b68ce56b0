"""What a replica that was killed knows to be committed: the guard against leaders that lost it (I18)."""

from tests.simulation.scenario import Scenario


def test_a_follower_that_is_killed_amid_records_knows_what_was_committed() -> None:
    """The last checkpoint is older than all of the records, and the key names none; it receives nothing further."""
    scenario = Scenario()
    for _ in range(10):
        scenario.produce(to=1)
    scenario.separate(2, 1, 3)
    scenario.kill(2)
    scenario.start(2)
    scenario.until_end(2, 10)
    assert scenario.high_watermark(2) >= 8, "all but what was committed since its last fsync"
    scenario.reunite(2, 1, 3)
    scenario.until_in_sync(1, 2, 3)
    scenario.finish()
