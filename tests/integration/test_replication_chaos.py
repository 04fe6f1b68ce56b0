"""Faults drawn by a seed, one after another, under clients: nothing is lost, duplicated, out of order, or resurrected.

For `make chaos`: runs only where HEADRACE_TEST_CHAOS_SECONDS says for how long. The seed fixes which faults come and
for how long each lasts; what the machine makes of them differs from run to run, so what is found here becomes a
scenario of the simulator. A run of FULL_SECONDS or more in which a fault was never done fails.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from headrace_devcluster.cluster import LocalCluster

from tests.integration.chaos_faults import HOUR_MS, Nemesis
from tests.integration.chaos_lives import Lives
from tests.integration.chaos_machine import put_on_machines
from tests.integration.gates import Gate
from tests.integration.replicated import BROKER_SETTINGS, Follower, Replicated, Writer

CHAOS_SECONDS = float(os.environ.get("HEADRACE_TEST_CHAOS_SECONDS", "0"))
SEED = int(os.environ.get("HEADRACE_TEST_CHAOS_SEED", "1"))
FAULTS = os.environ.get("HEADRACE_TEST_CHAOS_FAULTS", "").split()
"""The faults that are drawn, by name; none: all."""
FULL_SECONDS = 600.0
"""In so long every fault is done at least once."""
PLACEMENT = {"placement": "east:1,middle:1,west:1"}
SETTINGS = {
    # Segments are closed and an hour old soon, by a clock that is two days ahead.
    "segment_ms": 2_000,
    "retention_ms": HOUR_MS,
    # A clock that is behind takes records for those of the future.
    "timestamp_after_max_ms": 100 * 365 * 24 * HOUR_MS,
}
DATA_CENTERS = ("east/r1", "middle/r1", "west/r1")
PATIENCE_SECONDS = 300.0
"""For an acknowledgement: etcd is put back and the cluster brought to its next generation meanwhile."""


@pytest.mark.skipif(not CHAOS_SECONDS, reason="HEADRACE_TEST_CHAOS_SECONDS says how long; see make chaos")
@pytest.mark.timeout(900 + 10 * CHAOS_SECONDS)
@pytest.mark.parametrize("durability", ["fsync", "async"])
@pytest.mark.parametrize("etcd_members", [1, 3])
def test_faults_at_random(
    own_cluster: Callable[..., LocalCluster], tmp_path: Path, durability: str, etcd_members: int
) -> None:
    """I1, I15, I18, I20, I21, L1: under faults in any order, acknowledged records are stored once, in order,
    and what was deleted does not.
    """
    cluster = own_cluster(
        coordinators=2, etcd_members=etcd_members, broker_settings=BROKER_SETTINGS, racks=DATA_CENTERS
    )
    replicated = Replicated(cluster)
    with contextlib.closing(replicated), contextlib.ExitStack() as stack:
        machines = put_on_machines(cluster)
        gates: dict[int, Gate] = {}
        if etcd_members == 1:  # A gate is a way to one endpoint.
            gates = {broker_id: stack.enter_context(Gate(cluster.etcd.endpoint)) for broker_id in (1, 2, 3)}
        for broker_id, gate in gates.items():
            replicated.reconfigure(broker_id, etcd_endpoints=gate.address)
        spread = [[1, 2, 3], [2, 3, 1], [3, 1, 2]]
        topic_id = replicated.create(
            "chaos", spread, min_insync_replicas=2, durability=durability, **PLACEMENT, **SETTINGS
        )
        lives = Lives(replicated)
        nemesis = Nemesis(
            replicated,
            "chaos",
            topic_id,
            gates=gates,
            machines=machines,
            lives=lives,
            directory=tmp_path,
            seed=SEED,
            only=FAULTS,
        )
        with Follower(replicated.servers, "chaos", 3) as nemesis.follower:
            with Writer(
                replicated.servers,
                "chaos",
                3,
                request_timeout_ms=3_000,
                delivery_timeout_ms=int(PATIENCE_SECONDS * 1000),
            ) as nemesis.writer:
                over = time.monotonic() + CHAOS_SECONDS
                # A slow machine sees few faults in that time; a full run continues until it has seen all.
                at_last = over + (CHAOS_SECONDS / 2 if CHAOS_SECONDS >= FULL_SECONDS else 0.0)
                while (now := time.monotonic()) < over or (now < at_last and nemesis.never_done()):
                    done = nemesis.strike(only_missing=now >= over)
                    nemesis.writer.wait_for(50)
                    print(f"seed {SEED}: {done}; {len(nemesis.writer.acknowledged_at)} acknowledged")
                replicated.wait_in_sync("chaos")
                nemesis.writer.wait_for(200)
            nemesis.follower.wait_for(len(nemesis.writer.futures))
        nemesis.writer.check(replicated, nemesis.starts)
        nemesis.follower.check(nemesis.writer)
        lives.check()
    print(f"seed {SEED}:", ", ".join(f"{count} {name}" for name, count in sorted(nemesis.done.items())))
    print(f"seed {SEED}: no room for", ", ".join(f"{n} {kind}" for kind, n in sorted(nemesis.refused().items())))
    for part in cluster.parts:
        _, traceback, after = part.log_file.read_text().partition("Traceback")
        assert not traceback, f"{part.name}: {after[:4_000]}"
    if CHAOS_SECONDS >= FULL_SECONDS:
        assert nemesis.never_done() == []
