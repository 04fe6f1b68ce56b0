"""The report for people: one HTML page without scripts, fonts or files of its own, for light and dark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape

from headrace.cli.bench.models import MAX_KEYS, WorkloadModel

from spark_jobs.trace_analysis.cache import Chart
from spark_jobs.trace_analysis.fits import GOOD_DISTANCE, Fit, Interval
from spark_jobs.trace_analysis.histogram import mean
from spark_jobs.trace_analysis.model import model_has, span_seconds
from spark_jobs.trace_analysis.plots import Plot, legend, number_text, svg
from spark_jobs.trace_analysis.requests import TableTrace
from spark_jobs.trace_analysis.summary import Summary

TABLE_ROWS = 12
"""Rows of the table below a plot."""
_STYLE = """
:root{color-scheme:light dark;--page:#fff;--text:#1c2126;--soft:#5a6570;--line:#d9dee3;--card:#f5f7f9;
--c0:#1f5fbf;--c1:#b4530a;--c2:#1a7f4b;--c3:#8b3fa8}
@media(prefers-color-scheme:dark){:root{--page:#14181c;--text:#e6eaee;--soft:#a2adb8;--line:#343c44;--card:#1d2329;
--c0:#6ea8fe;--c1:#f0a35e;--c2:#5fcf95;--c3:#cf9be6}}
body{margin:0 auto;max-width:46rem;padding:1.5rem 1rem 4rem;background:var(--page);color:var(--text);
font:16px/1.55 system-ui,sans-serif}
h1{font-size:1.7rem;line-height:1.25;margin:0 0 .3rem}h2{font-size:1.2rem;margin:2.6rem 0 .3rem}
p{margin:.4rem 0}.soft,figcaption{color:var(--soft)}
dl{display:grid;grid-template-columns:repeat(auto-fit,minmax(9.5rem,1fr));gap:.7rem;margin:1.4rem 0}
dl div{background:var(--card);border-radius:.5rem;padding:.6rem .8rem}
dt{color:var(--soft);font-size:.85rem}dd{margin:0;font-size:1.25rem;font-variant-numeric:tabular-nums}
figure{margin:.8rem 0 0}svg{width:100%;height:auto;display:block}
.grid{stroke:var(--line);fill:none}.axis{stroke:var(--soft);fill:none}
.tick{fill:var(--soft);font-size:12px}.label{fill:var(--text);font-size:13px}
.line,.key path{fill:none;stroke-width:2;stroke-linejoin:round}
.s0{stroke:var(--c0)}.s1{stroke:var(--c1);stroke-dasharray:7 4}.s2{stroke:var(--c2);stroke-dasharray:2 3}
.s3{stroke:var(--c3);stroke-dasharray:9 3 2 3}
.b0{fill:var(--c0)}.b1{fill:var(--c1)}.b2{fill:var(--c2)}.b3{fill:var(--c3)}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:.2rem 1.2rem;padding:0;margin:.2rem 0 0}
.key{display:inline-block;width:28px;height:8px;margin-right:.4rem;vertical-align:middle}
details{margin:.3rem 0 0}summary{cursor:pointer;color:var(--soft)}
.scroll{overflow-x:auto}table{border-collapse:collapse;margin:.5rem 0;font-variant-numeric:tabular-nums}
th,td{text-align:right;padding:.2rem .8rem .2rem 0;border-bottom:1px solid var(--line)}
th:first-child,td:first-child{text-align:left}th{font-weight:600}
@media print{details{display:none}body{max-width:none}}
""".replace("\n", "")


def report(
    trace: TableTrace,
    summary: Summary,
    charts: Sequence[Chart],
    fits: Mapping[str, Fit],
    model: WorkloadModel,
    damaged: int,
) -> str:
    """Return the page.

    Args:
        trace: What the blocks say of the trace.
        summary: Its counts.
        charts: Results to show, in order.
        fits: Distributions that were fitted.
        model: Model of the workload.
        damaged: Records that were not blocks of a trace.
    """
    title = f"Workload of the table {trace.table}"
    sections = "".join(map(_section, charts))
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<style>{_STYLE}</style></head><body><main><header><h1>{escape(title)}</h1>{_intro(trace, summary, damaged)}"
        f"</header>{_cards(trace, summary)}{sections}{_fits(fits, model)}</main></body></html>\n"
    )


def _intro(trace: TableTrace, summary: Summary, damaged: int) -> str:
    first, last = (
        datetime.fromtimestamp(at / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S")
        for at in (summary.first_us, summary.last_us)
    )
    sample = (
        "all keys" if trace.fraction == 1 else f"a sample of {trace.fraction:.3g} of the keys, each with all requests"
    )
    notes = [f"{first} to {last} UTC; {summary.requests:,} requests of {sample}, of {trace.seen_requests:,} in total."]
    notes.append("Rows that producers write, as put_many and spark_jobs.table_load do, are not in the trace.")
    if trace.dropped_requests:
        share = trace.dropped_requests / (trace.dropped_requests + trace.requests)
        notes.append(
            f"{trace.dropped_requests:,} sampled requests ({share:.2%}) were dropped by servers: the mean rate "
            "includes them; load over time, causes of misses, popularity, reuse and caches do not."
        )
    for other in trace.left_out:
        which = (
            f"with a sampled fraction of {other.fraction:.3g}"
            if other.table_id == trace.table_id
            else "of another table of this name"
        )
        notes.append(f"{other.requests:,} requests {which} are left out.")
    if trace.repeated_blocks:
        notes.append(f"{trace.repeated_blocks:,} blocks were written twice and count once.")
    if damaged:
        notes.append(f"{damaged:,} records were not blocks of a trace and were skipped.")
    return "".join(f'<p class="soft">{escape(note)}</p>' for note in notes)


def _cards(trace: TableTrace, summary: Summary) -> str:
    values = summary.value_bytes.sum(axis=0)
    seconds = span_seconds(summary)
    cards = {
        "requests/s, mean": number_text(trace.seen_requests / seconds) if seconds else "-",
        "gets": f"{summary.gets / summary.requests:.1%}",
        "hit rate of gets": f"{summary.hits / summary.gets:.1%}" if summary.gets else "-",
        "distinct keys": number_text(summary.keys / trace.fraction),
        "mean key, bytes": number_text(mean(summary.key_bytes)),
        "mean value, bytes": number_text(mean(values)) if values.any() else "-",
    }
    items = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in cards.items())
    return f"<dl>{items}</dl>"


def _section(chart: Chart) -> str:
    return (
        f"<section><h2>{escape(chart.heading)}</h2><figure>{svg(chart.plot)}{legend(chart.plot)}"
        f"<figcaption>{escape(chart.text)}</figcaption></figure>{_numbers(chart.plot)}</section>"
    )


def _numbers(plot: Plot) -> str:
    """Return the data of a plot as a table, thinned."""
    tables = []
    for series in plot.series:
        step = max(1, -(-len(series.x) // TABLE_ROWS))
        chosen = sorted({*range(0, len(series.x), step), len(series.x) - 1} if series.x else set())
        lines = []
        for n in chosen:
            name = plot.labels[int(series.x[n])] if plot.labels else number_text(series.x[n], plot.x.percent)
            value = number_text(series.y[n], plot.y.percent)
            lines.append(f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>")
        head = f"<tr><th>{escape(plot.x.label)}</th><th>{escape(series.label)}</th></tr>"
        tables.append(f"<table><thead>{head}</thead><tbody>{''.join(lines)}</tbody></table>")
    return f'<details><summary>Numbers</summary><div class="scroll">{"".join(tables)}</div></details>'


def _fits(fits: Mapping[str, Fit], model: WorkloadModel) -> str:
    head = "<tr><th>parameter</th><th>value</th><th>95 % interval</th></tr>"
    parts = []
    for fit in fits.values():
        lines = []
        for name, value in fit.parameters.items():
            interval = _interval_text(fit.intervals[name])
            lines.append(f"<tr><td>{escape(name)}</td><td>{value:.5g}</td><td>{interval}</td></tr>")
        notes = (_verdict(fit), *fit.notes)
        text = "".join(f"<p class='soft'>{escape(note)}</p>" for note in notes)
        title = f"{fit.name}: {_FAMILIES[fit.family]}"
        parts.append(
            f'<h3>{escape(title)}</h3><div class="scroll"><table><thead>{head}</thead>'
            f"<tbody>{''.join(lines)}</tbody></table></div>{text}"
        )
    if not parts:
        parts = ["<p>The trace has too few requests for a fit.</p>"]
    most = ""
    if model.keys == MAX_KEYS:
        most = f" The model has {MAX_KEYS:,} keys, the most that one can have; the table may have more."
    return (
        "<section><h2>Distributions that fit</h2><p>The model of the workload, for "
        "<code>headrace bench --workload fitted:FILE</code>. A distance of at most "
        f"{GOOD_DISTANCE} counts as a fit. Intervals are rough if few keys have most requests.{most}</p>"
        f"{''.join(parts)}</section>"
    )


def _verdict(fit: Fit) -> str:
    """Return how far a fit describes the data, and what the model has where it does not."""
    distance = "unknown" if fit.distance is None else f"{fit.distance:.4f}"
    text = (
        f"Kolmogorov-Smirnov distance {distance} to the half of the keys that was held out ({fit.held_out:,}); the fit "
        f"{'describes' if fit.describes else 'does not describe'} the data."
    )
    if not model_has(fit):
        return f"{text} The model has {_REPLACEMENTS[fit.name]} instead."
    if fit.name == "gap_us":
        return f"{text} The model has its shape, with the rate of the table."
    return text if fit.describes else f"{text} The model has it nevertheless."


def _interval_text(interval: Interval | None) -> str:
    if interval is None:
        return "unknown"
    low, high = interval
    return "given" if low == high else f"{low:.5g} to {high:.5g}"


_REPLACEMENTS = {
    "key_bytes": "the quantiles of the sizes",
    "value_bytes": "the quantiles of the sizes",
    "gap_us": "gaps of independent requests",
}
_FAMILIES = {"gev": "generalized extreme value", "gpd": "generalized Pareto", "zipf": "Zipf"}
