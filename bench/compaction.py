"""`python -m bench.compaction`: what compaction costs a broker, and what it saves a reader.

`log`: one log on a disk, updates of keys that are drawn at random, compacted whenever that is due. `backlog`: the same
updates, and 1/4 and 1/20 of them, compacted once: the time an update does not grow with them. `topic`: a topic of
a broker, without compaction and with it, in turn: the rate of a producer, the broker's processor time, and how long a
reader from the beginning takes afterwards. Prints a line of JSON for each case, then what is asked and measured.
"""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Annotated

import headrace
import numpy as np
import typer
from headrace.log import DataDirectory, LogSettings
from headrace.log.log import PartitionLog
from headrace.wire.batch import read_header
from headrace.wire.encoding import encode_batch
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec

from bench.processor import processor_seconds
from bench.stage import wait_until

BATCH_RECORDS = 1_000
SEGMENT_BYTES = 32 << 20
COMPACT = {"cleanup_policy": "compact", "segment_bytes": SEGMENT_BYTES, "segment_ms": 1_000}
COMPACTED_BYTES = "headrace_broker_compacted_bytes_total"
SETTINGS = {
    "compaction_interval_ms": 500,
    "retention_interval_ms": 500,
    "producer_retry_window_ms": 0,
    "metrics_listen": "127.0.0.1:0",
}


def keys_of(updates: int, keys: int) -> list[bytes]:
    """Return the key of each update, drawn at random."""
    drawn = np.random.default_rng(1).integers(0, keys, updates)
    return [b"key-%012d" % number for number in drawn.tolist()]


def measure_log(updates: int, keys: int, value_bytes: int) -> None:
    """Append the updates to one log, and compact it after each batch that makes it due."""
    settings = LogSettings(segment_bytes=SEGMENT_BYTES, compacts=True, min_dirty_ratio=0.33)
    names = keys_of(updates, keys)
    with opened(settings) as log:
        seconds = 0.0
        compacted_records = written_bytes = appended_bytes = 0
        ratios = []
        live_bytes = keys * (value_bytes + len(names[0]))
        for start in range(0, updates, BATCH_RECORDS):
            appended_bytes += append(log, names[start : start + BATCH_RECORDS], value_bytes, start + 1)
            if log.segment_count > 2:
                log.flush()
                before = time.process_time()
                is_due = log.compaction.is_due(start + 1, log.log_end_offset)
                report = log.compaction.compact(start + 1, log.log_end_offset) if is_due else None
                seconds += time.process_time() - before
                if report is not None:
                    compacted_records += report.records
                    written_bytes += report.written_bytes
            if start > updates // 2:
                ratios.append(log.size_bytes / live_bytes)
    figures = {
        "case": "one log",
        "updates": updates,
        "keys": keys,
        "records compacted a second": round(compacted_records / seconds),
        "processor us an update": round(seconds / updates * 1e6, 2),
        "bytes written by compaction a byte appended": round(written_bytes / appended_bytes, 2),
        "bytes a live byte, mean": round(sum(ratios) / len(ratios), 2),
    }
    print(json.dumps(figures), flush=True)
    show_target("bytes a live byte, at most", 1.5, sum(ratios) / len(ratios))


@contextmanager
def opened(settings: LogSettings) -> Iterator[PartitionLog]:
    """Open a log in a temporary directory."""
    with tempfile.TemporaryDirectory() as path:
        directory = DataDirectory.open(path, cluster_id="bench", generation=1, broker_id=1, new_storage_id=bytes(16))
        yield directory.open_log(bytes(16), 0, settings)
        directory.close(clean=True)


def append(log: PartitionLog, keys: list[bytes], value_bytes: int, at_ms: int) -> int:
    """Append an update of each key as one batch; return its size."""
    batch = encode_batch([bytes(value_bytes)] * len(keys), keys, base_timestamp_ms=at_ms)
    log.append([(batch, read_header(batch))], leader_epoch=0, append_timestamp_ms=at_ms)
    return len(batch)


