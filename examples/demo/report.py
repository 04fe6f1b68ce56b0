"""Comparison of produced with consumed records, and its output: a table for people, JSON for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from examples.demo.failover import FailoverReport
from examples.demo.ledger import Ledger


@dataclass(frozen=True, slots=True)
class DemoTopicReport:
    """Figures and findings of one topic."""

    topic: str
    partitions: int
    replicas: int
    """Replicas of each partition."""
    records: int
    value_bytes: int
    seconds: float
    """Time from the first send to the last acknowledgement."""
    records_per_second_in: float
    records_per_second_out: float
    """Rate of the slower reader, until its last record."""
    latency_p50_ms: float
    latency_p99_ms: float
    overhead_bytes_per_record: float
    """Bytes on the leaders' disks beyond values and keys, for one replica."""
    lost: int
    duplicated: int
    problems: tuple[str, ...]
    """Empty if counts, order and checksums agree."""


def compare(
    topic: str,
    sent: Ledger,
    readers: Sequence[Ledger],
    *,
    acknowledged_ns: int,
    end_offsets: Mapping[int, int],
    stored_bytes: int,
    key_bytes: int = 0,
    replica_end_offsets: Mapping[int, Sequence[int]] | None = None,
) -> DemoTopicReport:
    """Check one topic. `end_offsets`: partition -> records that its leader serves to readers; `replica_end_offsets`:
    partition -> records in the log of each replica, including the leader.
    """
    problems = []
    lost = duplicated = 0
    replicas = replica_end_offsets or {number: [end] for number, end in end_offsets.items()}
    for number, wrote in enumerate(sent.topic(topic)):
        in_log = end_offsets[number]
        lost += max(0, wrote.records - in_log)
        duplicated += max(0, in_log - wrote.records)
        if in_log != wrote.records:
            problems.append(f"partition {number}: {wrote.records} sent, {in_log} in the log")
        if wrote.out_of_order:
            problems.append(f"partition {number}: {wrote.out_of_order} acknowledged out of order")
        on_replicas = replicas[number]
        if set(on_replicas) != {in_log}:
            problems.append(f"partition {number}: its replicas have {', '.join(map(str, on_replicas))} records")
    for index, reader in enumerate(readers, 1):
        missing = extra = 0
        for number, (wrote, read) in enumerate(zip(sent.topic(topic), reader.topic(topic), strict=True)):
            missing += max(0, wrote.records - read.records)
            extra += max(0, read.records - wrote.records)
            if read.out_of_order:
                problems.append(f"reader {index}, partition {number}: {read.out_of_order} records out of order")
            if not wrote.same_records(read):
                problems.append(
                    f"reader {index}, partition {number}: {wrote.records} records sent, {read.records} read, "
                    f"checksums {wrote.values_crc:08x} and {read.values_crc:08x}"
                )
        lost, duplicated = max(lost, missing), max(duplicated, extra)
    records = sent.records(topic)
    if records == 0:
        problems.append("nothing was sent")
    seconds = max((acknowledged_ns - sent.started_ns) / 1e9, 1e-9)
    read_seconds = max([(reader.last_ns(topic) - sent.started_ns) / 1e9 for reader in readers] + [1e-9])
    p50, p99 = _latencies_ms(topic, sent, readers)
    value_bytes = sum(part.value_bytes for part in sent.topic(topic))
    return DemoTopicReport(
        topic=topic,
        partitions=len(sent.topic(topic)),
        replicas=min(map(len, replicas.values())),
        records=records,
        value_bytes=value_bytes,
        seconds=round(seconds, 3),
        records_per_second_in=round(records / seconds),
        records_per_second_out=round(records / read_seconds),
        latency_p50_ms=p50,
        latency_p99_ms=p99,
        overhead_bytes_per_record=round((stored_bytes - value_bytes - key_bytes) / max(records, 1), 1),
        lost=lost,
        duplicated=duplicated,
        problems=tuple(problems),
    )


def as_json(
    reports: Sequence[DemoTopicReport],
    failover: FailoverReport | None,
    *,
    cluster: str,
    source: str,
    table: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the output of `--json`."""
    return {
        "ok": not any(report.problems for report in reports),
        "cluster": cluster,
        "source": source,
        "readers": 2,
        "failover": None if failover is None else asdict(failover),
        "topics": [asdict(report) for report in reports],
        "table": table,
    }


def show(reports: Sequence[DemoTopicReport], failover: FailoverReport | None, console: Console) -> None:
    """Print the table, with figures as rows and topics as columns, and the verdict."""
    table = Table("", *(report.topic for report in reports), title="What went through")
    for column in table.columns[1:]:
        column.justify = "right"
    rows: list[tuple[str, list[str]]] = [
        ("partitions", [f"{report.partitions}" for report in reports]),
        ("replicas of each", [f"{report.replicas}" for report in reports]),
        ("records", [f"{report.records:,}" for report in reports]),
        ("bytes", [f"{report.value_bytes:,}" for report in reports]),
        ("seconds", [f"{report.seconds:.2f}" for report in reports]),
        ("records/s in", [f"{report.records_per_second_in:,.0f}" for report in reports]),
        ("records/s out, each reader", [f"{report.records_per_second_out:,.0f}" for report in reports]),
        ("send to receive, p50", [f"{report.latency_p50_ms:,.1f} ms" for report in reports]),
        ("send to receive, p99", [f"{report.latency_p99_ms:,.1f} ms" for report in reports]),
        ("overhead a record", [f"{report.overhead_bytes_per_record:.1f} bytes" for report in reports]),
        ("lost", [f"{report.lost}" for report in reports]),
        ("duplicated", [f"{report.duplicated}" for report in reports]),
    ]
    if failover is not None:
        rows.insert(-2, ("longest without a leader", [_without_leader(failover, report) for report in reports]))
    for name, cells in rows:
        table.add_row(name, *cells)
    console.print(table)
    problems = [f"{report.topic}: {problem}" for report in reports for problem in report.problems]
    for problem in problems:
        console.print(f"[red]WRONG[/red] {problem}", highlight=False)
    if not problems:
        console.print(
            "Checked: counts, order within every partition and checksums, by two independent readers. All agree.",
            soft_wrap=True,
        )


def _without_leader(failover: FailoverReport, report: DemoTopicReport) -> str:
    seconds = failover.longest_seconds_without_leader(report.topic)
    return "none" if seconds is None else f"{seconds:.2f} s"


def _latencies_ms(topic: str, sent: Ledger, readers: Sequence[Ledger]) -> tuple[float, float]:
    """Return p50 and p99 over all records and readers, in milliseconds."""
    spans = []
    for reader in readers:
        for wrote, read in zip(sent.topic(topic), reader.topic(topic), strict=True):
            common = min(wrote.records, read.records)
            spans.append(read.times_ns()[:common] - wrote.times_ns()[:common])
    all_spans = np.concatenate(spans) if spans else np.zeros(0)
    if not len(all_spans):
        return 0.0, 0.0
    p50, p99 = np.percentile(all_spans, [50, 99]) / 1e6
    return round(float(p50), 1), round(float(p99), 1)
