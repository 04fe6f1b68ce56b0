"""Cases of producing: `send`, `send_many` and Arrow, by batch size, message size, acks and durability."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import headrace
from headrace.wire.columns import encode_batch

from bench.case import Sample
from bench.load import MARKS, PAPER_BYTES, Load, Transport, records_a_batch
from bench.stage import WARM_UP, Meter, Stage, Target, broker_pids

FLUSH_SECONDS = 300.0
KEY_BYTES = 8


@dataclass(frozen=True, slots=True)
class Produce:
    """One way of producing; a call measures it once."""

    way: str = "send_many"
    """`send`, `send_many` or `arrow`."""
    value_bytes: int = 200
    batch_records: int | None = None
    """Records per batch and per call of `send_many`; `None` means batches of 1 MiB."""
    acks: Literal["all", 0, 1] = 1
    return_futures: bool = True
    replication: int = 1
    durability: str = "async"
    codec: Literal["none", "gzip", "lz4", "zstd"] = "none"
    partitions: int = 1
    keyed: bool = False
    """Whether `send` is given a key, by which the partition is chosen."""
    transport: Transport = "native"
    tls: bool = False
    share: float = 1.0
    """Share of the usual load; less for slow cases."""

    def __call__(self, stage: Stage) -> Sample:
        """Send the load to a new topic until all records are acknowledged."""
        load = stage.load(self.value_bytes, self.share)
        with stage.topic(
            brokers=self.replication,
            partitions=self.partitions,
            replication=self.replication,
            durability=self.durability,
            tls=self.tls,
        ) as target:
            batch = self.batch_records or records_a_batch(self.value_bytes)
            values = self.values(load)
            with self.producer(target) as sender:
                for partition in range(self.partitions):
                    sender.send(target.topic, WARM_UP, partition=partition)
                sender.flush(FLUSH_SECONDS)
                meter = Meter(broker_pids(target.cluster))
                started = time.perf_counter()
                warm = sender.stats().sent_records
                marks = []
                for _ in self.send_all(sender, target.topic, values, load):
                    acknowledged = sender.stats().sent_records - warm
                    marks.append((acknowledged * self.value_bytes / 1e6, time.perf_counter() - started))
                sender.flush(FLUSH_SECONDS)
                seconds = time.perf_counter() - started
            figures = meter.figures(load, seconds, load.records / batch)
            if self.acks != 0 and self.codec == "none":
                figures["disk_overhead_bytes_per_record"] = disk_overhead(target, load, self.partitions)
        marks.append((load.total_bytes / 1e6, seconds))
        return Sample(figures, marks if load.value_bytes == PAPER_BYTES else ())

    def producer(self, target: Target) -> headrace.Producer:
        """Return a producer with these settings and otherwise defaults."""
        batch: dict[str, Any] = {} if self.batch_records is None else {"batch_records": self.batch_records}
        if self.batch_records == 1:
            batch["linger_ms"] = 0
        return headrace.Producer(
            acks=self.acks,
            return_futures=self.return_futures,
            compression_type=self.codec,
            transport=self.transport,
            **target.client_settings,
            **batch,
        )

    def send_all(self, sender: headrace.Producer, topic: str, values: Any, load: Load) -> Iterator[int]:
        """Send the load, `values` repeatedly; yield the number of sent records `MARKS` times."""
        step, following, sent = load.records / MARKS, 0.0, 0
        turn = 0
        while sent < load.records:
            left = load.records - sent
            part = values if left >= len(values) else values[:left]
            if self.way == "send":
                send = sender.send
                if self.keyed:
                    for key, value in part:
                        send(topic, value, key=key)
                else:
                    for value in part:
                        send(topic, value)
            elif self.partitions > 1:
                sender.send_many(topic, part, partition=turn % self.partitions)
            else:
                sender.send_many(topic, part)
            turn += 1
            sent += len(part)
            if sent >= following and sent < load.records:
                following += step
                yield sent

    def values(self, load: Load) -> Any:
        """Return the values of one call, or of one iteration of the loop, there with their keys."""
        if self.way == "send":
            values = load.values(min(load.records, records_a_batch(self.value_bytes)))
            return [(value[:KEY_BYTES], value) for value in values] if self.keyed else values
        values = load.values(min(load.records, self.batch_records or records_a_batch(self.value_bytes)))
        if self.way == "arrow":
            import pyarrow as pa

            return pa.array(values, pa.binary())
        return values


def disk_overhead(target: Target, load: Load, warm: int) -> float:
    """Return the bytes per record of the leader's log beyond the values."""
    with headrace.Admin(**target.client_settings) as admin:
        logs = [log for log in admin.describe_logs(target.topic) if log.is_leader]
    stored = sum(log.size_bytes for log in logs)
    before = warm * len(encode_batch([WARM_UP], base_timestamp_ms=0))
    return (stored - before - load.total_bytes) / load.records
