"""Which lines and branches of the cores and of the storage engine the tests run: a table at the end, at least 95 %.

`make test` turns it on (HEADRACE_TEST_COVERAGE). The minimum counts where all tests ran and passed: a part of them, or
a failed one, leaves out what it does not run. Measured is what runs in the processes of pytest. Brokers and
coordinators of clusters are processes of their own: what only they run is not counted.

SlipCover measures, not coverage.py. The tests of `headrace.log` and `headrace.wire` take 34 s of CPU, 101 s under
coverage.py's C tracer, and 40 s under SlipCover, whose probes are calls of C. coverage.py does as well from Python 3.14
on, where it has branches by `sys.monitoring`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from _pytest.terminal import TerminalReporter

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {
    "headrace.wire": "sdk/headrace/wire",
    "headrace.log": "sdk/headrace/log",
    "headrace_broker.core": "services/broker/headrace_broker/core",
    "headrace_coordinator.core": "services/coordinator/headrace_coordinator/core",
}
MINIMUM_PERCENT = 95.0
KEEP_PROBES = -1
"""SlipCover leaves probes where they are. It would replace the code of functions that other threads are running, and
look through the frames of these threads: workers of pytest crashed in it on Python 3.11. It would save no time here.
"""
VARIABLE = "HEADRACE_TEST_COVERAGE"
SELECTING_OPTIONS = ("keyword", "markexpr", "deselect", "ignore", "ignore_glob", "lf", "stepwise")

Files = dict[str, dict[str, Any]]
"""By path: executed and missing lines and branches, as SlipCover writes them."""


class CoverageMeter:
    """Measures in this process from its construction on, and collects what the workers of pytest-xdist measured.

    It is made before anything imports the packages: a module is measured if it is imported later.
    """

    def __init__(self) -> None:
        import slipcover

        folders = [str(ROOT / folder) for folder in PACKAGES.values()]
        self._slipcover = slipcover.Slipcover(
            branch=True,
            d_miss_threshold=KEEP_PROBES,
            exclude_also=[r"^\s*\.\.\.$"],  # Bodies of protocols.
        )
        self._merge = slipcover.merge_coverage
        slipcover.ImportManager(self._slipcover, slipcover.FileMatcher(sources=folders)).__enter__()
        self._measured: list[dict[str, Any]] = []

    def pytest_testnodedown(self, node: Any) -> None:
        """Take what a worker measured; one that crashed says nothing."""
        if "core_coverage" in getattr(node, "workeroutput", {}):
            self._measured.append(json.loads(node.workeroutput["core_coverage"]))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Hand over to the process that started this one, where this is a worker."""
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["core_coverage"] = json.dumps(self._slipcover.get_coverage())

    def pytest_terminal_summary(self, terminalreporter: TerminalReporter, exitstatus: int) -> None:
        """Print the table; fail a whole run that has less than the minimum."""
        merged = self._slipcover.get_coverage()
        for each in self._measured:
            self._merge(merged, each)
        terminalreporter.section("coverage of the cores and of the storage engine: lines and branches")
        packages = by_package(merged["files"])
        low = [name for name, files in packages.items() if percent(files) < MINIMUM_PERCENT]
        for name, files in packages.items():
            terminalreporter.write_line(f"{name:26} {percent(files):6.2f} % of {count(files, 'executed', 'missing'):5}")
            if name in low:
                terminalreporter.write_line("\n".join(missing(files)))
        if low and exitstatus == pytest.ExitCode.OK and is_whole(terminalreporter.config):
            terminalreporter.write_line(f"less than {MINIMUM_PERCENT:g} %: {', '.join(low)}", red=True)
            session = terminalreporter._session
            assert session is not None
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def by_package(measured: Files) -> dict[str, Files]:
    """Return the files of each package; of one that nothing imported every line is missing."""
    measured = {str(Path(path).resolve()): file for path, file in measured.items()}
    found: dict[str, Files] = {}
    for name, folder in PACKAGES.items():
        found[name] = {}
        for file in sorted((ROOT / folder).rglob("*.py")):
            lines = len(file.read_text("utf-8").splitlines())
            path = str(file.relative_to(ROOT))
            found[name][path] = measured.get(str(file), {"missing_lines": list(range(1, lines + 1))})
    return found


def count(files: Files, *states: str) -> int:
    """Return how many lines and branches of the files are `executed`, or `missing`, or either."""
    keys = [f"{state}_{kind}" for state in states for kind in ("lines", "branches")]
    return sum(len(file.get(key, ())) for file in files.values() for key in keys)


def percent(files: Files) -> float:
    """Return how much of the files was executed, 100 where there is nothing to execute."""
    return 100.0 * count(files, "executed") / (count(files, "executed", "missing") or 1)


def missing(files: Files) -> Iterator[str]:
    """Yield a line for each file in which something is missing: lines, and branches as `from->to`."""
    for path, file in files.items():
        branches = [f"{start}->{end or 'exit'}" for start, end in file.get("missing_branches", ())]
        if file["missing_lines"] or branches:
            yield f"  {path}: {', '.join([*map(str, file['missing_lines']), *branches])}"


def is_whole(config: pytest.Config) -> bool:
    """Return whether the run was given no paths and no options that leave tests out."""
    if config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return False
    return not any(config.getoption(option, None) for option in SELECTING_OPTIONS)


def run_unmeasured(nodeid: str) -> None:
    """Run one test in a process without coverage: code with probes holds memory for longer."""
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE and "PYTEST" not in name}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", nodeid]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


METER = CoverageMeter() if os.environ.get(VARIABLE) else None
"""Made at import: the first that tests/conftest.py imports of ours, so that nothing has imported the packages."""
