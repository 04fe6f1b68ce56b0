"""An analysis from requests to files: `model.json`, `workload.parquet`, `workload.html`.

collector = TraceCollector()
for value in topic_values("localhost:7170", "__table_trace"):
    collector.add(value)
trace = chosen_trace(collector.traces.values(), None, "__table_trace")
analysis = analysed(trace, summarise(collector.requests(trace)))
analysis.write(Path("report"))
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.cli.bench.models import WorkloadModel

from spark_jobs.trace_analysis.cache import Chart
from spark_jobs.trace_analysis.charts import charts_of, rows
from spark_jobs.trace_analysis.fits import Fit, fit_all
from spark_jobs.trace_analysis.model import model_of_summary, span_seconds
from spark_jobs.trace_analysis.report import report
from spark_jobs.trace_analysis.requests import TableTrace
from spark_jobs.trace_analysis.summary import CAUSES, Summary

MODEL, ROWS, PAGE = "model.json", "workload.parquet", "workload.html"


@dataclass(frozen=True, slots=True)
class Analysis:
    """Results of an analysis."""

    trace: TableTrace
    summary: Summary
    fits: Mapping[str, Fit]
    model: WorkloadModel
    charts: list[Chart]
    damaged: int

    def write(self, directory: Path) -> None:
        """Write the model, the table and the page to a directory, created if missing."""
        import pyarrow
        import pyarrow.parquet

        directory.mkdir(parents=True, exist_ok=True)
        (directory / MODEL).write_text(self.model.as_json(), "utf-8")
        page = report(self.trace, self.summary, self.charts, self.fits, self.model, self.damaged)
        (directory / PAGE).write_text(page, "utf-8")
        text, number = pyarrow.string(), pyarrow.float64()
        columns = {"measure": text, "series": text, "name": text, "x": number, "x_label": text}
        columns |= {"y": number, "y_label": text, "y_low": number, "y_high": number}
        table = pyarrow.Table.from_pylist(list(rows(self.charts, self.fits)), pyarrow.schema(list(columns.items())))
        pyarrow.parquet.write_table(table, directory / ROWS)

    def as_json(self) -> dict[str, Any]:
        """Return the main results as JSON values; an interval or distance that is not known is null."""
        summary = self.summary
        return {
            "table": self.trace.table,
            "sampled_fraction": self.trace.fraction,
            "requests": summary.requests,
            "seen_requests": self.trace.seen_requests,
            "dropped_requests": self.trace.dropped_requests,
            "left_out_requests": sum(other.requests for other in self.trace.left_out),
            "repeated_blocks": self.trace.repeated_blocks,
            "damaged_records": self.damaged,
            "seconds_of_trace": span_seconds(summary),
            "keys": summary.keys,
            "operations": dict(self.model.operations),
            "hit_rate": self.model.hit_rate,
            "misses": dict(zip(CAUSES, summary.causes.tolist(), strict=True)),
            "fits": {
                name: {
                    "family": fit.family,
                    "parameters": dict(fit.parameters),
                    "intervals": {key: interval and list(interval) for key, interval in fit.intervals.items()},
                    "kolmogorov_smirnov_distance": fit.distance,
                    "describes": fit.describes,
                }
                for name, fit in self.fits.items()
            },
        }


def analysed(trace: TableTrace, summary: Summary, damaged: int = 0) -> Analysis:
    """Return the analysis of a summary.

    Args:
        trace: What the blocks say of the trace.
        summary: Counts of all its requests.
        damaged: Records that were not blocks of a trace.
    """
    fits = fit_all(summary, trace.fraction, trace.seen_requests)
    model = model_of_summary(summary, fits, trace)
    return Analysis(trace, summary, fits, model, charts_of(summary, trace, fits), damaged)
