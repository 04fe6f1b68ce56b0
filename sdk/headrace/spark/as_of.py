"""Read of a table, or of another compacted topic, as of an offset or a time: the option `newestPerKey`.

One task reads a partition up to the end, keeps the newest record of each key, and leaves out deleted and expired ones.
It may not: compaction removes records that have a newer one, also if that is after the end. Where offsets without a
record are met, the answer is exact only if nothing from the end on can have been compacted yet; otherwise the task
fails. Runs in an executor.
"""

import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from headrace.client.base.records import DecodedBatch
from headrace.spark.arrow_columns import ArrowColumns, grouped
from headrace.spark.errors import check_data_loss
from headrace.spark.newest_records import KEY, NewestRecords
from headrace.spark.options import ReadOptions
from headrace.spark.range_reader import read_range
from headrace.spark.ranges import AsOf, OffsetRange
from headrace.spark.schema import COLUMNS
from headrace.spark.starting_offsets import LATEST
from headrace.spark.subscribed_cluster import SubscribedCluster
from headrace.wire.table_keys import expiries_of

ENDS = "headrace.ends_ms"
"""Added column: when a record expires in ms since 1970, `NEVER`, or `DELETED`."""
NEVER, DELETED = 0, -1
CLOCK_MARGIN_MS = 60_000
"""Clocks of brokers and of this machine may differ by as much."""
MAX_ROUNDS = 20


def read_as_of(
    options: ReadOptions, schema: StructType, part: OffsetRange, topic_id: bytes, as_of: AsOf
) -> Iterator[Any]:
    """Yield the newest records of one partition as Arrow batches.

    Raises:
        DataLossError: If compaction may have removed records that were the newest of their keys at the end.
    """
    if part.start and not as_of.is_latest:
        lost = f"{part.where}: the first {part.start} records were removed, perhaps after the moment that is read"
        check_data_loss([lost], options.fail_on_data_loss)
    columns = _Columns(schema, part)
    records = NewestRecords(columns.schema)
    newest_ms = 0
    with closing(records), closing(SubscribedCluster(options.settings, options.subscription)) as cluster:
        start, end, removed = part.start, part.end, 0
        for _ in range(MAX_ROUNDS):
            count = 0
            decoded = read_range(
                options.settings,
                OffsetRange(part.where, start, end),
                fail_on_data_loss=options.fail_on_data_loss,
                topic_id=topic_id,
            )
            with closing(decoded):
                for group in grouped(decoded):
                    count += sum(each.end - each.start for each in group)
                    newest_ms = max([newest_ms, *map(_newest_ms, group)])
                    records.add(columns.batch_of(group))
            gaps = end - start - count
            removed += gaps
            later = cluster.offsets([part.where], LATEST)[part.where]
            if not gaps or not as_of.is_latest or later == end:
                break
            start, end = end, later  # What was removed has a newer record below `later`.
        else:
            gaps = removed
        if gaps and later > end and end < _uncompacted_from(cluster, part, later):
            lost = (
                f"{part.where}: {removed} records below offset {end} were compacted, perhaps for newer ones from there "
                "on; read a later offset or time, or set min_compaction_lag_ms to how far back you read"
            )
            check_data_loss([lost], options.fail_on_data_loss)
        time_ms = as_of.time_ms if as_of.time_ms >= 0 else newest_ms
        if as_of.is_latest:
            time_ms = time.time_ns() // 1_000_000
        for batch in records.batches():
            yield from columns.shown(batch, time_ms)


def _uncompacted_from(cluster: SubscribedCluster, part: OffsetRange, later: int) -> int:
    """Return the offset from which no record can have been compacted, nor be the reason that another one was."""
    topic, number = part.where
    lag_ms = int(cluster.admin.describe_config(topic)["min_compaction_lag_ms"].value)
    if lag_ms <= CLOCK_MARGIN_MS:
        return later
    since_ms = time.time_ns() // 1_000_000 - lag_ms + CLOCK_MARGIN_MS
    found = cluster.admin.list_offsets(topic, since_ms, by="append", partitions=[number])
    return found[part.where].offset


class _Columns:
    """Arrow batches with the columns of the query, the key, and `ENDS`."""

    def __init__(self, schema: StructType, part: OffsetRange) -> None:
        named = list(schema) + ([] if KEY in schema.names else [StructField(KEY, COLUMNS[KEY])])
        self._columns = ArrowColumns(StructType(named), part.where)
        self._shown = to_arrow_schema(schema, timezone="UTC")
        own = to_arrow_schema(StructType(named), timezone="UTC")
        self.schema = own.append(pa.field(ENDS, pa.int64()))

    def batch_of(self, group: list[DecodedBatch]) -> Any:
        """Return the records of a group that have a key."""
        batches = list(self._columns.batches(group))
        ends = np.concatenate([_ends(each) for each in group])
        table = pa.Table.from_batches(batches).append_column(ENDS, pa.array(ends))
        [batch] = table.combine_chunks().to_batches() or [None]
        if batch is None:
            return pa.RecordBatch.from_pylist([], schema=self.schema)
        batch = batch.cast(self.schema) if batch.schema != self.schema else batch
        keys = batch.column(KEY)
        return batch.filter(keys.is_valid()) if keys.null_count else batch

    def shown(self, batch: Any, time_ms: int) -> Iterator[Any]:
        """Yield the records that are there at a time, with the columns of the query."""
        ends = batch.column(ENDS).to_numpy()
        batch = batch.filter(pa.array((ends == NEVER) | (ends > time_ms)))
        if len(batch):
            yield pa.RecordBatch.from_arrays([batch.column(name) for name in self._shown.names], schema=self._shown)


def _ends(decoded: DecodedBatch) -> Any:
    """Return `ENDS` of some records: int64[n]."""
    columns, start, end = decoded.columns, decoded.start, decoded.end
    ends = expiries_of(columns)[start:end]
    ends[~columns.value_column.valid()[start:end]] = DELETED
    return ends


def _newest_ms(decoded: DecodedBatch) -> int:
    columns = decoded.columns
    if columns.timestamps_ms is None or decoded.is_empty:
        return int(columns.header.base_timestamp_ms)
    return int(columns.timestamps_ms[decoded.start : decoded.end].max())
