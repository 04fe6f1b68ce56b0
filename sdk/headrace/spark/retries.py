"""End of a retried micro-batch on the driver: it verifies that every stored record was matched exactly once.

A task cannot know the rows of other tasks. If rows are divided as before, each task finds the records stored under its
own number, and no others. Otherwise, or if tasks share a row, a task also matches its row with a record that another
task stored. The driver adds up records that were matched several times, whose missing rows it stores itself, and
records that were not matched, which cannot be repaired. A task that finds records under its number for which it has no
rows leaves its other rows to the driver: they are stored only if some task matched each record.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from headrace.client.admin.admin import Admin
from headrace.client.base.config import shared_settings
from headrace.client.base.records import DecodedBatch
from headrace.client.producer.producer import Producer
from headrace.spark.arrow_columns import keys_of, values_of
from headrace.spark.errors import OtherRowsError
from headrace.spark.identity import DRIVER_TASK, TaskIdentity
from headrace.spark.options import WriteOptions
from headrace.spark.row_digests import DIGEST_BYTES, RowKey, bare, row_key, stored_parts
from headrace.spark.stored_rows import StoredPart, StoredRows
from headrace.spark.task_writer import DeferredRows, TopicReport, send_share
from headrace.wire.ids import TopicPartition
from headrace.wire.typed.topic_columns import parse_columns


@dataclass(slots=True)
class TaskReport:
    """Records of earlier tries that one task found."""

    identity: TaskIdentity
    topics: dict[str, TopicReport] = field(default_factory=dict)


def settle(options: WriteOptions, columns: Collection[str], reports: Sequence[TaskReport]) -> int:
    """Compare the findings of all tasks of a micro-batch, and store rows whose record several tasks matched.

    Args:
        options: options of the writer.
        columns: columns of the rows.
        reports: reports of all tasks that found earlier tries.

    Returns:
        Number of rows stored now.

    Raises:
        OtherRowsError: If earlier tries stored rows that this one does not have.
        HeadraceError: If a request or a write failed.
    """
    shared = shared_settings(options.settings)
    identity = reports[0].identity._replace(task=DRIVER_TASK)
    stored_now = 0
    with closing(Admin(**shared)) as admin:
        stored = StoredRows(shared, admin, identity)
        for topic in sorted({topic for report in reports for topic in report.topics}):
            balance = _Balance(topic, stored, frozenset(columns))
            for report in reports:
                if topic in report.topics:
                    balance.add(report.identity.task, report.topics[topic])
            missing = balance.missing()
            deferred = [found.deferred for report in reports if (found := report.topics.get(topic)) and found.deferred]
            if missing or deferred:
                stored_now += _store(options, identity, balance, missing, deferred)
    return stored_now


class _Balance:
    """Number of rows that matched each record of one topic, less the number of stored copies."""

    def __init__(self, topic: str, stored: StoredRows, columns: frozenset[str]) -> None:
        self._topic = topic
        self._stored = stored
        self.with_time, self._with_partition = "timestamp" in columns, "partition" in columns
        self._tasks: set[int] = set()
        self._counts: Counter[RowKey] = Counter()
        self.next_sequences: dict[TopicPartition, int] = {}
        """Next sequence of the driver's own records."""

    def add(self, task: int, report: TopicReport) -> None:
        """Add the findings of a task."""
        self._tasks.add(task)
        for key, count in report.others.items():
            self._counts[self._bare(key)] += count
        for key, count in report.left.items():
            self._counts[self._bare(key)] -= count

    def missing(self) -> Counter[RowKey]:
        """Return the rows to store: those beyond the stored records.

        Raises:
            OtherRowsError: If there are records that no row matched.
        """
        for where, task, decoded, next_sequence in self.read():
            if task == DRIVER_TASK:
                self.next_sequences[where] = next_sequence
            if task not in self._tasks:  # An earlier try had more tasks, or its driver stored this.
                for digest, time_ms in stored_parts(decoded):
                    self._counts[self._bare(row_key(digest, time_ms, where.partition))] -= 1
        self._cancel()
        if strange := -sum(count for count in self._counts.values() if count < 0):
            raise OtherRowsError(
                f"{self._topic}: earlier tries of this micro-batch stored {strange} rows that it does not have now"
            )
        return +self._counts

    def read(self) -> Iterator[StoredPart]:
        """Read all records of the micro-batch in the topic."""
        return self._stored.read(self._stored.places(self._topic, all_tasks=True))

    def take(self, wanted: Counter[RowKey], part: StoredPart) -> Iterator[DecodedBatch]:
        """Yield the wanted records of a part, one by one and as often as wanted; decrement `wanted`."""
        for at, (digest, time_ms) in enumerate(stored_parts(part.decoded)):
            key = self._bare(row_key(digest, time_ms, part.where.partition))
            for _ in range(wanted.pop(key, 0)):
                yield part.decoded.cut(at, at + 1)

    def _bare(self, key: RowKey) -> RowKey:
        return bare(key, with_time=self.with_time, with_partition=self._with_partition)

    def _cancel(self) -> None:
        """Offset entries that differ only in fields that a row does not have: its time, or its partition."""
        spare: dict[bytes, int] = Counter()
        for key, count in self._counts.items():
            if count < 0:
                spare[key[:DIGEST_BYTES]] -= count
        for key, count in self._counts.items():
            if count > 0 and (found := min(count, spare.get(key[:DIGEST_BYTES], 0))):
                spare[key[:DIGEST_BYTES]] -= found
                self._counts[key] -= found
        for key, count in self._counts.items():
            if count < 0:
                kept = min(-count, spare[key[:DIGEST_BYTES]])
                spare[key[:DIGEST_BYTES]] -= kept
                self._counts[key] = -kept


def _value_of(one: DecodedBatch) -> Any:
    """Return the value of one record: bytes, or the row of a typed topic."""
    typed = one.columns.typed
    return values_of([one])[0].as_py() if typed is None else typed.rows(one.start, one.end, one.current_columns)[0]


def _store(
    options: WriteOptions,
    identity: TaskIdentity,
    balance: _Balance,
    missing: Counter[RowKey],
    deferred: Sequence[DeferredRows],
) -> int:
    """Store records again, each in the partition of the one that several rows matched, and rows left by tasks."""
    count = missing.total()
    settings = {**options.settings, "producer_id": identity.producer_id, "producer_epoch": identity.batch_id}
    topic_columns = parse_columns(options.columns) if options.columns else None
    with Producer(**settings) as producer:
        for where, sequence in balance.next_sequences.items():
            producer.continue_from(where, sequence)
        for part in balance.read() if missing else ():
            for one in balance.take(missing, part):
                columns = one.columns
                has_key_columns = topic_columns is not None and bool(topic_columns.keys)
                producer.send(
                    part.where.topic,
                    _value_of(one),
                    None if has_key_columns else keys_of([one])[0].as_py(),
                    headers=columns.headers(one.start, one.end)[0] or None,
                    partition=part.where.partition,
                    timestamp_ms=columns.timestamps()[one.start] if balance.with_time else None,
                )
        for rows in deferred:
            for share in rows.shares():
                send_share(producer, share, topic_columns)
                count += share.rows.num_rows
    return count
