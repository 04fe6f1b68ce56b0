"""`python -m bench.publish_spark [RUN]`: write the results of `python -m bench.spark` to docs/guides/spark.md.

Targets with results, and rates with the CPU time per row, go between the page's markers for `spark`. No number on the
page is typed by hand.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from bench.case import RATE
from bench.publish import median_of, not_measured, replaced, table, target_table

PAGE = Path(__file__).parents[1] / "docs" / "guides" / "spark.md"
RUN = Path("bench/results/spark.json")
PARTS = {"java_ns_per_row": "Java, ns", "python_ns_per_row": "Python, ns", "brokers_ns_per_row": "brokers, ns"}


def main(run: Annotated[Path, typer.Argument(help="Result directory of python -m bench.spark.")] = RUN) -> None:
    """Rewrite the tables of the guide."""
    page = replaced(PAGE.read_text(), "spark", section(json.loads(run.read_text())))
    PAGE.write_text(page)


def section(document: dict[str, Any]) -> str:
    """Return the results of a run as Markdown."""
    machine, settings = document["machine"], document["settings"]
    intro = (
        f"Measured {document['when'][:10]} on {machine['cores']} cores and {machine['memory_bytes'] / 2**30:.0f} GiB "
        f"with Spark {machine['pyspark']} (`{settings['master']}`), Java {machine['java']} and Python "
        f"{machine['python']}; {settings['brokers']} brokers and Spark on the same cores, medians of "
        f"{settings['rounds']} rounds of {settings['records']:,} rows of 200 bytes "
        f"(load average before: {machine['load_average'][0]:.1f}).\n"
    )
    return "\n".join([intro, target_table([document], {}), rates_table(document["cases"]), *not_measured(document)])


def rates_table(cases: dict[str, Any]) -> str:
    """Return the table of rows per second and CPU time per row of each case."""
    rows = []
    for name, case in cases.items():
        rates = [repetition[RATE] for repetition in case["repetitions"]]
        values = [median_of(case, figure, "{:,.0f}") for figure in PARTS]
        spread = f"{min(rates):,.0f} to {max(rates):,.0f}"
        rows.append((name, median_of(case, RATE, "{:,.0f}"), spread, *values))
    return table(("case", "rows/s", "least to most", *PARTS.values()), rows)


if __name__ == "__main__":
    typer.run(main)
