"""Panels of the dashboards as data, and their conversion by Grafana's SDK.

A panel is a title, a description, a unit and its queries; everything else is the same for all, so that the dashboards
look alike. Every query goes to `${datasource}` and to one cluster; rates are over `$__rate_interval`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.builders import prometheus, stat, timeseries
from grafana_foundation_sdk.builders.common import (
    ReduceDataOptions,
    StackingConfig,
    VizLegendOptions,
    VizTooltipOptions,
)
from grafana_foundation_sdk.models import common, dashboard

DATASOURCE = dashboard.DataSourceRef(type_val="prometheus", uid="${datasource}")
WIDTH = 24
HEIGHTS = {"stat": 4, "graph": 8}
COLUMNS = 3
"""Maximum graphs per row."""
NOTHING = "none"
NOT_SCRAPED = "not scraped"
COUNTS = ("short", "reqps", "ops", "iops")
"""Units whose axis reaches at least 1: for zeros only, Grafana would draw one up to 100."""
DETAIL_SECONDS = 60
"""Scrape interval of the series of single partitions: the minimum step of queries on them."""


@dataclass(frozen=True, slots=True)
class Query:
    """Expression with the legend of its lines."""

    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """Panel of a dashboard."""

    title: str
    description: str
    """Sentence on its content and use."""
    unit: str
    queries: tuple[Query, ...]
    kind: str = "graph"
    """`graph` over time, or `stat` for one number."""
    steps: tuple[tuple[float | None, str], ...] = ()
    """Lower bound and colour of each step; a bound of `None` is the lowest."""
    stack: bool = False
    signed: bool = False
    """Whether values may be negative; the axis of other graphs begins at zero."""
    highest: float | None = None
    decimals: int | None = None
    words: tuple[tuple[str, str, str], ...] = ()
    """Texts and colours that replace values: (value, text, colour)."""
    detail: bool = False
    """Whether its metrics are on /metrics/detail."""
    without_data: str = ""
    """Text instead of "No data" if a healthy cluster may have none: errors by code, metrics of applications."""


@dataclass(frozen=True, slots=True)
class Row:
    """Heading with its panels."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Variable:
    """Selector above the panels, with the values of a label."""

    name: str
    metric: str


@dataclass(frozen=True, slots=True)
class Dashboard:
    """Dashboard; `name` is the suffix of its uid and of its file's name."""

    name: str
    title: str
    description: str
    rows: tuple[Row, ...]
    variables: tuple[Variable, ...] = ()


def graph(title: str, description: str, unit: str, *queries: Query | str, **more: object) -> Panel:
    """Return a panel over time."""
    return Panel(title, description, unit, _queries(queries), **more)  # type: ignore[arg-type]


def number(title: str, description: str, unit: str, query: str, **more: object) -> Panel:
    """Return a panel with one number."""
    return Panel(title, description, unit, _queries((query,)), "stat", **more)  # type: ignore[arg-type]


def _queries(queries: Sequence[Query | str]) -> tuple[Query, ...]:
    return tuple(Query(each) if isinstance(each, str) else each for each in queries)


def build(board: Dashboard, others: Sequence[Dashboard]) -> dashboard.Dashboard:
    """Return Grafana's model of a dashboard, with links to the others."""
    builder = (
        builders.Dashboard(f"headrace / {board.title}")
        .uid(f"headrace-{board.name}")
        .description(board.description)
        .tags(["headrace"])
        .time("now-1h", "now")
        .refresh("30s")
        .timezone("browser")
        .tooltip(dashboard.DashboardCursorSync.CROSSHAIR)
        .readonly()
    )
    for other in others:
        if other is not board:
            builder.link(
                builders.DashboardLink(other.title)
                .type(dashboard.DashboardLinkType.LINK)
                .url(f"/d/headrace-{other.name}")
                .keep_time(True)
                .include_vars(True)
            )
    builder.with_variable(builders.DatasourceVariable("datasource").type("prometheus").label("Data source"))
    builder.with_variable(_variable(Variable("cluster", "headrace_coordinator_info"), multi=False))
    for variable in board.variables:
        builder.with_variable(_variable(variable, multi=True))
    top = 0
    for row in board.rows:
        builder.with_row(builders.Row(row.title).grid_pos(dashboard.GridPos(h=1, w=WIDTH, x=0, y=top)))
        top += 1
        for line in _lines(row.panels):
            width, height = WIDTH // len(line), HEIGHTS[line[0].kind]
            for index, panel in enumerate(line):
                builder.with_panel(_panel(panel, dashboard.GridPos(h=height, w=width, x=index * width, y=top)))
            top += height
    return builder.build()


