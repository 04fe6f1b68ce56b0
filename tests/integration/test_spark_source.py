"""Topics read into Spark by batch: what comes, how it is divided, what is not read, what is said of wrong options."""

from __future__ import annotations

import datetime as dt
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import headrace
import pytest
from headrace.client.base.errors import ConfigError
from headrace_devcluster.cluster import LocalCluster

from tests.integration.replicated import until
from tests.integration.spark_parts import BASE_MS, PATIENCE_SECONDS, Topic, rows_of, tasks_of

pytestmark = pytest.mark.timeout(600)
GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "spark.md"


@pytest.fixture
def topic(spark_cluster: LocalCluster, topic_name: str) -> Topic:
    """Two partitions with 120 and 80 records."""
    topic = Topic(spark_cluster, topic_name)
    topic.write({0: 120, 1: 80})
    return topic


def test_every_column_comes_as_it_was_sent(spark: Any, spark_cluster: LocalCluster, topic_name: str) -> None:
    """Keys and values with their nulls, headers in order, times to the millisecond, by every codec."""
    topic = Topic(spark_cluster, topic_name, partitions=1)
    sent = []
    for number, codec in enumerate(("none", "gzip", "lz4", "zstd")):
        with headrace.Producer(bootstrap_servers=topic.servers, compression_type=codec) as producer:
            headers = [("trace", bytes([number])), ("trace", b"again")] if number % 2 else None
            for key, value in ((b"k", b"v" * number), (None, None), (b"", b"\xff\x00")):
                producer.send(topic_name, value, key, headers=headers, timestamp_ms=BASE_MS + number)
                sent.append((key, value, [tuple(pair) for pair in headers or []], BASE_MS + number))
    rows = topic.read(spark, includeHeaders="true").orderBy("offset").collect()
    assert rows[0].__fields__ == ["key", "value", "topic", "partition", "offset", "timestamp", "headers"]
    utc = [row.timestamp.astimezone(dt.UTC).timestamp() * 1000 for row in rows]
    read = [
        (row.key, row.value, [(pair.key, bytes(pair.value)) for pair in row.headers], round(at))
        for row, at in zip(rows, utc, strict=True)
    ]
    assert [(key, value, headers, at) for key, value, headers, at in read] == sent
    assert [(row.topic, row.partition, row.offset) for row in rows] == [(topic_name, 0, n) for n in range(12)]
    assert "headers" not in topic.read(spark).columns


def test_all_is_read_however_it_is_divided(spark: Any, topic: Topic) -> None:
    """A task a partition, more of them, small ones; a schema of the user's own in an order of its own."""
    assert rows_of(topic.read(spark)) == topic.rows()
    assert tasks_of(topic.read(spark)) == 2
    five = topic.read(spark, minPartitions=5)
    assert (tasks_of(five), rows_of(five)) == (5, topic.rows())
    small = topic.read(spark, maxRecordsPerPartition=30)
    assert (tasks_of(small), rows_of(small)) == (4 + 3, topic.rows())
    own = topic.read(spark, "value BINARY, offset LONG, partition INT")
    assert own.columns == ["value", "offset", "partition"]
    assert rows_of(own) == topic.rows()


def test_parts_are_read_by_offsets_and_times(spark: Any, topic: Topic) -> None:
    """As the options say, a partition or all; a time behind the last record is the end."""
    name = topic.name
    some = topic.read(
        spark, startingOffsets=f'{{"{name}": {{"0": 10, "1": -2}}}}', endingOffsets=f'{{"{name}": {{"0": -1, "1": 5}}}}'
    )
    assert rows_of(some) == [row for row in topic.rows() if (row[0], row[1]) >= (1, 0) or row[1] >= 10][: 110 + 5]
    since = topic.read(spark, startingTimestamp=BASE_MS + 100, endingTimestamp=BASE_MS + 110)
    assert rows_of(since) == [row for row in topic.rows() if 100 <= row[1] < 110]
    by_partition = topic.read(
        spark, startingOffsetsByTimestamp=f'{{"{name}": {{"0": {BASE_MS + 115}, "1": {BASE_MS + 900}}}}}'
    )
    assert rows_of(by_partition) == [row for row in topic.rows() if row[0] == 0 and row[1] >= 115]
    assigned = spark.read.format("headrace").options(
        **{"headrace.bootstrap.servers": topic.servers, "assign": f'{{"{name}": [1]}}'}
    )
    assert rows_of(assigned.load()) == [row for row in topic.rows() if row[0] == 1]


