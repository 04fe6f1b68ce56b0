"""Sealed batches in flight: selection of the next requests, and processing of responses. Pure; its owner locks.

Time comes in as `now_ms`.
A batch waits in its partition's queue, is in flight in a request, and then is `Finished`, or returns to its place in
the queue.

    event                                   result for the batch
    acknowledged                            finished with its offset
    retriable error, outcome unknown        back to its place, unknown: only its exact bytes may be sent again
    retriable error, not applied            back to its place
    out of order or unknown producer        sent while an earlier request flew: back to its place
    the same, sent alone                    not applied: back, new epoch once nothing flies; unknown: finished, UNKNOWN
    any other error, or out of time         finished with it; a sequence that is now missing needs a new epoch

A kept identity gets no new epoch: a batch that would need one is finished with its error, and nothing is sent after it.

After a failure a partition is recovering: it sends nothing until all its batches in flight have returned, and then one
request at a time until one succeeds. So order is kept whatever is lost (PROTOCOL H50, H51, I20 to I22). Without a
producer id only one request at a time is in flight.

A partition whose leader failed waits; metadata is read for a newer leader in the meantime, which is tried at once. A
request without a response is dropped when metadata names a newer leader: its outcome is unknown.
"""

from collections.abc import Iterable
from copy import copy

from headrace.client.base.call_counts import CallCounts
from headrace.client.base.retry import Backoff, Overdue
from headrace.client.net.cluster_metadata import ClusterMetadata
from headrace.client.producer.partition_queue import (
    Finished,
    OpenRequest,
    PartitionQueue,
    PartitionResponse,
    Request,
    RequestPart,
    SealedBatch,
)
from headrace.client.producer.producer_identity import ProducerIdentity
from headrace.wire.errors import ErrorCode, HeadraceError, Outcome, TimedOutError, TransportError, UnknownTopicIdError

MAX_BATCHES_IN_FLIGHT = 64
"""Maximum number per partition: the ranges that the leader remembers (PROTOCOL H48)."""
MAX_REQUEST_BATCHES = 4_096
"""Well below a broker's limit for one request (`max_request_batches`)."""

_LEADERSHIP = frozenset({
    ErrorCode.NOT_LEADER, ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.FENCED_BROKER, ErrorCode.STORAGE_OFFLINE,
})  # fmt: skip
_IDENTITY = frozenset({ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC, ErrorCode.UNKNOWN_PARTITION})
_GONE = _LEADERSHIP | {ErrorCode.SHUTTING_DOWN, ErrorCode.TIMED_OUT}
"""Errors after which another leader may exist or be elected. A failed connection counts as well."""
_FULL = frozenset({ErrorCode.THROTTLED, ErrorCode.STORAGE_FULL})
"""Errors of a working leader."""
_SEQUENCE = frozenset({ErrorCode.OUT_OF_ORDER_SEQUENCE, ErrorCode.UNKNOWN_PRODUCER})


