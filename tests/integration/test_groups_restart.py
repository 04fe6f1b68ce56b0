"""A rolling restart of consumers that have all the work they can take; `python -m bench.group_restart` measures it."""

from __future__ import annotations

from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec

from bench.group_restart import restart_consumers

MEMBERS = 10
PARTITIONS = 20
BACKLOG = 1_000


def test_a_rolling_restart_of_busy_consumers_moves_few_partitions_and_skips_no_record() -> None:
    with LocalCluster(LocalClusterSpec(brokers=1)) as cluster:
        found = restart_consumers(
            cluster.bootstrap_servers, consumers=MEMBERS, partitions=PARTITIONS, backlog=BACKLOG, calm=0.5
        )
    # The partitions of the one that is replaced go to others, and as many come back.
    assert max(found.partitions_moved) <= 2 * PARTITIONS // MEMBERS
    assert len(found.offsets) == PARTITIONS
    for where, offsets in found.offsets.items():
        assert offsets == set(range(len(offsets))), f"{where}: a record was skipped"
        assert len(offsets) < BACKLOG, f"{where}: the backlog was too short"
