"""Sealed batches on their way: what is sent next, and what an answer means. Pure; its owner locks.

Time comes in as `now_ms`.
A batch waits in its partition's queue, flies in a request, and ends by `Finished`, or comes back to its place in the
queue.

    event                                   what becomes of the batch
    acknowledged                            finished with its offset
    retriable error, nothing vouched for    back to its place, doubtful: only its exact bytes may be sent again
    retriable error, definitely not done    back to its place
    out of order or unknown producer        an earlier one unresolved: back to its place
    the same, the first of its partition    definite: back, a new epoch once nothing flies; doubtful: finished, UNKNOWN
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

from headrace.client.call_counts import CallCounts
from headrace.client.pipeline import Answer, Finished, PartitionPipeline, Request, RequestPart, SealedBatch
from headrace.client.retry import Backoff, Overdue
from headrace.client.routing import RoutingTable
from headrace.client.sequences import SequenceState
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


class Dispatcher:
    """Decides what is sent when. The shell locks around every call.

    Sends the requests and completes what is finished.
    """

    def __init__(
        self,
        routes: RoutingTable,
        backoff: Backoff,
        *,
        idempotent: bool,
        max_in_flight_requests: int,
        max_request_bytes: int,
        request_timeout_ms: int,
        identity: tuple[int, int] | None = None,
    ) -> None:
        """`identity` is a producer id and epoch to keep whatever happens; None: see `set_identity`."""
        self._routes = routes
        self._backoff = backoff
        self._idempotent = idempotent
        self._max_in_flight = max_in_flight_requests
        self._max_request_bytes = max_request_bytes
        self._request_timeout_ms = request_timeout_ms
        self._waiting: dict[PartitionPipeline, None] = {}
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

    def start_pipeline(self, pipeline: PartitionPipeline) -> None:
        """Give a partition that has sent nothing yet the producer id, if there is one.

        After an earlier pipeline of its name it begins an epoch: a topic that was gone may be there again, with what it
        was sent, where etcd was put back, and the same sequences would be taken for that (PROTOCOL H51).
        """
        if not self._idempotent or self._identity is None or pipeline.sequences.producer_id >= 0:
            return
        producer_id, epoch = self._identity
        before = self._started.get(pipeline.where)
        if before is not None and before.producer_id == producer_id and not self._keeps_identity:
            epoch, pipeline.needs_epoch = before.epoch, True
        pipeline.sequences.start(producer_id, epoch, self._begins.get(pipeline.where, 0))
        self._started[pipeline.where] = pipeline.sequences

    def continue_from(self, where: TopicPartition, sequence: int) -> None:
        """Begin a partition that has sent nothing yet with a sequence, behind what an earlier one of the kept identity
        stored there.
        """
        assert self._keeps_identity
        self._begins[where] = sequence

    def add(self, batch: SealedBatch) -> None:
        """Queue a batch that was sealed just now; it is sent once it is encoded."""
        batch.pipeline.queue.append(batch)
        self._waiting[batch.pipeline] = None
        self.unresolved[batch] = None

    def waiting_topics(self) -> list[str]:
        """Give the topics of which something is queued; a closing producer uses no others any more."""
        return list(dict.fromkeys(pipeline.where.topic for pipeline in self._waiting))

    def next_requests(self, now_ms: int) -> list[Request]:
        """Give what can be sent now. Each request given counts as in flight until `answered` or `failed`."""
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
        for pipeline in list(self._waiting):
            if not pipeline.queue:
                del self._waiting[pipeline]
                continue
            leader = self._routes.leader(pipeline.where)
            if leader is None or self._is_of_another_life(pipeline):
                self.needs_metadata = True
                continue
            broker_id, address, epoch = leader
            if not self._may_send(pipeline, epoch, now_ms):
                continue
            room = self._max_request_bytes - sizes.get(broker_id, 0)
            if self._in_flight.get(broker_id, 0) >= self._max_in_flight or room <= 0:
                continue
            most = MAX_REQUEST_BATCHES - counts.get(broker_id, 0)
            batches = self._take(pipeline, room, most, first=broker_id not in sizes)
            if batches:
                sizes[broker_id] = sizes.get(broker_id, 0) + sum(batch.size_bytes for batch in batches)
                counts[broker_id] = counts.get(broker_id, 0) + sum(batch.count for batch in batches)
                addresses[broker_id] = address
                parts.setdefault(broker_id, []).append(RequestPart(pipeline, epoch, batches))
        for broker_id in parts:
            self._in_flight[broker_id] = self._in_flight.get(broker_id, 0) + 1
        requests = [
            Request(broker_id, addresses[broker_id], entry, self._timeout(entry, now_ms))
            for broker_id, entry in parts.items()
        ]
        for request in requests:
            self._flying[request] = Overdue(now_ms, 0)
        return requests

    def _is_of_another_life(self, pipeline: PartitionPipeline) -> bool:
        """Whether the topic was made anew since: its leaders do not have this life, and `metadata_changed` ends it."""
        route = self._routes.topic(pipeline.where.topic)
        return route is not None and route.topic_id != pipeline.topic_id

    def _timeout(self, parts: list[RequestPart], now_ms: int) -> int:
        deadline = min(batch.deadline_ms for part in parts for batch in part.batches)
        return max(1, min(self._request_timeout_ms, deadline - now_ms))

    def _may_send(self, pipeline: PartitionPipeline, leader_epoch: int, now_ms: int) -> bool:
        if pipeline.is_waiting(leader_epoch, now_ms):
            self.needs_metadata = self.needs_metadata or pipeline.seeks_leader
            return False
        if pipeline.flying and (pipeline.recovering or pipeline.needs_epoch or not self._idempotent):
            return False
        if self._idempotent and pipeline.sequences.producer_id < 0:
            if self._identity is None:
                self.needs_producer_id = True
                return False
            self.start_pipeline(pipeline)
        if pipeline.needs_epoch:
            if self._keeps_identity:  # A sequence is missing for good: nothing can follow it.
                return False
            self._raise_epoch(pipeline)
        return pipeline.sequences.producer_id >= 0 or not self._idempotent

    def _raise_epoch(self, pipeline: PartitionPipeline) -> None:
        """Start a new epoch, unless a doubtful batch must be resolved under the old one first.

        That is one at the front alone: a batch behind one that was certainly not applied was not applied either, as
        leaders take no sequence before the one that is missing.
        """
        if pipeline.queue and pipeline.queue[0].doubtful:
            return
        pipeline.needs_epoch = False
        for batch in pipeline.queue:
            batch.numbered = batch.doubtful = False
        if not pipeline.sequences.raise_epoch():
            pipeline.sequences = SequenceState()
            self._identity = None
            self.needs_producer_id = True

    def _take(self, pipeline: PartitionPipeline, room: int, most: int, *, first: bool) -> list[SealedBatch]:
        """Take what fits from the front of the queue; at least one if it is the `first` of its request."""
        batches: list[SealedBatch] = []
        if self._idempotent:
            most = min(most, MAX_BATCHES_IN_FLIGHT - sum(batch.count for batch in pipeline.flying))
        while pipeline.queue and pipeline.queue[0].count <= most:
            batch = pipeline.queue[0]
            if batch.encoded is None or (batch.size_bytes > room and (batches or not first)):
                break
            if pipeline.needs_epoch and not batch.doubtful:
                break
            pipeline.queue.popleft()
            if self._idempotent and not batch.numbered:
                self._number(batch)
            room -= batch.size_bytes
            most -= batch.count
            pipeline.flying.append(batch)
            batches.append(batch)
        return batches

    def _number(self, batch: SealedBatch) -> None:
        assert not batch.doubtful, "a batch that may have been applied keeps its bytes"
        assert batch.encoded is not None
        stamp = batch.pipeline.sequences.sent(batch.records)
        if batch.stamp != stamp:
            batch.stamp_anew(stamp)
        batch.numbered = True

    def answered(self, request: Request, answers: Iterable[Answer], now_ms: int) -> list[Finished]:
        """Take an answer: one `Answer` a part, in the request's order."""
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
            self._part_failed(part, Answer((), error), error, now_ms, finished)
        return self._forget(finished)

    def give_up_overdue(self, now_ms: int) -> tuple[list[Request], list[Finished]]:
        """Give up the requests that nobody answers and that have a newer leader; the shell cancels their calls.

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
        leader = self._routes.leader(part.pipeline.where)
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
        part.pipeline.flying = [batch for batch in part.pipeline.flying if batch not in gone]

    def _succeeded(self, part: RequestPart, answer: Answer, finished: list[Finished]) -> None:
        part.pipeline.recovering = part.pipeline.seeks_leader = False
        part.pipeline.failures = 0
        first = 0
        for batch in part.batches:
            batch.pending.repeated = answer.repeated
            finished.append(Finished(batch, answer.base_offsets[first : first + batch.count], None))
            first += batch.count

    def _part_failed(
        self, part: RequestPart, answer: Answer, error: HeadraceError, now_ms: int, finished: list[Finished]
    ) -> None:
        """Decide for each batch; those behind the one that was refused were not looked at."""
        pipeline = part.pipeline
        pipeline.recovering = True
        pipeline.failures += 1
        appended = len(answer.base_offsets)
        first = 0
        back: list[SealedBatch] = []
        for batch in part.batches:
            end = first + batch.count
            if first < appended or error.outcome != Outcome.NOT_APPLIED:
                batch.doubtful = True
            refused = first <= appended < end or (first > appended and error.outcome != Outcome.NOT_APPLIED)
            if not refused or self._comes_back(batch, error):
                back.append(batch)
            else:
                self._end(batch, error, finished)
            first = end
        self.counts.errors[error.code] += 1
        self.counts.retries += sum(batch.count for batch in back)
        pipeline.put_back(back)
        if pipeline.queue:
            self._waiting[pipeline] = None
        self._reroute(pipeline, part.leader_epoch, error, now_ms)

    def _comes_back(self, batch: SealedBatch, error: HeadraceError) -> bool:
        """Whether a refused batch is sent again."""
        pipeline = batch.pipeline
        if error.code in _SEQUENCE and self._idempotent:
            earlier = any(other.serial < batch.serial for other in (*pipeline.flying, *pipeline.queue))
            if earlier:
                return True
            pipeline.needs_epoch = True
            return not batch.doubtful and not self._keeps_identity
        return error.retriable or error.code in _IDENTITY or error.code in _LEADERSHIP

    def _reroute(self, pipeline: PartitionPipeline, epoch: int, error: HeadraceError, now_ms: int) -> None:
        """Decide where and when a partition is tried again that failed at the leader of `epoch`."""
        moved = error.leader is not None and self._routes.learn_leader(pipeline.where, error.leader)
        if not moved:
            if error.code in _LEADERSHIP:
                self._routes.forget_leader(pipeline.where, epoch)
            self.needs_metadata = self.needs_metadata or error.code not in _FULL
        pipeline.seeks_leader = not moved and (error.code in _GONE or isinstance(error, TransportError))
        pipeline.failed_epoch = epoch
        pipeline.retry_at_ms = now_ms + self._backoff.delay_ms(pipeline.failures, error.retry_after_ms)

    def _end(self, batch: SealedBatch, error: HeadraceError, finished: list[Finished]) -> None:
        """Give a batch up. Its sequence stays missing, so what follows needs a new epoch."""
        if batch.numbered:
            batch.pipeline.needs_epoch = True
        if batch.doubtful and error.outcome == Outcome.NOT_APPLIED:
            error = _doubtful(error)
        finished.append(Finished(batch, (), error))

    def give_up(self, batch: SealedBatch, error: HeadraceError) -> list[Finished]:
        """End a batch that is queued: it could not be encoded."""
        if batch not in batch.pipeline.queue:
            return []
        batch.pipeline.queue.remove(batch)
        finished: list[Finished] = []
        self._end(batch, error, finished)
        return self._forget(finished)

    def expire(self, now_ms: int) -> list[Finished]:
        """End what has been queued past its deadline."""
        finished: list[Finished] = []
        for pipeline in list(self._waiting):
            while pipeline.queue and pipeline.queue[0].deadline_ms <= now_ms:
                error = TimedOutError(
                    f"not delivered to {pipeline.where} within delivery_timeout_ms: {self._obstacle(pipeline)}",
                    outcome=Outcome.NOT_APPLIED,
                )
                self._end(pipeline.queue.popleft(), error, finished)
        return self._forget(finished)

    def _obstacle(self, pipeline: PartitionPipeline) -> str:
        if self._idempotent and pipeline.sequences.producer_id < 0:
            return "no coordinator gave a producer id"
        if self._routes.leader(pipeline.where) is None:
            return "the partition has no leader that is known"
        return f"{pipeline.failures} tries failed" if pipeline.failures else "the broker was busy with earlier requests"

    def metadata_changed(self) -> list[Finished]:
        """Look at new metadata: batches of a topic that is gone, or is another one by now, end."""
        self.needs_metadata = False
        finished: list[Finished] = []
        for pipeline in list(self._waiting):
            route = self._routes.topic(pipeline.where.topic)
            gone = self._routes.error(pipeline.where.topic)
            if route is not None and route.topic_id == pipeline.topic_id:
                continue
            if route is None and (gone is None or gone.code not in _IDENTITY):
                continue
            error = UnknownTopicIdError(
                f"topic {pipeline.where.topic} was deleted" + (" and created again" if route is not None else ""),
                outcome=Outcome.NOT_APPLIED,
            )
            while pipeline.queue and pipeline.queue[0].encoded is not None:
                self._end(pipeline.queue.popleft(), error, finished)
        return self._forget(finished)

    def abandon(self, error: HeadraceError) -> list[Finished]:
        """End everything, queued or flying; the shell cancels the calls, and what they bring is ignored."""
        finished: list[Finished] = []
        for batch in list(self.unresolved):
            batch.doubtful = batch.doubtful or batch in batch.pipeline.flying
            self._end(batch, error, finished)
        for pipeline in self._waiting:
            pipeline.queue.clear()
        self._waiting.clear()
        return self._forget(finished)

    def next_event_ms(self, now_ms: int) -> int | None:
        """Give when a retry, an expiry or a look at an unanswered call is next due, after now, or None."""
        times = [overdue.next_ms(now_ms) for overdue in self._flying.values()]
        for pipeline in self._waiting:
            if pipeline.queue:
                times.append(pipeline.queue[0].deadline_ms)
                if pipeline.retry_at_ms > now_ms:
                    times.append(pipeline.retry_at_ms)
        return min(times, default=None)

    def _forget(self, finished: list[Finished]) -> list[Finished]:
        """Give those that were not finished before: each batch finishes once."""
        return [entry for entry in finished if self.unresolved.pop(entry.batch, entry) is None]


def _doubtful(error: HeadraceError) -> HeadraceError:
    """The same error with outcome UNKNOWN: an earlier try may have been applied."""
    changed = copy(error)
    changed.outcome = Outcome.UNKNOWN
    changed.__cause__ = error
    return changed
