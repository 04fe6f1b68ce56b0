"""Typed topics in Spark: the topic's columns as a batch and as a stream, and some of them."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import headrace
import pyarrow as pa
import pytest
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec

from tests.integration.spark_parts import change_columns, patiently

pytestmark = pytest.mark.timeout(600)
ROWS = 30_000
DAY = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
COLUMNS = (
    "page string required, user int32, ts timestamp[ms, UTC], price decimal(10, 2), tags list<string>, "
    "place struct<lat: double, lon: double>"
)


@pytest.fixture(scope="module")
def cluster() -> Any:
    """One broker with a typed topic of two partitions, whose columns have changed."""
    settings = {"metrics_listen": "127.0.0.1:0"}
    with LocalCluster(LocalClusterSpec(brokers=1, coordinators=1, broker_settings=settings)) as running:
        client = {"bootstrap_servers": running.bootstrap_servers}
        numbers = range(ROWS)
        table = pa.table(
            {
                "page": [f"/p{number % 7}" for number in numbers],
                "user": pa.array([number % 100 if number % 3 else None for number in numbers], pa.int32()),
                "ts": [DAY + dt.timedelta(seconds=number) for number in numbers],
                "price": pa.array([Decimal(number % 500) for number in numbers], pa.decimal128(10, 2)),
                "tags": [["a", str(number)] for number in numbers],
                "place": [{"lat": number / 2, "lon": 0.5} for number in numbers],
            }
        )
        with headrace.Admin(bootstrap_servers=running.bootstrap_servers) as admin:
            admin.create_topic("visits", partitions=2, columns=COLUMNS)
            admin.create_topic("plain", partitions=1)
            admin.create_topic("odd", partitions=1, columns="a uint64, b int64")
            with headrace.Producer(bootstrap_servers=running.bootstrap_servers, batch_bytes=64 * 1024) as producer:
                for partition in (0, 1):
                    producer.send_table("visits", table.slice(partition * ROWS // 2, ROWS // 2), partition=partition)
            admin.alter_config(
                "visits", {"columns": COLUMNS.replace("int32", "int64") + ', country string default "DE"'}
            )
        running.client = client
        yield running


def reader(spark: Any, cluster: LocalCluster, topic: str = "visits", *, stream: bool = False) -> Any:
    made = (spark.readStream if stream else spark.read).format("headrace")
    made = made.option("headrace.bootstrap.servers", cluster.bootstrap_servers)
    return made.option("subscribe", topic).option("typed", "true")


def test_a_typed_topic_is_a_frame(spark: Any, cluster: LocalCluster) -> None:
    """Types, values, nulls, defaults of later columns, and what headrace knows of each row."""
    frame = reader(spark, cluster).load()
    assert frame.schema.simpleString() == (
        "struct<page:string,user:bigint,ts:timestamp,price:decimal(10,2),tags:array<string>,"
        "place:struct<lat:double,lon:double>,country:string,_partition:int,_offset:bigint,_timestamp:timestamp,"
        "_key:binary>"
    )
    [row] = frame.where("_partition = 1 and _offset = 7").collect()
    number = ROWS // 2 + 7
    assert (row.page, row.user, row.tags, row.country) == (f"/p{number % 7}", number % 100, ["a", str(number)], "DE")
    assert (float(row.price), row.place.lat, row._key) == (number % 500, number / 2, None)
    assert row.ts.timestamp() == (DAY + dt.timedelta(seconds=number)).timestamp()
    assert frame.where("user is null").count() == ROWS // 3
    assert {(each.page, each["count"]) for each in frame.groupBy("page").count().collect()} == {
        (f"/p{page}", len(range(page, ROWS, 7))) for page in range(7)
    }


def test_some_columns_are_some_bytes(spark: Any, cluster: LocalCluster) -> None:
    """With a schema of two columns brokers send these two."""

    def bytes_of(frame: Any) -> float:
        before = cluster.brokers[0].metrics()["headrace_broker_fetched_bytes_total"]
        assert frame.count() == ROWS
        return cluster.brokers[0].metrics()["headrace_broker_fetched_bytes_total"] - before

    some = reader(spark, cluster).schema("user bigint, page string").load()
    assert some.agg({"user": "max"}).collect()[0][0] == 99
    assert bytes_of(some.where("user is null or page is not null")) < 0.4 * bytes_of(
        reader(spark, cluster).load().where("user is null or page is not null")
    )


def test_a_stream(spark: Any, cluster: LocalCluster, tmp_path: Any) -> None:
    """A stream has the same rows, each once."""
    frame = reader(spark, cluster, stream=True).option("startingOffsets", "earliest").load()
    query = (
        frame.select("page", "user", "_partition", "_offset").writeStream.format("parquet")
        .option("path", str(tmp_path / "rows")).option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination()
    found = spark.read.parquet(str(tmp_path / "rows"))
    assert (found.count(), found.dropDuplicates(["_partition", "_offset"]).count()) == (ROWS, ROWS)


@pytest.mark.parametrize(
    ("topic", "options", "schema", "message"),
    [
        ("plain", {}, None, "plain is not a typed topic"),
        ("odd", {}, None, "column a is uint64, which Spark has not"),
        ("visits,odd", {}, None, "subscribe has 2 topics"),
        ("visits", {"newestPerKey": "true"}, None, "typed and newestPerKey exclude each other"),
        ("visits", {}, "pages string", "there is no column 'pages'"),
        ("visits", {}, "page timestamp", "column page is string, not timestamp"),
    ],
)
def test_what_cannot_be_read(
    spark: Any, cluster: LocalCluster, topic: str, options: dict[str, str], schema: str | None, message: str
) -> None:
    """The error names the option or the column."""
    made = reader(spark, cluster, topic)
    for name, value in options.items():
        made = made.option(name, value)
    with pytest.raises(Exception, match=message):
        (made if schema is None else made.schema(schema)).load().collect()


def test_a_schema_avoids_a_type_that_spark_has_not(spark: Any, cluster: LocalCluster) -> None:
    """A topic with such a column is read without it."""
    assert reader(spark, cluster, "odd").schema("b bigint").load().count() == 0


def test_nulls_of_a_column_that_was_required(spark: Any, cluster: LocalCluster, topic_name: str) -> None:
    """A frame from before the column became nullable has them: Spark drops `is null` where it believes in none."""
    topic = new_topic(cluster, topic_name, "user int64 required, n int64", partitions=1)
    frame = reader(spark, cluster, topic).load()
    with headrace.Producer(**cluster.client) as producer:
        producer.send(topic, {"user": 1, "n": 0}).result(30)
    change_columns(topic, "user int64, n int64", **cluster.client)
    with headrace.Producer(**cluster.client) as producer:
        producer.send(topic, {"user": None, "n": 1}).result(30)
    assert frame.where("user is null").count() == 1
    assert [tuple(row) for row in frame.selectExpr("count(*)", "count(user)").collect()] == [(2, 1)]
    with pytest.raises(Exception, match="schema: column user is NOT NULL"):
        reader(spark, cluster, topic).schema("user bigint not null").load().collect()


FILTER_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture
def pushing(spark: Any) -> Any:
    spark.conf.set(FILTER_PUSHDOWN, "true")
    yield
    spark.conf.unset(FILTER_PUSHDOWN)


def fetched_bytes(cluster: LocalCluster) -> float:
    return cluster.brokers[0].metrics()["headrace_broker_fetched_bytes_total"]


@pytest.mark.parametrize(
    "condition",
    [
        "ts >= timestamp'2026-01-01 08:00:00Z'",
        "ts > timestamp'2026-01-01 08:00:00.0005Z' and ts <= timestamp'2026-01-01 08:01:00Z'",
        "ts = timestamp'2026-01-01 08:10:00Z' or false",
        "page = '/p3' and user < 50 and _partition = 1 and _offset >= 1000",
        "user in (3, 7, null)",
        "user is null and page >= '/p6'",
        "country = 'DE' and price < 10",
        "ts < timestamp'2020-01-01 00:00:00Z'",
    ],
)
def test_filters_change_no_result(spark: Any, cluster: LocalCluster, pushing: None, condition: str) -> None:
    """A query with pushed filters has the rows that it has without."""
    frames = [reader(spark, cluster).option("pushFilters", flag).load() for flag in ("true", "false")]
    found, expected = (sorted(frame.where(condition).select("_partition", "_offset").collect()) for frame in frames)
    assert found == expected


def test_a_range_of_a_column_skips_batches(spark: Any, cluster: LocalCluster, pushing: None) -> None:
    """Of a column that grows brokers send the batches in the range, and the headers of the others."""

    def bytes_of(flag: str) -> float:
        before = fetched_bytes(cluster)
        frame = reader(spark, cluster).option("pushFilters", flag).load()
        assert frame.where("ts >= timestamp'2026-01-01 08:00:00Z'").agg({"tags": "count"}).collect()[0][0] == 1_200
        return fetched_bytes(cluster) - before

    assert bytes_of("true") < 0.2 * bytes_of("false")


def test_filters_of_other_types_than_the_topics_are_not_pushed(
    spark: Any, cluster: LocalCluster, pushing: None
) -> None:
    """A schema may read a number as text, which has another order."""
    frame = reader(spark, cluster).option("pushFilters", "true").schema("user string").load()
    assert frame.where("user > '5'").count() == sum(str(number % 100) > "5" for number in range(ROWS) if number % 3)


def save(frame: Any, cluster: LocalCluster, topic: str, **options: str) -> None:
    made = frame.write.format("headrace").option("headrace.bootstrap.servers", cluster.bootstrap_servers)
    made.option("topic", topic).option("typed", "true").options(**options).mode("append").save()


def rows_of(cluster: LocalCluster, topic: str, *columns: str) -> Any:
    with headrace.Reader(topic, **cluster.client) as found:
        return found.to_arrow().select(columns) if columns else found.to_arrow()


def new_topic(cluster: LocalCluster, name: str, columns: str, partitions: int = 2) -> str:
    with headrace.Admin(**cluster.client) as admin:
        admin.create_topic(name, partitions=partitions, columns=columns)
    return name


def test_rows_are_written_by_their_columns(spark: Any, cluster: LocalCluster, topic_name: str) -> None:
    """A copy by Spark is the same table, cast to the topic's types; columns that rows lack have their default."""
    columns = COLUMNS.replace("int32", "int64") + ', country string default "AT"'
    topic = new_topic(cluster, topic_name, columns)
    frame = reader(spark, cluster).load().drop("_offset", "country", "_key")
    save(frame, cluster, topic)
    found, expected = rows_of(cluster, topic), rows_of(cluster, "visits")
    assert found.drop(["country"]).sort_by("ts").equals(expected.drop(["country"]).sort_by("ts"))
    assert set(found.column("country").to_pylist()) == {"AT"}
    with headrace.Reader(topic, partitions=[1], **cluster.client) as only:
        assert only.to_arrow().num_rows == ROWS // 2, "the column _partition was followed"


