"""Spark's figures with their targets, and the guide that is filled from a run. No Spark is started."""

import io
import json
import statistics
from pathlib import Path

import pytest
from rich.console import Console

from bench import publish_spark
from bench.case import RATE, Sample
from bench.report import Report, machine
from bench.spark import (
    CATALOGUE,
    KAFKA_READ,
    KAFKA_READ_TWO,
    KAFKA_WRITE,
    MEMORY,
    MEMORY_TWO,
    MICRO_BATCH,
    READ,
    READ_GRPC,
    READ_TWO,
    WRITE,
    rate,
)

RATES = {
    MEMORY: 5_000_000.0,
    READ: 3_000_000.0,
    READ_GRPC: 1_000_000.0,
    MEMORY_TWO: 7_000_000.0,
    READ_TWO: 3_600_000.0,
    WRITE: 900_000.0,
    KAFKA_READ: 1_200_000.0,
    KAFKA_READ_TWO: 2_000_000.0,
    KAFKA_WRITE: 450_000.0,
    MICRO_BATCH: 1_500_000.0,
}
ROUNDS = (0.9, 1.0, 1.3)


def report() -> Report:
    """Three rounds, the machine slower in one and faster in another."""
    parts = {"java_ns_per_row": 250.0, "python_ns_per_row": 80.0, "brokers_ns_per_row": 70.0, "python_peak_mb": 180.0}
    results = {
        name: [
            Sample({**rate(1_000, 1_000 / each / speed), **({"idle_ms": 45.0} if name == MICRO_BATCH else parts)})
            for each in ROUNDS
        ]
        for name, speed in RATES.items()
    }
    told = {"rounds": 3, "records": 1_000, "master": "local[2]", "brokers": 2}
    return Report(CATALOGUE, results, told, {}, {**machine(), "pyspark": "4.2.1", "java": "21.0.1", "pyarrow": "18"})


def test_a_run_lists_targets_figures_and_verdicts() -> None:
    """Each figure of the issue has a line; "1.5 times" of two columns is told both ways, and may differ."""
    output = io.StringIO()
    report().show(Console(width=200, file=output))
    rows = {
        cells[0]: cells[1:]
        for line in output.getvalue().splitlines()
        if len(cells := [cell.strip() for cell in line.strip("│").split("│")]) == 4
    }
    assert rows["count, seven columns, million rows/s"] == ["at least 1.5", "3", "yes"]
    assert rows["count, seven columns, of rows made in memory"] == ["at least 0.4", "0.6", "yes"]
    first = "count, two columns, million rows/s: 1.5 times the target of seven"
    assert rows[first] == ["at least 2.25", "3.6", "yes"]
    assert rows["count, two columns, of what seven reach in the same round"] == ["at least 1.5", "1.2", "NO"]
    assert rows["the same of rows made in memory"] == ["stated", "1.4", ""]
    assert rows["writing, million rows/s"] == ["at least 1.5", "0.9", "NO"]
    assert rows["count, seven columns, of Spark's Kafka source"] == ["at least 2", "2.5", "yes"]
    assert rows["count, two columns, of Spark's Kafka source"] == ["at least 2", "1.8", "NO"]
    assert rows["writing, of Spark's Kafka sink"] == ["stated", "2", ""]
    assert rows["an idle micro-batch, ms"] == ["at most 250", "45", "yes"]


def test_the_document_says_machine_versions_settings_and_every_repetition() -> None:
    """So that a run can be judged, and published, without the machine."""
    document = report().document()
    assert {"cores", "python", "pyspark", "java"} <= set(document["machine"])
    assert document["settings"]["master"] == "local[2]"
    repetitions = document["cases"][WRITE]["repetitions"]
    assert [round(each[RATE]) for each in repetitions] == [810_000, 900_000, 1_170_000]
    assert statistics.median(each["java_ns_per_row"] for each in repetitions) == 250


def test_the_guide_is_filled_from_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The text between the marks is replaced, the rest stays, and a second run writes the same page."""
    page, run = tmp_path / "spark.md", tmp_path / "spark.json"
    page.write_text("before\n<!-- begin spark -->\nold\n<!-- end spark -->\nafter\n")
    run.write_text(json.dumps(report().document()))
    monkeypatch.setattr(publish_spark, "PAGE", page)
    publish_spark.main(run)
    text = page.read_text()
    assert "| writing, million rows/s | at least 1.5 | 0.9 | **no** |" in text
    assert f"| {READ} | 3,000,000 | 2,700,000 to 3,900,000 | 250 | 80 | 70 |" in text
    assert f"| {MICRO_BATCH} | 1,500,000 | 1,350,000 to 1,950,000 |  |  |  |" in text
    assert "with Spark 4.2.1 (`local[2]`), Java 21.0.1" in text
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    publish_spark.main(run)
    assert page.read_text() == text


def test_the_real_guide_has_the_marks() -> None:
    """Once."""
    text = publish_spark.PAGE.read_text()
    assert text.count("<!-- begin spark -->\n") == text.count("<!-- end spark -->\n") == 1
