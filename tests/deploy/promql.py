"""As much of PromQL as the alerts use, evaluated over given samples, so that they are tested where no Prometheus is.

`promql-parser` reads expressions; this module gives them their meaning, as Prometheus 2 has it (promql/engine.go and
functions.go): a lookback of five minutes, rates extrapolated to the ends of their range, counters that start anew.
What it does not know it refuses. Where promtool is installed the same tests are run by it, too (test_rules.py).
"""

from __future__ import annotations

import itertools
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import promql_parser as promql

LOOKBACK_SECONDS = 300.0
STEP_SECONDS = 60.0

Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]
Points = list[tuple[float, float]]

_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
}
_ARITHMETIC: dict[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": lambda left, right: left / right if right else math.nan if not left else math.copysign(math.inf, left),
}
_AGGREGATIONS: dict[str, Callable[[list[float]], float]] = {
    "sum": math.fsum,
    "max": max,
    "min": min,
    "count": lambda values: float(len(values)),
}


@dataclass
class Samples:
    """Series by name and labels, a sample a minute from time 0."""

    series: dict[Labels, Points] = field(default_factory=dict)

    def add(self, selector: str, values: str) -> None:
        """One series in promtool's notation: `up{job="a"}` and `1x5 0 _ 2+3x4`."""
        parsed = promql.parse(selector)
        assert isinstance(parsed, promql.VectorSelector), selector
        labels = {matcher.name: matcher.value for matcher in parsed.matchers.matchers}
        points = [(index * STEP_SECONDS, value) for index, value in enumerate(_expand(values)) if value is not None]
        self.series[frozenset({"__name__": parsed.name, **labels}.items())] = points

    def matching(self, selector: promql.VectorSelector) -> Iterable[tuple[Labels, Points]]:
        """The series that a selector names."""
        for labels, points in self.series.items():
            found = dict(labels)
            if selector.name in (None, found["__name__"]) and all(
                _matches(str(matcher.op), found.get(matcher.name, ""), matcher.value)
                for matcher in selector.matchers.matchers
            ):
                yield labels, points


def _expand(values: str) -> Iterable[float | None]:
    for part in values.split():
        if part == "_":
            yield None
        elif gaps := re.fullmatch(r"_x(\d+)", part):
            yield from [None] * int(gaps[1])
        elif found := re.fullmatch(r"(-?[\d.]+)(?:([+-][\d.]+))?x(\d+)", part):
            start, step, times = float(found[1]), float(found[2] or 0), int(found[3])
            yield from (start + step * index for index in range(times + 1))
        else:
            yield float(part)


def _matches(kind: str, value: str, wanted: str) -> bool:
    match kind.rpartition(".")[2]:
        case "Equal":
            return value == wanted
        case "NotEqual":
            return value != wanted
        case "Re":
            return re.fullmatch(wanted, value) is not None
        case "NotRe":
            return re.fullmatch(wanted, value) is None
    raise NotImplementedError(f"matching by {kind}")


def evaluate(samples: Samples, expression: str | promql.Expr, at: float) -> Vector | float:
    """The value of an expression at a time in seconds: a number, or values by labels."""
    node = promql.parse(expression) if isinstance(expression, str) else expression
    match node:
        case promql.NumberLiteral():
            return float(node.val)
        case promql.ParenExpr():
            return evaluate(samples, node.expr, at)
        case promql.UnaryExpr():
            return _elementwise(evaluate(samples, node.expr, at), operator.neg)
        case promql.VectorSelector():
            return _instant(samples, node, at)
        case promql.Call():
            return _call(samples, node, at)
        case promql.AggregateExpr():
            return _aggregate(node, _vector(evaluate(samples, node.expr, at)))
        case promql.BinaryExpr():
            return _binary(node, evaluate(samples, node.lhs, at), evaluate(samples, node.rhs, at))
    raise NotImplementedError(type(node).__name__)


def _vector(value: Vector | float) -> Vector:
    assert isinstance(value, dict), "a vector is wanted"
    return value


def _elementwise(value: Vector | float, function: Callable[[float], float]) -> Vector | float:
    return {labels: function(each) for labels, each in value.items()} if isinstance(value, dict) else function(value)


def _instant(samples: Samples, selector: promql.VectorSelector, at: float) -> Vector:
    at -= selector.offset.total_seconds() if selector.offset else 0.0
    found: Vector = {}
    for labels, points in samples.matching(selector):
        recent = [value for time, value in points if at - LOOKBACK_SECONDS < time <= at]
        if recent:
            found[labels] = recent[-1]
    return found


