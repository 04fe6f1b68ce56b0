"""Reads a topic, or a range of its offsets, as a DataFrame."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

import headrace
from headrace.spark.options import SERVERS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def check_topics(bootstrap_servers: str, *topics: str) -> None:
    """Check that the topics exist, before Spark is started.

    Raises:
        UnknownTopicError, NoBrokersAvailableError: If one does not exist, or no server responds.
    """
    with headrace.Admin(bootstrap_servers=bootstrap_servers, client_id="spark-jobs") as admin:
        admin.describe_topics(list(topics))


def read_topic(
    spark: SparkSession,
    bootstrap_servers: str,
    topic: str,
    starts: Mapping[int, int] | None = None,
    ends: Mapping[int, int] | None = None,
    *,
    accept_loss: bool = False,
    typed: bool = False,
) -> DataFrame:
    """Return a topic from `starts` to `ends` (exclusive) in the partitions of `starts`, or all of it.

    With `typed` its columns are the topic's own, and `_partition`, `_offset`, `_timestamp` and `_key`.
    """
    reader = spark.read.format("headrace").option(SERVERS, bootstrap_servers)
    if starts is None:
        reader = reader.option("subscribe", topic)
    else:
        reader = reader.option("assign", json.dumps({topic: sorted(starts)}))
        reader = reader.option("startingOffsets", _offsets(topic, starts))
    if ends is not None:
        reader = reader.option("endingOffsets", _offsets(topic, ends))
    if typed:
        reader = reader.option("typed", "true")
    return reader.option("failOnDataLoss", str(not accept_loss).lower()).load()


def is_typed(bootstrap_servers: str, topic: str) -> bool:
    """Return whether a topic is typed, so that it is read by its columns."""
    with headrace.Admin(bootstrap_servers=bootstrap_servers, client_id="spark-jobs") as admin:
        return bool(admin.describe_topic(topic).columns)


def names_of(frame: DataFrame) -> dict[str, str]:
    """Return the column of a topic's frame that has each of partition, offset, timestamp and key.

    No column of a typed topic's own begins with an underscore.
    """
    prefix = "_" if "_offset" in frame.columns else ""
    return {name: prefix + name for name in ("partition", "offset", "timestamp", "key")}


def _offsets(topic: str, offsets: Mapping[int, int]) -> str:
    return json.dumps({topic: {str(partition): offset for partition, offset in offsets.items()}})
