"""Fixtures of the client's tests: a cluster over lists, and the faults that a Produce call can meet."""

import random
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from headrace.wire.errors import LeaderHint, NotLeaderError, ShuttingDownError, StorageFullError, ThrottledError

from tests.fakes.cluster import (
    FakeCluster,
    FakeTopic,
    Fault,
    call_fails_with,
    lost_answer,
    lost_request,
    refused_with,
    running_fake,
)
from tests.fakes.groups import FakeGroups, fake_groups


@pytest.fixture
def fake_cluster() -> Iterator[FakeCluster]:
    """A cluster over lists; see the module."""
    with running_fake() as fake:
        yield fake


@pytest.fixture
def topic(fake_cluster: FakeCluster) -> FakeTopic:
    """Topic `t` of one partition."""
    return fake_cluster.create_topic("t")


@pytest.fixture
def clicks(fake_cluster: FakeCluster) -> FakeCluster:
    """A topic of two partitions, and one for dead letters."""
    fake_cluster.create_topic("clicks", 2)
    fake_cluster.create_topic("dead", 1)
    return fake_cluster


@pytest.fixture
def groups(clicks: FakeCluster) -> Iterator[FakeGroups]:
    """The coordinator of a group whose next member owns clicks-0."""
    with fake_groups(clicks) as coordinator:
        coordinator.assign(("clicks", 0))
        yield coordinator


@pytest.fixture
def two_brokers() -> Iterator[tuple[FakeCluster, FakeCluster]]:
    """Brokers 1 and 2 of one cluster."""
    with running_fake() as first:
        second = FakeCluster(first)
        yield first, second
        second.stop()


@pytest.fixture
def faults(fake_cluster: FakeCluster) -> SimpleNamespace:
    """What a Produce call can meet, to be put into `fake_cluster.faults`."""
    kinds = (
        lost_answer,
        lost_request,
        refused_with(NotLeaderError("moved", leader=LeaderHint(1, 0, fake_cluster.address))),
        refused_with(ThrottledError("slow down", retry_after_ms=2)),
        refused_with(StorageFullError("full")),
        call_fails_with(ShuttingDownError("going down")),
        lambda *args: None,
    )

    def drawn(seed: int) -> list[Fault]:
        """One for each of 60 calls, or none."""
        rng = random.Random(seed)
        return [rng.choice(kinds) for _ in range(60)]

    return SimpleNamespace(
        lost_answer=lost_answer,
        lost_request=lost_request,
        refused_with=refused_with,
        call_fails_with=call_fails_with,
        drawn=drawn,
    )