def _call(samples: Samples, node: promql.Call, at: float) -> Vector | float:
    name = node.func.name
    if name == "time":
        return at
    if name == "histogram_quantile":
        quantile = evaluate(samples, node.args[0], at)
        assert isinstance(quantile, float)
        return _histogram_quantile(quantile, _vector(evaluate(samples, node.args[1], at)))
    if name not in _OVER_RANGES:
        raise NotImplementedError(f"{name}()")
    matrix, *rest = node.args
    assert isinstance(matrix, promql.MatrixSelector)
    more = [float(evaluate(samples, each, at)) for each in rest]  # type: ignore[arg-type]
    seconds = matrix.range.total_seconds()
    found: Vector = {}
    for labels, points in samples.matching(matrix.vector_selector):
        # Prometheus 2 counts both ends of a range, Prometheus 3 the later one: no test may depend on it.
        inside = [point for point in points if at - seconds <= point[0] <= at]
        value = _OVER_RANGES[name](inside, at - seconds, at, *more)
        if value is not None:
            found[_without(labels, {"__name__"})] = value
    return found


def _increase(points: Points, start: float, end: float, *, counter: bool = True) -> float | None:
    """Prometheus' extrapolatedRate, not yet divided by the range."""
    if len(points) < 2:
        return None
    (first_time, first), (last_time, last) = points[0], points[-1]
    growth = last - first
    if counter:
        growth += sum(before for (_, before), (_, after) in itertools.pairwise(points) if after < before)
    sampled = last_time - first_time
    average = sampled / (len(points) - 1)
    to_start, to_end = first_time - start, end - last_time
    if counter and growth > 0 and first >= 0:
        to_start = min(to_start, sampled * (first / growth))
    threshold = average * 1.1
    covered = (
        sampled + (to_start if to_start < threshold else average / 2) + (to_end if to_end < threshold else average / 2)
    )
    return growth * covered / sampled


def _rate(points: Points, start: float, end: float) -> float | None:
    growth = _increase(points, start, end)
    return None if growth is None else growth / (end - start)


def _line(points: Points, at: float) -> tuple[float, float] | None:
    """Slope a second, and value at `at`, by least squares."""
    if len(points) < 2:
        return None
    times = [time - at for time, _ in points]
    mean_time, mean = math.fsum(times) / len(times), math.fsum(value for _, value in points) / len(points)
    spread = math.fsum((time - mean_time) ** 2 for time in times)
    slope = (
        math.fsum((time - mean_time) * (value - mean) for time, (_, value) in zip(times, points, strict=True)) / spread
    )
    return slope, mean - slope * mean_time


def _predict(points: Points, _start: float, end: float, seconds: float) -> float | None:
    line = _line(points, end)
    return None if line is None else line[1] + line[0] * seconds


def _deriv(points: Points, _start: float, end: float) -> float | None:
    line = _line(points, end)
    return None if line is None else line[0]


def _changes(points: Points, _start: float, _end: float) -> float | None:
    changed = sum(before != after for (_, before), (_, after) in itertools.pairwise(points))
    return float(changed) if points else None


_OVER_RANGES: dict[str, Callable[..., float | None]] = {
    "rate": _rate,
    "increase": _increase,
    "delta": lambda points, start, end: _increase(points, start, end, counter=False),
    "deriv": _deriv,
    "predict_linear": _predict,
    "changes": _changes,
    "max_over_time": lambda points, start, end: max((value for _, value in points), default=None),
}


def _histogram_quantile(quantile: float, buckets: Vector) -> Vector:
    by_labels: dict[Labels, list[tuple[float, float]]] = {}
    for labels, count in buckets.items():
        bound = float(dict(labels)["le"].replace("+Inf", "inf"))
        by_labels.setdefault(_without(labels, {"le", "__name__"}), []).append((bound, count))
    return {labels: _quantile(quantile, sorted(each)) for labels, each in by_labels.items()}


def _quantile(quantile: float, buckets: list[tuple[float, float]]) -> float:
    total = buckets[-1][1]
    if not total or buckets[-1][0] != math.inf:
        return math.nan
    rank = quantile * total
    index = next(index for index, (_, count) in enumerate(buckets) if count >= rank)
    if index == len(buckets) - 1:
        return buckets[-2][0]
    lower, below = buckets[index - 1] if index else (0.0, 0.0)
    upper, count = buckets[index]
    return lower + (upper - lower) * (rank - below) / (count - below)