def measure_backlog(updates: int, keys: int, value_bytes: int) -> None:
    """Append updates to one log, and compact all of them at once."""
    names = keys_of(updates, keys)
    with opened(LogSettings(segment_bytes=SEGMENT_BYTES, compacts=True)) as log:
        for start in range(0, updates, BATCH_RECORDS):
            append(log, names[start : start + BATCH_RECORDS], value_bytes, start + 1)
        del names
        log.flush()
        before, kept_kib = time.process_time(), status_kib("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # From here VmHWM is the peak.
        report = log.compaction.compact(updates + 1, log.log_end_offset)
        seconds = time.process_time() - before
        assert report is not None
        figures = {
            "case": "backlog",
            "updates": report.records,
            "keys": keys,
            "updates a second of processor time": round(report.records / seconds),
            "MB of memory": round((status_kib("VmHWM") - kept_kib) / 1024),
        }
        print(json.dumps(figures), flush=True)


def status_kib(name: str) -> int:
    """Return a figure of this process's memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def show_target(what: str, asked: float, measured: float) -> None:
    """Print a figure that was asked for."""
    print(json.dumps({"figure": what, "asked": asked, "measured": round(measured, 3)}), flush=True)


def produce(servers: str, topic: str, names: list[bytes], value: bytes, rate: float) -> float:
    """Send an update of each key, at most `rate` a second; return the seconds until all are acknowledged."""
    values, started = [value] * 10_000, time.perf_counter()
    with headrace.Producer(bootstrap_servers=servers, return_futures=False) as producer:
        for start in range(0, len(names), len(values)):
            time.sleep(max(0.0, started + start / rate - time.perf_counter()))
            keys = names[start : start + len(values)]
            producer.send_many(topic, values[: len(keys)], keys=keys)
    return time.perf_counter() - started


def measure_topic(updates: int, keys: int, value_bytes: int, rounds: int, rate: float) -> None:
    """Produce the updates and read them, without and with compaction, in turn."""
    value, names = bytes(value_bytes), keys_of(updates, keys)
    ratios: dict[str, list[float]] = {"in": [], "read": []}
    with LocalCluster(LocalClusterSpec(brokers=1, coordinators=1, broker_settings=SETTINGS)) as cluster:
        servers, broker = cluster.bootstrap_servers, cluster.broker(1)
        for number in range(rounds):
            took = {}
            for policy in ("delete", "compact") if number % 2 else ("compact", "delete"):
                topic = f"{policy}-{number}"
                with headrace.Admin(bootstrap_servers=servers) as admin:
                    config = {**COMPACT, "cleanup_policy": policy, "durability": "async"}
                    admin.create_topic(topic, partitions=1, replication_factor=1, config=config)
                assert broker.pid is not None
                compacted = broker.metrics()[COMPACTED_BYTES]
                used = processor_seconds(broker.pid)
                seconds = produce(servers, topic, names, value, rate)
                used = processor_seconds(broker.pid) - used
                compacted = broker.metrics()[COMPACTED_BYTES] - compacted
                records, reading = _settled(servers, topic, updates - SEGMENT_BYTES // (value_bytes + len(names[0])))
                took[policy] = seconds, reading
                figures = {
                    "case": policy,
                    "updates": updates,
                    "keys": keys,
                    "records a second in": round(updates / seconds),
                    "broker's processor us a record in": round(used / updates * 1e6, 2),
                    "MB compacted meanwhile": round(compacted / 1e6),
                    "seconds to read all": round(reading, 3),
                    "records left": records,
                }
                print(json.dumps(figures), flush=True)
                with headrace.Admin(bootstrap_servers=servers) as admin:
                    admin.delete_topic(topic)
            for name, delete, compact in zip(ratios, took["delete"], took["compact"], strict=True):
                ratios[name].append(compact / delete)
    show_target("time of a producer with compaction by that without, at most", 1 / 0.95, median(ratios["in"]))
    show_target("time to read the live keys by that of all updates, at most", 0.2, median(ratios["read"]))


def _settled(servers: str, topic: str, end_offset: int) -> tuple[int, float]:
    """Wait until a compacted topic is compacted up to an offset; return the records left, and the seconds to read
    them, the shortest of three.
    """
    with headrace.Admin(bootstrap_servers=servers) as admin:
        if admin.describe_config(topic)["cleanup_policy"].value == "compact":
            admin.alter_config(topic, {"max_compaction_lag_ms": "1000"})
            wait_until(lambda: admin.describe_logs(topic)[0].compacted_offset >= end_offset, "all compacted", 200)
    seconds = []
    for _ in range(3):
        started = time.perf_counter()
        with headrace.Reader(topic, bootstrap_servers=servers) as reader:
            rows = sum(batch.to_arrow().num_rows for batch in reader.batches(60))
        seconds.append(time.perf_counter() - started)
    return rows, min(seconds)


def main(
    cases: Annotated[list[str] | None, typer.Argument(help="log, backlog, topic; all if none is given.")] = None,
    updates: Annotated[int, typer.Option(help="Updates.")] = 20_000_000,
    keys: Annotated[int, typer.Option(help="Keys, each updated about as often as the others.")] = 1_000_000,
    value_bytes: Annotated[int, typer.Option(help="Size of a value.")] = 100,
    rounds: Annotated[int, typer.Option(help="Rounds of a topic without and with compaction.")] = 3,
    rate: Annotated[float, typer.Option(help="Updates a second that a topic's producer sends, at most.")] = math.inf,
) -> None:
    """Measure compaction."""
    if not cases or "log" in cases:
        measure_log(updates, keys, value_bytes)
    if not cases or "backlog" in cases:
        for part in (20, 4, 1):
            measure_backlog(updates // part, keys, value_bytes)
    if not cases or "topic" in cases:
        measure_topic(updates, keys, value_bytes, rounds, rate)


if __name__ == "__main__":
    typer.run(main)
