"""Fixtures of the client's tests: a cluster over lists, and the faults that a Produce call can meet."""

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from tests.fakes.cluster import FakeCluster, call_fails_with, lost_answer, lost_request, refused_with, running_fake


@pytest.fixture
def fake_cluster() -> Iterator[FakeCluster]:
    """A cluster over lists; see the module."""
    with running_fake() as fake:
        yield fake


@pytest.fixture
def two_brokers() -> Iterator[tuple[FakeCluster, FakeCluster]]:
    """Brokers 1 and 2 of one cluster."""
    with running_fake() as first:
        second = FakeCluster(first)
        yield first, second
        second.stop()


@pytest.fixture
def faults() -> SimpleNamespace:
    """What a Produce call can meet, to be put into `fake_cluster.faults`."""
    return SimpleNamespace(
        lost_answer=lost_answer, lost_request=lost_request, refused_with=refused_with, call_fails_with=call_fails_with
    )
