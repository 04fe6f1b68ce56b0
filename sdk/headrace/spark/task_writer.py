"""Writes of an executor: Arrow batches in, record batches out, each row stored once regardless of retries.

A task writes with its own producer id, derived from its `TaskIdentity`, so leaders can report the records that earlier
tries of its micro-batch have stored. If there are none, rows are sent at once. Otherwise the task holds its rows, reads
the stored records, removes them from its rows, and sends the rest after them, regardless of the order of its rows and
of changes in the topic's partitions. Rows that another task stored in another division of the rows are found, too. The
driver verifies that each record was matched by as many rows as it has copies, and stores rows that may not be those of
the earlier try (`headrace.spark.retries`).

Two concurrent tries share the sequences of the task: leaders accept a sequence once, and the second try reads the
record that it met.
"""

import contextlib
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa

from headrace.client.admin.admin import Admin
from headrace.client.base.config import shared_settings
from headrace.client.producer.futures import BatchFuture
from headrace.client.producer.producer import Producer
from headrace.spark.errors import DataLossError, OtherRowsError
from headrace.spark.held_rows import HeldRows
from headrace.spark.identity import TaskIdentity
from headrace.spark.options import WriteOptions
from headrace.spark.range_reader import read_range
from headrace.spark.ranges import NO_END, OffsetRange
from headrace.spark.routes import Share, by_partition, by_topic
from headrace.spark.row_digests import NO_TIME, RowKey, row_key, row_parts, stored_parts, times_of
from headrace.spark.stored_rows import Stored, StoredRows, below
from headrace.spark.typed_rows import converted
from headrace.wire.errors import HeadraceError, MetastoreUnavailableError, Outcome, OutOfOrderSequenceError
from headrace.wire.ids import TopicPartition
from headrace.wire.typed.topic_columns import TopicColumns, parse_columns

MAX_DEFERRED_BYTES = 32 * 1024 * 1024
"""Maximum bytes of rows that a task leaves to the driver."""
Ends = Mapping[TopicPartition, int]


@dataclass(slots=True)
class TopicReport:
    """Records of earlier tries that a task found in one topic."""

    others: Counter[RowKey] = field(default_factory=Counter)
    """Records that other tasks stored and that equal rows of this one."""
    left: Counter[RowKey] = field(default_factory=Counter)
    """Records stored under this task's number that are not among its rows."""
    deferred: "DeferredRows | None" = None
    """Rows not stored yet: the driver stores them once it has verified that all records are matched."""


class DeferredRows:
    """Rows sent to the driver, with their partitions."""

    def __init__(self, shares: Iterable[Share]) -> None:
        self._topic = ""
        self._partitions: list[int] = []
        self._data: list[bytes] = []
        for share in shares:
            self._topic = share.topic
            self._partitions.append(share.partition)
            with pa.BufferOutputStream() as sink:
                with pa.ipc.new_stream(sink, share.rows.schema) as writer:
                    writer.write_batch(share.rows)
                self._data.append(sink.getvalue().to_pybytes())
            if self.size_bytes > MAX_DEFERRED_BYTES:
                break

    @property
    def size_bytes(self) -> int:
        """Size of all rows in serialised form."""
        return sum(map(len, self._data))

    def shares(self) -> Iterator[Share]:
        """Yield the rows."""
        for partition, data in zip(self._partitions, self._data, strict=True):
            for rows in pa.ipc.open_stream(data):
                yield Share(self._topic, partition, rows)


class _Target:
    """Topic of a write."""

    def __init__(self, topic: str, partitions: int, earlier: Stored, held: HeldRows | None) -> None:
        self.topic = topic
        self.partitions = partitions
        self.earlier = earlier
        """Records that earlier tries have stored, of all tasks."""
        self.held = held
        """`None` means that nothing was stored before, so rows are sent at once."""


class _Sent(NamedTuple):
    share: Share
    future: BatchFuture


