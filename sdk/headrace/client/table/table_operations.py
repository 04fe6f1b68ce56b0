"""Operations of `Table`, shared by the blocking and the asyncio class. No I/O."""

import itertools
import random
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from headrace.client.admin.rpc import config_values
from headrace.client.base.config import TableConfig
from headrace.client.base.errors import ConfigError
from headrace.client.base.operations import Call, Operation, Pause
from headrace.client.base.retry import Backoff, Tries
from headrace.client.net.bootstrap_client import BootstrapClient
from headrace.client.net.cluster_metadata import ClusterMetadata
from headrace.client.table.purges import PurgedPartition
from headrace.client.table.rows import (
    Row,
    RowFormat,
    TablePartition,
    VersionConflictError,
    column_slice,
    key_of,
    text_of,
)
from headrace.placement.nearness import Location, distance
from headrace.v1 import cluster_pb2, tables_pb2, topics_pb2
from headrace.wire.batch import sequence_after
from headrace.wire.errors import (
    BatchTooLargeError,
    FencedProducerError,
    HeadraceError,
    InvalidRequestError,
    LeaderNotAvailableError,
    NotLeaderError,
    Outcome,
    OutOfOrderSequenceError,
    TimedOutError,
    TransportError,
    UnknownPartitionError,
    UnknownProducerError,
    from_rpc_error,
    rpc_failures,
)
from headrace.wire.ids import TopicPartition
from headrace.wire.partitioning import partition_for_key
from headrace.wire.table_keys import ABSENT

CONSISTENCIES = {
    "leader": tables_pb2.CONSISTENCY_LEADER,
    "replica": tables_pb2.CONSISTENCY_REPLICA,
}
MAX_KEYS = 10_000
"""Maximum keys of one request."""
KEYS_AT_ONCE = 250
"""Keys of one request of a read of many: a broker looks for some while the client decodes others."""
MAX_PAGE_ROWS = 1_000
_KEYS_BYTES = 768 << 10
"""Bytes of keys of one request, which may have 1 MiB."""
_DELETED_COLUMNS = 5_000
"""Columns that are read at a time for the deletion of a row in parts."""
_TRY_S = 10.0
"""Timeout of one try of a call while there is time for another."""


class _Lane:
    """Producer id of one write at a time, with its next sequence in each partition."""

    def __init__(self, producer_id: int, epoch: int) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.sequences: dict[int, int] = {}


class ScanRange(NamedTuple):
    """Rows of a scan."""

    start: bytes
    end: bytes | None
    prefix: bytes
    columns: tables_pb2.ColumnSlice
    page_rows: int


def scan_range(
    prefix: str | bytes, start: str | bytes, end: str | bytes | None, columns: Sequence[str] | None, page_rows: int
) -> ScanRange:
    """Return the rows of a scan.

    Raises:
        ConfigError: If the number of rows of a page is out of range.
    """
    if not 1 <= page_rows <= MAX_PAGE_ROWS:
        raise ConfigError(f"page_rows={page_rows} is not 1 to {MAX_PAGE_ROWS:,}")
    wanted = column_slice(columns, None, None, None)
    return ScanRange(key_of(start), None if end is None else key_of(end), key_of(prefix), wanted, page_rows)


def key_parts(keys: Iterable[bytes], most: int) -> Iterator[list[bytes]]:
    """Yield at most `most` keys at a time, as many as fit into a request."""
    part: list[bytes] = []
    size = 0
    for key in keys:
        size += len(key) + 4  # With its tag and length.
        if part and (len(part) == most or size > _KEYS_BYTES):
            yield part
            part, size = [], len(key) + 4
        part.append(key)
    if part:
        yield part


class ScanPage(NamedTuple):
    """Rows of a partition that follow each other."""

    rows: Sequence[tables_pb2.TableRow]
    next_key: bytes | None
    """Where to continue; `None` at the end."""
    as_of_offset: int


class SeenRow(NamedTuple):
    """Row as it was seen by a read."""

    row: Row | None
    as_of_offset: int
    topic_id: bytes

    @property
    def state(self) -> object:
        """What differs after each change of the row; `None` if it did not exist."""
        if self.row is None:
            return None
        columns = [(name, column.version) for name, column in self.row.columns.items()]
        return self.topic_id, self.row.version, columns  # The end of a column leaves the version as it is.


class ReadFrom(NamedTuple):
    """Replica that answers a read, and what it has to have."""

    consistency: str
    """One of `CONSISTENCIES`."""
    min_offset: int = 0
    """What is committed below this offset is in the answer."""


