"""`python -m bench`: throughput of headrace, compared with plain gRPC calls with the same bytes in the same run.

Brokers and a coordinator on loopback, topics of one partition, `durability=async`, `acks=1`, no compression, values of
200 bytes, unless a case differs. The first round is a warm-up and does not count. Prints medians over the rounds, the
targets, and the share of the limit with the baseline's; writes every repetition as JSON and draws the paper's two
figures.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bench.catalogue import CATALOGUE
from bench.run import All, List, Names, Output, Quick, Records, Rounds, choose, list_cases, run

BASELINE = Path(__file__).parent / "baseline.json"


def main(
    names: Names = None,
    everything: All = False,
    listing: List = False,
    rounds: Rounds = 5,
    records: Records = 10_000_000,
    quick: Quick = False,
    output: Output = None,
    save_baseline: Annotated[
        bool, typer.Option(help="Save this run's shares of the limit in bench/baseline.json.")
    ] = False,
    check: Annotated[bool, typer.Option(help="Exit with 1 if a case is slower than the baseline.")] = False,
) -> None:
    """Measure headrace: half an hour, with --quick a few minutes."""
    if listing:
        list_cases(CATALOGUE)
        return
    cases = choose(CATALOGUE, names, everything=everything)
    report = run(CATALOGUE, cases, rounds=rounds, records=records, output=output, quick=quick)
    if save_baseline:
        BASELINE.write_text(json.dumps(report.baseline(), indent=1) + "\n")
    elif BASELINE.exists():
        slower = report.compare(BASELINE, Console())
        if check and slower:
            raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
