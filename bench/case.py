"""What a case is, what a repetition of it gives, and what is asked of its figures. Data; nothing here runs anything."""

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
    """One repetition of a case."""

    figures: Mapping[str, float]
    """By name, the unit last."""
    marks: Sequence[tuple[float, float]] = ()
    """(MB acknowledged or received so far, seconds so far), for the paper's figures."""


Results: TypeAlias = dict[str, list[Sample]]
"""The repetitions of each case, one a round."""


def always() -> str:
    """A case that needs nothing that may not be installed."""
    return ""


@dataclass(frozen=True, slots=True)
class Case:
    """One thing that is measured."""

    name: str
    """`group/what, and how`."""
    run: Callable[[Stage], Sample]
    """Measures it once."""
    limit: str = ""
    """The case whose `wire_mb_per_s` of the same round bounds this one's."""
    daily: bool = False
    """Whether it belongs to what is measured when nothing else is asked for."""
    rounds: int = 0
    """The most repetitions; 0: as many as are asked for."""
    missing: Callable[[], str] = always
    """Why it cannot be measured here; empty: it can."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of a case."""

    case: str
    name: str = RATE

    def of(self, results: Results) -> list[float]:
        """Its repetitions; empty where it was not measured."""
        return [sample.figures[self.name] for sample in results.get(self.case, ()) if self.name in sample.figures]


@dataclass(frozen=True, slots=True)
class Target:
    """What is asked: a figure, or its ratio to or its difference from another one of the same round."""

    text: str
    figure: Figure
    bound: float | None
    """None: nothing is asked, the figure is stated."""
    against: Figure | None = None
    """What it is compared with, round by round; None: no other figure."""
    at_most: bool = False
    """Whether `bound` is the most and not the least."""
    difference: bool = False
    """Whether what it is compared with is taken away, not divided by."""

    def measured(self, results: Results) -> float | None:
        """The median over the rounds; None where something of it was not measured."""
        values = self.figure.of(results)
        if self.against is not None:
            others = self.against.of(results)
            pairs = zip(values, others, strict=False)
            values = [mine - other if self.difference else mine / other for mine, other in pairs]
        return statistics.median(values) if values else None

    def cases(self) -> list[str]:
        """The names of the cases that it takes."""
        return list(dict.fromkeys(figure.case for figure in (self.figure, self.against) if figure is not None))

    def met(self, results: Results) -> bool | None:
        """Whether it is reached; None where it was not measured, or nothing is asked."""
        value = self.measured(results)
        if value is None or self.bound is None:
            return None
        return value <= self.bound if self.at_most else value >= self.bound


@dataclass(frozen=True, slots=True)
class Catalogue:
    """All cases and all that is asked of them."""

    cases: Sequence[Case]
    targets: Sequence[Target] = field(default=())

    def chosen(self, patterns: Sequence[str]) -> list[Case]:
        """The cases that one of some patterns (shell style) names, with the limits they are compared with, in order.

        Raises:
            KeyError: a pattern names none.
        """
        wanted: set[str] = set()
        for pattern in patterns:
            found = [case for case in self.cases if fnmatchcase(case.name, pattern)]
            if not found:
                raise KeyError(pattern)
            wanted |= {name for case in found for name in (case.name, case.limit) if name}
        return [case for case in self.cases if case.name in wanted]
