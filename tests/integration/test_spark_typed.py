"""Typed topics in Spark: the topic's columns as a batch and as a stream, and some of them."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import headrace
import pyarrow as pa
import pytest
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec

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
