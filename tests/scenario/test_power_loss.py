"""Machines lose power, with all that was not fsynced (H22, I16)."""

from tests.fakes.memory_filesystem import Loss
from tests.simulation.scenario import LARGE, Scenario


def test_a_follower_joins_by_what_it_has_fsynced() -> None:
    """b3 has copied all that is committed and fsynced nothing when all power is lost; it comes back first."""
    story = Scenario()
    story.separate(3, 1, 2)
    story.until_in_sync(1, 2)
    story.produce(to=1, value=LARGE)
    story.block(2, 1)
    story.send(to=1)
    story.slow_disks()
    story.reunite(3, 1)
    story.until_end(3, 2)
    story.run_for(60)
    for broker_id in (1, 2, 3):
        story.lose_power(broker_id)
    story.reunite(3, 2)
    story.unblock(2, 1)
    story.start(3)
    story.run_for(3_000)
    assert not story.leads(3)
    story.start(1)
    story.start(2)
    story.finish()


def test_what_is_acknowledged_outlives_the_power_of_all() -> None:
    """All three lose power at the moment of the acknowledgement."""
    for seed, loss in enumerate((Loss.ALL, Loss.PREFIX, Loss.BLOCKS)):
        story = Scenario(seed=seed)
        for _ in range(3):
            story.produce(to=1)
        story.send(to=1)
        for broker_id in (1, 2, 3):
            story.lose_power(broker_id, loss)
        for broker_id in (3, 2, 1):
            story.start(broker_id)
        story.finish()


def test_without_fsync_a_machine_that_lost_its_power_is_not_elected() -> None:
    """b1 and b2 die with their power, b3 only as a process: b3 has all that was acknowledged, and it alone may lead."""
    story = Scenario(durable=False)
    story.produce(to=1)
    story.lose_power(1)
    story.lose_power(2)
    story.kill(3)
    story.start(1)
    story.start(2)
    story.run_for(3_000)
    assert story.state.leader is None
    story.start(3)
    story.until_leads(3)
    assert story.end(3) == 1
    story.until_in_sync(1, 2, 3)
    story.finish()


def test_a_life_without_a_session_hides_no_loss() -> None:
    """b1 loses its power, starts, is killed before it could register, and starts again in the same boot.

    Nothing was lost between the last two lives, but the session that the key names is of the first.
    """
    story = Scenario(durable=False)
    story.produce(to=1)
    story.lose_power(1)
    story.kill(2)
    story.kill(3)
    story.cluster.etcd.away_until_ms = story.cluster.world.now_ms + 600
    story.start(1)
    story.run_for(300)
    story.kill(1)
    story.run_for(400)
    story.start(1)
    story.run_for(3_000)
    assert story.state.leader is None
    story.start(2)
    story.start(3)
    story.finish()


def test_a_topic_without_fsync_any_more_keeps_who_has_fsynced() -> None:
    """The setting changes and all power is lost: until a leader has taken the key's promise back it holds (H30)."""
    story = Scenario()
    story.produce(to=1)
    for broker_id in (1, 2, 3):
        story.lose_power(broker_id)
    story.cluster.change_durability(durable=False)
    story.run_for(500)
    assert story.state.durable
    for broker_id in (2, 3, 1):
        story.start(broker_id)
    story.until_in_sync(1, 2, 3)
    story.until(lambda: not story.state.durable, "the promise is taken back")
    story.finish()


def test_a_clean_stop_counts_once() -> None:
    """b1 stopped in order, was started again, and lost its power: that it stopped in order once says nothing now."""
    story = Scenario(durable=False)
    story.stop(1)
    story.start(1)
    story.until_in_sync(1, 2, 3)
    story.until(lambda: story.state.replica_of(1) == story.host(1).replica._me(), "b1 is in sync in its new session")
    if not story.leads(1):
        story.elect(1)
    story.produce(to=1)
    for broker_id in (1, 2, 3):
        story.end_session(broker_id)
    story.lose_power(1)
    story.kill(2)
    story.kill(3)
    story.start(1)
    story.run_for(3_000)
    assert story.state.leader is None
    story.start(2)
    story.start(3)
    story.finish()


def test_followers_join_again_once_they_know_that_a_topic_asks_for_fsync() -> None:
    """The leader knows first. What waits there says nothing fsynced, and no record comes with a set of one (H30)."""
    story = Scenario(durable=False)
    story.produce(to=1)
    for broker_id in (2, 3):
        story.blind(broker_id)
    story.cluster.change_durability(durable=True)
    story.separate(1, 2, 3)
    story.until_in_sync(1)
    story.reunite(1, 2, 3)
    story.run_for(1_000)
    assert story.in_sync == [1], "followers know nothing of the setting yet"
    for broker_id in (2, 3):
        story.restore_sight(broker_id)
    story.until_in_sync(1, 2, 3)
    story.until(lambda: story.state.durable, "the promise is given")
    story.finish()
