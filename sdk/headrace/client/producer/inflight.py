"""Sealed batches on their way: what is sent next, and what an answer means. Pure; its owner locks.

Time comes in as `now_ms`.
A batch waits in its partition's queue, flies in a request, and ends by `Finished`, or comes back to its place in the
queue.

    event                                   what becomes of the batch
    acknowledged                            finished with its offset
    retriable error, nothing vouched for    back to its place, unknown: only its exact bytes may be sent again
    retriable error, definitely not done    back to its place
    out of order or unknown producer        an earlier one unresolved: back to its place
    the same, the first of its partition    definite: back, a new epoch once nothing flies; unknown: finished, UNKNOWN
    any other error, or out of time         finished with it; a sequence that is now missing asks for a new epoch

Where an identity is to be kept there is no new epoch: what would ask for one is finished with its error, and nothing is
sent behind it.

After a failure a partition is recovering: it sends nothing until all that flew has come back, and one request at a time
until one succeeds. So order holds whatever is lost (PROTOCOL H50, H51, I20 to I22). Without a producer id one request
at a time flies.

A partition whose leader failed waits, and metadata is asked for a newer leader meanwhile, which is tried at once. A
request that nobody answers is given up when metadata names a newer leader: its outcome is unknown.
"""

from collections.abc import Iterable
from copy import copy

from headrace.client.base.call_counts import CallCounts
from headrace.client.base.retry import Backoff, Overdue
from headrace.client.net.cluster_metadata import ClusterMetadata
from headrace.client.producer.partition_queue import (
    Finished,
    PartitionQueue,
    PartitionResponse,
    Request,
    RequestPart,
    SealedBatch,
)
from headrace.client.producer.sequences import SequenceState
from headrace.wire.errors import (
    ErrorCode,
    HeadraceError,
    Outcome,
    TimedOutError,
    TransportError,
    UnknownTopicIdError,
)
from headrace.wire.ids import TopicPartition

MAX_BATCHES_IN_FLIGHT = 64
"""A partition: as many ranges as the leader remembers (PROTOCOL H48)."""
MAX_REQUEST_BATCHES = 4_096
"""Well below what a broker takes in one request (`max_request_batches`)."""

_LEADERSHIP = frozenset(
    {
        ErrorCode.NOT_LEADER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.FENCED_BROKER,
        ErrorCode.STORAGE_OFFLINE,
    }
)
_IDENTITY = frozenset({ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC, ErrorCode.UNKNOWN_PARTITION})
_GONE = _LEADERSHIP | {ErrorCode.SHUTTING_DOWN, ErrorCode.TIMED_OUT}
"""Another leader may be found, or be on its way. So may be where a connection fails."""
_FULL = frozenset({ErrorCode.THROTTLED, ErrorCode.STORAGE_FULL})
"""Nothing is wrong with the leader that was asked."""
_SEQUENCE = frozenset({ErrorCode.OUT_OF_ORDER_SEQUENCE, ErrorCode.UNKNOWN_PRODUCER})