class InFlightRequests:
    """Decides which batches are sent when. The owner locks around every call.

    The owner sends the requests and completes finished batches.
    """

    def __init__(
        self,
        cluster_metadata: ClusterMetadata,
        backoff: Backoff,
        *,
        idempotent: bool,
        max_in_flight_requests: int,
        max_request_bytes: int,
        request_timeout_ms: int,
        identity: tuple[int, int] | None = None,
    ) -> None:
        """See `ProducerIdentity` for `identity`."""
        self._cluster_metadata = cluster_metadata
        self._backoff = backoff
        self._idempotent = idempotent
        self._max_in_flight = max_in_flight_requests
        self._max_request_bytes = max_request_bytes
        self._request_timeout_ms = request_timeout_ms
        self._waiting: dict[PartitionQueue, None] = {}
        self._in_flight: dict[int, int] = {}
        self._flying: dict[Request, Overdue] = {}
        self.identity = ProducerIdentity(identity, is_used=idempotent)
        self.counts = CallCounts()
        self.unresolved: dict[SealedBatch, None] = {}
        """Every batch that was added and has not finished, in order."""
        self.needs_metadata = False
        """Set when a batch cannot be sent for lack of a leader; the owner reads metadata and clears it."""

    def add(self, batch: SealedBatch) -> None:
        """Queue a batch that was just sealed; it is sent once it is encoded."""
        batch.partition_queue.queued.append(batch)
        self._waiting[batch.partition_queue] = None
        self.unresolved[batch] = None

    def in_flight(self) -> list[Request]:
        """Return the requests in flight; any thread."""
        return list(self._flying)

    def waiting_topics(self) -> list[str]:
        """Return the topics with queued batches; a closing producer uses only these."""
        return list(dict.fromkeys(partition_queue.where.topic for partition_queue in self._waiting))

    def next_requests(self, now_ms: int) -> list[Request]:
        """Return the requests that can be sent now. Each counts as in flight until `answered` or `failed`."""
        requests: list[Request] = []
        while self._waiting and (packed := self._pack(now_ms)):
            requests += packed
        return requests

    def _pack(self, now_ms: int) -> list[Request]:
        """Return at most one request per broker."""
        packed: dict[int, OpenRequest] = {}
        for partition_queue in list(self._waiting):
            if not partition_queue.queued:
                del self._waiting[partition_queue]
                continue
            leader = self._cluster_metadata.leader(partition_queue.where, partition_queue.topic_id)
            if leader is None:
                self.needs_metadata = True
                continue
            broker_id, address, epoch = leader
            if not self._may_send(partition_queue, epoch, now_ms):
                continue
            if self._in_flight.get(broker_id, 0) >= self._max_in_flight:
                continue
            if broker_id not in packed:
                packed[broker_id] = OpenRequest(
                    address, self._max_request_bytes, MAX_REQUEST_BATCHES, now_ms + self._request_timeout_ms
                )
            self._take(partition_queue, epoch, packed[broker_id])
            if not partition_queue.queued:
                del self._waiting[partition_queue]
        requests = []
        for broker_id, entry in packed.items():
            if entry.parts:
                request = Request(broker_id, entry.address, entry.parts, max(1, entry.deadline_ms - now_ms))
                self._in_flight[broker_id] = self._in_flight.get(broker_id, 0) + 1
                self._flying[request] = Overdue(now_ms, 0)
                requests.append(request)
        return requests

    def _may_send(self, partition_queue: PartitionQueue, leader_epoch: int, now_ms: int) -> bool:
        if partition_queue.retry_at_ms > now_ms and leader_epoch <= partition_queue.failed_epoch:
            self.needs_metadata = self.needs_metadata or partition_queue.seeks_leader
            return False
        if partition_queue.flying and (
            partition_queue.recovering or partition_queue.needs_epoch or not self._idempotent
        ):
            return False
        return self.identity.admits(partition_queue)

    def _take(self, partition_queue: PartitionQueue, leader_epoch: int, packed: OpenRequest) -> None:
        """Move the batches that fit from the front of the queue into a request; at least one if it is empty."""
        batches: list[SealedBatch] = []
        most = packed.batches
        sent_behind = bool(partition_queue.flying)
        if self._idempotent:
            flying = 0
            for batch in partition_queue.flying:
                flying += batch.count
            most = min(most, MAX_BATCHES_IN_FLIGHT - flying)
        while partition_queue.queued and partition_queue.queued[0].count <= most:
            batch = partition_queue.queued[0]
            if batch.encoded is None or (partition_queue.needs_epoch and not batch.outcome_unknown):
                break
            size_bytes = sum(map(len, batch.encoded))
            if packed.room < size_bytes and (batches or packed.parts):
                break
            partition_queue.queued.popleft()
            if self._idempotent and not batch.numbered:
                self.identity.number(batch)
            packed.room -= size_bytes
            packed.batches -= batch.count
            packed.deadline_ms = min(packed.deadline_ms, batch.deadline_ms)
            most -= batch.count
            batch.sent_behind = sent_behind
            partition_queue.flying.append(batch)
            batches.append(batch)
        if batches:
            packed.parts.append(RequestPart(partition_queue, leader_epoch, batches))

    def answered(self, request: Request, answers: Iterable[PartitionResponse], now_ms: int) -> list[Finished]:
        """Process a response: one `PartitionResponse` per part, in the request's order."""
        if self._lands_again(request):
            return []
        finished: list[Finished] = []
        for part, answer in zip(request.parts, answers, strict=True):
            self._remove(part)
            if answer.error is None:
                self._succeeded(part, answer, finished)
            else:
                self._part_failed(part, answer, answer.error, now_ms, finished)
        return self._forget(finished)

    def failed(self, request: Request, error: HeadraceError, now_ms: int) -> list[Finished]:
        """Process the failure of a whole call."""
        if self._lands_again(request):
            return []
        finished: list[Finished] = []
        for part in request.parts:
            self._remove(part)
            self._part_failed(part, PartitionResponse((), error), error, now_ms, finished)
        return self._forget(finished)

    def give_up_overdue(self, now_ms: int) -> tuple[list[Request], list[Finished]]:
        """Drop overdue requests whose partitions have a newer leader; the owner cancels their calls.

        For other overdue requests metadata must be read. The outcome of dropped batches is unknown: they are sent to
        the newer leader with the same sequences; to all leaders, if one partition of the request has moved.
        """
        given_up = []
        for request, overdue in self._flying.items():
            if not overdue.is_due(now_ms):
                continue
            if any(self._has_newer_leader(part) for part in request.parts):
                given_up.append(request)
            elif overdue.takes_look(now_ms):
                self.needs_metadata = True
        finished: list[Finished] = []
        for request in given_up:
            error = TimedOutError(f"broker {request.broker_id} did not respond and is no longer the leader")
            finished += self.failed(request, error, now_ms)
        return given_up, finished

    def late(self, now_ms: int) -> list[Request]:
        """Return the requests that have taken longer than their timeout. A connection ends those that it has sent."""
        return [request for request, call in self._flying.items() if now_ms >= call.due_ms + request.timeout_ms]

    def _has_newer_leader(self, part: RequestPart) -> bool:
        leader = self._cluster_metadata.leader(part.partition_queue.where)
        return leader is not None and leader[2] > part.leader_epoch

    def _lands_again(self, request: Request) -> bool:
        """Remove a request from those in flight; return whether it was removed before (dropped, or not started)."""
        if request.landed:
            return True
        request.landed = True
        self._flying.pop(request, None)
        self._in_flight[request.broker_id] -= 1
        return False

    def _remove(self, part: RequestPart) -> None:
        gone = set(part.batches)
        part.partition_queue.flying = [batch for batch in part.partition_queue.flying if batch not in gone]

    def _succeeded(self, part: RequestPart, answer: PartitionResponse, finished: list[Finished]) -> None:
        part.partition_queue.recovering = part.partition_queue.seeks_leader = False
        part.partition_queue.failures = 0
        part.partition_queue.last_error = None
        first = 0
        for batch in part.batches:
            batch.pending.repeated = answer.repeated
            finished.append(Finished(batch, answer.base_offsets[first : first + batch.count], None))
            first += batch.count

    def _part_failed(
        self, part: RequestPart, answer: PartitionResponse, error: HeadraceError, now_ms: int, finished: list[Finished]
    ) -> None:
        """Decide for each batch; the leader did not process those after the refused one."""
        partition_queue = part.partition_queue
        partition_queue.recovering = True
        partition_queue.failures += 1
        partition_queue.last_error = error
        appended = len(answer.base_offsets)
        first = 0
        back: list[SealedBatch] = []
        for batch in part.batches:
            end = first + batch.count
            if first < appended or error.outcome != Outcome.NOT_APPLIED:
                batch.outcome_unknown = True
            refused = first <= appended < end or (first > appended and error.outcome != Outcome.NOT_APPLIED)
            if not refused or self._comes_back(batch, error):
                back.append(batch)
            else:
                self._end(batch, error, finished)
            first = end
        self.counts.errors[error.code] += 1
        self.counts.retries += sum(batch.count for batch in back)
        partition_queue.put_back(back)
        if partition_queue.queued:
            self._waiting[partition_queue] = None
        self._reroute(partition_queue, part.leader_epoch, error, now_ms)

    def _comes_back(self, batch: SealedBatch, error: HeadraceError) -> bool:
        """Return whether a refused batch is sent again."""
        partition_queue = batch.partition_queue
        if error.code in _SEQUENCE and self._idempotent:
            if batch.sent_behind:
                return True
            partition_queue.needs_epoch = True
            return not batch.outcome_unknown and not self.identity.is_kept
        return error.retriable or error.code in _IDENTITY or error.code in _LEADERSHIP

    def _reroute(self, partition_queue: PartitionQueue, epoch: int, error: HeadraceError, now_ms: int) -> None:
        """Decide where and when to retry a partition that failed at the leader of `epoch`."""
        topic = partition_queue.where, partition_queue.topic_id
        moved = error.leader is not None and self._cluster_metadata.learn_leader(*topic, error.leader)
        if not moved:
            if error.code in _LEADERSHIP:
                self._cluster_metadata.forget_leader(*topic, epoch)
            self.needs_metadata = self.needs_metadata or error.code not in _FULL
        partition_queue.seeks_leader = not moved and (error.code in _GONE or isinstance(error, TransportError))
        partition_queue.failed_epoch = epoch
        partition_queue.retry_at_ms = now_ms + self._backoff.delay_ms(partition_queue.failures, error.retry_after_ms)

    def _end(self, batch: SealedBatch, error: HeadraceError, finished: list[Finished]) -> None:
        """Drop a batch. Its sequence stays missing, so that later batches need a new epoch."""
        if batch.numbered:
            batch.partition_queue.needs_epoch = True
        else:
            batch.partition_queue.sequences.dropped(batch.records)
        if batch.outcome_unknown and error.outcome == Outcome.NOT_APPLIED:
            error = _doubtful(error)
        finished.append(Finished(batch, (), error))

    def give_up(self, batch: SealedBatch, error: HeadraceError) -> list[Finished]:
        """End a queued batch that could not be encoded."""
        if batch not in batch.partition_queue.queued:
            return []
        batch.partition_queue.queued.remove(batch)
        finished: list[Finished] = []
        self._end(batch, error, finished)
        return self._forget(finished)

    def expire(self, now_ms: int) -> list[Finished]:
        """End batches queued beyond their deadline."""
        finished: list[Finished] = []
        for partition_queue in list(self._waiting):
            while partition_queue.queued and partition_queue.queued[0].deadline_ms <= now_ms:
                error = TimedOutError(
                    f"not delivered to {partition_queue.where} within delivery_timeout_ms: "
                    f"{self._obstacle(partition_queue)}",
                    outcome=Outcome.NOT_APPLIED,
                )
                self._end(partition_queue.queued.popleft(), error, finished)
        return self._forget(finished)

    def _obstacle(self, partition_queue: PartitionQueue) -> str:
        if self._idempotent and partition_queue.sequences.producer_id < 0:
            return "no coordinator gave a producer id"
        if self._cluster_metadata.leader(partition_queue.where) is None:
            return "the partition has no leader that is known"
        if not partition_queue.failures:
            return "the broker was busy with earlier requests"
        last = partition_queue.last_error
        return f"{partition_queue.failures} tries failed" + (
            "" if last is None else f", the last one because {last.message}"
        )

    def metadata_changed(self) -> list[Finished]:
        """Process new metadata: batches of a topic that was deleted or created again end."""
        self.needs_metadata = False
        finished: list[Finished] = []
        for partition_queue in list(self._waiting):
            topic_leaders = self._cluster_metadata.topic(partition_queue.where.topic)
            gone = self._cluster_metadata.error(partition_queue.where.topic)
            if topic_leaders is not None and topic_leaders.topic_id == partition_queue.topic_id:
                continue
            if topic_leaders is None and (gone is None or gone.code not in _IDENTITY):
                continue
            error = UnknownTopicIdError(
                f"topic {partition_queue.where.topic} was deleted"
                + (" and created again" if topic_leaders is not None else ""),
                outcome=Outcome.NOT_APPLIED,
            )
            while partition_queue.queued and partition_queue.queued[0].encoded is not None:
                self._end(partition_queue.queued.popleft(), error, finished)
        return self._forget(finished)

    def abandon(self, error: HeadraceError) -> list[Finished]:
        """End all batches, queued or in flight; the owner cancels the calls, and ignores their responses."""
        finished: list[Finished] = []
        for batch in list(self.unresolved):
            batch.outcome_unknown = batch.outcome_unknown or batch in batch.partition_queue.flying
            self._end(batch, error, finished)
        for partition_queue in self._waiting:
            partition_queue.queued.clear()
        self._waiting.clear()
        return self._forget(finished)

    def next_event_ms(self, now_ms: int) -> int | None:
        """Return the next time of a retry, an expiry or a check of an overdue call, or `None`."""
        times = [overdue.next_ms(now_ms) for overdue in self._flying.values()]
        for partition_queue in self._waiting:
            if partition_queue.queued:
                times.append(partition_queue.queued[0].deadline_ms)
                if partition_queue.retry_at_ms > now_ms:
                    times.append(partition_queue.retry_at_ms)
        return min(times, default=None)

    def _forget(self, finished: list[Finished]) -> list[Finished]:
        """Return the batches that were not finished before: each batch finishes once."""
        return [entry for entry in finished if self.unresolved.pop(entry.batch, entry) is None]


def _doubtful(error: HeadraceError) -> HeadraceError:
    """Return the same error with outcome UNKNOWN: an earlier try may have been applied."""
    changed = copy(error)
    changed.outcome = Outcome.UNKNOWN
    changed.__cause__ = error
    return changed
