"""`headrace.v1.TableService`: reads of rows by their keys, in order, and writes of single rows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, TypeAlias, TypeVar

from headrace.partition.batch_cache import RecordValue
from headrace.partition.purged_rows import purged_rows
from headrace.partition.row_writes import RowWrite, read_row_write
from headrace.partition.table_rows import (
    COLUMNS_AT_ONCE,
    MAX_ANSWER_BYTES,
    MAX_KEYS,
    PAGE_ROWS,
    FittingValues,
    FoundRow,
    RowsAnswer,
    WantedColumns,
    look_up,
    wanted_columns,
)
from headrace.partition.table_state import RowOffsets
from headrace.v1 import tables_pb2, tables_pb2_grpc, topics_pb2
from headrace.wire.errors import HeadraceError, InvalidRequestError, OffsetNotAvailableError, Outcome
from headrace.wire.table_keys import check_own_partition, check_row
from headrace_server.call_spans import current_trace_id
from headrace_server.caller_turns import next_turn
from headrace_server.calls import CALLER
from headrace_server.identity.gate import access
from headrace_server.identity.quotas import Use
from headrace_server.identity.rights import Operation
from headrace_server.metadata_view import ClusterView
from headrace_server.rpc import unary

from headrace_broker.core.roles import Role
from headrace_broker.rpc.checks import seconds_of
from headrace_broker.rpc.service import BrokerService
from headrace_broker.rpc.topics import find_topic
from headrace_broker.runtime.budget import GrowingReservation
from headrace_broker.runtime.partition import Partition, PartitionContext
from headrace_broker.runtime.replica_manager import ReplicaManager
from headrace_broker.runtime.table import PartitionTable
from headrace_broker.runtime.table_trace import Arrival
from headrace_broker.runtime.table_writes import TableWrites
from headrace_broker.table_metrics import TableCall

ResponseT = TypeVar("ResponseT")
WhenDone: TypeAlias = Callable[[Callable[[], None]], object]
"""Registers a callback for when the response was sent."""

SERVICE_NAME = "headrace.v1.TableService"

_TRIES = 10
_NO_SLOT_MS = 250
"""After this time a read tries again for which there was no slot to wait."""


class TableService(tables_pb2_grpc.TableServiceServicer):
    """Servicer of one broker."""

    def __init__(
        self, broker: BrokerService, view: ClusterView, replica_manager: ReplicaManager, context: PartitionContext
    ) -> None:
        """`broker` checks that the broker serves, and its lease."""
        self._broker = broker
        self._view = view
        self._replica_manager = replica_manager
        self._context = context
        self._metrics = context.metrics.tables
        self.call_errors = context.metrics.common.call_errors

    @unary
    async def GetRows(self, request: tables_pb2.GetRowsRequest, context: Any) -> tables_pb2.GetRowsResponse:
        """See the proto."""
        return await self.get_rows(request, _at_the_end_of(context))

    async def get_rows(self, request: tables_pb2.GetRowsRequest, when_done: WhenDone) -> tables_pb2.GetRowsResponse:
        """Return the response to a GetRows, after the checks; `when_done` registers a callback for when it was sent."""
        if not 0 < len(request.keys) <= MAX_KEYS:
            raise InvalidRequestError(f"{len(request.keys)} keys are not 1 to {MAX_KEYS}")
        keys, wanted = [check_row(key) for key in request.keys], wanted_columns(request.columns)
        read = await self._begin(request.read, when_done, keys)
        response = tables_pb2.GetRowsResponse(as_of_offset=read.as_of_offset)
        await read.add_rows(keys, wanted, response.rows)
        self._metrics.hits.inc(read.answer.hits)
        self._metrics.misses.inc(len(read.answer.keys) - read.answer.hits)
        return self._end(read, response, TableCall.GET, response.rows)

    @unary
    async def ScanRows(self, request: tables_pb2.ScanRowsRequest, context: Any) -> tables_pb2.ScanRowsResponse:
        """See the proto."""
        limit = request.limit or PAGE_ROWS
        if not 0 < limit <= PAGE_ROWS:
            raise InvalidRequestError(f"a limit of {limit} rows is not 1 to {PAGE_ROWS}")
        wanted = wanted_columns(request.columns)
        read = await self._begin(request.read, _at_the_end_of(context))
        response = tables_pb2.ScanRowsResponse(as_of_offset=read.as_of_offset)
        end = request.end if request.HasField("end") else None
        rows = read.state.rows_from(request.start, end, request.prefix)
        await read.add_rows(islice(rows, limit), wanted, response.rows)
        if response.rows:
            last = response.rows[-1].key + b"\0"
            if next(read.state.rows_from(last, end, request.prefix), None) is not None:
                response.next_key = last
        return self._end(read, response, TableCall.SCAN, response.rows)

    @unary
    async def CountRows(self, request: tables_pb2.CountRowsRequest, context: Any) -> tables_pb2.CountRowsResponse:
        """See the proto."""
        read = await self._begin(request.read, _at_the_end_of(context))
        state = read.state
        response = tables_pb2.CountRowsResponse(
            rows=state.rows,
            columns=state.columns,
            as_of_offset=read.as_of_offset,
            state_bytes=state.key_bytes,
            log_end_offset=read.partition.replica.log_end_offset,
        )
        return self._end(read, response, TableCall.COUNT, ())

    @unary
    async def WriteRow(self, request: tables_pb2.WriteRowRequest, context: Any) -> tables_pb2.WriteRowResponse:
        """See the proto."""
        return await self.write_row(request)

    async def write_row(self, request: tables_pb2.WriteRowRequest) -> tables_pb2.WriteRowResponse:
        """Return the response to a WriteRow, after the checks."""
        self._broker.check_serving()
        seconds = seconds_of(request.timeout_ms)
        partition, table = self._find(request.table, request.partition, Operation.WRITE, [request.key])
        caller = access()
        caller.check_quota(Use.PRODUCE)
        caller.charge(Use.PRODUCE, request.ByteSize())
        write = read_row_write(request, partition.config.table_ttl_ms, self._context.now_ms())
        caller.check_producer(write.producer[0])
        started, arrival = time.perf_counter(), _arrival_at(table)
        try:
            written = await TableWrites(partition, table).write(write, seconds)
        except HeadraceError as error:
            raise self._replica_manager.with_leader_address(error) from None
        if written.records:
            self._broker.check_lease(Outcome.UNKNOWN)
        else:  # No follower has confirmed the row by which it was decided, as for a read (I31).
            self._broker.check_lease(Outcome.NOT_APPLIED, is_linearizable=True)
        latency_us = self._note(_call_of(write), int(written.applied), started)
        if table.trace is not None and arrival is not None:
            table.trace.note_write(write, arrival, latency_us, applied=written.applied)
        self._metrics.conflicts.inc(not written.applied)
        await caller.hold(Use.PRODUCE, seconds / 2)
        return tables_pb2.WriteRowResponse(applied=written.applied, version=written.version, records=written.records)

    @unary
    async def PurgeRows(self, request: tables_pb2.PurgeRowsRequest, context: Any) -> tables_pb2.PurgeRowsResponse:
        """See the proto."""
        self._broker.check_serving()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds_of(request.timeout_ms)
        wanted = purged_rows(request)
        partition, table = self._find(request.table, request.partition, Operation.DELETE, wanted.keys)
        partition.replica.check_serving(-1)
        if partition.replica.high_watermark < wanted.before_offset:
            read = tables_pb2.TableRead(
                table=request.table,
                partition=request.partition,
                consistency=tables_pb2.CONSISTENCY_REPLICA,
                min_offset=wanted.before_offset,
            )
            await self._await_commit(partition, read, deadline)
            access().recheck()
            partition, table = self._find(request.table, request.partition, Operation.DELETE)
        response = tables_pb2.PurgeRowsResponse(broker_id=self._context.broker_id)
        report = await table.purges.purge(wanted, deadline - loop.time())
        if report is not None:
            response.done = True
            response.removed_records, response.read_bytes = report.removed_records, report.size_bytes
        return response

    async def _begin(self, asked: tables_pb2.TableRead, when_done: WhenDone, keys: Iterable[bytes] = ()) -> _Reading:
        self._broker.check_serving()
        await self._broker.hold_fetch()
        partition, table = self._find(asked.table, asked.partition, Operation.READ, keys)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds_of(asked.timeout_ms)
        try:
            _check_replica(partition, asked.consistency)
            if partition.replica.high_watermark < asked.min_offset:
                await self._await_commit(partition, asked, deadline)
                access().recheck()
                partition, table = self._find(asked.table, asked.partition, Operation.READ)
                _check_replica(partition, asked.consistency)
            self._check_in_sync(partition)
            started, arrival, seconds = time.perf_counter(), _arrival_at(table), deadline - loop.time()
            state, as_of_offset = await table.read_state(seconds)
        except HeadraceError as error:
            raise self._replica_manager.with_leader_address(error) from None
        is_from_leader = asked.consistency != tables_pb2.CONSISTENCY_REPLICA
        memory = GrowingReservation(self._broker.budget)
        when_done(memory.give_back)
        return _Reading(partition, table, started, seconds, state, as_of_offset, memory, is_from_leader, arrival)

    def _check_in_sync(self, partition: Partition) -> None:
        """Check that the replica here is in sync, as its key and the last answer of its leader say.

        Another one may copy a log that was compacted beyond its end: newer records of a row are gone from there, for
        even newer ones that it does not have yet.

        Raises:
            OffsetNotAvailableError: If it is not.
        """
        replica = partition.replica
        is_behind = replica.role is Role.FOLLOWING and replica.log_end_offset < replica.leader_high_watermark
        if is_behind or (replica.state is not None and replica.me not in replica.state.in_sync):
            raise OffsetNotAvailableError(
                "this replica is not in sync", action="Refresh the metadata, and read from one that is."
            )

    async def _await_commit(self, partition: Partition, asked: tables_pb2.TableRead, deadline: float) -> None:
        """Wait until what is below `min_offset` is committed here, in one of the slots of waiting fetches.

        Raises:
            OffsetNotAvailableError: If it is not in time, or if there is no slot; then the caller waits itself.
            HeadraceError: If the broker stops, or does not lead any more.
        """
        waiters, replica = self._broker.waiters, partition.replica
        wake_up = waiters.try_enter([partition], CALLER.get())
        if wake_up is None:
            self._broker.check_serving()
            raise OffsetNotAvailableError(
                f"records below offset {asked.min_offset} are not committed here yet, and too many calls wait",
                retry_after_ms=_NO_SLOT_MS,
                action="Try again, or raise max_waiting_fetches.",
            )
        try:
            while replica.high_watermark < asked.min_offset:
                self._broker.check_serving()
                _check_replica(partition, asked.consistency)
                if not await wake_up.wait_until(deadline):
                    raise OffsetNotAvailableError(
                        f"records below offset {asked.min_offset} were not committed in time: this replica has "
                        f"those below {replica.high_watermark}",
                        action="Take min_offset from the same partition: the version of the row, plus one. Try again.",
                    )
        finally:
            waiters.leave(wake_up, [partition])

    def _end(
        self, read: _Reading, response: ResponseT, call: TableCall, rows: Sequence[tables_pb2.TableRow]
    ) -> ResponseT:
        self._broker.check_lease(Outcome.NOT_APPLIED, is_linearizable=read.is_from_leader)
        latency_us, trace = self._note(call, len(read.answer.keys), read.started), read.table.trace
        if trace is not None and read.arrival is not None:
            if call is TableCall.GET:
                trace.note_gets(read.answer.keys, rows, read.table.removed, read.arrival, latency_us)
            else:
                trace.note_scan(read.answer.keys, rows, read.arrival, latency_us)
        access().charge(Use.FETCH, read.answer.size_bytes)
        read.partition.meter.note_read(read.answer.size_bytes)
        return response

    def _note(self, call: TableCall, rows: int, started: float) -> int:
        """Count a call; return its microseconds."""
        seconds = time.perf_counter() - started
        self._metrics.seconds[call].observe(seconds, current_trace_id())
        self._metrics.rows[call].inc(rows)
        return max(1, int(seconds * 1e6))

    def _find(
        self, reference: topics_pb2.TopicRef, number: int, operation: Operation, keys: Iterable[bytes] = ()
    ) -> tuple[Partition, PartitionTable]:
        """Return a partition of a table, which must be that of the rows with these keys."""
        topic = find_topic(self._view, reference, operation)
        partition = self._replica_manager.find_in(topic, number)
        if partition.table is None:
            raise InvalidRequestError(
                f"topic {topic.name} is no table",
                action=f"Create it by `headrace table create`, or `headrace topic alter {topic.name} --config "
                "cleanup_policy=compact --config table=yes`.",
            )
        check_own_partition(keys, number, topic.partitions)
        return partition, partition.table


def _at_the_end_of(context: Any) -> WhenDone:
    return lambda callback: context.add_done_callback(lambda _: callback())


def _arrival_at(table: PartitionTable) -> Arrival | None:
    """Return the arrival of a request that begins now; `None` without a trace."""
    return None if table.trace is None else table.trace.arrive()


def _call_of(write: RowWrite) -> TableCall:
    if write.if_version is not None:
        return TableCall.COMPARE_AND_PUT
    deletes = write.deletes_row or all(value is None for value in write.columns.values())
    return TableCall.DELETE if deletes else TableCall.PUT


def _check_replica(partition: Partition, consistency: tables_pb2.Consistency) -> None:
    """Check that the replica here answers reads of this consistency; raise HeadraceError otherwise."""
    if consistency in (tables_pb2.CONSISTENCY_UNSPECIFIED, tables_pb2.CONSISTENCY_LEADER):
        partition.replica.check_leading(-1).check_latest()
    elif consistency == tables_pb2.CONSISTENCY_REPLICA:
        partition.replica.check_serving(-1)
    else:
        raise InvalidRequestError(f"consistency {consistency} is unknown")


class _Reading:
    """One read of a table."""

    def __init__(
        self,
        partition: Partition,
        table: PartitionTable,
        started: float,
        seconds: float,
        state: RowOffsets,
        as_of_offset: int,
        memory: GrowingReservation,
        is_from_leader: bool,
        arrival: Arrival | None = None,
    ) -> None:
        self.is_from_leader = is_from_leader
        self.partition = partition
        self.table = table
        self.started = started
        self.arrival = arrival
        self._seconds = seconds
        self._memory = memory
        self.state = state
        self.as_of_offset = as_of_offset
        self.answer = RowsAnswer()

    async def add_rows(self, keys: Iterable[bytes], wanted: WantedColumns, rows: Any) -> None:
        """Add rows to a response until it is full; other calls run after each `COLUMNS_AT_ONCE` columns."""
        found: list[FoundRow] = []
        columns = 0
        for key in keys:
            found.append(look_up(self.state, key, wanted))
            columns += 1 + len(found[-1].columns)
            if columns >= COLUMNS_AT_ONCE:
                await self._add_all(found, wanted, rows)
                if self.answer.is_full:
                    return
                found, columns = [], 0
                await next_turn()
        await self._add_all(found, wanted, rows)

    async def _add_all(self, found: list[FoundRow], wanted: WantedColumns, rows: Any) -> None:
        for _ in range(_TRIES):
            values = await self._read_values(found)
            if values is not None:
                break
            self.state, self.as_of_offset = await self.table.read_state(self._seconds)
            found = [look_up(self.state, row.key, wanted) for row in found]
        else:
            raise OffsetNotAvailableError("the rows were changed again and again while they were read")
        self.answer.add(found, values, rows)
        self._memory.grow_to(self.answer.size_bytes)

    async def _read_values(self, found: Sequence[FoundRow]) -> dict[int, RecordValue] | None:
        """Return the values of rows until the answer is full; `None` if one is not in the log any more."""
        fitting = FittingValues(found, self.answer.room_bytes)
        offsets = fitting.next_offsets()
        while offsets:
            if not fitting.note(await self.table.read_values(offsets, fitting.room_bytes)):
                return None
            self._memory.grow_to(MAX_ANSWER_BYTES - fitting.room_bytes)
            offsets = fitting.next_offsets()
            if offsets:
                await next_turn()
        return fitting.values
