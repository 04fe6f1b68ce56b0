"""One partition that is read: its position, its fetched batches, its broker. Pure; owned by `SubscriptionState`.

Two leader epochs go with the two offsets. `epoch` is that of the last batch that the application has received a record
of, `fetch_epoch` that of the last batch fetched: a fetch names it, and a broker whose log has other data there reports
that (KIP-320). A position that was chosen has none, so it is not checked until a batch has been read there.
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
"""Above every leader epoch: a back-off that a newer leader does not end."""
EPOCHS_KEPT = 64
"""Maximum number of leader epochs whose beginning is kept; a reader that meets more drops the oldest."""
SILENT_REPLICA_MS = 5_000
"""A nearer replica that returns no data for this long may have fallen behind: the leader is read again."""
REFUSED_REPLICA_MS = 10_000
"""Time for which the leader is read after a nearer replica could not serve."""
LAGGING_TRIES = 5
"""Number of tries, after a back-off, of a nearer replica that lacks the records which the leader has returned."""
CORRUPT_COPIES = 3
"""After this many corrupt copies of a batch from one broker the application gets the error."""
CORRUPTION_PATIENCE_MS = 30_000
"""Time to wait for a sound copy of a corrupt batch while brokers refuse to serve it."""


class CompletedFetch(NamedTuple):
    """Whole batches of one partition, as a broker sent them."""

    where: TopicPartition
    generation: int
    offset: int
    """The first offset wanted; the first batch may start before it."""
    end_offset: int | None
    """Records from here on are not read; `None` means no bound."""
    data: ReadableBuffer
    broker_id: int = -1
    """The broker that sent it."""
    inflated_bytes: int = 0
    """What it counts for while it waits: its payloads before compression, as their headers state."""


class Divergence(NamedTuple):
    """The leader's report that the log which was read ends earlier."""

    offset: int
    """The offset of the fetch."""
    leader_epoch: int
    """The largest epoch of the leader's log that is not above the one named; -1: none."""
    end_offset: int
    """Where that epoch ends: from here on the records are others, or gone."""


class NearReplica:
    """Which replica is read in place of the leader (KIP-392). It is left at the first sign that it cannot serve."""

    __slots__ = ("_heard_ms", "_not_before_ms", "_until_ms", "broker_id", "tries")

    def __init__(self) -> None:
        self.broker_id = -1
        """-1 means that the leader is read."""
        self.tries = 0
        """How often it has reported that it does not have the offset yet."""
        self._until_ms = 0
        self._heard_ms = 0
        self._not_before_ms = 0

    def is_read(self, now_ms: int) -> bool:
        """Whether the next fetch goes to it; its term may be over."""
        if self.broker_id >= 0 and now_ms >= self._until_ms:
            self.broker_id = -1
        return self.broker_id >= 0

    def may_be_asked_for(self, now_ms: int) -> bool:
        """Return whether a fetch from the leader may name the rack: no replica has refused it recently."""
        return now_ms >= self._not_before_ms

    def leave(self) -> None:
        """Read from the leader, and take what it offers next."""
        self.broker_id = -1

    def offered(self, broker_id: int, now_ms: int, term_ms: int) -> None:
        """Read from this broker, which the leader has named, for `term_ms`."""
        self.broker_id = broker_id
        self.tries = 0
        self._until_ms = now_ms + term_ms
        self._heard_ms = now_ms

    def answered(self, now_ms: int, *, data: bool) -> None:
        """Note a response; after a long time without data the leader must name a replica again."""
        self.tries = 0
        if data:
            self._heard_ms = now_ms
        elif now_ms - self._heard_ms >= SILENT_REPLICA_MS:
            self.broker_id = -1

    def lags(self) -> bool:
        """Note that it does not have the offset yet; return whether to try it again."""
        self.tries += 1
        return self.tries <= LAGGING_TRIES

    def refused(self, now_ms: int) -> None:
        """Read from the leader, and ignore for a while which replica it names."""
        self.broker_id = -1
        self._not_before_ms = now_ms + REFUSED_REPLICA_MS


class Corruption:
    """A batch that failed its checksum here: it is fetched again from a replica with a sound copy (PROTOCOL I17)."""

    __slots__ = ("broker_id", "copies", "error", "since_ms")

    def __init__(self, broker_id: int, error: CorruptBatchError, now_ms: int) -> None:
        self.broker_id = broker_id
        self.error = error
        self.since_ms = now_ms
        self.copies = 0

    def came_from(self, broker_id: int) -> None:
        """Count one more corrupt copy; another broker's are counted anew."""
        if broker_id != self.broker_id:
            self.broker_id = broker_id
            self.copies = 0
        self.copies += 1

    def is_hopeless(self, now_ms: int) -> bool:
        """Return whether to give up."""
        return self.copies >= CORRUPT_COPIES or now_ms - self.since_ms >= CORRUPTION_PATIENCE_MS


