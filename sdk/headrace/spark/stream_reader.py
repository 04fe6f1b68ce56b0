"""Stream reader: micro-batches between offsets in Spark's checkpoint, so that each record counts once.

All methods except `read` run in one process next to the driver, one call at a time, during the whole query. Spark
stores the end of a micro-batch before it runs it. After a restart the same end is passed again, and the records of a
micro-batch depend only on its two offsets.

Spark requests the latest offset dozens of times a second while there are no new records. A result without progress is
therefore delayed, so that the cluster receives at most `IDLE_ASKS_A_SECOND` requests.
"""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from headrace.client.base.errors import ConfigError
from headrace.spark.errors import check_data_loss
from headrace.spark.option_table import STREAM
from headrace.spark.options import ReadOptions, read_options
from headrace.spark.position_commits import StreamCommits
from headrace.spark.ranges import OffsetRange, limited, split, within_log
from headrace.spark.reader import RangePartition, check_schema, read_partition
from headrace.spark.starting_offsets import EARLIEST, LATEST
from headrace.spark.stream_offsets import (
    OffsetJson,
    StreamOffsets,
    initial_offset,
    known_starts,
    parse_offsets,
    ranges_between,
)
from headrace.spark.subscribed_cluster import SubscribedCluster
from headrace.wire.ids import TopicPartition

if TYPE_CHECKING:
    from pyarrow import RecordBatch

log = logging.getLogger("headrace.spark")

IDLE_ASKS_A_SECOND = 20


class HeadraceStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics as they grow. The module's docstring states which process calls which method."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        """Check nothing yet: Spark (4.2, 4.3) replaces an error raised here by its own, because it stops the reader
        that it did not get.
        """
        self._given, self._schema = given, schema
        self._view: SubscribedCluster | None = None
        self._commits: StreamCommits | None = None
        self._target: StreamOffsets | None = None
        """End of the query with `availableNow`."""
        self._latest: StreamOffsets | None = None
        self._leader_epochs: dict[TopicPartition, int] = {}
        """Last known epochs of the leaders."""
        self._gone: frozenset[str] = frozenset()
        """Topics whose loss was reported."""
        self._ask_at = 0.0
        """Earliest time of the next request to the cluster."""

    @cached_property
    def _options(self) -> ReadOptions:
        """Options, checked on first use as far as possible without a request to the cluster.

        Raises:
            ConfigError: If an option or the schema is invalid.
        """
        options = read_options(self._given, STREAM)
        check_schema(options, self._schema)
        return options

    def initialOffset(self) -> OffsetJson:
        """Return a placeholder for the start; the first micro-batch resolves it.

        Raises:
            ConfigError: If an option or the schema is invalid.
        """
        _ = self._options  # A query that continues from a checkpoint checks them when it requests the limit.
        return initial_offset()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return `maxOffsetsPerTrigger`."""
        most = self._options.max_offsets_per_trigger
        return ReadMaxRows(most) if most else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of the query at the present log ends."""
        self._target = self._look()

    def latestOffset(self, start: OffsetJson, limit: ReadLimit) -> OffsetJson:
        """Return the end of the next micro-batch; `start` itself if there is nothing to read.

        Raises:
            ConfigError: If a topic does not exist, offsets are outside the log, or no server responds.
            DataLossError: If the next records to read were removed.
        """
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else 0
        before = parse_offsets(start)
        time.sleep(max(0.0, self._ask_at - time.monotonic()))
        latest = self._target or self._look()
        if before is None:
            return self._first(latest, most).to_json()
        after = self._next(before, latest, most)
        if (after.ends, after.topic_ids) == (before.ends, before.topic_ids):
            self._ask_at = time.monotonic() + 1 / IDLE_ASKS_A_SECOND
            self._position_commits().idle()
            return start
        self._ask_at = 0.0
        return after.to_json()

    def reportLatestOffset(self) -> OffsetJson | None:
        """Return the last known end offsets of the topics, for the query's progress."""
        return None if self._latest is None else self._latest.to_json()

    def partitions(self, start: OffsetJson, end: OffsetJson) -> Sequence[InputPartition]:
        """Divide a micro-batch over tasks.

        Raises:
            DataLossError: If some of its records were removed, lost or replaced, or some of those before it.
        """
        after = parse_offsets(end)
        assert after is not None, "a micro-batch ends where something was found"
        options = self._options
        ranges = self._within_truncation_points(parse_offsets(start), after)
        ranges = self._still_there(ranges, after.topic_ids)
        return [
            RangePartition(part, after.topic_ids.get(part.where.topic, ""))
            for part in split(ranges, options.min_partitions, options.max_records_per_partition)
        ]

    def read(self, partition: InputPartition) -> Iterator["RecordBatch"]:
        """Read one task's range. Runs in an executor."""
        return read_partition(self._options, self._schema, partition)

    def commit(self, end: OffsetJson) -> None:
        """Publish positions below `end`, which is processed; no behaviour depends on them."""
        done = parse_offsets(end)
        if done is not None:
            self._position_commits().done(done.ends)

    def stop(self) -> None:
        """Close the connections."""
        if self._view is not None:
            self._view.close()

    def _cluster(self) -> SubscribedCluster:
        if self._view is None:
            self._view = SubscribedCluster(self._options.settings, self._options.subscription)
        return self._view

    def _position_commits(self) -> StreamCommits:
        if self._commits is None:
            self._commits = StreamCommits(self._cluster().admin, self._options.commit_group)
        return self._commits

    def _look(self) -> StreamOffsets:
        """Look up the current end offsets."""
        cluster = self._cluster()
        partitions = cluster.partitions()
        found = cluster.answers(partitions, LATEST)
        self._leader_epochs = {where: answer.leader_epoch for where, answer in found.items()}
        self._latest = StreamOffsets({where: answer.offset for where, answer in found.items()}, cluster.topic_ids)
        return self._latest

    def _first(self, latest: StreamOffsets, most: int) -> StreamOffsets:
        """Return the end of the first micro-batch, with its start, even if there are no records between them."""
        cluster, bound = self._cluster(), self._options.start
        partitions = sorted(latest.ends)
        earliest = cluster.offsets(partitions, EARLIEST)
        starts = cluster.edge_offsets(bound, partitions, earliest, latest.ends)
        ends = dict(latest.ends)
        for where, start in starts.items():
            if start > ends[where] and bound.offsets is not None:
                raise ConfigError(f"{bound.option}: {start} for {where} is past its end, {ends[where]}")
            ends[where] = max(ends[where], start)  # The record found by time may have been written after the look-up.
        _, losses = within_log([OffsetRange(where, starts[where], ends[where]) for where in partitions], earliest)
        check_data_loss(losses, self._options.fail_on_data_loss)
        ends = limited(starts, ends, most) if most else ends
        return StreamOffsets(ends, latest.topic_ids, starts, self._epochs(StreamOffsets(), ends, latest.topic_ids))

    def _next(self, before: StreamOffsets, latest: StreamOffsets, most: int) -> StreamOffsets:
        """Return the end of any other micro-batch. Unknown partitions are read from offset 0.

        A partition or a topic that metadata omits keeps its position: after a restart, nothing shows that metadata of a
        server that cannot reach etcd is out of date.
        """
        self._look_for_gone(before, latest)
        starts = known_starts(before, latest.topic_ids)
        shorter = [where for where, end in latest.ends.items() if end < starts.get(where, 0)]
        cut = self._truncations(before, {where: latest.ends[where] for where in shorter})
        if self._options.fail_on_data_loss:
            check_data_loss([_truncated(where, starts[where], point) for where, point in cut.items()], True)
        for where, point in cut.items():
            starts[where] = min(point, latest.ends[where])
        ends = {where: max(end, starts.get(where, 0)) for where, end in latest.ends.items()}
        if most:
            if not self._options.fail_on_data_loss:  # Removed records do not count.
                for where, first in self._cluster().offsets(sorted(ends), EARLIEST).items():
                    starts[where] = max(starts.get(where, 0), min(first, ends[where]))
            ends = limited(starts, ends, most)
        known = StreamOffsets({where: end for where, end in starts.items() if where not in cut}, epochs=before.epochs)
        epochs = self._epochs(known, ends, latest.topic_ids)
        topic_ids = latest.topic_ids
        if not self._options.subscription.assigned:  # There the option decides which partitions are read.
            topic_ids = {**before.topic_ids, **topic_ids}
            omitted = {at: end for at, end in known_starts(before, topic_ids).items() if at not in ends}
            ends |= omitted
            epochs |= {where: before.epochs[where] for where in omitted if where in before.epochs}
        return StreamOffsets(ends, topic_ids, epochs=epochs)

    def _epochs(
        self, before: StreamOffsets, ends: Mapping[TopicPartition, int], topic_ids: Mapping[str, str]
    ) -> dict[TopicPartition, int]:
        """Return the leader epochs of the records before ends; unchanged positions or leaders need no request."""
        found: dict[TopicPartition, int] = {}
        unknown: dict[TopicPartition, int] = {}
        for where, end in ends.items():
            epoch = before.epochs.get(where, -1) if where in before.ends else -1
            if epoch >= 0 and (end == before.ends[where] or self._leader_epochs.get(where) == epoch):
                found[where] = epoch
            elif end:
                unknown[where] = end - 1
        return found | self._cluster().record_epochs(unknown, topic_ids)

    def _truncations(self, before: StreamOffsets, now: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the offsets from which read records are lost or replaced; `now` has the log ends.

        Without an epoch, as in a checkpoint of an earlier release, only a shorter log is detected.
        """
        known = {where: (before.ends[where], before.epochs[where]) for where in now if where in before.epochs}
        found = self._cluster().truncation_points(known, before.topic_ids)
        for where, end in now.items():
            if where not in known and end < before.ends.get(where, 0):
                found[where] = end
        return found

    def _within_truncation_points(self, before: StreamOffsets | None, after: StreamOffsets) -> list[OffsetRange]:
        """Return the ranges of a micro-batch, or end the query if one has other records than when it was planned.

        Each range starts where the log diverges from what was read, and ends where it diverges from what was planned,
        so that the next micro-batch starts there.
        """
        ranges = ranges_between(before, after)
        cut: dict[TopicPartition, int] = {}
        losses: list[str] = []
        if before is not None:
            kept = known_starts(before, after.topic_ids)
            moving = {part.where: part.end for part in ranges if part.where in kept and part.end != kept[part.where]}
            cut = self._truncations(before, moving)
            losses = [_truncated(where, kept[where], point) for where, point in sorted(cut.items())]
            ranges = [replace(part, start=min(cut.get(part.where, part.start), part.end)) for part in ranges]
        lost = self._truncations(after, {part.where: part.end for part in ranges if len(part)})
        for where, point in sorted(lost.items()):
            losses.append(_truncated(where, after.ends[where], point, "of the micro-batch, up to"))
        check_data_loss(losses, self._options.fail_on_data_loss)
        return [replace(part, end=min(part.end, lost.get(part.where, part.end))) for part in ranges]

    def _look_for_gone(self, before: StreamOffsets, latest: StreamOffsets) -> None:
        """Check for deleted topics, and for unread records deleted with them; report each of them once."""
        gone = sorted(name for name, known in before.topic_ids.items() if latest.topic_ids.get(name, known) != known)
        if self._options.subscription.pattern:
            gone += sorted(set(before.topic_ids) - set(latest.topic_ids))
        new = [name for name in gone if name not in self._gone]
        check_data_loss([_deleted(name, before.ends) for name in new], self._options.fail_on_data_loss)
        self._gone = frozenset(gone)

    def _still_there(self, ranges: list[OffsetRange], topic_ids: Mapping[str, str]) -> list[OffsetRange]:
        """Return the parts of ranges that retention has not removed."""
        cluster = self._cluster()
        wanted = [part for part in ranges if len(part)]
        now = cluster.topic_ids_of(sorted({part.where.topic for part in wanted}))
        there = [part for part in wanted if topic_ids.get(part.where.topic) == now.get(part.where.topic, "")]
        kept, losses = within_log(there, cluster.offsets([part.where for part in there], EARLIEST))
        gone = [
            f"{part.where} was deleted with the records from offset {part.start} to {part.end}"
            for part in wanted
            if part not in there
        ]
        check_data_loss([*losses, *gone], self._options.fail_on_data_loss)
        return kept


def _truncated(where: TopicPartition, position: int, point: int, records: str = "read below") -> str:
    lost = f"the {position - point} records" if point < position else "records before it, how many is not known,"
    return (
        f"{where} was truncated by an unclean election: of the records {records} offset {position}, {lost} from "
        f"{point} on were lost or replaced"
    )


def _deleted(topic: str, ends: Mapping[TopicPartition, int]) -> str:
    places = ", ".join(f"{where.partition}: {end}" for where, end in sorted(ends.items()) if where.topic == topic)
    return f"topic {topic} was deleted; it had been read up to the offsets {places} of its partitions"
