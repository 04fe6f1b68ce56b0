"""Distance between clients and brokers."""

import pytest
from headrace.placement.nearness import Place, distance


@pytest.mark.parametrize(
    ("client", "broker", "expected"),
    [
        (Place("east", "r1"), Place("east", "r1"), 0),
        (Place("east", "r1"), Place("east", "r2"), 1),
        (Place("east", "r1"), Place("west", "r1"), 2),
        (Place("east", ""), Place("east", ""), 1),
        (Place("east", "r1"), Place("", ""), 2),
        (Place("", "r1"), Place("west", "r1"), 0),
        (Place("", "r1"), Place("west", "r2"), 1),
        (Place("", ""), Place("", ""), 1),
    ],
)
def test_distance(client, broker, expected):
    """Racks of one name in two data centers are two; a client without a data center is in any."""
    assert distance(client, broker) == expected
