"""Run by test_spark_cluster.py as the driver of a standalone Spark cluster; prints one line of JSON.

Arguments: master, bootstrap servers, topic, topic to write to. Executors have headrace, pyspark and pyarrow to
import and what those need; anything else is refused by `sitecustomize` on their path.
"""

import json
import os
import sys
from collections.abc import Iterator
from typing import Any

from pyspark import TaskContext
from pyspark.sql import SparkSession

master, servers, topic, target = sys.argv[1:]
spark = (
    SparkSession.builder.master(master)
    .config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.executor.memory", "512m")
    .config("spark.executorEnv.PYTHONPATH", os.environ["EXECUTOR_PATH"])
    .config("spark.scheduler.minRegisteredResourcesRatio", "1.0")
    .config("spark.scheduler.maxRegisteredResourcesWaitingTime", "60s")
    .getOrCreate()
)
rows = spark.read.format("headrace").options(**{"headrace.bootstrap.servers": servers, "subscribe": topic}).load()


def by_executor(batches: Iterator[Any]) -> Iterator[Any]:
    """Count the rows of one task, with the directory that its executor works in."""
    import pyarrow as pa

    count = sum(batch.num_rows for batch in batches)
    yield pa.RecordBatch.from_pydict({"executor": [os.getcwd()], "rows": [count]})


def dies_once(batches: Iterator[Any]) -> Iterator[Any]:
    """Pass rows on; the first try of task 1 ends amid them."""
    task = TaskContext.get()
    assert task is not None
    for number, batch in enumerate(batches):
        if number == 2 and task.partitionId() == 1 and task.attemptNumber() == 0:
            raise RuntimeError("this try ends here")
        yield batch


read = rows.select("value").mapInArrow(by_executor, "executor STRING, rows LONG").collect()
copy = rows.select("value").mapInArrow(dies_once, "value BINARY")
copy.write.format("headrace").options(**{"headrace.bootstrap.servers": servers, "topic": target}).mode("append").save()
executors: dict[str, int] = {}
for row in read:
    executors[row.executor] = executors.get(row.executor, 0) + row.rows
print(json.dumps({"executors": executors}))
spark.stop()
