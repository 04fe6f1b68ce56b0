"""Runner of cases. In every round each case is measured once, so that a slow minute affects all."""

from __future__ import annotations

import json
import os
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated
from unittest.mock import patch

import headrace
import typer
from headrace.wire.allocator import MMAP_BYTES, TRIM_BYTES
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench import figures
from bench.case import Case, Catalogue, Results
from bench.load import PAPER_BYTES
from bench.report import Report, machine
from bench.stage import Stage

RESULTS = Path(__file__).parent / "results"
QUICK_RECORDS = 200_000

Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="[CASE]...", help="Names of cases; shell patterns such as 'consume/*' are allowed."),
]
All = Annotated[bool, typer.Option("--all", help="Run all cases; takes hours.")]
List = Annotated[bool, typer.Option("--list", help="List the cases without running any.")]
Rounds = Annotated[int, typer.Option(help="Measured rounds, after a warm-up.", min=1)]
Records = Annotated[
    int,
    typer.Option(
        help="Records per case, for values of 200 bytes; other sizes get the same number of bytes.", min=20_000
    ),
]
Quick = Annotated[
    bool, typer.Option("--quick", help=f"One round of {QUICK_RECORDS:,} records, to check that all cases work.")
]
Output = Annotated[Path | None, typer.Option(help="Directory for JSON and figures; default: a new one for each run.")]


def measure(
    stage: Stage, cases: Sequence[Case], rounds: int, console: Console, *, warm_rounds: int = 0
) -> tuple[Results, dict[str, str]]:
    """Measure every case `rounds` times; return the repetitions, and the reasons of cases without any.

    `warm_rounds` precede and do not count. A case that fails is reported and dropped; the others continue. A console
    that is no terminal gets a line for each measured case instead of a bar.
    """
    results: Results = {}
    skipped = {case.name: reason for case in cases if (reason := case.missing())}
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=(warm_rounds + rounds) * len(cases))
        for number in range(-warm_rounds, rounds):
            for case in cases:
                progress.update(task, description=case.name)
                if case.name not in skipped and (not case.rounds or number < case.rounds):
                    began = time.monotonic()
                    try:
                        sample = case.run(stage)
                        if number >= 0:
                            results.setdefault(case.name, []).append(sample)
                    except Exception as error:
                        skipped[case.name] = f"failed: {type(error).__name__}: {error}"
                        console.print(traceback.format_exc())
                    if not console.is_terminal:
                        what = "warm-up" if number < 0 else f"round {number + 1} of {rounds}"
                        line = f"{what}: {case.name}, {time.monotonic() - began:.1f} s"
                        console.print(line, markup=False, highlight=False, soft_wrap=True)
                progress.advance(task)
    return results, skipped


def run(
    catalogue: Catalogue,
    cases: Sequence[Case],
    *,
    rounds: int,
    records: int,
    output: Path | None,
    quick: bool = False,
) -> Report:
    """Measure cases after a warm-up round, print the tables, write the JSON and the figures.

    `quick` measures one round of `QUICK_RECORDS` without a warm-up instead.
    """
    warm_rounds = 0 if quick else 1
    if quick:
        rounds, records = 1, QUICK_RECORDS
    console, progress = Console(width=200 if not Console().is_terminal else None), Console(stderr=True)
    before = machine()
    with _large_buffers(), Stage(records) as stage:
        results, skipped = measure(stage, cases, rounds, progress, warm_rounds=warm_rounds)
    told = {"rounds": rounds, "records": records, "cores_allowed": len(os.sched_getaffinity(0))}
    report = Report(catalogue, results, told, skipped, before)
    directory = output or RESULTS / f"{datetime.now(UTC):%Y%m%dT%H%M%S}"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "report.json").write_text(json.dumps(report.document(), indent=1) + "\n")
    for name, title, prefix in (
        ("producer", "Producer performance: messages/s against MB sent", ("produce/", "in/")),
        ("consumer", "Consumer performance: messages/s against MB received", ("consume/", "out/")),
    ):
        lines = {
            case.name.partition("/")[2]: figures.rates(figures.median_sample(results[case.name]), PAPER_BYTES)
            for case in report.measured()
            if case.name.startswith(prefix) and all(len(sample.marks) > 1 for sample in results[case.name])
        }
        if lines:
            (directory / f"{name}.svg").write_text(figures.draw(title, lines))
    report.show(console)
    progress.print(f"results written to {directory}")
    return report


@contextmanager
def _large_buffers() -> Iterator[None]:
    """Reuse large buffers instead of unmapping them, here and in all child processes, as an application would."""
    headrace.keep_large_buffers()
    settings = {"MALLOC_MMAP_THRESHOLD_": str(MMAP_BYTES), "MALLOC_TRIM_THRESHOLD_": str(TRIM_BYTES)}
    with patch.dict(os.environ, settings):
        yield


def list_cases(catalogue: Catalogue) -> None:
    """Print every case, and mark those measured by default."""
    for case in catalogue.cases:
        reason = case.missing()
        print(f"{'*' if case.daily else ' '} {case.name}{f'  (skipped: {reason})' if reason else ''}")
    print("* measured by default")


def choose(catalogue: Catalogue, names: Sequence[str] | None, *, everything: bool) -> list[Case]:
    """Return the named cases, or the default ones if none is named.

    Raises:
        typer.BadParameter: If a name matches no case.
    """
    try:
        wanted = ["*"] if everything else list(names or [case.name for case in catalogue.cases if case.daily])
        return catalogue.chosen(wanted)
    except KeyError as missing:
        raise typer.BadParameter(f"no case is called {missing}; --list prints them") from None
