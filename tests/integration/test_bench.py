"""`python -m bench` against real brokers: a small run of every kind of case, and nothing left after it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.case import BROKER_CPU, MB, RATE

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
CASES = (
    "produce/arrow",
    "produce/arrow, TLS",
    "produce/send, keys, 10 partitions",
    "produce/send, batch 50",
    "produce/send_many, 10 partitions",
    "produce/send_many, batch 5000, fsync",
    "consume/loop",
    "consume/poll",
    "consume/arrow",
    "consume/arrow, gRPC",
    "consume/arrow, TLS",
    "clients/2 consumers",
)
OTHERS = {"latency/1000 a second": "p99_ms", "log/100 MB": "cold_grpc_mb_per_s", "recovery/100 MB": "crash_s"}
"""What is measured in no records a second, and one of its figures."""


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a run of small cases wrote."""
    directory = tmp_path_factory.mktemp("bench")
    temporary = tmp_path_factory.mktemp("t")
    command = [
        sys.executable,
        "-m",
        "bench",
        *CASES,
        *OTHERS,
        "--quick",
        "--output",
        str(directory),
    ]
    environment = {**os.environ, "TMPDIR": str(temporary)}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert {path.name for path in directory.iterdir()} == {"report.json", "producer.svg", "consumer.svg"}
    assert list(temporary.iterdir()) == []
    found: dict[str, Any] = json.loads((directory / "report.json").read_text())
    return found


def test_every_kind_of_case_is_measured(document: dict[str, Any]) -> None:
    """Nothing is skipped; records, bytes and processor time of all, and shares of the limit where there is one."""
    assert document["skipped"] == {}
    assert set(CASES) <= set(document["cases"])
    for name in CASES:
        (figures,) = document["cases"][name]["repetitions"]
        assert min(figures[RATE], figures[MB]) > 0, name
        assert figures[BROKER_CPU] >= 0, name
    assert document["cases"]["consume/arrow, gRPC"]["of_limit"] > 0
    for name, figure in OTHERS.items():
        (figures,) = document["cases"][name]["repetitions"]
        assert figures[figure] > 0, name


def test_a_batch_of_fifty_has_the_overhead_that_the_format_promises(document: dict[str, Any]) -> None:
    """4 bytes a record and a header of 80 a batch: 5.6, and what half-empty batches add."""
    (figures,) = document["cases"]["produce/send, batch 50"]["repetitions"]
    assert 5.6 <= figures["disk_overhead_bytes_per_record"] < 7
    (figures,) = document["cases"]["produce/arrow"]["repetitions"]
    assert 4.0 <= figures["disk_overhead_bytes_per_record"] < 4.2
