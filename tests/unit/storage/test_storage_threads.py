"""Flush, checkpoint and reads in threads beside the appending one, on a real disk, for a bounded number of steps."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from headrace.wire.batch import read_header
from headrace.wire.columns import decode_batch, encode_batch
from headrace_broker.storage import DataDirectory, LogSettings, PartitionLog

APPENDS = 600
READ_BYTES = 2_000


def append_all(log: PartitionLog) -> None:
    for number in range(APPENDS):
        data = encode_batch([b"%d" % number], base_timestamp_ms=1)
        log.append(data, read_header(data), leader_epoch=0, append_timestamp_ms=number)


def follow(log: PartitionLog) -> list[int]:
    """Read to the end of the appends, as a consumer does."""
    found: list[int] = []
    while len(found) < APPENDS:
        end_offset = int(log.log_end_offset)
        with log.read(len(found), READ_BYTES, end_offset) as part:
            data = part.read()
            assert part.end_offset <= end_offset
        position = 0
        while position < len(data):
            header = read_header(data, position)
            batch = data[position : position + header.batch_bytes]
            found += [int(value or b"") for value in decode_batch(batch, max_payload_bytes=1 << 20).values()]
            position += header.batch_bytes
    return found


def repeat(step: Callable[[], None], done: threading.Event) -> int:
    steps = 0
    while not done.is_set():
        step()
        steps += 1
    return steps


def test_flush_checkpoint_and_reads_beside_appends(tmp_path: Path) -> None:
    """The log's promise: any thread reads, flushes and checkpoints beside the one that appends and rolls.

    Readers see every record once and in order, the durable mark never falls nor passes the end, and what is left on
    disk opens to the same.
    """
    directory = DataDirectory.open(str(tmp_path), cluster_id="c", generation=1, broker_id=1, new_storage_id=bytes(16))
    log = directory.open_log(bytes(16), 0, LogSettings(segment_bytes=4_096, index_interval_bytes=512))
    done = threading.Event()
    marks: list[int] = []

    def flush() -> None:
        before = log.log_end_offset
        marks.append(log.flush())
        assert before <= marks[-1] <= log.log_end_offset

    with ThreadPoolExecutor(5) as threads:
        background = [
            threads.submit(repeat, flush, done),
            threads.submit(repeat, lambda: log.checkpoint(0, log.flushed_offset, force=True) and None, done),
        ]
        readers = [threads.submit(follow, log) for _ in range(2)]
        appending = threads.submit(append_all, log)
        try:
            appending.result(60)
            assert [reader.result(60) for reader in readers] == [list(range(APPENDS))] * 2
        finally:
            done.set()
        assert all(each.result(60) for each in background)
    assert log.segment_count > 5
    assert marks == sorted(marks)
    assert log.flush() == log.log_end_offset == APPENDS
    directory.close(clean=False)
    again = DataDirectory.open(str(tmp_path), cluster_id="c", generation=1, broker_id=1, new_storage_id=bytes(16))
    reopened = again.open_log(bytes(16), 0, LogSettings())
    assert reopened.verify() == APPENDS
    again.close(clean=False)
