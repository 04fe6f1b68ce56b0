"""A broker that closes the file of an idle log syncs it first; what fails then fails the replica (H34)."""

import errno

from tests.simulation.scenario import Scenario


def test_a_failed_fsync_before_a_close_takes_the_replica_offline() -> None:
    """b1 leads, and closes the unsynced file of this partition for others that are written to: another broker leads."""
    scenario = Scenario(partitions=6, durable=False)
    scenario.produce(to=1)
    log = scenario.host(1).log
    assert log.flushed_offset == 0
    path = f"{log.directory}/{0:020d}.log"
    scenario.cluster.brokers[1].filesystem.fail("fsync", errno.EIO, suffix=path)
    scenario.produce_elsewhere()
    assert log.offline
    scenario.until(lambda: scenario.leads(2) or scenario.leads(3), "another broker leads")
    scenario.produce(to=scenario.leader)
    scenario.until(lambda: scenario.end(1) == -1, "an operator restarts b1")
    scenario.until_in_sync(1, 2, 3)
    scenario.finish()
