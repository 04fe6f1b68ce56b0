"""A machine comes back with another disk, an empty one (H17, H42)."""

from tests.simulation.scenario import Scenario


def test_a_broker_with_an_empty_directory_is_nobody() -> None:
    """All three stop. b1's disk is replaced; it comes back first, with b1's id, and may not lead."""
    scenario = Scenario()
    scenario.produce(to=1)
    scenario.kill(1, 2, 3)
    scenario.cluster.brokers[1].replace_disk()
    scenario.start(1)
    scenario.run_for(3_000)
    assert scenario.state.leader is None
    assert 1 not in scenario.in_sync

    scenario.start(2)
    scenario.until_leads(2)
    scenario.start(3)
    scenario.until_in_sync(1, 2, 3)
    assert scenario.end(1) == 1
    scenario.finish()


def test_a_copy_from_just_before_an_orderly_stop_is_nobody() -> None:
    """b2's volume is copied; b2 takes one more record, and stops in order at once. The copy is put back (H16, H42)."""
    scenario = Scenario()
    scenario.produce(to=1)
    node = scenario.cluster.brokers[2]
    node.snapshot = node.filesystem.snapshot()
    scenario.produce(to=1)
    scenario.stop(2)
    node.put_back_disk()
    scenario.start(2)
    scenario.until_end(2, 2)
    assert scenario.cluster.world.counts.get("log: directory_went_back", 0) == 1
    scenario.until_in_sync(1, 2, 3)
    scenario.finish()
