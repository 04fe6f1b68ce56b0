"""Tables of a directory: states of its partitions, kept up with their logs. What `TableService` answers."""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from headrace.embedded.catalogue import DirectoryTopic
from headrace.embedded.open_partition import DirectoryPartition
from headrace.embedded.partitions import Partitions, ReadablePartition
from headrace.log.errors import CorruptLogError, SliceCutError
from headrace.log.log_reader import LogReader
from headrace.log.scan import checked_batches
from headrace.partition.batch_cache import BatchCache, DecodedValues, PartitionBatches, RecordValue
from headrace.partition.purged_rows import PurgedRows, check_deleted, purged_rows
from headrace.partition.row_writes import RowWrite, read_row_write
from headrace.partition.table_rows import (
    MAX_KEYS,
    PAGE_ROWS,
    FittingValues,
    FoundRow,
    RowsAnswer,
    WantedColumns,
    look_up,
    wanted_columns,
)
from headrace.partition.table_state import RowOffsets, changes_of, decode_table_batch
from headrace.v1 import tables_pb2, topics_pb2
from headrace.wire.columns import Columns
from headrace.wire.errors import CorruptBatchError, InvalidRequestError, OffsetNotAvailableError, OffsetOutOfRangeError
from headrace.wire.table_keys import ABSENT, check_own_partition, check_row

_log = logging.getLogger("headrace.embedded")

READ_BYTES = 4 << 20
CACHED_BYTES = 64 << 20
_TRIES = 10


class SharedCache:
    """Cache of decoded batches of all tables, and the lock of each use of it."""

    def __init__(self) -> None:
        self.batches = BatchCache(CACHED_BYTES)
        self.lock = threading.Lock()