def test_topics_are_read_by_a_pattern(spark: Any, spark_cluster: LocalCluster, topic_name: str) -> None:
    """A regular expression that whole names match; one that matches nothing reads nothing."""
    topics = [Topic(spark_cluster, f"{topic_name}-{kind}", partitions=1) for kind in ("a", "b", "ab")]
    for topic in topics:
        topic.write({0: 3})
    reader = spark.read.format("headrace").option("headrace.bootstrap.servers", topics[0].servers)
    frame = reader.option("subscribePattern", f"{re.escape(topic_name)}-[ab]").load()
    assert sorted(row.topic for row in frame.collect()) == [topics[0].name] * 3 + [topics[1].name] * 3
    assert reader.option("subscribePattern", "no-such-topic-.*").load().count() == 0


CONDITIONS = [
    ("partition = 1", 1),
    ("partition in (0, 7) and offset >= 100", 1),
    ("offset > 30 and offset <= 40", 2),
    ("offset = 33", 2),
    ("offset in (3, 70, 119)", 2),
    ("partition < 1 and offset is not null", 1),
    ("topic = 'another'", 1),
    ("partition >= 2", 1),
    ("timestamp >= '2023-11-14 22:13:20.075'", 2),
    ("timestamp > '2023-11-14 22:13:20.119'", 1),
    ("timestamp < '2023-11-14 22:13:20.005'", 2),
    ("value = X'302F37' or offset = 9", 2),
]


@pytest.mark.parametrize(("condition", "tasks"), CONDITIONS, ids=[condition for condition, _ in CONDITIONS])
def test_conditions_are_pushed_down_and_change_no_answer(
    spark: Any, spark_cluster: LocalCluster, spark_settings: Any, condition: str, tasks: int
) -> None:
    """What is left of a topic is the same with and without, and partitions that cannot match have no task."""
    topic = shared_topic(spark_cluster)
    expected = rows_of(topic.read(spark).where(condition))
    with spark_settings({"spark.sql.python.filterPushdown.enabled": "true"}):
        frame = topic.read(spark, pushFilters="true").where(condition)
        assert (rows_of(frame), tasks_of(frame)) == (expected, tasks)


def test_conditions_are_pushed_down_only_where_the_option_is_set(
    spark: Any, spark_cluster: LocalCluster, spark_settings: Any
) -> None:
    """Spark reads a frame's first query's plan in the second one, too: so without the option nothing follows from
    conditions, and with it Spark says where its own setting is missing."""
    topic = shared_topic(spark_cluster)
    with spark_settings({"spark.sql.python.filterPushdown.enabled": "true"}):
        frame = topic.read(spark)
        counts = [frame.where("partition = 0").count(), frame.count(), frame.where("partition = 1").count()]
        assert counts == [120, 200, 80]
        assert frame.where("partition = 0").union(frame.where("partition = 1")).count() == 200
    with spark_settings({"spark.sql.python.filterPushdown.enabled": "false"}):
        with pytest.raises(Exception, match=r"spark\.sql\.python\.filterPushdown\.enabled"):
            topic.read(spark, pushFilters="true").where("partition = 0").count()


_shared: dict[str, Topic] = {}


def shared_topic(cluster: LocalCluster) -> Topic:
    """One topic for all conditions, made once a cluster."""
    if cluster.bootstrap_servers not in _shared:
        topic = _shared[cluster.bootstrap_servers] = Topic(cluster, "spark-conditions")
        topic.write({0: 120, 1: 80})
    return _shared[cluster.bootstrap_servers]


