"""A broker that shuts down cleanly hands leadership over first, and is not elected again (H18, KIP-841)."""

from tests.simulation.scenario import Scenario


def test_a_broker_that_stops_is_not_elected() -> None:
    """b2 begins to stop, stays in sync because it is needed, and b1 dies: b3 leads, though b2 comes before it."""
    scenario = Scenario(min_insync_replicas=3)
    scenario.produce(to=1)
    scenario.announce_stop(2)
    assert scenario.in_sync == [1, 2, 3]
    scenario.kill(1)
    scenario.until(lambda: scenario.state.leader_epoch > 0 and scenario.state.leader is not None, "a leader is elected")
    assert scenario.state.leader is not None
    assert scenario.state.leader.broker_id == 3
    scenario.kill(2)
    scenario.start(2, 1)
    scenario.finish()
