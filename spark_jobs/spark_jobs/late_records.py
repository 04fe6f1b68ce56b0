"""Which records of a run were late. Spark drops them and says only how many rows; here they are found in the topic.

A micro-batch drops what was final by the watermark of the one before it. Its offsets and that watermark are in the
query's progress, and in the checkpoint where the one before belongs to an earlier run.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.spark.stream_offsets import parse_offsets, ranges_between

from spark_jobs.topic_frame import read_topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MOST_BATCHES = 20
"""Micro-batches that are examined: the last ones that dropped something."""


@dataclass(frozen=True, slots=True)
class LossyBatch:
    """A micro-batch that dropped rows."""

    sources: tuple[tuple[str, str], ...]
    """Where each source began and ended, as the checkpoint has it."""
    watermark: str
    """Of the micro-batch before, in ISO 8601: what was final by then was late."""


def watermark_of(checkpoint: Path, batch: int) -> str:
    """Return the watermark of a micro-batch of an earlier run, in ISO 8601; empty: there is none."""
    written = checkpoint / "offsets" / str(batch)
    if not written.exists():
        return ""
    watermark_ms = json.loads(written.read_text().splitlines()[1])["batchWatermarkMs"]
    return datetime.fromtimestamp(watermark_ms / 1000, UTC).isoformat() if watermark_ms else ""


def late_records(
    spark: SparkSession, servers: str, batches: Sequence[LossyBatch], event_time: str, final_at: str
) -> DataFrame | None:
    """Return the records that were late, with their places; None: there are none.

    Args:
        spark: the session.
        servers: the bootstrap servers.
        batches: those of the run that dropped something.
        event_time: SQL, when a record's event was.
        final_at: SQL over `event_time`, when the window is final that a record belongs to.
    """
    frames = [
        _records(spark, servers, *source)
        .selectExpr("topic", "partition", "offset", f"{event_time} AS event_time", "key")
        .where(f"{final_at} <= timestamp '{batch.watermark}'")
        for batch in batches[-MOST_BATCHES:]
        for source in batch.sources
        if batch.watermark
    ]
    return (
        reduce(lambda some, more: some.union(more), frames).orderBy("topic", "partition", "offset") if frames else None
    )


def _records(spark: SparkSession, servers: str, start: str, end: str) -> DataFrame:
    """Read between two offsets of a stream, which has one topic."""
    before, after = json.loads(start), parse_offsets(json.loads(end))
    assert after is not None, "a micro-batch ends where something was found"
    ranges = ranges_between(parse_offsets(before) if before else None, after)
    starts = {part.where.partition: part.start for part in ranges}
    ends = {part.where.partition: part.end for part in ranges}
    return read_topic(spark, servers, ranges[0].where.topic, starts, ends, accept_loss=True)
