"""The page: whole in one file, readable without colours and scripts, and with the numbers of the analysis."""

import functools
import io
import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
from headrace.cli.bench.models import ETC, POOLS, WorkloadModel, model_of
from rich.console import Console
from spark_jobs.trace_analysis.analysis import Analysis, analysed
from spark_jobs.trace_analysis.charts import cumulative
from spark_jobs.trace_analysis.histogram import count
from spark_jobs.trace_analysis.plots import Axis, Plot, Series, number_text, svg
from spark_jobs.trace_analysis.summary import summarise
from spark_jobs.workload import show_workload

from tests.unit.spark_jobs.trace_parts import drawn

pytest.importorskip("scipy")
EMPTY = {"meta", "rect", "path"}
"""Elements without an end tag of their own, in HTML or as written."""


class Page(HTMLParser):
    """Checks that elements are closed in order; keeps headings, plots and references."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.headings: list[str] = []
        self.plots: list[str] = []
        self.references: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.references += [str(given[name]) for name in ("src", "href", "xlink:href") if name in given]
        if tag == "svg" and given.get("role") == "img":
            self.plots.append(given.get("aria-label") or "")
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        if tag not in EMPTY:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("h1", "h2"):
            self.headings.append(data)


def analysis(model: WorkloadModel, count: int, fraction: float = 1.0) -> Analysis:
    trace, requests = drawn(model, count, fraction)
    return analysed(trace, summarise(requests), damaged=2)


@functools.cache
def week() -> Analysis:
    """Four days and a half."""
    return analysis(replace(ETC, keys=2_000, gap_us=replace(ETC.gap_us, scale=1_200_000.0)), 300_000)


def test_the_page_is_whole_and_has_a_plot_for_every_question(tmp_path: Path) -> None:
    """No script, no reference to anything outside, elements closed, a text for each plot."""
    week().write(tmp_path)
    text = (tmp_path / "workload.html").read_text()
    page = Page(text)
    assert page.references == []
    assert not re.search(r"<script|url\(|@import|https?://", text)
    assert page.headings == [
        "Workload of the table users",
        "What is requested",
        "Load over the trace",
        "Load over the day",
        "Load over the week",
        "Key sizes",
        "Value sizes",
        "Why gets find nothing",
        "Popularity of keys, and its tail",
        "How few keys have most requests",
        "When a key is requested again",
        "How many keys of a window are seen again",
        "Gaps between requests",
        "What a cache of a size would do, in keys",
        "What a cache of a size would do, in MiB",
        "Latency at the server",
        "Distributions that fit",
    ]
    assert len(page.plots) == len(page.headings) - 2
    assert all(page.plots)
    assert "prefers-color-scheme:dark" in text
    assert "2 records were not blocks of a trace" in text
    assert "Rows that producers write, as put_many and spark_jobs.table_load do, are not in the trace." in text
    assert "nan" not in text.lower().replace("nanosecond", "")


def test_the_table_has_the_numbers_of_the_plots(tmp_path: Path) -> None:
    """Every point, and the parameters of the fits with their intervals; the model is in its file."""
    week().write(tmp_path)
    rows = pyarrow.parquet.read_table(tmp_path / "workload.parquet").to_pylist()
    shares = {row["name"]: row["y"] for row in rows if row["measure"] == "composition"}
    assert shares == pytest.approx({"get": 30 / 31, "put": 1 / 31}, abs=0.01)
    (exponent,) = [row for row in rows if row["measure"] == "fit of popularity" and row["name"] == "exponent"]
    assert exponent["y_low"] < exponent["y"] == week().fits["popularity"].parameters["exponent"] < exponent["y_high"]
    hours = [row["y"] for row in rows if row["measure"] == "load by hour"]
    assert hours == pytest.approx(list(ETC.hourly_load), rel=0.1)
    assert {row["x_label"] for row in rows if row["measure"] == "gaps"} == {"gap, microseconds"}
    assert model_of((tmp_path / "model.json").read_text()) == week().model


def test_a_small_trace_has_a_page_as_well(tmp_path: Path) -> None:
    """One request, and a few of a sample: what has no data is left out."""
    for model, requests, fraction in ((replace(ETC, keys=1), 1, 1.0), (replace(POOLS["usr"], keys=300), 400, 0.3)):
        analysis(model, requests, fraction).write(tmp_path)
        page = Page((tmp_path / "workload.html").read_text())
        assert "What is requested" in page.headings
        assert "Load over the day" not in page.headings
    assert "a sample of 0.3 of the keys" in (tmp_path / "workload.html").read_text()


def test_what_is_not_known_of_one_key_is_no_number(tmp_path: Path) -> None:
    """Its fits have no interval and no distance: null in JSON, which has no NaN, and said to be unknown elsewhere."""
    found = analysis(replace(ETC, keys=1, new_key_rate=0.0), 3_000)
    document = json.loads(json.dumps(found.as_json(), allow_nan=False))
    fit = document["fits"]["value_bytes"]
    assert (fit["kolmogorov_smirnov_distance"], fit["intervals"]["shape"], fit["describes"]) == (None, None, False)
    found.write(tmp_path)
    text = (tmp_path / "workload.html").read_text()
    assert "nan" not in text.lower()
    assert "distance unknown" in text
    assert "<td>unknown</td>" in text
    printed = io.StringIO()
    shown = {**document, "page": "workload.html", "model": "model.json"}
    show_workload(shown, Console(file=printed, width=200))
    assert "(distance unknown); it does not describe the data" in printed.getvalue()


def test_names_are_escaped(tmp_path: Path) -> None:
    """Blocks with such a name are refused; a name that comes another way does no harm either."""
    week().trace.table = "<script>alert(1)</script>"
    try:
        week().write(tmp_path)
    finally:
        week().trace.table = "users"
    assert "<script>" not in (tmp_path / "workload.html").read_text()


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("values", [[], [0.0], [5.0, 5.0], [0.0, 1e-9, 1e12], [math.nan, 1.0, math.inf]])
def test_any_numbers_can_be_plotted(values: list[float], log: bool) -> None:
    """None, equal ones, many decades, and such as are none: all positions are inside the plot."""
    plot = Plot("x", Axis("x", log=log), Axis("y"), [Series("a", values, values), Series("b", values, values)])
    for kind in ("line", "step"):
        text = svg(replace(plot, kind=kind))
        for x in map(float, re.findall(r"[ML]([\d.]+) ", text)):
            assert 0 <= x <= 680
    assert number_text(1_234_567) == "1.23 M"
    assert number_text(0.1234, percent=True) == "12.3 %"


def test_a_distribution_begins_at_zero() -> None:
    """Of one number as well, which a line through its one point would not show."""
    for value in (90, 0):
        series = cumulative(count(np.full(10, value)))
        assert (series.x, series.y) == ([max(value - 1, 0), value], [0.0, 1.0])
    assert len(cumulative(count(np.empty(0, np.int64))).x) == 0
