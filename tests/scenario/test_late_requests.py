"""What was sent arrives when the world has changed: fetches of a follower, writes of a leader (H4, H17)."""

from tests.simulation.scenario import Scenario


def test_a_fetch_of_an_old_epoch_says_nothing_of_the_new_one() -> None:
    """b3's fetch of epoch 0 is on its way while it cuts what it had; b1 leads again when it arrives.

    b3 follows b1 in another partition all the time: the stream by which the fetch comes is the same.
    """
    scenario = Scenario(partitions=4)
    scenario.block(1, 2)
    scenario.send(to=1)
    scenario.until_end(3, 1)
    scenario.block(3, 1)
    scenario.run_for(50)  # b3 has fsynced, and sent a fetch that says so

    scenario.block(2, 1)
    scenario.elect(2)
    scenario.until_end(3, 0)
    scenario.elect(1)
    assert scenario.end(1) == 1
    scenario.kill(2)
    scenario.until_in_sync(1, 3)
    scenario.block(1, 3)
    scenario.unblock(3, 1)
    scenario.run_for(100)
    assert scenario.high_watermark(1) == 0
    scenario.unblock(1, 3)
    scenario.start(2)
    scenario.finish()


def test_a_follower_is_not_taken_in_with_a_session_that_is_over() -> None:
    """b3 dies while b1's write that takes it in is on its way."""
    scenario = Scenario()
    scenario.separate(3, 1, 2)
    scenario.until_in_sync(1, 2)
    scenario.until(lambda: not scenario.host(1).leadership.proposals.under_way, "b1 knows that b3 is out")
    scenario.reunite(3, 1, 2)
    scenario.until(lambda: scenario.host(1).leadership.proposals.under_way, "b1 takes b3 in")
    scenario.kill(3)
    scenario.run_for(1_000)
    assert scenario.in_sync == [1, 2]
    scenario.start(3)
    scenario.finish()


def test_a_late_write_of_a_leader_that_is_gone_changes_nothing() -> None:
    """b1's write that takes b3 out lands when b2 leads."""
    scenario = Scenario()
    scenario.separate(3, 1, 2)
    scenario.delay_next_write()
    scenario.kill(1)
    scenario.until_leads(2)
    scenario.run_for(4_000)
    assert scenario.leads(2)
    scenario.start(1)
    scenario.finish()
