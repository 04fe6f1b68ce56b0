"""`python -m bench.partitions`: time to create many partitions and to start with them, memory and metadata.

One broker and one coordinator. Each partition holds a record, so that its log is opened and recovered at a start.
Prints one line of JSON.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Annotated, Any

import headrace
import psutil
import typer
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec

from bench.processor import processor_seconds
from bench.stage import CREATION_SECONDS, wait_until

TOPIC = "many"
IDLE_SECONDS = 10.0
SETTLE_SECONDS = 120.0
"""After this, every partition has had its checkpoint; a broker writes at most a hundred a second."""


def main(
    partitions: Annotated[int, typer.Option(help="Partitions of the topic.", min=1)] = 10_000,
) -> None:
    """Print the figures of one topic with that number of partitions."""
    with LocalCluster(LocalClusterSpec(brokers=1, coordinators=1)) as cluster:
        print(json.dumps(measure(cluster, partitions)))


def measure(cluster: LocalCluster, partitions: int) -> dict[str, float]:
    """Return the figures by name."""
    broker = cluster.broker(1)
    settings: dict[str, Any] = {"bootstrap_servers": cluster.bootstrap_servers, **cluster.client_settings}
    with headrace.Admin(**settings) as admin:
        found = {"partitions": float(partitions), "broker_mb_without": _megabytes(broker.pid)}

        def served() -> bool:
            try:
                return len(admin.list_offsets(TOPIC)) == partitions
            except headrace.HeadraceError:
                return False

        config = {"durability": "async"}
        found["create_s"] = _seconds(
            lambda: admin.create_topic(TOPIC, partitions=partitions, config=config, timeout=CREATION_SECONDS), served
        )
        with headrace.Producer(**settings) as producer:
            started = time.perf_counter()
            for partition in range(partitions):
                producer.send(TOPIC, b"record", partition=partition)
            producer.flush(CREATION_SECONDS)
            found["first_record_of_each_s"] = time.perf_counter() - started
        found["broker_mb"] = _megabytes(broker.pid)
        found["describe_topic_ms"] = 1_000 * _seconds(lambda: admin.describe_topic(TOPIC))
        found["list_offsets_ms"] = 1_000 * _seconds(lambda: admin.list_offsets(TOPIC))
        time.sleep(SETTLE_SECONDS)
        found["idle_percent_of_a_core"] = _idle_percent(broker.pid)
        found["stop_s"] = _seconds(broker.stop)
        found["start_after_stop_s"] = _seconds(lambda: cluster.restart(broker), served)
        found["broker_mb_after_restart"] = _megabytes(broker.pid)
        broker.kill()
        found["start_after_kill_s"] = _seconds(lambda: cluster.restart(broker), served)
        assert {end.offset for end in admin.list_offsets(TOPIC).values()} == {1}, "records are missing"
    return {name: round(value, 2) for name, value in found.items()}


def _seconds(act: Callable[[], object], ready: Callable[[], bool] | None = None) -> float:
    started = time.perf_counter()
    act()
    if ready is not None:
        wait_until(ready, "all partitions served", CREATION_SECONDS)
    return time.perf_counter() - started


def _megabytes(pid: int | None) -> float:
    return psutil.Process(pid).memory_info().rss / 1e6


def _idle_percent(pid: int | None) -> float:
    assert pid is not None, "the broker runs"
    before = processor_seconds(pid)
    time.sleep(IDLE_SECONDS)
    return 100 * (processor_seconds(pid) - before) / IDLE_SECONDS


if __name__ == "__main__":
    typer.run(main)
