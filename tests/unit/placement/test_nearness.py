"""Distance between clients and brokers."""

import pytest
from headrace.placement.nearness import Location, distance


@pytest.mark.parametrize(
    ("client", "broker", "expected"),
    [
        (Location("east", "r1"), Location("east", "r1"), 0),
        (Location("east", "r1"), Location("east", "r2"), 1),
        (Location("east", "r1"), Location("west", "r1"), 2),
        (Location("east", ""), Location("east", ""), 1),
        (Location("east", "r1"), Location("", ""), 2),
        (Location("", "r1"), Location("west", "r1"), 0),
        (Location("", "r1"), Location("west", "r2"), 1),
        (Location("", ""), Location("", ""), 1),
    ],
)
def test_distance(client, broker, expected):
    """Racks of one name in two data centers are two; a client without a data center is in any."""
    assert distance(client, broker) == expected