def test_lost_records_end_the_query_or_are_skipped(spark: Any, topic: Topic) -> None:
    """Judged by where the log starts; the error names partition, wanted and earliest offset, and how many are gone."""
    topic.write({0: 10})
    topic.delete_before({0: 25})
    start = f'{{"{topic.name}": {{"0": 5, "1": 0}}}}'
    lost = f"{topic.name}-0: offset 5 was requested and the log starts at 25, 20 records were removed"
    with pytest.raises(Exception, match=lost):
        topic.read(spark, startingOffsets=start).count()
    left = rows_of(topic.read(spark, startingOffsets=start, failOnDataLoss="false"))
    assert left == [row for row in topic.rows() if row[0] == 1 or row[1] >= 25]
    assert rows_of(topic.read(spark)) == left


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"assign": '{"a": [0]}'}, "options subscribe and assign are given"),
    ({"subscribe": "no-such-topic"}, "option subscribe: there is no topic named 'no-such-topic'"),
    ({"startingOffsets": "{"}, "startingOffsets='{' is not JSON"),
    ({"startingOffsets": '{"TOPIC": {"0": 9, "1": 0}}', "endingOffsets": '{"TOPIC": {"0": 8, "1": 0}}'},
     "startingOffsets: 9 for TOPIC-0 is after endingOffsets, 8"),
    ({"startingOffsets": '{"TOPIC": {"0": 0}}'}, "startingOffsets does not name partition TOPIC-1"),
    ({"endingOffsets": '{"TOPIC": {"0": 999, "1": 0}}'}, "endingOffsets: 999 for TOPIC-0 is past its end, 120"),
    ({"headrace.bootstrap.servers": "127.0.0.1:1"}, "option headrace.bootstrap.servers: no broker .*answered"),
    ({"subscribe": "", "assign": '{"TOPIC": [5]}'}, "option assign: there is no TOPIC-5; TOPIC has 2 partitions"),
]  # fmt: skip


@pytest.mark.parametrize(("wrong", "says"), WRONG, ids=[says for _, says in WRONG])
def test_what_is_wrong_is_said_while_spark_plans(spark_cluster: LocalCluster, wrong: dict[str, Any], says: str) -> None:
    """In one sentence that names the option; by the calls that Spark makes before a job starts."""
    topic = shared_topic(spark_cluster)
    options = {name: value.replace("TOPIC", topic.name) for name, value in wrong.items()}
    with pytest.raises(ConfigError, match=says.replace("TOPIC", topic.name)):
        source = topic.source(**options)
        source.reader(source.schema()).partitions()


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ("", "startingOffsets does not name partition"),
        ("ofset LONG", "there is no column 'ofset'; did you mean 'offset'"),
        ("value STRING", "column value is binary, not string"),
        ("key BINARY NOT NULL", "column key is NOT NULL, and records may have nulls there"),
    ],
)
def test_what_is_wrong_ends_the_query_before_the_job_starts(
    spark: Any, spark_cluster: LocalCluster, schema: str, says: str
) -> None:
    """An option, or a column by its name."""
    topic = shared_topic(spark_cluster)
    wrong = f'{{"{topic.name}": {{"0": 0}}}}'
    with pytest.raises(Exception, match=says) as caught:
        (topic.read(spark, schema) if schema else topic.read(spark, startingOffsets=wrong)).count()
    assert type(caught.value).__name__ == "AnalysisException"


def hold_until(directory: str) -> Any:
    """A step for mapInArrow that signals its begin and then waits for a signal to continue."""

    def step(batches: Any) -> Any:
        import time
        from pathlib import Path

        for number, batch in enumerate(batches):
            if number == 0:
                (Path(directory) / f"begun-{os.getpid()}").touch()
                deadline = time.monotonic() + 200
                while not (Path(directory) / "go").exists() and time.monotonic() < deadline:
                    time.sleep(0.01)
            yield batch

    return step


