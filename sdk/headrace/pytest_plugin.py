"""Fixtures for the tests of programs that use headrace; pytest finds them once headrace is installed.

    def test_mine(headrace_directory):
        headrace_directory.admin.create_topic("clicks")
        run_my_program(bootstrap_servers=headrace_directory.bootstrap_servers)

`headrace_directory` is fresh for each test and takes milliseconds; `headrace_cluster` is a cluster in one process, of
all tests of the run. Nothing is imported or started before a test asks for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from headrace.client.opened.directory import LogDirectory
    from headrace.testing import RunningCluster


@pytest.fixture
def headrace_directory(tmp_path: Path) -> Iterator[LogDirectory]:
    """Yield a new directory of topics, open for this process (`headrace.open`); clients use its `bootstrap_servers`."""
    import headrace

    with headrace.open(tmp_path / "headrace") as opened:
        yield opened


@pytest.fixture(scope="session")
def headrace_cluster() -> Iterator[RunningCluster]:
    """Yield a cluster in one process, without etcd, of all tests of the run (`headrace.testing.cluster`)."""
    from headrace import testing

    with testing.cluster(single=True) as running:
        yield running
