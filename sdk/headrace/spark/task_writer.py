"""What an executor does to write: Arrow batches in, record batches out, each row stored once however often it is tried.

A task writes under a producer id of its own, made from who writes what (`identity_of`), and sends the same batches in
the same order when it is tried again; so brokers take a second try's batches for what they are. That holds as long as
the rows come again in the same order. Where they do not, counting would drop some rows and store others twice: so
whatever a broker has had before is read back and compared, and the task fails if it is something else.
"""

import contextlib
import hashlib
from collections import deque
from typing import Any, NamedTuple

import pyarrow as pa

from headrace.client.admin import Admin
from headrace.client.config import OWN_PRODUCER_IDS, AdminConfig
from headrace.client.producer import Producer
from headrace.client.receipts import ManyReceipt
from headrace.client.records import Segment
from headrace.spark.arrow_columns import keys_of, values_of
from headrace.spark.errors import DataLossError, RowOrderError
from headrace.spark.options import WriteOptions
from headrace.spark.range_reader import read_range
from headrace.spark.ranges import OffsetRange
from headrace.spark.routes import Share, by_partition, by_topic
from headrace.wire.errors import HeadraceError, OutOfOrderSequenceError
from headrace.wire.ids import TopicPartition

_SHARED_SETTINGS = frozenset(AdminConfig.__dataclass_fields__)


class TaskIdentity(NamedTuple):
    """Who writes: the same for every try of a task."""

    query: str
    """A streaming query's id, or one of a batch write's own."""
    batch_id: int
    """A micro-batch's number; 0 for a batch write."""
    task: int
    """The number of Spark's partition."""

    @property
    def producer_id(self) -> int:
        """A number that only this task of the query has. Micro-batches share it: each is an epoch."""
        digest = hashlib.blake2b(f"{self.query}/{self.task}".encode(), digest_size=8).digest()
        return OWN_PRODUCER_IDS | (int.from_bytes(digest, "big") % OWN_PRODUCER_IDS)


class _Sent(NamedTuple):
    share: Share
    receipt: ManyReceipt


class TaskWriter:
    """Writes one task's rows. One thread; a context manager."""

    def __init__(self, options: WriteOptions, identity: TaskIdentity) -> None:
        """Connect."""
        self._options = options
        settings = dict(options.settings)
        self._shared = {name: value for name, value in settings.items() if name in _SHARED_SETTINGS}
        if options.idempotent_retries:
            settings.update(producer_id=identity.producer_id, producer_epoch=identity.batch_id)
        self._producer = Producer(**settings)
        self._admin = Admin(**self._shared)
        self._ends: dict[str, dict[TopicPartition, int]] = {}
        """Where the partitions of each topic ended before this try wrote to it."""
        self._sent: deque[_Sent] = deque()
        self._turn = identity.task
        self.rows = 0
        """How many were written."""

    def __enter__(self) -> "TaskWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        self._admin.close()
        if kind is None:
            self._producer.close()
        else:
            with contextlib.suppress(HeadraceError):  # The one that is on its way says more.
                self._producer.close(timeout=0.0)

    def write(self, rows: Any) -> None:
        """Send the rows of a `pyarrow.RecordBatch`; waits only while the buffer is full.

        Raises:
            HeadraceError: rows could not be written, these or earlier ones.
        """
        for topic, part in by_topic(rows, self._options.topic):
            count = self._partition_count(topic)
            for share in by_partition(topic, part, count, self._turn % count):
                self._sent.append(_Sent(share, self._send(share)))
        self._turn += 1
        while self._sent and self._sent[0].receipt.done():
            self._settle(self._sent.popleft())

    def finish(self) -> None:
        """Wait until every row is acknowledged.

        Raises:
            HeadraceError: some could not be written.
        """
        while self._sent:
            self._settle(self._sent.popleft())

    def _partition_count(self, topic: str) -> int:
        if topic not in self._ends:
            self._ends[topic] = {
                where: found.offset for where, found in self._admin.list_offsets(topic, "latest").items()
            }
        return len(self._ends[topic])

    def _send(self, share: Share) -> ManyReceipt:
        names = share.rows.schema.names
        column = share.rows.column
        headers = [_pairs(entry) for entry in column("headers").to_pylist()] if "headers" in names else None
        times = None
        if "timestamp" in names:
            micros = column("timestamp").cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_pylist()
            times = [None if at is None else at // 1000 for at in micros]
        return self._producer.send_many(
            share.topic,
            column("value"),
            keys=column("key") if "key" in names else None,
            headers=headers,
            timestamps_ms=times,
            partition=share.partition,
        )

    def _settle(self, sent: _Sent) -> None:
        """Wait for an acknowledgement, and see that what was stored before is what was to be stored."""
        rows, start = sent.share.rows, 0
        try:
            placed = sent.receipt.result()
        except OutOfOrderSequenceError as error:
            raise RowOrderError(TopicPartition(sent.share.topic, sent.share.partition)) from error
        for place, count in placed:
            where = TopicPartition(place.topic, place.partition)
            if self._options.idempotent_retries and 0 <= place.offset < self._ends[place.topic][where]:
                self._compare(OffsetRange(where, place.offset, place.offset + count), rows.slice(start, count))
            start += count
        self.rows += start

    def _compare(self, stored: OffsetRange, rows: Any) -> None:
        """Read back what an earlier try stored."""
        segments: list[Segment] = []
        try:
            segments.extend(read_range(self._shared, stored, fail_on_data_loss=True))
        except DataLossError:
            return  # Retention has it: nothing can be said of it, and nobody reads it.
        for name, values in (("value", values_of(segments)), ("key", keys_of(segments))):
            if name in rows.schema.names and not rows.column(name).cast(pa.binary()).equals(values):
                raise RowOrderError(stored.where)


def _pairs(entry: list[dict[str, Any]] | None) -> list[tuple[str, bytes]] | None:
    return None if entry is None else [(pair["key"], pair["value"]) for pair in entry]