@dataclass(slots=True, eq=False)
class PartitionFetchState:
    """What is known of a partition that is read. Changed by `SubscriptionState` alone."""

    where: TopicPartition
    position: int
    """The offset of the next record for the application."""
    fetch_offset: int
    """The offset of the next fetch."""
    end_offset: int | None
    generation: int
    placed: int = 0
    """The generation in which the position was chosen; later ones only fetch again."""
    topic_id: bytes = b""
    """Of the life of the topic that the offsets and epochs belong to."""
    compared_answer: int = NO_ANSWER
    """The number of the metadata that `topic_id` was last compared with."""
    replaced_by: bytes = b""
    """The id of the topic that has taken the name since; empty: none."""
    epoch: int = NO_EPOCH
    fetch_epoch: int = NO_EPOCH
    epochs: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=EPOCHS_KEPT))
    """(leader epoch, offset from which on the application has received its records), both ascending."""
    paused: bool = False
    in_flight: bool = False
    is_ready: bool = False
    """Whether it is in the queue of partitions with something for the application."""
    needs_reset: bool = False
    divergence: Divergence | None = None
    corruption: Corruption | None = None
    near: NearReplica = field(default_factory=NearReplica)
    completed_fetches: deque[CompletedFetch] = field(default_factory=deque)
    buffered_bytes: int = 0
    failures: int = 0
    retry_at_ms: int = 0
    failed_epoch: int = NO_EPOCH
    """The leader epoch that the back-off is for; the leader of a newer one is tried at once."""
    seeks_leader: bool = False
    """Whether metadata is read for a newer leader while it waits."""
    high_watermark: int = -1
    log_start_offset: int = -1

    @property
    def at_end(self) -> bool:
        """Whether the application has received all that is wanted."""
        return self.end_offset is not None and self.position >= self.end_offset

    @property
    def is_behind(self) -> bool:
        """Whether there is more to fetch: by the last answer, or before it by where the reading is to end."""
        known = self.high_watermark if self.high_watermark >= 0 else self.end_offset
        return known is not None and self.fetch_offset < known

    @property
    def has_diverged(self) -> bool:
        """Whether the log was replaced, and the application has received all that was fetched before."""
        return self.divergence is not None and self.position >= self.fetch_offset

    def is_wanted(self, share_bytes: int) -> bool:
        """Return whether more of it should be fetched."""
        return not (
            self.in_flight
            or self.paused
            or self.needs_reset
            or self.divergence is not None
            or self.buffered_bytes >= share_bytes
            or (self.end_offset is not None and self.fetch_offset >= self.end_offset)
        )

    def is_waiting(self, leader_epoch: int, now_ms: int) -> bool:
        """Whether it waits out a failure of the leader of this epoch."""
        return self.retry_at_ms > now_ms and leader_epoch <= self.failed_epoch

    def was_replaced(self, topic_id: bytes, answer: int) -> bool:
        """Return whether the topic's name belongs to another life by now, in metadata of this number.

        A position may be of a newer life than the metadata that is here: that decides only with its next answer.
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
        """Move to an offset without known epochs, in the life with `topic_id`, or in the newest one known."""
        if topic_id or self.replaced_by:
            self.topic_id = topic_id or self.replaced_by
            self.compared_answer, self.replaced_by = NO_ANSWER, b""
        self.position = offset
        self.corruption = None
        self.forget_epochs()

    def forget_epochs(self) -> None:
        """Forget the epochs of what was read before."""
        self.epoch = self.fetch_epoch = NO_EPOCH
        self.epochs.clear()

    def deliver(self, position: int, leader_epoch: int) -> None:
        """Note that the application has received the records below `position`; the last one's batch has this epoch."""
        if position <= self.position:
            return
        if leader_epoch != self.epoch:
            self.epoch = leader_epoch
            self.epochs.append((leader_epoch, self.position))
        self.position = position
        self.corruption = None

    def diverging_offset(self) -> int:
        """Return where the leader's log and the one that was read diverge, as far as epochs show; at most the position.

        The leader named the largest of its epochs that is not above ours, and its end there. What we have of later
        epochs it does not have; what both have of an epoch is the same (PROTOCOL I7).
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
        """Keep fetched batches; return the bytes for which they count."""
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
        """Drop fetched batches and begin again at the position, in a new generation."""
        self.generation = generation
        self.buffered_bytes = 0
        self.completed_fetches.clear()
        self.in_flight = self.needs_reset = False
        self.divergence = None
        self.fetch_offset, self.fetch_epoch = self.position, self.epoch
        self.succeeded()


def _end_of(data: ReadableBuffer) -> tuple[int, int, int]:
    """Return the offset behind the last batch whose header can be read, its epoch, and the bytes of all payloads; the
    reader finds what is wrong with the rest. (-1, -1, 0) means that there is none.
    """
    end, epoch, inflated_bytes = -1, NO_EPOCH, 0
    try:
        for header, _ in iter_batches(data):
            end, epoch = header.end_offset, header.leader_epoch
            inflated_bytes += header.payload_bytes
    except CorruptBatchError:
        return end, epoch, inflated_bytes
    return end, epoch, inflated_bytes
