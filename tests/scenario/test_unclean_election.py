"""An administrator lets a replica lead that lacks committed records (H21)."""

from tests.simulation.scenario import Scenario


def test_who_was_ahead_cuts_what_was_committed() -> None:
    """b3 is behind when b1 and b2 die. It is made leader; b1 and b2 come back and give up what only they had."""
    story = Scenario()
    story.produce(to=1)
    story.until(lambda: story.high_watermark(3) == 1, "b3 knows that it is committed")
    story.kill(3)
    story.until_in_sync(1, 2)
    lost = story.produce(to=1)
    story.until(lambda: story.high_watermark(2) == 2, "b2 knows that it is committed")
    story.kill(1)
    story.kill(2)
    story.start(3)
    story.run_for(3_000)
    assert story.state.leader is None

    story.elect_uncleanly()
    story.until_leads(3)
    assert story.state.unclean
    assert story.state.unclean_epoch == story.state.leader_epoch
    story.start(1)
    story.start(2)
    story.until_in_sync(1, 2, 3)
    assert [story.end(broker_id) for broker_id in (1, 2, 3)] == [1, 1, 1]
    assert lost.acknowledged
    story.finish()


def test_it_is_refused_where_a_complete_replica_is_alive() -> None:
    """While a replica that has everything is there, nothing is given up."""
    story = Scenario()
    story.kill(3)
    story.until_in_sync(1, 2)
    story.produce(to=1)
    story.start(3)
    story.elect_uncleanly()
    story.run_for(1_000)
    assert not story.state.unclean
    assert story.leads(1)
    story.finish()
