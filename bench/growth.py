"""Cases of growing cost: many clients, long logs, recovery after a crash."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import headrace

from bench import opening
from bench.case import Sample
from bench.children import guarded
from bench.load import Load
from bench.producing import Produce
from bench.stage import WARM_UP, Meter, Stage, Target, broker_pids

VALUE_BYTES = 200
FILL_SECONDS = 600.0
KEPT_BYTES = 2_000_000_000
"""A longer log is filled only once."""
LOG_PART_BYTES = 100_000_000
COLD_BYTES = 1_000_000_000
"""Maximum bytes of a log read cold; large, because a reader's first fetch takes some ms in any case."""
WARM_PASSES = 5
LOG_READS = {"": "native", "grpc_": "grpc"}
"""Transport of the reader by the prefix of a figure's name."""


@dataclass(frozen=True, slots=True)
class Many:
    """Many producers or consumers, spread over one process per core; a call measures them once."""

    clients: int
    consume: bool = False

    def __call__(self, stage: Stage) -> Sample:
        """Move the usual load with all clients at once; it is smaller for consumers, because each reads all of it."""
        load = stage.load(VALUE_BYTES, 1 / self.clients if self.consume else 1.0)
        processes = min(self.clients, os.cpu_count() or 1)
        with self._target(stage, load) as target:
            children = [self._child(target, load, number, processes) for number in range(processes)]
            try:
                for child in children:
                    assert child.stdout is not None
                    assert child.stdout.readline() == "ready\n", "a client did not start"
                meter, started = Meter(broker_pids(target.cluster)), time.perf_counter()
                for child in children:
                    assert child.stdin is not None
                    child.stdin.write("go\n")
                    child.stdin.flush()
                used = sum(json.loads(child.communicate(timeout=FILL_SECONDS)[0]) for child in children)
                seconds = time.perf_counter() - started
            finally:
                for child in children:
                    child.kill()
                    child.wait()
        moved = Load(load.records * self.clients if self.consume else load.records, VALUE_BYTES)
        return Sample(meter.figures(moved, seconds, moved.records / 5_000, used))

    @contextmanager
    def _target(self, stage: Stage, load: Load) -> Iterator[Target]:
        if self.consume:
            yield stage.filled(load)
        else:
            with stage.topic(partitions=min(self.clients, 8)) as target:
                yield target

    def _child(self, target: Target, load: Load, number: int, processes: int) -> subprocess.Popen[str]:
        mine = len(range(number, self.clients, processes))
        task = {
            "bootstrap_servers": target.bootstrap_servers,
            "topic": target.topic,
            "clients": mine,
            "records": load.records if self.consume else load.records // self.clients,
            "consume": self.consume,
        }
        command = [sys.executable, "-m", "bench.growth", json.dumps(task)]
        return subprocess.Popen(guarded(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def run_clients(task: dict[str, Any]) -> None:
    """Run a part of the clients: connect, print `ready`, wait for a line, move the load, print the CPU seconds."""
    load = Load(task["records"], VALUE_BYTES)
    servers: dict[str, Any] = {"bootstrap_servers": task["bootstrap_servers"]}
    if task["consume"]:
        work = [partial(_read, servers, task["topic"], load.records)] * task["clients"]
    else:
        senders = [headrace.Producer(acks=1, **servers) for _ in range(task["clients"])]
        for sender in senders:
            sender.send(task["topic"], WARM_UP).result(60)
        work = [partial(_send, sender, task["topic"], load) for sender in senders]
    print("ready", flush=True)
    sys.stdin.readline()
    threads = [threading.Thread(target=one) for one in work]
    before = time.process_time()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(time.process_time() - before)


def _send(sender: headrace.Producer, topic: str, load: Load) -> None:
    _send_part(sender, topic, load)
    sender.close()


def _read(servers: dict[str, Any], topic: str, records: int) -> None:
    with headrace.Reader(topic, **servers) as reader:
        assert sum(batch.to_arrow().num_rows for batch in reader.batches(timeout=120.0)) == records


@dataclass(frozen=True, slots=True)
class LongLog:
    """Log of a given size: its newest 100 MB appended and read warm, and its oldest read cold by a reader next to a
    writer, over the native protocol and over gRPC; a call measures all once."""

    log_bytes: int

    def __call__(self, stage: Stage) -> Sample:
        """Fill a topic to the size, then measure; a large one is kept for the next round."""
        if self.log_bytes > KEPT_BYTES:
            return self._measure(stage.kept(("long", self.log_bytes), lambda: self._filled(stage)))
        with self._filled(stage) as target:
            return self._measure(target)

    def _measure(self, target: Target) -> Sample:
        part = Load(LOG_PART_BYTES // VALUE_BYTES, VALUE_BYTES)
        oldest = Load(min(COLD_BYTES, self.log_bytes) // VALUE_BYTES, VALUE_BYTES)
        directory, segments = target.cluster.directory / "broker-1", target.segments()
        figures = {}
        with headrace.Producer(acks=1, **target.client_settings) as sender:
            sender.send(target.topic, WARM_UP).result(60)
            figures["append_records_per_s"] = part.records / _timed(lambda: _send_part(sender, target.topic, part))
            warming = {"last_per_partition": part.records, "transport": "native"}
            warm = sum(_read_time(target, **warming) for _ in range(WARM_PASSES))
            figures["warm_records_per_s"] = part.records * WARM_PASSES / warm
            opening.forget(str(directory))
            figures["disk_read_mb_per_s"] = _disk_read_rate(segments, oldest.total_bytes)
            for way, transport in LOG_READS.items():
                reading = {"transport": transport}
                opening.forget(str(directory))
                figures[f"cold_{way}mb_per_s"] = (
                    oldest.total_bytes / _read_time(target, end=oldest.records, **reading) / 1e6
                )
                figures[f"append_beside_{way}reader_records_per_s"] = part.records / self._beside_a_reader(
                    sender, target, part, reading
                )
        return Sample(figures)

    def _beside_a_reader(
        self, sender: headrace.Producer, target: Target, part: Load, reading: Mapping[str, Any]
    ) -> float:
        """Return the seconds of the same appends while another process reads from the oldest offset."""
        task = {"read": target.topic, "settings": {**reading, **target.client_settings}}
        command = [sys.executable, "-m", "bench.growth", json.dumps(task)]
        with subprocess.Popen(guarded(command), stdout=subprocess.PIPE, text=True) as reader:
            try:
                assert reader.stdout is not None
                assert reader.stdout.readline() == "ready\n", "the reader did not start"
                return _timed(lambda: _send_part(sender, target.topic, part))
            finally:
                reader.kill()

    @contextmanager
    def _filled(self, stage: Stage) -> Iterator[Target]:
        with stage.topic() as target, headrace.Producer(**target.client_settings, acks=1) as sender:
            _send_part(sender, target.topic, Load(self.log_bytes // VALUE_BYTES, VALUE_BYTES))
            yield target


def _send_part(sender: headrace.Producer, topic: str, load: Load) -> None:
    sending = Produce()
    for _ in sending.send_all(sender, topic, sending.values(load), load):
        pass
    sender.flush(FILL_SECONDS)


def _rows(batch: headrace.RecordBatch) -> int:
    rows: int = batch.to_arrow().num_rows
    return rows


def _timed(work: Any) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _read_time(target: Target, **settings: Any) -> float:
    """Return the seconds to read a part of a topic to Arrow."""
    with headrace.Reader(target.topic, **settings, **target.client_settings) as reader:
        return _timed(lambda: [*map(_rows, reader.batches(timeout=60.0))])


def _disk_read_rate(files: Sequence[Path], most: int) -> float:
    """Return the disk's read rate in MB/s for the first `most` bytes of some files, by plain reads of 1 MiB."""
    total, started = 0, time.perf_counter()
    for path in files:
        with path.open("rb", buffering=0) as file:
            while total < most and (data := file.read(1 << 20)):
                total += len(data)
    return total / (time.perf_counter() - started) / 1e6


@dataclass(frozen=True, slots=True)
class Recovery:
    """Time to open a log of a given size after a clean stop and after a crash."""

    log_bytes: int

    def __call__(self, _: Stage) -> Sample:
        """Write, crash and open a log without a broker."""
        with tempfile.TemporaryDirectory() as path:
            report = opening.measure(path, self.log_bytes)
        return Sample(
            {
                "clean_s": report["after_clean_stop"]["seconds"],
                "crash_s": report["after_crash"]["seconds"],
                "scanned_mb": report["after_crash"]["scanned_bytes"] / 1e6,
            }
        )


def read_forever(task: dict[str, Any]) -> None:
    """Read a topic to Arrow repeatedly from its oldest offset; print `ready` after the first batch."""
    said = False
    while True:
        with headrace.Reader(task["read"], **task["settings"]) as reader:
            for batch in reader.batches(timeout=60.0):
                _rows(batch)
                if not said:
                    print("ready", flush=True)
                    said = True


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    if "read" in given:
        read_forever(given)
    else:
        run_clients(given)