def _aggregate(node: promql.AggregateExpr, vector: Vector) -> Vector:
    if str(node.op) not in _AGGREGATIONS or node.param is not None:
        raise NotImplementedError(f"{node.op} with a parameter, or unknown")
    kept = set(node.modifier.labels) if node.modifier else set()
    without = node.modifier is not None and str(node.modifier.type).endswith("Without")
    groups: dict[Labels, list[float]] = {}
    for labels, value in vector.items():
        key = _without(labels, kept | {"__name__"}) if without else _only(labels, kept)
        groups.setdefault(key, []).append(value)
    return {labels: _AGGREGATIONS[str(node.op)](values) for labels, values in groups.items()}


def _binary(node: promql.BinaryExpr, left: Vector | float, right: Vector | float) -> Vector | float:
    name = str(node.op)
    if name in ("and", "or", "unless"):
        return _set_operation(name, _vector(left), _vector(right))
    if node.modifier is not None and (node.modifier.matching is not None or node.modifier.return_bool):
        raise NotImplementedError(f"{node.modifier} in a binary operation")
    if isinstance(left, float) and isinstance(right, float):
        return _ARITHMETIC[name](left, right)
    pairs: list[tuple[Labels, float, float]]
    if isinstance(left, dict) and isinstance(right, dict):
        others = {_without(labels, {"__name__"}): value for labels, value in right.items()}
        pairs = [
            (labels, value, others[key])
            for labels, value in left.items()
            if (key := _without(labels, {"__name__"})) in others
        ]
    elif isinstance(left, dict):
        pairs = [(labels, value, float(right)) for labels, value in left.items()]  # type: ignore[arg-type]
    else:
        pairs = [(labels, float(left), value) for labels, value in _vector(right).items()]
    if name in _COMPARISONS:
        kept = (lambda first, _: first) if isinstance(left, dict) else (lambda _, second: second)
        return {labels: kept(first, second) for labels, first, second in pairs if _COMPARISONS[name](first, second)}
    return {_without(labels, {"__name__"}): _ARITHMETIC[name](first, second) for labels, first, second in pairs}


def _set_operation(name: str, left: Vector, right: Vector) -> Vector:
    in_left, in_right = ({_without(labels, {"__name__"}) for labels in side} for side in (left, right))
    match name:
        case "and":
            return {labels: value for labels, value in left.items() if _without(labels, {"__name__"}) in in_right}
        case "unless":
            return {labels: value for labels, value in left.items() if _without(labels, {"__name__"}) not in in_right}
        case _:
            more = {labels: value for labels, value in right.items() if _without(labels, {"__name__"}) not in in_left}
            return {**left, **more}


def _without(labels: Labels, names: set[str]) -> Labels:
    return frozenset((name, value) for name, value in labels if name not in names)


def _only(labels: Labels, names: set[str]) -> Labels:
    return frozenset((name, value) for name, value in labels if name in names)


def firing(samples: Samples, expression: str, for_seconds: float, until: float) -> dict[float, list[dict[str, str]]]:
    """An alert evaluated each minute: from the time on which it fires, the labels that it fires with, by time."""
    since: dict[Labels, float] = {}
    fired: dict[float, list[dict[str, str]]] = {}
    at = 0.0
    while at <= until:
        active = {_without(labels, {"__name__"}) for labels in _vector(evaluate(samples, expression, at))}
        since = {labels: since.get(labels, at) for labels in active}
        ready = [labels for labels, started in since.items() if at - started >= for_seconds]
        if ready:
            fired[at] = sorted((dict(labels) for labels in ready), key=lambda each: sorted(each.items()))
        at += STEP_SECONDS
    return fired


def metric_names(expression: str) -> set[str]:
    """The names of the metrics in an expression."""
    found: set[str] = set()

    def look(node: object) -> None:
        match node:
            case promql.VectorSelector():
                found.add(node.name or "")
            case promql.MatrixSelector():
                look(node.vector_selector)
            case promql.Call():
                for each in node.args:
                    look(each)
            case promql.BinaryExpr():
                look(node.lhs)
                look(node.rhs)
            case promql.AggregateExpr() | promql.ParenExpr() | promql.UnaryExpr() | promql.SubqueryExpr():
                look(node.expr)

    look(promql.parse(expression))
    return found - {""}


def parse_duration(text: str) -> float:
    """`5m`, `1h30m`: seconds."""
    units: Mapping[str, float] = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
    parts = re.findall(r"(\d+)(ms|[smhd])", text)
    assert "".join(number + unit for number, unit in parts) == text, text
    return sum(float(number) * units[unit] for number, unit in parts)
