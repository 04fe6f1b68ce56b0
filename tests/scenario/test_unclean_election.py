"""An administrator lets a replica lead that lacks committed records (H21)."""

from tests.simulation.scenario import Scenario


def test_who_was_ahead_cuts_what_was_committed() -> None:
    """b3 is behind when b1 and b2 die. It is made leader; b1 and b2 come back and give up what only they had."""
    scenario = Scenario()
    scenario.produce(to=1)
    scenario.until_watermark(1, 3)
    scenario.kill(3)
    scenario.until_in_sync(1, 2)
    lost = scenario.produce(to=1)
    scenario.until_watermark(2, 2)
    scenario.kill(1, 2)
    scenario.start(3)
    scenario.run_for(3_000)
    assert scenario.state.leader is None

    scenario.elect_uncleanly()
    scenario.until_leads(3)
    assert scenario.state.unclean
    assert scenario.state.unclean_epoch == scenario.state.leader_epoch
    scenario.start(1, 2)
    scenario.until_in_sync(1, 2, 3)
    assert [scenario.end(broker_id) for broker_id in (1, 2, 3)] == [1, 1, 1]
    assert lost.acknowledged
    scenario.finish()


def test_it_is_refused_where_a_complete_replica_is_alive() -> None:
    """While a replica that has everything is there, nothing is given up."""
    scenario = Scenario()
    scenario.kill(3)
    scenario.until_in_sync(1, 2)
    scenario.produce(to=1)
    scenario.start(3)
    scenario.elect_uncleanly()
    scenario.run_for(1_000)
    assert not scenario.state.unclean
    assert scenario.leads(1)
    scenario.finish()
