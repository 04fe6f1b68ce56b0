"""What tests of a broker's runtime work on; each is entered in the test's event loop."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from headrace_broker.runtime.partition import Partition

from tests.unit.broker.test_broker_fetch_ahead import Follower, following
from tests.unit.broker.test_broker_runtime import leading_partition


@pytest.fixture
def partition(tmp_path: Path) -> AbstractAsyncContextManager[Partition]:
    """A partition that broker 1 leads."""
    return leading_partition(tmp_path)


@pytest.fixture
def follower(tmp_path: Path) -> AbstractAsyncContextManager[Follower]:
    """A partition that broker 1 follows."""
    return following(tmp_path)
