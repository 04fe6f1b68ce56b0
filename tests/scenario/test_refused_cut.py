"""A cut that the machine refuses halfway has cut the log nevertheless (H35)."""

import errno

from tests.simulation.scenario import LARGE, Scenario


def test_a_follower_whose_cut_was_refused_halfway_copies_on_where_its_log_ends() -> None:
    """b3 cuts an uncommitted record; to take it off the disk it lacks memory, and the next record comes before that."""
    story = Scenario()
    story.until(lambda: story.host(1).replica.followers.last_session(2) > 0, "b2's fetch waits at b1")
    committed = story.produce(to=1, value=LARGE)
    story.until_end(2, 1)
    story.until_end(3, 1)
    story.block(1, 2)
    cut = story.send(to=1)
    story.until_end(3, 2)
    story.block(1, 3)
    story.kill(1)

    disk = story.cluster.brokers[3].filesystem
    disk.refuse(errno.ENOMEM, frozenset({"truncate"}), after=0, lasting=True)
    story.until_leads(2)
    story.until(lambda: story.host(3).replica.log_end_offset == 1, "b3 knows where its log ends")
    assert committed.acknowledged
    story.run_for(1_000)
    disk.stop_refusing()
    story.produce(to=2)
    story.until_end(3, 2)

    # b3 leads: of the record that it has cut it knows nothing, and stores it when it is sent again.
    story.start(1)
    story.unblock(1, 2)
    story.unblock(1, 3)
    story.until_in_sync(1, 2, 3)
    story.elect(3)
    story.send_again(cut, to=3)
    story.until(lambda: cut.acknowledged, "b3 stores the record")
    assert cut.offset == 2
    story.finish()
