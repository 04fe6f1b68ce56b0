"""etcd answers a read with the past: only a compare shows a key's present value (C4)."""

from tests.simulation.scenario import Scenario


def test_a_corrupt_replica_leaves_though_it_reads_that_it_has_left() -> None:
    """b2 was out of the in-sync set and is in again when it finds its log corrupt; it reads the key of before."""
    scenario = Scenario()
    scenario.produce(to=1)
    scenario.separate(2, 1, 3)
    scenario.until_in_sync(1, 3)
    scenario.reunite(2, 1, 3)
    scenario.until_in_sync(1, 2, 3)
    scenario.kill(3)
    scenario.until_in_sync(1, 2)

    scenario.until_flushed(2)
    scenario.corruption(2)
    scenario.separate(2, 1)
    scenario.serve_stale_reads()
    scenario.lose_power(2, noticed=False)
    scenario.start(2)
    scenario.run_for(200)
    scenario.serve_fresh_reads()
    scenario.until_in_sync(1)
    scenario.until(lambda: scenario.end(2) == 0, "b2 begins anew")
    scenario.run_for(1_000)
    assert scenario.state.eligible_leaders == ()
    scenario.reunite(2, 1)
    scenario.start(3)
    scenario.finish()
