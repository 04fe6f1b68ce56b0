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
    found = {parts.columns_of(table) for table in parts.tables}
    assert (dict(parts.tables), found) == (tables, {columns if columns is None else frozenset(columns)})


@pytest.mark.parametrize(
    ("query", "tables"),
    [
        ("with t as (select * from t where a > 3) select count(*) from t", {"t": 1}),
        ("with recursive t as (select * from t) select count(*) from t", {"t": 1}),
        ("with recursive t as (select 1 a union all select a + 1 from t where a < 3) select count(*) from t", {}),
        ("select * from u join (with u as (select 1 a) select * from u) v using (a)", {"u": 1}),
        (
            "with u as (select 1 a) select * from (with v as (select * from u) select * from V) join t using (a)",
            {"t": 1},
        ),
        ("with U as (select 1 a) select * from u", {}),
        ("with t as (select * from t), v as (select * from t) select * from v", {"t": 1}),
        ("with u as (select 1 a) select a from t union select a from u", {"t": 1}),
        ("with u as (select 1 a), v as (with u as (select * from u) select * from u) select * from v", {}),
    ],
)
def test_a_with_is_no_table_where_its_name_is_known(connection, query, tables):
    """DuckDB reads the same tables: it finds those, and needs no others."""
    parts = query_parts(connection, query)
    assert parts.tables == tables
    with duckdb.connect() as other:
        for name in tables:
            other.execute(f"create temp view {name} as select 1 as a")
        other.execute(query)


@pytest.mark.parametrize(
    ("query", "whole"),
    [
        ("select u.*, a from t join u using (k)", {"u"}),
        ("select x.*, a from t x join u using (k)", {"t"}),
        ("select t from t join u using (k)", {"t"}),
        ("select to_json(X) from t x, u", {"t"}),
        ("select #1 from t, u", {"t", "u"}),
        ("select a from t, u x(c, d)", {"u"}),
        ("select a.* from t, u", {"t", "u"}),
        ("select columns('a.*') from t, u", {"t", "u"}),
        ("select a from t join u on t.k = u.k", set()),
        ("select * from t unpivot (v for n in (a, b)), u", {"t", "u"}),
    ],
)
def test_tables_that_are_read_whole(connection, query, whole):
    """Those with columns that a query reads without naming them."""
    assert query_parts(connection, query).whole == whole


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


X3 = {("t", "x", "low", 3)}


@pytest.mark.parametrize(
    ("query", "bounds"),
    [
        ("select 1 from t a join u on a.k = u.k where a.x > 3", X3),
        ("select 1 from t a, u where A.x > 3 and u.y < 4", X3 | {("u", "y", "high", 4)}),
        ("select 1 from t, u where x > 3", X3 | {("u", "x", "low", 3)}),  # Of the one that has the column.
        ("select 1 from t left join u using (k) where t.x > 3 and u.y < 4", X3 | {("u", "y", "high", 4)}),
        ("select 1 from u full join t using (k) where t.x > 3", X3),
        ("select 1 from t join u on t.k = u.k and t.x > 3", X3),
        ("select 1 from u left join t on t.k = u.k and t.x > 3", X3),
        ("select 1 from t left join u on t.k = u.k and t.x > 3", set()),
        ("select 1 from t full join u on t.k = u.k and t.x > 3", set()),
        ("select 1 from (t join u on t.k = u.k and t.x > 3) full join v on v.k = u.k", X3),
        ("select 1 from t semi join u on t.k = u.k where t.x > 3 and y > 3", X3 | {("t", "y", "low", 3)}),
        ("select 1 from t asof join u on t.k >= u.k where t.x > 3", set()),
        ("select 1 from t positional join u where t.x > 3", set()),
        ("select 1 from (select * from t where x > 3) where k > 4", X3),
        ("with c as (select k from t where x > 3) select 1 from c join u using (k)", X3),
        ("select 1 from t where x > 3 union select 1 from u where y < 4", X3 | {("u", "y", "high", 4)}),
        ("select 1 from u where k in (select k from t where x > 3)", X3),
        ("select 1 from u where exists (select 1 from t where t.k = u.k and u.y > 3)", set()),
        ("select 1 from (select * from t) where x > 3", set()),
        ("select 1 from t join t b on true where t.x > 3", X3),
        ("with recursive r as (select 0 n union all select 1 from r, t where t.x > 3) select 1 from r", X3),
        ("with c as not materialized (select * from t where x > 3) select 1 from c a, c b", X3),
        ("select 1 from t where s.x > 3", set()),
        ("select 1 from t a where t.x > 3", set()),
        ("with c as (select -x as x from t) select 1 from c where x > 3", set()),
        ("select 1 from t a(x, y) where x > 3", set()),
        ("select 1 from t tablesample 10% where x > 3", set()),
        ("select 1 from t where x > 3 using sample 10", set()),
    ],
)
def test_bounds_of_joins_and_subqueries(connection, query, bounds):
    """Each is of a use of a table, all rows of which need to fulfil it."""
    parts = query_parts(connection, query)
    assert {
        (parts.reads[each.read], each.column, each.end, value_of(connection, each.expression, "INT"))
        for each in parts.bounds
    } == bounds


def test_each_use_of_a_table_has_its_bounds(connection):
    """One without any leaves nothing out."""
    parts = query_parts(connection, "select 1 from t a, t b, u where a.x > 3 and b.x < 7 union select 1 from t")
    found = [[(each.column, each.end) for each in bounds] for bounds in parts.bounds_of("t")]
    assert found == [[("x", "low")], [("x", "high")], []]
    assert parts.bounds_of("u") == [[]]


def test_what_is_no_query(connection):
    """Only one SELECT is taken."""
    for query in ("insert into t values (1)", "select 1; select 2", "selec", "", "copy t to 'file'"):
        with pytest.raises(InvalidRequestError):
            query_parts(connection, query)