class InFlightRequests:
    """Decides what is sent when. The shell locks around every call.

    Sends the requests and completes what is finished.
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
        """`identity` is a producer id and epoch to keep whatever happens; None: see `set_identity`."""
        self._cluster_metadata = cluster_metadata
        self._backoff = backoff
        self._idempotent = idempotent
        self._max_in_flight = max_in_flight_requests
        self._max_request_bytes = max_request_bytes
        self._request_timeout_ms = request_timeout_ms
        self._waiting: dict[PartitionQueue, None] = {}
        self._in_flight: dict[int, int] = {}
        self._flying: dict[Request, Overdue] = {}
        self._identity = identity
        self._keeps_identity = identity is not None
        self._begins: dict[TopicPartition, int] = {}
        self._started: dict[TopicPartition, SequenceState] = {}
        self.counts = CallCounts()
        self.unresolved: dict[SealedBatch, None] = {}
        """Every batch that was added and has not finished, in order."""
        self.needs_metadata = False
        """Set when something cannot be sent for want of a leader; the shell reads metadata and clears it."""
        self.needs_producer_id = False
        """Set when something cannot be sent for want of a producer id."""

    def set_identity(self, producer_id: int, epoch: int) -> None:
        """Take the producer id that the coordinator gave."""
        self._identity = (producer_id, epoch)
        self.needs_producer_id = False

    @property
    def has_identity(self) -> bool:
        """Whether the producer id is known."""
        return self._identity is not None

    def add_partition(self, partition_queue: PartitionQueue) -> None:
        """Add a partition that has sent nothing yet; it gets the producer id, if there is one.

        After an earlier queue of its name it begins an epoch: a topic that was gone may be there again, with what it
        was sent, where etcd was put back, and the same sequences would be taken for that (PROTOCOL H51).
        """
        if not self._idempotent or self._identity is None or partition_queue.sequences.producer_id >= 0:
            return
        producer_id, epoch = self._identity
        before = self._started.get(partition_queue.where)
        if before is not None and before.producer_id == producer_id and not self._keeps_identity:
            epoch, partition_queue.needs_epoch = before.epoch, True
        sequence = self._begins.get(partition_queue.where, 0)
        partition_queue.sequences.start(producer_id, epoch, sequence, queued=partition_queue.queued_records())
        self._started[partition_queue.where] = partition_queue.sequences

    def continue_from(self, where: TopicPartition, sequence: int) -> None:
        """Begin a partition that has sent nothing yet with a sequence, behind what an earlier one of the kept identity
        stored there.
        """
        assert self._keeps_identity
        self._begins[where] = sequence

    def add(self, batch: SealedBatch) -> None:
        """Queue a batch that was sealed just now; it is sent once it is encoded."""
        batch.partition_queue.queued.append(batch)
        self._waiting[batch.partition_queue] = None
        self.unresolved[batch] = None

    def waiting_topics(self) -> list[str]:
        """Return the topics of which something is queued; a closing producer uses no others any more."""
        return list(dict.fromkeys(partition_queue.where.topic for partition_queue in self._waiting))

    def next_requests(self, now_ms: int) -> list[Request]:
        """Return the requests that can be sent now. Each counts as in flight until `answered` or `failed`."""
        requests: list[Request] = []
        while True:
            round_ = self._one_round(now_ms)
            if not round_:
                return requests
            requests.extend(round_)

    def _one_round(self, now_ms: int) -> list[Request]:
        """At most one request a broker."""
        parts: dict[int, list[RequestPart]] = {}
        sizes: dict[int, int] = {}
        counts: dict[int, int] = {}
        addresses: dict[int, str] = {}
        for partition_queue in list(self._waiting):
            if not partition_queue.queued:
                del self._waiting[partition_queue]
                continue
            leader = self._cluster_metadata.leader(partition_queue.where)
            if leader is None or self._is_of_another_life(partition_queue):
                self.needs_metadata = True
                continue
            broker_id, address, epoch = leader
            if not self._may_send(partition_queue, epoch, now_ms):
                continue
            room = self._max_request_bytes - sizes.get(broker_id, 0)
            if self._in_flight.get(broker_id, 0) >= self._max_in_flight or room <= 0:
                continue
            most = MAX_REQUEST_BATCHES - counts.get(broker_id, 0)
            batches = self._take(partition_queue, room, most, first=broker_id not in sizes)
            if batches:
                sizes[broker_id] = sizes.get(broker_id, 0) + sum(batch.size_bytes for batch in batches)
                counts[broker_id] = counts.get(broker_id, 0) + sum(batch.count for batch in batches)
                addresses[broker_id] = address
                parts.setdefault(broker_id, []).append(RequestPart(partition_queue, epoch, batches))
        for broker_id in parts:
            self._in_flight[broker_id] = self._in_flight.get(broker_id, 0) + 1
        requests = [
            Request(broker_id, addresses[broker_id], entry, self._timeout(entry, now_ms))
            for broker_id, entry in parts.items()
        ]
        for request in requests:
            self._flying[request] = Overdue(now_ms, 0)
        return requests

    def _is_of_another_life(self, partition_queue: PartitionQueue) -> bool:
        """Whether the topic was made anew since: its leaders do not have this life, and `metadata_changed` ends it."""
        topic_leaders = self._cluster_metadata.topic(partition_queue.where.topic)
        return topic_leaders is not None and topic_leaders.topic_id != partition_queue.topic_id

    def _timeout(self, parts: list[RequestPart], now_ms: int) -> int:
        deadline = min(batch.deadline_ms for part in parts for batch in part.batches)
        return max(1, min(self._request_timeout_ms, deadline - now_ms))

    def _may_send(self, partition_queue: PartitionQueue, leader_epoch: int, now_ms: int) -> bool:
        if partition_queue.is_waiting(leader_epoch, now_ms):
            self.needs_metadata = self.needs_metadata or partition_queue.seeks_leader
            return False
        if partition_queue.flying and (
            partition_queue.recovering or partition_queue.needs_epoch or not self._idempotent
        ):
            return False
        if self._idempotent and partition_queue.sequences.producer_id < 0:
            if self._identity is None:
                self.needs_producer_id = True
                return False
            self.add_partition(partition_queue)
        if partition_queue.needs_epoch:
            if self._keeps_identity:  # A sequence is missing for good: nothing can follow it.
                return False
            self._raise_epoch(partition_queue)
        return partition_queue.sequences.producer_id >= 0 or not self._idempotent

    def _raise_epoch(self, partition_queue: PartitionQueue) -> None:
        """Start a new epoch, unless a batch of unknown outcome must be resolved under the old one first.

        That is one at the front alone: a batch behind one that was certainly not applied was not applied either, as
        leaders take no sequence before the one that is missing.
        """
        if partition_queue.queued and partition_queue.queued[0].outcome_unknown:
            return
        partition_queue.needs_epoch = False
        for batch in partition_queue.queued:
            batch.numbered = batch.outcome_unknown = False
        if not partition_queue.sequences.raise_epoch(queued=partition_queue.queued_records()):
            partition_queue.sequences = SequenceState()
            self._identity = None
            self.needs_producer_id = True

    def _take(self, partition_queue: PartitionQueue, room: int, most: int, *, first: bool) -> list[SealedBatch]:
        """Take what fits from the front of the queue; at least one if it is the `first` of its request."""
        batches: list[SealedBatch] = []
        if self._idempotent:
            most = min(most, MAX_BATCHES_IN_FLIGHT - sum(batch.count for batch in partition_queue.flying))
        while partition_queue.queued and partition_queue.queued[0].count <= most:
            batch = partition_queue.queued[0]
            if batch.encoded is None or (batch.size_bytes > room and (batches or not first)):
                break
            if partition_queue.needs_epoch and not batch.outcome_unknown:
                break
            partition_queue.queued.popleft()
            if self._idempotent and not batch.numbered:
                self._number(batch)
            room -= batch.size_bytes
            most -= batch.count
            partition_queue.flying.append(batch)
            batches.append(batch)
        return batches

    def _number(self, batch: SealedBatch) -> None:
        assert not batch.outcome_unknown, "a batch that may have been applied keeps its bytes"
        assert batch.encoded is not None
        stamp = batch.partition_queue.sequences.sent(batch.records)
        if batch.stamp != stamp:
            batch.stamp_anew(stamp)
        batch.numbered = True

    def answered(self, request: Request, answers: Iterable[PartitionResponse], now_ms: int) -> list[Finished]:
        """Take an answer: one `PartitionResponse` a part, in the request's order."""
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
        """Take the failure of a whole call."""
        if self._lands_again(request):
            return []
        finished: list[Finished] = []
        for part in request.parts:
            self._remove(part)
            self._part_failed(part, PartitionResponse((), error), error, now_ms, finished)
        return self._forget(finished)

    def give_up_overdue(self, now_ms: int) -> tuple[list[Request], list[Finished]]:
        """Drop overdue requests whose partitions have a newer leader; the shell cancels their calls.

        For the others that are overdue metadata is to be read. Their batches' outcome is unknown, so they go to the
        newer leader with the same sequences; to all leaders, where one of the request has moved.
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
            error = TimedOutError(f"broker {request.broker_id} did not answer, and another one leads by now")
            finished += self.failed(request, error, now_ms)
        return given_up, finished

    def _has_newer_leader(self, part: RequestPart) -> bool:
        leader = self._cluster_metadata.leader(part.partition_queue.where)
        return leader is not None and leader[2] > part.leader_epoch

    def _lands_again(self, request: Request) -> bool:
        """Whether it has landed before: it was given up, or its caller was interrupted while it started the call."""
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
        first = 0
        for batch in part.batches:
            batch.pending.repeated = answer.repeated
            finished.append(Finished(batch, answer.base_offsets[first : first + batch.count], None))
            first += batch.count

    def _part_failed(
        self, part: RequestPart, answer: PartitionResponse, error: HeadraceError, now_ms: int, finished: list[Finished]
    ) -> None:
        """Decide for each batch; those behind the one that was refused were not looked at."""
        partition_queue = part.partition_queue
        partition_queue.recovering = True
        partition_queue.failures += 1
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
        """Whether a refused batch is sent again."""
        partition_queue = batch.partition_queue
        if error.code in _SEQUENCE and self._idempotent:
            earlier = any(other.serial < batch.serial for other in (*partition_queue.flying, *partition_queue.queued))
            if earlier:
                return True
            partition_queue.needs_epoch = True
            return not batch.outcome_unknown and not self._keeps_identity
        return error.retriable or error.code in _IDENTITY or error.code in _LEADERSHIP

    def _reroute(self, partition_queue: PartitionQueue, epoch: int, error: HeadraceError, now_ms: int) -> None:
        """Decide where and when a partition is tried again that failed at the leader of `epoch`."""
        moved = error.leader is not None and self._cluster_metadata.learn_leader(partition_queue.where, error.leader)
        if not moved:
            if error.code in _LEADERSHIP:
                self._cluster_metadata.forget_leader(partition_queue.where, epoch)
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
        """End a batch that is queued: it could not be encoded."""
        if batch not in batch.partition_queue.queued:
            return []
        batch.partition_queue.queued.remove(batch)
        finished: list[Finished] = []
        self._end(batch, error, finished)
        return self._forget(finished)

    def expire(self, now_ms: int) -> list[Finished]:
        """End what has been queued past its deadline."""
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
        return (
            f"{partition_queue.failures} tries failed"
            if partition_queue.failures
            else "the broker was busy with earlier requests"
        )

    def metadata_changed(self) -> list[Finished]:
        """Look at new metadata: batches of a topic that is gone, or is another one by now, end."""
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
        """End everything, queued or flying; the shell cancels the calls, and what they bring is ignored."""
        finished: list[Finished] = []
        for batch in list(self.unresolved):
            batch.outcome_unknown = batch.outcome_unknown or batch in batch.partition_queue.flying
            self._end(batch, error, finished)
        for partition_queue in self._waiting:
            partition_queue.queued.clear()
        self._waiting.clear()
        return self._forget(finished)

    def next_event_ms(self, now_ms: int) -> int | None:
        """Return the next time of a retry, an expiry or a check of an unanswered call, or `None`."""
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
    """The same error with outcome UNKNOWN: an earlier try may have been applied."""
    changed = copy(error)
    changed.outcome = Outcome.UNKNOWN
    changed.__cause__ = error
    return changed
