"""`python -m bench.publish RESULTS...`: write the tables and figures of runs to docs/performance.md.

Runs of `python -m bench` go between the page's markers for `headrace`, those of `python -m bench.peers` between those
for `peers`, in the given order; targets, each with the first run that measured it, go between those for `targets`. The
figures of the first run of each kind go to docs/figures/. With `--add` the page keeps what it has, and gets the tables
of these runs and the targets that it has no figure for. No number on the page is typed by hand.
"""

from __future__ import annotations

import json
import shutil
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from bench.case import BROKER_CPU, CLIENT_CPU, MB, RATE
from bench.report import bound_text

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
FIGURES = PAGE.parent / "figures"
RATES = {RATE: ("records/s", "{:,.0f}"), MB: ("MB/s", "{:,.0f}")}
CPU = {BROKER_CPU: ("broker CPU s/GB", "{:.2f}"), CLIENT_CPU: ("client CPU s/GB", "{:.2f}")}
MET = {True: "yes", False: "**no**", None: ""}
PLAIN = {**RATES, **CPU, "broker_peak_mb": ("broker MB", "{:,.0f}")}


def main(
    runs: Annotated[list[Path], typer.Argument(help="Result directories of runs: bench/results/...")],
    add: Annotated[
        bool, typer.Option("--add", help="Keep the page's tables and figures: add those that it does not have.")
    ] = False,
) -> None:
    """Rewrite the tables of the page, or add to them."""
    documents = [json.loads((run / "report.json").read_text()) for run in runs]
    page = PAGE.read_text()
    page = replaced(page, "targets", target_table(documents, target_rows(page) if add else {}))
    for name in dict.fromkeys(map(section_of, documents)):
        mine = [(run, found) for run, found in zip(runs, documents, strict=True) if section_of(found) == name]
        if add:
            page = replaced(page, name, "\n".join([section(page, name), *(tables(document) for _, document in mine)]))
            continue
        drawings = sorted(mine[0][0].glob("*.svg"))
        for drawing in drawings:
            FIGURES.mkdir(exist_ok=True)
            shutil.copyfile(drawing, FIGURES / f"{name}-{drawing.name}")
        images = [f"![{drawing.stem}s: messages/s against MB](figures/{name}-{drawing.name})\n" for drawing in drawings]
        page = replaced(page, name, "\n".join([*(tables(document) for _, document in mine), *images]))
    PAGE.write_text(page)


def section_of(document: dict[str, Any]) -> str:
    """Return `peers` if a peer was measured, otherwise `headrace`."""
    return "peers" if any(case.startswith(("in/", "out/")) for case in document["cases"]) else "headrace"


def replaced(page: str, name: str, text: str) -> str:
    """Return the page with new text between the markers of a section.

    Raises:
        ValueError: If the page has no such markers.
    """
    before, _, after = divided(page, name)
    return f"{before}\n{text}\n{after}"


def section(page: str, name: str) -> str:
    """Return the text between the markers of a section, with one line feed at its end.

    Raises:
        ValueError: If the page has no such markers.
    """
    return divided(page, name)[1].strip() + "\n"


def divided(page: str, name: str) -> tuple[str, str, str]:
    """Return the page up to a section's first marker, the section, and the page from its last marker on.

    Raises:
        ValueError: If the page has no such markers.
    """
    begin, end = f"<!-- begin {name} -->\n", f"<!-- end {name} -->\n"
    before, found, rest = page.partition(begin)
    text, found_end, after = rest.partition(end)
    if not found or not found_end:
        raise ValueError(f"the page has no marks for {name}")
    return before + begin, text, end + after


def tables(document: dict[str, Any]) -> str:
    """Return the results of a run as Markdown."""
    machine, settings = document["machine"], document["settings"]
    intro = (
        f"Measured {document['when'][:10]} on {machine['cores']} cores and {machine['memory_bytes'] / 2**30:.0f} GiB, "
        f"Python {machine['python']}, grpcio {machine['grpcio']}, protobuf {machine['protobuf']}: medians of "
        f"{settings['rounds']} rounds of {settings['records']:,} records of 200 bytes "
        f"(load average before: {machine['load_average'][0]:.1f}).\n"
    )
    parts = [intro, _rates(document["cases"]), _others(document["cases"])]
    return "\n".join(part for part in [*parts, *not_measured(document)] if part)


def not_measured(document: dict[str, Any]) -> list[str]:
    """Return skipped cases with reasons; failed ones without their error, which contains paths of the machine."""
    return [
        f"Not measured: {case}: {'it failed' if reason.startswith('failed:') else reason}\n"
        for case, reason in document["skipped"].items()
    ]


Row: TypeAlias = tuple[str, ...]
"""Target, its bound, what was measured, and whether that is enough."""


def target_rows(page: str) -> dict[str, Row]:
    """Return the rows of the page, by target."""
    rows = [tuple(cell.strip() for cell in line.split("|")[1:-1]) for line in section(page, "targets").splitlines()[2:]]
    return {row[0]: row for row in rows if len(row) == 4}


def target_table(documents: list[dict[str, Any]], rows: dict[str, Row]) -> str:
    """Return the targets: `rows`, and the result of the first run that measured each of the others."""
    rows = dict(rows)
    for target in (target for document in documents for target in document["targets"]):
        value = target["missing"] if target["measured"] is None else f"{target['measured']:,.4g}"
        bound = bound_text(target["bound"], at_most=target["at_most"])
        if target["text"] not in rows or not _is_measured(rows[target["text"]]):
            rows[target["text"]] = (target["text"], bound, value, MET[target["met"]])
    return table(("figure", "target", "measured", "met"), list(rows.values()))


def _is_measured(row: Row) -> bool:
    return row[2][:1].isdigit() or row[2][:1] == "-"


def _rates(cases: dict[str, Any]) -> str:
    rows = []
    for name, case in cases.items():
        if MB not in case["repetitions"][0]:
            continue
        values = [median_of(case, figure, form) for figure, (_, form) in PLAIN.items()]
        share = "" if case["of_limit"] is None else f"{case['of_limit']:.0%}"
        rates = [repetition.get(RATE, 0) for repetition in case["repetitions"]]
        spread = f"{min(rates):,.0f} to {max(rates):,.0f}" if any(rates) else ""
        rows.append((name, *values, spread, share))
    headings = ("case", *(heading for heading, _ in PLAIN.values()), "least to most", "of the limit")
    return table(headings, rows)


def _others(cases: dict[str, Any]) -> str:
    rows = []
    for name, case in cases.items():
        figures = [figure for figure in case["repetitions"][0] if figure not in PLAIN]
        if figures:
            rows.append((name, ", ".join(f"{figure} {median_of(case, figure, '{:,.3g}')}" for figure in figures)))
    return table(("case", "other figures"), rows)


def median_of(case: dict[str, Any], figure: str, form: str) -> str:
    """Return the median over the rounds that have the figure; empty if none has."""
    values = [repetition[figure] for repetition in case["repetitions"] if figure in repetition]
    return form.format(statistics.median(values)) if values else ""


def table(headings: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Return a table with a left-aligned first column; empty without rows."""
    if not rows:
        return ""
    rule = ["---", *["---:"] * (len(headings) - 1)]
    return "".join(f"| {' | '.join(row)} |\n" for row in (headings, rule, *rows))


if __name__ == "__main__":
    typer.run(main)
