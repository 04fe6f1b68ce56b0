"""Topics written from Spark: what arrives, where it goes, and that a second try stores nothing twice."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import headrace
import pytest
from headrace.client.base.errors import ConfigError
from headrace_devcluster.cluster import LocalCluster
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from tests.integration.spark_parts import BASE_MS, Topic, patiently

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def target(spark: Any, spark_cluster: LocalCluster, topic_name: str) -> Topic:
    """An empty topic of three partitions."""
    return Topic(spark_cluster, topic_name, partitions=3)


def save(frame: Any, target: Topic, mode: str = "append", /, **more: str) -> None:
    options = {"headrace.bootstrap.servers": target.servers, "topic": target.name} | more
    given = {name: value for name, value in options.items() if value}
    frame.write.format("headrace").options(**given).mode(mode).save()


def test_every_column_arrives_as_it_is(spark: Any, target: Topic) -> None:
    """Keys, values and headers with their nulls, times to the millisecond, a row's own partition; compressed."""
    schema = "key STRING, value BINARY, headers ARRAY<STRUCT<key: STRING, value: BINARY>>, partition INT, at LONG"
    rows = [
        ("k", b"one", [("trace", b"\x00"), ("trace", b"")], 2, BASE_MS),
        (None, b"", None, 2, BASE_MS + 1),
        ("k", None, [], 2, BASE_MS + 2),
    ]
    frame = spark.createDataFrame(rows, schema).selectExpr(
        "key", "value", "headers", "partition", "timestamp_millis(at) AS timestamp"
    )
    save(frame.coalesce(1), target, **{"headrace.compression.type": "zstd"})
    assert [record[1:] for record in target.records()] == [
        (2, 0, BASE_MS, b"k", b"one", (("trace", b"\x00"), ("trace", b""))),
        (2, 1, BASE_MS + 1, None, b"", ()),
        (2, 2, BASE_MS + 2, b"k", None, ()),
    ]


def test_keys_choose_partitions_as_the_sdks_producers_do(spark: Any, target: Topic) -> None:
    """Rows with one key keep their order; rows without are spread, by task and batch."""
    frame = spark.range(0, 300, 1, 1).selectExpr("CAST(id % 7 AS STRING) AS key", "CAST(id AS STRING) AS value")
    save(frame, target)
    with headrace.Producer(bootstrap_servers=target.servers) as producer:
        expected = {str(n).encode(): producer.send(target.name, b"", str(n).encode()).result(10) for n in range(7)}
    records = [record for record in target.records() if record.value]
    assert all(record.partition == expected[record.key].partition for record in records)
    for key in expected:
        own = [int(record.value) for record in records if record.key == key]
        assert own == sorted(own)
    assert sorted(int(record.value) for record in records) == list(range(300))


def test_a_column_names_the_topic(spark: Any, target: Topic, spark_cluster: LocalCluster) -> None:
    """A row each; a row without one is an error."""
    other = Topic(spark_cluster, f"{target.name}-other", partitions=1)
    names = f"IF(id % 2 = 0, '{target.name}', '{other.name}') AS topic"
    save(spark.range(10).selectExpr(names, "CAST(id AS STRING) AS value"), target, topic="")
    assert sorted(target.values()) == [b"0", b"2", b"4", b"6", b"8"]
    assert sorted(other.values()) == [b"1", b"3", b"5", b"7", b"9"]
    with pytest.raises(Exception, match="a row's topic is null"):
        save(spark.range(1).selectExpr("CAST(null AS STRING) AS topic", "'v' AS value"), target, topic="")
    with pytest.raises(Exception, match=f"a row's partition is 3, and {target.name} has the partitions 0 to 2"):
        save(spark.range(1).selectExpr("3 AS partition", "'v' AS value"), target)


def test_a_micro_batch_that_runs_again_stores_nothing_twice(
    spark: Any, spark_cluster: LocalCluster, target: Topic, tmp_path: Path
) -> None:
    """The checkpoint as a crash leaves it between write and commit; with more in the source meanwhile, rows divided
    among more tasks, and one partition more to write to. Rows behind that division belong to the next micro-batch."""
    source = Topic(spark_cluster, f"{target.name}-source")
    source.write({0: 400, 1: 300})

    def run(tasks: int) -> None:
        rows = source.stream(spark, startingOffsets="earliest", minPartitions=tasks).select("key", "value")
        writer = rows.writeStream.format("headrace").option("headrace.bootstrap.servers", target.servers)
        writer = writer.option("topic", target.name).option("checkpointLocation", str(tmp_path))
        patiently(lambda: writer.trigger(availableNow=True).start().awaitTermination())

    run(2)
    for name in ("0", ".0.crc"):
        (tmp_path / "commits" / name).unlink()
    source.write({0: 50})
    with target.admin() as admin:
        admin.create_partitions(target.name, 4)
    run(5)
    assert sorted(target.values()) == sorted(row[2] for row in source.rows())


