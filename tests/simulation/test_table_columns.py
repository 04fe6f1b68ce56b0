"""The comparison of a table's replicas."""

import pytest

from tests.simulation.table_columns import NewestRecord, compare_columns

STAYS, MAY_GO = NewestRecord(10, False), NewestRecord(12, True)


@pytest.mark.parametrize(
    ("columns", "problems"),
    [
        ([{b"k": STAYS}, {b"k": STAYS}], 0),
        ([{b"k": MAY_GO}, {}], 0),
        ([{b"k": STAYS}, {}], 1),
        ([{b"k": MAY_GO}, {b"k": STAYS}], 1),
        ([{}, {}], 0),
    ],
)
def test_what_one_replica_has_and_others_lack(columns, problems):
    assert len(compare_columns({f"b{number}": each for number, each in enumerate(columns)})) == problems
