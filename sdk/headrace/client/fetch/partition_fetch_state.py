"""State of one partition that is read: position, fetched batches, broker. Pure; owned by `SubscriptionState`.

Each of the two offsets has a leader epoch. `epoch` is that of the last batch from which the application received a
record. `fetch_epoch` is that of the last fetched batch: a fetch sends it, and a broker whose log differs there reports
a divergence (KIP-320). A position set by a seek has no epoch and is not checked until a batch was read there.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.wire.batch import iter_batches
from headrace.wire.crc import ReadableBuffer
from headrace.wire.errors import CorruptBatchError
from headrace.wire.ids import TopicPartition

NO_EPOCH = -1
NO_ANSWER = -1
ANY_EPOCH = 2**31
"""Above every leader epoch, for a back-off that a newer leader does not end."""
EPOCHS_KEPT = 64
"""Maximum number of leader epochs whose start offset is kept; the oldest is dropped first."""
SILENT_REPLICA_MS = 5_000
"""Time without data from a nearer replica, which may have fallen behind, after which the leader is read again."""
REFUSED_REPLICA_MS = 10_000
"""Time for which the leader is read after a nearer replica could not serve."""
LAGGING_TRIES = 5
"""Number of retries, with back-off, on a nearer replica that lacks records which the leader has returned."""
CORRUPT_COPIES = 3
"""Number of corrupt copies of a batch from one broker after which the error is raised to the application."""
CORRUPTION_PATIENCE_MS = 30_000
"""Time to wait for an intact copy of a corrupt batch while brokers refuse to serve it."""


class CompletedFetch(NamedTuple):
    """Whole batches of one partition, as a broker sent them."""

    where: TopicPartition
    generation: int
    offset: int
    """First requested offset; the first batch may start before it."""
    end_offset: int | None
    """Records from here on are not read; `None` means no bound."""
    data: ReadableBuffer
    broker_id: int = -1
    """Broker that sent the batches."""
    inflated_bytes: int = 0
    """Bytes counted against the buffer limit: the uncompressed payload bytes that the headers state."""
    columns: str = ""
    """Columns of a typed topic in the newest metadata."""


class Divergence(NamedTuple):
    """Report of the leader that its log diverges from the fetched one."""

    offset: int
    """Offset of the fetch."""
    leader_epoch: int
    """Largest epoch in the leader's log that is not above the requested one; -1 means none."""
    end_offset: int
    """End of that epoch in the leader's log: records from here on differ or are missing."""


class NearReplica:
    """Nearer replica that is read instead of the leader (KIP-392), abandoned at the first sign that it cannot serve."""

    __slots__ = ("_heard_ms", "_not_before_ms", "_until_ms", "broker_id", "tries")

    def __init__(self) -> None:
        self.broker_id = -1
        """-1 means that the leader is read."""
        self.tries = 0
        """Number of responses that it does not have the offset yet."""
        self._until_ms = 0
        self._heard_ms = 0
        self._not_before_ms = 0

    def is_read(self, now_ms: int) -> bool:
        """Return whether the next fetch goes to it; ends its term if that has expired."""
        if self.broker_id >= 0 and now_ms >= self._until_ms:
            self.broker_id = -1
        return self.broker_id >= 0

    def may_be_asked_for(self, now_ms: int) -> bool:
        """Return whether a fetch from the leader may name the rack: no nearer replica has refused recently."""
        return now_ms >= self._not_before_ms

    def leave(self) -> None:
        """Read from the leader, and follow its next offer of a replica."""
        self.broker_id = -1

    def offered(self, broker_id: int, now_ms: int, term_ms: int) -> None:
        """Read from this broker, which the leader named, for `term_ms`."""
        self.broker_id = broker_id
        self.tries = 0
        self._until_ms = now_ms + term_ms
        self._heard_ms = now_ms

    def answered(self, now_ms: int, *, data: bool) -> None:
        """Process a response; after a long time without data, the leader must name a replica again."""
        self.tries = 0
        if data:
            self._heard_ms = now_ms
        elif now_ms - self._heard_ms >= SILENT_REPLICA_MS:
            self.broker_id = -1

    def lags(self) -> bool:
        """Count a response that it lacks the offset; return whether to try it again."""
        self.tries += 1
        return self.tries <= LAGGING_TRIES

    def refused(self, now_ms: int) -> None:
        """Read from the leader, and ignore the replica that it names for `REFUSED_REPLICA_MS`."""
        self.broker_id = -1
        self._not_before_ms = now_ms + REFUSED_REPLICA_MS


