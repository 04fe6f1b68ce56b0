"""Read of a table, or of another compacted topic, as of an offset or a time: the option `newestPerKey`.

One task reads a partition up to the end, keeps the newest record of each key, and leaves out deleted and expired ones.
Compaction removes records that have a newer one, also if that is after the end, and records that have expired, also if
that is after the time. A compacted batch says how far that went; if it went beyond what is read, the task fails. Runs
in an executor.
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
from headrace.wire.batch import NONE_REMOVED
from headrace.wire.table_keys import expiries_of

ENDS = "headrace.ends_ms"
"""Added column: when a record expires in ms since 1970, `NEVER`, or `DELETED`."""
NEVER, DELETED = 0, -1
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
    newest_ms, gone = 0, NONE_REMOVED
    with closing(records), closing(SubscribedCluster(options.settings, options.subscription)) as cluster:
        start, end = part.start, part.end
        for _ in range(MAX_ROUNDS):
            decoded = read_range(
                options.settings,
                OffsetRange(part.where, start, end),
                fail_on_data_loss=options.fail_on_data_loss,
                topic_id=topic_id,
            )
            with closing(decoded):
                for group in grouped(decoded):
                    newest_ms = max([newest_ms, *map(_newest_ms, group)])
                    for each in group:
                        gone = gone.joined(each.columns.removed)
                    records.add(columns.batch_of(group))
            newer_end = min(gone.newer_end, cluster.offsets([part.where], LATEST)[part.where])
            if newer_end <= end or not as_of.is_latest:
                break
            start, end = end, newer_end
        time_ms = as_of.time_ms if as_of.time_ms >= 0 else newest_ms
        if as_of.is_latest:
            time_ms = time.time_ns() // 1_000_000
        if newer_end > end or (gone.expired_ms > time_ms and not as_of.is_latest):
            what = f"for newer ones up to offset {newer_end}" if newer_end > end else "because they have expired since"
            lost = (
                f"{part.where}: records below offset {end} were compacted, perhaps {what}; read a later offset or "
                "time, or set min_compaction_lag_ms to how far back you read"
            )
            check_data_loss([lost], options.fail_on_data_loss)
        for batch in records.batches():
            yield from columns.shown(batch, time_ms)


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
