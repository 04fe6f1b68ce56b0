"""`python -m bench`: what headrace moves, beside what plain gRPC calls move with the same bytes in the same run.

One broker and one coordinator on loopback, one topic of one partition, `durability=async`, `acks=1`, no compression.
In every round the limit and each case are measured once, so that a slow minute of the machine slows all of them;
medians over the rounds are printed, and everything is written as JSON.

What a case has written is removed before the next one writes. On a virtual machine the page cache is several times
slower where it has to take memory that the machine never touched before, so a growing one would measure that.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import grpc
import headrace
import psutil
import typer
from google import protobuf
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from bench import cases, limit

REMOVAL_SECONDS = 30

TARGETS = {
    "send": "1,500,000 records/s",
    "send_many": "60 % of the limit",
    "for record in consumer": "2,000,000 records/s",
    "batches to Arrow": "60 % of the limit",
    "broker memory": "200 MB",
}


def main(
    records: Annotated[int, typer.Option(help="Records of a case in a round.", min=10_000)] = 2_000_000,
    value_bytes: Annotated[int, typer.Option(help="Bytes of a value.", min=4, max=100_000)] = 200,
    rounds: Annotated[int, typer.Option(help="How often each case is measured.", min=1)] = 5,
    output: Annotated[Path | None, typer.Option(help="Where the JSON goes.")] = None,
) -> None:
    """Measure producing and consuming, and print medians beside the limit."""
    load = cases.Load(records - records % cases.records_a_batch(value_bytes), value_bytes)
    console = Console(stderr=True)
    spec = LocalClusterSpec(brokers=1, coordinators=1)
    with LocalCluster(spec) as cluster, limit.bare_server() as bare, Progress(console=console) as progress:
        results = measure(cluster, bare, load, rounds, progress)
    report = {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "load": {"records": load.records, "value_bytes": value_bytes, "rounds": rounds},
        "results": results,
    }
    path = output or Path("bench/results") / f"{datetime.now(UTC):%Y%m%dT%H%M%S}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=2) + "\n")
    print_table(report)
    console.print(f"written to {path}")


def measure(
    cluster: LocalCluster, bare: Any, load: cases.Load, rounds: int, progress: Progress
) -> dict[str, dict[str, Any]]:
    """Run all cases `rounds` times and return each one's rates in records/s, and the broker's peak memory."""
    batch = cases.one_batch(load)
    calls = load.records // cases.records_a_batch(load.value_bytes)
    rates: dict[str, list[float]] = {}
    memory: list[int] = []
    pid = cluster.brokers[0].pid
    assert pid is not None
    broker = psutil.Process(pid)
    task = progress.add_task("measuring", total=rounds * (3 + len(cases.PRODUCE) + len(cases.CONSUME)))

    def note(name: str, seconds: float) -> None:
        rates.setdefault(name, []).append(load.records / seconds)
        memory.append(broker.memory_info().rss)
        progress.advance(task)

    with headrace.Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        for number in range(rounds):
            note("limit in", limit.measure_in(bare, batch, calls))
            note("page cache", limit.measure_page_cache(cluster.directory, batch, calls))
            for name, run in cases.PRODUCE.items():
                target = new_topic(admin, cluster, number, name)
                note(name, run(target, load))
                if name != "send_many":
                    remove_topic(admin, cluster, target)
            full = cases.Target(cluster.bootstrap_servers, topic_name(number, "send_many"))
            note("limit out", limit.measure_out(bare, calls))
            for name, run in cases.CONSUME.items():
                note(name, run(full, load))
            remove_topic(admin, cluster, full)
    results: dict[str, dict[str, Any]] = {name: {"rates": values} for name, values in rates.items()}
    for name, result in results.items():
        bound = rates["limit out" if name in cases.CONSUME or name == "limit out" else "limit in"]
        result["median"] = statistics.median(result["rates"])
        result["of_limit"] = statistics.median(rate / most for rate, most in zip(result["rates"], bound, strict=True))
    results["broker memory"] = {"peak_rss_bytes": max(memory)}
    return results


def topic_name(number: int, case: str) -> str:
    """A topic a case and round."""
    return f"bench-{number}-" + "".join(letter if letter.isalnum() else "-" for letter in case)


def new_topic(admin: headrace.Admin, cluster: LocalCluster, number: int, case: str) -> cases.Target:
    """Create the topic of a case: one partition, acknowledged from the page cache."""
    name = topic_name(number, case)
    admin.create_topic(
        name, partitions=1, replication_factor=1, config={"durability": "async", "file_delete_delay_ms": 0}
    )
    return cases.Target(cluster.bootstrap_servers, name)


def remove_topic(admin: headrace.Admin, cluster: LocalCluster, target: cases.Target) -> None:
    """Delete a case's topic and wait until the broker has removed its files."""
    topic_id = admin.describe_topic(target.topic).topic_id
    admin.delete_topic(target.topic)
    deadline = time.monotonic() + REMOVAL_SECONDS
    while any(cluster.directory.rglob(f"{topic_id.hex()}-*")):
        if time.monotonic() > deadline:
            raise TimeoutError(f"the broker did not remove the files of {target.topic} in {REMOVAL_SECONDS} s")
        time.sleep(0.05)


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        "cores": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "system": platform.platform(),
        "python": platform.python_version(),
        "grpcio": grpc.__version__,
        "protobuf": protobuf.__version__,
        "headrace": headrace.__version__,
        "clock": time.get_clock_info("perf_counter").implementation,
    }


def print_table(report: dict[str, Any]) -> None:
    """Print medians, least and most, the share of the limit, and what was asked for."""
    load = report["load"]
    table = Table(title=f"{load['records']:,} records of {load['value_bytes']} bytes, {load['rounds']} rounds")
    for column in ("case", "median records/s", "least", "most", "MB/s", "of the limit", "asked"):
        table.add_column(column, justify="left" if column in ("case", "asked") else "right")
    for name, result in report["results"].items():
        if "rates" not in result:
            continue
        table.add_row(
            name,
            f"{result['median']:,.0f}",
            f"{min(result['rates']):,.0f}",
            f"{max(result['rates']):,.0f}",
            f"{result['median'] * load['value_bytes'] / 1e6:,.0f}",
            f"{result['of_limit']:.0%}",
            TARGETS.get(name, ""),
        )
    Console().print(table)
    peak = report["results"]["broker memory"]["peak_rss_bytes"]
    print(f"broker memory: {peak / 1e6:,.0f} MB at most (asked: {TARGETS['broker memory']})")


if __name__ == "__main__":
    typer.run(main)
