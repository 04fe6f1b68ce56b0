"""`python -m bench.validation_cost`: cost of column checks on the leader, compared with appending a batch.

Each round encodes a batch as `send_many` or Arrow in does, checks its header and appends it to a real log without an
fsync, then checks its columns; CPU time of the thread, medians and their ratio of one run. `--cluster` sends the same
batches to two topics of a broker, `validate=header` and `validate=columns`, in turn: CPU time of producer and broker.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import headrace
import psutil
import pyarrow as pa
import typer
from headrace.log.directory import DataDirectory
from headrace.log.log import PartitionLog
from headrace.log.settings import LogSettings
from headrace.wire.batch import check_batch, read_header
from headrace.wire.columns import check_columns
from headrace.wire.compression import Codec
from headrace.wire.encoding import arrow_buffers, encode_batch, encode_columns
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec
from rich.console import Console
from rich.table import Table

LIMITS = {"max_batch_bytes": 16 << 20, "max_records": 1_000_000, "max_payload_bytes": 64 << 20}
SHAPES = ((1, 200), (100, 100), (5_000, 200), (10_000, 100))


@contextmanager
def open_log() -> Iterator[PartitionLog]:
    """Open an empty log in a temporary directory."""
    with tempfile.TemporaryDirectory() as path:
        directory = DataDirectory.open(
            str(Path(path)), cluster_id="bench", generation=1, broker_id=1, new_storage_id=bytes(16)
        )
        try:
            yield directory.open_log(bytes(16), 0, LogSettings())
        finally:
            directory.close(clean=False)


def way_in(make: Callable[[], bytes], rounds: int) -> tuple[list[float], list[float]]:
    """Return the CPU microseconds of a batch's path without the column check, and of that check."""
    ways: list[float] = []
    looks: list[float] = []
    with open_log() as log:
        for _ in range(rounds):
            started = time.thread_time_ns()
            batch = make()
            header = check_batch(batch, **LIMITS)
            log.append([(batch, header)], leader_epoch=0, append_timestamp_ms=1)
            appended = time.thread_time_ns()
            check_columns(batch, header, max_payload_bytes=LIMITS["max_payload_bytes"])
            ways.append((appended - started) / 1000)
            looks.append((time.thread_time_ns() - appended) / 1000)
    return ways, looks


def measure(records: int, value_bytes: int, rounds: int) -> list[dict[str, Any]]:
    """Return one row for each way of encoding."""
    values = [os.urandom(value_bytes // 2) + bytes(value_bytes - value_bytes // 2) for _ in range(records)]
    array = pa.array(values, pa.binary())
    keys = [b"%d" % (number % 100) for number in range(records)]
    full: dict[str, Any] = {"keys": keys, "timestamps_ms": range(records), "headers": [[("trace", b"1")]] * records}
    ways: dict[str, Callable[[], bytes]] = {
        "send_many": lambda: encode_batch(values, base_timestamp_ms=1),
        "Arrow in": lambda: encode_columns(arrow_buffers(array), base_timestamp_ms=1),
        "send_many, keys, times, headers": lambda: encode_batch(values, base_timestamp_ms=1, **full),
        "send_many, lz4": lambda: encode_batch(values, base_timestamp_ms=1, codec=Codec.LZ4),
        "send_many, zstd": lambda: encode_batch(values, base_timestamp_ms=1, codec=Codec.ZSTD),
    }
    rows = []
    for name, make in ways.items():
        without, look = map(statistics.median, way_in(make, rounds))
        rows.append(
            {
                "way in": name,
                "records": records,
                "batch_bytes": read_header(make()).batch_bytes,
                "way_us": round(without, 1),
                "columns_us": round(look, 1),
                "ratio": round(1 + look / without, 3),
            }
        )
    return rows


def cpu_seconds(pids: list[int]) -> float:
    """Return the CPU time of this process and others so far."""
    times = [psutil.Process(pid).cpu_times() for pid in (os.getpid(), *pids)]
    return sum(each.user + each.system for each in times)


def measure_cluster(rounds: int) -> list[dict[str, Any]]:
    """Return one row for each way of sending to a real broker: 100 MB per round and topic, in turn."""
    values = [os.urandom(100) + bytes(100) for _ in range(5_000)]
    calls: dict[str, tuple[Any, Any, int]] = {
        "send_many": (values, "none", 10_000),
        "Arrow in": (pa.array(values, pa.binary()), "none", 10_000),
        "send_many, batches of 100": (values, "none", 100),
        "send_many, lz4": (values, "lz4", 10_000),
        "send_many, zstd": (values, "zstd", 10_000),
    }
    rows = []
    with LocalCluster(LocalClusterSpec(brokers=1, coordinators=1)) as cluster:
        servers = cluster.bootstrap_servers
        pids = [pid for pid in (cluster.broker(1).pid,) if pid is not None]
        for number, (name, (column, codec, batch_records)) in enumerate(calls.items()):
            costs: dict[str, list[float]] = {"header": [], "columns": []}
            with (
                headrace.Admin(bootstrap_servers=servers) as admin,
                headrace.Producer(
                    bootstrap_servers=servers, compression_type=codec, batch_records=batch_records, acks=1
                ) as producer,
            ):
                for validate in costs:
                    config = {"validate": validate, "durability": "async"}
                    admin.create_topic(f"{validate}-{number}", partitions=1, replication_factor=1, config=config)
                for _ in range(rounds):
                    for validate, found in costs.items():
                        before = cpu_seconds(pids)
                        for _ in range(100):
                            producer.send_many(f"{validate}-{number}", column)
                        producer.flush(300)
                        found.append((cpu_seconds(pids) - before) * 10)
            header, columns = (statistics.median(found) for found in costs.values())
            rows.append(
                {
                    "way": name,
                    "header_ms_a_batch": round(header, 2),
                    "columns_ms_a_batch": round(columns, 2),
                    "ratio": round(columns / header, 3),
                }
            )
    return rows


def main(
    rounds: Annotated[int, typer.Option(help="Batches of each kind to measure.", min=1)] = 300,
    cluster: Annotated[bool, typer.Option("--cluster", help="Send to a broker; 5 rounds suffice.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print the cost of a batch's path, and the additional cost of the column check."""
    if cluster:
        rows = measure_cluster(rounds)
    else:
        rows = [row for records, value_bytes in SHAPES for row in measure(records, value_bytes, rounds)]
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    table = Table(*rows[0])
    for row in rows:
        table.add_row(*map(str, row.values()))
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
