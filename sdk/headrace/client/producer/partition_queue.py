"""Sealed batches of a producer: their queue in each partition, requests and responses. Data classes.

`headrace.client.producer.inflight` makes the decisions about them.
"""

from bisect import insort
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from headrace.client.base.request_ids import new_request_id
from headrace.client.producer.futures import PendingBatch
from headrace.client.producer.sequences import ProducerStamp, SequenceState, restamp
from headrace.wire.errors import HeadraceError
from headrace.wire.ids import TopicPartition
from headrace.wire.zero_copy import BufferVector


class SealedBatch:
    """Records that are sent together: one batch, or a run of batches of `batch_records` each. Owned by its queue."""

    __slots__ = (
        "count",
        "deadline_ms",
        "encoded",
        "numbered",
        "outcome_unknown",
        "partition_queue",
        "pending",
        "records",
        "reserved_bytes",
        "sent_behind",
        "serial",
        "stamp",
    )

    def __init__(
        self,
        partition_queue: "PartitionQueue",
        pending: PendingBatch,
        records: int,
        reserved_bytes: int,
        deadline_ms: int,
    ) -> None:
        self.partition_queue = partition_queue
        self.pending = pending
        self.records = records
        self.count = len(range(0, records, pending.batch_records))
        """Number of batches into which it is divided."""
        self.reserved_bytes = reserved_bytes
        """Bytes reserved from the producer's buffer pool."""
        self.deadline_ms = deadline_ms
        partition_queue.serials += 1
        self.serial = partition_queue.serials
        """Number of the batch within its partition, in the order of sealing."""
        self.stamp: ProducerStamp = partition_queue.sequences.sealed(records)
        self.encoded: list[BufferVector] | None = None
        """Encoded batches, some together; `None` during encoding, when no later batch of the partition is sent."""
        self.numbered = False
        """Whether its sequence counts as sent in the current epoch."""
        self.outcome_unknown = False
        """Whether an earlier send of it may have been applied."""
        self.sent_behind = False
        """Whether an earlier request of its partition was in flight at its last send, which may have overtaken it."""

    def stamp_anew(self, stamp: ProducerStamp) -> None:
        """Assign other sequences to its batches; see `restamp`."""
        step = self.pending.batch_records
        batches = (batch for vector in self.encoded or () for batch in vector.batches())
        self.encoded = [restamp(batch, stamp.behind(at * step)) for at, batch in enumerate(batches)]
        self.stamp = stamp


class PartitionQueue:
    """Sealed batches of one partition of one incarnation of a topic."""

    __slots__ = (
        "failed_epoch",
        "failures",
        "flying",
        "last_error",
        "needs_epoch",
        "queued",
        "recovering",
        "retry_at_ms",
        "seeks_leader",
        "sequences",
        "serials",
        "topic_id",
        "where",
    )

    def __init__(self, where: TopicPartition, topic_id: bytes) -> None:
        self.where = where
        self.topic_id = topic_id
        self.queued: deque[SealedBatch] = deque()
        self.flying: list[SealedBatch] = []
        self.sequences = SequenceState()
        self.serials = 0
        self.recovering = False
        self.needs_epoch = False
        self.failures = 0
        self.last_error: HeadraceError | None = None
        self.retry_at_ms = 0
        self.failed_epoch = -1
        """Leader epoch to which the back-off applies; the leader of a newer one is tried at once."""
        self.seeks_leader = False
        """Whether metadata must be read for a newer leader during the back-off."""

    @property
    def idle(self) -> bool:
        """Whether nothing is queued or in flight, so a lingering batch may be sent."""
        return not self.queued and not self.flying

    def queued_records(self) -> int:
        """Return the number of records in the queue."""
        return sum(batch.records for batch in self.queued)

    def put_back(self, batches: Iterable[SealedBatch]) -> None:
        """Return batches to their places in the queue."""
        merged = list(self.queued)
        for batch in batches:
            insort(merged, batch, key=lambda entry: entry.serial)
        self.queued = deque(merged)


class RequestPart(NamedTuple):
    """Part of a request for one partition."""

    partition_queue: PartitionQueue
    leader_epoch: int
    batches: list[SealedBatch]


class OpenRequest:
    """Request that is being filled."""

    __slots__ = ("address", "batches", "deadline_ms", "parts", "room")

    def __init__(self, address: str, room: int, batches: int, deadline_ms: int) -> None:
        self.address = address
        self.room = room
        """Remaining bytes."""
        self.batches = batches
        """Remaining number of batches."""
        self.deadline_ms = deadline_ms
        self.parts: list[RequestPart] = []


class Request:
    """Produce request to be sent. It completes once; later results are ignored."""

    __slots__ = ("address", "broker_id", "landed", "parts", "request_id", "started_seconds", "timeout_ms")

    def __init__(self, broker_id: int, address: str, parts: list[RequestPart], timeout_ms: int) -> None:
        spans = (batch.pending.spans for part in parts for batch in part.batches)
        traced = [found for found in spans if found is not None and found.traceparent]
        for found in traced:
            found.sent_to(address)
        self.request_id = new_request_id(traced[0].traceparent if traced else "")
        self.broker_id = broker_id
        self.address = address
        self.parts = parts
        self.timeout_ms = timeout_ms
        self.landed = False
        self.started_seconds = 0.0
        """Start time of its call, by the sender's clock."""


class PartitionResponse(NamedTuple):
    """Result for one partition of a request."""

    base_offsets: tuple[int, ...]
    error: HeadraceError | None
    repeated: bool = False
    """Whether part of it had been appended before."""


class Finished(NamedTuple):
    """Batch that is finished."""

    batch: SealedBatch
    base_offsets: tuple[int, ...]
    """One per batch in it; empty if they are unknown."""
    error: HeadraceError | None
