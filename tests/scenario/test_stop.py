"""A broker that shuts down cleanly hands leadership over first, and is not elected again (H18, KIP-841)."""

from tests.simulation.scenario import Scenario


def test_a_broker_that_stops_is_not_elected() -> None:
    """b2 begins to stop, stays in sync because it is needed, and b1 dies: b3 leads, though b2 comes before it."""
    story = Scenario(min_insync_replicas=3)
    story.produce(to=1)
    story.announce_stop(2)
    assert story.in_sync == [1, 2, 3]
    story.kill(1)
    story.until(lambda: story.state.leader_epoch > 0 and story.state.leader is not None, "a leader is elected")
    assert story.state.leader is not None
    assert story.state.leader.broker_id == 3
    story.kill(2)
    story.start(2)
    story.start(1)
    story.finish()
