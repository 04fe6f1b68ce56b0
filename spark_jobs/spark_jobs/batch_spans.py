"""Spans of what jobs process at once: `process TOPIC` of a load's commit, `process QUERY` of a stream's micro-batch.

They are made if the program has a tracer provider, as by `opentelemetry-instrument python -m spark_jobs.load ...`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from headrace.client.base.open_telemetry import SYSTEM, OpenTelemetry, open_telemetry

if TYPE_CHECKING:
    from opentelemetry.trace import Span


def _start(telemetry: OpenTelemetry, name: str, attributes: Mapping[str, str | int], start_ns: int | None) -> Span:
    attributes = {
        "messaging.system": SYSTEM,
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        **attributes,
    }
    return telemetry.start_span(f"process {name}", telemetry.current(), "CONSUMER", attributes, (), start_ns)


@contextlib.contextmanager
def commit_span(topic: str, records: int) -> Iterator[None]:
    """Record a span of the block, which processes this number of records, and make it the current one."""
    telemetry = open_telemetry()
    if telemetry is None:
        yield
        return
    attributes: dict[str, str | int] = {"messaging.destination.name": topic, "messaging.batch.message_count": records}
    span = _start(telemetry, topic, attributes, None)
    token = telemetry.attach(telemetry.context_of(span))
    error_type = ""
    try:
        yield
    except BaseException as error:
        error_type = type(error).__qualname__
        raise
    finally:
        telemetry.detach(token)
        telemetry.end_span(span, {}, error_type)


def record_micro_batch(query: str, progress: Mapping[str, Any]) -> None:
    """Record the span of a micro-batch that has ended, from the progress that Spark reports."""
    telemetry = open_telemetry()
    if telemetry is None:
        return
    start_ns = round(datetime.fromisoformat(progress["timestamp"]).timestamp() * 1_000) * 1_000_000
    attributes = {
        "messaging.batch.message_count": int(progress["numInputRows"]),
        "spark.streaming.batch_id": int(progress["batchId"]),
    }
    span = _start(telemetry, query, attributes, start_ns)
    end_ns = start_ns + int(progress["durationMs"]["triggerExecution"]) * 1_000_000
    telemetry.end_span(span, {}, end_ns=end_ns)
