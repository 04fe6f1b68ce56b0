"""`python -m bench.opening`: time to open a log after a clean stop and after a crash, and the bytes it reads.

Writes a real log of the given size to a temporary directory, closes it, drops it from the page cache, and opens it.
Then it continues to write in a child process that is killed without notice, and opens it again.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from headrace.log.directory import DataDirectory
from headrace.log.log import PartitionLog
from headrace.log.settings import LogSettings
from headrace.wire.batch import read_header

from bench.load import Load, one_batch

TOPIC_ID = bytes(16)
CHECKPOINT_BYTES = 256 << 20
"""Bytes between two recovery points: about one second of a fast producer."""


def main(
    gigabytes: Annotated[float, typer.Option(help="Size of the log in GB.", min=0.1)] = 10.0,
    directory: Annotated[Path | None, typer.Option(help="Directory to write to; default: a temporary one.")] = None,
) -> None:
    """Print seconds, bytes scanned and peak memory as JSON."""
    with tempfile.TemporaryDirectory(dir=directory) as path:
        result = measure(path, round(gigabytes * 1e9))
    result["peak_rss_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps(result, indent=2))


def measure(path: str, log_bytes: int) -> dict[str, Any]:
    """Write a log of the size, open it after a clean stop and after a crash, and return the costs."""
    with_log(path, lambda log: write(log, log_bytes))
    result: dict[str, Any] = {"log_bytes": size_of(path), "after_clean_stop": opened(path)}
    child = multiprocessing.get_context("spawn").Process(target=write_and_die, args=(path,))
    child.start()
    child.join()
    result["after_crash"] = opened(path)
    return result


def open_directory(path: str) -> DataDirectory:
    """Open the data directory as a broker does."""
    return DataDirectory.open(path, cluster_id="bench", generation=1, broker_id=1, new_storage_id=bytes(16))


def with_log(path: str, use: Any) -> None:
    """Open the log, use it, and stop cleanly."""
    data = open_directory(path)
    use(data.open_log(TOPIC_ID, 0, LogSettings()))
    data.close(clean=True, broker_epoch=1)


def write(log: PartitionLog, size_bytes: int, *, checkpoints: bool = True) -> None:
    """Append batches of 1 MiB; flush and advance the recovery point periodically, as a broker does."""
    batch = one_batch(Load(0, 200))
    header = read_header(batch)
    since = 0
    for _ in range(size_bytes // len(batch)):
        log.append([(batch, header)], leader_epoch=0, append_timestamp_ms=1)
        since += len(batch)
        if checkpoints and since >= CHECKPOINT_BYTES:
            log.flush()
            log.durability.checkpoint(1, log.log_end_offset, force=True)
            since = 0


def write_and_die(path: str) -> None:
    """Append 100 MB past the recovery point and exit without clean-up, as on kill -9."""
    log = open_directory(path).open_log(TOPIC_ID, 0, LogSettings())
    write(log, 100_000_000, checkpoints=False)
    os._exit(9)


def opened(path: str) -> dict[str, Any]:
    """Open the log with cold files and return the cost; leave it unchanged."""
    forget(path)
    started = time.perf_counter()
    data = open_directory(path)
    log = data.open_log(TOPIC_ID, 0, LogSettings())
    seconds = time.perf_counter() - started
    report = log.recovery
    data.close(clean=True, broker_epoch=1)
    return {"seconds": round(seconds, 4), "scanned_bytes": report.scanned_bytes, "cut_bytes": report.cut_bytes}


def forget(path: str) -> None:
    """Ask the kernel to drop the files' pages."""
    for file in Path(path).rglob("*"):
        if file.is_file():
            descriptor = os.open(file, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def size_of(path: str) -> int:
    """Return the bytes of all segments."""
    return sum(file.stat().st_size for file in Path(path).rglob("*.log"))


if __name__ == "__main__":
    typer.run(main)
