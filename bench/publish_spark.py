"""`python -m bench.publish_spark [RUN]`: puts what `python -m bench.spark` found into docs/guides/spark.md.

Between the page's marks for `spark` go what is asked and what is met, and the rates with what a row takes of a
processor. Nothing is typed by hand, so the page says what was measured.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Annotated, Any

import typer

from bench.case import RATE
from bench.publish import asked_table, replaced

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
    skipped = [f"Not measured: {case}: {reason}\n" for case, reason in document["skipped"].items()]
    return "\n".join([intro, asked_table([document]), rates_table(document["cases"]), *skipped])


def rates_table(cases: dict[str, Any]) -> str:
    """Rows a second of each case, and what a row takes of a processor."""
    lines = [
        f"| case | rows/s | least to most | {' | '.join(PARTS.values())} |",
        f"| --- |{' ---: |' * (2 + len(PARTS))}",
    ]
    for name, case in cases.items():
        repetitions = case["repetitions"]
        rates = [repetition[RATE] for repetition in repetitions]
        parts = [
            f"{statistics.median(repetition[part] for repetition in repetitions):,.0f}"
            if part in repetitions[0]
            else ""
            for part in PARTS
        ]
        spread = f"{min(rates):,.0f} to {max(rates):,.0f}"
        lines.append(f"| {' | '.join([name, f'{statistics.median(rates):,.0f}', spread, *parts])} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    typer.run(main)
