"""Fixtures of the Kubernetes tier. Only `make test-kubernetes` collects its tests: they need root and take minutes."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

from tests.kubernetes.inside import STATE
from tests.kubernetes.machines import Machines
from tests.kubernetes.volumes import Disks

if STATE not in os.environ:
    collect_ignore_glob = ["test_*.py"]

Figure = Callable[[str, object], None]
# What a test that failed shows: how all pods are, and what happened last.
SHOWN = (("get", "pods", "--output=wide"), ("get", "events", "--sort-by=.lastTimestamp"))
LAST_CHARACTERS = 6_000


@pytest.fixture(scope="session")
def figure() -> Iterator[Figure]:
    """Note a figure; all are printed together in the end."""
    noted: list[str] = []
    yield lambda what, value: noted.append(f"{what}: {value}")
    print("\n" + "\n".join(noted), flush=True)


@pytest.fixture(scope="session")
def machines(figure: Figure) -> Iterator[Machines]:
    """Three nodes that have the images of the chart, and disks for who claims them."""
    state = Path(os.environ[STATE])
    begun = time.monotonic()
    machines = Machines(state)
    os.environ["KUBECONFIG"] = str(machines.kubeconfig)
    with machines.running():
        figure("Kubernetes of three nodes is ready after", f"{time.monotonic() - begun:.1f} s")
        machines.load(state / "archives")
        with Disks(machines).served():
            yield machines


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that failed shows how the cluster was."""
    report = yield
    if report.failed:
        for words in SHOWN:
            command = ["kubectl", *words, "--all-namespaces"]
            run = subprocess.run(command, capture_output=True, text=True, check=False)
            report.sections.append((" ".join(words), (run.stdout + run.stderr)[-LAST_CHARACTERS:]))
    return report
