"""Plots as SVG, for a page without scripts or files of its own. Pure: data in, text out.

Colours and dashes are classes of the page's style sheet, so that one plot serves light and dark. Series differ by dash
as well as by colour.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Literal

WIDTH, HEIGHT = 680, 300
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 14, 46
MAX_POINTS = 400
"""Points of a line that are drawn; a longer one is thinned evenly."""


@dataclass(frozen=True, slots=True)
class Series:
    """Line or bars of a plot."""

    label: str
    x: Sequence[float]
    y: Sequence[float]


@dataclass(frozen=True, slots=True)
class Axis:
    """Axis of a plot."""

    label: str
    """What it shows, with its unit."""
    log: bool = False
    percent: bool = False
    """Whether numbers are fractions, to be shown in per cent."""
    low: float | None = None
    high: float | None = None
    ticks: Sequence[tuple[float, str]] = ()
    """Positions and labels; empty means chosen by the range."""


@dataclass(frozen=True, slots=True)
class Plot:
    """Plot with its axes."""

    title: str
    """What it shows, for readers who do not see it."""
    x: Axis
    y: Axis
    series: Sequence[Series]
    kind: Literal["line", "step", "bar"] = "line"
    labels: Sequence[str] = field(default=())
    """Names of bars, in place of numbers on the x axis."""


def svg(plot: Plot) -> str:
    """Return a plot as an SVG element."""
    points = [(x, y) for series in plot.series for x, y in zip(series.x, series.y, strict=True)]
    x_scale = _Scale(plot.x, [x for x, _ in points], LEFT, WIDTH - RIGHT, padded=plot.kind == "bar")
    y_scale = _Scale(plot.y, [y for _, y in points], HEIGHT - BOTTOM, TOP)
    parts = [*_grid(plot, x_scale, y_scale)]
    for number, series in enumerate(plot.series):
        parts.append(
            _bars(plot, number, x_scale, y_scale)
            if plot.kind == "bar"
            else _line(plot, series, number, x_scale, y_scale)
        )
    body = "".join(parts)
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(plot.title)}" '
        f'preserveAspectRatio="xMidYMid meet">{body}</svg>'
    )


def legend(plot: Plot) -> str:
    """Return the labels of the series as HTML; empty for one series."""
    if len(plot.series) < 2:
        return ""
    mark = '<svg viewBox="0 0 28 8" class="key" aria-hidden="true"><path class="s{0}" d="M0 4H28"/></svg>'
    items = (f"<li>{mark.format(number)}{escape(each.label)}</li>" for number, each in enumerate(plot.series))
    return f'<ul class="legend">{"".join(items)}</ul>'


def number_text(value: float, percent: bool = False) -> str:
    """Return a number for people: three digits, thousands as k, M, G."""
    if percent:
        return f"{value * 100:.3g} %"
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else "-"
    for limit, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g} {suffix}"
    return f"{value:.3g}"


class _Scale:
    """Positions of numbers on an axis."""

    def __init__(self, axis: Axis, values: list[float], start: float, end: float, padded: bool = False) -> None:
        self.axis = axis
        known = [value for value in values if math.isfinite(value) and (value > 0 or not axis.log)] or [1.0]
        low = min(known) if axis.low is None else axis.low
        high = max(known) if axis.high is None else axis.high
        if padded:
            low, high = low - 0.6, high + 0.6
        if high <= low:
            high = low * 10 if axis.log else low + 1
        self.low, self.high = low, high
        self._start, self._end = start, end

    def at(self, value: float) -> float:
        """Return the position of a number, within the axis."""
        low, high = self.low, self.high
        if self.axis.log:
            low, high, value = math.log10(low), math.log10(high), math.log10(max(value, low))
        share = min(1.0, max(0.0, (value - low) / (high - low)))
        return self._start + share * (self._end - self._start)

    def ticks(self) -> Iterator[tuple[float, str]]:
        """Yield positions and labels."""
        if self.axis.ticks:
            yield from ((self.at(value), label) for value, label in self.axis.ticks)
            return
        if self.axis.log:
            first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
            step = max(1, math.ceil((last - first) / 8))
            values = [10.0**power for power in range(first, last + 1, step)]
            if len(values) < 2:
                values = [self.low, self.high]
        else:
            step_size = _nice((self.high - self.low) / 5)
            first = math.ceil(self.low / step_size - 1e-9)
            values = [n * step_size for n in range(first, math.floor(self.high / step_size + 1e-9) + 1)]
        yield from ((self.at(value), number_text(value, self.axis.percent)) for value in values)


def _nice(size: float) -> float:
    power = 10.0 ** math.floor(math.log10(size))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= size * (1 - 1e-9))


def _grid(plot: Plot, x_scale: _Scale, y_scale: _Scale) -> Iterator[str]:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    for y, label in y_scale.ticks():
        yield f'<path class="grid" d="M{LEFT} {y:.1f}H{right}"/>'
        yield f'<text class="tick" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{escape(label)}</text>'
    named = [(x_scale.at(n), label) for n, label in enumerate(plot.labels)]
    for x, label in named or x_scale.ticks():
        yield f'<path class="grid" d="M{x:.1f} {bottom}v4"/>'
        yield f'<text class="tick" x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{escape(label)}</text>'
    yield f'<path class="axis" d="M{LEFT} {TOP}V{bottom}H{right}"/>'
    middle = (LEFT + right) / 2
    yield f'<text class="label" x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">{escape(plot.x.label)}</text>'
    height = (TOP + bottom) / 2
    turned = f'transform="rotate(-90 14 {height})"'
    yield f'<text class="label" x="14" y="{height}" text-anchor="middle" {turned}>{escape(plot.y.label)}</text>'


def _line(plot: Plot, series: Series, number: int, x_scale: _Scale, y_scale: _Scale) -> str:
    points = [
        (x_scale.at(x), y_scale.at(y))
        for x, y in zip(series.x, series.y, strict=True)
        if math.isfinite(x) and math.isfinite(y) and (x > 0 or not plot.x.log)
    ]
    step = max(1, math.ceil(len(points) / MAX_POINTS))
    points = points[::step] + (points[-1:] if step > 1 else [])
    if not points:
        return ""
    path = [f"M{points[0][0]:.1f} {points[0][1]:.1f}"]
    for x, y in points[1:]:
        path.append(f"H{x:.1f}V{y:.1f}" if plot.kind == "step" else f"L{x:.1f} {y:.1f}")
    return f'<path class="line s{number}" d="{"".join(path)}"/>'


def _bars(plot: Plot, number: int, x_scale: _Scale, y_scale: _Scale) -> str:
    series, bottom = plot.series[number], HEIGHT - BOTTOM
    width = (WIDTH - LEFT - RIGHT) / (x_scale.high - x_scale.low) * 0.8 / len(plot.series)
    parts = []
    for x, y in zip(series.x, series.y, strict=True):
        left = x_scale.at(x) + (number - len(plot.series) / 2) * width
        top = y_scale.at(y)
        shown = f"{series.label}: {number_text(y, plot.y.percent)}"
        parts.append(
            f'<rect class="bar b{number}" x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" '
            f'height="{max(0.0, bottom - top):.1f}"><title>{escape(shown)}</title></rect>'
        )
        if len(series.x) <= 8:
            middle, above = left + width / 2, max(TOP + 8, top - 4)
            text = number_text(y, plot.y.percent)
            parts.append(f'<text class="tick" x="{middle:.1f}" y="{above:.1f}" text-anchor="middle">{text}</text>')
    return "".join(parts)
