"""Leader side of one follower's stream: fetches wait until there is data, a log start or a watermark to send.

There is one session per connected follower broker; made by the RPC layer, belongs to the event loop. A partition whose
followers are caught up costs nothing here: its fetches wait in a dictionary until `Partition.wake_replicas`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import structlog
from headrace.log.errors import SliceCutError
from headrace.log.slices import Slice
from headrace.wire.errors import HeadraceError, NotLeaderError, Outcome
from headrace.wire.ids import Offset
from headrace_server.internal_v1 import replication_pb2
from headrace_server.native.outgoing import OutgoingMessage, read_small
from headrace_server.partition_state import Replica
from headrace_server.rpc import LIGHT_ITEMS_PER_TURN, let_others_run

from headrace_broker.core.messages import FollowerFetched
from headrace_broker.core.replica_fetch import Diverged, FetchDecision, FetchRequest, check_fetch, must_report_flush
from headrace_broker.runtime.partition import Partition
from headrace_broker.runtime.partition_context import PartitionContext
from headrace_broker.runtime.replica_messages import (
    HEARTBEAT_SECONDS,
    read_request,
    write_decision,
    write_error,
)

log = structlog.get_logger(__name__)

WATERMARK_DELAY_SECONDS = 0.05
"""Delay before a high watermark or a flush without new records is sent, so that records can carry it."""

PartitionId = tuple[bytes, int]


@dataclass(slots=True)
class _Uncompared:
    """Fetch whose comparison of logs would block."""

    partition: Partition
    request: FetchRequest
    at_ms: int
    corruption_detected: bool


@dataclass(slots=True)
class _Waiting:
    """Verified fetch that has not been answered."""

    partition: Partition
    request: FetchRequest


@dataclass(slots=True)
class _Refused:
    """Fetch that is answered by a decision or an error."""

    request_token: int
    leader_epoch: int
    answer: FetchDecision | HeadraceError


class FollowerFetchSession:
    """Stream of one follower. `heard_ms` is when its last message arrived (monotonic)."""

    def __init__(
        self,
        follower: Replica,
        find: Callable[[PartitionId], Partition | None],
        may_join: Callable[[Replica], bool],
        on_heartbeat: Callable[[int, int], None],
        context: PartitionContext,
    ) -> None:
        """`find` returns partitions of this broker; `may_join` whether a follower may be added to an in-sync set.

        `on_heartbeat` is called with the broker id and the time (monotonic) of every message.
        """
        self.follower = follower
        self.heard_ms = context.clock.monotonic_ms()
        self._find = find
        self._may_join = may_join
        self._on_heartbeat = on_heartbeat
        self._context = context
        self._uncompared: dict[PartitionId, _Uncompared] = {}
        self._comparing: asyncio.Task[None] | None = None
        self._waiting: dict[PartitionId, _Waiting] = {}
        self._ready: dict[PartitionId, None] = {}  # keys of `_waiting` in the order of the responses
        self._refused: dict[PartitionId, _Refused] = {}
        self._pending_watermarks: dict[PartitionId, None] = {}
        self._watermark_timer: asyncio.TimerHandle | None = None
        self._wake = asyncio.Event()
        self._closed = False

    def close(self) -> None:
        """Drop all waiting fetches after the stream has ended."""
        self._closed = True
        for waiting in self._waiting.values():
            waiting.partition.delayed_fetches.pop(self, None)
        self._waiting.clear()
        self._uncompared.clear()
        if self._watermark_timer is not None:
            self._watermark_timer.cancel()
        self._wake.set()

    # --- fetches ---

    async def on_message(self, request: replication_pb2.ReplicaFetchRequest) -> None:
        """Process one message of the follower; drop it if a later stream has taken over.

        Comparisons of logs that would block continue in a task, so that later messages are read meanwhile.
        """
        handled = 0
        if not self._closed:
            self.heard_ms = self._context.clock.monotonic_ms()
            self._on_heartbeat(self.follower.broker_id, self.heard_ms)
        for topic in request.topics:
            for entry in topic.partitions:
                if self._closed:
                    return
                self._on_fetch((topic.topic_id, entry.partition), entry)
                await let_others_run(handled, LIGHT_ITEMS_PER_TURN)
                handled += 1

    def _on_fetch(self, key: PartitionId, entry: replication_pb2.PartitionReplicaFetch) -> None:
        self._forget(key)
        request = read_request(self.follower, entry)
        partition = self._find(key)
        try:
            if partition is None:
                raise NotLeaderError("this broker holds no replica of the partition", outcome=Outcome.NOT_APPLIED)
            decision, would_block = partition.reads.compare_now(request)
        except HeadraceError as error:
            self._refuse(key, request, error)
            return
        fetch = _Uncompared(partition, request, self.heard_ms, entry.corruption_detected)
        if not would_block:
            self._on_compared(key, fetch, decision)
            return
        self._uncompared[key] = fetch
        if self._comparing is None or self._comparing.done():
            self._comparing = asyncio.create_task(self._compare())
            self._context.watch(self._comparing)

    async def _compare(self) -> None:
        """Compare in a thread what would block the event loop; one at a time leaves threads to other calls."""
        while self._uncompared:
            key, fetch = next(iter(self._uncompared.items()))
            answer: FetchDecision | HeadraceError | None
            try:
                answer = await fetch.partition.reads.compare(fetch.request)
            except HeadraceError as error:
                answer = error
            if self._uncompared.get(key) is not fetch:
                continue  # A later fetch has replaced it, or the stream has ended.
            del self._uncompared[key]
            if isinstance(answer, HeadraceError):
                self._refuse(key, fetch.request, answer)
            else:
                self._on_compared(key, fetch, answer)

    def _on_compared(self, key: PartitionId, fetch: _Uncompared, decision: FetchDecision | None) -> None:
        """Answer a fetch by `decision`; without one it acknowledges, and waits for what there is to send."""
        partition, request = fetch.partition, fetch.request
        if fetch.corruption_detected:
            partition.corruption.verify(request.offset)
        if decision is not None:
            self._refuse(key, request, decision)
            return
        self._waiting[key] = _Waiting(partition, request)
        partition.delayed_fetches[self] = None
        partition.handle(
            FollowerFetched(
                self.follower,
                Offset(request.offset),
                Offset(request.durable_offset),
                fetch.at_ms,
                self._may_join(self.follower),
                request.log_start_offset,
            )
        )
        replica, leadership = partition.replica, partition.replica.leadership
        if request.offset < replica.log_end_offset:
            self._make_ready(key)
        elif leadership is None:
            pass  # It is answered when the partition wakes it.
        elif request.high_watermark < replica.high_watermark or request.log_start_offset < leadership.wanted_log_start:
            self._respond_later(key)
        else:
            self.note_flushed(partition)

    def _forget(self, key: PartitionId) -> None:
        """Drop the fetch of `key`, which is answered or replaced by a later one."""
        waiting = self._waiting.pop(key, None)
        self._ready.pop(key, None)
        self._pending_watermarks.pop(key, None)
        self._refused.pop(key, None)
        self._uncompared.pop(key, None)
        if waiting is not None:
            waiting.partition.delayed_fetches.pop(self, None)

    def _refuse(self, key: PartitionId, request: FetchRequest, answer: FetchDecision | HeadraceError) -> None:
        self._refused[key] = _Refused(request.token, request.leader_epoch, answer)
        self._wake.set()

    # --- events of partitions ---

    def wake(self, partition: Partition) -> None:
        """Schedule the response to the waiting fetch of `partition`."""
        self._make_ready((partition.topic_id, partition.number))

    def _make_ready(self, key: PartitionId) -> None:
        self._ready[key] = None
        self._wake.set()

    def note_high_watermark(self, partition: Partition) -> None:
        """Schedule a delayed response to the waiting fetch of `partition`, unless it is answered earlier."""
        self._respond_later((partition.topic_id, partition.number))

    def note_flushed(self, partition: Partition) -> None:
        """As `note_high_watermark`, if the follower has not flushed as far and does not know that the leader has."""
        key = (partition.topic_id, partition.number)
        waiting = self._waiting.get(key)
        if waiting is not None and must_report_flush(partition.replica, waiting.request):
            self._respond_later(key)

    def _respond_later(self, key: PartitionId) -> None:
        self._pending_watermarks[key] = None
        if self._watermark_timer is None:
            self._watermark_timer = asyncio.get_running_loop().call_later(
                WATERMARK_DELAY_SECONDS, self._send_watermarks
            )

    def _send_watermarks(self) -> None:
        self._watermark_timer = None
        pending, self._pending_watermarks = self._pending_watermarks, {}
        for key in pending:
            if key in self._waiting:
                self._make_ready(key)

    # --- answers ---

    async def responses(self) -> AsyncIterator[OutgoingMessage]:
        """Messages to the follower, an empty one as a heartbeat, until `close`."""
        while not self._closed:
            try:
                async with asyncio.timeout(HEARTBEAT_SECONDS):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            response = _Response()
            try:
                await self._respond(response)
            except BaseException:
                response.close()
                raise
            if self._ready or self._refused:
                self._wake.set()
            yield response.outgoing()

    async def _respond(self, response: _Response) -> None:
        """Answer what is ready, up to the bytes of one message."""
        refused, self._refused = self._refused, {}
        for key, refusal in refused.items():
            result = response.add(key)
            result.token, result.leader_epoch = refusal.request_token, refusal.leader_epoch
            _write_answer(result, refusal.answer)
        room, answered = self._context.settings.max_replica_fetch_bytes, 0
        while self._ready and room > 0:
            key = next(iter(self._ready))
            del self._ready[key]
            waiting = self._waiting.get(key)
            if waiting is not None:
                room -= await self._answer(key, waiting, room, response)
                await let_others_run(answered, LIGHT_ITEMS_PER_TURN)
                answered += 1

    async def _answer(self, key: PartitionId, waiting: _Waiting, room: int, response: _Response) -> int:
        """Answer one fetch that waits; return the bytes of its batches."""
        partition, request = waiting.partition, waiting.request
        found: Slice | None = None
        answer: FetchDecision | HeadraceError | None = None
        next_offset: int | None = None
        start = request.read_offset or request.offset
        try:
            check_fetch(partition.replica, request)
            found, next_offset = await partition.reads.locate_for_replica(start, room)
            if found is not None and found.base_offset != start:  # Compaction has joined batches meanwhile.
                answer = Diverged(request.last_epoch, found.base_offset, is_compacted=True)
            leadership = partition.replica.check_leading(request.leader_epoch)
        except SliceCutError:
            return 0  # Leadership has ended; the fetch is answered when the partition wakes it.
        except HeadraceError as error:
            answer = error
        is_replaced = self._waiting.get(key) is not waiting  # By a later fetch, meanwhile.
        if found is not None and (is_replaced or answer is not None):
            found.close()
            found = None
        if is_replaced:
            return 0
        self._forget(key)
        result = response.add(key, partition, found)
        result.token, result.leader_epoch = request.token, request.leader_epoch
        if answer is not None:
            _write_answer(result, answer)
            return 0
        result.deletions_end = partition.open_log.deletions_end
        result.high_watermark = partition.replica.high_watermark
        result.flushed_offset = partition.replica.flushed_offset
        result.log_start_offset = leadership.wanted_log_start
        if next_offset is not None:
            result.more, result.next_offset = True, next_offset
        if result.batches_size:
            self._context.metrics.replicated_out_bytes.inc(result.batches_size)
            partition.meter.note_read(result.batches_size)
        return int(result.batches_size)


def _write_answer(result: replication_pb2.PartitionReplicaFetchResult, answer: FetchDecision | HeadraceError) -> None:
    if isinstance(answer, HeadraceError):
        write_error(result, answer)
    else:
        write_decision(result, answer)


class _Response:
    """A message to the follower that is being made: results, and the ranges of files that are their batches."""

    def __init__(self) -> None:
        self._message = replication_pb2.ReplicaFetchResponse()
        self._topics: dict[bytes, tuple[replication_pb2.TopicReplicaFetchResult, list[Slice]]] = {}
        self._partitions: dict[Slice, Partition] = {}

    def add(
        self, key: PartitionId, partition: Partition | None = None, found: Slice | None = None
    ) -> replication_pb2.PartitionReplicaFetchResult:
        """Return a new result of a partition, whose batches are `found`; `None` means that it has none."""
        topic_id, number = key
        if topic_id not in self._topics:
            self._topics[topic_id] = self._message.topics.add(topic_id=topic_id), []
        topic, slices = self._topics[topic_id]
        if partition is None or found is None:
            return topic.partitions.add(partition=number)
        slices.append(found)
        self._partitions[found] = partition
        return topic.partitions.add(partition=number, batches_size=len(found))

    def outgoing(self) -> OutgoingMessage:
        """Return the message with its batches: little of it by its bytes, as for clients."""
        slices = [found for _, of_topic in self._topics.values() for found in of_topic]
        pieces = read_small(slices)
        message = self._message.SerializeToString()
        if pieces is not None:
            self.close()
            return OutgoingMessage(message, pieces)
        return OutgoingMessage(message, slices, self._is_valid, self.close, self._failed)

    def close(self) -> None:
        """Release the files."""
        for found in self._partitions:
            found.close()

    def _is_valid(self) -> bool:
        return not any(found.was_cut for found in self._partitions)

    def _failed(self, found: Slice, error: HeadraceError) -> None:
        self._partitions[found].corruption.note_read_error(error)
