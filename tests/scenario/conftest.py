"""Scenarios run shipped code in virtual time."""

from collections.abc import Iterator

import pytest

from tests.simulation.broker import simulated


@pytest.fixture(autouse=True)
def _in_virtual_time() -> Iterator[None]:
    with simulated():
        yield
