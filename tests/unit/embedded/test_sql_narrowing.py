"""What a query does not read never changes its result: that of DuckDB over the whole topic."""

from __future__ import annotations

import duckdb
import headrace
import pyarrow as pa
import pytest

COLUMNS = "page string required, user int64, place struct<user: int64, city: string>"
VISITS = pa.Table.from_pylist(
    [
        {"page": page, "user": user, "place": {"user": -user, "city": "x"}}
        for user, page in enumerate(["a", "A", "b", "05", "5", "B", "c"])
    ]
)


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    import headrace

    with headrace.open(tmp_path_factory.mktemp("sql") / "log") as opened:
        opened.admin.create_topic("visits", columns=COLUMNS)
        with opened.producer() as producer:
            producer.send_table("visits", VISITS)
        yield opened


@pytest.fixture(scope="module")
def whole():
    with duckdb.connect() as connection:
        connection.register("visits", VISITS)
        yield connection


@pytest.mark.parametrize(
    "query",
    [
        # The bound of a column that a CTE computes.
        "with v as (select -user as user from visits) select user from v where user < -2",
        "with V as (select -user as user from visits) select user from v where user < -2",
        # The field of a struct that has the name of a column.
        "select user from visits where place.user < -2",
        "select user from visits v where v.place.user < -2",
        "select place.user from visits place where place.user > 2",
        "select place.user from visits as v(page, user, place) where place.user < -2",
        # Renamed columns.
        "select a from visits as v(a, page, user) where page > 2",
        # Comparisons by another order than that of the column's values.
        "select page from visits where page = 'A' collate nocase",
        "select page from visits where page between 'A' collate nocase and 'B' collate nocase",
        "select page from visits where page in ('5', '05') and page = 5",
        # Bounds that are null.
        "select user from visits where user > 3 and user > null",
        "select user from visits where user > nullif(1, 1) and user > 3",
        "select user from visits where user < 3 and user < null",
        # All columns without a star, or by their numbers.
        "select visits from visits where user = 3",
        "select v.user, v from visits v where v.user = 3",
        "select count(V) from visits v",
        "select #2 from visits",
        "select #1 from visits where user > 2 order by all",
        "select columns('u.*') from visits where page = 'c'",
        "select * from (unpivot (select user, page from visits) on user)",
        "select count(*) from (from visits pivot (max(user) for page in ('a', 'b') group by place))",
        "from visits select user where user > 4",
        # Several uses of the topic.
        "select a.user, b.user from visits a, visits b where a.user > 4 and b.user < 2",
        "select a.user, b.user from visits a, visits b where a.user > 4 and b.user > 5",
        "select user from visits where user > 5 union all select user from visits where user < 1",
        "select user from visits where user > 5 union all select user from visits where page = 'a'",
        "select user from visits where user > 5 union all select user from visits",
        "select a.user from visits a left join visits b on a.user = b.user and b.user > 5 where b.user is null",
        "select user from visits where user > 3 and user in (select user + 1 from visits where user < 4)",
        "with v as not materialized (select * from visits where user > 4) select a.user from v a, v b",
        "with recursive r as (select 5 n union all select user from visits, r where user > n and user > 4) from r",
    ],
)
def test_results_are_those_of_the_whole_topic(log, whole, query):
    """Also of names that are no column of the topic, and of comparisons that bounds do not express."""

    def result(run):
        try:
            found = run()
        except (duckdb.Error, headrace.InvalidRequestError):
            return "refused"
        return sorted(map(repr, found))

    def of_headrace():
        with log.sql(query) as found:
            return list(found)

    expected = result(whole.execute(query).fetchall)
    assert result(of_headrace) == expected


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("select a.user, b.user from visits a, visits b where a._offset > 5 and b._offset < 1", [(6, 0)]),
        (
            "select a.user, b.user from visits a, visits b where a._offset = 3 and b._offset between 4 and 5",
            [(3, 4), (3, 5)],
        ),
        ("select user from visits where _offset > 5 union all select user from visits where page = 'a'", [(0,), (6,)]),
        (
            "select user from visits where _offset > 5 union all select user from visits where _timestamp > now()",
            [(6,)],
        ),
        ("select user from visits where _offset < 1 union all select user from visits where _offset > 5", [(0,), (6,)]),
    ],
)
def test_offsets_of_several_uses_of_a_topic(log, query, expected):
    """What is read begins and ends where the uses of the topic all allow it."""
    with log.sql(query) as found:
        assert sorted(found) == expected


def test_a_query_opens_one_reader_for_each_topic(log, monkeypatch):
    """What the columns are is known from the metadata of all topics, which one client reads."""
    opened, create = [], headrace.Reader.__init__

    def counted(self, topic, **arguments):
        opened.append(topic)
        create(self, topic, **arguments)

    monkeypatch.setattr(headrace.Reader, "__init__", counted)
    log.admin.create_topic("pages", columns="page string", exist_ok=True)
    query = (
        "select count(*), count(a.user) from visits a join visits b using (user) left join pages p on p.page = a.page"
    )
    with log.sql(query) as result:
        assert list(result) == [(len(VISITS), len(VISITS))]
    assert sorted(opened) == ["pages", "visits"]


def test_all_columns_and_those_of_headrace(log):
    """A star has the columns of headrace that the query names."""
    with log.sql("select * from visits where _offset >= 5 order by user") as found:
        assert found.columns == ["page", "user", "place", "_offset"]
        assert [row[-1] for row in found] == [5, 6]
    with log.sql("select v.page, v._offset from visits v, visits w where v._offset = 6 and w.user = 0") as found:
        assert list(found) == [("c", 6)]
    with log.sql("select v.* exclude (_offset), v._offset + 1 from visits v where user = 2") as found:
        assert list(found) == [("b", 2, {"user": -2, "city": "x"}, 3)]


@pytest.mark.parametrize(
    "query", ["select usr from visits", "select _offset, usr from visits v", "select count(*) + usr from visits"]
)
def test_an_unknown_column_is_refused_with_similar_ones(log, query):
    """Among all columns of the topic, not only those that the query names."""
    with pytest.raises(headrace.InvalidRequestError, match=r'"usr" not found.*\n?.*"user"'):
        log.sql(query)
