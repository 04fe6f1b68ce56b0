"""A machine comes back with another disk, an empty one (H17, H42)."""

from tests.simulation.scenario import Scenario


def test_a_broker_with_an_empty_directory_is_nobody() -> None:
    """All three stop. b1's disk is replaced; it comes back first, with b1's id, and may not lead."""
    story = Scenario()
    story.produce(to=1)
    for broker_id in (1, 2, 3):
        story.kill(broker_id)
    story.cluster.brokers[1].replace_disk()
    story.start(1)
    story.run_for(3_000)
    assert story.state.leader is None
    assert 1 not in story.in_sync

    story.start(2)
    story.until_leads(2)
    story.start(3)
    story.until_in_sync(1, 2, 3)
    assert story.end(1) == 1
    story.finish()


def test_a_copy_from_just_before_an_orderly_stop_is_nobody() -> None:
    """b2's volume is copied; b2 takes one more record, and stops in order at once. The copy is put back (H16, H42)."""
    story = Scenario()
    story.produce(to=1)
    node = story.cluster.brokers[2]
    node.snapshot = node.filesystem.snapshot()
    story.produce(to=1)
    story.stop(2)
    node.put_back_disk()
    story.start(2)
    story.until_end(2, 2)
    assert story.cluster.world.counts.get("log: directory_went_back", 0) == 1
    story.until_in_sync(1, 2, 3)
    story.finish()
