"""A leader that was deposed and does not know: what it takes commits nothing, and disappears (H4, H16, H20)."""

from tests.simulation.scenario import Scenario


def test_a_paused_leader_commits_nothing_after_its_successor() -> None:
    """b1 stops for longer than its lease, wakes up and takes a record before it hears of anything."""
    story = Scenario()
    story.produce(to=1)
    story.pause(1)
    story.until_leads(2)
    story.until_in_sync(2, 3)
    story.produce(to=2)

    story.blind(1)
    story.resume(1)
    zombie = story.send(to=1)
    story.run_for(4_000)
    assert story.host(1).replica.leader_epoch == 0
    assert not zombie.acknowledged
    assert story.high_watermark(1) == 1

    # Another one has offset 1 by now. b1 learns of it, gives its own record up, and answers that nothing is certain.
    story.restore_sight(1)
    story.until_in_sync(1, 2, 3)
    assert zombie.answered
    assert zombie.error is not None
    story.finish()


def test_fetches_of_the_new_leaders_followers_do_not_count_at_the_old_one() -> None:
    """b3 follows b2 and still has a stream to b1: its fetches name the new epoch, and b1 takes none of them."""
    story = Scenario()
    story.blind(1)
    story.end_session(1)
    story.until_leads(2)
    zombie = story.send(to=1)
    committed = story.produce(to=2)
    story.run_for(1_000)
    assert committed.acknowledged
    assert not zombie.acknowledged
    story.restore_sight(1)
    story.finish()


def test_a_follower_that_has_not_heard_of_the_new_leader_keeps_out_of_the_way() -> None:
    """b3 keeps following b1 of the old epoch: what b1 takes is never committed, because b2 has left it."""
    story = Scenario()
    story.blind(1)
    story.blind(3)
    story.end_session(1)
    story.until_leads(2)
    zombie = story.send(to=1)
    story.until_end(3, 1)
    story.run_for(500)
    assert not zombie.acknowledged
    assert story.high_watermark(3) == 0
    story.restore_sight(1)
    story.restore_sight(3)
    story.until_in_sync(1, 2, 3)
    story.finish()


def test_a_leader_that_is_alone_in_sync_may_keep_leading() -> None:
    """b1 has lost its registration unnoticed; it alone is in sync, so no other broker is elected."""
    story = Scenario(min_insync_replicas=1)
    story.kill(2)
    story.kill(3)
    story.until_in_sync(1)
    story.blind(1)
    story.end_session(1)
    story.start(2)
    story.start(3)
    story.run_for(2_000)
    assert story.send(to=1).acknowledged or story.end(1) == 1
    assert story.state.leader is None or story.state.leader.broker_id == 1
    story.restore_sight(1)
    story.until_leads(1)
    story.finish()