def test_a_broker_killed_while_spark_reads(spark: Any, own_cluster: Any, tmp_path: Path) -> None:
    """Executors continue with the next leader: every record comes once."""
    cluster = own_cluster(brokers=3, coordinators=1, broker_settings={"lease_ttl_ms": 2_000})
    topic = Topic(cluster, "killed", partitions=2, replication_factor=3, config={"min_insync_replicas": 2})
    value = b"x" * 10_000
    with headrace.Producer(bootstrap_servers=topic.servers) as producer:
        for number in range(4_000):
            producer.send("killed", value, partition=number % 2)
    # So little is fetched ahead that most is still to be fetched when the first batch is held.
    frame = topic.read(spark, **{"headrace.prefetch.bytes": 100_000, "headrace.fetch.max.bytes": 100_000})
    held = frame.select("partition", "offset").mapInArrow(hold_until(str(tmp_path)), "partition INT, offset LONG")
    rows: list[Any] = []
    reading = threading.Thread(target=lambda: rows.extend(held.collect()))
    reading.start()
    try:
        until(lambda: len(list(tmp_path.glob("begun-*"))) == 2, "both tasks have begun", 200)
        with topic.admin() as admin:
            leader = admin.describe_topic("killed").partitions[0].leader_id
        cluster.broker(leader).kill()
    finally:
        (tmp_path / "go").touch()
        reading.join(PATIENCE_SECONDS)
    assert not reading.is_alive()
    assert sorted((row.partition, row.offset) for row in rows) == [(p, n) for p in (0, 1) for n in range(2_000)]


def test_records_that_retention_removes_meanwhile_are_reported(spark: Any, spark_cluster: LocalCluster, topic_name: str,
                                                       tmp_path: Path) -> None:  # fmt: skip
    """Between planning and reading: the task finds the log's start behind its range."""
    topic = Topic(spark_cluster, topic_name, partitions=1)
    topic.write({0: 100})
    frame = topic.read(spark)
    planned = frame.rdd  # Its ranges are fixed here.
    assert planned.getNumPartitions() == 1
    topic.delete_before({0: 40})
    with pytest.raises(Exception, match=f"{topic_name}-0: offset 0 was requested and the log starts at 40, 40 records"):
        planned.count()


def test_the_source_is_found_and_costs_others_nothing(spark_session: Any) -> None:
    """Spark looks through every module named pyspark_*, in processes of its own: this one imports pyspark alone."""
    code = (
        "import sys, pyspark.sql.datasource, pyspark.sql.types; before = set(sys.modules); import pyspark_headrace; "
        "print(pyspark_headrace.DefaultSource.name(), sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = "['headrace', 'headrace.spark', 'headrace.spark.source', 'pyspark_headrace']"
    assert done.stdout.strip() == f"headrace {modules}"


@pytest.mark.slow
def test_the_guides_session_finds_the_source_where_no_environment_is_activated(topic: Topic) -> None:
    """The guide's first two blocks, run by the path of their Python; `python3` of `PATH` has no headrace."""
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text("utf-8"), re.DOTALL)
    code = "".join(blocks[:2]).replace("localhost:7170", topic.servers).replace('"clicks"', f'"{topic.name}"')
    unset = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "PYTHONPATH", "VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    environment |= {"PATH": "/usr/bin:/bin", "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert re.findall(r"\d+", done.stdout) == ["0", "120", "1", "80"]


@pytest.mark.slow
def test_the_guides_examples_work(
    spark: Any, spark_cluster: LocalCluster, topic_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Unchanged, on topics of this test's own."""
    topic = Topic(spark_cluster, topic_name)
    topic.write({0: 120, 1: 80})
    for name in ("copy", "counts"):
        Topic(spark_cluster, f"{topic_name}-{name}")
    visits = Topic(spark_cluster, f"{topic_name}-visits", columns="page string, user int64, ts timestamp[ms, UTC]")
    names: dict[str, Any] = {"spark": spark}
    for code in re.findall(r"```python\n(.*?)```", GUIDE.read_text("utf-8"), re.DOTALL):
        code = code.replace("localhost:7170", topic.servers).replace('"clicks"', f'"{topic_name}"')
        code = re.sub(
            '"(clicks-table|clicks-checkpoint)"', f'"{tmp_path}/\\1"', code
        )  # Java has a directory of its own.
        exec(re.sub('"(copy|counts|visits)"', f'"{topic_name}-\\1"', code), names)
    assert spark.read.parquet(names["table"]).count() == 200
    assert sorted(topic.values(f"{topic_name}-copy")) == sorted(topic.values())
    with headrace.Reader(visits.name, bootstrap_servers=visits.servers) as reader:
        assert reader.to_arrow().num_rows == 1_000
    assert "200" in capsys.readouterr().out.split()
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")
