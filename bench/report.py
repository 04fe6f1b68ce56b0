"""Results of a run: tables, JSON, targets, and the comparison with a baseline run.

Two runs are compared by the share of their own run's limit that their cases reach, never by records per second, which
depend on the machine's load at the time.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import headrace
import numpy
import psutil
from google import protobuf
from rich.console import Console
from rich.table import Table

from bench.case import BROKER_CPU, CLIENT_CPU, MB, RATE, Case, Catalogue, Results, Target

SHOWN = {
    RATE: ("records/s", "{:,.0f}"),
    MB: ("MB/s", "{:,.0f}"),
    BROKER_CPU: ("broker CPU s/GB", "{:.2f}"),
    CLIENT_CPU: ("client CPU s/GB", "{:.2f}"),
    "broker_peak_mb": ("broker MB", "{:,.0f}"),
}
WORSE = 0.8
"""Share of the baseline below which a case is reported as slower."""


def machine() -> dict[str, Any]:
    """Return a description of the machine."""
    return {
        "cores": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "load_average": os.getloadavg(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "grpcio": grpc.__version__,
        "protobuf": protobuf.__version__,
        "numpy": numpy.__version__,
        "headrace": headrace.__version__,
        "clock": time.get_clock_info("perf_counter").implementation,
    }


VERDICTS = {True: "yes", False: "NO", None: ""}


def bound_text(bound: float | None, *, at_most: bool) -> str:
    """Return the bound of a target as text."""
    return "stated" if bound is None else f"at {'most' if at_most else 'least'} {bound:,.6g}"


@dataclass(frozen=True, slots=True)
class Report:
    """Report of one run."""

    catalogue: Catalogue
    results: Results
    settings: Mapping[str, Any]
    """Settings of the run."""
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Reasons for cases that were not measured, by name."""
    machine: Mapping[str, Any] = field(default_factory=machine)
    """Machine, and its load before the run."""

    def measured(self) -> list[Case]:
        """Return the cases that have repetitions, in the catalogue's order."""
        return [case for case in self.catalogue.cases if case.name in self.results]

    def median(self, case: str, figure: str) -> float | None:
        """Return the median of a figure over the rounds; `None` if the case has no such figure."""
        values = [sample.figures[figure] for sample in self.results[case] if figure in sample.figures]
        return statistics.median(values) if values else None

    def of_limit(self, case: Case) -> float | None:
        """Return the median share of the limit of the same round."""
        if not case.limit or case.limit not in self.results:
            return None
        pairs = zip(self.results[case.name], self.results[case.limit], strict=False)
        return statistics.median(mine.figures[MB] / most.figures[MB] for mine, most in pairs)

    def missing(self, target: Target) -> str:
        """Return why a target's figure was not measured; an empty string if it was."""
        if target.measured(self.results) is not None:
            return ""
        reasons = [f"{case}: {self.skipped[case]}" for case in target.cases() if case in self.skipped]
        return "; ".join(reasons) or "not run"

    def document(self) -> dict[str, Any]:
        """Return machine, versions, settings and every repetition as JSON."""
        return {
            "when": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": self.machine,
            "settings": dict(self.settings),
            "cases": {
                case.name: {
                    "of_limit": self.of_limit(case),
                    "repetitions": [dict(sample.figures) for sample in self.results[case.name]],
                    "marks": [list(sample.marks) for sample in self.results[case.name]],
                }
                for case in self.measured()
            },
            "targets": [
                {
                    "text": target.text,
                    "measured": target.measured(self.results),
                    "bound": target.bound,
                    "at_most": target.at_most,
                    "met": target.met(self.results),
                    "missing": self.missing(target),
                }
                for target in self.catalogue.targets
            ],
            "skipped": dict(self.skipped),
        }

    def show(self, console: Console) -> None:
        """Print the tables."""
        for table in (self._rates(), self._others(), self._targets()):
            if table.row_count:
                console.print(table)
        for name, reason in self.skipped.items():
            console.print(f"skipped: {name}: {reason}")

    def _rates(self) -> Table:
        table = Table(title="medians; minimum and maximum records/s; MB/s of encoded batches")
        table.add_column("case")
        for heading in [heading for heading, _ in SHOWN.values()] + ["min", "max", "of the limit"]:
            table.add_column(heading, justify="right")
        for case in self.measured():
            rates = [sample.figures.get(RATE, 0.0) for sample in self.results[case.name]]
            if self.median(case.name, MB) is None and not any(rates):
                continue
            values = [(self.median(case.name, figure), form) for figure, (_, form) in SHOWN.items()]
            share = self.of_limit(case)
            table.add_row(
                case.name,
                *("" if value is None else form.format(value) for value, form in values),
                *(f"{rate:,.0f}" if rate else "" for rate in (min(rates), max(rates))),
                "" if share is None else f"{share:.0%}",
            )
        return table

    def _others(self) -> Table:
        table = Table(title="other figures: medians")
        table.add_column("case")
        table.add_column("figures")
        for case in self.measured():
            names = [name for name in self.results[case.name][0].figures if name not in SHOWN]
            if names:
                found = [(name, self.median(case.name, name)) for name in names]
                table.add_row(
                    case.name, ", ".join(f"{name} {value:,.3g}" for name, value in found if value is not None)
                )
        return table

    def _targets(self) -> Table:
        table = Table(title="targets")
        table.add_column("figure")
        for heading in ("target", "measured", "met"):
            table.add_column(heading, justify="right")
        for target in self.catalogue.targets:
            value = target.measured(self.results)
            if value is not None:
                table.add_row(
                    target.text,
                    bound_text(target.bound, at_most=target.at_most),
                    f"{value:,.4g}",
                    VERDICTS[target.met(self.results)],
                )
            elif any(case in self.skipped for case in target.cases()):
                table.add_row(target.text, bound_text(target.bound, at_most=target.at_most), self.missing(target), "")
        return table

    def compare(self, path: Path, console: Console) -> list[str]:
        """Print the shares of the limits of this run and of a baseline; return the cases that are slower."""
        kept = json.loads(path.read_text())
        table = Table(title=f"of the limit, with the baseline of {kept['when']}")
        table.add_column("case")
        for heading in ("baseline", "now", "ratio", ""):
            table.add_column(heading, justify="right")
        slower = []
        for case in self.measured():
            before, now = kept["of_limit"].get(case.name), self.of_limit(case)
            if before is None or now is None:
                continue
            if now / before < WORSE:
                slower.append(case.name)
            verdict = "SLOWER" if now / before < WORSE else ""
            table.add_row(case.name, f"{before:.0%}", f"{now:.0%}", f"{now / before:.2f}", verdict)
        console.print(table)
        return slower

    def baseline(self) -> dict[str, Any]:
        """Return the values by which later runs are compared with this one."""
        shares = {case.name: self.of_limit(case) for case in self.measured()}
        return {
            "when": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": self.machine,
            "settings": dict(self.settings),
            "of_limit": {name: round(share, 4) for name, share in shares.items() if share is not None},
        }