class TaskWriter:
    """Writes the rows of one task. One thread; a context manager."""

    def __init__(self, options: WriteOptions, identity: TaskIdentity, ends: Ends) -> None:
        """Connect. `ends` has the log ends before this try of the micro-batch, 0 if unknown: records of this
        micro-batch below them are of earlier tries.
        """
        self._options = options
        self._columns = parse_columns(options.columns) if options.columns else None
        self._identity = identity
        self._ends_before = ends
        settings = dict(options.settings)
        self._shared = shared_settings(settings)
        if options.idempotent_retries:
            settings.update(producer_id=identity.producer_id, producer_epoch=identity.batch_id)
        self._producer = Producer(**settings)
        self._admin = Admin(**self._shared)
        self._stored = StoredRows(self._shared, self._admin, identity)
        self._targets: dict[str, _Target] = {}
        self._sent: deque[_Sent] = deque()
        self._turn = identity.task
        self.rows = 0
        """Number of rows written, or stored before."""
        self.reports: dict[str, TopicReport] = {}
        """Findings about earlier tries, by topic; has a topic if any task has stored records in it."""

    def __enter__(self) -> "TaskWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        for target in self._targets.values():
            if target.held is not None:
                target.held.close()
        self._admin.close()
        if kind is None:
            self._producer.close()
        else:
            with contextlib.suppress(HeadraceError):  # The exception in progress is more specific.
                self._producer.close(timeout=0.0)

    def write(self, rows: Any) -> None:
        """Send the rows of a `pyarrow.RecordBatch`, or hold them; waits only while the buffer is full.

        Raises:
            HeadraceError: If rows could not be written, these or earlier ones.
        """
        if self._columns is not None:
            rows = converted(rows, self._options.topic, self._columns)
        for topic, part in by_topic(rows, self._options.topic):
            target = self._target(topic)
            for share in by_partition(topic, part, target.partitions, self._turn % target.partitions):
                if target.held is None:
                    self._send(share)
                else:
                    target.held.add(share)
        self._turn += 1
        while self._sent and self._sent[0].future.done():
            self._settle(self._sent.popleft())

    def finish(self) -> None:
        """Send held rows that are not stored, and wait until every row is acknowledged.

        Raises:
            OtherRowsError: If another try of this task is running, or earlier ones stored rows that it does not have,
                and it has too many others for the driver.
            HeadraceError: If some could not be written.
        """
        if self._options.topic:  # A task without rows must report what it stored when it had some.
            self._target(self._options.topic)
        for target in self._targets.values():
            if target.held is not None and not self._defers(target, target.held):
                for share in target.held.left():
                    self._send(share)
        while self._sent:
            self._settle(self._sent.popleft())

    def _target(self, topic: str) -> _Target:
        known = self._targets.get(topic)
        if known is None:
            known = self._targets[topic] = self._look_at(topic)
        return known

    def _look_at(self, topic: str) -> _Target:
        if not self._options.idempotent_retries:
            return _Target(topic, self._producer.partitions_for(topic), {}, None)
        places = self._stored.places(topic, all_tasks=True)
        ends = self._ends_of(topic, places)
        earlier = below(places, ends)
        is_end_unknown = any(ends.get(where) == NO_END for where in places)
        if _any(earlier) or is_end_unknown:  # Without an end, other tasks take what this one stores for an earlier try.
            self.reports[topic] = TopicReport()
        tried = _any(earlier) or (_any(places) and _any(self._stored.places(topic, all_tasks=False)))
        return _Target(topic, len(places), earlier, HeldRows(topic) if tried else None)

    def _ends_of(self, topic: str, places: Stored) -> Ends:
        """Return the log ends before this try; unknown for a partition that the driver's metadata omitted.

        Raises:
            MetastoreUnavailableError: If the metadata of this task omits one: records in it would be stored twice.
        """
        known = {where: end for where, end in self._ends_before.items() if where.topic == topic}
        if omitted := sorted(known.keys() - places.keys()):
            raise MetastoreUnavailableError(
                f"the metadata of {topic} omits {omitted[0]} and is therefore out of date", outcome=Outcome.NOT_APPLIED
            )
        return {**dict.fromkeys(places, NO_END), **known} if known else {}

    def _defers(self, target: _Target, held: HeldRows) -> bool:
        """Remove stored records from the held rows and continue after them; return whether the rest goes to the driver.

        It does if records are stored under this task's number that are not among its rows.

        Raises:
            OtherRowsError: If this try has stored rows that are missing now, or there are too many rows for the driver.
        """
        report = self.reports.get(target.topic, TopicReport())
        strange: Counter[tuple[str, int]] = Counter()
        before = self._ends_before
        for where, task, decoded, next_sequence in self._stored.read(
            self._stored.places(target.topic, all_tasks=False)
        ):
            if task != self._identity.task:
                continue
            self._producer.continue_from(where, next_sequence)
            for digest, time_ms in stored_parts(decoded):
                if held.take(digest, time_ms, where.partition):
                    self.rows += 1
                    continue
                if decoded.base_offset >= before.get(where, 0):
                    raise OtherRowsError(
                        f"{where}: another try of task {task} has stored rows that this one does not have"
                    )
                strange[where] += 1
                report.left[row_key(digest, time_ms, where.partition)] += 1
        if held.count:
            for where, task, decoded, _ in self._stored.read(target.earlier):
                if task == self._identity.task:
                    continue
                for digest, time_ms in stored_parts(decoded):
                    if held.take(digest, time_ms, where.partition):
                        self.rows += 1
                        report.others[row_key(digest, time_ms, where.partition)] += 1
        if strange and any(strange[share.topic, share.partition] for share in held.left()):
            # They are not an earlier try's rows, or were divided differently among tasks, which the driver decides.
            report.deferred = DeferredRows(held.left())
            if report.deferred.size_bytes > MAX_DEFERRED_BYTES:
                raise OtherRowsError(
                    f"{target.topic}: earlier tries of micro-batch {self._identity.batch_id} stored "
                    f"{strange.total()} rows by task {self._identity.task} that it does not have now, and it has more "
                    f"than {MAX_DEFERRED_BYTES >> 20} MiB of others; it has stored nothing this time"
                )
            self.rows += held.count
            return True
        return False

    def _send(self, share: Share) -> None:
        self._sent.append(_Sent(share, send_share(self._producer, share, self._columns)))

    def _settle(self, sent: _Sent) -> None:
        """Wait for an acknowledgement; if the leader had the record before, verify that it is the same."""
        rows, start = sent.share.rows, 0
        where = TopicPartition(sent.share.topic, sent.share.partition)
        try:
            placed = sent.future.result()
        except OutOfOrderSequenceError as error:
            raise _other_try(where, self._identity.task) from error
        for (future, _), (place, count) in zip(sent.future.parts, placed, strict=True):
            if self._options.idempotent_retries and future.batch.repeated:
                if place.offset < 0:
                    raise _other_try(where, self._identity.task)
                self._check_same(OffsetRange(where, place.offset, place.offset + count), rows.slice(start, count))
            start += count
        self.rows += start

    def _check_same(self, stored: OffsetRange, rows: Any) -> None:
        """Read back records that a leader had before: of this try after a lost response, or of another one."""
        wanted = list(row_parts(rows))
        found: list[tuple[bytes, int]] = []
        try:
            for decoded in read_range(self._shared, stored, fail_on_data_loss=True):
                found += stored_parts(decoded)
        except DataLossError:
            return  # Retention has removed it already: this try or the other one has stored it.
        if len(found) != len(wanted) or any(
            digest != other or at not in (NO_TIME, time_ms)
            for (digest, at, _), (other, time_ms) in zip(wanted, found, strict=True)
        ):
            raise _other_try(stored.where, self._identity.task)


def send_share(producer: Producer, share: Share, columns: TopicColumns | None) -> BatchFuture:
    """Send rows to their partition; `columns` are those of a typed topic."""
    names = share.rows.schema.names
    column = share.rows.column
    if columns is not None:
        return producer.send_table(
            share.topic,
            pa.RecordBatch.from_struct_array(column("value")),
            keys=column("key") if "key" in names and not columns.keys else None,
            timestamps_ms=times_of(share.rows),
            partition=share.partition,
        )
    return producer.send_many(
        share.topic,
        column("value"),
        keys=column("key") if "key" in names else None,
        headers=[_pairs(entry) for entry in column("headers").to_pylist()] if "headers" in names else None,
        timestamps_ms=times_of(share.rows),
        partition=share.partition,
    )


def _any(places: Stored) -> bool:
    return any(place.start >= 0 for place in places.values())


def _other_try(where: TopicPartition, task: int) -> OtherRowsError:
    return OtherRowsError(f"{where}: another try of task {task} has stored rows here while this one wrote")


def _pairs(entry: list[dict[str, Any]] | None) -> list[tuple[str, bytes]] | None:
    return None if entry is None else [(pair["key"], pair["value"]) for pair in entry]
