"""KAFKA-13790 and its kind: what a follower had acknowledged to a leader is remembered in a later epoch (H5)."""

from tests.simulation.scenario import Scenario


def test_a_leader_that_leads_again_knows_nothing_of_its_followers() -> None:
    """b3 acknowledged a record in epoch 0 and has cut it since; in epoch 2 it does not count as acknowledged."""
    scenario = Scenario()
    scenario.block(1, 2)
    lost = scenario.send(to=1)
    scenario.until_end(3, 1)
    scenario.until(lambda: scenario.host(1).leadership.followers.last_session(3) > 0, "b1 knows b3")
    scenario.run_for(100)  # b3's fsync and the fetch that says so

    # b2, which never had the record, leads epoch 1. b1 hears nothing of what b2 answers and keeps its log.
    scenario.block(2, 1)
    scenario.elect(2)
    scenario.until_end(3, 0)
    assert scenario.end(1) == 1
    assert not lost.acknowledged

    # b1 leads again. Its record is on no other disk; only once b3 has fetched it in this epoch may it be committed.
    scenario.separate(1, 3)
    scenario.elect(1)
    scenario.kill(2)
    scenario.until_in_sync(1, 3)
    scenario.until_known(1)
    assert scenario.high_watermark(1) == 0
    scenario.reunite(1, 2, 3)
    scenario.until_watermark(1, 1)
    assert scenario.end(3) == 1
    scenario.start(2)
    scenario.finish()
