"""One run of the simulation of consumer groups: start, faults for a number of events, healing, judgement."""

from __future__ import annotations

import logging

from structlog.testing import capture_logs

from tests.simulation.group_cluster import GroupCluster
from tests.simulation.group_nemesis import GroupNemesis
from tests.simulation.group_plan import GroupPlan
from tests.simulation.group_session import virtual_time
from tests.simulation.simulation import TWICE_EVERY, Result, check_same, play, where
from tests.simulation.world import SimulationError

FAILED = ("group_transaction_failed", "group_key_unreadable")
"""What a coordinator logs on an unforeseen error."""


def run(plan: GroupPlan, *, keep_trace: bool = False) -> Result:
    """Run one plan to its end, or to the first broken promise."""
    cluster = GroupCluster(plan, keep_trace=keep_trace)
    nemesis = GroupNemesis(cluster)
    world = cluster.world
    broken = message = ""
    log = logging.getLogger("headrace.consumer")
    was_disabled, log.disabled = log.disabled, True  # The trace says it all.
    try:
        with capture_logs() as logs, virtual_time(world):
            play(cluster, nemesis)
            failed = [entry for entry in logs if entry["event"] in FAILED]
            if failed:
                raise SimulationError("crash", str(failed[0]))
    except SimulationError as error:
        broken, message = error.name, str(error)
    except Exception as error:
        broken, message = type(error).__name__, where(error)
    finally:
        cluster.close()
        log.disabled = was_disabled
    return Result(
        plan, world.digest, world.steps, world.now_ms, world.counts, list(world.trace), nemesis.done, broken, message
    )


def run_seed(seed: int, *, steps: int, buggy_etcd: bool, keep_trace: bool) -> Result:
    """Run what a seed draws; each hundredth seed twice, and both have to be the same."""
    plan = GroupPlan.draw(seed, steps=steps, buggy_etcd=buggy_etcd)
    result = run(plan, keep_trace=keep_trace)
    if seed % TWICE_EVERY == 0 and not result.broken:
        check_same(result, run(plan))
    return result
