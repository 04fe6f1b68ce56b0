"""SQL over topics of a real cluster: typed ones and others, with what is pushed down to the brokers."""

from __future__ import annotations

import datetime as dt
import json
import signal
import subprocess
import sys

import headrace
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from headrace.wire.errors import InvalidRequestError, UnknownTopicError
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec

from tests.integration.on_directory import fetched_bytes
from tests.integration.terminals import command_on_terminal

ROWS = 20_000
DAY = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


@pytest.fixture(scope="module")
def cluster():
    settings = {"metrics_listen": "127.0.0.1:0"}
    with LocalCluster(LocalClusterSpec(brokers=1, coordinators=1, broker_settings=settings)) as running:
        client = {"bootstrap_servers": running.bootstrap_servers}
        with headrace.Admin(**client) as admin:
            columns = "page string required, user int64, ts timestamp[us, UTC], score double, tags list<string>"
            admin.create_topic("clicks", partitions=2, columns=columns)
            admin.create_topic("users", partitions=1, columns="user int64 required, name string")
            admin.create_topic("raw-json", partitions=1)
            admin.create_topic("empty", partitions=1, columns="a int64")
        table = pa.table(
            {
                "page": [f"/p{number % 5}" for number in range(ROWS)],
                "user": [number % 100 if number % 10 else None for number in range(ROWS)],
                "ts": [DAY + dt.timedelta(seconds=number) for number in range(ROWS)],
                "score": [float("nan") if number % 1000 == 0 else number / 2 for number in range(ROWS)],
                "tags": [["a", str(number)] for number in range(ROWS)],
            }
        )
        with headrace.Producer(**client, batch_bytes=32 * 1024) as producer:
            for partition in (0, 1):
                producer.send_table("clicks", table.slice(partition * ROWS // 2, ROWS // 2), partition=partition)
            producer.send_table("users", pa.table({"user": range(100), "name": [f"n{n}" for n in range(100)]}))
            for number in range(50):
                value = json.dumps({"page": f"/p{number % 5}", "n": number}).encode() if number else b"\xff"
                producer.send("raw-json", value, key=b"k%d" % number)
        yield running


@pytest.fixture
def sql(cluster):
    def run(query, **settings):
        with headrace.sql(query, bootstrap_servers=cluster.bootstrap_servers, **settings) as result:
            return list(result)

    return run


def fetched(cluster, query):
    """Return the result of a query, and the bytes that the broker has sent for it."""
    before = fetched_bytes(cluster)
    with headrace.sql(query, bootstrap_servers=cluster.bootstrap_servers) as result:
        rows = list(result)
    return rows, fetched_bytes(cluster) - before


def test_groups_and_joins(sql):
    """Counts, groups, joins of topics, a topic twice, subqueries and CTEs."""
    assert sql("select count(*) from clicks") == [(ROWS,)]
    assert sql("select page, count(*), max(user) from clicks group by page order by page") == [
        (f"/p{each}", ROWS // 5, 95 + each if each else 95) for each in range(5)
    ]
    joined = sql(
        "select name, count(*) c from clicks join users using (user) group by name order by c desc, name limit 2"
    )
    assert joined == [("n1", 200), ("n11", 200)]
    assert sql("select count(*) from users a join users b on a.user = b.user + 1") == [(99,)]
    assert sql("with u as (select * from users where user < 3) select count(*) from u") == [(3,)]
    assert sql("select count(*) from clicks where user in (select user from users where user < 3)") == [(400,)]
    assert sql("select len(tags), tags[1] from clicks limit 1") == [(2, "a")]
    assert sql("select * from empty") == []
    assert sql("select sum(a) from empty") == [(None,)]
    assert sql("select 1 + 1") == [(2,)]


def test_only_what_is_named_is_read(cluster):
    """The columns that a query names, and the batches that its bounds leave, are sent."""
    (rows, whole) = fetched(cluster, "select * from clicks")
    assert len(rows) == ROWS
    (_, pages) = fetched(cluster, "select page, count(*) from clicks group by 1")
    assert pages < whole / 3
    (rows, heads) = fetched(cluster, "select count(*) from clicks")
    assert rows == [(ROWS,)]
    assert heads < whole / 50, "no values are needed to count rows"
    low = DAY + dt.timedelta(seconds=15_000)
    (rows, part) = fetched(
        cluster, f"select user from clicks where ts >= timestamptz '{low.isoformat()}' and user > 90"
    )
    assert len(rows) == sum(1 for number in range(15_000, ROWS) if number % 10 and number % 100 > 90)
    assert part < whole / 5
    (rows, part) = fetched(cluster, "select _partition, _offset from clicks where _offset between 9990 and 9994")
    assert sorted(rows) == [(partition, offset) for partition in (0, 1) for offset in range(9990, 9995)]
    assert part < whole / 20
    (rows, _) = fetched(cluster, "select count(*) from clicks where 15.5 < score and ts < '2026-01-01 01:00:00+00'")
    assert rows == [(sum(1 for n in range(3600) if n / 2 > 15.5 or n % 1000 == 0),)], "SQL's NaN is above all numbers"
    (rows, _) = fetched(cluster, "select count(*) from clicks where page = '/p3' or user = 1")
    assert rows == [(4_200,)]


def test_joins_read_what_their_conditions_leave(cluster):
    """Bounds of a WHERE clause, of an ON clause and of a subquery reach the topic whose column they are of."""
    (_, whole) = fetched(cluster, "select count(user), max(ts), max(name) from clicks join users using (user)")
    late = f"timestamptz '{(DAY + dt.timedelta(seconds=19_900)).isoformat()}'"
    joined = "select count(*) from clicks c join users u on c.user = u.user"
    expected = [(sum(1 for number in range(19_900, ROWS) if number % 10),)]
    for query in (
        f"{joined} where c.ts >= {late}",
        f"{joined} where ts >= {late}",
        f"{joined} and c.ts >= {late}",
        f"select count(*) from users u left join clicks c on c.user = u.user where c.ts >= {late}",
        f"with c as (select user from clicks where ts >= {late}) select count(*) from c join users using (user)",
    ):
        (rows, part) = fetched(cluster, query)
        assert rows == expected, query
        assert part < whole / 5, query


def test_a_topic_that_is_named_twice_is_read_as_far_as_both_uses_need_it(cluster):
    """Between the lowest and the highest bound of all uses."""
    (_, whole) = fetched(cluster, "select count(user), max(ts), max(page) from clicks")
    first, last = (DAY + dt.timedelta(seconds=number) for number in (19_700, 19_899))
    query = (
        "select count(*), max(b.ts) from clicks a join clicks b on a.ts = b.ts + interval 100 seconds "
        f"where a.ts between timestamptz '{first}' and timestamptz '{last}' and b.ts >= timestamptz '{first}'"
    )
    (rows, part) = fetched(cluster, query)
    assert rows == [(100, last - dt.timedelta(seconds=100))]
    assert part < whole / 5


def test_what_is_not_named_is_read_where_it_is_needed(sql):
    """A row by the name of its table, a column by its place, and columns with other names."""
    assert sql("select (u).name from users u where u.user = 7") == [("n7",)]
    assert sql("select to_json(users)->>'$.name' from users where users.user = 7") == [("n7",)]
    assert sql("select #2 from users where user < 1") == [("n0",)]
    assert sql("select b from users x(a, b) where a = 7") == [("n7",)]
    assert sql(
        "select u.* exclude (user) from clicks join users u using (user) where ts = timestamptz '2026-01-01 00:00:07Z'"
    ) == [("n7",)]
    assert sql("with u as (select * from users) select count(*) from u a join u b using (user)") == [(100,)]
    assert sql("with u as not materialized (select * from users) select count(*) from u a join u b using (user)") == [
        (100,)
    ]
    assert sql(
        "with recursive r as (select 0 n union all select user + 1 from r join users on user = n) select max(n) from r"
    ) == [(100,)]


def test_topics_of_bytes(sql):
    """The value as bytes, as text and as JSON with paths; what is neither is null."""
    assert sql('select count(*), count(text), count(json) from "raw-json"') == [(50, 49, 49)]
    assert sql("""select json->>'$.page' as page, sum((json->>'n')::int) from "raw-json" group by 1 order by 1""") == [
        ("/p0", 225), ("/p1", 235), ("/p2", 245), ("/p3", 255), ("/p4", 265), (None, None),
    ]  # fmt: skip
    assert sql("""select "offset", decode(key) from "raw-json" where "offset" >= 48""") == [(48, "k48"), (49, "k49")]
    assert sql('select count(*) from "raw-json" where timestamp > now() - interval 1 hour') == [(50,)]
    assert sql('select count(*) from "raw-json" where timestamp > now() + interval 1 hour') == [(0,)]
    assert sql('select count(*) from "raw-json"', start=10, end=20) == [(10,)]


def test_results(cluster):
    """As Arrow, as a stream of it, as pandas and as HTML."""
    with headrace.sql("select user from users order by 1", bootstrap_servers=cluster.bootstrap_servers) as result:
        assert result.columns == ["user"]
        assert repr(result) == "SqlResult(user)"
        assert result.to_arrow().column("user").to_pylist() == list(range(100))
    with headrace.sql("select user from users", bootstrap_servers=cluster.bootstrap_servers) as result:
        assert result.to_pandas()["user"].sum() == 4_950
    with headrace.sql("select user from users limit 2", bootstrap_servers=cluster.bootstrap_servers) as result:
        assert "<table" in result._repr_html_()


@pytest.mark.parametrize(
    ("query", "error", "message"),
    [
        (
            "select * from nowhere",
            UnknownTopicError,
            r"^the query: there is no topic 'nowhere', or you may not see it\. Check",
        ),
        ("select * from shop.orders", UnknownTopicError, "there is no topic 'shop.orders'"),
        ("select * from query, users", UnknownTopicError, "there is no topic 'query'"),  # A variable of the module.
        ("select pages from clicks", InvalidRequestError, "pages"),
        ("selec 1", InvalidRequestError, "syntax error"),
        ("delete from clicks", InvalidRequestError, "Pass one SELECT statement"),
        ("select 1; select 2", InvalidRequestError, "several statements"),
        ("", InvalidRequestError, "the query is empty"),
    ],
)
def test_wrong_queries(sql, query, error, message):
    """DuckDB's reason is in the error."""
    with pytest.raises(error, match=message):
        sql(query)


def test_a_query_that_needs_more_than_its_memory(cluster):
    """It spills to a directory that is gone afterwards, or is refused; the process continues."""
    query = "select a._offset, b.page from clicks a join clicks b on a.page = b.page order by b.ts, a.ts"
    result = headrace.sql(query, bootstrap_servers=cluster.bootstrap_servers, memory_limit="16MB")
    with result, pytest.raises(InvalidRequestError, match=r"(?i)memory"):
        for _ in result.arrow_batches():
            break
    assert sorted_ok(cluster)


def command(cluster, *arguments, given=None):
    """Run `headrace sql`; return its exit code, its output and its messages."""
    ended = subprocess.run(
        [sys.executable, "-m", "headrace.cli", "sql", *arguments, "--bootstrap-servers", cluster.bootstrap_servers],
        input=given, capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    return ended.returncode, ended.stdout, ended.stderr.decode()


def test_the_command(cluster, tmp_path):
    """Each format, a file, standard input, and errors with their exit codes."""
    query = "select user, name, user < 2 as low, user / 2 as half from users where user < 3 order by 1"
    code, out, _ = command(cluster, query)
    assert (code, out.decode().splitlines()) == (
        0,
        ["user  name  low    half", "   0  n0    true    0.0", "   1  n1    true    0.5", "   2  n2    false   1.0"],
    )
    code, out, _ = command(cluster, "-o", "json", given=query.encode())
    assert [json.loads(line) for line in out.splitlines()][2] == {"user": 2, "name": "n2", "low": False, "half": 1.0}
    code, out, _ = command(cluster, query, "-o", "csv")
    assert out.decode().splitlines()[:2] == ["user,name,low,half", "0,n0,true,0.0"]
    code, out, _ = command(cluster, query, "-o", "arrow")
    assert pa.ipc.open_stream(out).read_all().column("name").to_pylist() == ["n0", "n1", "n2"]
    path = tmp_path / "users.parquet"
    code, out, _ = command(cluster, "select * from users", "-o", "parquet", "-f", str(path))
    assert (code, out, pq.read_table(path).num_rows) == (0, b"", 100)
    code, _, err = command(cluster, "select * from nowhere", "-o", "parquet", "-f", str(tmp_path / "no.parquet"))
    assert code == 4
    assert "there is no topic 'nowhere'" in err
    assert [each.name for each in tmp_path.iterdir()] == ["users.parquet"]
    code, _, err = command(cluster, "select 1", "--follow", "1")
    assert (code, "needs a query of one topic" in err) == (2, True)


def test_the_prompt(cluster):
    """A statement ends with a semicolon, on any line; neither a wrong one nor Ctrl-C ends the prompt."""
    with command_on_terminal("sql", "-o", "csv", "--bootstrap-servers", cluster.bootstrap_servers) as terminal:
        terminal.read_to("headrace> ")
        terminal.type("select count(*) as n\n")
        terminal.read_to("... ")
        terminal.type("from users;\n")
        assert "n\n100\n" in terminal.read_to("headrace> ")
        terminal.type("select * from nowhere;\n")
        assert "there is no topic 'nowhere'" in terminal.read_to("headrace> ")
        terminal.type("select 1\n")
        terminal.read_to("... ")
        terminal.interrupt_to("headrace> ")
        terminal.type("select name from users where user = 7;\n")
        assert "name\nn7\n" in terminal.read_to("headrace> ")
        terminal.type("\x04")


def follow(cluster, topic, seconds):
    """Start a command that selects the numbers of a topic in windows."""
    return subprocess.Popen(
        [
            sys.executable, "-m", "headrace.cli", "sql", f"select n from {topic}", "--follow", seconds, "-o", "json",
            "--bootstrap-servers", cluster.bootstrap_servers,
        ],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def test_windows_follow_each_other(cluster):
    """Each window has the records that came in it: none is missed, none is there twice."""
    client = {"bootstrap_servers": cluster.bootstrap_servers}
    with headrace.Admin(**client) as admin:
        admin.create_topic("ticks", partitions=2, columns="n int64 required")
    process = follow(cluster, "ticks", "0.3")
    found: list[int] = []
    try:
        assert b"every 0.3 s" in process.stderr.readline()
        with headrace.Producer(**client) as producer:
            for number in range(40):
                producer.send("ticks", {"n": number}, partition=number % 2).result()
        while len(found) < 40:
            found.append(json.loads(process.stdout.readline())["n"])
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    assert sorted(found) == list(range(40))


def test_windows_continue_with_the_records_of_a_topic_that_is_created_again(cluster):
    """Its offsets begin again, below the end of the last window; nor does it end the command that the topic is gone."""
    client = {"bootstrap_servers": cluster.bootstrap_servers}
    with headrace.Admin(**client) as admin:
        admin.create_topic("tocks", partitions=1, columns="n int64 required")
        process = follow(cluster, "tocks", "0.1")
        found: list[int] = []
        try:
            assert b"every 0.1 s" in process.stderr.readline()
            with headrace.Producer(**client) as producer:
                producer.send_table("tocks", pa.table({"n": range(20)})).result()
            while len(found) < 20:
                found.append(json.loads(process.stdout.readline())["n"])
            admin.delete_topic("tocks")
            while b"no window: " not in (line := process.stderr.readline()):
                assert line, "the command has ended"
            admin.create_topic("tocks", partitions=1, columns="n int64 required")
            with headrace.Producer(**client) as producer:
                producer.send_table("tocks", pa.table({"n": range(20, 25)})).result()
            while len(found) < 25:
                found.append(json.loads(process.stdout.readline())["n"])
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=30)
    assert found == list(range(25))


def sorted_ok(cluster):
    """Return whether a sort of everything fits into little memory, with the help of the disk."""
    query = "select ts, tags from clicks order by ts desc"
    with headrace.sql(query, bootstrap_servers=cluster.bootstrap_servers, memory_limit="100MB") as result:
        return result.to_arrow().num_rows == ROWS
