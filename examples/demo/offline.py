"""Offline part: Spark loads the user activity into a table and runs three queries on it.

The load job runs as a separate program, `python -m spark_jobs.load`, with its summary as JSON.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.wire.errors import HeadraceError
from headrace_devcluster.errors import ClusterNotHealthyError
from headrace_devcluster.guarded_exec import guarded
from rich.console import Console
from rich.table import Table

from examples.demo.feeding import ACTIVITY

TIMEOUT_SECONDS = 900.0
SHOWN_CHARACTERS = 60


@dataclass(frozen=True, slots=True)
class Question:
    """Query of the table, which it names `records`."""

    title: str
    sql: str


@dataclass(frozen=True, slots=True)
class Questions:
    """Load job and queries on its table."""

    event_time: str
    columns: tuple[str, ...]
    of_table: tuple[Question, ...]


OF_VIEWS = Questions(
    "timestamp_millis(view.at_ms)",
    (
        "partition",
        "offset",
        "from_json(string(value), 'at_ms BIGINT, user STRING, page STRING, status INT, bytes BIGINT') AS view",
    ),
    (
        Question(
            "page views by hour",
            "SELECT event_hour AS hour, count(*) AS views, sum(view.bytes) AS bytes, "
            "count_if(view.status >= 400) AS errors FROM records GROUP BY 1 ORDER BY 1 LIMIT 24",
        ),
        Question(
            "the five pages that were seen most",
            "SELECT view.page AS page, count(*) AS views, bigint(avg(view.bytes)) AS mean_bytes "
            "FROM records GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT 5",
        ),
        Question(
            "the five users who saw most",
            "SELECT view.user AS user, count(*) AS views, sum(view.bytes) AS bytes "
            "FROM records GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT 5",
        ),
    ),
)
OF_LINES = Questions(
    "timestamp",
    ("partition", "offset", "timestamp", "string(value) AS line"),
    (
        Question(
            "lines by hour of arrival",
            "SELECT event_hour AS hour, count(*) AS lines, sum(length(line)) AS characters "
            "FROM records GROUP BY 1 ORDER BY 1 LIMIT 24",
        ),
        Question(
            "the five first words that are most frequent",
            "SELECT split_part(line, ' ', 1) AS word, count(*) AS lines "
            "FROM records GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT 5",
        ),
        Question(
            "lines in each partition",
            "SELECT partition, count(*) AS lines, max(offset) AS last_offset FROM records GROUP BY 1 ORDER BY 1",
        ),
    ),
)


def is_installed() -> bool:
    """Return whether the load job is installed."""
    return importlib.util.find_spec("spark_jobs.load") is not None


def load(bootstrap_servers: str, table: Path, questions: Questions) -> dict[str, Any]:
    """Load the user activity into a new table and query it. Return the job's summary.

    Raises:
        HeadraceError: If the job fails; the message includes its output.
    """
    shutil.rmtree(table, ignore_errors=True)
    command = [sys.executable, "-m", "spark_jobs.load", "--json", "--quiet", "--topic", ACTIVITY, "--table", str(table)]
    command += ["--bootstrap-servers", bootstrap_servers, "--event-time", questions.event_time]
    for column in questions.columns:
        command += ["--select", column]
    for question in questions.of_table:
        command += ["--query", question.sql]
    with tempfile.TemporaryFile("w+") as errors:
        done = subprocess.run(
            guarded(command), stdout=subprocess.PIPE, stderr=errors, text=True, timeout=TIMEOUT_SECONDS, check=False
        )
        if done.returncode:
            errors.seek(0)
            raise _failed(errors.read())
    summary: dict[str, Any] = json.loads(done.stdout)
    return summary


def problems(summary: Mapping[str, Any], records: int) -> list[str]:
    """Return the differences between a table and the sent records."""
    found = []
    if summary["table_rows"] != records:
        found.append(f"{records} records were sent and the table has {summary['table_rows']} rows")
    if summary["lag_records"]:
        found.append(f"the table lacks {summary['lag_records']} records")
    return found


def show(summary: Mapping[str, Any], questions: Questions, seconds: float, console: Console) -> None:
    """Print the summary and the answers."""
    console.print(
        f"Spark loaded {summary['rows']:,} records in {summary['files']} Parquet files, {summary['bytes']:,} bytes, "
        f"with their offsets in one commit; lag: {summary['lag_records']}. It took {seconds:.0f} s, "
        "starting Java included.",
        highlight=False,
        soft_wrap=True,
    )
    for question, answer in zip(questions.of_table, summary["answers"], strict=True):
        table = Table(*answer["columns"], title=question.title)
        for column, value in zip(table.columns, answer["rows"][0] if answer["rows"] else [], strict=False):
            column.justify = "left" if isinstance(value, str) else "right"
        for row in answer["rows"]:
            table.add_row(*(f"{cell:,}" if isinstance(cell, int) else str(cell)[:SHOWN_CHARACTERS] for cell in row))
        console.print(table)
    console.print(f"The table lies in {summary['table']}", highlight=False, soft_wrap=True)


def _failed(output: str) -> HeadraceError:
    lines: Sequence[str] = output.strip().splitlines() or ["no error output"]
    return ClusterNotHealthyError(
        f"the load job failed: {lines[-1].removeprefix('error: ')}",
        action="`--no-spark` leaves it out (make demo DEMO_FLAGS=--no-spark).",
    )
