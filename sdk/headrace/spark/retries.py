"""What the driver does at the end of a micro-batch that was tried before: it sees that every record was found once.

A task cannot know which rows the others have. Where rows are divided among tasks as they were before, each task finds
what is stored under its own number, and nothing else. Where they are not, or where different tasks have the same row, a
task also takes a record for its row that another one stored. The driver adds up what was found twice, which it stores
itself, and what was not found at all, for which there is no cure. A task that finds records under its number that it
does not have leaves its other rows to the driver: they are stored only if some task found each record.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from headrace.client.admin.admin import Admin
from headrace.client.base.records import DecodedBatch
from headrace.client.producer.producer import Producer
from headrace.spark.arrow_columns import keys_of, values_of
from headrace.spark.errors import OtherRowsError
from headrace.spark.identity import DRIVER_TASK, TaskIdentity
from headrace.spark.options import WriteOptions
from headrace.spark.row_digests import DIGEST_BYTES, RowKey, bare, row_key, stored_parts
from headrace.spark.stored_rows import StoredPart, StoredRows
from headrace.spark.task_writer import SHARED_SETTINGS, DeferredRows, TopicReport, send_share
from headrace.wire.ids import TopicPartition


@dataclass(slots=True)
class TaskReport:
    """What one task found of earlier tries."""

    identity: TaskIdentity
    topics: dict[str, TopicReport] = field(default_factory=dict)


def settle(options: WriteOptions, columns: Collection[str], reports: Sequence[TaskReport]) -> int:
    """Compare what all tasks of a micro-batch have found, and store what several of them took for theirs.

    Args:
        options: of the writer.
        columns: that rows have.
        reports: of all tasks that have found earlier tries.

    Returns:
        How many rows were stored now.

    Raises:
        OtherRowsError: earlier tries stored rows that this one does not have.
        HeadraceError: the cluster could not be asked, or rows not be stored.
    """
    shared = {name: value for name, value in options.settings.items() if name in SHARED_SETTINGS}
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
    """How many rows took each record of one topic, less how often it is stored."""

    def __init__(self, topic: str, stored: StoredRows, columns: frozenset[str]) -> None:
        self._topic = topic
        self._stored = stored
        self.with_time, self._with_partition = "timestamp" in columns, "partition" in columns
        self._tasks: set[int] = set()
        self._counts: Counter[RowKey] = Counter()
        self.next_sequences: dict[TopicPartition, int] = {}
        """Of the driver's own records."""

    def add(self, task: int, report: TopicReport) -> None:
        """Count what a task has found."""
        self._tasks.add(task)
        for key, count in report.others.items():
            self._counts[self._bare(key)] += count
        for key, count in report.left.items():
            self._counts[self._bare(key)] -= count

    def missing(self) -> Counter[RowKey]:
        """Return the rows to store: those beyond the records that are stored already.

        Raises:
            OtherRowsError: there are records that no row took.
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
        """Read all that the micro-batch has in the topic."""
        return self._stored.read(self._stored.places(self._topic, all_tasks=True))

    def take(self, wanted: Counter[RowKey], part: StoredPart) -> Iterator[DecodedBatch]:
        """Yield the records of a part that are wanted, one by one and as often as they are; they are then no more."""
        for at, (digest, time_ms) in enumerate(stored_parts(part.decoded)):
            key = self._bare(row_key(digest, time_ms, part.where.partition))
            for _ in range(wanted.pop(key, 0)):
                yield part.decoded.cut(at, at + 1)

    def _bare(self, key: RowKey) -> RowKey:
        return bare(key, with_time=self.with_time, with_partition=self._with_partition)

    def _cancel(self) -> None:
        """Set off against each other what only differs in what a row has not said: its time, or its partition."""
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


def _store(
    options: WriteOptions,
    identity: TaskIdentity,
    balance: _Balance,
    missing: Counter[RowKey],
    deferred: Sequence[DeferredRows],
) -> int:
    """Store records once more, each next to the one that several rows took, and what tasks left."""
    count = missing.total()
    settings = {**options.settings, "producer_id": identity.producer_id, "producer_epoch": identity.batch_id}
    with Producer(**settings) as producer:
        for where, sequence in balance.next_sequences.items():
            producer.continue_from(where, sequence)
        for part in balance.read() if missing else ():
            for one in balance.take(missing, part):
                columns = one.columns
                producer.send(
                    part.where.topic,
                    values_of([one])[0].as_py(),
                    keys_of([one])[0].as_py(),
                    headers=columns.headers(one.start, one.end)[0] or None,
                    partition=part.where.partition,
                    timestamp_ms=columns.timestamps()[one.start] if balance.with_time else None,
                )
        for rows in deferred:
            for share in rows.shares():
                send_share(producer, share)
                count += share.rows.num_rows
    return count
