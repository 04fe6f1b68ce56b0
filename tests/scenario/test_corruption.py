"""A bit flips on one disk: no replica copies corrupt records, and none is lost (H33, I17)."""

from tests.simulation.scenario import LARGE, Scenario


def test_a_follower_refuses_what_its_leaders_disk_corrupt() -> None:
    """b3 is sent a batch whose bytes do not fit; b1 looks, leaves, and copies everything anew from who leads next."""
    scenario = Scenario()
    scenario.separate(3, 1, 2)
    scenario.until_in_sync(1, 2)
    scenario.kill(3)
    scenario.start(3)  # Its fetches are as of the key that it left in, so that the first one counts.
    scenario.produce(to=1, value=LARGE)
    scenario.corruption(1)
    scenario.reunite(3, 1, 2)
    scenario.until(lambda: scenario.cluster.world.counts.get("log: replica_fetch_corrupt", 0) > 0, "b3 refuses it")
    assert scenario.end(3) == 0
    scenario.until_leads(2)
    scenario.until_in_sync(1, 2, 3)
    assert [scenario.end(broker_id) for broker_id in (1, 2, 3)] == [1, 1, 1]
    scenario.finish()


def test_a_restarted_replica_finds_the_corruption_itself() -> None:
    """b2 is restarted over a corrupt log: it leaves, sets the log aside and copies it."""
    scenario = Scenario()
    scenario.produce(to=1, value=LARGE)
    scenario.corruption(2)
    scenario.lose_power(2)
    scenario.start(2)
    scenario.until_in_sync(1, 2, 3)
    scenario.until_end(2, 1)
    scenario.finish()


def test_a_join_on_its_way_does_not_name_the_log_that_takes_the_corrupt_ones_place() -> None:
    """b1's write that takes b3 in lands when b3 has set its log aside, and has not registered anew (C3, H17)."""
    scenario = Scenario()
    scenario.produce(to=1, value=LARGE)
    scenario.separate(3, 1, 2)
    scenario.until_in_sync(1, 2)
    scenario.until_known(1)
    scenario.prolong_sessions(4_000)
    scenario.reunite(3, 1, 2)
    proposals = scenario.host(1).leadership.proposals
    scenario.delay_writes(lambda: bool(proposals.under_way), "b1 takes b3 in")
    late = scenario.cluster.world.counts["writes applied late"]
    scenario.mute(1)
    scenario.corruption(3)
    scenario.lose_power(3, noticed=False)
    scenario.start(3)
    scenario.until_end(3, 0)  # It has left the key.
    scenario.mute(3)
    scenario.run_for(2_600)
    assert scenario.cluster.world.counts["writes applied late"] == late > 0
    assert scenario.in_sync == [1, 2]
    scenario.unmute(3, 1)
    scenario.until_in_sync(1, 2, 3)
    assert [scenario.end(broker_id) for broker_id in (1, 2, 3)] == [1, 1, 1]
    scenario.finish()


def test_a_join_on_its_way_does_not_name_the_empty_log_of_a_session_that_goes_on() -> None:
    """b1's write that takes b3 in is on its way while b3 finds rot and begins anew, in the session that it names.

    b3 is not named when it leaves; it writes the key all the same, and only so does the late write fail (C3, H33).
    """
    scenario = Scenario()
    scenario.produce(to=1, value=LARGE)
    scenario.separate(3, 1, 2)
    scenario.until_in_sync(1, 2)
    scenario.until_known(1)
    scenario.reunite(3, 1, 2)
    proposals = scenario.host(1).leadership.proposals
    scenario.delay_writes(lambda: bool(proposals.under_way), "b1 takes b3 in")
    session = scenario.host(3).broker.broker_epoch
    scenario.separate(3, 1, 2)
    scenario.blind(1)
    scenario.corruption(3)
    scenario.host(3).broker.scrub()
    scenario.until_end(3, 0)
    assert scenario.host(3).broker.broker_epoch == session
    scenario.run_for(2_600)
    assert scenario.in_sync == [1, 2]
    scenario.restore_sight(1)
    scenario.reunite(3, 1, 2)
    scenario.until_in_sync(1, 2, 3)
    assert [scenario.end(broker_id) for broker_id in (1, 2, 3)] == [1, 1, 1]
    scenario.finish()
