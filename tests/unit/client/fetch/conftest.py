"""A fetch that leads nowhere yet, for the tests of what fetches decide."""

import pytest

from tests.unit.client.fetch.reading import Reading


@pytest.fixture
def reading() -> Reading:
    """Partition 0 of a topic, that broker 1 leads, from its first offset."""
    return Reading()
