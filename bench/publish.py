"""`python -m bench.publish RESULTS...`: puts the tables and figures of runs into docs/performance.md.

A run of `python -m bench` goes between the page's marks for `headrace`, one of `python -m bench.peers` between those
for `peers`; the figures go to docs/figures/. Nothing is typed by hand, so the page says what was measured.
"""

from __future__ import annotations

import json
import re
import shutil
import statistics
from pathlib import Path
from typing import Annotated, Any

import typer

from bench.case import BROKER_CPU, CLIENT_CPU, MB, RATE

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
FIGURES = PAGE.parent / "figures"
RATES = {RATE: ("records/s", "{:,.0f}"), MB: ("MB/s", "{:,.0f}")}
CPU = {BROKER_CPU: ("broker CPU s/GB", "{:.2f}"), CLIENT_CPU: ("client CPU s/GB", "{:.2f}")}
PLAIN = {**RATES, **CPU, "broker_peak_mb": ("broker MB", "{:,.0f}")}


def main(
    runs: Annotated[list[Path], typer.Argument(help="Directories that runs wrote: bench/results/...")],
) -> None:
    """Write the page's tables anew."""
    page = PAGE.read_text()
    for run in runs:
        document = json.loads((run / "report.json").read_text())
        name = section_of(document)
        page = replaced(page, name, tables(document, name))
        FIGURES.mkdir(exist_ok=True)
        for figure in sorted(run.glob("*.svg")):
            shutil.copyfile(figure, FIGURES / f"{name}-{figure.name}")
    PAGE.write_text(page)


def section_of(document: dict[str, Any]) -> str:
    """`peers` where a peer was measured, else `headrace`."""
    return "peers" if any(case.startswith(("in/", "out/")) for case in document["cases"]) else "headrace"


def replaced(page: str, name: str, text: str) -> str:
    """The page with other text between the marks of a section.

    Raises:
        ValueError: it has no such marks.
    """
    begin, end = f"<!-- begin {name} -->\n", f"<!-- end {name} -->\n"
    if begin not in page or end not in page:
        raise ValueError(f"{PAGE} has no marks for {name}")
    return re.sub(f"{begin}.*?{end}", lambda _: f"{begin}\n{text}\n{end}", page, flags=re.DOTALL)


def tables(document: dict[str, Any], name: str) -> str:
    """What a run found, as Markdown."""
    machine, settings = document["machine"], document["settings"]
    intro = (
        f"Measured {document['when'][:10]} on {machine['cores']} cores and {machine['memory_bytes'] / 2**30:.0f} GiB, "
        f"Python {machine['python']}, grpcio {machine['grpcio']}, protobuf {machine['protobuf']}: medians of "
        f"{settings['rounds']} rounds of {settings['records']:,} records of 200 bytes "
        f"(load average before: {machine['load_average'][0]:.1f}).\n"
    )
    parts = [intro, _asked(document["targets"]), _rates(document["cases"]), _others(document["cases"])]
    parts += [
        f"![messages/s against MB, {side}](figures/{name}-{side}.svg)\n"
        for side in ("producer", "consumer")
        if any(case["marks"] and case["marks"][0] for case in document["cases"].values())
    ]
    parts += [f"Not measured: {case}: {reason}\n" for case, reason in document["skipped"].items()]
    return "\n".join(part for part in parts if part)


def _asked(targets: list[dict[str, Any]]) -> str:
    rows = []
    for target in targets:
        sign = "at most" if target["at_most"] else "at least"
        verdict = "yes" if target["met"] else "**no**"
        rows.append((target["text"], f"{sign} {target['bound']:,.4g}", f"{target['measured']:,.4g}", verdict))
    return _table(("figure", "asked", "measured", "reached"), rows)


def _rates(cases: dict[str, Any]) -> str:
    rows = []
    for name, case in cases.items():
        if MB not in case["repetitions"][0]:
            continue
        values = [_median(case, figure, form) for figure, (_, form) in PLAIN.items()]
        share = "" if case["of_limit"] is None else f"{case['of_limit']:.0%}"
        rates = [repetition.get(RATE, 0) for repetition in case["repetitions"]]
        spread = f"{min(rates):,.0f} to {max(rates):,.0f}" if any(rates) else ""
        rows.append((name, *values, spread, share))
    headings = ("case", *(heading for heading, _ in PLAIN.values()), "least to most", "of the limit")
    return _table(headings, rows)


def _others(cases: dict[str, Any]) -> str:
    rows = []
    for name, case in cases.items():
        figures = [figure for figure in case["repetitions"][0] if figure not in PLAIN]
        if figures:
            rows.append((name, ", ".join(f"{figure} {_median(case, figure, '{:,.3g}')}" for figure in figures)))
    return _table(("case", "what is not a rate"), rows)


def _median(case: dict[str, Any], figure: str, form: str) -> str:
    values = [repetition[figure] for repetition in case["repetitions"] if figure in repetition]
    return form.format(statistics.median(values)) if values else ""


def _table(headings: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A table, its first column to the left; empty where there is no row."""
    if not rows:
        return ""
    rule = ["---", *["---:"] * (len(headings) - 1)]
    return "".join(f"| {' | '.join(row)} |\n" for row in (headings, rule, *rows))


if __name__ == "__main__":
    typer.run(main)
