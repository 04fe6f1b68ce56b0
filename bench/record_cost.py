"""`python -m bench.record_cost`: cost of one record in the thread that sends or reads it, without a server.

Each step is repeated and its minimum time counts, so that other load matters little. A batch of a producer without a
server is discarded instead of encoded; encoding and the steps around it are measured separately.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import headrace
import typer
from headrace.client.base.records import DecodedBatch, Deserializers
from headrace.client.consumer.record_cursor import RecordCursor
from headrace.client.producer.futures import PendingBatch
from headrace.client.producer.partition_queue import PartitionQueue, SealedBatch
from headrace.client.producer.sender import Encodes
from headrace.v1 import cluster_pb2
from headrace.wire.batch import check_batch
from headrace.wire.columns import decode_batch
from headrace.wire.encoding import batch_parts, encode_batch, lengths_of
from headrace.wire.ids import TopicPartition
from rich.console import Console
from rich.table import Table

from bench.load import Load, records_a_batch
from bench.producing import KEY_BYTES

TOPIC = "records"
NO_LIMIT = 2**31 - 1


class Unsent(headrace.Producer):
    """Producer whose sealed batches are discarded."""

    def __init__(self, *, return_futures: bool = True, partitions: int = 1) -> None:
        super().__init__(bootstrap_servers="127.0.0.1:1", return_futures=return_futures, linger_ms=10_000)
        topic = cluster_pb2.TopicMetadata(name=TOPIC, topic_id=bytes(16), max_batch_bytes=1 << 20)
        for partition in range(partitions):
            topic.partitions.add(partition=partition, leader_id=1, leader_epoch=0)
        broker = cluster_pb2.BrokerMetadata(broker_id=1, address="127.0.0.1:1")
        core = self._core
        core.sender.cluster_metadata.update(cluster_pb2.GetMetadataResponse(brokers=[broker], topics=[topic]))
        core._install(core.sender.cluster_metadata.require(TOPIC))
        core.sender.enqueue = self._enqueue  # type: ignore[method-assign]
        core.sender.encode = self._complete  # type: ignore[method-assign]
        core.sender.dispatch = lambda: None  # type: ignore[method-assign]

    def _enqueue(
        self, partition_queue: PartitionQueue, pending: PendingBatch, records: int, reserved_bytes: int
    ) -> SealedBatch:
        return SealedBatch(partition_queue, pending, records, reserved_bytes, 0)

    def _complete(self, batch: SealedBatch, start: int, source: Encodes) -> None:
        self._core.buffer_pool.release(batch.reserved_bytes)
        batch.pending.complete((0,), None)


class Named:
    """Object with an empty method with the parameters of `send`."""

    def send(
        self, topic: str, value: Any, key: Any = None, headers: Any = None, partition: Any = None, at: Any = None
    ) -> None:
        """Do nothing."""


def least_ns(work: Callable[[], Any], records: int, repeat: int) -> float:
    """Return the minimum time of `work` per record, in ns."""
    times = []
    for _ in range(repeat):
        started = time.perf_counter_ns()
        work()
        times.append(time.perf_counter_ns() - started)
    return min(times) / records


def sending(send: Callable[[str, bytes], Any], values: Sequence[bytes]) -> Callable[[], None]:
    """Return a function with a `send` loop."""

    def loop() -> None:
        for value in values:
            send(TOPIC, value)

    return loop


def sending_keyed(send: Callable[..., Any], records: Sequence[tuple[bytes, bytes]]) -> Callable[[], None]:
    """Return a function with a `send` loop with keys."""

    def loop() -> None:
        for key, value in records:
            send(TOPIC, value, key=key)

    return loop


def measure(value_bytes: int, repeat: int) -> dict[str, float]:
    """Return the ns per record of every step by name."""
    records = records_a_batch(value_bytes)
    values = Load(records=records, value_bytes=value_bytes).values()
    stamp: dict[str, Any] = {"base_timestamp_ms": 1, "producer_id": 1, "producer_epoch": 0, "base_sequence": 0}
    parts, batch = batch_parts(values, **stamp), encode_batch(values, **stamp)
    columns = decode_batch(batch, max_payload_bytes=NO_LIMIT)
    decoded = DecodedBatch(TopicPartition(TOPIC, 0), columns, 0, records, Deserializers())

    def checked() -> None:
        check_batch(batch, max_batch_bytes=NO_LIMIT, max_records=NO_LIMIT, max_payload_bytes=NO_LIMIT)

    def looped() -> None:
        for _ in RecordCursor(decoded, 1).records():
            pass

    keys = [value[:KEY_BYTES] for value in values]
    without_futures, producer, keyed = Unsent(return_futures=False), Unsent(), Unsent(partitions=10)
    steps: dict[str, Callable[[], Any]] = {
        "a method call with the parameters of send": sending(Named().send, values),
        "send, return_futures=False": sending(without_futures.send, values),
        "send": sending(producer.send, values),
        "send, keys, 10 partitions": sending_keyed(keyed.send, [*zip(keys, values, strict=True)]),
        "encoding a batch": lambda: batch_parts(values, **stamp),
        "- of which joining the values": lambda: b"".join(values),
        "- of which their lengths": lambda: lengths_of(values),
        "encoding one with keys": lambda: batch_parts(values, keys, **stamp),
        "writing it into a request": lambda: b"".join(parts),
        "checking a batch": checked,
        "decoding it": lambda: decode_batch(batch, max_payload_bytes=NO_LIMIT),
        "for record in consumer": looped,
        "- of which the values": columns.value_column.to_list,
    }
    with without_futures, producer, keyed:
        return {name: round(least_ns(work, records, repeat), 1) for name, work in steps.items()}


def main(
    value_bytes: Annotated[int, typer.Option(help="Size of a value in bytes.", min=1)] = 200,
    repeat: Annotated[int, typer.Option(help="Repetitions of each step.", min=1)] = 100,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print the cost of a record, step by step."""
    found = measure(value_bytes, repeat)
    if as_json:
        print(json.dumps(found, indent=1))
        return
    table = Table("step, batches of 1 MiB", "ns a record")
    for name, cost in found.items():
        table.add_row(name, f"{cost:.1f}")
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
