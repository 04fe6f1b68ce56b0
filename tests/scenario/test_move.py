"""Replicas move: what is added comes first, what is removed goes last (H25)."""

from tests.simulation.scenario import Scenario


def test_what_is_removed_goes_last() -> None:
    """b4 takes b3's place; while b4 cannot copy, b3 stays in sync and nothing is removed."""
    scenario = Scenario(brokers=4)
    scenario.produce(to=1)
    scenario.separate(4, 1, 2, 3)
    scenario.move(1, 2, 4)
    scenario.until(lambda: scenario.state.adding == (4,), "the move has begun")
    scenario.run_for(3_000)
    assert scenario.in_sync == [1, 2, 3]
    assert scenario.state.removing == (3,)

    scenario.reunite(4, 1, 2, 3)
    scenario.until(lambda: scenario.state.replicas == (1, 2, 4), "the move is done")
    assert scenario.in_sync == [1, 2, 4]
    scenario.produce(to=1)
    scenario.finish()


def test_a_leader_that_is_moved_away_hands_over_first() -> None:
    """b1 leads and is to go: another replica leads before b1 is removed."""
    scenario = Scenario(brokers=4)
    scenario.produce(to=1)
    scenario.move(2, 3, 4)
    scenario.until(lambda: 1 not in scenario.state.replicas, "the move is done")
    assert scenario.state.leader is not None
    assert scenario.state.leader.broker_id in (2, 3, 4)
    assert scenario.in_sync == [2, 3, 4]
    scenario.finish()
