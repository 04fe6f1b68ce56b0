"""Sending side: user activity as fast as the cluster accepts it, and the machine's metrics a few times per second."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import headrace

from examples.demo.failover import AcknowledgementTimes
from examples.demo.ledger import Ledger
from examples.demo.machine import MachineSampler
from examples.demo.sources import Chunk

ACTIVITY = "user-activity"
METRICS = "machine-metrics"
TOPICS = {ACTIVITY: 6, METRICS: 3}
"""Name -> partitions."""

SAMPLE_SECONDS = 0.25
LEAST_SAMPLES = 4
BUFFER_BYTES = 8 << 20
"""Small, so that the end-to-end latency is that of the cluster and not of a queue in the producer."""
FLUSH_TIMEOUT_SECONDS = 60.0


class MetricsFeed(threading.Thread):
    """Thread that samples the machine and sends each sample by `send`, keyed by kind, until `finish`."""

    def __init__(self, producer: headrace.Producer, acknowledgements: AcknowledgementTimes) -> None:
        super().__init__(name="machine metrics", daemon=True)
        self.error: BaseException | None = None
        self.key_bytes = 0
        """Total bytes of sent keys."""
        self._producer = producer
        self._acknowledgements = acknowledgements
        self._finish = threading.Event()
        self._sent: list[tuple[headrace.RecordFuture, bytes, int]] = []

    def run(self) -> None:
        """Send samples until `finish`, at least LEAST_SAMPLES."""
        try:
            sampler = MachineSampler()
            samples = 0
            while samples < LEAST_SAMPLES or not self._finish.is_set():
                # Not the event's wait: the minimum samples keep their interval even after `finish`.
                time.sleep(SAMPLE_SECONDS)
                for key, value in sampler.sample():
                    at_ns = time.monotonic_ns()
                    future = self._producer.send(METRICS, value, key=key)
                    future.add_done_callback(self._acknowledgements.note)
                    self._sent.append((future, value, at_ns))
                    self.key_bytes += len(key)
                samples += 1
        except BaseException as error:
            self.error = error

    def finish(self) -> None:
        """Stop sending, and wait for the end of the thread."""
        self._finish.set()
        self.join()

    def enter_into(self, ledger: Ledger) -> None:
        """Add the sent records to the ledger, and count offsets that do not ascend in the order of sending.

        Raises:
            HeadraceError: If a record was not delivered.
        """
        for future, value, at_ns in self._sent:
            where = future.result(FLUSH_TIMEOUT_SECONDS)
            part = ledger.partitions[METRICS, where.partition]
            if where.offset != part.records:
                part.out_of_order += 1
            part.add_values([value], at_ns)


def feed(
    producer: headrace.Producer,
    chunks: Iterator[Chunk],
    ledger: Ledger,
    acknowledgements: AcknowledgementTimes,
    stop: threading.Event,
) -> int:
    """Send all chunks by `send_many`, each part to its partition; return the time (ns) of the last acknowledgement.

    Raises:
        DeliveryError: If records were not delivered.
    """
    for chunk in chunks:
        for partition, values in chunk:
            ledger.partitions[ACTIVITY, partition].add_values(values, time.monotonic_ns())
            sent = producer.send_many(ACTIVITY, values, partition=partition)
            for future, _ in sent.parts:
                future.add_done_callback(acknowledgements.note)
        if stop.is_set():
            break
    producer.flush(timeout=FLUSH_TIMEOUT_SECONDS)
    return time.monotonic_ns()
