"""A cut that the machine refuses halfway has cut the log nevertheless (H35)."""

import errno

from tests.simulation.scenario import LARGE, Scenario


def test_a_follower_whose_cut_was_refused_halfway_copies_on_where_its_log_ends() -> None:
    """b3 cuts an uncommitted record; to take it off the disk it lacks memory, and the next record comes before that."""
    scenario = Scenario()
    scenario.until(lambda: scenario.host(1).leadership.followers.last_session(2) > 0, "b2's fetch waits at b1")
    committed = scenario.produce(to=1, value=LARGE)
    scenario.until_end(2, 1)
    scenario.until_end(3, 1)
    scenario.block(1, 2)
    cut = scenario.send(to=1)
    scenario.until_end(3, 2)
    scenario.block(1, 3)
    scenario.kill(1)

    disk = scenario.cluster.brokers[3].filesystem
    disk.refuse(errno.ENOMEM, frozenset({"truncate"}), after=0, lasting=True)
    scenario.until_leads(2)
    scenario.until(lambda: scenario.host(3).replica.log_end_offset == 1, "b3 knows where its log ends")
    assert committed.acknowledged
    scenario.run_for(1_000)
    disk.stop_refusing()
    scenario.produce(to=2)
    scenario.until_end(3, 2)

    # b3 leads: of the record that it has cut it knows nothing, and stores it when it is sent again.
    scenario.start(1)
    scenario.unblock(1, 2)
    scenario.unblock(1, 3)
    scenario.until_in_sync(1, 2, 3)
    scenario.elect(3)
    scenario.send_again(cut, to=3)
    scenario.until(lambda: cut.acknowledged, "b3 stores the record")
    assert cut.offset == 2
    scenario.finish()