class DirectoryTableState:
    """State of one partition. Its `lock` is held during calls; one may read the whole log, which takes long."""

    def __init__(self, partition: ReadablePartition, cache: SharedCache) -> None:
        self._partition = partition
        self.lock = threading.Lock()
        """Held within that of the partition, never around it."""
        self.rows = RowOffsets()
        self._start_offset = 0
        self._epoch = -1
        self._cache_lock = cache.lock
        self._batches = PartitionBatches(cache.batches)

    def catch_up(self) -> int:
        """Continue the state up to what is visible, and return that.

        It is made again if another process, which writes to the directory, has replaced files meanwhile: those of two
        moments together may lack a deletion, and have what it deletes.

        Raises:
            CorruptLogError, StorageOfflineError: If the log cannot be read.
        """
        for tries_left in reversed(range(_TRIES)):
            try:
                return self._catch_up()
            except CorruptLogError:
                if not tries_left or not self._partition.list_files():
                    raise
            self._begin()
        raise AssertionError("the last try returns or raises")

    def _catch_up(self) -> int:
        partition, end_offset = self._partition, self._partition.visible_end
        reader = partition.snapshot_reader
        if (
            self._epoch != partition.leader_epoch
            # Read after `reader` was made: no deletion that its files lack is missed.
            or (self.rows.end_offset < end_offset and self.rows.end_offset < partition.missed_deletions_end)
            or not partition.log_start_offset <= self.rows.end_offset <= partition.log_end_offset
            or self.rows.lacks_columns(time.time_ns() // 1_000_000)
        ):
            self._begin()
        while self._start_offset < partition.log_start_offset:
            self._forget_below(partition.log_start_offset)
        if self.rows.end_offset == self._start_offset < end_offset:
            self._make(end_offset)
        for columns in self._read_all(reader, self.rows.end_offset, end_offset):
            self.rows.note_removed(columns)
            for change in changes_of(columns):
                if change.offset >= self.rows.end_offset:  # A compacted batch may begin before it.
                    self.rows.apply(change)
            self.rows.end_offset = columns.header.end_offset
        self.rows.expire(time.time_ns() // 1_000_000)
        return end_offset

    def complete_end(self) -> int:
        """As `catch_up`.

        Raises:
            OffsetNotAvailableError: If the log was copied from one that was compacted beyond its end: columns are
                missing for whose sake older ones were removed.
        """
        end_offset, newer_end = self.catch_up(), self.rows.newer_end
        if end_offset < newer_end:
            is_copy = bool(self._partition.topic.origin)
            raise OffsetNotAvailableError(
                f"the log here ends at offset {end_offset}, and was copied from one that was compacted to {newer_end}",
                retriable=not is_copy,
                action="Continue `headrace fetch` of the topic." if is_copy else "Try again.",
            )
        return end_offset

    def _begin(self) -> None:
        self.rows = RowOffsets()
        self.rows.end_offset = self._start_offset = self._partition.log_start_offset
        self._epoch = self._partition.leader_epoch
        self.close()

    def _make(self, end_offset: int) -> None:
        """Make the state from the log.

        A compaction that removes deletions meanwhile may take that of a row which was read before. Only one that began
        before there was this state can: others first wait for it, to catch up.
        """
        partition, start_offset, deletions_end = self._partition, self.rows.end_offset, -1
        while deletions_end != partition.removed_deletions_end:
            deletions_end = partition.removed_deletions_end
            partition.await_compaction()
            reader = partition.snapshot_reader
            batches = self._read_all(reader, start_offset, end_offset)
            rows = RowOffsets(batches, start_offset, time.time_ns() // 1_000_000)
        self.rows, rows.end_offset = rows, end_offset

    def _forget_below(self, start_offset: int) -> None:
        place: bytes | None = b""
        while place is not None:
            place = self.rows.forget_below(start_offset, place, 10_000)
        self._start_offset = start_offset

    def _read_all(self, reader: LogReader, offset: int, end_offset: int) -> Iterator[Columns]:
        while offset < end_offset:
            found = self._read(reader, offset, READ_BYTES, end_offset)
            if not found:
                raise OffsetNotAvailableError(f"the log was cut off at offset {offset} meanwhile")
            for columns in found:
                yield columns
                offset = columns.header.end_offset

    def _read(self, reader: LogReader, offset: int, max_bytes: int, end_offset: int) -> list[Columns]:
        with reader.read(offset, max_bytes, end_offset) as found:
            data, position = found.read(), found.position
        name = f"{self._partition.topic.name}-{self._partition.number}"
        return [decode_table_batch(batch, self._note_unreadable) for batch in checked_batches(data, name, position)]

    def _note_unreadable(self, error: CorruptBatchError) -> None:
        _log.warning("%s-%d has a batch without rows: %s", self._partition.topic.name, self._partition.number, error)

    def close(self) -> None:
        """Release the memory of values. Any thread, without the lock."""
        with self._cache_lock:
            self._batches.clear()

    def read_values(self, offsets: Sequence[int], most_bytes: int) -> dict[int, RecordValue]:
        """Return the values of records by offset, which ascend, without those that are not in the log any more.

        Ends after the batch with which the values have more than `most_bytes`.
        """
        values: dict[int, RecordValue] = {}
        place = size_bytes = 0
        while place < len(offsets) and size_bytes <= most_bytes:
            with self._cache_lock:
                batch = self._batches.find(offsets[place])
            batch, end = batch or self._read_batch(offsets[place]), place + 1
            if batch is not None:
                end = bisect_left(offsets, batch.end_offset, end)
                size_bytes += batch.take(offsets[place:end], values)
            place = end
        return values

    def _read_batch(self, offset: int) -> DecodedValues | None:
        """Read the batch with `offset`, and keep it; return `None` if it is not in the log any more."""
        try:
            found = self._read(self._partition.reader, offset, 1, self._partition.visible_end)
        except (SliceCutError, OffsetOutOfRangeError):
            return None
        if not found:
            return None
        batch = DecodedValues(found[0])
        with self._cache_lock:
            self._batches.add(batch)
        return batch


class DirectoryTables:
    """Handlers of one directory. Thread-safe."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions
        self._lock = threading.Lock()
        """Guards the dictionary of states."""
        self._cache = SharedCache()
        self._states: dict[ReadablePartition, DirectoryTableState] = {}

    def get_rows(self, request: tables_pb2.GetRowsRequest) -> tables_pb2.GetRowsResponse:
        """Answer a GetRows."""
        if not 0 < len(request.keys) <= MAX_KEYS:
            raise InvalidRequestError(f"{len(request.keys)} keys are not 1 to {MAX_KEYS}")
        keys, wanted = [check_row(key) for key in request.keys], wanted_columns(request.columns)
        state = self._state(request.read.table, request.read.partition, keys)
        with state.lock:
            response = tables_pb2.GetRowsResponse(as_of_offset=self._as_of(state, request.read))
            self._add_rows(state, keys, wanted, response.rows)
        return response

    def scan_rows(self, request: tables_pb2.ScanRowsRequest) -> tables_pb2.ScanRowsResponse:
        """Answer a ScanRows."""
        limit = request.limit or PAGE_ROWS
        if not 0 < limit <= PAGE_ROWS:
            raise InvalidRequestError(f"a limit of {limit} rows is not 1 to {PAGE_ROWS}")
        wanted = wanted_columns(request.columns)
        state = self._state(request.read.table, request.read.partition)
        with state.lock:
            response = tables_pb2.ScanRowsResponse(as_of_offset=self._as_of(state, request.read))
            end = request.end if request.HasField("end") else None
            keys = list(islice(state.rows.rows_from(request.start, end, request.prefix), limit))
            self._add_rows(state, keys, wanted, response.rows)
            if response.rows:
                last = response.rows[-1].key + b"\0"
                if next(state.rows.rows_from(last, end, request.prefix), None) is not None:
                    response.next_key = last
        return response

    def count_rows(self, request: tables_pb2.CountRowsRequest) -> tables_pb2.CountRowsResponse:
        """Answer a CountRows."""
        state = self._state(request.read.table, request.read.partition)
        with state.lock:
            as_of_offset = self._as_of(state, request.read)
            return tables_pb2.CountRowsResponse(
                rows=state.rows.rows,
                columns=state.rows.columns,
                as_of_offset=as_of_offset,
                state_bytes=state.rows.key_bytes,
                log_end_offset=as_of_offset,
            )

    def write_row(self, request: tables_pb2.WriteRowRequest) -> tables_pb2.WriteRowResponse:
        """Answer a WriteRow: no other write comes between the decision and the append."""
        topic = self._topic(request.table)
        partition = self._partitions.writable(topic, request.partition)
        check_own_partition([request.key], request.partition, topic.partitions)
        write = read_row_write(request, topic.config.table_ttl_ms, time.time_ns() // 1_000_000)
        if not write.needs_state:
            return self._append(partition, write)
        state = self._state(request.table, request.partition)
        with state.lock:
            state.catch_up()  # Perhaps for long, which must not hold up appends.
        with partition.lock, state.lock:
            found = partition.producers.find(*write.producer) if write.producer[0] >= 0 else None
            if found is not None:  # It would be decided by what it has written itself.
                _flush_if_counted(partition)
                end_offset = found.base_offset + found.record_count
                return tables_pb2.WriteRowResponse(applied=True, version=end_offset - 1, records=found.record_count)
            partition.flush()
            state.catch_up()
            version = state.rows.version_of(write.row)
            if write.if_version is not None and version != write.if_version:
                return tables_pb2.WriteRowResponse(applied=False, version=version)
            if write.deletes_row:
                row = state.rows.current(write.row, {}).columns
                if not row:
                    return tables_pb2.WriteRowResponse(applied=True, version=ABSENT)
                write = write._replace(columns=dict.fromkeys(row))
            return self._append(partition, write)

    def purge_rows(self, request: tables_pb2.PurgeRowsRequest) -> tables_pb2.PurgeRowsResponse:
        """Answer a PurgeRows: `done` is false if a file is read until the request's timeout."""
        deadline = time.monotonic() + request.timeout_ms / 1000
        wanted = purged_rows(request)
        partition = self._partitions.writable(self._topic(request.table), request.partition)
        state = self._state(request.table, request.partition, wanted.keys)
        response = tables_pb2.PurgeRowsResponse(broker_id=0)
        report = partition.purge(wanted, lambda: self._purgeable_end(state, wanted))
        response.removed_records, response.read_bytes = report.removed_records, report.size_bytes
        response.done = partition.unlink_purged(deadline)
        return response

    def _purgeable_end(self, state: DirectoryTableState, wanted: PurgedRows) -> int:
        """Check that the rows are deleted; return up to where the log may be compacted."""
        with state.lock:
            end_offset = self._as_of(state, tables_pb2.TableRead(min_offset=wanted.before_offset))
            for _ in check_deleted(state.rows, wanted):
                pass
            return end_offset

    def _append(self, partition: DirectoryPartition, write: RowWrite) -> tables_pb2.WriteRowResponse:
        result = partition.append([write.encode(time.time_ns() // 1_000_000)])
        if result.error is not None:
            raise result.error
        _flush_if_counted(partition)
        return tables_pb2.WriteRowResponse(applied=True, version=result.end_offset - 1, records=len(write.columns))

    def keep(self, topic_ids: Collection[bytes]) -> None:
        """Forget the states of all topics but these."""
        with self._lock:
            for partition in [each for each in self._states if each.topic.topic_id not in topic_ids]:
                self._states.pop(partition).close()

    def expired_end(self, partition: DirectoryPartition) -> int:
        """Let the columns expire that have; return up to where a table's log may be compacted."""
        with self._lock:
            state = self._states.get(partition)
        if state is None:
            return partition.visible_end
        with state.lock:
            return state.catch_up()

    def _topic(self, reference: topics_pb2.TopicRef) -> DirectoryTopic:
        topic = self._partitions.topic(reference)
        if not topic.config.is_table:
            raise InvalidRequestError(
                f"topic {topic.name} is no table",
                action=f"Create it by `headrace table create`, or `headrace topic alter {topic.name} --config "
                "cleanup_policy=compact --config table=yes`.",
            )
        return topic

    def _state(self, reference: topics_pb2.TopicRef, number: int, keys: Iterable[bytes] = ()) -> DirectoryTableState:
        topic = self._topic(reference)
        partition = self._partitions.readable(topic, number)
        check_own_partition(keys, number, topic.partitions)
        with self._lock:
            state = self._states.get(partition)
            if state is None:
                state = self._states[partition] = DirectoryTableState(partition, self._cache)
            return state

    def _as_of(self, state: DirectoryTableState, asked: tables_pb2.TableRead) -> int:
        end_offset = state.complete_end()
        if end_offset < asked.min_offset:
            raise OffsetNotAvailableError(
                f"records below offset {asked.min_offset} are not visible yet", action="Try again."
            )
        return end_offset

    def _add_rows(self, state: DirectoryTableState, keys: Iterable[bytes], wanted: WantedColumns, rows: Any) -> None:
        answer = RowsAnswer()
        found = [look_up(state.rows, key, wanted) for key in keys]
        for _ in range(_TRIES):
            values = _read_fitting(state, found, answer.room_bytes)
            if values is not None:
                break
            state.catch_up()  # What is missing was replaced, and a compaction has removed it meanwhile.
            found = [look_up(state.rows, row.key, wanted) for row in found]
        else:
            raise OffsetNotAvailableError("the rows were changed again and again while they were read")
        answer.add(found, values, rows)


def _read_fitting(
    state: DirectoryTableState, found: Sequence[FoundRow], room_bytes: int
) -> dict[int, RecordValue] | None:
    """Return the values of rows until the room is full; `None` if one is not in the log any more."""
    fitting = FittingValues(found, room_bytes)
    while offsets := fitting.next_offsets():
        if not fitting.note(state.read_values(offsets, fitting.room_bytes)):
            return None
    return fitting.values


def _flush_if_counted(partition: DirectoryPartition) -> None:
    """Make an appended write durable if its topic acknowledges only what is flushed."""
    if partition.topic.config.counts_flushed:
        partition.flush_appended()
