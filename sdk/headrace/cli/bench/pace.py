"""Open-loop sender: each record is sent when it is due, independent of the records before it.

A stall of the sender, of the cluster or of a full buffer counts for every record that was due meanwhile: waits count
from the due time of a record, not from when it could be sent.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from headrace.cli.bench.records import Block, RecordColumns

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
    late_s: list[float] = field(default_factory=list)
    """Delay of the first record of each part."""
    waits_s: list[float] = field(default_factory=list)
    """Time from the due time of each part's first record to the acknowledgement of the part."""
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
            progress.late_s.append(now - first_s)
            for columns in block.columns(index, end):
                _note_acknowledgement(send(columns), progress, clock, started + first_s)
                progress.bytes += columns.size_bytes
            progress.records += end - index
            progress.due_s = float(block.due_s[end - 1])
            index = end
        if count < len(block.due_s):
            break
    return progress


def _note_acknowledgement(
    future: "BatchFuture | None", progress: SendProgress, clock: Callable[[], float], due: float
) -> None:
    if future is None or not future.parts:
        return

    def landed(part: "RecordFuture") -> None:
        if part.exception() is None:
            with progress.lock:
                progress.waits_s.append(clock() - due)

    future.parts[-1][0].add_done_callback(landed)


def percentiles_ms(seconds: Sequence[float]) -> dict[str, float | None]:
    """Return median, 99th percentile and maximum in milliseconds, each `None` without values."""
    if not seconds:
        return {"p50": None, "p99": None, "max": None}
    found = np.percentile(np.asarray(seconds) * 1000, [50, 99, 100]).tolist()
    return {name: round(value, 3) for name, value in zip(("p50", "p99", "max"), found, strict=True)}
