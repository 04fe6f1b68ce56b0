"""The comparison of a table's replicas."""

import pytest

from tests.simulation.table_columns import NewestRecord, TableReplica, compare_columns

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
    replicas = {f"b{number}": TableReplica(each, {}) for number, each in enumerate(columns)}
    assert len(compare_columns(replicas)) == problems


@pytest.mark.parametrize("other", [(b"k", b"w", 0), (b"k", None, 0), (b"k", b"v", 5), (b"l", b"v", 0)])
def test_one_offset_has_one_record_also_where_a_later_one_replaced_it(other):
    """Compaction may have removed it in one replica; it has changed it in none."""
    older, newer = (b"k", b"v", 0), (b"k", b"x", 0)
    mine = TableReplica({b"k": STAYS}, {5: older, 10: newer})
    assert compare_columns({"b1": mine, "b2": TableReplica({b"k": STAYS}, {10: newer})}) == []
    assert len(compare_columns({"b1": mine, "b2": TableReplica({b"k": STAYS}, {5: other, 10: newer})})) == 1