def windowed(spark: Any, source: Topic, target: Topic, checkpoint: Path, mode: str) -> Any:
    """Counts by second and key, as they are sent to a topic."""
    from pyspark.sql import functions

    stream = source.stream(spark, startingOffsets="earliest", maxOffsetsPerTrigger=2_000)
    counts = stream.withWatermark("timestamp", "1 second").groupBy(
        functions.window("timestamp", "1 second"), functions.substring("value", -1, 1).alias("key")
    )
    rows = counts.count().selectExpr("key", "concat(date_format(window.start, 'HH:mm:ss'), ' ', count) AS value")
    writer = rows.writeStream.format("headrace").option("headrace.bootstrap.servers", target.servers)
    return (
        writer.option("topic", target.name)
        .option("checkpointLocation", str(checkpoint))
        .outputMode(mode)
        .trigger(availableNow=True)
    )


def test_windows_of_a_stopped_query_are_stored_once(
    spark: Any, spark_cluster: LocalCluster, target: Topic, tmp_path: Path
) -> None:
    """An aggregation whose micro-batch was written and not committed: its rows leave the state in another order."""
    source = Topic(spark_cluster, f"{target.name}-source")
    source.write({0: 9_000, 1: 9_000}, batch=1_000)
    run = windowed(spark, source, target, tmp_path, "append")
    patiently(lambda: run.start().awaitTermination())
    first = Counter((record.key, record.value) for record in target.records())
    assert (len(first), max(first.values())) == (70, 1), "ten keys in each of the windows that are closed"
    assert sum(int(value.split()[1]) for _, value in first) == 14_000
    last = max(int(path.name) for path in (tmp_path / "commits").glob("[0-9]*"))
    for batch_id in range(last, last - 3, -1):
        for name in (f"{batch_id}", f".{batch_id}.crc"):
            (tmp_path / "commits" / name).unlink()
    patiently(lambda: run.start().awaitTermination())
    assert Counter((record.key, record.value) for record in target.records()) == first


def test_output_mode_update_is_refused_before_anything_is_stored(
    spark: Any, spark_cluster: LocalCluster, target: Topic, tmp_path: Path
) -> None:
    """Spark has it for no data source in Python; the guide says which mode to use."""
    source = Topic(spark_cluster, f"{target.name}-source")
    source.write({0: 10})
    with pytest.raises(Exception, match="does not support Update mode"):
        windowed(spark, source, target, tmp_path, "update").start().awaitTermination()
    assert target.values() == []


def test_a_batch_function_may_write_twice(spark: Any, target: Topic, tmp_path: Path) -> None:
    """Two writes of one micro-batch, by foreachBatch, are two: the second is not taken for the first."""

    def sink(frame: Any, batch_id: int) -> None:
        for _ in range(2):
            save(frame.selectExpr("CAST(value AS STRING) AS value"), target)

    rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load()
    query = rate.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path))
    running = query.trigger(availableNow=True).start()
    running.awaitTermination()
    assert sorted(map(int, target.values())) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]


WRONG: list[tuple[str, dict[str, str], str, str]] = [
    ("'v' AS value", {"topic": "no-such-topic"}, "append", "option topic: there is no topic named 'no-such-topic'"),
    ("'v' AS value", {"topic": ""}, "append", "option topic is missing, and there is no column topic"),
    ("'v' AS value, 't' AS topic", {}, "append", "option topic and a column topic are given"),
    ("'v' AS value", {"subscribe": "a"}, "append", "option subscribe is for reading"),
    ("'v' AS value", {}, "overwrite", r"mode\('overwrite'\): a topic is only appended to"),
    ("1 AS value", {}, "append", "schema: column value is int, not binary or string"),
    ("'v' AS valeu", {}, "append", "schema: column 'valeu' cannot be written; did you mean 'value'"),
    ("'k' AS key", {}, "append", "schema: there is no column value"),
    ("'v' AS value", {"headrace.bootstrap.servers": "127.0.0.1:1"}, "append", "option headrace.bootstrap.servers: no "),
]


@pytest.mark.parametrize(("columns", "options", "mode", "says"), WRONG, ids=[says for *_, says in WRONG])
def test_what_is_wrong_is_said_while_spark_plans(
    target: Topic, columns: str, options: dict[str, str], mode: str, says: str
) -> None:
    """In one sentence that names the option; by the call that Spark makes before a job starts."""
    told = {"subscribe": "", "topic": target.name, **options}
    fields = [each.split(" AS ") for each in columns.split(", ")]
    types = {name: StringType() if text.startswith("'") else IntegerType() for text, name in fields}
    schema = StructType([StructField(name, each) for name, each in types.items()])
    with pytest.raises(ConfigError, match=says):
        target.source(**told).writer(schema, mode == "overwrite")


@pytest.mark.parametrize(
    ("mode", "says"),
    [
        ("append", "schema: column value is bigint, not binary or string"),
        ("errorifexists", 'cannot be written in the "ErrorIfExists" mode'),
    ],
)
def test_what_is_wrong_ends_the_job_before_it_starts(spark: Any, target: Topic, mode: str, says: str) -> None:
    """Nothing is written."""
    with pytest.raises(Exception, match=says):
        save(spark.range(1).selectExpr("id AS value"), target, mode)
    assert target.values() == []
