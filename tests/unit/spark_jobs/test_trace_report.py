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
from headrace.cli.bench.models import ETC, MAX_KEYS, POOLS, WorkloadModel, model_of
from headrace.wire.request_trace import ALL_KEYS
from rich.console import Console
from spark_jobs.trace_analysis import curves
from spark_jobs.trace_analysis.analysis import Analysis, analysed
from spark_jobs.trace_analysis.charts import cumulative
from spark_jobs.trace_analysis.fits import Fit
from spark_jobs.trace_analysis.histogram import count
from spark_jobs.trace_analysis.model import model_of_summary
from spark_jobs.trace_analysis.plots import Axis, Plot, Series, number_text, svg
from spark_jobs.trace_analysis.report import report
from spark_jobs.trace_analysis.requests import TableTrace
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


def fitted(name: str, distance: float, shape: float = 0.2) -> Fit:
    fit = week().fits[name]
    parameters = fit.parameters if name == "popularity" else {**fit.parameters, "shape": shape}
    return replace(fit, distance=distance, parameters=parameters)


@pytest.mark.parametrize(
    ("fit", "text"),
    [
        (("key_bytes", 0.01), "describes the data.<"),
        (("key_bytes", 0.2), "does not describe the data. The model has the quantiles of the sizes instead.<"),
        (("value_bytes", 0.2), "does not describe the data. The model has the quantiles of the sizes instead.<"),
        (("popularity", 0.2), "does not describe the data. The model has it nevertheless.<"),
        (("gap_us", 0.2), "does not describe the data. The model has its shape, with the rate of the table.<"),
        (("gap_us", 0.01, 1.2), "describes the data. The model has gaps of independent requests instead.<"),
    ],
)
def test_the_page_says_what_the_model_has(fit: tuple[str, float, float], text: str) -> None:
    """Quantiles of sizes alone replace a fit that does not describe the data, and the model agrees with the page."""
    found = week()
    fits = {fit[0]: fitted(*fit)}
    model = model_of_summary(found.summary, fits, found.trace)
    assert text in report(found.trace, found.summary, found.charts, fits, model, 0)
    if fit[0] == "key_bytes":
        assert ("quantiles" in text) == (model.key_bytes.tail is None)
    if fit[0] == "gap_us":
        assert ("shape" in text) == (model.gap_us.shape == 0.2)


def test_the_page_says_what_drops_and_the_limit_of_keys_change() -> None:
    """The mean rate counts requests that were dropped; a model has at most 10,000,000 keys."""
    found = week()
    trace = replace(found.trace, dropped_requests=1_000)
    model = replace(found.model, keys=MAX_KEYS)
    text = report(trace, found.summary, found.charts, found.fits, model, 0)
    assert (
        "1,000 sampled requests (0.33%) were dropped by servers: the mean rate includes them; load over time," in text
    )
    assert "The model has 10,000,000 keys, the most that one can have; the table may have more." in text
    assert "the most that one can have" not in report(trace, found.summary, found.charts, found.fits, found.model, 0)


def test_the_page_says_what_is_left_out(tmp_path: Path) -> None:
    """Requests of other tables of the name and of other fractions, and blocks that were written twice."""
    trace, requests = drawn(POOLS["usr"], 500)
    others = (
        TableTrace("users", 1 << 30, requests=1_234),
        TableTrace("users", ALL_KEYS, requests=9, table_id=b"a" * 16),
    )
    found = analysed(replace(trace, left_out=others, repeated_blocks=2), summarise(requests))
    found.write(tmp_path)
    page = (tmp_path / "workload.html").read_text()
    assert "1,234 requests with a sampled fraction of 0.25 are left out" in page
    assert "9 requests of another table of this name are left out" in page
    assert "2 blocks were written twice" in page
    assert (found.as_json()["left_out_requests"], found.as_json()["repeated_blocks"]) == (1_243, 2)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("fraction", [1.0, 0.3])
def test_what_comes_from_a_sample_of_the_keys_says_so(
    monkeypatch: pytest.MonkeyPatch, fraction: float, exact: bool
) -> None:
    """The load, and the curve of a cache with all of its gets or some: no interval has the error of the sample."""
    if not exact:
        monkeypatch.setattr(curves, "EXACT", 100)
        monkeypatch.setattr(curves, "DRAWN", 500)
    trace, requests = drawn(replace(POOLS["sys"], keys=300, gap_us=replace(ETC.gap_us, scale=1e6)), 4_000, fraction)
    texts = {chart.measure: chart.text for chart in analysed(trace, summarise(requests)).charts}
    for measure in ("cache size, distances", "cache size, bytes"):
        assert ("95 % interval" in texts[measure]) == (not exact)
        assert ("a sample of 0.3 of the keys" in texts[measure]) == (fraction < 1)
    assert ("below 100 keys" in texts["cache size, distances"]) == (fraction < 1)
    assert ("a sample of 0.3 of the keys" in texts["load"]) == (fraction < 1)


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
