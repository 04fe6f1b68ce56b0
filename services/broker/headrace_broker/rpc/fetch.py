"""Fetch: several partitions, a long poll over all of them, batches as stored in the log or the simple form.

The slices are located first, and read when there are enough bytes or the wait has ended: on the event loop if they are
in the page cache, otherwise in threads. The bytes of the response stay in the budget until the call has ended. For the
native protocol nothing is read: the kernel sends the slices.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from headrace.log.slices import Slice
from headrace.partition.selections import LOCATED_FACTOR, selection_of
from headrace.placement.nearness import Location, distance
from headrace.v1 import broker_pb2
from headrace.wire.crc import ReadableBuffer
from headrace.wire.errors import HeadraceError, InvalidRequestError, to_detail
from headrace.wire.typed.selection import ColumnSelection
from headrace.wire.zero_copy import SplicedMessage
from headrace_server.call_spans import current_trace_id
from headrace_server.identity.gate import access
from headrace_server.identity.quotas import Use
from headrace_server.identity.rights import Operation, ResourceKind
from headrace_server.rpc import ITEMS_PER_TURN, LIGHT_ITEMS_PER_TURN, let_others_run

from headrace_broker.core.replica_fetch import Diverged
from headrace_broker.rpc.records import MAX_ANSWER_BYTES, MAX_PAYLOAD_BYTES, decode_records
from headrace_broker.rpc.topics import answer_topic
from headrace_broker.runtime.budget import MemoryBudget
from headrace_broker.runtime.partition import Partition, PartitionContext
from headrace_broker.runtime.replica_manager import ReplicaManager
from headrace_broker.runtime.waiters import FetchWaiters

THROTTLED_SHARE = 4
"""A fetch that has no slot to wait is answered at once, and its caller waits this part of its wait."""
MIN_THROTTLE_MS = 25


RECORDS_BYTES = 4 * MAX_PAYLOAD_BYTES
"""Memory of one partition in the simple form: its inflated batch, its entries as bytes, and as messages."""


@dataclass(slots=True)
class _Wanted:
    """Partition of a request."""

    request: broker_pb2.PartitionFetch
    known_epoch: int
    topic: str
    result: broker_pb2.PartitionFetchResult
    batches: list[ReadableBuffer]  # of the result, kept outside of it: see SplicedMessage
    partition: Partition | None = None
    found: Slice | None = None
    diverged: Diverged | None = None
    error: HeadraceError | None = None
    selection: ColumnSelection | None = None

    @property
    def source(self) -> tuple[Partition, Slice] | None:
        """Partition and slice of the result's batches; `None` if it has none."""
        if self.partition is None or self.found is None or self.diverged is not None or self.error is not None:
            return None
        return self.partition, self.found


@dataclass(frozen=True, slots=True)
class Located:
    """Response whose batches are still in their files. Its owner closes it; thread-safe."""

    response: broker_pb2.FetchResponse
    slices: list[list[Slice]]
    """Of each partition of the response, in its order: one, or none."""
    selected: list[list[bytes]]
    """Of each partition with a selection: its parts, which were read."""
    partitions: list[Partition | None]
    """In the same order."""
    release: Callable[[], None]
    """Gives the memory of the parts back."""

    def note_failure(self, piece: Slice, error: HeadraceError) -> None:
        """Have the partition process an error that reading its slice met."""
        for partition, slices in zip(self.partitions, self.slices, strict=True):
            if partition is not None and piece in slices:
                partition.corruption.note_read_error(error)

    def was_cut(self) -> bool:
        """Return whether a log was truncated meanwhile, so that the sent data must be discarded."""
        return any(found.was_cut for slices in self.slices for found in slices)

    def close(self) -> None:
        """Release the files."""
        for slices in self.slices:
            for found in slices:
                found.close()
        self.release()


