"""Spark by whatever SDK is on the path: `python upgrade_spark.py SERVERS TOPIC TARGET`.

It copies the values of a topic to another one, and prints what it reads there, and which SDK the driver and a task
have. It runs with the SDK of older releases, too, and so uses what all of them have.
"""

import json
import sys
from collections.abc import Iterator
from typing import Any

import headrace
from headrace.spark.java import use_java
from pyspark.sql import DataFrame, SparkSession


def imported(_batches: Iterator[Any]) -> Iterator[Any]:
    """Return the path of the SDK in a task."""
    import headrace
    import pyarrow as pa

    yield pa.RecordBatch.from_pydict({"path": [headrace.__file__]})


def main(servers: str, source: str, target: str) -> None:
    """Copy and print."""
    use_java()
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()

    def rows(topic: str) -> DataFrame:
        options = {"headrace.bootstrap.servers": servers, "subscribe": topic}
        return spark.read.format("headrace").options(**options).load()

    paths = [headrace.__file__, *(row.path for row in spark.range(1).mapInArrow(imported, "path STRING").collect())]
    options = {"headrace.bootstrap.servers": servers, "topic": target}
    rows(source).select("value").write.format("headrace").options(**options).mode("append").save()
    values = sorted(bytes(row.value).decode() for row in rows(target).select("value").collect())
    print(json.dumps({"paths": paths, "values": values}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
