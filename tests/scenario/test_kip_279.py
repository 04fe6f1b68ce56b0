"""KIP-279: after two quick changes of leader a follower has an epoch that its leader has never heard of (H2, H3)."""

from tests.simulation.scenario import Scenario


def _two_quick_changes(*, copied_by_b3: int, written_by_b2: int, written_by_b3: int) -> None:
    """b1 leads epoch 0 and dies; b2 leads, writes records that are not copied, and dies; b3 leads and writes too.

    Then b2 follows b3 until it has b3's log.
    """
    scenario = Scenario(min_insync_replicas=1)
    scenario.produce(to=1)
    scenario.block(1, 2)
    for _ in range(copied_by_b3):
        scenario.send(to=1)
    scenario.until_end(3, 1 + copied_by_b3)

    scenario.block(2, 3)
    scenario.kill(1)
    scenario.until_leads(2)
    first_epoch = scenario.state.leader_epoch
    for _ in range(written_by_b2):
        scenario.send(to=2)
    assert scenario.epochs(2) == [0] + [first_epoch] * written_by_b2
    scenario.kill(2)
    scenario.unblock(2, 3)
    scenario.unblock(1, 2)

    scenario.until_leads(3)
    for _ in range(written_by_b3):
        scenario.produce(to=3)
    assert first_epoch not in scenario.epochs(3)
    scenario.start(2)
    scenario.until(lambda: scenario.epochs(2) == scenario.epochs(3), "b2 has b3's log")
    scenario.start(1)
    scenario.finish()


def test_the_follower_has_less_of_the_epoch_that_both_know() -> None:
    """The leader's end of the common epoch lies beyond the follower's own: it cuts to its own."""
    _two_quick_changes(copied_by_b3=2, written_by_b2=3, written_by_b3=1)


def test_the_follower_ends_within_the_epoch_that_both_know() -> None:
    """The follower's end lies before the leader's end of the common epoch, and belongs to another one."""
    _two_quick_changes(copied_by_b3=2, written_by_b2=1, written_by_b3=1)


def test_the_follower_has_more_than_the_leader() -> None:
    """The epoch that the leader does not know reaches beyond the leader's end."""
    _two_quick_changes(copied_by_b3=0, written_by_b2=3, written_by_b3=1)


def test_the_follower_has_as_much_as_the_leader() -> None:
    """Both logs end at the same offset, in different epochs: equal length proves nothing."""
    _two_quick_changes(copied_by_b3=0, written_by_b2=2, written_by_b3=2)
