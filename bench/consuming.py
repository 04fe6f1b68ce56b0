"""Cases of consuming from the start of a topic in the page cache: by record, in batches, to Arrow.

The clock starts once the client is connected, as for the peers' clients.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

import headrace

from bench.case import Sample
from bench.load import MARKS, PAPER_BYTES, Load, Transport, records_a_batch
from bench.stage import Meter, Stage, Target, broker_pids


@dataclass(frozen=True, slots=True)
class Consume:
    """One way of consuming; a call measures it once."""

    way: str = "arrow"
    """`loop`, `drain`, `poll` or `arrow`: see the function of that name."""
    value_bytes: int = 200
    codec: Literal["none", "gzip", "lz4", "zstd"] = "none"
    partitions: int = 1
    batch_records: int | None = None
    """Records per batch of the topic; `None` means batches of 1 MiB."""
    transport: Transport = "native"
    tls: bool = False
    share: float = 1.0
    """Share of the usual load."""

    def __call__(self, stage: Stage) -> Sample:
        """Read the whole topic, which is in the page cache."""
        load = stage.load(self.value_bytes, self.share)
        target = stage.filled(
            load,
            partitions=self.partitions,
            codec=self.codec,
            batch_records=self.batch_records,
            tls=self.tls,
        )
        steps = WAYS[self.way](target, load, self.transport)
        next(steps)
        meter = Meter(broker_pids(target.cluster))
        marks, started, step = [], time.perf_counter(), load.records / MARKS
        following = step
        for records in steps:
            if records >= following or records >= load.records:
                marks.append((records * load.value_bytes / 1e6, time.perf_counter() - started))
                following += step
        seconds = marks[-1][1]
        batch = self.batch_records or records_a_batch(load.value_bytes)
        figures = meter.figures(load, seconds, load.records / batch)
        return Sample(figures, marks if load.value_bytes == PAPER_BYTES else ())


def consumer(target: Target, **settings: Any) -> headrace.Consumer:
    """Return a consumer that reads all partitions from the start, without a group."""
    return headrace.Consumer(target.topic, auto_offset_reset="earliest", **target.client_settings, **settings)


def loop(target: Target, load: Load, transport: Transport) -> Iterator[int]:
    """Consume by `for record in consumer`, with a statement for each record."""
    with consumer(target, transport=transport) as reading:
        yield 0
        seen = value_bytes = 0
        records = iter(reading)
        while seen < load.records:
            part = min(load.records - seen, 50_000)
            for record in islice(records, part):
                value_bytes += len(record.value)
            seen += part
            yield seen
        assert value_bytes == load.total_bytes


def drain(target: Target, load: Load, transport: Transport) -> Iterator[int]:
    """Create every record and discard it: a deque of length 0 consumes an iterator with the least work."""
    with consumer(target, transport=transport) as reading:
        yield 0
        seen, records = 0, iter(reading)
        while seen < load.records:
            part = min(load.records - seen, 50_000)
            deque(islice(records, part), maxlen=0)
            seen += part
            yield seen


def poll(target: Target, load: Load, transport: Transport) -> Iterator[int]:
    """Consume by `consumer.poll()`: batches, whose values are read as lists."""
    with consumer(target, transport=transport) as reading:
        yield 0
        seen = 0
        while seen < load.records:
            batch = reading.poll(timeout=10.0)
            seen += len([record.value for record in batch])
            yield seen


def arrow(target: Target, load: Load, transport: Transport) -> Iterator[int]:
    """Consume by `Reader.batches()`, each converted to Arrow."""
    seen = 0
    with headrace.Reader(target.topic, transport=transport, **target.client_settings) as reader:
        yield 0
        for batch in reader.batches(timeout=30.0):
            seen += batch.to_arrow().num_rows
            yield seen
    assert seen == load.records


WAYS = {"loop": loop, "drain": drain, "poll": poll, "arrow": arrow}
