"""`python -m bench.peers`: headrace and other systems, in the same rounds; `bench/peers/install.sh` installs them.

The first round is a warm-up, because Java's virtual machines are slow until their code is compiled. Prints a table,
draws the paper's two figures with a line per system, and writes every repetition as JSON. Systems that are not
installed are skipped with a reason.
"""

from __future__ import annotations

import typer

from bench.peers.catalogue import CATALOGUE
from bench.run import All, List, Names, Output, Quick, Records, Rounds, choose, list_cases, run


def main(
    names: Names = None,
    everything: All = False,
    listing: List = False,
    rounds: Rounds = 5,
    records: Records = 10_000_000,
    quick: Quick = False,
    output: Output = None,
) -> None:
    """Measure headrace and its peers: an hour and a half, with --quick ten minutes."""
    if listing:
        list_cases(CATALOGUE)
        return
    cases = choose(CATALOGUE, names, everything=everything)
    run(CATALOGUE, cases, rounds=rounds, records=records, output=output, quick=quick)


if __name__ == "__main__":
    typer.run(main)
