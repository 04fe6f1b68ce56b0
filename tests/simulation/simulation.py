"""One run from a plan: start, faults for a number of events, healing, judgement; and runs made smaller."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from tests.simulation.broker import simulated
from tests.simulation.cluster import Cluster
from tests.simulation.group_plan import GroupPlan
from tests.simulation.nemesis import Nemesis
from tests.simulation.plan import Plan
from tests.simulation.world import SimulationError, World

TWICE_EVERY = 100
"""Each so manyth seed is run twice, and both traces must be the same."""


@dataclass(frozen=True, slots=True)
class Result:
    """How a run ended."""

    plan: Plan | GroupPlan
    digest: int
    steps: int
    virtual_ms: int
    counts: dict[str, int]
    trace: list[str]
    faults: list[int] = field(default_factory=list)
    """Numbers of the faults that were done."""
    broken: str = ""
    """The name of the promise that was broken; empty: none."""
    message: str = ""


def run(plan: Plan, *, keep_trace: bool = False) -> Result:
    """Run one plan to its end, or to the first broken promise."""
    cluster = Cluster(plan, keep_trace=keep_trace)
    nemesis = Nemesis(cluster)
    world = cluster.world
    broken = message = ""
    try:
        with simulated(plan.seed, small=True), closing(cluster):
            play(cluster, nemesis)
    except SimulationError as error:
        broken, message = error.name, str(error)
    except Exception as error:
        broken, message = type(error).__name__, where(error)
    return Result(
        plan, world.digest, world.steps, world.now_ms, world.counts, list(world.trace), nemesis.done, broken, message
    )


class Stage(Protocol):
    """What is simulated: a cluster, or consumer groups on one."""

    @property
    def world(self) -> World:
        """What the events run in."""

    @property
    def plan(self) -> Plan | GroupPlan:
        """What was drawn from the seed."""

    def prepare(self) -> None:
        """Start the processes and wait until they serve."""

    def begin_faults(self) -> None:
        """Begin what a run without faults leaves out."""

    def step(self) -> None:
        """Run the next event and check the invariants."""

    def finish(self) -> None:
        """Heal everything and check what must hold at the end."""


class Adversary(Protocol):
    """What does the faults."""

    def start(self) -> None:
        """Begin to do faults."""

    def stop(self) -> None:
        """Do no further fault."""


CALM = 5
"""Where faults are so few that clients do this many times the events of a plan, its phase of faults ends early."""


def play(stage: Stage, nemesis: Adversary) -> None:
    """Start, do the plan's steps among faults, heal and judge."""
    stage.prepare()
    stage.begin_faults()
    nemesis.start()
    world, steps = stage.world, stage.plan.steps
    start, until_ms = world.steps, world.now_ms + stage.plan.faults_ms
    while (done := world.steps - start) < steps or (world.now_ms < until_ms and done < CALM * steps):
        stage.step()
    nemesis.stop()
    stage.finish()


def where(error: Exception) -> str:
    """Name the line that failed."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    if traceback is None:
        return str(error)
    code = traceback.tb_frame.f_code
    return f"{error} (in {code.co_qualname} of {code.co_filename.rpartition('/')[2]}:{traceback.tb_lineno})"


def run_seed(
    seed: int, *, steps: int, durability: str, buggy_etcd: bool, keep_trace: bool, tables: bool = False
) -> Result:
    """Run what a seed draws, with a table if `tables`; each hundredth seed twice, and both have to be the same."""
    plan = Plan.draw(seed, steps=steps, durability=durability, buggy_etcd=buggy_etcd, tables=tables)
    result = run(plan, keep_trace=keep_trace)
    if seed % TWICE_EVERY == 0 and not result.broken:
        check_same(result, run(plan))
    return result


def check_same(result: Result, again: Result) -> None:
    """A plan that is run again does the same."""
    seed = result.plan.seed
    assert (again.digest, again.steps) == (result.digest, result.steps), f"seed {seed} is not deterministic"


def shrink(
    failed: Result, progress: Callable[[str], None] = lambda text: None, run: Callable[[Any], Result] = run
) -> Result:
    """Find a smaller run that breaks the same promise: fewer events, fewer kinds of faults, fewer faults."""
    best = failed

    def attempt(plan: Plan | GroupPlan, what: str) -> None:
        nonlocal best
        result = run(plan)
        if result.broken == best.broken:
            best = result
            progress(f"still {best.broken} {what}: {best.steps} events, {len(best.faults)} faults")

    steps = best.plan.steps
    while steps > 50:
        steps //= 2
        before = best
        attempt(replace(best.plan, steps=steps, faults_ms=0), f"with {steps} events")
        if best is before:
            break
    for name in (*best.plan.faults, *best.plan.rates):
        attempt(best.plan.without(name), f"without {name}")
    for number in reversed(best.faults):
        attempt(replace(best.plan, skipped=(*best.plan.skipped, number)), f"without fault {number}")
    while (plan := _with_fewer_clients(best.plan)) is not None:
        before = best
        attempt(plan, "with fewer clients")
        if best is before:
            break
    return best


def _with_fewer_clients(plan: Plan | GroupPlan) -> Plan | GroupPlan | None:
    if isinstance(plan, GroupPlan):
        return plan.smaller()
    return replace(plan, producers=plan.producers[:-1]) if len(plan.producers) > 1 else None
