"""What a producer has on its way: sealed batches, the line of them in each partition, requests and answers. Data.

`headrace.client.producer.inflight` decides over them.
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
    """Records that travel together: one batch, or a run of them where `batch_records` cuts. Owned by its queue."""

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
        """Batches that it is cut into."""
        self.reserved_bytes = reserved_bytes
        """Bytes of the producer's buffer pool."""
        self.deadline_ms = deadline_ms
        partition_queue.serials += 1
        self.serial = partition_queue.serials
        """Numbers the batches of the partition in the order in which they were sealed."""
        self.stamp: ProducerStamp = partition_queue.sequences.sealed(records)
        self.encoded: list[BufferVector] | None = None
        """Its batches; None while they are being encoded: nothing behind is sent meanwhile."""
        self.numbered = False
        """Whether its sequence counts as sent in the present epoch."""
        self.outcome_unknown = False
        """Whether some send of it may have been applied."""

    def stamp_anew(self, stamp: ProducerStamp) -> None:
        """Assign other sequences to its batches; see `restamp`."""
        step = self.pending.batch_records
        self.encoded = [restamp(batch, stamp.behind(at * step)) for at, batch in enumerate(self.encoded or ())]
        self.stamp = stamp


class PartitionQueue:
    """The sealed batches of one partition of one life of a topic."""

    __slots__ = (
        "failed_epoch",
        "failures",
        "flying",
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
        self.retry_at_ms = 0
        self.failed_epoch = -1
        """The leader epoch that the back-off is for; the leader of a newer one is tried at once."""
        self.seeks_leader = False
        """Whether metadata is read for a newer leader while it waits."""

    @property
    def idle(self) -> bool:
        """Whether nothing is queued or in flight: then a batch that lingers may go."""
        return not self.queued and not self.flying

    def queued_records(self) -> int:
        """Return the number of records in the queue."""
        return sum(batch.records for batch in self.queued)

    def put_back(self, batches: Iterable[SealedBatch]) -> None:
        """Put batches back to their places in the queue."""
        merged = list(self.queued)
        for batch in batches:
            insort(merged, batch, key=lambda entry: entry.serial)
        self.queued = deque(merged)


class RequestPart(NamedTuple):
    """What a request carries for one partition."""

    partition_queue: PartitionQueue
    leader_epoch: int
    batches: list[SealedBatch]


class OpenRequest:
    """A request that is being filled."""

    __slots__ = ("address", "batches", "deadline_ms", "parts", "room")

    def __init__(self, address: str, room: int, batches: int, deadline_ms: int) -> None:
        self.address = address
        self.room = room
        """Bytes that it may still take."""
        self.batches = batches
        """Batches that it may still take."""
        self.deadline_ms = deadline_ms
        self.parts: list[RequestPart] = []


class Request:
    """One Produce to be sent. It lands once: whatever comes for it later is ignored."""

    __slots__ = ("address", "broker_id", "landed", "parts", "request_id", "started_seconds", "timeout_ms")

    def __init__(self, broker_id: int, address: str, parts: list[RequestPart], timeout_ms: int) -> None:
        self.request_id = new_request_id()
        self.broker_id = broker_id
        self.address = address
        self.parts = parts
        self.timeout_ms = timeout_ms
        self.landed = False
        self.started_seconds = 0.0
        """When its call was started, by the clock of its sender."""


class PartitionResponse(NamedTuple):
    """What came back for one partition of a request."""

    base_offsets: tuple[int, ...]
    error: HeadraceError | None
    repeated: bool = False
    """Whether some of it had been appended before."""


class Finished(NamedTuple):
    """A batch that is done with."""

    batch: SealedBatch
    base_offsets: tuple[int, ...]
    """One a batch of it; empty where they are not known."""
    error: HeadraceError | None
