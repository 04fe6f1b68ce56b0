"""Data of benchmarks: cases, samples of their repetitions, and targets for their figures."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from bench.stage import Stage

RATE = "records_per_s"
MB = "wire_mb_per_s"
BROKER_CPU = "broker_cpu_s_per_gb"
CLIENT_CPU = "client_cpu_s_per_gb"


@dataclass(frozen=True, slots=True)
class Sample:
    """Result of one repetition of a case."""

    figures: Mapping[str, float]
    """Figures by name, which ends with the unit."""
    marks: Sequence[tuple[float, float]] = ()
    """(MB acknowledged or received so far, seconds so far), for the paper's figures."""


Results: TypeAlias = dict[str, list[Sample]]
"""Repetitions of each case, one per round."""


def always() -> str:
    """Return an empty string: the case has no optional requirements."""
    return ""


@dataclass(frozen=True, slots=True)
class Case:
    """Measurement with a name and a limit."""

    name: str
    """Name of the form `group/what, and how`."""
    run: Callable[[Stage], Sample]
    """Function that measures the case once."""
    limit: str = ""
    """Case whose `wire_mb_per_s` in the same round is the upper bound of this one's."""
    daily: bool = False
    """Whether it is measured by default."""
    rounds: int = 0
    """Maximum repetitions; `0` means as many as requested."""
    missing: Callable[[], str] = always
    """Function that returns why the case cannot be measured here; an empty string if it can."""


@dataclass(frozen=True, slots=True)
class Figure:
    """Figure of a case."""

    case: str
    name: str = RATE

    def of(self, results: Results) -> list[float]:
        """Return its repetitions; empty if it was not measured."""
        return [sample.figures[self.name] for sample in results.get(self.case, ()) if self.name in sample.figures]


@dataclass(frozen=True, slots=True)
class Target:
    """Target for a figure, or for its ratio to another figure of the same round."""

    text: str
    figure: Figure
    bound: float | None
    """Bound of the figure; `None` if the figure is only reported."""
    against: Figure | None = None
    """Figure with which it is compared in each round; `None` for an absolute figure."""
    at_most: bool = False
    """Whether `bound` is a maximum instead of a minimum."""

    def measured(self, results: Results) -> float | None:
        """Return the median over the rounds; `None` if a figure was not measured, or a divisor is 0."""
        values = self.figure.of(results)
        if self.against is not None:
            others = self.against.of(results)
            values = [mine / other for mine, other in zip(values, others, strict=False) if other]
        return statistics.median(values) if values else None

    def cases(self) -> list[str]:
        """Return the names of its cases."""
        return list(dict.fromkeys(figure.case for figure in (self.figure, self.against) if figure is not None))

    def met(self, results: Results) -> bool | None:
        """Return whether it is reached; `None` if it was not measured or has no bound."""
        value = self.measured(results)
        if value is None or self.bound is None:
            return None
        return value <= self.bound if self.at_most else value >= self.bound


@dataclass(frozen=True, slots=True)
class Catalogue:
    """All cases and targets."""

    cases: Sequence[Case]
    targets: Sequence[Target] = field(default=())

    def chosen(self, patterns: Sequence[str]) -> list[Case]:
        """Return the cases that match one of the shell patterns, with their limits, in order.

        Raises:
            KeyError: If a pattern matches no case.
        """
        wanted: set[str] = set()
        for pattern in patterns:
            found = [case for case in self.cases if fnmatchcase(case.name, pattern)]
            if not found:
                raise KeyError(pattern)
            wanted |= {name for case in found for name in (case.name, case.limit) if name}
        return [case for case in self.cases if case.name in wanted]
