"""pytest fixtures over a real local cluster; named as a plugin by `tests/conftest.py`.

pytest_plugins = ["headrace_devcluster.fixtures"]
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator

import pytest

from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec


@pytest.fixture(scope="session")
def headrace_cluster() -> Iterator[LocalCluster]:
    """Yield a cluster shared by all tests that do not change its processes. Use `topic_name` for unique topics."""
    with LocalCluster() as cluster:
        yield cluster


@pytest.fixture
def own_cluster() -> Iterator[Callable[..., LocalCluster]]:
    """Yield a function that starts a cluster for one test: `own_cluster(brokers=1)`, see LocalClusterSpec."""
    with contextlib.ExitStack() as stack:

        def start(**spec: object) -> LocalCluster:
            return stack.enter_context(LocalCluster(LocalClusterSpec(**spec)))  # type: ignore[arg-type]

        yield start


@pytest.fixture
def topic_name(request: pytest.FixtureRequest) -> str:
    """Return a topic name that is unique to this test, for a shared cluster."""
    module = request.module.__name__.rpartition(".")[2]
    return re.sub(r"[^a-zA-Z0-9._-]+", "-", f"{module}.{request.node.name}")[:249]
