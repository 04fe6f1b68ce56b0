"""`python -m bench.publish_spark [RUN]`: puts what `python -m bench.spark` found into docs/guides/spark.md.

Between the page's marks for `spark` go what is asked and what is met, and the rates with what a row takes of a
processor. Nothing is typed by hand, so the page says what was measured.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from bench.case import RATE
from bench.publish import asked_table, median_of, not_measured, replaced, table

PAGE = Path(__file__).parents[1] / "docs" / "guides" / "spark.md"
RUN = Path("bench/results/spark.json")
PARTS = {"java_ns_per_row": "Java, ns", "python_ns_per_row": "Python, ns", "brokers_ns_per_row": "brokers, ns"}


def main(run: Annotated[Path, typer.Argument(help="What python -m bench.spark wrote.")] = RUN) -> None:
    """Write the guide's tables anew."""
    page = replaced(PAGE.read_text(), "spark", section(json.loads(run.read_text())))
    PAGE.write_text(page)


def section(document: dict[str, Any]) -> str:
    """What a run found, as Markdown."""
    machine, settings = document["machine"], document["settings"]
    intro = (
        f"Measured {document['when'][:10]} on {machine['cores']} cores and {machine['memory_bytes'] / 2**30:.0f} GiB "
        f"with Spark {machine['pyspark']} (`{settings['master']}`), Java {machine['java']} and Python "
        f"{machine['python']}; {settings['brokers']} brokers and Spark on the same cores, medians of "
        f"{settings['rounds']} rounds of {settings['records']:,} rows of 200 bytes "
        f"(load average before: {machine['load_average'][0]:.1f}).\n"
    )
    return "\n".join([intro, asked_table([document]), rates_table(document["cases"]), *not_measured(document)])


def rates_table(cases: dict[str, Any]) -> str:
    """Rows a second of each case, and what a row takes of a processor."""
    rows = []
    for name, case in cases.items():
        rates = [repetition[RATE] for repetition in case["repetitions"]]
        values = [median_of(case, figure, "{:,.0f}") for figure in PARTS]
        spread = f"{min(rates):,.0f} to {max(rates):,.0f}"
        rows.append((name, median_of(case, RATE, "{:,.0f}"), spread, *values))
    return table(("case", "rows/s", "least to most", *PARTS.values()), rows)


if __name__ == "__main__":
    typer.run(main)
