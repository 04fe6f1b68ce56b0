"""Replicas move: what is added comes first, what is removed goes last (H25)."""

from tests.simulation.scenario import Scenario


def test_what_is_removed_goes_last() -> None:
    """b4 takes b3's place; while b4 cannot copy, b3 stays in sync and nothing is removed."""
    story = Scenario(brokers=4)
    story.produce(to=1)
    story.separate(4, 1, 2, 3)
    story.move(1, 2, 4)
    story.until(lambda: story.state.adding == (4,), "the move has begun")
    story.run_for(3_000)
    assert story.in_sync == [1, 2, 3]
    assert story.state.removing == (3,)

    story.reunite(4, 1, 2, 3)
    story.until(lambda: story.state.replicas == (1, 2, 4), "the move is done")
    assert story.in_sync == [1, 2, 4]
    story.produce(to=1)
    story.finish()


def test_a_leader_that_is_moved_away_hands_over_first() -> None:
    """b1 leads and is to go: another replica leads before b1 is removed."""
    story = Scenario(brokers=4)
    story.produce(to=1)
    story.move(2, 3, 4)
    story.until(lambda: 1 not in story.state.replicas, "the move is done")
    assert story.state.leader is not None
    assert story.state.leader.broker_id in (2, 3, 4)
    assert story.in_sync == [2, 3, 4]
    story.finish()
