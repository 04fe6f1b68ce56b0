"""The cases: what is produced and consumed, and how it is timed. Each returns seconds for a known number of records."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

import headrace
from headrace.wire.columns import encode_batch

BATCH_BYTES = 1 << 20
WARM_UP = b"warm"
"""Sent and acknowledged before the clock starts: connections, metadata and the producer id are there then."""


@dataclass(frozen=True, slots=True)
class Load:
    """What one case moves."""

    records: int
    value_bytes: int

    @property
    def total_bytes(self) -> int:
        """Bytes of all values."""
        return self.records * self.value_bytes

    def values(self) -> list[bytes]:
        """As many values as a batch holds, all different, to be sent over and over."""
        count = records_a_batch(self.value_bytes)
        return [n.to_bytes(4, "big") + bytes(self.value_bytes - 4) for n in range(count)]


def records_a_batch(value_bytes: int) -> int:
    """How many records of this size a batch of 1 MiB holds."""
    return (BATCH_BYTES - 80) // (value_bytes + 4) - 8


def one_batch(load: Load) -> bytes:
    """The batch that the limit is measured with: the bytes that the SDK sends."""
    return encode_batch(load.values(), base_timestamp_ms=0)


@dataclass(frozen=True, slots=True)
class Target:
    """Where a case runs."""

    bootstrap_servers: str
    topic: str


def producer(target: Target, **settings: object) -> headrace.Producer:
    """A producer as the figures ask for: acks=1, no compression, and no sequence of its own settings else."""
    return headrace.Producer(bootstrap_servers=target.bootstrap_servers, acks=1, **settings)


def produce_send(target: Target, load: Load, *, receipts: bool = True) -> float:
    """`send` in a loop, one record a call, until all are acknowledged."""
    values = load.values()
    with producer(target, receipts=receipts) as sender:
        send, topic = sender.send, target.topic
        sender.send(topic, WARM_UP)
        sender.flush(30)
        started = time.perf_counter()
        for _ in range(load.records // len(values)):
            for value in values:
                send(topic, value)
        sender.flush(120)
        return time.perf_counter() - started


def produce_send_unreceipted(target: Target, load: Load) -> float:
    """As `produce_send`, with receipts=False."""
    return produce_send(target, load, receipts=False)


def produce_many(target: Target, load: Load) -> float:
    """`send_many` of lists, a batch's worth a call, until all are acknowledged."""
    values = load.values()
    with producer(target) as sender:
        sender.send(target.topic, WARM_UP).result(30)
        started = time.perf_counter()
        for _ in range(load.records // len(values)):
            sender.send_many(target.topic, values)
        sender.flush(120)
        return time.perf_counter() - started


def produce_arrow(target: Target, load: Load) -> float:
    """`send_many` of Arrow arrays, a batch's worth a call, until all are acknowledged."""
    import pyarrow as pa

    values = pa.array(load.values(), pa.binary())
    with producer(target) as sender:
        sender.send(target.topic, WARM_UP).result(30)
        started = time.perf_counter()
        for _ in range(load.records // len(values)):
            sender.send_many(target.topic, values)
        sender.flush(120)
        return time.perf_counter() - started


def consume_records(target: Target, load: Load) -> float:
    """`for record in consumer`, from the beginning."""
    with headrace.Consumer(
        target.topic, bootstrap_servers=target.bootstrap_servers, auto_offset_reset="earliest"
    ) as consumer:
        records = iter(consumer)
        next(records)
        started = time.perf_counter()
        # A deque of length 0 drains an iterator with the least work a record that Python has; it makes every record.
        deque(islice(records, load.records - 1), maxlen=0)
        return time.perf_counter() - started


def consume_loop(target: Target, load: Load) -> float:
    """As `consume_records`, with a Python statement for each record."""
    with headrace.Consumer(
        target.topic, bootstrap_servers=target.bootstrap_servers, auto_offset_reset="earliest"
    ) as consumer:
        value_bytes = 0
        started = time.perf_counter()
        for record in consumer:
            value_bytes += len(record.value)
            if value_bytes == load.total_bytes + len(WARM_UP):
                break
        return time.perf_counter() - started


def consume_arrow(target: Target, load: Load) -> float:
    """Batches to Arrow, from the beginning."""
    seen = 0
    with headrace.Reader(target.topic, bootstrap_servers=target.bootstrap_servers) as reader:
        started = time.perf_counter()
        for batch in reader.batches():
            seen += batch.to_arrow().num_rows
            if seen >= load.records:
                break
        return time.perf_counter() - started


PRODUCE: dict[str, Callable[[Target, Load], float]] = {
    "send": produce_send,
    "send, receipts=False": produce_send_unreceipted,
    "send_many": produce_many,
    "send_many, Arrow": produce_arrow,
}
CONSUME: dict[str, Callable[[Target, Load], float]] = {
    "for record in consumer": consume_loop,
    "records drained": consume_records,
    "batches to Arrow": consume_arrow,
}