class Corruption:
    """Batch with a wrong checksum that is fetched again from a replica with an intact copy (PROTOCOL I17)."""

    __slots__ = ("broker_id", "copies", "error", "since_ms")

    def __init__(self, broker_id: int, error: CorruptBatchError, now_ms: int) -> None:
        self.broker_id = broker_id
        self.error = error
        self.since_ms = now_ms
        self.copies = 0

    def came_from(self, broker_id: int) -> None:
        """Count one more corrupt copy; restart the count for another broker."""
        if broker_id != self.broker_id:
            self.broker_id = broker_id
            self.copies = 0
        self.copies += 1

    def is_hopeless(self, now_ms: int) -> bool:
        """Return whether to stop retrying."""
        return self.copies >= CORRUPT_COPIES or now_ms - self.since_ms >= CORRUPTION_PATIENCE_MS


@dataclass(slots=True, eq=False)
class PartitionFetchState:
    """State of a partition that is read. Only `SubscriptionState` changes it."""

    where: TopicPartition
    position: int
    """Offset of the next record for the application."""
    fetch_offset: int
    """Offset of the next fetch."""
    end_offset: int | None
    generation: int
    placed: int = 0
    """Generation in which the position was set; later generations only fetch again."""
    topic_id: bytes = b""
    """Id of the incarnation of the topic to which offsets and epochs belong."""
    compared_answer: int = NO_ANSWER
    """Number of the metadata with which `topic_id` was last compared."""
    replaced_by: bytes = b""
    """Id of the newer topic with the same name; empty means there is none."""
    epoch: int = NO_EPOCH
    fetch_epoch: int = NO_EPOCH
    epochs: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=EPOCHS_KEPT))
    """(leader epoch, offset from which the application received its records), both ascending."""
    paused: bool = False
    fetches: int = 0
    """Number of fetches in flight; each continues behind the records of the one before."""
    is_ready: bool = False
    """Whether the partition is in the queue of those with something for the application."""
    needs_reset: bool = False
    divergence: Divergence | None = None
    corruption: Corruption | None = None
    near: NearReplica = field(default_factory=NearReplica)
    completed_fetches: deque[CompletedFetch] = field(default_factory=deque)
    buffered_bytes: int = 0
    failures: int = 0
    retry_at_ms: int = 0
    failed_epoch: int = NO_EPOCH
    """Leader epoch to which the back-off applies; the leader of a newer one is tried at once."""
    seeks_leader: bool = False
    """Whether metadata must be read for a newer leader during the back-off."""
    high_watermark: int = -1
    log_start_offset: int = -1

    @property
    def at_end(self) -> bool:
        """Whether the application has received everything up to the end offset."""
        return self.end_offset is not None and self.position >= self.end_offset

    @property
    def is_behind(self) -> bool:
        """Whether more records are available: by the last response, or before the first one by the end offset."""
        known = self.high_watermark if self.high_watermark >= 0 else self.end_offset
        return known is not None and self.fetch_offset < known

    @property
    def has_diverged(self) -> bool:
        """Whether the log was replaced, and the application has received everything that was fetched before."""
        return self.divergence is not None and self.position >= self.fetch_offset

    def is_wanted(self, share_bytes: int) -> bool:
        """Return whether more of the partition should be fetched."""
        return not self.fetches and self.buffered_bytes < share_bytes and self._is_readable_at(self.fetch_offset)

    def wants_behind(self, next_offset: int, coming_bytes: int, share_bytes: int) -> bool:
        """Return whether to continue at `next_offset`, behind a response in progress.

        `coming_bytes` is the maximum size of what its fetches in flight and the new one return.
        """
        has_room = self.buffered_bytes + coming_bytes <= share_bytes
        return has_room and self.corruption is None and self._is_readable_at(next_offset)

    def _is_readable_at(self, offset: int) -> bool:
        """Return whether the application may receive the record at `offset` without an error or a reset before."""
        if self.paused or self.needs_reset or self.divergence is not None:
            return False
        return self.end_offset is None or offset < self.end_offset

    def is_waiting(self, leader_epoch: int, now_ms: int) -> bool:
        """Return whether it is in back-off after a failure of the leader of this epoch."""
        return self.retry_at_ms > now_ms and leader_epoch <= self.failed_epoch

    def was_replaced(self, topic_id: bytes, answer: int) -> bool:
        """Return whether the topic's name belongs to another incarnation in the metadata of this number.

        A position may be newer than the current metadata, so a mismatch counts from the next metadata on.
        """
        self.topic_id = self.topic_id or topic_id
        if self.topic_id == topic_id:
            self.compared_answer, self.replaced_by = answer, b""
            return False
        if self.compared_answer == NO_ANSWER:
            self.compared_answer = answer
        self.replaced_by = topic_id if answer > self.compared_answer else b""
        return bool(self.replaced_by)

    def seek(self, offset: int, topic_id: bytes = b"") -> None:
        """Move to an offset without known epochs, in the incarnation `topic_id` (default: the newest one known)."""
        if topic_id or self.replaced_by:
            self.topic_id = topic_id or self.replaced_by
            self.compared_answer, self.replaced_by = NO_ANSWER, b""
        self.position = offset
        self.corruption = None
        self.forget_epochs()

    def forget_epochs(self) -> None:
        """Forget the epochs of records that were read before."""
        self.epoch = self.fetch_epoch = NO_EPOCH
        self.epochs.clear()

    def deliver(self, position: int, leader_epoch: int) -> None:
        """Record that the application received all below `position`; `leader_epoch` is that of the last batch."""
        if position <= self.position:
            return
        if leader_epoch != self.epoch:
            self.epoch = leader_epoch
            self.epochs.append((leader_epoch, self.position))
        self.position = position
        self.corruption = None

    def diverging_offset(self) -> int:
        """Return the offset where the leader's log diverges, as far as epochs show; at most the position.

        The leader returned its largest epoch that is not above ours, and the end of that epoch. It has none of our
        later epochs, and what both logs have of an epoch is the same (PROTOCOL I7).
        """
        assert self.divergence is not None
        _, epoch, end_offset = self.divergence
        own_end = next((start for later, start in self.epochs if later > epoch), self.position)
        return min(end_offset, own_end)

    def succeeded(self) -> None:
        """Forget earlier failures."""
        self.failures = self.retry_at_ms = 0
        self.failed_epoch = NO_EPOCH
        self.seeks_leader = False

    def take(self, data: ReadableBuffer, broker_id: int) -> int:
        """Keep fetched batches; return the bytes counted against the buffer limit."""
        offset = self.fetch_offset
        end, epoch, inflated_bytes = _end_of(data)
        inflated_bytes = max(inflated_bytes, len(data))
        if end > offset:
            self.fetch_offset, self.fetch_epoch = end, epoch
        self.completed_fetches.append(
            CompletedFetch(self.where, self.generation, offset, self.end_offset, data, broker_id, inflated_bytes)
        )
        self.buffered_bytes += inflated_bytes
        return inflated_bytes

    def rewind(self, generation: int) -> None:
        """Drop fetched batches and fetch again from the position, in a new generation."""
        self.generation = generation
        self.buffered_bytes = 0
        self.completed_fetches.clear()
        self.fetches = 0
        self.needs_reset = False
        self.divergence = None
        self.fetch_offset, self.fetch_epoch = self.position, self.epoch
        self.succeeded()


def _end_of(data: ReadableBuffer) -> tuple[int, int, int]:
    """Return the offset after the last batch with a readable header, its epoch, and the bytes of all payloads. The
    decoder reports errors in the rest. (-1, -1, 0) means that there is none.
    """
    end, epoch, inflated_bytes = -1, NO_EPOCH, 0
    try:
        for header, _ in iter_batches(data):
            end, epoch = header.end_offset, header.leader_epoch
            inflated_bytes += header.payload_bytes
    except CorruptBatchError:
        return end, epoch, inflated_bytes
    return end, epoch, inflated_bytes
