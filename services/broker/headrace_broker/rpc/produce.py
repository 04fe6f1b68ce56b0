"""Produce: several partitions with several batches each, appended in order and acknowledged as requested.

If the partition's log is fast, an append waits for no task or lock; otherwise the appends of all partitions begin at
once, each behind the earlier ones of its partition, so that the next request of the connection overtakes none of them.
A large request is appended in slices, between which other calls run; calls of the same connection wait for their turn.
Acknowledgements of all partitions are awaited together.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, cast

from headrace.v1 import broker_pb2
from headrace.wire.errors import HeadraceError, InvalidRequestError, Outcome, ShuttingDownError, to_detail
from headrace.wire.zero_copy import SplicedMessage
from headrace_server.call_spans import current_span, current_trace_id
from headrace_server.caller_turns import next_turn
from headrace_server.identity.gate import access
from headrace_server.identity.quotas import Use
from headrace_server.identity.rights import Operation, ResourceKind
from headrace_server.rpc import LIGHT_ITEMS_PER_TURN, let_others_run

from headrace_broker.rpc.checks import seconds_of
from headrace_broker.rpc.records import check_records, encode_records
from headrace_broker.rpc.topics import answer_topic
from headrace_broker.runtime.budget import MemoryBudget
from headrace_broker.runtime.partition import AppendResult, Partition, PartitionContext
from headrace_broker.runtime.replica_manager import ReplicaManager
from headrace_broker.runtime.turns import Turns
from headrace_broker.runtime.uninterrupted import spawn_unless_ending, uninterrupted

SLICE_BYTES = 4 << 20
"""Maximum bytes of a slice; their check and write block the event loop for about 10 ms."""
SLICE_BATCHES = 256
"""Maximum batches of a slice; small ones block the event loop for about 2 ms."""
SMALL_PARTITIONS = 20
"""Maximum partitions of a request without slices; each blocks the event loop for 0.1 ms or more."""

_Parts = list[tuple[broker_pb2.PartitionProduce, list[bytes]]]


class _Work(NamedTuple):
    """Unpacked request."""

    topics: list[tuple[broker_pb2.TopicProduce, _Parts]]
    size_bytes: int
    is_large: bool
    """Whether it has more than one slice."""
    takes_turn: bool
    """Whether its appends begin one after the other, in a turn of its connection: it is large, or has records to encode
    first.
    """
    connection: str
    as_copies: bool
    committed: bool
    """Whether it is acknowledged once all in-sync replicas have it."""


class _Begun(NamedTuple):
    """Append of a request that has a task."""

    partition: Partition
    result: broker_pb2.PartitionProduceResult
    task: asyncio.Task[AppendResult]


@dataclass(slots=True)
class _Pending:
    """Partition of the response that waits for its acknowledgement."""

    partition: Partition
    end_offset: int
    token: int
    future: asyncio.Future[HeadraceError | None]
    result: broker_pb2.PartitionProduceResult


@dataclass(slots=True)
class _Times:
    """Times of one call in seconds of `time.perf_counter`."""

    started: float
    appended: float = 0.0
    append_seconds: float = 0.0


class ProduceHandler:
    """Handles Produce calls. Belongs to the event loop."""

    def __init__(
        self, replica_manager: ReplicaManager, budget: MemoryBudget, context: PartitionContext, tasks: asyncio.TaskGroup
    ) -> None:
        self._tasks = tasks
        self._replica_manager = replica_manager
        self._budget = budget
        self._context = context
        self._turns = Turns()

    async def produce(self, spliced: SplicedMessage, connection: str) -> broker_pb2.ProduceResponse:
        """Return the response to a ProduceRequest of `connection`; with `acks=0` a task of `tasks` appends later.

        Raises:
            InvalidRequestError, BatchTooLargeError: If the whole request is invalid.
            ThrottledError: If there is no memory for it now.
            ShuttingDownError: If the broker is shutting down.
        """
        request: broker_pb2.ProduceRequest = spliced.message
        times = _Times(time.perf_counter())
        seconds = seconds_of(request.timeout_ms)
        work = self._unpack(spliced, connection)
        deadline = asyncio.get_running_loop().time() + seconds
        self._budget.take(work.size_bytes)
        access().charge(Use.PRODUCE, work.size_bytes)
        if request.acks == broker_pb2.ACKS_NONE:
            if not spawn_unless_ending(self._tasks, self._append_unasked(work, times)):
                self._budget.give_back(work.size_bytes)
                raise ShuttingDownError("the broker is shutting down", outcome=Outcome.NOT_APPLIED)
            return broker_pb2.ProduceResponse()
        try:
            return await self._append_all(work, deadline, times)
        finally:
            self._budget.give_back(work.size_bytes)

    async def _append_unasked(self, work: _Work, times: _Times) -> None:
        """Append a request with `acks=0`, and only count errors, because the client does not wait for them."""
        try:
            await self._append_all(work, 0.0, times)
        finally:
            self._budget.give_back(work.size_bytes)

    def _unpack(self, spliced: SplicedMessage, connection: str) -> _Work:
        """Check the whole request; return its batches by partition, with their size."""
        request: broker_pb2.ProduceRequest = spliced.message
        if request.acks not in broker_pb2.Acks.values():
            raise InvalidRequestError(f"acks {request.acks} is unknown")
        if not request.topics:
            raise InvalidRequestError("the request names no topic")
        size_bytes = batches_in_all = partitions = 0
        for topic in request.topics:
            partitions += len(topic.partitions)
        if partitions > self._context.settings.max_request_partitions:
            raise InvalidRequestError(
                f"{partitions} partitions are over the limit of {self._context.settings.max_request_partitions}"
            )
        has_records = False
        topics: list[tuple[broker_pb2.TopicProduce, _Parts]] = []
        in_order = iter(spliced.batches)
        for topic in request.topics:
            parts: _Parts = []
            for part in topic.partitions:
                batches = cast("list[bytes]", next(in_order))  # large ones are memory views, which are used like bytes
                batches_in_all += len(batches)
                size_bytes += sum(map(len, batches))
                if part.records:
                    check_records(part.records)
                    has_records = True
                    size_bytes += part.ByteSize()
                parts.append((part, batches))
            topics.append((topic, parts))
        if batches_in_all > self._context.settings.max_request_batches:
            raise InvalidRequestError(
                f"{batches_in_all} batches are over the limit of {self._context.settings.max_request_batches}"
            )
        is_large = partitions > SMALL_PARTITIONS or batches_in_all > SLICE_BATCHES or size_bytes > SLICE_BYTES
        committed = request.acks in (broker_pb2.ACKS_ALL, broker_pb2.ACKS_UNSPECIFIED)
        return _Work(topics, size_bytes, is_large, is_large or has_records, connection, request.as_copies, committed)

    async def _append_all(self, work: _Work, deadline: float, times: _Times) -> broker_pb2.ProduceResponse:
        if work.takes_turn or self._turns.must_wait(work.connection):
            async with self._turns.take(work.connection):
                if work.is_large:
                    await next_turn()  # Reading it used a slice.
                response, pending = await self._append_each(work, times)
        else:
            response, pending = await self._append_each(work, times)
        times.appended = time.perf_counter()
        if pending:
            await self._wait(pending, deadline)
        self._observe(times, pending)
        return response

    async def _append_each(self, work: _Work, times: _Times) -> tuple[broker_pb2.ProduceResponse, list[_Pending]]:
        response = broker_pb2.ProduceResponse()
        pending: list[_Pending] = []
        begun: list[_Begun] = []
        done, view = 0, self._replica_manager.view
        for topic_produce, parts in work.topics:
            topic, unknown, topic_result = answer_topic(view, topic_produce.topic, response.topics, Operation.WRITE)
            for part, batches in parts:
                if work.takes_turn:
                    await let_others_run(done)
                    done += 1
                result = topic_result.partitions.add(partition=part.partition, append_timestamp_ms=-1)
                try:
                    if topic is None:
                        assert unknown is not None
                        raise unknown
                    if work.as_copies:
                        access().require(Operation.ALTER, ResourceKind.TOPIC, topic.name)
                    partition = self._replica_manager.find_in(topic, part.partition)
                    appended: AppendResult | asyncio.Task[AppendResult]
                    if work.takes_turn:
                        appended = await self._append(partition, part, batches, work)
                    else:
                        appended = self._begin(partition, part, batches, work)
                except HeadraceError as error:
                    self._set_error(result, error)
                    continue
                if isinstance(appended, asyncio.Task):
                    begun.append(_Begun(partition, result, appended))
                else:
                    times.append_seconds += appended.append_seconds
                    self._note(partition, appended, work, result, pending)
        if begun:
            await self._end_appends(begun, work, times, pending)
        return response, pending

    async def _end_appends(self, begun: list[_Begun], work: _Work, times: _Times, pending: list[_Pending]) -> None:
        """Wait for appends that have begun, and take their results."""
        await uninterrupted(asyncio.gather(*(each.task for each in begun), return_exceptions=True))
        longest = 0.0
        for partition, result, task in begun:
            try:
                appended = task.result()
            except HeadraceError as error:
                self._set_error(result, error)
            else:
                longest = max(longest, appended.append_seconds)
                self._note(partition, appended, work, result, pending)
        times.append_seconds += longest

    def _note(
        self,
        partition: Partition,
        appended: AppendResult,
        work: _Work,
        result: broker_pb2.PartitionProduceResult,
        pending: list[_Pending],
    ) -> None:
        """Put an append into the response, and into `pending` if its acknowledgement must be waited for."""
        result.base_offsets.extend(appended.base_offsets)
        result.repeated_batches = appended.repeated
        result.append_timestamp_ms = appended.append_timestamp_ms
        result.log_start_offset = appended.log_start_offset
        result.leader_epoch = appended.leader_epoch
        result.log_end_offset, result.log_end_crc = appended.log_end_offset, appended.log_end_crc
        if appended.error is not None:
            self._set_error(result, appended.error)
        if work.committed and appended.end_offset:
            wait = partition.acknowledgements.of(appended.end_offset, appended.leader_epoch)
            if wait is not None:
                pending.append(_Pending(partition, appended.end_offset, *wait, result))

    def _observe(self, times: _Times, pending: list[_Pending]) -> None:
        """Record the durations of the call's stages; a call that did not wait has only the first two."""
        metrics, span, trace_id = self._context.metrics, current_span(), current_trace_id()
        queue = times.appended - times.started - times.append_seconds
        metrics.queue_stage.observe(queue, trace_id)
        metrics.append_stage.observe(times.append_seconds, trace_id)
        if span is not None:
            span.stage("queue", times.started, queue)
            span.stage("append", times.started + queue, times.append_seconds)
        if not pending:
            return
        waited = time.perf_counter() - times.appended
        flushed = [
            at for each in pending if (at := each.partition.flush_policy.flushed_at(each.end_offset)) is not None
        ]
        fsync = min(waited, max(0.0, max(flushed) - times.appended)) if flushed else 0.0
        metrics.fsync_stage.observe(fsync, trace_id)
        metrics.replication_stage.observe(waited - fsync, trace_id)
        if span is not None:
            span.stage("fsync", times.appended, fsync)
            span.stage("replication", times.appended + fsync, waited - fsync)

    def _begin(
        self, partition: Partition, part: broker_pb2.PartitionProduce, batches: list[bytes], work: _Work
    ) -> AppendResult | asyncio.Task[AppendResult]:
        """Append the batches of a partition, or begin to: later calls for it come after them."""
        known_epoch = part.leader_epoch if part.HasField("leader_epoch") else -1
        if work.as_copies:
            return partition.appender.begin_copies(
                batches, known_epoch, deletions_end=part.deletions_end, committed=work.committed
            )
        if not batches:
            raise InvalidRequestError("a partition carries neither batches nor records")
        result = partition.appender.append_now(batches, known_epoch, committed=work.committed)
        return (
            partition.appender.begin_append(batches, known_epoch, committed=work.committed)
            if result is None
            else result
        )

    async def _append(
        self, partition: Partition, part: broker_pb2.PartitionProduce, batches: list[bytes], work: _Work
    ) -> AppendResult:
        known_epoch = part.leader_epoch if part.HasField("leader_epoch") else -1
        if part.records:
            if work.as_copies:
                raise InvalidRequestError("copies are batches, and not records")
            if batches:
                raise InvalidRequestError("a partition carries either batches or records, not both")
            now_ms = self._context.now_ms()
            partition.replica.check_leading(known_epoch)
            batches = [
                await asyncio.get_running_loop().run_in_executor(
                    self._context.executor, encode_records, part, now_ms, partition.config.columns
                )
            ]
        if not work.as_copies and len(batches) > 1:
            return await self._append_slices(partition, batches, known_epoch, work)
        begun = self._begin(partition, part, batches, work)
        return await uninterrupted(begun) if isinstance(begun, asyncio.Task) else begun

    async def _append_slices(
        self, partition: Partition, batches: list[bytes], known_epoch: int, work: _Work
    ) -> AppendResult:
        """Append the slices under one leader epoch, because the response has only one."""
        whole: AppendResult | None = None
        for each in _slices(batches):
            result = partition.appender.append_now(each, known_epoch, committed=work.committed)
            if result is None:
                result = await partition.appender.append(each, known_epoch, committed=work.committed)
            if whole is None:
                whole, known_epoch = result, result.leader_epoch
            else:
                whole.add(result)
            if result.error is not None:
                break
            await next_turn()
        assert whole is not None, "there is a batch"
        return whole

    def _set_error(self, result: broker_pb2.PartitionProduceResult, error: HeadraceError) -> None:
        self._context.metrics.produce_errors.labels(error.code.name).inc()
        result.error.CopyFrom(to_detail(self._replica_manager.with_leader_address(error)))

    async def _wait(self, pending: list[_Pending], deadline: float) -> None:
        """Wait for all acknowledgements until the deadline; the outcome of the others is then unknown."""
        settled = 0
        try:
            await asyncio.wait(
                [each.future for each in pending], timeout=max(0.0, deadline - asyncio.get_running_loop().time())
            )
            for each in pending:
                await let_others_run(settled, LIGHT_ITEMS_PER_TURN)
                settled += 1
                self._settle(each)
        finally:
            for each in pending[settled:]:  # The call was cancelled.
                self._settle(each)

    def _settle(self, each: _Pending) -> None:
        error = each.future.result() if each.future.done() else each.partition.acknowledgements.give_up(each.token)
        if error is not None:
            self._set_error(each.result, error)


def _slices(batches: list[bytes]) -> Iterator[list[bytes]]:
    """Yield slices of at most `SLICE_BATCHES` batches and `SLICE_BYTES`; a single batch may exceed the latter."""
    first = size_bytes = 0
    for index, batch in enumerate(batches):
        if index > first and (index - first == SLICE_BATCHES or size_bytes + len(batch) > SLICE_BYTES):
            yield batches[first:index]
            first, size_bytes = index, 0
        size_bytes += len(batch)
    yield batches[first:]
