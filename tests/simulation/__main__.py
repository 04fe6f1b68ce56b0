"""`python -m tests.simulation`, `make sim`: runs seeds of the deterministic simulation and prints what happened.

One seed prints its trace where a promise is broken, and the command that replays it; many seeds run in parallel
processes. Exit code 1: a promise was broken, or sixty seeds never exercised a check or a fault.
"""

from __future__ import annotations

import json
import multiprocessing
import time
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from tests.simulation import group_simulation, simulation
from tests.simulation.exercise import (
    ENOUGH_SEEDS,
    REQUIRED,
    REQUIRED_OF_GROUPS,
    REQUIRED_OF_TABLES,
    never_exercised,
    too_seldom,
)
from tests.simulation.fault_profile import FULL_STEPS
from tests.simulation.group_plan import GroupPlan
from tests.simulation.simulation import Result, shrink

TAIL = 60
"""Lines of the trace that are printed of a broken seed."""


def main(
    seed: Annotated[int | None, typer.Option(help="The one seed to run.", min=0)] = None,
    seeds: Annotated[str, typer.Option(help="Seeds to run, as 0..999 (both ends included).")] = "0..99",
    steps: Annotated[int, typer.Option(help="Events of a seed before everything is healed.", min=1)] = 2_000,
    jobs: Annotated[int, typer.Option(help="Processes.", min=1)] = 1,
    durability: Annotated[str, typer.Option(help="fsync, async or mixed.")] = "mixed",
    buggy_etcd: Annotated[bool, typer.Option("--buggy-etcd", help="Stale reads, lost and duplicated events.")] = False,
    groups: Annotated[bool, typer.Option("--groups", help="Consumer groups instead of replication.")] = False,
    tables: Annotated[bool, typer.Option("--tables", help="A table in every seed, whatever it draws.")] = False,
    trace: Annotated[bool, typer.Option("--trace", help="Print the whole trace of the seed.")] = False,
    shrink_failure: Annotated[bool, typer.Option("--shrink", help="Make a broken seed smaller.")] = False,
    output: Annotated[Path | None, typer.Option(help="Where the summary goes as JSON.")] = None,
) -> None:
    """Run headrace's own code on a simulated network, disk, clock and etcd, and break all of them."""
    if durability not in ("fsync", "async", "mixed"):
        raise typer.BadParameter(f"{durability!r} is not fsync, async or mixed", param_hint="--durability")
    if groups and tables:
        raise typer.BadParameter("--groups and --tables exclude each other", param_hint="--tables")
    chosen = _parse(seeds) if seed is None else [seed]
    console = Console(stderr=True, highlight=False)
    started = time.monotonic()
    counts: dict[str, int] = {}
    broken: list[Result] = []
    events = virtual_ms = 0
    work: partial[Result]
    if groups:
        work = partial(group_simulation.run_seed, steps=steps, buggy_etcd=buggy_etcd, keep_trace=trace)
    else:
        work = partial(
            simulation.run_seed,
            steps=steps,
            durability=durability,
            buggy_etcd=buggy_etcd,
            keep_trace=trace,
            tables=tables,
        )
    for done, result in enumerate(_run_all(work, chosen, jobs), start=1):
        events += result.steps
        virtual_ms += result.virtual_ms
        for name, count in result.counts.items():
            counts[name] = counts.get(name, 0) + count
        if result.broken:
            broken.append(result)
            console.print(f"seed {result.plan.seed}: {result.message}", markup=False)
        if console.is_terminal and len(chosen) > 1 and (done % 10 == 0 or done == len(chosen)):
            per_second = events / (time.monotonic() - started)
            progress = f"{done} of {len(chosen)} seeds, {len(broken)} broken, {per_second:,.0f} events/s"
            console.print(progress, end="\r" if done < len(chosen) else "\n", markup=False)
        if trace:
            print(*result.trace, sep="\n")
    if broken:
        options = _options(steps, durability, buggy_etcd, groups, tables)
        _explain(broken[0], console, options=options, smaller=shrink_failure, quiet=trace)
    is_drawn_in_full = len(chosen) >= ENOUGH_SEEDS and steps >= FULL_STEPS and durability == "mixed"
    required = REQUIRED_OF_GROUPS if groups else REQUIRED_OF_TABLES if tables else REQUIRED
    never = never_exercised(counts, required) if is_drawn_in_full and not buggy_etcd else []
    if is_drawn_in_full and required is REQUIRED and not buggy_etcd:
        never += too_seldom(counts, len(chosen))
    _summarise(len(chosen), broken, events, virtual_ms, time.monotonic() - started, counts, never, output)
    raise typer.Exit(1 if broken or never else 0)


def _parse(text: str) -> list[int]:
    first, separator, last = text.partition("..")
    if not first.isdigit() or (separator and not last.isdigit()):
        raise typer.BadParameter(f"{text!r} is not as 0..999", param_hint="--seeds")
    return list(range(int(first), int(last or first) + 1))


def _run_all(work: partial[Result], seeds: Iterable[int], jobs: int) -> Iterator[Result]:
    if jobs == 1:
        yield from map(work, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap_unordered(work, seeds, chunksize=4)


def _options(steps: int, durability: str, buggy_etcd: bool, groups: bool, tables: bool) -> str:
    parts = [f"--steps {steps}"]
    if groups:
        parts.append("--groups")
    if tables:
        parts.append("--tables")
    if durability != "mixed":
        parts.append(f"--durability {durability}")
    if buggy_etcd:
        parts.append("--buggy-etcd")
    return " ".join(parts)


def _explain(failed: Result, console: Console, *, options: str, smaller: bool, quiet: bool) -> None:
    """Print the end of the trace of a broken seed and how to see it again; a smaller run of it where wanted."""
    if smaller:
        run: Any = group_simulation.run if isinstance(failed.plan, GroupPlan) else simulation.run
        failed = shrink(failed, lambda text: console.print(text, markup=False), run)
        print(f"the smallest run found: {failed.plan}")
    if smaller or not quiet:
        print(*failed.trace[-TAIL:], sep="\n")
    print(f"{failed.plan}")
    print(f"broken: {failed.message}")
    print(f"again: make sim SEED={failed.plan.seed} SIM_FLAGS='{options} --trace'")


def _summarise(
    seeds: int,
    broken: list[Result],
    events: int,
    virtual_ms: int,
    seconds: float,
    counts: dict[str, int],
    never: list[str],
    output: Path | None,
) -> None:
    summary = {
        "seeds": seeds,
        "broken": {str(result.plan.seed): result.message for result in broken},
        "events": events,
        "seconds": round(seconds, 1),
        "events_per_second": round(events / max(seconds, 1e-9)),
        "virtual_hours": round(virtual_ms / 3_600_000, 2),
        "counts": dict(sorted(counts.items())),
        "never_exercised": never,
    }
    if output is not None:
        output.write_text(json.dumps(summary, indent=2) + "\n")
    for name, count in sorted(counts.items()):
        print(f"{count:>10,}  {name}")
    print(
        f"{seeds:,} seeds, {len(broken)} broken; {events:,} events in {seconds:,.1f} s "
        f"({summary['events_per_second']:,} a second), {summary['virtual_hours']} virtual hours"
    )
    if never:
        print(f"{seeds:,} seeds never, or too seldom, exercised these: {', '.join(never)}")


if __name__ == "__main__":
    typer.run(main)
