"""Tables and Spark: a table as of an offset, a time and the present, while compaction runs; and files put into one."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import headrace
import pytest
from headrace.wire.table_keys import split_key
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from spark_jobs.command import JobError
from spark_jobs.table_load import TableLoad, load_table

from spark_jobs import table_load as job
from tests.integration.replicated import until

pytestmark = pytest.mark.timeout(900)
SETTINGS = {"compaction_interval_ms": 100, "producer_retry_window_ms": 0}
CONFIG = {"cleanup_policy": "compact", "table": "yes", "segment_bytes": 1 << 16, "max_batch_bytes": 1 << 14}


@pytest.fixture(scope="module")
def cluster() -> Any:
    """One broker, which compacts all the time."""
    with LocalCluster(LocalClusterSpec(brokers=1, coordinators=1, broker_settings=SETTINGS)) as running:
        yield running


@pytest.fixture
def create(cluster: LocalCluster, request: Any) -> Any:
    """Create a table of a name of its own with two partitions."""

    def make(**config: Any) -> headrace.Table:
        name = request.node.name
        with headrace.Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            admin.create_topic(name, partitions=2, replication_factor=1, config=CONFIG | config)
        return headrace.Table(name, bootstrap_servers=cluster.bootstrap_servers)

    return make


def frame(spark: Any, cluster: LocalCluster, name: str, **options: Any) -> Any:
    reader = spark.read.format("headrace").option("headrace.bootstrap.servers", cluster.bootstrap_servers)
    reader = reader.option("subscribe", name).option("newestPerKey", "true")
    for option, value in options.items():
        reader = reader.option(option, value)
    return reader.load()


def rows_of(found: Any) -> dict[str, dict[str, str]]:
    """Return the rows of a frame as a table has them."""
    rows: dict[str, dict[str, str]] = {}
    for record in found.collect():
        row, column = split_key(bytes(record.key))
        rows.setdefault(row.decode(), {})[column.decode()] = bytes(record.value).decode()
    return rows


def write_some(table: headrace.Table, draw: random.Random, rows: dict[str, dict[str, str]]) -> None:
    """Put, change and delete rows, in the table and in a dict."""
    given = []
    for _ in range(300):
        key = f"u{draw.randrange(80)}"
        columns = {f"c{draw.randrange(4)}": "x" * draw.randrange(200) for _ in range(draw.randrange(1, 3))}
        rows[key] = rows.get(key, {}) | columns
        given.append((key, columns))
    table.put_many(given)
    for key in draw.sample(sorted(rows), 10):
        table.delete(key)
        del rows[key]


def ends_of(cluster: LocalCluster, name: str) -> str:
    with headrace.Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        return json.dumps({name: {str(where.partition): at.offset for where, at in admin.list_offsets(name).items()}})


def later_ms(table: headrace.Table) -> int:
    """Return a time after all writes to a table, in ms since 1970."""
    written = [column.timestamp_ms for row in table.scan() for column in row.columns.values()]
    until(lambda: time.time_ns() // 1_000_000 > max(written), "a later time")
    return time.time_ns() // 1_000_000


def test_a_table_as_of_offsets_and_times(spark: Any, cluster: LocalCluster, create: Any) -> None:
    """Each moment of a table that may not be compacted for an hour, with what is not in it yet or not any more."""
    draw, rows = random.Random(1), {}
    with create(min_compaction_lag_ms=3_600_000) as table:
        name = table._name
        moments = []
        for _ in range(4):
            write_some(table, draw, rows)
            until(
                lambda: (
                    time.time_ns() // 1_000_000 > max(row.columns[n].timestamp_ms for row in table.scan() for n in row)
                ),
                "a later time",
            )
            moments.append(
                (ends_of(cluster, name), time.time_ns() // 1_000_000, {key: dict(row) for key, row in rows.items()})
            )
            at_ms = later_ms(table)
            moments.append((ends_of(cluster, name), at_ms, {key: dict(row) for key, row in rows.items()}))
            until(lambda at_ms=at_ms: later_ms(table) > at_ms, "a later time")
        for offsets, time_ms, expected in moments:
            assert rows_of(frame(spark, cluster, name, endingOffsets=offsets)) == expected
            assert rows_of(frame(spark, cluster, name, endingTimestamp=time_ms)) == expected
        assert rows_of(frame(spark, cluster, name)) == rows
        only = frame(spark, cluster, name).select("offset").collect()
        assert len(only) == sum(map(len, rows.values()))


def test_what_compaction_has_removed_is_refused(spark: Any, cluster: LocalCluster, create: Any) -> None:
    """The present is exact, and so is a moment after a compaction; one before it is refused, as each record that is
    gone may have a newer one since.
    """
    draw, rows = random.Random(2), {}
    with create(min_dirty_percent=1) as table:
        name = table._name
        moments = []
        for _ in range(3):
            write_some(table, draw, rows)
            moments.append((ends_of(cluster, name), {key: dict(row) for key, row in rows.items()}))
        first = json.loads(moments[0][0])[name]
        with headrace.Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            while any(log.compacted_offset <= first[str(log.partition)] for log in admin.describe_logs(name)):
                write_some(table, draw, rows)
        assert rows_of(frame(spark, cluster, name)) == rows == {row.key.decode(): dict(row) for row in table.scan()}
        after = ends_of(cluster, name)
        table.put("u0", {"c0": "later"})
        table.put("u1", {"c0": "later"})
        assert rows_of(frame(spark, cluster, name, endingOffsets=after)) == rows
        for offsets, expected in moments[1:]:
            try:
                found = rows_of(frame(spark, cluster, name, endingOffsets=offsets))
            except (PySparkException, Py4JJavaError):
                continue  # Refused: a compaction has come beyond it.
            assert found == expected
        before = moments[0][0]
        with pytest.raises(Exception, match="set min_compaction_lag_ms to how far back you read"):
            frame(spark, cluster, name, endingOffsets=before).collect()
        left = rows_of(frame(spark, cluster, name, endingOffsets=before, failOnDataLoss="false"))
        assert left.keys() <= {f"u{number}" for number in range(80)}


def test_files_are_put_into_a_table(spark: Any, cluster: LocalCluster, create: Any, tmp_path: Path) -> None:
    """Of each key the newest row, however often the job is run; numbers and nulls, too."""
    path = str(tmp_path / "rows")
    spark.range(6_000).selectExpr(
        "concat('u', id % 2000) AS id",
        "id AS at",
        "if(id % 3 = 0, NULL, concat('name ', id)) AS name",
        "id / 2 AS half",
        "CAST(concat('b', id) AS BINARY) AS raw",
    ).repartition(5).write.parquet(path)
    with create() as table:
        wanted = TableLoad(table._name, cluster.bootstrap_servers, "id", "at")
        for _ in range(2):
            summary = load_table(job.read_files(spark, path, "parquet"), wanted)
            assert summary.rows == 2_000
            assert summary.columns == 4 * 2_000 - sum(number % 3 == 0 for number in range(4_000, 6_000))
        found = {row.key.decode(): dict(row) for row in table.scan()}
        assert len(found) == 2_000
        for number in range(4_000, 6_000):
            expected = {"at": str(number), "half": str(number / 2), "raw": f"b{number}"}
            if number % 3:
                expected["name"] = f"name {number}"
            assert found[f"u{number % 2000}"] == expected
        with pytest.raises(JobError, match="has several rows"):
            load_table(job.read_files(spark, path, "parquet"), TableLoad(table._name, cluster.bootstrap_servers, "id"))
        with pytest.raises(JobError, match="no column no"):
            load_table(spark.range(3), TableLoad(table._name, cluster.bootstrap_servers, "no"))


@pytest.mark.parametrize(
    ("older", "newer"), [("9", "10"), ("-10", "-9.5"), ("2025-11-09", "2025-11-10"), ("10", "9a"), ("", "0")]
)
def test_the_newest_row_of_text_files(spark: Any, tmp_path: Path, older: str, newer: str) -> None:
    """Numbers are compared as numbers, and stay as they are written."""
    (tmp_path / "users.csv").write_text(f"id,name,version\nu1,new,{newer}\nu1,old,{older}\n")
    frame = job.read_files(spark, str(tmp_path), "csv")
    (row,) = job.newest_rows(frame, TableLoad("users", "", "id", "version")).collect()
    assert row.asDict() == {"key": "u1", "name": "new", "version": newer}
