"""etcd put back to an older state while others have raised its revision again (H81, I15)."""

from headrace_server.metastore.api import Put

from tests.simulation.etcd import run_now
from tests.simulation.scenario import Scenario

BROKERS = (1, 2, 3)


def test_coordinators_start_first_and_raise_the_revision() -> None:
    """What was acknowledged since the backup is kept: brokers that have seen more refuse, however late they start."""
    scenario = Scenario()
    recovery, store = scenario.cluster.recovery, scenario.cluster.etcd.store
    key = scenario.cluster.partition_key(scenario.key)
    scenario.produce(to=1)
    recovery.take_backup()
    scenario.elect(2)
    scenario.produce(to=2)
    scenario.run_for(3_000)  # a version is announced
    seen = store.revision
    recovery.put_etcd_back(bumped=False)
    for broker_id in BROKERS:
        scenario.kill(broker_id)
    assert store.revision < seen
    while store.revision <= seen:
        run_now(store.txn([], [Put("/of-others", b"")]))
    scenario.until(
        lambda: (found := store.now(key)) is not None and found.mod_revision > seen, "a controller writes the key"
    )
    for broker_id in BROKERS:
        scenario.start(broker_id)
    for _ in range(50):
        scenario.run_for(100)
        assert not [each for each in BROKERS if store.now(scenario.cluster.keyspace.broker(each)) is not None]
    recovery.begin()
    scenario.until(lambda: not recovery.is_due, "a new generation")
    scenario.finish()
