"""A bit flips on one disk: no replica copies corrupt records, and none is lost (H33, I17)."""

from tests.simulation.scenario import LARGE, Scenario


def test_a_follower_refuses_what_its_leaders_disk_corrupt() -> None:
    """b3 is sent a batch whose bytes do not fit; b1 looks, leaves, and copies everything anew from who leads next."""
    story = Scenario()
    story.separate(3, 1, 2)
    story.until_in_sync(1, 2)
    story.kill(3)
    story.start(3)  # Its fetches are as of the key that it left in, so that the first one counts.
    story.produce(to=1, value=LARGE)
    story.corruption(1)
    story.reunite(3, 1, 2)
    story.until(lambda: story.cluster.world.counts.get("log: replica_fetch_corrupt", 0) > 0, "b3 refuses it")
    assert story.end(3) == 0
    story.until_leads(2)
    story.until_in_sync(1, 2, 3)
    assert [story.end(broker_id) for broker_id in (1, 2, 3)] == [1, 1, 1]
    story.finish()


def test_a_restarted_replica_finds_the_corruption_itself() -> None:
    """b2 is restarted over a corrupt log: it leaves, sets the log aside and copies it."""
    story = Scenario()
    story.produce(to=1, value=LARGE)
    story.corruption(2)
    story.lose_power(2)
    story.start(2)
    story.until_in_sync(1, 2, 3)
    story.until_end(2, 1)
    story.finish()


def test_a_join_on_its_way_does_not_name_the_log_that_takes_the_corrupt_ones_place() -> None:
    """b1's write that takes b3 in lands when b3 has set its log aside, and has not registered anew (C3, H17)."""
    story = Scenario()
    story.produce(to=1, value=LARGE)
    story.separate(3, 1, 2)
    story.until_in_sync(1, 2)
    story.until_known(1)
    story.prolong_sessions(4_000)
    story.reunite(3, 1, 2)
    story.delay_next_write()
    assert story.host(1).replica.proposals.under_way, "b1 takes b3 in"
    story.mute(1)
    story.corruption(3)
    story.lose_power(3, noticed=False)
    story.start(3)
    story.until_end(3, 0)  # It has left the key.
    story.mute(3)
    story.run_for(2_600)
    assert story.cluster.world.counts["writes applied late"] == 1
    assert story.in_sync == [1, 2]
    story.unmute(3)
    story.unmute(1)
    story.until_in_sync(1, 2, 3)
    assert [story.end(broker_id) for broker_id in (1, 2, 3)] == [1, 1, 1]
    story.finish()


def test_a_join_on_its_way_does_not_name_the_empty_log_of_a_session_that_goes_on() -> None:
    """b1's write that takes b3 in is on its way while b3 finds rot and begins anew, in the session that it names.

    b3 is not named when it leaves; it writes the key all the same, and only so does the late write fail (C3, H33).
    """
    story = Scenario()
    story.produce(to=1, value=LARGE)
    story.separate(3, 1, 2)
    story.until_in_sync(1, 2)
    story.until_known(1)
    story.reunite(3, 1, 2)
    proposals = story.host(1).replica.proposals
    story.delay_writes(lambda: bool(proposals.under_way), "b1 takes b3 in")
    session = story.host(3).broker.broker_epoch
    story.separate(3, 1, 2)
    story.blind(1)
    story.corruption(3)
    story.host(3).broker.scrub()
    story.until_end(3, 0)
    assert story.host(3).broker.broker_epoch == session
    story.run_for(2_600)
    assert story.in_sync == [1, 2]
    story.restore_sight(1)
    story.reunite(3, 1, 2)
    story.until_in_sync(1, 2, 3)
    assert [story.end(broker_id) for broker_id in (1, 2, 3)] == [1, 1, 1]
    story.finish()
