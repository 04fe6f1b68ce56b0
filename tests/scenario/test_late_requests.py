"""What was sent arrives when the world has changed: fetches of a follower, writes of a leader (H4, H17)."""

from tests.simulation.scenario import Scenario


def test_a_fetch_of_an_old_epoch_says_nothing_of_the_new_one() -> None:
    """b3's fetch of epoch 0 is on its way while it cuts what it had; b1 leads again when it arrives.

    b3 follows b1 in another partition all the time: the stream by which the fetch comes is the same.
    """
    story = Scenario(partitions=4)
    story.block(1, 2)
    story.send(to=1)
    story.until_end(3, 1)
    story.block(3, 1)
    story.run_for(50)  # b3 has fsynced, and sent a fetch that says so

    story.block(2, 1)
    story.elect(2)
    story.until_end(3, 0)
    story.elect(1)
    assert story.end(1) == 1
    story.kill(2)
    story.until_in_sync(1, 3)
    story.block(1, 3)
    story.unblock(3, 1)
    story.run_for(100)
    assert story.high_watermark(1) == 0
    story.unblock(1, 3)
    story.start(2)
    story.finish()


def test_a_follower_is_not_taken_in_with_a_session_that_is_over() -> None:
    """b3 dies while b1's write that takes it in is on its way."""
    story = Scenario()
    story.separate(3, 1, 2)
    story.until_in_sync(1, 2)
    story.until(lambda: not story.host(1).replica.proposals.under_way, "b1 knows that b3 is out")
    story.reunite(3, 1, 2)
    story.until(lambda: story.host(1).replica.proposals.under_way, "b1 takes b3 in")
    story.kill(3)
    story.run_for(1_000)
    assert story.in_sync == [1, 2]
    story.start(3)
    story.finish()


def test_a_late_write_of_a_leader_that_is_gone_changes_nothing() -> None:
    """b1's write that takes b3 out lands when b2 leads."""
    story = Scenario()
    story.separate(3, 1, 2)
    story.delay_next_write()
    story.kill(1)
    story.until_leads(2)
    story.run_for(4_000)
    assert story.leads(2)
    story.start(1)
    story.finish()
