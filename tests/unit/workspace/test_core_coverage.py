"""The gate on the coverage of the cores and of the storage engine: tests/core_coverage.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.core_coverage import PACKAGES, ROOT, by_package, count, missing, percent

CONFTEST = """
from tests.core_coverage import METER

def pytest_configure(config):
    config.pluginmanager.register(METER)
"""
TEST = """
def test_one_package():
    import headrace.wire.ids
"""


@pytest.mark.parametrize(
    ("arguments", "exit_code"),
    [((), 1), (("-n", "1"), 1), (("-k", "one"), 0), (("cases/test_it.py",), 0)],
    ids=["whole", "whole-by-workers", "chosen-by-name", "chosen-by-path"],
)
def test_a_whole_run_below_the_minimum_fails_and_a_part_does_not(
    tmp_path: Path, arguments: tuple[str, ...], exit_code: int
) -> None:
    """A run of one small test has the table, in which what it imported counts; only as a whole run it fails by it."""
    (tmp_path / "pytest.ini").write_text("[pytest]\ntestpaths = cases\n")
    (tmp_path / "cases").mkdir()
    (tmp_path / "cases/conftest.py").write_text(CONFTEST)
    (tmp_path / "cases/test_it.py").write_text(TEST)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "HEADRACE"))}
    environment |= {"PYTHONPATH": str(ROOT), "HEADRACE_TEST_COVERAGE": "1"}
    command = [sys.executable, "-m", "pytest", "--import-mode=importlib", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert "1 passed" in done.stdout, done.stdout + done.stderr
    assert done.returncode == exit_code
    assert ("less than 95 %: headrace.wire, headrace.log, headrace_broker.core" in done.stdout) == bool(exit_code)
    table = {
        line.split()[0]: float(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("headrace")
    }
    assert set(table) == set(PACKAGES)
    assert table["headrace.log"] == 0 < table["headrace.wire"]


def test_lines_and_branches_count_alike_and_what_nobody_imported_counts_in_full() -> None:
    """Of a measured file three of five parts were executed; each line of the other files is missing."""
    file = {"executed_lines": [1, 2], "missing_lines": [3], "executed_branches": [[1, 2]], "missing_branches": [[2, 0]]}
    assert percent({"a.py": file}) == 60
    assert list(missing({"a.py": file})) == ["  a.py: 3, 2->exit"]
    path = "sdk/headrace/wire/ids.py"
    measured = by_package({path: file})["headrace.wire"]
    assert measured[path] is file
    others = {other: measured[other] for other in measured if other != path}
    assert percent(others) == 0
    assert count(others, "missing") == sum(len((ROOT / other).read_text().splitlines()) for other in others)