class FetchHandler:
    """Handles Fetch calls. Belongs to the event loop."""

    def __init__(
        self, replica_manager: ReplicaManager, budget: MemoryBudget, waiters: FetchWaiters, context: PartitionContext
    ) -> None:
        self._replica_manager = replica_manager
        self._budget = budget
        self._waiters = waiters
        self._context = context
        self._turn = 0  # rotates the first partition of a request from call to call, so that none starves

    async def fetch(
        self, request: broker_pb2.FetchRequest, peer: str, when_done: Callable[[Callable[[], None]], None]
    ) -> SplicedMessage:
        """Return the FetchResponse to a call of `peer`; `when_done` registers a callback for when it was sent.

        Raises:
            InvalidRequestError: If the whole request is invalid.
            ThrottledError: If there is no memory for the response now.
        """
        started = time.perf_counter()
        max_bytes = self._check(request)
        response = broker_pb2.FetchResponse()
        wanted, client = await self._resolve(request, response), _place_of(request)
        try:
            found_bytes, waited, response.throttle_ms = await self._find(wanted, request, max_bytes, peer)
            if found_bytes and request.as_records:  # The maximum, because the inflated size is unknown.
                found_bytes = max(found_bytes, MAX_PAYLOAD_BYTES)
            if found_bytes:
                self._budget.take(found_bytes)
                when_done(lambda: self._budget.give_back(found_bytes))
            records_bytes = MAX_ANSWER_BYTES if request.as_records else 0
            for index, each in enumerate(wanted):
                await let_others_run(index, LIGHT_ITEMS_PER_TURN if each.source is None else ITEMS_PER_TURN)
                self._describe(each, client)
                if each.source is not None and each.selection is not None:
                    each.batches.append(b"".join(await self._select(each, each.source, each.selection, max_bytes)))
                elif each.source is not None:
                    records_bytes -= await self._fill(each, each.source, request.as_records, records_bytes)
                self._fill_error(each)
        finally:
            _close_all(wanted)
        self._context.metrics.fetch_seconds.observe(time.perf_counter() - started - waited, current_trace_id())
        return SplicedMessage(response, [each.batches for each in wanted])

    async def locate(self, request: broker_pb2.FetchRequest, peer: str) -> Located:
        """Return the response to a call of `peer` as file ranges, which the native protocol sends.

        Raises:
            InvalidRequestError: If the whole request is invalid.
        """
        started = time.perf_counter()
        if request.as_records:
            raise InvalidRequestError(
                "the native protocol answers batches as they are stored", action="Ask for records by Fetch over gRPC."
            )
        max_bytes = self._check(request)
        response = broker_pb2.FetchResponse()
        wanted, client = await self._resolve(request, response), _place_of(request)
        slices: list[list[Slice]] = []
        selected: list[list[bytes]] = []
        held_bytes = 0

        def release() -> None:
            nonlocal held_bytes
            self._budget.give_back(held_bytes)
            held_bytes = 0

        try:
            found_bytes, waited, response.throttle_ms = await self._find(wanted, request, max_bytes, peer)
            if any(each.selection is not None for each in wanted):
                self._budget.take(found_bytes)
                held_bytes = found_bytes
            for index, each in enumerate(wanted):
                await let_others_run(index, LIGHT_ITEMS_PER_TURN)
                self._describe(each, client)
                slices.append([])
                selected.append([])
                if each.source is not None and each.selection is not None:
                    selected[-1] += await self._select(each, each.source, each.selection, max_bytes)
                    each.result.batches_size = sum(map(len, selected[-1]))
                elif each.source is not None:
                    partition, found = each.source
                    each.found = None
                    slices[-1].append(found)
                    each.result.batches_size = len(found)
                    each.result.next_offset = found.end_offset
                    each.result.last_epoch = partition.open_log.epoch_at(found.end_offset - 1)
                    self._count(partition, len(found))
                self._fill_error(each)
        except BaseException:
            Located(response, slices, [], [], release).close()
            raise
        finally:
            _close_all(wanted)
        self._context.metrics.fetch_seconds.observe(time.perf_counter() - started - waited, current_trace_id())
        return Located(response, slices, selected, [each.partition for each in wanted], release)

    async def _find(
        self, wanted: list[_Wanted], request: broker_pb2.FetchRequest, max_bytes: int, peer: str
    ) -> tuple[int, float, int]:
        """Find the slices as `_search`, and charge them to the user's quota."""
        found = await self._search(wanted, request, max_bytes, peer)
        access().charge(
            Use.FETCH, sum(0 if each.selection or each.source is None else len(each.source[1]) for each in wanted)
        )
        return found

    async def _search(
        self, wanted: list[_Wanted], request: broker_pb2.FetchRequest, max_bytes: int, peer: str
    ) -> tuple[int, float, int]:
        """Find the slices, and wait for them as requested. Return their bytes, the seconds of the wait, and the
        milliseconds that the caller should wait itself if there was no slot to wait.
        """
        from_follower = any(_place_of(request))
        min_bytes = min(request.min_bytes, max_bytes)
        partitions = [each.partition for each in wanted if each.partition is not None]
        # It waits from the first search on, so that no change between a search and the wait is missed.
        wake_up = self._waiters.try_enter(partitions, peer) if request.max_wait_ms > 0 else None
        waited, deadline = 0.0, asyncio.get_running_loop().time() + request.max_wait_ms / 1000
        try:
            while True:
                found_bytes, is_full = await self._locate(wanted, max_bytes, from_follower=from_follower)
                ends_now = request.max_wait_ms <= 0 or self._waiters.closed
                if found_bytes >= min_bytes or is_full or ends_now or _any_news(wanted):
                    break
                if wake_up is None:
                    return found_bytes, 0.0, max(MIN_THROTTLE_MS, request.max_wait_ms // THROTTLED_SHARE)
                before = time.perf_counter()
                was_woken = await wake_up.wait_until(deadline)
                waited += time.perf_counter() - before
                if not was_woken:
                    break
                _close_all(wanted)
        finally:
            if wake_up is not None:
                self._waiters.leave(wake_up, partitions)
        if waited:
            _check_rights(wanted)
            self._context.metrics.fetch_wait_seconds.observe(waited)
        return found_bytes, waited, 0

    def _check(self, request: broker_pb2.FetchRequest) -> int:
        """Check the whole request; return the maximum bytes of the response."""
        settings = self._context.settings
        if request.max_wait_ms < 0 or request.min_bytes < 0 or request.max_bytes < 0:
            raise InvalidRequestError("max_wait_ms, min_bytes and max_bytes must not be negative")
        if request.max_wait_ms > settings.max_fetch_wait_ms:
            raise InvalidRequestError(
                f"max_wait_ms {request.max_wait_ms} is over the limit of {settings.max_fetch_wait_ms}"
            )
        if not request.topics:
            raise InvalidRequestError("the request names no topic")
        partitions = sum(len(topic.partitions) for topic in request.topics)
        if partitions > settings.max_request_partitions:
            raise InvalidRequestError(
                f"{partitions} partitions are over the limit of {settings.max_request_partitions}"
            )
        limit = min(settings.max_fetch_bytes, request.max_bytes or settings.max_fetch_bytes)
        return min(limit, MAX_ANSWER_BYTES) if request.as_records else limit

    async def _resolve(self, request: broker_pb2.FetchRequest, response: broker_pb2.FetchResponse) -> list[_Wanted]:
        wanted: list[_Wanted] = []
        for topic_fetch in request.topics:
            selection = None if request.as_records else selection_of(topic_fetch)
            topic, unknown, topic_result = answer_topic(
                self._replica_manager.view, topic_fetch.topic, response.topics, Operation.READ
            )
            for part in topic_fetch.partitions:
                await let_others_run(len(wanted), LIGHT_ITEMS_PER_TURN)
                result = topic_result.partitions.add(
                    partition=part.partition,
                    high_watermark=-1,
                    log_start_offset=-1,
                    leader_epoch=-1,
                    preferred_replica=-1,
                )
                known_epoch = part.leader_epoch if part.HasField("leader_epoch") else -1
                each = _Wanted(part, known_epoch, topic_result.name, result, [], error=unknown, selection=selection)
                if topic is not None:
                    try:
                        each.partition = self._replica_manager.find_in(topic, part.partition)
                        if part.corruption_detected:
                            each.partition.corruption.verify(part.offset)
                    except HeadraceError as error:
                        each.error = error
                wanted.append(each)
        return wanted

    def _prefer_replica(self, partition: Partition, offset: int, client: Location) -> int:
        """Return an in-sync follower nearer to the reader that has `offset` (KIP-392), or `-1` to read here."""
        leadership, settings = partition.replica.leadership, self._context.settings
        nearest, here = -1, distance(client, Location(settings.data_center, settings.rack))
        if leadership is None or here == 0:
            return -1
        for member in leadership.state.in_sync:
            follower = leadership.followers.get(member)
            if follower is None or follower.offset < offset:
                continue
            there = distance(client, self._replica_manager.place_of(member))
            if there < here:
                nearest, here = member.broker_id, there
        return nearest

    async def _locate(self, wanted: list[_Wanted], max_bytes: int, *, from_follower: bool) -> tuple[int, bool]:
        """Find slices of at most `max_bytes` in total, except the first; return their bytes, and if one did not fit.

        The first batch that does not fit ends the search, because the search for a smaller one would cost a read in
        each further log. The next call begins with another partition.
        """
        total = 0
        self._turn += 1
        first = self._turn % len(wanted) if wanted else 0
        for index in range(len(wanted)):
            await let_others_run(index)
            each = wanted[(first + index) % len(wanted)]
            if each.partition is None or each.error is not None or each.diverged is not None:
                continue
            room = max_bytes - total
            if total and room <= 0:
                return total, True
            limit = min(room, each.request.max_bytes) if each.request.max_bytes > 0 else room
            if each.selection is not None:
                limit *= LOCATED_FACTOR
            try:
                if each.request.HasField("last_epoch"):
                    each.partition.reads.check_reader(each.known_epoch, from_follower=from_follower)
                    each.diverged = each.partition.reads.find_divergence(each.request.offset, each.request.last_epoch)
                    if each.diverged is not None:
                        continue
                found, would_block = each.partition.reads.locate_now(
                    each.request.offset, limit, each.known_epoch, from_follower=from_follower
                )
                if would_block:
                    found = await each.partition.reads.locate(each.request.offset, limit)
            except HeadraceError as error:
                each.partition.corruption.note_read_error(error)
                each.error = error
                continue
            if found is None:
                continue
            size_bytes = found.size_bytes if each.selection is None else min(found.size_bytes, limit // LOCATED_FACTOR)
            if total and size_bytes > room:
                found.close()
                return total, True
            each.found = found
            total += size_bytes
        return total, False

    def _describe(self, each: _Wanted, client: Location) -> None:
        """Write the fields of one partition's result other than the batches."""
        result, partition = each.result, each.partition
        if partition is None:
            return
        replica = partition.replica
        result.high_watermark = replica.high_watermark
        result.log_start_offset = replica.known_log_start
        result.leader_epoch = replica.leader_epoch
        result.next_offset = each.request.offset
        if partition.log is not None:
            result.deletions_end = partition.log.deletions_end
            end = partition.log.end
            if each.error is None and result.log_start_offset == end.offset == each.request.offset:
                result.chain_crc = end.crc
        if any(client) and each.error is None:
            result.preferred_replica = self._prefer_replica(partition, each.request.offset, client)
        if each.diverged is not None:
            result.diverged.leader_epoch = each.diverged.leader_epoch
            result.diverged.end_offset = each.diverged.end_offset

    async def _fill(self, each: _Wanted, source: tuple[Partition, Slice], as_records: bool, records_bytes: int) -> int:
        """Read one partition's batches into its result; return the bytes of its records in the simple form."""
        partition, found = source
        try:
            data = await partition.reads.read(found)
            self._count(partition, len(data))
            if as_records:
                return await self._fill_records(each, data, records_bytes)
            each.batches.append(data)
        except HeadraceError as error:
            partition.corruption.note_read_error(error)
            each.error = error
        return 0

    async def _select(
        self, each: _Wanted, source: tuple[Partition, Slice], selection: ColumnSelection, max_bytes: int
    ) -> list[bytes]:
        """Read the selected parts of one partition's batches, and complete its result."""
        partition, found = source
        limit = min(max_bytes, each.request.max_bytes) if each.request.max_bytes > 0 else max_bytes
        try:
            pieces, end_offset, epoch = await partition.reads.read_selected(found, selection, limit)
        except HeadraceError as error:
            partition.corruption.note_read_error(error)
            each.error = error
            return []
        each.result.next_offset, each.result.last_epoch = end_offset, epoch
        size_bytes = sum(map(len, pieces))
        self._count(partition, size_bytes)
        access().charge(Use.FETCH, size_bytes)
        return pieces

    def _count(self, partition: Partition, size_bytes: int) -> None:
        self._context.metrics.fetched_bytes.inc(size_bytes)
        partition.fetched_bytes += size_bytes
        partition.meter.note_read(size_bytes)

    def _fill_error(self, each: _Wanted) -> None:
        if each.error is None:
            return
        self._context.metrics.fetch_errors.labels(each.error.code.name).inc()
        each.result.error.CopyFrom(to_detail(self._replica_manager.with_leader_address(each.error)))

    async def _fill_records(self, each: _Wanted, data: bytes, records_bytes: int) -> int:
        if records_bytes <= 0:
            return 0
        limit = min(records_bytes, each.request.max_bytes) if each.request.max_bytes > 0 else records_bytes

        def decode() -> int:
            records, each.result.next_offset = decode_records(data, each.request.offset, max_bytes=limit)
            each.result.records.extend(records)
            return each.result.ByteSize()

        return await self._context.records.run(RECORDS_BYTES, decode)


def _any_news(wanted: list[_Wanted]) -> bool:
    return any(each.error is not None or each.diverged is not None for each in wanted)


def _check_rights(wanted: list[_Wanted]) -> None:
    """Check the caller and its rights after a wait, in which they may have changed.

    Raises:
        UnauthenticatedError: If the session has ended.
    """
    current = access()
    current.recheck()
    for each in wanted:
        if each.error is None:
            try:
                current.require(Operation.READ, ResourceKind.TOPIC, each.topic)
            except HeadraceError as error:
                each.error = error


def _place_of(request: broker_pb2.FetchRequest) -> Location:
    return Location(request.data_center, request.rack)


def _close_all(wanted: list[_Wanted]) -> None:
    for each in wanted:
        if each.found is not None:
            each.found.close()
            each.found = None
