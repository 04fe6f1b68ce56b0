"""Producer id and epochs, for all partitions of an idempotent producer. Pure; its owner locks."""

from headrace.client.producer.partition_queue import PartitionQueue, SealedBatch
from headrace.client.producer.sequences import SequenceState
from headrace.wire.ids import TopicPartition


class ProducerIdentity:
    """Identity of one `InFlightRequests`."""

    def __init__(self, identity: tuple[int, int] | None, *, is_used: bool) -> None:
        """`identity` is a producer id and epoch that never change; `None` means that `set` assigns them."""
        self._is_used = is_used
        self._identity = identity
        self.is_kept = identity is not None
        self._begins: dict[TopicPartition, int] = {}
        self._started: dict[TopicPartition, SequenceState] = {}
        self.is_needed = False
        """Set when a batch cannot be sent for lack of a producer id."""

    @property
    def is_missing(self) -> bool:
        """Whether batches need a producer id that is not assigned yet."""
        return self._is_used and self._identity is None

    def set(self, producer_id: int, epoch: int) -> None:
        """Set the producer id that the coordinator assigned."""
        self._identity = (producer_id, epoch)
        self.is_needed = False

    def continue_from(self, where: TopicPartition, sequence: int) -> None:
        """Start a partition without sent batches at a sequence after the records that an earlier process stored with
        the kept identity.
        """
        assert self.is_kept
        self._begins[where] = sequence

    def start(self, partition_queue: PartitionQueue) -> None:
        """Assign the producer id, if known, to a partition without sent batches.

        If an earlier queue had its name, start a new epoch: after a restore of etcd, a deleted topic may exist again
        with its old records, and equal sequences would be taken for duplicates of them (PROTOCOL H51).
        """
        if not self._is_used or self._identity is None or partition_queue.sequences.producer_id >= 0:
            return
        producer_id, epoch = self._identity
        before = self._started.get(partition_queue.where)
        if before is not None and before.producer_id == producer_id and not self.is_kept:
            epoch, partition_queue.needs_epoch = before.epoch, True
        sequence = self._begins.get(partition_queue.where, 0)
        partition_queue.sequences.start(producer_id, epoch, sequence, queued=partition_queue.queued_records())
        self._started[partition_queue.where] = partition_queue.sequences

    def admits(self, partition_queue: PartitionQueue) -> bool:
        """Return whether a partition without unresolved batches may send; start a new epoch if needed."""
        if not self._is_used:
            return True
        if partition_queue.sequences.producer_id < 0:
            if self._identity is None:
                self.is_needed = True
                return False
            self.start(partition_queue)
        if partition_queue.needs_epoch:
            if self.is_kept:  # A sequence is missing permanently: nothing can follow it.
                return False
            self._raise_epoch(partition_queue)
        return partition_queue.sequences.producer_id >= 0

    def _raise_epoch(self, partition_queue: PartitionQueue) -> None:
        """Start a new epoch, unless a batch of unknown outcome must be resolved under the old one first.

        Only the batch at the front can be one: a batch after one that was certainly not applied was not applied either,
        because leaders accept no sequence before the missing one.
        """
        if partition_queue.queued and partition_queue.queued[0].outcome_unknown:
            return
        partition_queue.needs_epoch = False
        for batch in partition_queue.queued:
            batch.numbered = batch.outcome_unknown = False
        if not partition_queue.sequences.raise_epoch(queued=partition_queue.queued_records()):
            partition_queue.sequences = SequenceState()
            self._identity = None
            self.is_needed = True

    def number(self, batch: SealedBatch) -> None:
        """Check the sequence of a batch at its first send in this epoch, and replace it if it is stale."""
        assert not batch.outcome_unknown, "a batch that may have been applied keeps its bytes"
        assert batch.encoded is not None
        stamp = batch.partition_queue.sequences.sent(batch.records)
        if batch.stamp != stamp:
            batch.stamp_anew(stamp)
        batch.numbered = True
