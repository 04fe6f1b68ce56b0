"""`make mutants`: take each rule out of the code, one at a time, and see that a test fails.

Exit code 0: every mutant was killed, each within its limit; 1: one survived or could not be judged; 2: wrong arguments.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.mutation.catalogue import CATALOGUE
from tests.mutation.mutants import Mutant, Scenario, Simulation, Test
from tests.mutation.run import Verdict, run_all


def main(arguments: Sequence[str] | None = None) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(
        prog="make mutants", description="Take each rule out of the code, one at a time; a test must fail."
    )
    parser.add_argument("--id", action="append", default=[], help="only this mutant; may be given more than once")
    parser.add_argument("--rule", action="append", default=[], help="only mutants of this rule, as H9")
    parser.add_argument("--jobs", type=int, default=2, help="mutants at a time (default 2)")
    parser.add_argument("--list", action="store_true", help="print the catalogue and run nothing")
    parser.add_argument("--json", type=Path, help="write the summary to this file, too")
    asked = parser.parse_args(arguments)
    known = {mutant.id for mutant in CATALOGUE}
    unknown = [each for each in asked.id if each not in known]
    if unknown:
        parser.error(f"no mutant is called {', '.join(unknown)}; --list prints them")
    if asked.jobs < 1:
        parser.error("--jobs is at least 1")
    chosen = [
        mutant
        for mutant in CATALOGUE
        if (not asked.id and not asked.rule) or mutant.id in asked.id or set(mutant.rules.split()) & set(asked.rule)
    ]
    if not chosen:
        parser.error(f"no mutant breaks {', '.join(asked.rule)}")
    if asked.list:
        for mutant in chosen:
            print(f"{mutant.rules:<10} {mutant.id:<44} {_killer(mutant):<34} {mutant.breaks}")
        return 0
    started, done = time.monotonic(), 0

    def report(verdict: Verdict) -> None:
        nonlocal done
        done += 1
        print(f"{done:>3}/{len(chosen)} {_line(verdict)}", file=sys.stderr, flush=True)

    verdicts = run_all(chosen, jobs=asked.jobs, report=report)
    survivors = [verdict for verdict in verdicts if not verdict.killed]
    print(f"{'rules':<10}{'mutant':<46}{'killed by':<58}{'seeds':>6}{'seconds':>9}")
    for verdict in verdicts:
        seeds = str(verdict.seeds) if verdict.seeds else "-"
        shown = verdict.by if verdict.killed else f"NOT KILLED: {verdict.by}"
        print(f"{verdict.mutant.rules:<10}{verdict.mutant.id:<46}{shown:<58}{seeds:>6}{verdict.seconds:>9.1f}")
    for verdict in survivors:
        print(f"\n{verdict.mutant.id}: {verdict.by}\n  {verdict.mutant.breaks}\n  {verdict.message}")
    seconds = time.monotonic() - started
    summary = {
        "mutants": len(verdicts),
        "killed": len(verdicts) - len(survivors),
        "rules": len({rule for verdict in verdicts for rule in verdict.mutant.rules.split()}),
        "seconds": round(seconds, 1),
        "verdicts": [verdict.as_json() for verdict in verdicts],
    }
    if asked.json is not None:
        asked.json.write_text(json.dumps(summary, indent=1) + "\n", "utf-8")
    print(
        f"\n{summary['killed']} of {summary['mutants']} mutants of {summary['rules']} rules killed in {seconds:.0f} s"
        + (f"; NOT killed: {', '.join(verdict.mutant.id for verdict in survivors)}" if survivors else "")
    )
    return 1 if survivors else 0


def _killer(mutant: Mutant) -> str:
    match mutant.killer:
        case Simulation(seeds):
            return f"simulator, {seeds} seeds"
        case Scenario(test):
            return test.partition("::")[0]
        case Test(test, _):
            return test.rpartition("::")[2]


def _line(verdict: Verdict) -> str:
    mutant = verdict.mutant
    if not verdict.killed:
        return f"{mutant.rules:<10} {mutant.id}: NOT KILLED, {verdict.by}"
    seeds = f" at seed {verdict.seeds}" if verdict.seeds else ""
    return f"{mutant.rules:<10} {mutant.id}: killed by {verdict.by}{seeds}, {verdict.seconds:.1f} s"


if __name__ == "__main__":
    sys.exit(main())