def test_key_columns_choose_partitions(spark: Any, cluster: LocalCluster, topic_name: str) -> None:
    """As rows of a producer do."""
    topic = new_topic(cluster, topic_name, "user int64 key, n int64", partitions=3)
    save(spark.range(300).selectExpr("id % 7 as user", "id as n"), cluster, topic)
    with headrace.Producer(**cluster.client) as producer:
        expected = {n: producer.send(topic, {"user": n, "n": -1}).result(30).partition for n in range(7)}
    table = rows_of(cluster, topic)
    with headrace.Reader(topic, columns=["_partition", "user"], **cluster.client) as found:
        places = found.to_arrow()
    assert table.num_rows == 307
    assert all(expected[user] == place for place, user in zip(*places.to_pydict().values(), strict=True))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("id as n", "the required column page is missing"),
        ("'p' as page, id as pages", "the topic has no column 'pages'"),
        ("'p' as page, array(id) as n", "column n: list<.*> does not fit int64"),
        ("string(null) as page", "column page is required, and null in row 0"),
        ("'p' as page, id as _offset", "the topic has no column '_offset'"),
        ("'p' as page, id as _partition", "column _partition is bigint, not int"),
    ],
)
def test_rows_that_do_not_fit(spark: Any, cluster: LocalCluster, topic_name: str, columns: str, message: str) -> None:
    """The error names the column, before the job starts where types tell."""
    topic = new_topic(cluster, topic_name, "page string required, n int64")
    with pytest.raises(Exception, match=message):
        save(spark.range(1).selectExpr(*columns.split(", ")), cluster, topic)


