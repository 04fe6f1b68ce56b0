"""Open-loop sender: each record is sent when it is due, independent of the records before it.

A stall of the sender, of the cluster or of a full buffer counts for every record that was due meanwhile: waits count
from the due time of a record, not from when it could be sent.
"""

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from headrace.cli.bench.distributions import Floats
from headrace.cli.bench.records import Block, RecordColumns
from headrace.cli.bench.waits import WaitHistogram

if TYPE_CHECKING:
    from headrace.client.producer.futures import BatchFuture, RecordFuture

LONGEST_SLEEP_S = 0.001
SHORTEST_SLEEP_S = 0.00001

Send = Callable[[RecordColumns], "BatchFuture | None"]


@dataclass(slots=True)
class SendProgress:
    """Counters of a load. Waits are added on the producer's threads, the others on the caller's."""

    records: int = 0
    bytes: int = 0
    due_s: float = 0.0
    """Due time of the last sent record."""
    late: WaitHistogram = field(default_factory=WaitHistogram)
    """From the due time of each record to its send."""
    acknowledged: WaitHistogram = field(default_factory=WaitHistogram)
    """From the due time of each acknowledged record to the acknowledgement."""
    lock: threading.Lock = field(default_factory=threading.Lock)


def send_paced(
    blocks: Iterable[Block],
    send: Send,
    clock: Callable[[], float],
    sleep: Callable[[float], object],
    seconds: float | None = None,
    progress: SendProgress | None = None,
) -> SendProgress:
    """Send all blocks. Return when the producer has accepted the last one, which may not be acknowledged yet.

    Args:
        blocks: Records in the order of their due times.
        send: Function that sends the records of one partition.
        clock: Monotonic clock in seconds.
        sleep: Function that waits for a number of seconds.
        seconds: Duration of the load; records that are all due at once are sent for that time. `None` sends all.
        progress: Counters to update, for a caller that needs them also after an error; `None` creates them.
    """
    started = clock()
    if progress is None:
        progress = SendProgress()
    for block in blocks:
        index, count, at_once = 0, len(block.due_s), not block.due_s.any()
        if seconds is not None:
            count = int(np.searchsorted(block.due_s, seconds))
        while index < count:
            now = clock() - started
            if at_once and seconds is not None and now >= seconds:
                return progress
            first_s = float(block.due_s[index])
            end = min(count, int(np.searchsorted(block.due_s, now, side="right")))
            if end <= index:
                sleep(min(LONGEST_SLEEP_S, max(SHORTEST_SLEEP_S, first_s - now)))
                continue
            for columns in block.columns(index, end):
                due = started + columns.due_s
                progress.late.add(clock() - due)
                _note_acknowledgements(send(columns), due, progress, clock)
                progress.bytes += columns.size_bytes
            progress.records += end - index
            progress.due_s = float(block.due_s[end - 1])
            index = end
        if count < len(block.due_s):
            break
    return progress


def _note_acknowledgements(
    future: "BatchFuture | None", due: Floats, progress: SendProgress, clock: Callable[[], float]
) -> None:
    """Count each batch of a send once it is acknowledged. `due` are times of `clock` in the order of the records.

    Records whose partitions the producer chose by their keys are in another order: their batches exchange due times.
    """
    if future is None:
        return
    start = 0
    for batch, records in future.parts:
        batch.add_done_callback(partial(_note_batch, due[start : start + records], progress, clock))
        start += records


def _note_batch(due: Floats, progress: SendProgress, clock: Callable[[], float], batch: "RecordFuture") -> None:
    if batch.exception() is None:
        with progress.lock:
            progress.acknowledged.add(clock() - due)


def percentiles_ms(waits: WaitHistogram) -> dict[str, float | None]:
    """Return median, 99th percentile and maximum in milliseconds, each `None` without records."""
    if not waits.records:
        return {"p50": None, "p99": None, "max": None}
    found = {"p50": waits.quantile_s(0.5), "p99": waits.quantile_s(0.99), "max": waits.longest_s}
    return {name: round(seconds * 1000, 3) for name, seconds in found.items()}
