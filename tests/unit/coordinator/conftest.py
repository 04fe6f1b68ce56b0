"""Fixtures of the coordinator's tests: its parts on a metastore in memory, coordinators of groups, and members."""

import pytest

from tests.unit.coordinator.group_parts import Caller, first_of_pair, pair_of_coordinators
from tests.unit.coordinator.parts import make_parts


@pytest.fixture
def parts():
    """Fresh parts."""
    return make_parts()


@pytest.fixture
def pair(request):
    """The parts and two coordinators, on a topic of 4 partitions or as many as the test sets."""
    return pair_of_coordinators(getattr(request, "param", 4))


@pytest.fixture
def a():
    """One coordinator."""
    return first_of_pair()


@pytest.fixture
def one():
    return Caller(1)


@pytest.fixture
def two():
    return Caller(2)