def test_a_topic_of_bytes_takes_no_columns(spark: Any, cluster: LocalCluster) -> None:
    """Nor does a write without a topic."""
    with pytest.raises(Exception, match="option typed: plain is not a typed topic"):
        save(spark.range(1), cluster, "plain")
    with pytest.raises(Exception, match="option typed needs the option topic"):
        save(spark.range(1), cluster, "")


def test_a_stream_of_rows_is_stored_once(spark: Any, cluster: LocalCluster, topic_name: str, tmp_path: Path) -> None:
    """After a crash between write and commit of a micro-batch, with other divisions of the rows into tasks."""
    topic = new_topic(cluster, topic_name, COLUMNS + ", copied string")

    def run(tasks: int) -> None:
        rows = reader(spark, cluster, stream=True).option("startingOffsets", "earliest")
        frame = rows.option("minPartitions", tasks).load().drop("_partition", "_offset", "_key", "country")
        writer = frame.writeStream.format("headrace").option("headrace.bootstrap.servers", cluster.bootstrap_servers)
        writer = writer.option("topic", topic).option("typed", "true").option("checkpointLocation", str(tmp_path))
        patiently(lambda: writer.trigger(availableNow=True).start().awaitTermination())

    run(2)
    once = rows_of(cluster, topic, "ts", "page")
    assert once.num_rows == ROWS
    for name in ("0", ".0.crc"):
        (tmp_path / "commits" / name).unlink()
    run(5)
    found = Counter(rows_of(cluster, topic, "ts").column("ts").to_pylist())
    assert (len(found), max(found.values())) == (ROWS, 1)