class TableOperations:
    """Operations on one table; any thread. `timeout` is in seconds for all tries; `None` means request_timeout_ms."""

    def __init__(self, name: str, config: TableConfig, calls: BootstrapClient) -> None:
        self._name = name
        self._config = config
        self._calls = calls
        self._format = RowFormat(config)
        self._chance = random.Random()
        self._backoff = Backoff(config.retry_backoff_ms, config.retry_backoff_max_ms, self._chance)
        self._lock = threading.Lock()
        self._metadata = ClusterMetadata()
        self._replicas: dict[int, list[tuple[int, str]]] = {}
        """Distances and addresses of the in-sync replicas by partition."""
        self._idle_lanes: list[_Lane] = []

    # --- reads ---

    def group_keys(self, keys: Iterable[bytes], deadline: float) -> Operation[dict[int, list[bytes]]]:
        """Return the different keys by partition."""
        count = yield from self.partitions(deadline)
        groups: dict[int, list[bytes]] = {}
        for key in dict.fromkeys(keys):
            groups.setdefault(partition_for_key(key, count), []).append(key)
        return groups

    def get_rows(
        self, partition: int, keys: list[bytes], columns: tables_pb2.ColumnSlice, wanted: ReadFrom, deadline: float
    ) -> Operation[dict[bytes, Row | None]]:
        """Read rows of one partition by their keys, which differ."""
        found: dict[bytes, Row | None] = {}
        while keys:
            response = yield from self._get(partition, keys[:MAX_KEYS], columns, wanted, deadline)
            for row in response.rows:
                if row.HasField("next_column"):
                    yield from self._complete(partition, row, columns, wanted, deadline)
                found[row.key] = self._format.row(row, response.as_of_offset)
            keys = keys[len(response.rows) :]
        return found

    def _get(
        self,
        partition: int,
        keys: Sequence[bytes],
        columns: tables_pb2.ColumnSlice,
        wanted: ReadFrom,
        deadline: float,
    ) -> Operation[tables_pb2.GetRowsResponse]:
        request = tables_pb2.GetRowsRequest(read=self._read(partition, wanted), keys=keys, columns=columns)
        return self._call(partition, "GetRows", request, deadline, consistency=wanted.consistency)

    def _complete(
        self,
        partition: int,
        row: tables_pb2.TableRow,
        columns: tables_pb2.ColumnSlice,
        wanted: ReadFrom,
        deadline: float,
    ) -> Operation[None]:
        """Read the columns of a row that an answer has no room for; all of them again if it was changed meanwhile."""
        while row.HasField("next_column") and not columns.limit:
            left = tables_pb2.ColumnSlice()
            left.CopyFrom(columns)
            if columns.names:
                left.names[:] = [name for name in columns.names if name >= row.next_column]
            else:
                left.start = row.next_column
            since = ReadFrom(wanted.consistency, max(wanted.min_offset, row.version + 1))
            response = yield from self._get(partition, [row.key], left, since, deadline)
            if response.rows[0].version == row.version:
                row.ClearField("next_column")
                row.MergeFrom(response.rows[0])
            else:
                response = yield from self._get(partition, [row.key], columns, since, deadline)
                row.CopyFrom(response.rows[0])

    def look(
        self, key: str | bytes, columns: tables_pb2.ColumnSlice, seen: SeenRow | None, timeout: float
    ) -> Operation[SeenRow]:
        """Read a row from its leader, once its partition has records that `seen` lacks, or at once without."""
        row, deadline = key_of(key), self.deadline(timeout)
        partition = partition_for_key(row, (yield from self.partitions(deadline)))
        with self._lock:
            is_later = seen is not None and seen.topic_id == self._metadata.require(self._name).topic_id
        wanted = ReadFrom("leader", seen.as_of_offset + 1 if seen is not None and is_later else 0)
        request = tables_pb2.GetRowsRequest(read=self._read(partition, wanted), keys=[row], columns=columns)
        response = yield from self._call(partition, "GetRows", request, deadline)
        yield from self._complete(partition, response.rows[0], columns, wanted, deadline)
        topic_id = request.read.table.topic_id  # Of the answer: the table may have been made anew meanwhile.
        row_seen = self._format.row(response.rows[0], response.as_of_offset)
        return SeenRow(row_seen, response.as_of_offset, topic_id)

    def scan_page(
        self, partition: int, wanted: ScanRange, consistency: str, timeout: float | None
    ) -> Operation[ScanPage]:
        """Read the next rows of a partition."""
        deadline = self.deadline(timeout)
        request = tables_pb2.ScanRowsRequest(
            read=self._read(partition, ReadFrom(consistency)),
            start=wanted.start,
            prefix=wanted.prefix,
            columns=wanted.columns,
            limit=wanted.page_rows,
        )
        if wanted.end is not None:
            request.end = wanted.end
        response = yield from self._call(partition, "ScanRows", request, deadline, consistency=consistency)
        for row in response.rows:
            if row.HasField("next_column"):
                yield from self._complete(partition, row, wanted.columns, ReadFrom(consistency), deadline)
        rows = [row for row in response.rows if row.version != ABSENT]  # One was deleted before it was complete.
        next_key = response.next_key if response.HasField("next_key") else None
        return ScanPage(rows, next_key, response.as_of_offset)

    def rows_of(self, page: ScanPage) -> list[Row]:
        """Return the rows of a page as the application sees them.

        Raises:
            SerializationError: If a value cannot be deserialized.
        """
        rows = (self._format.row(each, page.as_of_offset) for each in page.rows)
        return [row for row in rows if row is not None]

    def count(self, partition: int, consistency: str, deadline: float) -> Operation[TablePartition]:
        """Count the rows and columns of a partition."""
        request = tables_pb2.CountRowsRequest(read=self._read(partition, ReadFrom(consistency)))
        response = yield from self._call(partition, "CountRows", request, deadline, consistency=consistency)
        return TablePartition(
            partition,
            response.rows,
            response.columns,
            response.state_bytes,
            response.as_of_offset,
            response.log_end_offset,
        )

    def purged_partitions(
        self, keys: Sequence[bytes], prefix: bytes | None, deleted: bool, timeout: float
    ) -> Operation[list[PurgedPartition]]:
        """Return what to purge of each partition; of keys, as many at a time as a request may have."""
        deadline = self.deadline(timeout)
        if keys:
            groups = yield from self.group_keys(keys, deadline)
            return [
                PurgedPartition(partition, tuple(part))
                for partition, group in sorted(groups.items())
                for part in key_parts(group, MAX_KEYS)
            ]
        count = yield from self.partitions(deadline)
        return [PurgedPartition(partition, (), prefix, deleted) for partition in range(count)]

    def committed(self, partition: int, timeout: float) -> Operation[int]:
        """Return the offset below which a partition has all that was acknowledged before."""
        request = tables_pb2.CountRowsRequest(read=self._read(partition, ReadFrom("leader")))
        response = yield from self._call(partition, "CountRows", request, self.deadline(timeout))
        return int(response.as_of_offset)

    def _read(self, partition: int, wanted: ReadFrom) -> tables_pb2.TableRead:
        if wanted.consistency not in CONSISTENCIES:
            raise ConfigError(f"consistency={wanted.consistency!r} is not one of {', '.join(CONSISTENCIES)}")
        return tables_pb2.TableRead(
            partition=partition,
            consistency=CONSISTENCIES[wanted.consistency],
            min_offset=max(0, wanted.min_offset),
        )

    # --- writes ---

    def write(
        self,
        key: str | bytes,
        columns: Mapping[str, Any] | None,
        *,
        if_version: int | None,
        ttl_ms: int,
        timeout: float | None,
    ) -> Operation[int]:
        """Write columns of a row, or delete it if `columns` is `None`; return the version of the last column."""
        deadline = self.deadline(timeout)
        row = key_of(key)
        request = tables_pb2.WriteRowRequest(key=row, delete_row=columns is None, ttl_ms=ttl_ms)
        if columns is not None:
            request.columns.extend(self._format.write_columns(columns))
        if if_version is not None:
            request.if_version = if_version
        request.partition = partition_for_key(row, (yield from self.partitions(deadline)))
        response = yield from self._write_once(request, deadline)
        if not response.applied:
            is_there = f"has version {response.version}" if response.version >= 0 else "does not exist"
            wanted = "it was to be absent" if if_version == ABSENT else f"not {if_version}"
            raise VersionConflictError(f"row {key!r} {is_there}, {wanted}", response.version)
        return int(response.version)

    def delete_row(self, key: str | bytes, timeout: float) -> Operation[None]:
        """Delete a row, whatever its size: one whose deletion does not fit into a batch goes in parts."""
        try:
            yield from self.write(key, None, if_version=None, ttl_ms=0, timeout=timeout)
        except BatchTooLargeError:
            yield from self._delete_parts(key, timeout)
            yield from self.write(key, None, if_version=None, ttl_ms=0, timeout=timeout)

    def _delete_parts(self, key: str | bytes, timeout: float) -> Operation[None]:
        row, columns, is_last = key_of(key), tables_pb2.ColumnSlice(limit=_DELETED_COLUMNS), False
        while not is_last:
            deadline = self.deadline(timeout)
            partition = partition_for_key(row, (yield from self.partitions(deadline)))
            response = yield from self._get(partition, [row], columns, ReadFrom("leader"), deadline)
            found = response.rows[0]
            yield from self._delete_columns(key, [text_of(column.name) for column in found.columns], timeout)
            columns.start, is_last = found.next_column, not found.HasField("next_column")

    def _delete_columns(self, key: str | bytes, names: list[str], timeout: float) -> Operation[None]:
        """Delete some columns, fewer at a time if they do not fit into a batch."""
        try:
            if names:
                yield from self.write(key, dict.fromkeys(names), if_version=None, ttl_ms=0, timeout=timeout)
        except BatchTooLargeError:
            if len(names) == 1:
                raise
            for part in (names[: len(names) // 2], names[len(names) // 2 :]):
                yield from self._delete_columns(key, part, timeout)

    def _write_once(
        self, request: tables_pb2.WriteRowRequest, deadline: float
    ) -> Operation[tables_pb2.WriteRowResponse]:
        while True:
            lane = yield from self._take_lane(deadline)
            request.producer.producer_id, request.producer.producer_epoch = lane.producer_id, lane.epoch
            request.producer.base_sequence = sequence = lane.sequences.get(request.partition, 0)
            try:  # A lane whose write may still arrive is not used again.
                response: tables_pb2.WriteRowResponse = yield from self._call(
                    request.partition, "WriteRow", request, deadline
                )
            except (UnknownProducerError, OutOfOrderSequenceError, FencedProducerError) as error:
                if error.outcome != Outcome.NOT_APPLIED or time.monotonic() >= deadline:
                    raise
                continue  # The leader has forgotten the lane.
            lane.sequences[request.partition] = sequence_after(sequence, response.records)
            with self._lock:
                self._idle_lanes.append(lane)
            return response

    def _take_lane(self, deadline: float) -> Operation[_Lane]:
        with self._lock:
            if self._idle_lanes:
                return self._idle_lanes.pop()
        request = cluster_pb2.InitProducerIdRequest()
        left = max(0.001, deadline - time.monotonic())
        response = yield from self._calls.coordinator("InitProducerId", request, left)
        return _Lane(response.producer_id, response.producer_epoch)

    def bulk_target(self, deadline: float) -> Operation[tuple[int, int]]:
        """Return the number of partitions, and the table's time to live in ms (0: none), for a `put_many`.

        Raises:
            InvalidRequestError: If the topic is no table.
        """
        request = cluster_pb2.DescribeConfigsRequest(topics=[topics_pb2.TopicRef(name=self._name)])
        left = max(0.001, deadline - time.monotonic())
        settings = config_values((yield from self._calls.coordinator("DescribeConfigs", request, left)))
        if settings["table"].value != "yes":
            raise InvalidRequestError(f"topic {self._name} is no table", action="Set table=yes, or use a Producer.")
        yield from self._refresh(deadline)  # No call of this object follows that would find the table made anew.
        return (yield from self.partitions(deadline)), int(settings["table_ttl_ms"].value)

    # --- calls ---

    def deadline(self, timeout: float | None) -> float:
        """Return the time of the monotonic clock at which a call of now ends; see the class for `timeout`."""
        return time.monotonic() + (self._config.request_timeout_ms / 1000 if timeout is None else timeout)

    def partitions(self, deadline: float) -> Operation[int]:
        """Return the number of the table's partitions."""
        count = self._known_partitions()
        if not count:
            yield from self._refresh(deadline)
            with self._lock:
                count = self._metadata.require(self._name).partitions
        return count

    def _known_partitions(self) -> int:
        with self._lock:
            known = self._metadata.topic(self._name)
        return 0 if known is None else known.partitions

    def _refresh(self, deadline: float) -> Operation[None]:
        request = cluster_pb2.GetMetadataRequest(topics=[topics_pb2.TopicRef(name=self._name)])
        response = yield from self._calls.metadata(request, max(0.001, deadline - time.monotonic()))
        places = {broker.broker_id: (self._distance(broker), broker.address) for broker in response.brokers}
        with self._lock:
            self._metadata.update(response)
            self._replicas = {
                partition.partition: [places[each] for each in partition.in_sync_replicas if each in places]
                for topic in response.topics
                for partition in topic.partitions
            }

    def _distance(self, broker: cluster_pb2.BrokerMetadata) -> int:
        client = Location(self._config.client_data_center, self._config.client_rack)
        return distance(client, Location(broker.data_center, broker.rack))

    def _call(
        self, partition: int, method: str, request: Any, deadline: float, *, consistency: str = "leader"
    ) -> Operation[Any]:
        """Call the leader of a partition, or any replica; repeat what has not been applied, and idempotent writes.

        Raises:
            HeadraceError: The last error when the time is up, or one that a repetition does not change.
        """
        problem: HeadraceError | None = None
        tries, partitions = Tries(method), self._known_partitions()
        for attempt in itertools.count(1):
            left = max(0.001, deadline - time.monotonic())
            try:
                if consistency == "leader":
                    address, topic_id = yield from self._leader(partition, deadline)
                else:
                    address, topic_id = yield from self._replica(partition, deadline, is_nearest=attempt == 1)
                self._address(request, topic_id, left)
                try:
                    return (yield Call(address, "tables", method, request, min(left, _TRY_S)))
                except rpc_failures() as error:
                    raise from_rpc_error(error) from error
            except HeadraceError as error:
                tries.failed(error)
                if not is_repeatable(error):
                    tries.final(error)
                    raise
                if problem is None or not isinstance(error, TimedOutError):
                    problem = error  # Otherwise it is the reason for which the time was used up.
            delay = self._backoff.delay_ms(attempt, problem.retry_after_ms) / 1000
            if time.monotonic() + delay >= deadline:
                raise tries.final(problem)
            yield Pause(delay)
            try:
                yield from self._refresh(deadline)
            except HeadraceError as error:
                raise tries.final(problem) from error  # The reason for which the time was used up.
            if partitions and self._known_partitions() not in (0, partitions):
                raise tries.final(problem)  # The table was made anew: rows may be in other partitions.
        raise AssertionError("unreachable: the count has no end")

    def _address(self, request: Any, topic_id: bytes, left: float) -> None:
        timeout_ms = max(1, int(min(left, _TRY_S) * 900))
        if isinstance(request, tables_pb2.WriteRowRequest):
            request.table.topic_id, request.timeout_ms = topic_id, timeout_ms
        else:
            request.read.table.topic_id, request.read.timeout_ms = topic_id, timeout_ms

    def _check_partition(self, partition: int, deadline: float) -> Operation[None]:
        """Raise UnknownPartitionError for one that the table does not have: its number of partitions stays."""
        if not 0 <= partition < (yield from self.partitions(deadline)):
            yield from self._refresh(deadline)  # The table may have been made anew.
            count = yield from self.partitions(deadline)
            if not 0 <= partition < count:
                raise UnknownPartitionError(
                    f"{self._name} has partitions 0 to {count - 1}, not {partition}",
                    retriable=False,
                    action="Choose one of them.",
                )

    def _leader(self, partition: int, deadline: float) -> Operation[tuple[str, bytes]]:
        yield from self._check_partition(partition, deadline)
        with self._lock:
            leader = self._metadata.leader(TopicPartition(self._name, partition))
            topic_id = self._metadata.require(self._name).topic_id
        if leader is None:
            raise LeaderNotAvailableError(f"{self._name}-{partition} has no leader now")
        return leader[1], topic_id

    def _replica(self, partition: int, deadline: float, *, is_nearest: bool) -> Operation[tuple[str, bytes]]:
        """Return an in-sync replica, by chance: of those at the least distance if it `is_nearest`."""
        yield from self._check_partition(partition, deadline)
        with self._lock:
            topic_id, replicas = self._metadata.require(self._name).topic_id, self._replicas.get(partition)
        if not replicas:
            raise LeaderNotAvailableError(f"{self._name}-{partition} has no replica in sync now")
        limit = min(replicas)[0] if is_nearest else max(replicas)[0]
        return self._chance.choice([address for distance, address in replicas if distance <= limit]), topic_id


def is_repeatable(error: HeadraceError) -> bool:
    """Return whether a read, or an idempotent write, may succeed if it is repeated."""
    if isinstance(error, NotLeaderError | LeaderNotAvailableError | TransportError):
        return True
    return error.retriable and error.outcome in (Outcome.NOT_APPLIED, Outcome.UNKNOWN)