def _lines(panels: Sequence[Panel]) -> list[Sequence[Panel]]:
    """Divide panels into rows that fill the page: numbers in one row, graphs as evenly as possible."""
    count = 1 if panels[0].kind == "stat" else math.ceil(len(panels) / COLUMNS)
    edges = [len(panels) - len(panels) * (count - line) // count for line in range(count + 1)]
    return [panels[begin:end] for begin, end in itertools.pairwise(edges)]


def _variable(variable: Variable, *, multi: bool) -> builders.QueryVariable:
    chosen = "" if variable.name == "cluster" else '{cluster="$cluster"}'
    label = variable.name
    return (
        builders.QueryVariable(variable.name)
        .label(label.capitalize())
        .datasource(DATASOURCE)
        .query(f"label_values({variable.metric}{chosen}, {label})")
        .refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(dashboard.VariableSort.ALPHABETICAL_ASC)
        .multi(multi)
        .include_all(multi)
        .all_value(".+" if multi else "")
    )


def _panel(panel: Panel, place: dashboard.GridPos) -> stat.Panel | timeseries.Panel:
    made: stat.Panel | timeseries.Panel
    if panel.kind == "stat":
        made = (
            stat.Panel()
            .graph_mode(common.BigValueGraphMode.AREA)
            .color_mode(
                common.BigValueColorMode.BACKGROUND if panel.steps or panel.words else common.BigValueColorMode.NONE
            )
            .reduce_options(ReduceDataOptions().calcs(["lastNotNull"]))
        )
    else:
        made = (
            timeseries.Panel()
            .show_points(common.VisibilityMode.NEVER)
            .span_nulls(False)
            .legend(
                VizLegendOptions()
                .display_mode(common.LegendDisplayMode.LIST)
                .placement(common.LegendPlacement.BOTTOM)
                .show_legend(True)
            )
            .tooltip(VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI).sort(common.SortOrder.DESCENDING))
        )
        if panel.stack:
            made.fill_opacity(20).stacking(StackingConfig().mode(common.StackingMode.NORMAL).group("A"))
        if panel.unit in COUNTS:
            made.axis_soft_max(1)
        if not panel.signed:
            made.min(0)
    made.title(panel.title).description(panel.description).unit(panel.unit).datasource(DATASOURCE).grid_pos(place)
    if panel.without_data:
        made.no_value(panel.without_data)
    if panel.decimals is not None:
        made.decimals(panel.decimals)
    if panel.words:
        options = {
            value: dashboard.ValueMappingResult(text=text, color=color, index=index)
            for index, (value, text, color) in enumerate(panel.words)
        }
        made.mappings([dashboard.ValueMap(options=options)])
    if panel.highest is not None:
        made.max(panel.highest)
    if panel.steps:
        steps = [dashboard.Threshold(value=value, color=color) for value, color in panel.steps]
        made.thresholds(builders.ThresholdsConfig().mode(dashboard.ThresholdsMode.ABSOLUTE).steps(steps))
    for index, query in enumerate(panel.queries):
        target = prometheus.Dataquery().expr(query.expr).ref_id("ABCDEF"[index]).datasource(DATASOURCE)
        target.legend_format(query.legend or "__auto")
        if panel.kind == "stat":
            target.instant()
        else:
            target.range()
        if panel.detail:
            target.interval(f"{DETAIL_SECONDS}s")
        made.with_target(target)
    return made
