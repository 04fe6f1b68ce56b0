"""Batch and stream writers: checked on the driver, run by executors.

A writer is created on the driver, serialised to executors, and has no open resources. A row is stored when it is
acknowledged, and a failed job leaves its stored rows: the next try of a streaming query finds them and stores the rest.
So a commit has work only after such a try (`headrace.spark.retries`), and an abort has none.
"""

import contextlib
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from headrace.client.base.errors import ConfigError
from headrace.spark.options import Subscription, WriteOptions, write_options
from headrace.spark.ranges import NO_END
from headrace.spark.subscribed_cluster import SubscribedCluster
from headrace.spark.write_schema import check_write_schema
from headrace.wire.errors import HeadraceError
from headrace.wire.ids import TopicPartition
from headrace.wire.typed.topic_columns import parse_columns

if TYPE_CHECKING:
    from pyarrow import RecordBatch

    from headrace.spark.retries import TaskReport

ASK_BROKER_S = 5.0
_QUERY_ID, _BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
"""Spark's property names of a task's streaming query and micro-batch."""


@dataclass(slots=True)
class RowsWritten(WriterCommitMessage):
    """Result of one task."""

    rows: int
    report: "TaskReport | None" = None
    """Its findings about earlier tries of its micro-batch; `None` if there were none."""


class HeadraceWriter(DataSourceArrowWriter):
    """Writes the rows of a query once."""

    def __init__(self, given: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        """Check everything before the job starts; see `checked`."""
        self._options = checked(given, schema, overwrite, "mode('overwrite'): a topic is only appended to")
        self._job = secrets.token_hex(16)

    def write(self, iterator: Iterator["RecordBatch"]) -> WriterCommitMessage:
        """Write one task's rows."""
        # Not identified by the streaming query of a foreachBatch, which may write twice in one micro-batch.
        return write_task(self._options, iterator, self._job, 0, {})


class HeadraceStreamWriter(DataSourceStreamArrowWriter):
    """Writes the rows of a streaming query, micro-batch by micro-batch."""

    def __init__(self, given: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        """Check everything before the query starts; see `checked`."""
        self._options = checked(given, schema, overwrite, "outputMode('complete'): a topic is only appended to")
        self._columns = row_names(schema, self._options)
        self._ends = log_ends(self._options) if self._options.idempotent_retries else {}
        """Spark creates a writer for every try of a micro-batch, before its tasks begin."""
        self._job = secrets.token_hex(16)

    def write(self, iterator: Iterator["RecordBatch"]) -> WriterCommitMessage:
        """Write one task's rows of a micro-batch."""
        task = TaskContext.get()
        query, batch_id = (task.getLocalProperty(name) if task else None for name in (_QUERY_ID, _BATCH_ID))
        if query and batch_id:
            return write_task(self._options, iterator, query, int(batch_id), self._ends)
        return write_task(self._options, iterator, self._job, 0, {})

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Verify after an earlier try that every row is stored once; otherwise do nothing.

        Raises:
            OtherRowsError: If the earlier try stored rows that the micro-batch does not have now.
        """
        reports = [found.report for found in messages if isinstance(found, RowsWritten) and found.report is not None]
        if reports:
            from headrace.spark.retries import settle

            settle(self._options, self._columns, reports)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: stored rows stay, and the next try of the micro-batch finds them."""


def checked(given: Mapping[str, str], schema: StructType, overwrite: bool, complaint: str) -> WriteOptions:
    """Check the rows to write, and that their topic exists.

    Raises:
        ConfigError: If an option, the schema or the mode is invalid, the topic does not exist, or no server responds.
    """
    if overwrite:
        raise ConfigError(complaint, action="Use append.")
    options = write_options(given)
    if not options.typed:
        check_write_schema(schema, options.topic)
    subscription = Subscription(names=(options.topic,) if options.topic else (), option="topic")
    with closing(SubscribedCluster(options.settings, subscription)) as cluster:
        cluster.partitions()
        if not options.typed:
            return options
        from headrace.spark.typed import columns_text_of
        from headrace.spark.typed_rows import check_typed_schema

        text = columns_text_of(cluster, options.topic)
    check_typed_schema(schema, options.topic, parse_columns(text))
    return replace(options, columns=text)


def row_names(schema: StructType, options: WriteOptions) -> tuple[str, ...]:
    """Return the names of the columns that rows have in a task."""
    if not options.typed:
        return tuple(schema.names)
    from headrace.spark.typed_rows import row_columns

    return row_columns(schema)


def log_ends(options: WriteOptions) -> dict[TopicPartition, int]:
    """Look up the ends of the target logs, including uncommitted records; of all topics if rows name topics."""
    with closing(SubscribedCluster(options.settings, Subscription(option="topic"))) as cluster:
        admin = cluster.admin
        replicas = {
            TopicPartition(topic.name, part.partition): {part.leader_id, *part.in_sync_replicas} - {-1}
            for topic in admin.describe_topics([options.topic] if options.topic else None)
            for part in topic.partitions
        }
        found: dict[tuple[TopicPartition, int], int] = {}
        for broker in sorted({broker for brokers in replicas.values() for broker in brokers}):
            with contextlib.suppress(HeadraceError):
                for log in admin.describe_logs(options.topic or None, brokers=[broker], timeout=ASK_BROKER_S):
                    if not log.offline_reason:
                        found[TopicPartition(log.topic, log.partition), broker] = log.log_end_offset
        return {
            where: max((found.get((where, broker), NO_END) for broker in brokers), default=NO_END)
            for where, brokers in replicas.items()
        }


def write_task(
    options: WriteOptions,
    batches: Iterator["RecordBatch"],
    query: str,
    batch_id: int,
    ends: Mapping[TopicPartition, int],
) -> RowsWritten:
    """Write one task's rows. Runs in an executor and connects only there, because its processes fork."""
    from headrace.spark.identity import TaskIdentity
    from headrace.spark.retries import TaskReport
    from headrace.spark.task_writer import TaskWriter
    from headrace.spark.worker_process import prepare_worker

    prepare_worker()
    task = TaskContext.get()
    identity = TaskIdentity(query, batch_id, task.partitionId() if task else 0)
    with TaskWriter(options, identity, ends) as writer:
        for rows in batches:
            writer.write(rows)
        writer.finish()
        return RowsWritten(writer.rows, TaskReport(identity, writer.reports) if writer.reports else None)
