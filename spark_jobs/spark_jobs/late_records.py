"""Search for the late records of a run in the topic, because Spark drops them and reports only a number of rows.

A micro-batch drops records whose window is final by the watermark of the previous micro-batch. Its offsets and that
watermark are in the query's progress, or in the checkpoint if the previous one belongs to an earlier run.
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

from spark_jobs.topic_frame import is_typed, names_of, read_topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MOST_BATCHES = 20
"""Maximum number of examined micro-batches, the last ones with dropped rows."""


@dataclass(frozen=True, slots=True)
class LossyBatch:
    """Micro-batch that dropped rows."""

    sources: tuple[tuple[str, str], ...]
    """Start and end of each source, in the form of the checkpoint."""
    watermark: str
    """Watermark of the previous micro-batch in ISO 8601; records of windows that were final by then are late."""


def watermark_of(checkpoint: Path, batch: int) -> str:
    """Return the watermark of a micro-batch of an earlier run in ISO 8601, or an empty string."""
    written = checkpoint / "offsets" / str(batch)
    if not written.exists():
        return ""
    watermark_ms = json.loads(written.read_text().splitlines()[1])["batchWatermarkMs"]
    return datetime.fromtimestamp(watermark_ms / 1000, UTC).isoformat() if watermark_ms else ""


def late_records(
    spark: SparkSession, servers: str, batches: Sequence[LossyBatch], event_time: str, final_at: str
) -> DataFrame | None:
    """Return the late records with their partitions and offsets, or `None` if there are none.

    Args:
        spark: the session.
        servers: the bootstrap servers.
        batches: micro-batches of the run that dropped rows.
        event_time: SQL expression of a record's event time; empty for the time of the record.
        final_at: SQL expression over `event_time`: when the window of a record becomes final.
    """
    frames = [
        _records(spark, servers, *source, event_time).where(f"{final_at} <= timestamp '{batch.watermark}'")
        for batch in batches[-MOST_BATCHES:]
        for source in batch.sources
        if batch.watermark
    ]
    return (
        reduce(lambda some, more: some.union(more), frames).orderBy("topic", "partition", "offset") if frames else None
    )


def _records(spark: SparkSession, servers: str, start: str, end: str, event_time: str) -> DataFrame:
    """Return the records between two offsets of a stream, which has one topic: their places, times and keys."""
    before, after = json.loads(start), parse_offsets(json.loads(end))
    assert after is not None, "a micro-batch ends where something was found"
    ranges = ranges_between(parse_offsets(before) if before else None, after)
    starts = {part.where.partition: part.start for part in ranges}
    ends = {part.where.partition: part.end for part in ranges}
    topic = ranges[0].where.topic
    frame = read_topic(spark, servers, topic, starts, ends, accept_loss=True, typed=is_typed(servers, topic))
    names = names_of(frame)
    return frame.selectExpr(
        f"'{topic}' AS topic",
        f"{names['partition']} AS partition",
        f"{names['offset']} AS offset",
        f"{event_time or names['timestamp']} AS event_time",
        f"{names['key']} AS key",
    )
