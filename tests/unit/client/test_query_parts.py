"""What is taken from a query: its tables, the names that may be columns, and the bounds of its one topic."""

from __future__ import annotations

import duckdb
import pytest
from headrace.client.sql.query_parts import query_parts, value_of
from headrace.wire.errors import InvalidRequestError


@pytest.fixture(scope="module")
def connection():
    with duckdb.connect() as made:
        yield made


@pytest.mark.parametrize(
    ("query", "tables", "columns"),
    [
        ("select a, count(*) from t group by a", {"t": 1}, {"a"}),
        ("select * from t", {"t": 1}, None),
        ("select t.* from t", {"t": 1}, None),
        ("select t from t", {"t": 1}, None),
        ("select count(X) from t x", {"t": 1}, None),
        ("select a from t as x(a, b)", {"t": 1}, None),
        ("select #1 from t", {"t": 1}, None),
        ("select a as t from u order by t", {"u": 1}, {"a", "t"}),
        ("select count(*) from t", {"t": 1}, set()),
        ("select x.a from t x join u on x.a = u.b", {"t": 1, "u": 1}, {"x", "a", "u", "b"}),
        ("select b from t join u using (a)", {"t": 1, "u": 1}, {"a", "b"}),
        ("select b from t natural join u", {"t": 1, "u": 1}, None),
        ("select a.n from t a, t b where a.n = b.n", {"t": 2}, {"a", "b", "n"}),
        ("with c as (select a from t) select a from c where a > (select max(b) from u)", {"t": 1, "u": 1}, {"a", "b"}),
        ("select a from t union all select b from u", {"t": 1, "u": 1}, {"a", "b"}),
        ('select "odd name" from "shop.orders"', {"shop.orders": 1}, {"odd name"}),
        ("select s.x.y, row_number() over (partition by p order by o) from t qualify q", {"t": 1}, set("sxypoq")),
    ],
)
def test_tables_and_columns(connection, query, tables, columns):
    """A name more narrows less; none is missing."""
    parts = query_parts(connection, query)
    assert (dict(parts.tables), parts.columns) == (tables, columns)


@pytest.mark.parametrize(
    ("where", "bounds"),
    [
        ("a > 3", {("a", "low", 3)}),
        ("3 > a", {("a", "high", 3)}),
        ("a = 2 + 3", {("a", "low", 5), ("a", "high", 5)}),
        ("a between 1 and 2 and b <= 7", {("a", "low", 1), ("a", "high", 2), ("b", "high", 7)}),
        ("t.a >= 1 and (b < 2 and c = 4)", {("a", "low", 1), ("b", "high", 2), ("c", "low", 4), ("c", "high", 4)}),
        ("a > 3 or b > 3", set()),
        ("not a > 3", set()),
        ("a <> 3", set()),
        ("a > b", set()),
        ("a + 1 > 3", set()),
        ("a > (select max(b) from u)", set()),
        ("a in (1, 2)", set()),
        ("a > random() * 10", set()),
        ("a > 1 collate nocase", set()),
        ("s.a > 3", set()),
        ("T.a > 3", {("a", "low", 3)}),
    ],
)
def test_bounds(connection, where, bounds):
    """Comparisons with constants that are joined by AND, and nothing else."""
    parts = query_parts(connection, f"select 1 from t where {where}")
    assert {(each.column, each.end, value_of(connection, each.expression, "INT")) for each in parts.bounds} == bounds


def test_bounds_are_of_one_topic(connection):
    """A query of two tables, or of one twice, has none: a name may be of either."""
    assert query_parts(connection, "select 1 from t, u where a > 3").bounds == ()
    assert query_parts(connection, "select 1 from t join t x on true where a > 3").bounds == ()
    assert query_parts(connection, "select 1 from (select * from t) where a > 3").bounds == ()
    assert query_parts(connection, "select 1 from t where a > 3 union select 1 from u").bounds == ()
    assert query_parts(connection, "with c as (select -a as a from t) select 1 from c where a > 3").bounds == ()
    assert query_parts(connection, "select 1 from t as x(a, b) where a > 3").bounds == ()
    assert query_parts(connection, "select 1 from t as x where t.a > 3").bounds == ()


def test_what_is_no_query(connection):
    """Only one SELECT is taken."""
    for query in ("insert into t values (1)", "select 1; select 2", "selec", "", "copy t to 'file'"):
        with pytest.raises(InvalidRequestError):
            query_parts(connection, query)
