"""etcd answers a read with the past: only a compare shows a key's present value (C4)."""

from tests.simulation.scenario import Scenario


def test_a_corrupt_replica_leaves_though_it_reads_that_it_has_left() -> None:
    """b2 was out of the in-sync set and is in again when it finds its log corrupt; it reads the key of before."""
    story = Scenario()
    story.produce(to=1)
    story.separate(2, 1, 3)
    story.until_in_sync(1, 3)
    story.reunite(2, 1, 3)
    story.until_in_sync(1, 2, 3)
    story.kill(3)
    story.until_in_sync(1, 2)

    story.until_flushed(2)
    story.corruption(2)
    story.separate(2, 1)
    story.serve_stale_reads()
    story.lose_power(2, noticed=False)
    story.start(2)
    story.run_for(200)
    story.serve_fresh_reads()
    story.until_in_sync(1)
    story.until(lambda: story.end(2) == 0, "b2 begins anew")
    story.run_for(1_000)
    assert story.state.eligible_leaders == ()
    story.reunite(2, 1)
    story.start(3)
    story.finish()
