"""A leader that was deposed and does not know: what it takes commits nothing, and disappears (H4, H16, H20)."""

from tests.simulation.scenario import Scenario


def test_a_paused_leader_commits_nothing_after_its_successor() -> None:
    """b1 stops for longer than its lease, wakes up and takes a record before it hears of anything."""
    scenario = Scenario()
    scenario.produce(to=1)
    scenario.pause(1)
    scenario.until_leads(2)
    scenario.until_in_sync(2, 3)
    scenario.produce(to=2)

    scenario.blind(1)
    scenario.resume(1)
    zombie = scenario.send(to=1)
    scenario.run_for(4_000)
    assert scenario.host(1).replica.leader_epoch == 0
    assert not zombie.acknowledged
    assert scenario.high_watermark(1) == 1

    # Another one has offset 1 by now. b1 learns of it, gives its own record up, and answers that nothing is certain.
    scenario.restore_sight(1)
    scenario.until_in_sync(1, 2, 3)
    assert zombie.answered
    assert zombie.error is not None
    scenario.finish()


def test_fetches_of_the_new_leaders_followers_do_not_count_at_the_old_one() -> None:
    """b3 follows b2 and still has a stream to b1: its fetches name the new epoch, and b1 takes none of them."""
    scenario = Scenario()
    scenario.blind(1)
    scenario.end_session(1)
    scenario.until_leads(2)
    zombie = scenario.send(to=1)
    committed = scenario.produce(to=2)
    scenario.run_for(1_000)
    assert committed.acknowledged
    assert not zombie.acknowledged
    scenario.restore_sight(1)
    scenario.finish()


def test_a_follower_that_has_not_heard_of_the_new_leader_keeps_out_of_the_way() -> None:
    """b3 keeps following b1 of the old epoch: what b1 takes is never committed, because b2 has left it."""
    scenario = Scenario()
    scenario.blind(1, 3)
    scenario.end_session(1)
    scenario.until_leads(2)
    zombie = scenario.send(to=1)
    scenario.until_end(3, 1)
    scenario.run_for(500)
    assert not zombie.acknowledged
    assert scenario.high_watermark(3) == 0
    scenario.restore_sight(1, 3)
    scenario.until_in_sync(1, 2, 3)
    scenario.finish()


def test_a_leader_that_is_alone_in_sync_may_keep_leading() -> None:
    """b1 has lost its registration unnoticed; it alone is in sync, so no other broker is elected."""
    scenario = Scenario(min_insync_replicas=1)
    scenario.kill(2, 3)
    scenario.until_in_sync(1)
    scenario.blind(1)
    scenario.end_session(1)
    scenario.start(2, 3)
    scenario.run_for(2_000)
    assert scenario.send(to=1).acknowledged or scenario.end(1) == 1
    assert scenario.state.leader is None or scenario.state.leader.broker_id == 1
    scenario.restore_sight(1)
    scenario.until_leads(1)
    scenario.finish()
