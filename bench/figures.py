"""The paper's figures 4 and 5, messages per second over the MB moved, as SVG without a plotting package.

One line per case with its rate between two marks; of repeated cases the repetition with the median time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

from bench.case import Sample

WIDTH, HEIGHT = 760, 440
LEFT, RIGHT, TOP, BOTTOM = 90, 250, 40, 60
COLOURS = ("#1b6ca8", "#d1495b", "#66a182", "#edae49", "#6a4c93", "#00798c", "#8d6a4f", "#444444", "#c77dff", "#7cb518")
DASHES = ("", "6 3", "2 3")

Point = tuple[float, float]


def rates(sample: Sample, value_bytes: int) -> list[Point]:
    """Return (MB so far, messages per second since the previous mark) of one repetition."""
    points, before = [], (0.0, 0.0)
    for mark in sample.marks:
        mb, seconds = mark[0] - before[0], mark[1] - before[1]
        if mb > 0 and seconds > 0:
            points.append((mark[0], mb * 1e6 / value_bytes / seconds))
            before = mark
    return points


def median_sample(samples: Sequence[Sample]) -> Sample:
    """Return the repetition with the median time."""
    return sorted(samples, key=lambda sample: sample.marks[-1][1])[len(samples) // 2]


def draw(title: str, lines: Mapping[str, Sequence[Point]]) -> str:
    """Return a figure: messages per second, logarithmic, over MB. Lines without points are omitted."""
    lines = {name: points for name, points in lines.items() if points}
    x_most = max((x for points in lines.values() for x, _ in points), default=1.0)
    all_rates = [y for points in lines.values() for _, y in points] or [1.0]
    low, high = math.floor(math.log10(min(all_rates))), math.ceil(math.log10(max(all_rates)) + 1e-9)

    def place(point: Point) -> str:
        x = LEFT + point[0] / x_most * (WIDTH - LEFT - RIGHT)
        y = HEIGHT - BOTTOM - (math.log10(point[1]) - low) / (high - low) * (HEIGHT - TOP - BOTTOM)
        return f"{x:.1f},{y:.1f}"

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="22" font-size="15">{escape(title)}</text>',
        *_axes(place, x_most, low, high),
    ]
    for number, (name, points) in enumerate(lines.items()):
        colour, dash = COLOURS[number % len(COLOURS)], DASHES[number // len(COLOURS) % len(DASHES)]
        path = " ".join(map(place, points))
        style = f'stroke="{colour}" stroke-width="2"' + (f' stroke-dasharray="{dash}"' if dash else "")
        y = TOP + 14 * number
        parts += [
            f'<polyline points="{path}" fill="none" {style}/>',
            f'<line x1="{WIDTH - RIGHT + 12}" y1="{y}" x2="{WIDTH - RIGHT + 32}" y2="{y}" {style}/>',
            f'<text x="{WIDTH - RIGHT + 38}" y="{y + 4}" font-size="11">{escape(name)}</text>',
        ]
    return "\n".join([*parts, "</svg>", ""])


def _axes(place: object, x_most: float, low: int, high: int) -> list[str]:
    assert callable(place)
    parts = []
    for power in range(low, high + 1):
        y = place((0.0, 10.0**power)).split(",")[1]
        parts += [
            f'<line x1="{LEFT}" y1="{y}" x2="{WIDTH - RIGHT}" y2="{y}" stroke="#ddd"/>',
            f'<text x="{LEFT - 8}" y="{float(y) + 4:.1f}" text-anchor="end">{10**power:,}</text>',
        ]
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        x = place((share * x_most, 10.0**low)).split(",")[0]
        parts.append(f'<text x="{x}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{share * x_most:,.0f}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    centre = (TOP + HEIGHT - BOTTOM) / 2
    return [
        *parts,
        f'<text x="{middle}" y="{HEIGHT - 18}" text-anchor="middle">MB of messages</text>',
        f'<text x="20" y="{centre}" transform="rotate(-90 20 {centre})" text-anchor="middle">messages/s</text>',
    ]
