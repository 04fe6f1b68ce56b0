"""Batch reader: ranges are fixed once on the driver, and read by executors.

`partitions` runs where the query is planned, `read` in executors. The object is serialised in between, so it has
options and no open resources.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from headrace.spark.errors import check_data_loss
from headrace.spark.filters import Pushed
from headrace.spark.option_table import BATCH
from headrace.spark.options import ReadOptions, read_options
from headrace.spark.ranges import AsOf, OffsetRange, check_order, split, within_log
from headrace.spark.schema import check_read_schema
from headrace.spark.starting_offsets import LATEST, LATEST_OFFSET, OffsetBound
from headrace.spark.subscribed_cluster import SubscribedCluster
from headrace.spark.typed_filters import ColumnFilters, Where
from headrace.wire.ids import TopicPartition
from headrace.wire.typed.topic_columns import parse_columns

if TYPE_CHECKING:
    from pyarrow import RecordBatch


@dataclass(slots=True)
class RangePartition(InputPartition):
    """Range of offsets of one task."""

    part: OffsetRange
    topic_id: str = ""
    """Topic id of the range, in hexadecimal; empty means any topic of the name."""
    as_of: AsOf | None = None
    """Moment of which the newest records are read; `None` means all records."""
    columns: Where = ()
    """Ranges of a typed topic's columns, outside of which rows are left out."""

    @property
    def value(self) -> str:
        """Text in Spark's errors."""
        return f"{self.part.where} from {self.part.start} to {self.part.end}"


def read_partition(options: ReadOptions, schema: StructType, partition: InputPartition) -> Iterator["RecordBatch"]:
    """Read one task's range. Runs in an executor and connects only there, because its processes fork."""
    if not isinstance(partition, RangePartition):  # Spark's own, for a query that reads nothing.
        return
    from headrace.spark.arrow_columns import ArrowColumns
    from headrace.spark.range_reader import read_range
    from headrace.spark.worker_process import prepare_worker

    prepare_worker()
    part = partition.part
    topic_id = bytes.fromhex(partition.topic_id)
    if partition.as_of is not None:
        from headrace.spark.as_of import read_as_of

        yield from read_as_of(options, schema, part, topic_id, partition.as_of)
        return
    if options.typed:
        from headrace.spark.typed import read_typed

        yield from read_typed(options, schema, part, topic_id, partition.columns)
        return
    decoded_batches = read_range(options.settings, part, fail_on_data_loss=options.fail_on_data_loss, topic_id=topic_id)
    with closing(decoded_batches):
        yield from ArrowColumns(schema, part.where).batches(decoded_batches)


def check_schema(options: ReadOptions, schema: StructType) -> None:
    """Check a schema that may be the user's.

    Raises:
        ConfigError: If it is invalid.
    """
    if options.typed:
        from headrace.spark.typed import check_typed

        check_typed(options, schema)
    else:
        check_read_schema(schema)


def make_reader(given: Mapping[str, str], schema: StructType) -> "HeadraceReader":
    """Return a reader, after all checks that need no request to the cluster.

    Raises:
        ConfigError: If an option or the schema is invalid.
    """
    options = read_options(given, BATCH)
    check_schema(options, schema)
    return PushingReader(options, schema) if options.push_filters else HeadraceReader(options, schema)


class HeadraceReader(DataSourceReader):
    """Reads a bounded part of topics. One planning thread; see the module."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        """See `make_reader`."""
        self._schema = schema
        self._options = options
        self._pushed = Pushed()
        self._columns = ColumnFilters(self._pushed) if options.typed else None

    def partitions(self) -> Sequence[InputPartition]:
        """Fix the ranges to read, and divide them over tasks.

        Raises:
            ConfigError: If a topic does not exist, offsets are outside the log, or no server responds.
            DataLossError: If the log starts after a requested offset.
        """
        options = self._options
        with closing(SubscribedCluster(options.settings, options.subscription)) as cluster:
            ranges = self._ranges(cluster, cluster.partitions())
            ids = cluster.topic_ids
            columns = self._where(cluster)
        as_of = self._as_of if options.newest_per_key else lambda _: None
        return [
            RangePartition(part, ids[part.where.topic], as_of(part.where), columns)
            for part in split(ranges, options.min_partitions, options.max_records_per_partition)
        ]

    def _where(self, cluster: SubscribedCluster) -> Where:
        if self._columns is None or not self._columns.has_ranges:
            return ()
        from headrace.spark.typed import columns_text_of

        text = columns_text_of(cluster, self._options.typed_topic)
        return self._columns.where(self._schema, parse_columns(text))

    def _as_of(self, where: TopicPartition) -> AsOf:
        end = self._options.end
        of_times = -1 if end.times_ms is None else end.times_ms[where]
        is_latest = end.word == LATEST or (end.offsets is not None and end.offsets[where] == LATEST_OFFSET)
        return AsOf(is_latest, max(end.time_ms, of_times))

    def _ranges(self, cluster: SubscribedCluster, partitions: list[TopicPartition]) -> list[OffsetRange]:
        options = self._options
        earliest, latest = cluster.bounds(partitions)
        starts, ends = (
            _within_ends(bound, cluster.edge_offsets(bound, partitions, earliest, latest), latest)
            for bound in (options.start, options.end)
        )
        wanted = [OffsetRange(where, starts[where], ends[where]) for where in partitions]
        check_order(wanted, latest, options.start.option, options.end.option)
        pushed = self._pushed
        left = [pushed.cut(part) for part in wanted if pushed.wants(part.where)]
        kept, losses = within_log(left, earliest)
        check_data_loss(losses, options.fail_on_data_loss)
        if pushed.not_before_ms < 0:
            return kept
        at_time = cluster.offsets([part.where for part in kept], pushed.not_before_ms)
        return [OffsetRange(part.where, max(part.start, at_time[part.where]), part.end) for part in kept]

    def read(self, partition: InputPartition) -> Iterator["RecordBatch"]:
        """Read one task's range."""
        return read_partition(self._options, self._schema, partition)


def _within_ends(
    bound: OffsetBound, found: Mapping[TopicPartition, int], latest: Mapping[TopicPartition, int]
) -> Mapping[TopicPartition, int]:
    """Return offsets up to the log ends: a record found by time may have been written after the ends were looked up."""
    return found if bound.offsets is not None else {where: min(at, latest[where]) for where, at in found.items()}


class PushingReader(HeadraceReader):
    """Reader that accepts filters: the option `pushFilters`.

    A separate class, because Spark raises an error for one that accepts them while
    `spark.sql.python.filterPushdown.enabled` is off. Used only on request, because Spark (4.3.0) keeps the plan of a
    data frame's first query, and reads no more than that in a second query with other filters: rows would be missing
    without an error.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:
        """Accept filters, and yield those that are not applied exactly."""
        take = self._pushed.take if self._columns is None else self._columns.take
        return iter([condition for condition in filters if not take(condition)])
