"""Machines lose power, with all that was not fsynced (H22, I16)."""

from tests.fakes.memory_filesystem import Loss
from tests.simulation.scenario import LARGE, Scenario


def test_a_follower_joins_by_what_it_has_fsynced() -> None:
    """b3 has copied all that is committed and fsynced nothing when all power is lost; it comes back first."""
    scenario = Scenario()
    scenario.separate(3, 1, 2)
    scenario.until_in_sync(1, 2)
    scenario.produce(to=1, value=LARGE)
    scenario.block(2, 1)
    scenario.send(to=1)
    scenario.slow_disks()
    scenario.reunite(3, 1)
    scenario.until_end(3, 2)
    scenario.run_for(60)
    scenario.lose_power(1, 2, 3)
    scenario.reunite(3, 2)
    scenario.unblock(2, 1)
    scenario.start(3)
    scenario.run_for(3_000)
    assert not scenario.leads(3)
    scenario.start(1, 2)
    scenario.finish()


def test_what_is_acknowledged_outlives_the_power_of_all() -> None:
    """All three lose power at the moment of the acknowledgement."""
    for seed, loss in enumerate((Loss.ALL, Loss.PREFIX, Loss.BLOCKS)):
        scenario = Scenario(seed=seed)
        for _ in range(3):
            scenario.produce(to=1)
        scenario.send(to=1)
        for broker_id in (1, 2, 3):
            scenario.lose_power(broker_id, loss=loss)
        scenario.start(3, 2, 1)
        scenario.finish()


def test_without_fsync_a_machine_that_lost_its_power_is_not_elected() -> None:
    """b1 and b2 die with their power, b3 only as a process: b3 has all that was acknowledged, and it alone may lead."""
    scenario = Scenario(durable=False)
    scenario.produce(to=1)
    scenario.lose_power(1, 2)
    scenario.kill(3)
    scenario.start(1, 2)
    scenario.run_for(3_000)
    assert scenario.state.leader is None
    scenario.start(3)
    scenario.until_leads(3)
    assert scenario.end(3) == 1
    scenario.until_in_sync(1, 2, 3)
    scenario.finish()


def test_a_life_without_a_session_hides_no_loss() -> None:
    """b1 loses its power, starts, is killed before it could register, and starts again in the same boot.

    Nothing was lost between the last two lives, but the session that the key names is of the first.
    """
    scenario = Scenario(durable=False)
    scenario.produce(to=1)
    scenario.lose_power(1)
    scenario.kill(2, 3)
    scenario.cluster.etcd.away_until_ms = scenario.cluster.world.now_ms + 600
    scenario.start(1)
    scenario.run_for(300)
    scenario.kill(1)
    scenario.run_for(400)
    scenario.start(1)
    scenario.run_for(3_000)
    assert scenario.state.leader is None
    scenario.start(2, 3)
    scenario.finish()


def test_a_topic_without_fsync_any_more_keeps_who_has_fsynced() -> None:
    """The setting changes and all power is lost: until a leader has taken the key's promise back it holds (H30)."""
    scenario = Scenario()
    scenario.produce(to=1)
    scenario.lose_power(1, 2, 3)
    scenario.cluster.administration.change_durability(durable=False)
    scenario.run_for(500)
    assert scenario.state.durable
    scenario.start(2, 3, 1)
    scenario.until_in_sync(1, 2, 3)
    scenario.until(lambda: not scenario.state.durable, "the promise is taken back")
    scenario.finish()


def test_a_clean_stop_counts_once() -> None:
    """b1 stopped in order, was started again, and lost its power: that it stopped in order once says nothing now."""
    scenario = Scenario(durable=False)
    scenario.stop(1)
    scenario.start(1)
    scenario.until_in_sync(1, 2, 3)
    scenario.until(
        lambda: scenario.state.replica_of(1) == scenario.host(1).replica.me, "b1 is in sync in its new session"
    )
    if not scenario.leads(1):
        scenario.elect(1)
    scenario.produce(to=1)
    scenario.end_session(1, 2, 3)
    scenario.lose_power(1)
    scenario.kill(2, 3)
    scenario.start(1)
    scenario.run_for(3_000)
    assert scenario.state.leader is None
    scenario.start(2, 3)
    scenario.finish()


def test_followers_join_again_once_they_know_that_a_topic_asks_for_fsync() -> None:
    """The leader knows first. What waits there says nothing fsynced, and no record comes with a set of one (H30)."""
    scenario = Scenario(durable=False)
    scenario.produce(to=1)
    scenario.blind(2, 3)
    scenario.cluster.administration.change_durability(durable=True)
    scenario.separate(1, 2, 3)
    scenario.until_in_sync(1)
    scenario.reunite(1, 2, 3)
    scenario.run_for(1_000)
    assert scenario.in_sync == [1], "followers know nothing of the setting yet"
    scenario.restore_sight(2, 3)
    scenario.until_in_sync(1, 2, 3)
    scenario.until(lambda: scenario.state.durable, "the promise is given")
    scenario.finish()
